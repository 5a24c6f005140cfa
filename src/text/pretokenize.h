/* Pre-tokenizers: where byte-level BPE cuts a text into words before merging. One table row each, in pretokenize.c. */
#ifndef FIRN_TEXT_PRETOKENIZE_H
#define FIRN_TEXT_PRETOKENIZE_H

#include "core/context.h"

enum {                             /* what a pre-tokenizer's name implies besides its cuts */
       FIRN_PRE_IGNORE_MERGES = 1, /* a word that is a token is not merged */
       FIRN_PRE_ADD_BOS = 2,       /* BOS is added where the file does not say */
       FIRN_PRE_NO_BOS = 4,        /* there is no BOS where the file does not name one */
};

typedef struct firn_pre firn_pre; /* immutable, shared by threads */

/* `name` is tokenizer.ggml.pre, exactly; one that is not known is FIRN_ERR_UNSUPPORTED, named. */
firn_status firn_pre_create(firn_context *ctx, const char *name, size_t n, firn_pre **pre);
void firn_pre_destroy(firn_context *ctx, firn_pre *pre); /* NULL is fine */
unsigned firn_pre_flags(const firn_pre *pre);
const char *firn_pre_name(const firn_pre *pre);
/* All known names, in the table's order; NULL past the last. */
const char *firn_pre_known(int i);

/* Working memory of one call of tokenize. */
typedef struct firn_cutter firn_cutter;
firn_status firn_cutter_create(firn_context *ctx, const firn_pre *pre, firn_cutter **cutter);
void firn_cutter_destroy(firn_cutter *cutter); /* NULL is fine */

typedef firn_status (*firn_word)(void *argument, size_t begin, size_t end);
/* Calls word(argument, begin, end) for each word of the text, in order; together they are all of it. Stops at the first
 * failure of `word` and returns it. */
firn_status firn_cut(firn_cutter *cutter, const char *text, size_t n, firn_word word, void *argument);

#endif
