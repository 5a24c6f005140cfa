/* A set of 64-bit hashes, for counting lines that were there before: two different ones among ten million are taken for
 * the same once in some hundred thousand data sets. */
#ifndef FIRN_TRAIN_SEEN_H
#define FIRN_TRAIN_SEEN_H

#include "core/context.h"

typedef struct {
    uint64_t *slots; /* 0: free */
    size_t n, capacity;
} firn_seen;

/* Adds a hash; *again: it was there. */
firn_status firn_seen_add(firn_context *ctx, firn_seen *seen, uint64_t hash, bool *again);
void firn_seen_free(firn_context *ctx, firn_seen *seen);

#endif
