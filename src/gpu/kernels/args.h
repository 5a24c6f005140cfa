/* What the host hands to kernels: plain structs, read by C and MSL alike. Every kernel takes one as buffer(0). */
#ifndef FIRN_GPU_ARGS_H
#define FIRN_GPU_ARGS_H

#include "format/common.h"

/* A tensor's shape: elements, and bytes from one to the next (packed types: from block to block). */
typedef struct {
    int32_t ne[4];
    int64_t nb[4];
} firn_gpu_view;

/* The smallest fault so far, written by check kernels alone, one threadgroup at a time: kind 0 is none. `node` is the
 * host's pointer, passed through. */
typedef struct {
    int32_t kind, node_index;
    int64_t node, index, value, limit;
} firn_gpu_fault;

/* Out of [low, limit): a fault at that place of ids. */
typedef struct {
    firn_gpu_view ids;
    int64_t node, limit, low;
    int32_t node_index, kind, n_experts, align; /* align: of a table's offsets, see format/gather.h */
    int32_t masked; /* kernel_check_targets: low is the ignore value, and what the mask makes 0 is not looked at */
    int64_t mask_token;
} firn_gpu_check_args;

/* Any other node: its result, its sources (all 0 where one is absent) and its parameters, of which kernels that say so
 * have their own. n: what the threads or threadgroups run over. */
typedef struct {
    firn_gpu_view y, src[5];
    int32_t p[16];
    uint32_t n, has; /* bit i of has: source i is there */
    uint32_t cut;    /* the first threadgroup's number, where a kernel may be cut (sorts) */
} firn_gpu_node_args;

/* A double as pair.h has it. */
typedef struct {
    float hi, lo;
} firn_gpu_pair;

/* ROPE: see rope.metal. turn: 1 / (2 pi); circle: 2 pi; mix 0: no YaRN. n: threads. */
typedef struct {
    firn_gpu_view y, x;
    firn_gpu_pair powers[16], turn, circle, scale, mix, span;
    int64_t pos_token;
    int32_t n_rot, neox, has_factors;
    float low, magnitude, direction;
    uint32_t n;
} firn_gpu_rope_args;

/* ATTENTION: see attention.metal. Strides in bytes; `first`: the first simdgroup's number; `cut`: the first
 * threadgroup's (firn_gpu_dispatch.cut). blocks: whole ones of 8 queries, or of 8 keys (attention_tiled.metal). */
typedef struct {
    int64_t q1, q2, k1, k2, v1, v2, range_value, range_token;
    int32_t hd, hv, n_head, n_group, n_q, n_kv, has_sinks, first, blocks;
    uint32_t cut;
    float scale, cap;
} firn_gpu_attention_args;

/* GATED_DELTA, SSM_SCAN and their gradients: see scan.metal. Strides in bytes; `dk` and so on: where the flat gradient
 * has its parts, in floats, behind dq; `kept` and so on: where the workspace has the states before each chunk of tokens
 * and lam behind it, e and du of all tokens, dg by key. `cut`: the first threadgroup's number. */
typedef struct {
    int64_t q1, q2, k1, k2, v1, v2, dk, dv, dg, dbeta, kept, behind, error, along, parts;
    int32_t n_keys, n_values, n_head, n_group, n; /* s, dv, H, G, tokens */
    int32_t tiled, channels, delta, has_state;
    int32_t remembers; /* the forward is the gradient's: it keeps states and errors, and has no output */
    uint32_t cut;
} firn_gpu_scan_args;

/* A matrix product: see products.h. Strides in bytes. */
typedef struct {
    int32_t n_columns, n_inner; /* values of a row of y, and what is summed over */
    int32_t n_rows;             /* dense: rows of one batch; routed: slots */
    int32_t n_used, n_shared, n_experts, n_tiles;
    int32_t n_batch, w_repeat[2]; /* dense: x's inner batches, and w's along each axis */
    int32_t table_align;          /* what a table's offsets are multiples of; 0: there is no table */
    uint32_t first[3];   /* the first threadgroup's number along each axis of the grid, where a launch is cut */
    int64_t last_offset; /* with a table: the last byte at which a whole expert fits */
    int64_t w_row, w_expert, w_batch[2];
    int64_t x_value, x_row, x_token, x_batch[2];
    int64_t y_row, y_token, y_batch[2];
    int64_t ids_slot, ids_token;
} firn_gpu_product_args;

/* Expert-sorted slots, in the workspace: n_rows numbers of slots, then n_tiles of these. An expert of n_experts has the
 * slots whose ids name none. */
typedef struct {
    int32_t expert, first, n;
} firn_gpu_tile;

#endif
