/* Which files a data set consists of. A source, as people write it, is
 *
 *     chats.jsonl      a file             -     standard input
 *     folder           every file under it whose name says that it holds data, in the order of their names
 *     chats.jsonl:2    each of these with a weight: how often it counts in an epoch; 1 when none is given
 *
 * A weight is a number behind the last colon, and only where no file has the whole name. */
#ifndef FIRN_TRAIN_SOURCES_H
#define FIRN_TRAIN_SOURCES_H

#include "core/buffer.h"
#include "core/sha256.h"

#define FIRN_MAX_WEIGHT 1000

typedef struct {
    char *name; /* as errors call it; "standard input" for "-" */
    double weight;
    uint64_t bytes; /* as it lies there, packed or not */
    char sha256[FIRN_SHA256_HEX];
    int fd; /* standard input and pipes: a copy to read from; else -1 */
} firn_data_file;

/* Finds the files, and reads each once for its fingerprint. What a folder holds besides is named in `ignored`, with ",
 * " between. A source that is not there, a weight that is none, a folder without data are errors. */
firn_status firn_sources_find(firn_context *ctx, const char *const *sources, int n, firn_data_file **files,
                              int *n_files, firn_text *ignored);
void firn_data_files_free(firn_context *ctx, firn_data_file *files, int n);
/* A descriptor to read a file from; give it back to firn_data_file_close. */
firn_status firn_data_file_open(firn_context *ctx, const firn_data_file *file, int *fd);
void firn_data_file_close(const firn_data_file *file, int fd);

/* The source with its path made absolute, for a run that may be resumed from elsewhere; "-" stays. Its length in bytes
 * is less than `capacity`, or it is an error. */
firn_status firn_source_absolute(firn_context *ctx, const char *source, char *absolute, size_t capacity);

#endif
