/* The tokenizer from inside: what vocab.c reads from the file, and the lookups that encoding needs. */
#ifndef FIRN_TEXT_VOCAB_H
#define FIRN_TEXT_VOCAB_H

#include "core/arena.h"
#include "core/secret.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

/* A longer token is refused: the longest known is 1 KiB, and matching costs grow with it. */
enum { FIRN_TOKEN_MAX_BYTES = 16384 };

typedef enum {
    FIRN_VOCAB_GPT2,   /* byte-level BPE: merges over the GPT-2 byte alphabet, words cut by a pre-tokenizer */
    FIRN_VOCAB_GEMMA4, /* BPE over UTF-8 with U+2581 for spaces, cut at newlines, byte tokens <0xHH> */
    FIRN_VOCAB_SPM,    /* sentencepiece's: merges by score, U+2581 for spaces, byte tokens <0xHH> */
} firn_vocab_model;

typedef struct {
    const char *text; /* as in the file */
    const char *bytes;
    uint32_t n_text, n_bytes;
    float score;
    firn_token_type type;
    bool control; /* skipped in text unless special tokens are parsed: control, unknown, or taken for control */
    bool special; /* matched in raw text: the former and user-defined ones */
    bool strip;   /* whitespace behind it goes with it */
    bool end;     /* ends generation */
} firn_token;

/* A token by its text: -1 where free. */
typedef struct {
    int32_t id;
    uint32_t tag; /* upper half of the text's hash */
} firn_text_slot;

/* (left id, right id) to (rank, product). Free where product is -1. */
typedef struct {
    int32_t left, right, product;
    uint32_t rank;
} firn_merge;

/* Special tokens as an Aho-Corasick automaton over their reversed texts: reading a text from its end, the state at a
 * position knows the longest special token that begins there, in linear time. Node 0 is the root. */
typedef struct {
    int32_t child, sibling, fail;
    int32_t longest; /* index into `order` of the longest token that begins here, -1: none */
    uint8_t byte;
} firn_special_node;

typedef struct {
    firn_special_node *nodes;
    int32_t root[256]; /* the root's children by byte, 0: none */
    int32_t *order;    /* ids, longest text first, then by id: who wins */
    int32_t *shorter;  /* by index into `order`: the next shorter special token that this one begins with, -1: none */
    int n;
} firn_specials;

struct firn_tokenizer {
    firn_context *ctx;
    firn_arena arena;
    firn_vocab_model model;
    firn_pre *pre; /* GPT2 only */
    unsigned pre_flags;
    int32_t n;
    firn_token *tokens;
    firn_secret secret;      /* of the tables below */
    firn_text_slot *by_text; /* open addressing */
    size_t text_mask;
    firn_merge *merges;
    size_t merge_mask;
    int32_t byte_ids[256]; /* the token of one byte, -1: none */
    bool joins[256];       /* U+2581 models: some token has this byte right before U+2581, so words do not end there */
    size_t max_bytes;      /* of a token */
    int32_t bos, eos, unknown, padding;
    bool add_bos, add_eos, add_space_prefix;
    int32_t *ends;
    size_t n_ends;
    firn_specials specials;
    int32_t replacement[8]; /* GPT2: ids of U+FFFD, for bytes that are not UTF-8 and have no token */
    int n_replacement;
};

#define FIRN_SPACE_MARK "\xE2\x96\x81" /* U+2581 */

/* -1 when there is none. */
int32_t firn_vocab_text(const firn_tokenizer *tok, const char *text, size_t n);
/* A byte in the GPT-2 byte alphabet; returns 1 or 2, the bytes of text written. */
size_t firn_vocab_alphabet(uint8_t byte, char text[2]);
/* NULL when the pair does not merge. */
const firn_merge *firn_vocab_merge(const firn_tokenizer *tok, int32_t left, int32_t right);

/* ---- merge.c ---- */

enum { FIRN_NO_SYMBOL = UINT32_MAX };

/* A piece of a word. The caller of firn_merge_symbols fills in the first five. */
typedef struct {
    uint32_t begin, n; /* bytes of the word */
    uint32_t width;    /* bytes of the source text: a space is one, U+2581 three; a space put in front none */
    int32_t id;        /* -1: no token */
    uint32_t next;     /* FIRN_NO_SYMBOL at the end */
    uint32_t prev;
    uint32_t priority; /* of merging with the next; smaller is sooner */
    int32_t product;   /* what that gives, -1: it does not merge */
} firn_symbol;

/* Merges neighbours, best first, leftmost first among equals, until nothing merges; `next` then leads from symbol 0 to
 * what is left. heap: room for 3 n keys. O(n log n). */
void firn_merge_symbols(const firn_tokenizer *tok, const char *word, firn_symbol *symbols, size_t n, uint64_t *heap);

/* ---- special.c ---- */
firn_status firn_specials_build(firn_context *ctx, firn_tokenizer *tok);

typedef struct {
    uint32_t begin, end; /* of the text, with what was stripped */
    uint32_t text_end;   /* of the token's own text */
    int32_t id;
} firn_special_match;

/* The special tokens of a text, in order of position. *matches (NULL when there are none) is freed with firn_free. */
firn_status firn_specials_find(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, bool control,
                               firn_special_match **matches, size_t *count);

#endif
