/* For attention of other kinds: asking a block for its tensors; see wanted.c. A dimension of 0 ends the shape. */
#ifndef FIRN_MODEL_WANTED_H
#define FIRN_MODEL_WANTED_H

#include "model/model.h"

/* "blk.<i>.<base>.weight" of that shape into the block's place for it. ABSENT: is not looked for, and refused later if
 * it is there. */
firn_status firn_want_weight(firn_context *ctx, firn_model *model, int layer, firn_tensor_id id, firn_presence presence,
                             int64_t ne0, int64_t ne1, int64_t ne2);
/* "blk.<i>.<base>.bias", F32. */
firn_status firn_want_bias(firn_context *ctx, firn_model *model, int layer, firn_tensor_id id, firn_presence presence,
                           int64_t ne0, int64_t ne1);

/* A tensor whose name has no suffix: ssm_a. F32. */
firn_status firn_want_bare(firn_context *ctx, firn_model *model, int layer, firn_tensor_id id, firn_presence presence,
                           int64_t ne0, int64_t ne1);

#endif
