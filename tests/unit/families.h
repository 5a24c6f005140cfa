/* Graphs of every family of operations over one matrix a [w, n], w a multiple of 32 and n of 8: for tests that run all
 * of them in one way or another. */
#ifndef FIRN_TEST_FAMILIES_H
#define FIRN_TEST_FAMILIES_H

#include "firn/ops.h"

static firn_tensor *slot2(firn_graph *g, firn_type type, int64_t ne0, int64_t ne1, const char *name)
{
    return firn_slot(g, type, 2, (int64_t[]){ne0, ne1}, "%s", name);
}

static firn_tensor *family_elementwise(firn_graph *g, firn_tensor *a)
{
    firn_tensor *b = slot2(g, FIRN_F32, a->ne[0], 1, "b");
    firn_tensor *y = firn_div(g, firn_mul(g, firn_sub(g, firn_add(g, a, b), firn_scale(g, a, 0.5f)), b), b);

    y = firn_add(g, y, firn_sqrt(g, firn_sqr(g, firn_clamp(g, a, -2, 2))));
    y = firn_add(g, y, firn_log(g, firn_exp(g, a)));
    y = firn_add(g, firn_silu(g, y), firn_gelu(g, y));
    y = firn_add(g, firn_gelu_quick(g, y), firn_gelu_erf(g, y));
    y = firn_add(g, firn_relu(g, y), firn_sigmoid(g, y));
    return firn_add(g, firn_tanh(g, y), firn_softplus(g, y));
}

static firn_tensor *family_gated(firn_graph *g, firn_tensor *a)
{
    firn_tensor *y = firn_add(g, firn_swiglu(g, a, a), firn_geglu(g, a, a));

    return firn_add(g, y, firn_add(g, firn_reglu(g, a, a), firn_swiglu_oai(g, a, a, 1.702f, 7)));
}

static firn_tensor *family_shapes(firn_graph *g, firn_tensor *a)
{
    const int64_t w = a->ne[0], n = a->ne[1];
    firn_tensor *t = firn_cont(g, firn_transpose(g, a));

    t = firn_permute(g, firn_reshape(g, t, 3, (int64_t[]){n / 2, 2, w}), 0, 2, 1, 3);
    t = firn_concat(g, firn_cont(g, t), firn_repeat(g, firn_cont(g, t), (int64_t[]){n / 2, w, 2, 1}), 1);
    firn_tensor *view = firn_view(g, a, 1, (int64_t[]){w / 2}, (int64_t[]){4}, 64);
    return firn_add(g, firn_sum(g, t), firn_sum(g, firn_cast(g, firn_cast(g, view, FIRN_F16), FIRN_F32)));
}

static firn_tensor *family_reductions(firn_graph *g, firn_tensor *a)
{
    firn_tensor *best = firn_top_k(g, firn_sum_rows(g, firn_transpose(g, a)), 1);
    firn_tensor *order = firn_argsort(g, a, true);

    firn_output(g, best);
    firn_output(g, order);
    return firn_add(g, firn_sum(g, firn_mean(g, a)), firn_sum(g, firn_sum_rows(g, a)));
}

static firn_tensor *family_gathers(firn_graph *g, firn_tensor *a)
{
    firn_tensor *ids = firn_slot(g, FIRN_I32, 1, (int64_t[]){3 * a->ne[1] / 8}, "ids");
    firn_tensor *kept = slot2(g, FIRN_F32, a->ne[0], a->ne[1], "kept");

    firn_set_rows(g, kept, firn_get_rows(g, a, ids), ids);
    return firn_get_rows(g, a, ids);
}

static firn_tensor *family_norms(firn_graph *g, firn_tensor *a)
{
    firn_tensor *w = firn_slot(g, FIRN_F32, 1, a->ne, "w");
    firn_tensor *y = firn_add(g, firn_rms_norm(g, a, w, 1e-6f), firn_norm(g, a, 1e-6f));

    return firn_soft_max(g, firn_add(g, y, firn_l2_norm(g, a, 1e-6f)), NULL, NULL, 0.5f);
}

static firn_tensor *family_attention(firn_graph *g, firn_tensor *a)
{
    const int64_t head = a->ne[0] / 4, n = a->ne[1];
    const firn_rope_params params = {
        .n_rot = (int)head, .freq_base = 1e4f, .freq_scale = 1, .attn_factor = 1, .neox = true};
    firn_tensor *pos = firn_slot(g, FIRN_I32, 1, &n, "pos"), *range = slot2(g, FIRN_I32, 2, n, "range");
    firn_tensor *q = firn_rope(g, firn_reshape(g, a, 3, (int64_t[]){head, 4, n}), pos, NULL, &params);

    return firn_attention(g, q, q, q, range, NULL, 0.3f, 0);
}

static firn_tensor *family_products(firn_graph *g, firn_tensor *a)
{
    const int64_t w = a->ne[0], n = a->ne[1];
    firn_tensor *packed = slot2(g, FIRN_Q4_0, w, w / 2, "packed");
    firn_tensor *experts = firn_slot(g, FIRN_F32, 3, (int64_t[]){w, w / 4, 4}, "experts");
    firn_tensor *ids = slot2(g, FIRN_I32, 2, n, "ids"), *mix = slot2(g, FIRN_F32, 2, n, "mix");
    firn_tensor *routed = firn_mul_mat_id(g, experts, firn_reshape(g, a, 3, (int64_t[]){w, 1, n}), ids, NULL);

    return firn_add(g, firn_sum(g, firn_mul_mat(g, packed, a)), firn_sum(g, firn_mix_slots(g, routed, mix)));
}

static firn_tensor *family_routing(firn_graph *g, firn_tensor *a)
{
    firn_tensor *ids = slot2(g, FIRN_I32, 2, a->ne[1], "ids");

    return firn_add(g, firn_router_z(g, a, NULL), firn_router_balance(g, a, ids, NULL));
}

static firn_tensor *family_training(firn_graph *g, firn_tensor *a)
{
    firn_tensor *targets = firn_slot(g, FIRN_I32, 1, &a->ne[1], "targets");
    firn_tensor *p = slot2(g, FIRN_F32, a->ne[0], a->ne[1], "p"), *m = slot2(g, FIRN_F32, a->ne[0], a->ne[1], "m"),
                *v = slot2(g, FIRN_F32, a->ne[0], a->ne[1], "v"),
                *hyper = firn_slot(g, FIRN_F32, 1, (int64_t[]){8}, "hyper");

    firn_opt_step_adamw(g, p, a, m, v, hyper);
    return firn_cross_entropy(g, a, targets);
}

static const struct {
    const char *name;
    firn_tensor *(*build)(firn_graph *g, firn_tensor *a);
} families[] = {
    {"elementwise", family_elementwise}, {"gated", family_gated},       {"shapes", family_shapes},
    {"reductions", family_reductions},   {"gathers", family_gathers},   {"norms", family_norms},
    {"attention", family_attention},     {"products", family_products}, {"routing", family_routing},
    {"training", family_training},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

#endif
