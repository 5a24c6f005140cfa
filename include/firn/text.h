/* Text: a model's tokenizer and its chat template; from a line of a data set to the tokens that are trained, and from
 * messages to the tokens that a model is asked with. Both go through the same code, so that a turn is trained on what
 * the model sees when it is asked.
 *
 *     firn_gguf *file;  firn_language *l;  firn_sequences s;
 *     firn_gguf_open(ctx, "model.gguf", &file);
 *     firn_language_create(ctx, file, NULL, &l);
 *     firn_language_sequences(l, line, strlen(line), 4096, &s);      line: {"messages": [...]}
 *     for (size_t i = 0; i < s.n; i++)
 *         ... s.items[i].tokens, s.items[i].trained ...
 *     firn_sequences_free(ctx, &s);
 *
 * docs/text.md says which tokenizers and templates are known, and which tokens of a turn are trained. */
#ifndef FIRN_TEXT_H
#define FIRN_TEXT_H

#include "firn/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tokenizer: text to ids and back, as the model's own file says ----
 *
 * What a GGUF's tokenizer.ggml.* keys describe is read once into an immutable firn_tokenizer, which any number of
 * threads may use at once, each with its own context. Ids are llama.cpp's for every text that is valid UTF-8. */

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
FIRN_API firn_status firn_tokenizer_create(firn_context *ctx, const firn_gguf *gguf, firn_tokenizer **tok);
FIRN_API void firn_tokenizer_destroy(firn_tokenizer *tok); /* NULL is fine */

/* ---- text to ids ---- */

enum {
    FIRN_ADD_SPECIAL = 1,   /* BOS in front and EOS behind, each where the vocabulary asks for it */
    FIRN_PARSE_SPECIAL = 2, /* the text of a control token is that token; without it such text is plain characters */
    FIRN_GOES_ON = 8,       /* the text goes on behind another: SPM puts no space in front of it */
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
FIRN_API firn_status firn_tokenize(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n,
                                   unsigned flags, firn_tokens *out);
/* NULL for either is fine: nothing is freed. */
FIRN_API void firn_tokens_free(firn_context *ctx, firn_tokens *tokens);

/* ---- ids to text ---- */

/* Writes the text of the ids, at most `capacity` bytes of it, and its whole length to *size (which may be more, as
 * snprintf does it; no NUL is added). Without BOS and EOS it is what was tokenized, byte for byte: a leading space that
 * SPM put in front of a fragment is taken off again, nothing else is cleaned up. Control tokens give their text. `out`
 * may be NULL with capacity 0. An id outside the vocabulary is FIRN_ERR_ARGUMENT. */
FIRN_API firn_status firn_tokens_text(firn_context *ctx, const firn_tokenizer *tok, const int32_t *ids, size_t n,
                                      char *out, size_t capacity, size_t *size);

/* The text of one token at a time, for generation: *after_special starts as true at the beginning of a text (false to
 * go on in the middle of one) and is carried from call to call. The bytes need not be whole characters. NULL for an id
 * outside the vocabulary. */
FIRN_API const char *firn_token_piece(const firn_tokenizer *tok, int32_t id, bool *after_special, size_t *n);

/* ---- the vocabulary ---- */

FIRN_API int32_t firn_tokenizer_size(const firn_tokenizer *tok);
/* "gpt2", "gemma4" or "llama"; the pre-tokenizer's name, "" for models without one. */
FIRN_API const char *firn_tokenizer_model(const firn_tokenizer *tok);
FIRN_API const char *firn_tokenizer_pre(const firn_tokenizer *tok);
/* As the file spells it, and the bytes that it stands for. NULL for an id outside the vocabulary; n may be NULL. */
FIRN_API const char *firn_token_text(const firn_tokenizer *tok, int32_t id, size_t *n);
FIRN_API const char *firn_token_bytes(const firn_tokenizer *tok, int32_t id, size_t *n);
/* After llama.cpp's corrections: a token that ends generation is a control token whatever the file says. */
FIRN_API firn_token_type firn_token_kind(const firn_tokenizer *tok, int32_t id);
/* The token with exactly this text (as the file spells it), -1 when there is none. */
FIRN_API int32_t firn_token_find(const firn_tokenizer *tok, const char *text, size_t n);

/* -1 when the vocabulary has none. */
FIRN_API int32_t firn_tokenizer_bos(const firn_tokenizer *tok);
FIRN_API int32_t firn_tokenizer_eos(const firn_tokenizer *tok);
FIRN_API int32_t firn_tokenizer_unknown(const firn_tokenizer *tok);
FIRN_API int32_t firn_tokenizer_padding(const firn_tokenizer *tok);
FIRN_API bool firn_tokenizer_adds_bos(const firn_tokenizer *tok);
FIRN_API bool firn_tokenizer_adds_eos(const firn_tokenizer *tok);

/* Ends generation: EOS, end of turn, end of message, and what llama.cpp knows by its text. */
FIRN_API bool firn_token_is_end(const firn_tokenizer *tok, int32_t id);
/* All of them, ascending. */
FIRN_API const int32_t *firn_tokenizer_ends(const firn_tokenizer *tok, size_t *n);

/* ---- language: a tokenizer and a chat template together ---- */

/* Not for two threads at once: it keeps scratch memory. */
typedef struct firn_language firn_language;

typedef struct {
    size_t size; /* sizeof(firn_language_options), so that fields can be added */
    /* What an assistant thinks before it answers: "train" it (NULL: this), "mask" it (seen, not trained), "drop" it. */
    const char *reasoning;
    /* What is trained of messages: what the "assistant" says (NULL: this), "all" of the text, or the "last" answer. */
    const char *loss;
} firn_language_options;

/* Reads the file's vocabulary. The template is compiled when messages are first rendered; a model without one, or with
 * one that cannot be compiled, can be trained on texts, and on prompts and completions. options may be NULL. The file
 * and ctx must outlive the language. Errors: those of firn_tokenizer_create. */
FIRN_API firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf,
                                          const firn_language_options *options, firn_language **language);
FIRN_API void firn_language_destroy(firn_language *language); /* NULL is fine */
/* Belongs to the language. */
FIRN_API const firn_tokenizer *firn_language_tokenizer(const firn_language *language);

/* What is fed to a model in one piece, from position 0. */
typedef struct {
    int32_t *tokens;   /* [n] BOS included where the vocabulary asks for it */
    uint8_t *trained;  /* [n] 1: this token is to be predicted from those before it; the first one never is */
    int64_t n;         /* tokens */
    int64_t n_trained; /* ones in `trained`; at least one */
} firn_sequence;

typedef struct {
    firn_sequence *items;
    size_t n;
} firn_sequences;

/* The sequences of a line of a data set, `size` bytes of JSON:
 *
 *     {"messages": [{"role": "user", "content": "..."}, ...]}   rendered by the template; other keys are given to it
 *     {"prompt": "...", "completion": "..."}                     the completion is trained, and an end token behind it
 *     {"text": "..."}                                            all of it is trained
 *
 * window: a sequence has at most so many tokens (2 at least). Messages, and prompt with completion, are cut at their
 * end; messages whose template shows earlier turns otherwise later on become several sequences (docs/text.md); a text
 * becomes several sequences, each beginning with the last token of the one before. A line without a token to train
 * gives none. *sequences is freed with firn_sequences_free, with the context of the language. FIRN_ERR_FORMAT: no such
 * line, or the template refuses it; the sentence names the place. */
FIRN_API firn_status firn_language_sequences(firn_language *language, const char *json, size_t size, int64_t window,
                                             firn_sequences *sequences);
/* NULL for either is fine: nothing is freed. */
FIRN_API void firn_sequences_free(firn_context *ctx, firn_sequences *sequences);

/* The tokens that a model is asked with: a list of messages, or a line as above, through the template with its
 * generation prompt, BOS in front where the vocabulary asks for it and the template has not written it; of a prompt
 * (with or without a completion) the prompt's. *prompt starts as {0} or from an earlier call, and is freed with
 * firn_tokens_free. Errors as above. */
FIRN_API firn_status firn_language_prompt(firn_language *language, const char *json, size_t size, firn_tokens *prompt);

#ifdef __cplusplus
}
#endif
#endif
