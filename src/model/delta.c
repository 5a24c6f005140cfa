/* Gated delta nets. Qwen3-Next, Qwen3.5, 3.6:
 *
 *     [q | k | v] = silu(filter(attn_qkv x)), z = attn_gate x, b = ssm_beta x, a = ssm_alpha x
 *     q, k of each key head at length 1, q times 1/sqrt(s);  beta = sigmoid(b);  g = ssm_a softplus(a + ssm_dt)
 *     y = ssm_out(norm(o; ssm_norm) silu(z)),  o = GATED_DELTA(q, k, v, g, beta) per value head
 *
 * Older files of Qwen3-Next have q, k, v, z in one product, ssm_in, whose rows go key head by key head [q | k | v of
 * its value heads | z of them], and b, a likewise in ssm_ba. Value head h reads key head h / (nv/nk) in Qwen3-Next; in
 * Qwen3.5 h mod nk, since its converter put the heads in another order.
 *
 * Kimi Linear: q, k, v by products and filters of their own, a decay for each key channel by two small products, the
 * gate a sigmoid of two small products: g = ssm_a softplus(ssm_f_b ssm_f_a x + ssm_dt) [s, H];  y = attn_output(norm(o;
 * ssm_norm) sigmoid(ssm_g_b ssm_g_a x))
 *
 * nk, nv = key and value heads, s = values of a head. Facts: llama.cpp's qwen3next, qwen35, kimi-linear, October 2026.
 */
#include "model/recurrent.h"
#include "model/wanted.h"

#include <math.h>

enum { FILTERED, FILTERED_K, FILTERED_V, STATE }; /* places of what is kept */

/* ---- tensors ---- */

firn_status firn_delta_want(firn_context *ctx, firn_model *m, int i)
{
    const int64_t d = m->hp.n_embd, s = m->hp.ssm.state, nv = m->hp.ssm.n_head, C = m->hp.ssm.channels;
    const firn_presence joint = m->arch->delta_joint ? FIRN_REQUIRED : FIRN_ABSENT,
                        apart = m->arch->delta_joint ? FIRN_ABSENT : FIRN_REQUIRED;

    FIRN_TRY(
        firn_want_weight(ctx, m, i, FIRN_T_ATTN_QKV, m->arch->delta_joint ? FIRN_OPTIONAL : FIRN_REQUIRED, d, C, 0));
    const bool in = !m->layers[i].weight[FIRN_T_ATTN_QKV];
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_IN, in ? joint : FIRN_ABSENT, d, C + nv * s, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_GATE, in ? FIRN_ABSENT : FIRN_REQUIRED, d, nv * s, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_BA, joint, d, 2 * nv, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_BETA, apart, d, nv, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_ALPHA, apart, d, nv, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_CONV1D, FIRN_REQUIRED, m->hp.ssm.taps, C, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_SSM_DT, FIRN_REQUIRED, nv, 0));
    FIRN_TRY(firn_want_bare(ctx, m, i, FIRN_T_SSM_A, FIRN_REQUIRED, nv, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_NORM, FIRN_REQUIRED, s, 0, 0));
    return firn_want_weight(ctx, m, i, FIRN_T_SSM_OUT, FIRN_REQUIRED, nv * s, d, 0);
}

firn_status firn_kimi_want(firn_context *ctx, firn_model *m, int i)
{
    static const firn_tensor_id products[] = {FIRN_T_ATTN_Q, FIRN_T_ATTN_K, FIRN_T_ATTN_V},
                                filters[] = {FIRN_T_SSM_CONV1D_Q, FIRN_T_SSM_CONV1D_K, FIRN_T_SSM_CONV1D_V},
                                first[] = {FIRN_T_SSM_F_A, FIRN_T_SSM_G_A}, second[] = {FIRN_T_SSM_F_B, FIRN_T_SSM_G_B};
    const int64_t d = m->hp.n_embd, s = m->hp.ssm.state, H = m->hp.ssm.n_head;

    for (int k = 0; k < 3; k++) {
        FIRN_TRY(firn_want_weight(ctx, m, i, products[k], FIRN_REQUIRED, d, H * s, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, filters[k], FIRN_REQUIRED, m->hp.ssm.taps, 1, H * s));
    }
    for (int k = 0; k < 2; k++) {
        FIRN_TRY(firn_want_weight(ctx, m, i, first[k], FIRN_REQUIRED, d, s, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, second[k], FIRN_REQUIRED, s, H * s, 0));
    }
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_BETA, FIRN_REQUIRED, d, H, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_SSM_DT, FIRN_REQUIRED, H * s, 0));
    FIRN_TRY(firn_want_bare(ctx, m, i, FIRN_T_SSM_A, FIRN_REQUIRED, 1, H));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_SSM_NORM, FIRN_REQUIRED, s, 0, 0));
    return firn_want_weight(ctx, m, i, FIRN_T_ATTN_OUTPUT, FIRN_REQUIRED, H * s, d, 0);
}

/* ---- graph ---- */

/* Of each key head's rows in t [rows nk, n], the `size` from row `first` on, one head behind the other: [size nk, n].
 */
static firn_tensor *gathered(firn_builder *u, firn_tensor *t, int64_t first, int64_t size)
{
    const int64_t nk = u->model->hp.ssm.n_group;

    if (!t)
        return NULL;
    firn_tensor *part =
        firn_view(u->g, t, 3, (int64_t[]){size, nk, u->n}, (int64_t[]){4, 4 * (t->ne[0] / nk), t->nb[1]}, 4 * first);
    return firn_reshape(u->g, firn_cont(u->g, part), 2, (int64_t[]){size * nk, u->n});
}

static firn_tensor *per_head(firn_builder *u, firn_tensor *t, int64_t size)
{
    return firn_reshape(u->g, t, 3, (int64_t[]){size, u->model->hp.ssm.n_head, u->n});
}

/* o, whose last state is kept. */
static firn_tensor *scanned(firn_builder *u, firn_tensor *q, firn_tensor *k, firn_tensor *v, firn_tensor *g,
                            firn_tensor *beta, bool tiled)
{
    const int64_t s = u->model->hp.ssm.state, nv = u->model->hp.ssm.n_head;
    firn_tensor *state = firn_build_state(u, STATE, s, s, nv), *last;
    firn_tensor *o = firn_gated_delta(u->g, q, k, v, g, beta, u->block->first, state, tiled, &last);

    if (state)
        firn_cpy(u->g, last, state);
    return firn_named(o, "delta net");
}

firn_tensor *firn_build_delta(firn_builder *u, firn_tensor *x)
{
    const int64_t s = u->model->hp.ssm.state, nk = u->model->hp.ssm.n_group, nv = u->model->hp.ssm.n_head,
                  per = nv / nk;
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *m, *z, *b, *a;

    if (k->weight[FIRN_T_ATTN_QKV]) {
        m = firn_build_product(u, FIRN_T_ATTN_QKV, x);
        z = firn_build_product(u, FIRN_T_ATTN_GATE, x);
    } else {
        firn_tensor *all = firn_build_product(u, FIRN_T_SSM_IN, x);
        m = firn_concat(g, gathered(u, all, 0, s), gathered(u, all, s, s), 0);
        m = firn_concat(g, m, gathered(u, all, 2 * s, per * s), 0);
        z = gathered(u, all, (2 + per) * s, per * s);
    }
    if (k->weight[FIRN_T_SSM_BA]) {
        firn_tensor *ba = firn_build_product(u, FIRN_T_SSM_BA, x);
        b = gathered(u, ba, 0, per);
        a = gathered(u, ba, per, per);
    } else {
        b = firn_build_product(u, FIRN_T_SSM_BETA, x);
        a = firn_build_product(u, FIRN_T_SSM_ALPHA, x);
    }
    firn_tensor *c = firn_build_filtered(u, m, FIRN_T_SSM_CONV1D, FILTERED, true);
    firn_tensor *qs = firn_build_unit(u, firn_build_heads(u, c, 0, s, nk), 1 / sqrtf((float)s));
    firn_tensor *ks = firn_build_unit(u, firn_build_heads(u, c, nk * s, s, nk), 1);
    firn_tensor *v = firn_build_heads(u, c, 2 * nk * s, s, nv);
    firn_tensor *decay = firn_mul(g, firn_softplus(g, firn_add(g, a, k->bias[FIRN_T_SSM_DT])), k->weight[FIRN_T_SSM_A]);
    firn_tensor *o = scanned(u, qs, ks, v, per_head(u, firn_named(decay, "decay"), 1),
                             per_head(u, firn_sigmoid(g, b), 1), u->model->arch->delta_tiled);
    o = firn_rms_norm(g, o, k->weight[FIRN_T_SSM_NORM], u->model->hp.norm_eps);
    o = firn_swiglu(g, per_head(u, z, s), o);
    return firn_build_product(u, FIRN_T_SSM_OUT, firn_reshape(g, o, 2, (int64_t[]){nv * s, u->n}));
}

firn_tensor *firn_build_kimi(firn_builder *u, firn_tensor *x)
{
    const int64_t s = u->model->hp.ssm.state, H = u->model->hp.ssm.n_head;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    firn_tensor *q =
        firn_build_filtered(u, firn_build_product(u, FIRN_T_ATTN_Q, x), FIRN_T_SSM_CONV1D_Q, FILTERED, true);
    firn_tensor *ks =
        firn_build_filtered(u, firn_build_product(u, FIRN_T_ATTN_K, x), FIRN_T_SSM_CONV1D_K, FILTERED_K, true);
    firn_tensor *v =
        firn_build_filtered(u, firn_build_product(u, FIRN_T_ATTN_V, x), FIRN_T_SSM_CONV1D_V, FILTERED_V, true);
    firn_tensor *f = firn_build_product(u, FIRN_T_SSM_F_B, firn_build_product(u, FIRN_T_SSM_F_A, x));
    f = per_head(u, firn_softplus(g, firn_add(g, f, k->bias[FIRN_T_SSM_DT])), s);
    firn_tensor *decay = firn_mul(g, f, firn_reshape(g, k->weight[FIRN_T_SSM_A], 2, (int64_t[]){1, H}));
    firn_tensor *beta = firn_sigmoid(g, firn_build_product(u, FIRN_T_SSM_BETA, x));
    firn_tensor *o = scanned(u, firn_build_unit(u, per_head(u, q, s), 1 / sqrtf((float)s)),
                             firn_build_unit(u, per_head(u, ks, s), 1), per_head(u, v, s), firn_named(decay, "decay"),
                             per_head(u, beta, 1), false);
    firn_tensor *gate = firn_build_product(u, FIRN_T_SSM_G_B, firn_build_product(u, FIRN_T_SSM_G_A, x));
    o = firn_rms_norm(g, o, k->weight[FIRN_T_SSM_NORM], u->model->hp.norm_eps);
    o = firn_mul(g, o, per_head(u, firn_sigmoid(g, gate), s));
    return firn_build_product(u, FIRN_T_ATTN_OUTPUT, firn_reshape(g, o, 2, (int64_t[]){H * s, u->n}));
}
