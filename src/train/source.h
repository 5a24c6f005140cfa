/* The bytes of a data file in order, whatever they are packed in: plain, gzip (RFC 1952, one member or several), zstd
 * (RFC 8878, one frame or several), found by their first bytes. What is read twice (once for its fingerprint, once for
 * its samples) must lie still: standard input and pipes are first copied into a temporary file without a name. */
#ifndef FIRN_TRAIN_SOURCE_H
#define FIRN_TRAIN_SOURCE_H

#include "core/context.h"
#include "core/sha256.h"

typedef struct firn_source firn_source;

/* `name` is for errors, and the caller keeps it. Refuses what is packed otherwise, and Parquet and Arrow with the line
 * of Python that makes JSON lines of them. */
firn_status firn_source_open(firn_context *ctx, int fd, const char *name, firn_source **source);
/* The same of bytes that the caller keeps. */
firn_status firn_source_memory(firn_context *ctx, const void *data, size_t size, const char *name,
                               firn_source **source);
/* Up to `size` bytes; *n is 0 at the end only. */
firn_status firn_source_read(firn_source *source, void *bytes, size_t size, size_t *n);
void firn_source_close(firn_source *source); /* NULL is fine; the descriptor stays the caller's */

/* Opens a file for reading by firn_source_open, from its start and as often as wanted. "-" is standard input. The
 * caller closes *fd. */
firn_status firn_source_descriptor(firn_context *ctx, const char *path, int *fd);
/* Bytes and SHA-256 of the file as it lies there, packed or not. */
firn_status firn_source_print(firn_context *ctx, int fd, const char *name, uint64_t *bytes,
                              char sha256[FIRN_SHA256_HEX]);

/* True when `name` ends in one of the endings (NULL ends them), in capitals or not, with ".gz" or ".zst" behind it or
 * without. */
bool firn_source_ends(const char *name, const char *const *endings);

#endif
