/* Proof that a run learns: every trained tensor must receive a gradient, or be named with the reason. */
#ifndef FIRN_TRAIN_PROOF_H
#define FIRN_TRAIN_PROOF_H

#include "core/buffer.h"
#include "firn/model.h"

/* Looks at the gradients of one step. factor 'b': every lora_b (B starts at zero, so A's gradient is zero in the first
 * step); 'a': every lora_a. load [n_layer][n_expert]: tokens of this step that reached each expert; NULL for dense
 * models. Appends sentences to `found`, a line each: one that counts, then one for each tensor without gradient, with
 * its reason. Returns how many tensors have none and no reason. */
int firn_proof(const firn_model *model, const firn_adapter *adapter, const float *gradients, const int64_t *load,
               char factor, int64_t step, firn_text *found);

#endif
