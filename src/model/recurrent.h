/* Blocks that carry a state along the tokens instead of attending: what they have in common, and what of them the
 * loader and the block builder ask for. Their kinds are shortconv.c, delta.c, mamba.c. */
#ifndef FIRN_MODEL_RECURRENT_H
#define FIRN_MODEL_RECURRENT_H

#include "model/build.h"

/* Which blocks have a state, and of what size; head counts per layer have been read. */
firn_status firn_recurrent_read(firn_context *ctx, firn_model *model);
/* The tensors of block `layer` but its norm. */
firn_status firn_recurrent_want(firn_context *ctx, firn_model *model, int layer);
/* x [d, n], normed, -> [d, n]. */
firn_tensor *firn_build_recurrent(firn_builder *u, firn_tensor *x);

/* ---- the kinds ---- */

firn_status firn_shortconv_want(firn_context *ctx, firn_model *model, int layer);
firn_tensor *firn_build_shortconv(firn_builder *u, firn_tensor *x);
firn_status firn_delta_want(firn_context *ctx, firn_model *model, int layer);
firn_tensor *firn_build_delta(firn_builder *u, firn_tensor *x);
firn_status firn_kimi_want(firn_context *ctx, firn_model *model, int layer);
firn_tensor *firn_build_kimi(firn_builder *u, firn_tensor *x);
firn_status firn_mamba_want(firn_context *ctx, firn_model *model, int layer);
firn_tensor *firn_build_mamba(firn_builder *u, firn_tensor *x);

/* ---- for them ---- */

/* CONV_CAUSAL of x [C, n], dense rows, with the block's filters `id`; generating, the tokens before come from place
 * `place` of what is kept, and this pass's last ones go there. */
firn_tensor *firn_build_filtered(firn_builder *u, firn_tensor *x, firn_tensor_id id, int place, bool silu);
/* Where the state [s, dv, H] is kept: the slot of that place while generating, else NULL. */
firn_tensor *firn_build_state(firn_builder *u, int place, int64_t s, int64_t dv, int64_t n_head);
/* x / sqrt(sum of squares + eps), times scale, along rows. */
firn_tensor *firn_build_unit(firn_builder *u, firn_tensor *x, float scale);

#endif
