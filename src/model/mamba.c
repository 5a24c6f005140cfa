/* Mamba 2 (Dao and Gu 2024), as Nemotron-H and Granite 4 have it:
 *
 *     [z | x B C | dt] = ssm_in u;  [x | B | C] = silu(filter(x B C) + bias);  D = softplus(dt + ssm_dt)
 *     y = SSM_SCAN(C, B, x; decay D ssm_a, step D) + ssm_d x per head;  y = silu(z) y, normed within each group
 *     out = ssm_out(y ssm_norm)
 *
 * z, x [P nh, n], B, C [N ng, n], dt [nh, n]; head h reads group h / (nh/ng). Facts: llama.cpp's mamba2 graphs, October
 * 2026. */
#include "model/recurrent.h"
#include "model/wanted.h"

enum { FILTERED, STATE }; /* places of what is kept */

firn_status firn_mamba_want(firn_context *ctx, firn_model *m, int i)
{
    const int64_t d = m->hp.n_embd, nh = m->hp.ssm.n_head, ng = m->hp.ssm.n_group, di = m->hp.ssm.head * nh,
                  C = m->hp.ssm.channels;

    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_IN, FIRN_REQUIRED, d, di + C + nh, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_CONV1D, FIRN_REQUIRED, m->hp.ssm.taps, C, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_SSM_CONV1D, FIRN_REQUIRED, C, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_SSM_DT, FIRN_REQUIRED, nh, 0));
    FIRN_TRY(firn_want_bare(ctx, m, i, FIRN_T_SSM_A, FIRN_REQUIRED, 1, nh));
    FIRN_TRY(firn_want_bare(ctx, m, i, FIRN_T_SSM_D, FIRN_REQUIRED, 1, nh));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_NORM, FIRN_REQUIRED, di / ng, ng, 0));
    return firn_want_weight(ctx, m, i, FIRN_T_SSM_OUT, FIRN_REQUIRED, di, d, 0);
}

/* Rows [first, first + n) of each token. */
static firn_tensor *rows(firn_builder *u, firn_tensor *t, int64_t first, int64_t n)
{
    return t ? firn_view(u->g, t, 2, (int64_t[]){n, u->n}, (int64_t[]){4, t->nb[1]}, 4 * first) : NULL;
}

firn_tensor *firn_build_mamba(firn_builder *u, firn_tensor *x)
{
    const int64_t nh = u->model->hp.ssm.n_head, ng = u->model->hp.ssm.n_group, P = u->model->hp.ssm.head,
                  N = u->model->hp.ssm.state, di = P * nh, C = u->model->hp.ssm.channels;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    firn_tensor *in = firn_build_product(u, FIRN_T_SSM_IN, x);
    firn_tensor *c = firn_build_filtered(u, rows(u, in, di, C), FIRN_T_SSM_CONV1D, FILTERED, true);
    firn_tensor *xs = firn_build_heads(u, c, 0, P, nh), *B = firn_build_heads(u, c, di, N, ng),
                *Cs = firn_build_heads(u, c, di + ng * N, N, ng);
    firn_tensor *step = firn_softplus(g, firn_add(g, rows(u, in, di + C, nh), k->bias[FIRN_T_SSM_DT]));
    firn_tensor *decay = firn_mul(g, step, firn_reshape(g, k->weight[FIRN_T_SSM_A], 1, &nh));
    const int64_t one_each[] = {1, nh, u->n};
    firn_tensor *state = firn_build_state(u, STATE, N, P, nh), *last;
    firn_tensor *y = firn_ssm_scan(g, Cs, B, xs, firn_reshape(g, firn_named(decay, "decay"), 3, one_each),
                                   firn_reshape(g, step, 3, one_each), k->first, state, false, &last);
    if (state)
        firn_cpy(g, last, state);
    firn_named(y, "scan");
    y = firn_add(g, y, firn_mul(g, xs, firn_reshape(g, k->weight[FIRN_T_SSM_D], 2, (int64_t[]){1, nh})));
    y = firn_swiglu(g, rows(u, in, 0, di), firn_reshape(g, y, 2, (int64_t[]){di, u->n}));
    y = firn_rms_norm(g, firn_reshape(g, y, 3, (int64_t[]){di / ng, ng, u->n}), NULL, u->model->hp.norm_eps);
    y = firn_mul(g, y, k->weight[FIRN_T_SSM_NORM]);
    return firn_build_product(u, FIRN_T_SSM_OUT, firn_reshape(g, y, 2, (int64_t[]){di, u->n}));
}
