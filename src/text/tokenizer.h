/* Tokenizers: text to ids and back, as the model's own file says.
 *
 * What a GGUF's tokenizer.ggml.* keys describe is read once into an immutable firn_tokenizer, which any number of
 * threads may use at once, each with its own context. Ids are llama.cpp's for every text that is valid UTF-8;
 * docs/text.md lists what was checked and the few deviations. Where to read on: vocab.c (loading), pretokenize.c (where
 * each vocabulary cuts text into words), merge.c (BPE and SPM merging), special.c (special tokens in text), tokenizer.c
 * (all of it together). */
#ifndef FIRN_TEXT_TOKENIZER_H
#define FIRN_TEXT_TOKENIZER_H

#include "core/buffer.h"
#include "firn/gguf.h"

typedef struct firn_tokenizer firn_tokenizer;

typedef enum { /* the numbers are tokenizer.ggml.token_type's */
               FIRN_TOKEN_UNDEFINED,
               FIRN_TOKEN_NORMAL,
               FIRN_TOKEN_UNKNOWN,
               FIRN_TOKEN_CONTROL,
               FIRN_TOKEN_USER_DEFINED,
               FIRN_TOKEN_UNUSED,
               FIRN_TOKEN_BYTE,
} firn_token_type;

/* Reads the vocabulary; the file may be closed afterwards, ctx must outlive the tokenizer. A tokenizer model or
 * pre-tokenizer that is not known is FIRN_ERR_UNSUPPORTED and named; a malformed vocabulary is FIRN_ERR_FORMAT. */
firn_status firn_tokenizer_create(firn_context *ctx, const firn_gguf *gguf, firn_tokenizer **tok);
void firn_tokenizer_destroy(firn_tokenizer *tok); /* NULL is fine */

/* ---- text to ids ---- */

enum {
    FIRN_ADD_SPECIAL = 1,   /* BOS in front and EOS behind, each where the vocabulary asks for it */
    FIRN_PARSE_SPECIAL = 2, /* the text of a control token is that token; without it such text is plain characters */
    FIRN_BOS_ONCE = 4,      /* with the two above: no BOS in front of a text that begins with its text already */
};

/* Where a token comes from: bytes [begin, end) of the text. BOS and EOS are empty, and so are all but the first of
 * several byte tokens that stand for one byte. */
typedef struct {
    uint32_t begin, end;
} firn_token_span;

/* Starts as {0}; a call replaces what was there and reuses the memory. */
typedef struct {
    int32_t *ids;
    firn_token_span *spans;
    size_t n, capacity;
} firn_tokens;

/* Any bytes; text of 4 GiB or more is refused. */
firn_status firn_tokenize(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, unsigned flags,
                          firn_tokens *out);
void firn_tokens_free(firn_context *ctx, firn_tokens *tokens);

/* ---- ids to text ---- */

/* Appends the text. Without BOS and EOS it is what was tokenized, byte for byte: a leading space that SPM put in front
 * of a fragment is taken off again, nothing else is cleaned up. Control tokens give their text. An id outside the
 * vocabulary is FIRN_ERR_ARGUMENT. */
firn_status firn_detokenize(firn_context *ctx, const firn_tokenizer *tok, const int32_t *ids, size_t n, firn_text *out);

/* The same one token at a time, for generation: *after_special starts as true at the beginning of a text (false to go
 * on in the middle of one) and is carried from call to call. The bytes need not be whole characters. NULL for an id
 * outside the vocabulary. */
const char *firn_token_piece(const firn_tokenizer *tok, int32_t id, bool *after_special, size_t *n);

/* ---- the vocabulary ---- */

int32_t firn_tokenizer_size(const firn_tokenizer *tok);
/* "gpt2", "gemma4" or "llama"; the pre-tokenizer's name, "" for models without one. */
const char *firn_tokenizer_model(const firn_tokenizer *tok);
const char *firn_tokenizer_pre(const firn_tokenizer *tok);
/* As the file spells it, and the bytes that it stands for. NULL for an id outside the vocabulary. */
const char *firn_token_text(const firn_tokenizer *tok, int32_t id, size_t *n);
const char *firn_token_bytes(const firn_tokenizer *tok, int32_t id, size_t *n);
/* After llama.cpp's corrections: a token that ends generation is a control token whatever the file says. */
firn_token_type firn_token_kind(const firn_tokenizer *tok, int32_t id);
/* The token with exactly this text (as the file spells it), -1 when there is none. */
int32_t firn_token_find(const firn_tokenizer *tok, const char *text, size_t n);

/* -1 when the vocabulary has none. */
int32_t firn_tokenizer_bos(const firn_tokenizer *tok);
int32_t firn_tokenizer_eos(const firn_tokenizer *tok);
int32_t firn_tokenizer_unknown(const firn_tokenizer *tok);
int32_t firn_tokenizer_padding(const firn_tokenizer *tok);
bool firn_tokenizer_adds_bos(const firn_tokenizer *tok);
bool firn_tokenizer_adds_eos(const firn_tokenizer *tok);

/* Ends generation: EOS, end of turn, end of message, and what llama.cpp knows by its text. */
bool firn_token_is_end(const firn_tokenizer *tok, int32_t id);
/* All of them, ascending. */
const int32_t *firn_tokenizer_ends(const firn_tokenizer *tok, size_t *n);

#endif
