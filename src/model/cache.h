/* Keys and values of the tokens so far, and states; see cache.c. */
#ifndef FIRN_MODEL_CACHE_H
#define FIRN_MODEL_CACHE_H

#include "model/block.h"

typedef struct {
    firn_context *ctx;
    firn_device *device;
    const firn_model *model;
    int64_t n_ctx, n_rows; /* rows of a block without a window, and of one with it */
    int64_t first;         /* position of the first row of a block with a window */
    firn_buffer *k, *v;    /* v NULL: keys are all there is; both: there are none */
    firn_buffer *states;   /* what blocks with a state keep, one behind the other; or NULL */
    firn_buffer *copy;     /* of `states`, from when `remembered` tokens were there */
    int64_t remembered;
} firn_cache;

/* For n_ctx tokens, of which up to `batch` are fed at once. */
firn_status firn_cache_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t n_ctx,
                              int64_t batch, firn_cache **cache);
void firn_cache_destroy(firn_cache *cache);
/* Bytes of such a cache. */
uint64_t firn_cache_bytes(const firn_model *model, int64_t n_ctx, int64_t batch);
/* Rows of block `layer`. */
int64_t firn_cache_rows(const firn_cache *cache, int64_t layer);
/* Makes room for n more tokens behind the `length` that are there; n is at most `batch`. */
firn_status firn_cache_make_room(firn_cache *cache, int64_t length, int64_t n);
/* Says that several tokens come behind the `length` that are there, so that states can go back to here. */
firn_status firn_cache_remember(firn_cache *cache, int64_t length);
/* How many tokens are left when only the first n, fewer than there are, are to be: n; with states, as many of them as
 * were there when they were last remembered; or 0 where rows or states that the next token would need are gone. */
int64_t firn_cache_truncate(firn_cache *cache, int64_t n);
firn_status firn_cache_bind(const firn_cache *cache, const firn_block *block, firn_exec *exec, int64_t layer);

#endif
