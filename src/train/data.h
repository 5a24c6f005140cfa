/* A data set: the lines of a JSONL file as tokens, each marked as trained or not, in pieces that fit a window; and how
 * those pieces are ordered, split for evaluation, and packed into windows.
 *
 * Nothing here is random but by (seed, epoch): the same file, options and seed give the same batches anywhere. */
#ifndef FIRN_TRAIN_DATA_H
#define FIRN_TRAIN_DATA_H

#include "core/buffer.h"
#include "firn/model.h"
#include "text/jinja.h"

/* Tokens with the bytes that each stands for: [begin, end) in the text; empty for one that was added. */
typedef struct {
    int32_t *ids;
    size_t *begin, *end;
    size_t n, capacity;
} firn_token_list;

firn_status firn_token_list_add(firn_context *ctx, firn_token_list *list, int32_t id, size_t begin, size_t end);
void firn_token_list_free(firn_context *ctx, firn_token_list *list);

/* Takes one sample of a line: its text, what of it is trained, and its tokens (NULL: those that `encode` gives). All
 * belong to the caller again afterwards. */
typedef firn_status (*firn_take)(void *sink, const firn_text *text, const firn_spans *spans,
                                 const firn_token_list *tokens);

enum { FIRN_ENCODER_COUNTS = 16 };

/* What a data set asks of a model: a tokenizer and a chat template. */
typedef struct {
    void *user;
    /* Appends the tokens of text, special tokens parsed, nothing added. */
    firn_status (*encode)(void *user, const char *text, size_t size, firn_token_list *tokens);
    /* Renders a conversation {"messages": [...], "tools": ...}, whose other keys are given to the template too, into
     * one sample or several, each handed to `take` in order. What lies behind
     * `window` tokens of a sample need not be rendered. NULL: the model has no template, and `messages` are refused. */
    firn_status (*render)(void *user, const json_t *conversation, int64_t window, firn_take take, void *sink);
    /* What `render` counted so far, and the plan's sentence of each ("%lld turns are ..."); texts NULL or ending in
     * NULL: no more. */
    int64_t counts[FIRN_ENCODER_COUNTS];
    const char *const *count_texts;
    int32_t bos, eos; /* -1: none */
    bool add_bos, add_eos;
} firn_encoder;

/* One piece: a line, or a window's worth of a long `text`. */
typedef struct {
    int64_t line;      /* of the file, from 1 */
    int64_t begin;     /* first token */
    int32_t n;         /* tokens */
    int32_t n_targets; /* tokens that are learned; the first of a piece never is */
} firn_sample;

typedef struct {
    firn_context *ctx;
    firn_sample *samples;
    size_t n_samples, samples_capacity;
    int32_t *tokens;
    uint8_t *trained; /* [n_tokens] 1: to be predicted */
    size_t n_tokens, tokens_capacity, trained_capacity;
    int64_t lines; /* objects read */
    int64_t empty, untrained, cut,
        split; /* dropped without tokens; without targets; cut at the window; spread over windows */
    int64_t n_targets;
} firn_data;

/* Reads the whole file. context: tokens of a window. A file without a sample to train on is an error that says why. */
firn_status firn_data_load(firn_context *ctx, const char *path, const firn_encoder *encoder, int64_t context,
                           firn_data **data);
firn_status firn_data_parse(firn_context *ctx, const char *name, const void *bytes, size_t size,
                            const firn_encoder *encoder, int64_t context, firn_data **data);
/* A line by itself; without a sample to train on it gives none. */
firn_status firn_data_parse_line(firn_context *ctx, const void *bytes, size_t size, const firn_encoder *encoder,
                                 int64_t context, firn_data **data);
void firn_data_destroy(firn_data *data);
/* Bytes that the data set holds. */
uint64_t firn_data_bytes(const firn_data *data);
/* "240 samples, 13440 tokens, 5521 of them trained; 2 without targets were dropped": for people. */
void firn_data_describe(const firn_data *data, firn_text *text);

/* A choice of samples, by index, rising. */
typedef struct {
    int32_t *items;
    size_t n;
} firn_sample_list;

void firn_sample_list_free(firn_context *ctx, firn_sample_list *list);
firn_status firn_data_all(const firn_data *data, firn_sample_list *all);
/* Holds `fraction` of the lines back for evaluation, by (seed, line) alone: at least one, all but one at most; none
 * when there is one line or fraction is 0. A line's pieces stay together. */
firn_status firn_data_split(const firn_data *data, double fraction, uint64_t seed, firn_sample_list *train,
                            firn_sample_list *held);

/* Windows: which samples lie in each, one after the other. */
typedef struct {
    firn_context *ctx;
    int32_t *order;  /* samples, window after window */
    int64_t *window; /* [n_windows + 1] first of each in order */
    int64_t n_windows;
} firn_packing;

/* Packs the samples into windows of at most `context` tokens. shuffle: in an order drawn from (seed, epoch); else as
 * they come. */
firn_status firn_pack(const firn_data *data, const firn_sample_list *samples, int64_t context, bool shuffle,
                      uint64_t seed, int64_t epoch, firn_packing *packing);
void firn_packing_clear(firn_packing *packing);

/* A pass being put together: whole windows, no padding, every sample a document of its own. */
typedef struct {
    firn_context *ctx;
    int64_t capacity, n, n_targets;
    int32_t *tokens, *targets, *position, *first;
    int32_t *sample; /* [capacity] which sample a token belongs to, for errors */
} firn_pass;

firn_status firn_pass_create(firn_context *ctx, int64_t capacity, firn_pass *pass);
void firn_pass_destroy(firn_pass *pass);
void firn_pass_clear(firn_pass *pass);
/* Appends a sample; it must fit. */
firn_status firn_pass_add(firn_pass *pass, const firn_data *data, int32_t sample);
/* Appends window w. */
firn_status firn_pass_add_window(firn_pass *pass, const firn_data *data, const firn_packing *packing, int64_t w);
firn_batch firn_pass_batch(const firn_pass *pass);

#endif
