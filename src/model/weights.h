/* Where a model's weights are, as a device sees them. Of the blocks' one of:
 *     mapped     the device reads the file in place
 *     resident   copied once
 *     streamed   a ring of blocks: one computes while the next comes on the transfer queue, backwards too
 * The blocks ask for their tensors here and do not know where they came from: acquire before a block's weights are
 * bound, release behind its run. What lies outside the blocks is mapped or resident. Experts that lie about are copied
 * together for blocks that want them in one place (stack.c). place.h has the plan. */
#ifndef FIRN_MODEL_WEIGHTS_H
#define FIRN_MODEL_WEIGHTS_H

#include "model/model.h"
#include "model/place.h"

/* Of the ring. */
typedef struct {
    firn_buffer *memory;
    int64_t layer;    /* what is in it, or on its way; -1: nothing */
    uint64_t turn;    /* when it was last wanted */
    firn_event there; /* on the transfer queue: it has come */
    firn_event used;  /* on the compute queue: nobody reads it any more */
} firn_weight_slot;

typedef struct {
    firn_context *ctx;
    firn_device *device;
    const firn_model *model;
    firn_weight_layout layout;
    firn_weight_plan plan;
    int n_parts;
    firn_buffer **part;   /* [n_parts] of the file; where something is mapped */
    const uint8_t **base; /* [n_parts] address of the part's first byte */
    firn_buffer **copy;   /* [n_layer + 1] groups that are resident, NULL where they are not */
    firn_weight_slot *ring;
    uint64_t turn;
    int64_t current;     /* the block that was acquired last: it stays where it is */
    firn_buffer *tables; /* [n_expert] I64 for each stack with a span: where experts lie, from its origin on */
    firn_buffer *made;   /* the model's made_factors */
    firn_buffer *gathered[FIRN_T_COUNT];
    const firn_stack *holds[FIRN_T_COUNT]; /* what is in them */
} firn_weights;

/* Blocks from `backward` on are differentiated; n_layer: none is. `others`: bytes that all else takes on the device. */
firn_status firn_weights_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t backward,
                                uint64_t others, firn_weights **weights);
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
/* Block `layer` will be wanted soon, and is read ahead; out of range is fine. */
void firn_weights_near(const firn_weights *weights, int64_t layer);
/* Block `layer` is wanted: what is enqueued from here on finds its weights there. */
firn_status firn_weights_acquire(firn_weights *weights, int64_t layer);
/* All of its work is enqueued. Starts bringing block `next` (out of range: none), which is wanted next. */
firn_status firn_weights_release(firn_weights *weights, int64_t layer, int64_t next);
/* Block `layer` has done its part for now: its pages may go. */
void firn_weights_far(const firn_weights *weights, int64_t layer);
/* Bytes of all tensors. */
uint64_t firn_weights_bytes(const firn_model *model);

#endif
