/* Experts that a file keeps apart, as one stack; see stack.c. */
#ifndef FIRN_MODEL_STACK_H
#define FIRN_MODEL_STACK_H

#include "model/model.h"

struct firn_stack {
    firn_gguf_tensor
        tensor;           /* as the stacked file would have it: name, type, [n_in, n_out, E]; data: the first part's */
    int64_t distance;     /* bytes from one expert to the next; 0: not the same everywhere, then ... */
    int64_t origin, span; /* ... they lie in `span` bytes from here on, whole blocks; span 0: in several files */
    int64_t number;       /* of the stacks with a span, in the order of the model */
    const firn_gguf_tensor *part[]; /* [E] */
};

/* Whether the file keeps the experts of "blk.<i>.<base>_exps.weight" apart. */
bool firn_stack_there(const firn_model *model, int layer, firn_tensor_id id);
/* Makes them the block's weight. */
firn_status firn_stack_want(firn_context *ctx, firn_model *model, int layer, firn_tensor_id id, int64_t n_in,
                            int64_t n_out, int64_t n_expert);
/* Whether a tensor of that name is part of a stack. */
bool firn_stack_holds(const firn_model *model, const char *name);
/* The experts lie one behind the other, nothing between them. */
bool firn_stack_dense(const firn_stack *stack);

#endif
