/* A data set: the lines of its files as tokens, each marked as trained or not, in pieces that fit a window; and how
 * those pieces are ordered, split for evaluation, and packed into windows.
 *
 *     sources.c  files, folders, standard input, weights      source.c  bytes, unpacked      jsonl.c csv.c  records
 *     canon.c    one form for lines of all formats             sample.c  tokens and what of them is trained
 *     store.c    where they lie: memory, or a mapped file that is the token cache             pack.c    windows
 *
 * Nothing here is random but by (seed, epoch): the same file, options and seed give the same batches anywhere. */
#ifndef FIRN_TRAIN_DATA_H
#define FIRN_TRAIN_DATA_H

#include "core/buffer.h"
#include "firn/model.h"
#include "jinja/jinja.h"
#include "train/canon.h"
#include "train/lengths.h"
#include "train/sources.h"

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

enum { FIRN_ENCODER_COUNTS = 16, FIRN_SHORT_ANSWER = 3 };

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
    /* Whether the template knows a role beside the usual ones; NULL: none. */
    bool (*knows_role)(void *user, const char *role);
    /* Writes the SHA-256 of all that decides ids and spans of a text: vocabulary, template, options. NULL: nothing is
     * cached. */
    void (*key)(void *user, char hex[FIRN_SHA256_HEX]);
    int64_t n_vocab;  /* ids of a pretokenized line are below it; 0: any */
    int32_t bos, eos; /* -1: none */
    bool add_bos, add_eos;
} firn_encoder;

/* One piece: a line, one of the samples that a conversation gives, or a window's worth of a long text. */
typedef struct {
    uint64_t line : 36, file : 24, format : 4; /* of the file, from 1; of data->files, from 0; firn_data_format */
    int64_t begin;                             /* first token */
    int32_t n;                                 /* tokens */
    int32_t n_targets;                         /* tokens that are learned; the first of a piece never is */
} firn_sample;

/* What was met on the way: for the plan, and kept in the cache. Plain numbers only. */
typedef struct {
    int64_t lines;                  /* records read, bad ones not counted */
    int64_t formats[FIRN_FORMATS];  /* of them */
    int64_t bad;                    /* passed over by skip_bad */
    int64_t empty, untrained;       /* dropped: without tokens; without targets */
    int64_t no_assistant;           /* of the untrained: conversations in which the assistant says nothing */
    int64_t cut, cut_tokens, split; /* samples cut at the window, and their tokens behind it; spread over windows */
    int64_t n_targets;
    int64_t duplicates;    /* lines whose tokens and targets an earlier line has too */
    int64_t short_answers; /* lines that train on less than FIRN_SHORT_ANSWER tokens in all */
    int64_t joined;        /* lines with a token that is of the prompt and of the completion */
    int64_t encoder[FIRN_ENCODER_COUNTS];
    int64_t lengths[FIRN_LENGTH_BUCKETS]; /* of samples, before they are cut or spread */
} firn_data_counts;

typedef struct {
    firn_context *ctx;
    firn_data_file *files;
    int n_files;
    const firn_sample *samples;
    size_t n_samples;
    const uint32_t *tokens; /* id, and FIRN_TRAINED: to be predicted */
    size_t n_tokens;
    firn_data_counts counts;
    firn_text notes;          /* sentences, each ended by a line break: lines that were passed over or dropped */
    const char *const *texts; /* of the encoder's counts */
    struct firn_store *store; /* where samples and tokens lie */
} firn_data;

#define FIRN_TRAINED 0x80000000u

static inline int32_t firn_data_token(const firn_data *data, int64_t at)
{
    return (int32_t)(data->tokens[at] & ~FIRN_TRAINED);
}

static inline bool firn_data_trained(const firn_data *data, int64_t at)
{
    return (data->tokens[at] & FIRN_TRAINED) != 0;
}

/* The ids of a sample into ids [sample->n]. */
void firn_data_ids(const firn_data *data, const firn_sample *sample, int32_t *ids);

/* Which data, and how it is to be read. What is zero or NULL takes its default. */
typedef struct {
    const char *const *sources; /* files, folders, "-"; each perhaps with a weight behind a colon */
    int n_sources;
    firn_data_format format;
    const char *const *fields; /* "messages=dialog" */
    int n_fields;
    int64_t skip_bad;  /* bad lines that are passed over; one more ends the reading */
    bool preferences;  /* pairs give two samples, chosen and rejected; else they are refused */
    bool keep_empty;   /* a data set with nothing to train on is fine */
    const char *cache; /* folder of the token cache; "none"; NULL: $XDG_CACHE_HOME/firn or ~/.cache/firn */
} firn_data_spec;

/* Reads all files. context: tokens of a window. A data set without a sample to train on is an error that says why. */
firn_status firn_data_load(firn_context *ctx, const firn_data_spec *spec, const firn_encoder *encoder, int64_t context,
                           firn_data **data);
/* The same of bytes in memory, as if they were a file of that name, without a cache. spec may be NULL; its sources do
 * not count. */
firn_status firn_data_parse(firn_context *ctx, const char *name, const void *bytes, size_t size,
                            const firn_data_spec *spec, const firn_encoder *encoder, int64_t context, firn_data **data);
void firn_data_destroy(firn_data *data);
/* Anonymous bytes that the data set holds. */
uint64_t firn_data_bytes(const firn_data *data);
/* "240 samples, 13440 tokens, 5521 of them trained; 2 without targets were dropped": for people. */
void firn_data_describe(const firn_data *data, firn_text *text);
/* SHA-256 over what the files hold and their weights, for one file of weight 1 its own; their bytes together; their
 * names with ", " between. */
void firn_data_print(const firn_data *data, char sha256[FIRN_SHA256_HEX], uint64_t *bytes, firn_text *names);

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

/* What an epoch takes of `samples` as the weights of their files want it: each as often as the whole part says, and of
 * the rest the share of the lines that is drawn from (seed, epoch). `epoch_list` may be the list itself, owned by the
 * caller as before, where all weights are 1: *drawn is false then. */
firn_status firn_data_weigh(const firn_data *data, const firn_sample_list *samples, uint64_t seed, int64_t epoch,
                            firn_sample_list *epoch_list, bool *drawn);

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
