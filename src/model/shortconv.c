/* LFM2's short convolution: [B | C | X] = in_proj x, each [d, n];  y = out_proj(C * filter(B * X)). Facts: llama.cpp's
 * lfm2 and lfm2moe, October 2026. */
#include "model/recurrent.h"
#include "model/wanted.h"

firn_status firn_shortconv_want(firn_context *ctx, firn_model *m, int i)
{
    const int64_t d = m->hp.n_embd;

    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SHORTCONV_IN, FIRN_REQUIRED, d, 3 * d, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SHORTCONV_CONV, FIRN_REQUIRED, m->hp.ssm.taps, d, 0));
    return firn_want_weight(ctx, m, i, FIRN_T_SHORTCONV_OUT, FIRN_REQUIRED, d, d, 0);
}

static firn_tensor *third(firn_builder *u, firn_tensor *x, int which)
{
    const int64_t d = u->model->hp.n_embd;

    return x ? firn_view(u->g, x, 2, (int64_t[]){d, u->n}, (int64_t[]){4, x->nb[1]}, 4 * d * which) : NULL;
}

firn_tensor *firn_build_shortconv(firn_builder *u, firn_tensor *x)
{
    firn_tensor *bcx = firn_build_product(u, FIRN_T_SHORTCONV_IN, x);
    firn_tensor *filtered =
        firn_build_filtered(u, firn_mul(u->g, third(u, bcx, 0), third(u, bcx, 2)), FIRN_T_SHORTCONV_CONV, 0, false);

    return firn_build_product(u, FIRN_T_SHORTCONV_OUT, firn_mul(u->g, filtered, third(u, bcx, 1)));
}
