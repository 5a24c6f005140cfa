/* Inside the block builder: what its parts hand around. A block is put together from named parts, one file each:
 * attention.c and ffn.c; block.c owns the slots and joins them. Included by those files alone. */
#ifndef FIRN_MODEL_BUILD_H
#define FIRN_MODEL_BUILD_H

#include "model/block.h"

typedef struct {
    const firn_model *model;
    const firn_layer *layer; /* any block of the kind that is built */
    firn_graph *g;
    firn_block *block;
    int64_t n; /* tokens */
} firn_builder;

/* ---- products (block.c); a tensor that the block does not have must not be asked for ---- */

/* W x + s B (A x) + bias, x [n_in, n]. */
firn_tensor *firn_build_product(firn_builder *u, firn_tensor_id id, firn_tensor *x);
/* The same with the weights of experts ids [k, n], x [n_in, 1 or k, n] -> [n_out, k, n]; an adapter has one pair of
 * factors per expert, chosen by the same ids. */
firn_tensor *firn_build_routed(firn_builder *u, firn_tensor_id id, firn_tensor *x, firn_tensor *ids);

/* ---- parts: x [d, n], normed, -> [d, n] ---- */

firn_tensor *firn_build_attention(firn_builder *u, firn_tensor *x);
firn_tensor *firn_build_mla(firn_builder *u, firn_tensor *x); /* mla.c */
/* `stream`: what x is the norm of. */
firn_tensor *firn_build_feed_forward(firn_builder *u, firn_tensor *x, firn_tensor *stream);

/* ---- for attention of other kinds (attention.c) ---- */

/* x [n, heads, tokens], its first n_rot values rotated as the block rotates. */
firn_tensor *firn_build_rotated(firn_builder *u, firn_tensor *x, firn_tensor *factors);
/* q [hd, heads, tokens], grown with its position where the model asks for that. */
firn_tensor *firn_build_tempered(firn_builder *u, firn_tensor *q);
/* n_head * hd values of each row of x, from value `offset` on, as heads: [hd, n_head, n]. */
firn_tensor *firn_build_heads(firn_builder *u, firn_tensor *x, int64_t offset, int64_t hd, int64_t n_head);
/* Keys or values x [hd, n_head, n] of all tokens so far: this pass's rows join the cache, and the cache is what
 * attention reads. x itself where `cache` is NULL. */
firn_tensor *firn_build_through_cache(firn_builder *u, firn_tensor *x, firn_tensor *cache, int64_t hd, int64_t n_head);

#endif
