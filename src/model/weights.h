/* Where a model's weights are, as a device sees them: each part of the mapped file wrapped in place, nothing copied but
 * experts that lie about in it, for blocks that want them in one place (stack.c).
 * The blocks ask for their tensors here and do not know where they came from. */
#ifndef FIRN_MODEL_WEIGHTS_H
#define FIRN_MODEL_WEIGHTS_H

#include "model/model.h"

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    int n_parts;
    firn_buffer **part;   /* [n_parts] of the file */
    const uint8_t **base; /* [n_parts] address of the part's first byte */
    firn_buffer *tables;  /* [n_expert] I64 for each stack with a span: where experts lie, from its origin on */
    firn_buffer *made;    /* the model's made_factors */
    firn_buffer *gathered[FIRN_T_COUNT];
    const firn_stack *holds[FIRN_T_COUNT]; /* what is in them */
} firn_weights;

/* Blocks from `backward` on are differentiated; n_layer: none is. */
firn_status firn_weights_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t backward,
                                firn_weights **weights);
void firn_weights_destroy(firn_weights *weights);
/* Binds a slot to a tensor of the model; a NULL slot is fine. */
firn_status firn_weights_bind(const firn_weights *weights, firn_exec *exec, const firn_tensor *slot,
                              const firn_gguf_tensor *tensor);
/* The same for a block's weight, through block.h's `bytes` and `table`; experts that lie about are, without a table,
 * brought together first, in the place of those of the block before. */
firn_status firn_weights_bind_weight(firn_weights *weights, firn_exec *exec, const firn_tensor *bytes,
                                     const firn_tensor *table, const firn_layer *layer, firn_tensor_id id);
/* Bytes that this takes, and those of tables. */
uint64_t firn_weights_gathered_bytes(const firn_model *model, int64_t backward);
uint64_t firn_weights_table_bytes(const firn_model *model);
/* Block `layer` will be wanted soon; out of range is fine. */
void firn_weights_near(const firn_weights *weights, int64_t layer);
/* Block `layer` has done its part for now: its pages may go. */
void firn_weights_far(const firn_weights *weights, int64_t layer);
/* Bytes of all tensors. */
uint64_t firn_weights_bytes(const firn_model *model);

#endif
