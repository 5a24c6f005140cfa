/* One block of a model as a graph, planned once per kind and bound per block.
 *
 *     y = x + attention(norm(x));  y += feed-forward(norm(y))
 *     where each block has inputs p of its own: y += norm(proj (gelu(inp_gate y) p); post_norm)
 *
 * Part 0 is the forward pass; part 1, where asked for, takes dy and adds to the adapter's gradients and gives dx. All
 * that changes from block to block or run to run is a slot. Called by session.c and generate.c. */
#ifndef FIRN_MODEL_BLOCK_H
#define FIRN_MODEL_BLOCK_H

#include "model/weights.h"

/* Two blocks of equal kinds (compared byte by byte, so it is made zeroed) share a plan. */
typedef struct {
    int64_t n_tokens;
    int64_t n_cache; /* tokens that the key/value cache holds; 0: keys and values are this pass's own */
    int64_t n_head, n_head_kv, head_k, head_v, n_rot, n_ff, n_ff_expert, n_ff_shared, n_expert_used;
    int32_t mixer, mixes, feeds, experts, rotates, stretched, factors;
    float rope_base;
    struct {
        int32_t there, bias, factor, rank;
        firn_type type;   /* 0 where not there */
        int64_t distance; /* of experts that lie apart, in bytes; else 0 */
        int64_t span;     /* of experts that a table finds, in bytes; else 0 */
        float scale;
    } t[FIRN_T_COUNT];
    int32_t backward, dx; /* part 1 exists; it gives dx */
    int32_t router_losses;
    int32_t lends, borrows; /* keys and values, where there is no cache to share */
    int32_t dkeys;          /* ... with their gradients */
} firn_block_kind;

typedef struct {
    firn_block_kind kind;
    firn_graph *graph;
    firn_plan *plan;
    /* slots */
    firn_tensor *x;                 /* [d, n_tokens] */
    firn_tensor *position;          /* I32 [n_tokens], for RoPE */
    firn_tensor *range;             /* I32 [2, n_tokens], keys that a token sees */
    firn_tensor *row;               /* I32 [n_tokens], where keys and values go in the cache */
    firn_tensor *factors;           /* [n_rot/2], or NULL */
    firn_tensor *temperature;       /* [1, 1, n_tokens] what q is multiplied by, or NULL */
    firn_tensor *first;             /* I32 [n_tokens], see CONV_CAUSAL; blocks with a state */
    firn_tensor *kept[4];           /* what such a block keeps from pass to pass, while generating */
    firn_tensor *k_cache, *v_cache; /* [k_row, n_cache], [v_row, n_cache] */
    firn_tensor *input;             /* [n_per_layer, n_tokens], or NULL */
    firn_tensor *keys[2];           /* keys and values [head, n_head_kv, n_tokens] of a block that borrows them; of one
                                       that lends them, outputs */
    firn_tensor *dkeys[2];          /* their gradients, of all who borrow: those add to them, the lender takes them */
    firn_tensor *dy;                /* [d, n_tokens] */
    firn_tensor *drouter[2];        /* [1] each: the slopes of balance and z */
    firn_tensor *bytes[FIRN_T_COUNT]; /* what a weight is bound through: itself, or what experts that lie apart span */
    firn_tensor *table[FIRN_T_COUNT]; /* I64 [n_expert], or NULL */
    firn_tensor *weight[FIRN_T_COUNT], *bias[FIRN_T_COUNT], *factor[FIRN_T_COUNT];
    firn_tensor *a[FIRN_T_COUNT], *b[FIRN_T_COUNT], *da[FIRN_T_COUNT], *db[FIRN_T_COUNT];
    /* outputs */
    firn_tensor *y, *dx;
    firn_tensor *ids;       /* I32 [n_used, n_tokens], NULL in a dense block */
    firn_tensor *router[2]; /* [1] each: ROUTER_BALANCE and ROUTER_Z, where router_losses asks for them; else NULL */
} firn_block;

/* Sorts an adapter's entries (NULL: none) into entries[n_layer][FIRN_T_COUNT] (zeroed) and that of the output. Fails
 * when the adapter is not of this model. */
firn_status firn_entries_find(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                              const firn_adapter_entry **entries, const firn_adapter_entry **output);
/* Of which kind block `layer` is. `entries[id]` is the adapter's entry for each tensor, or NULL. */
firn_block_kind firn_block_kind_of(const firn_model *model, int layer, const firn_adapter_entry *const *entries,
                                   int64_t n_tokens, int64_t n_cache, bool backward, bool dx);
/* `layer`: any block of that kind. */
firn_status firn_block_create(firn_context *ctx, firn_device *device, const firn_model *model, int layer,
                              const firn_block_kind *kind, firn_block **block);
void firn_block_destroy(firn_context *ctx, firn_block *block);
/* Binds block `layer`'s weights, and the factors of `entries[id]` in the adapter's flat buffers. */
firn_status firn_block_bind(const firn_block *block, firn_exec *exec, firn_weights *weights, int64_t layer,
                            const firn_adapter_entry *const *entries, firn_buffer *values, firn_buffer *gradients);

/* factor w x, plus s B (A x), plus bias; factor [1], bias, a and b may be NULL. For heads too. */
firn_tensor *firn_adapted_product(firn_graph *g, firn_tensor *w, firn_tensor *factor, firn_tensor *bias, firn_tensor *a,
                                  firn_tensor *b, float scale, firn_tensor *x);
/* Adds to the slots da, db what firn_graph_grad found, where it found something. */
void firn_add_gradient(firn_graph *g, firn_tensor *slot, firn_tensor *grad);
/* Makes t an output; a copy of it where it lies in another tensor's memory. */
firn_tensor *firn_output_of(firn_graph *g, firn_tensor *t);

#endif
