/* Data sets as firn reads them: files, folders and standard input in every format (docs/data.md), as samples of tokens.
 *
 *     firn_dataset_options o = {.size = sizeof o, .sources = (const char *[]){"chats.jsonl"}, .n_sources = 1,
 *                               .context = 512};
 *     firn_dataset *d;
 *     firn_dataset_open(language, &o, &d);
 *     for (int64_t i = 0; i < firn_dataset_count(d); i++) {
 *         firn_dataset_sample s = {.size = sizeof s};
 *         firn_dataset_at(d, i, &s);
 *         firn_dataset_tokens(d, i, tokens, trained);
 *     }
 *     firn_dataset_close(d); */
#ifndef FIRN_DATA_H
#define FIRN_DATA_H

#include "firn/text.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct firn_dataset firn_dataset;

typedef struct {
    size_t size;                /* sizeof(firn_dataset_options) */
    const char *const *sources; /* files, folders, "-" (standard input); "a.jsonl:2" has a weight */
    int n_sources;
    int n_fields;
    const char *const *fields; /* "messages=dialog": the data calls messages dialog */
    const char *format;        /* NULL: "auto"; "chat", "sharegpt", "alpaca", "completion", "text", "tokens", "csv",
                                * "preference" */
    const char *cache;         /* folder of the token cache; "none"; NULL: $XDG_CACHE_HOME/firn or ~/.cache/firn */
    int64_t context;           /* tokens of a window, 2 at least: longer samples are cut, longer texts spread */
    int64_t skip_bad;          /* bad lines that are passed over; one more is an error */
    bool preferences;          /* pairs give two samples, chosen and rejected; else they are refused */
} firn_dataset_options;

/* Reads everything once. The language must outlive it. FIRN_ERR_FORMAT: a bad line ("file:line:column: what was
 * expected"), or nothing to train on; FIRN_ERR_UNSUPPORTED: Parquet and Arrow; FIRN_ERR_ARGUMENT: options that make no
 * sense. */
FIRN_API firn_status firn_dataset_open(firn_language *language, const firn_dataset_options *options,
                                       firn_dataset **dataset);
FIRN_API void firn_dataset_close(firn_dataset *dataset); /* NULL is fine */

FIRN_API int64_t firn_dataset_count(const firn_dataset *dataset); /* samples; 0 for NULL */

typedef struct {
    size_t size;        /* sizeof(firn_dataset_sample) */
    const char *file;   /* belongs to the data set */
    const char *format; /* "chat" */
    int64_t line;       /* of the file, from 1; samples that come from one line repeat it */
    int64_t n;          /* tokens */
    int64_t n_trained;  /* ones in `trained` */
    double weight;      /* of its file: how often it counts in an epoch */
} firn_dataset_sample;

/* 0 <= i < count. */
FIRN_API firn_status firn_dataset_at(const firn_dataset *dataset, int64_t i, firn_dataset_sample *sample);
/* tokens [n], trained [n]: 1 where the token is to be predicted; the first never is. Either may be NULL. */
FIRN_API firn_status firn_dataset_tokens(const firn_dataset *dataset, int64_t i, int32_t *tokens, uint8_t *trained);

#ifdef __cplusplus
}
#endif
#endif
