/* Where samples and tokens of a data set lie: in memory while they are few, else in a mapped file, which is the token
 * cache at the same time. A cache file is
 *
 *     tokens u32 [n_tokens] | zeros to a multiple of 8 | samples [n_samples] | notes | trailer
 *
 * in this machine's own layout; its name is the hash of all that decides what is in it (contents of the data,
 * vocabulary, template, options, layout), so that it is never wrong, only missing. Files that nobody has used for a
 * month go when a new one is written. */
#ifndef FIRN_TRAIN_STORE_H
#define FIRN_TRAIN_STORE_H

#include "core/file.h"
#include "train/data.h"

typedef struct firn_store firn_store;

/* cache: as in firn_data_spec; key: the file's name in it (64 hexadecimal digits); "" keeps everything in memory. A
 * folder that cannot be made or written is no error: everything stays in memory then. */
firn_status firn_store_create(firn_context *ctx, const char *cache, const char *key, firn_store **store);
void firn_store_destroy(firn_store *store); /* NULL is fine */
/* True when the cache has it: samples, tokens, counts and notes of `data` are then set. */
firn_status firn_store_find(firn_store *store, firn_data *data, bool *found);
firn_status firn_store_add(firn_store *store, firn_sample sample, const uint32_t *tokens);
/* Ends the adding, and sets samples and tokens of `data`, whose counts and notes are written with them when `keep` or
 * when they are too many for memory. */
firn_status firn_store_finish(firn_store *store, firn_data *data, bool keep);
/* Anonymous bytes that it holds. */
uint64_t firn_store_bytes(const firn_store *store);

#endif
