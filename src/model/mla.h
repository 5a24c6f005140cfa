/* Latent attention as the loader sees it; see mla.c. */
#ifndef FIRN_MODEL_MLA_H
#define FIRN_MODEL_MLA_H

#include "model/model.h"

/* What heads are; head_k, head_v and the per-layer head counts have been read. */
firn_status firn_mla_heads(firn_context *ctx, firn_model *model);
/* What the stretched rotation means for the scale of attention; and how wide a row of the cache is. */
firn_status firn_mla_rope(firn_context *ctx, firn_model *model);
/* The tensors of block `layer` but its norm. */
firn_status firn_mla_want(firn_context *ctx, firn_model *model, int layer);

#endif
