/* The feed-forward part of a block: dense, or experts chosen by a router, with a shared expert beside them.
 *
 *     dense      down(act(gate x, up x))
 *     experts    sum over the chosen e, in the order of choice, of w_e down_e(act(gate_e x, up_e x))
 *     shared     + down(act(gate x, up x)), times sigmoid(w . x) where it has a gate
 *     beside a dense one (Gemma 4), s = the stream whose norm x is:
 *                norm(dense(x); post_ffw_norm_1) + norm(experts(norm(s; pre_ffw_norm_2)); post_ffw_norm_2), routed by
 *                norm(s; ffn_gate_inp.scale) / sqrt(d)
 *
 * d = n_embd, n = tokens, E = experts, k = experts used. The choice has no slope; the weights do. */
#include "model/build.h"

#include <math.h>

static firn_tensor *activation(firn_builder *u, firn_tensor *gate, firn_tensor *up)
{
    switch (u->model->arch->activation) {
    case FIRN_SWIGLU:
        return firn_swiglu(u->g, gate, up);
    case FIRN_SWIGLU_OAI:
        return firn_swiglu_oai(u->g, gate, up, 1.702f, 7.0f);
    case FIRN_GEGLU:
        return firn_geglu(u->g, gate, up);
    case FIRN_RELU_SQUARED:
        break;
    }
    return firn_sqr(u->g, firn_relu(u->g, up));
}

/* ---- the router ---- */

/* What experts are chosen by, with those outside the best groups pushed below all others. A group's score is the sum
 * of its two largest values. choice [E, n] */
static firn_tensor *within_groups(firn_builder *u, firn_tensor *choice)
{
    const firn_hparams *hp = &u->model->hp;
    firn_graph *g = u->g;
    const int64_t E = hp->n_expert, m = hp->router.n_group, used = hp->router.n_group_used;
    const float below = 1e30f; /* not infinity: a pass that looks for values that are not finite finds none here */

    firn_tensor *grouped = firn_reshape(g, choice, 4, (int64_t[]){1, E / m, m, u->n});
    firn_tensor *two = firn_top_k(g, firn_reshape(g, choice, 3, (int64_t[]){E / m, m, u->n}), 2);
    firn_tensor *best = firn_reshape(g, firn_get_rows(g, grouped, two), 3, (int64_t[]){2, m, u->n});
    firn_tensor *score = firn_reshape(g, firn_sum_rows(g, best), 2, (int64_t[]){m, u->n});
    firn_tensor *groups = firn_top_k(g, score, (int)used);
    /* 1 for the chosen groups, 0 for the others; then 0 and -below. */
    firn_tensor *ones = firn_fill(g, (int64_t[]){1, used, u->n, 1}, 1);
    firn_tensor *chosen = firn_get_rows_back(g, ones, groups, m);
    firn_tensor *push = firn_add(g, firn_scale(g, chosen, below), firn_fill(g, (int64_t[]){1, 1, 1, 1}, -below));
    firn_tensor *all = firn_add(g, firn_reshape(g, choice, 3, (int64_t[]){E / m, m, u->n}), push);
    return firn_named(firn_reshape(g, all, 2, (int64_t[]){E, u->n}), "experts in the best groups");
}

/* What training may add to the loss: an uneven load, and logits that grow. Every token of a pass counts: there is no
 * padding in one. Probabilities that do not sum to 1 (a sigmoid each) are divided by their sum first, as in
 * DeepSeek-V3; where only the chosen compete, balance looks at the softmax over all. */
static void router_losses(firn_builder *u, firn_tensor *logits, firn_tensor *probs, firn_tensor *ids)
{
    const firn_gate gate = u->model->hp.router.gate;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    if (gate == FIRN_GATE_SIGMOID)
        probs = firn_div(g, probs, firn_clamp(g, firn_sum_rows(g, probs), 0x1p-14f, INFINITY));
    else if (gate == FIRN_GATE_SOFTMAX_CHOSEN)
        probs = firn_soft_max(g, logits, NULL, NULL, 1.0f);
    k->router[0] = firn_output(g, firn_named(firn_router_balance(g, probs, ids, NULL), "router balance"));
    k->router[1] = firn_output(g, firn_named(firn_router_z(g, logits, NULL), "router z"));
}

/* The experts of each token, and their weights [k, n], by logits [E, n]. */
static firn_tensor *route(firn_builder *u, firn_tensor *logits, firn_tensor **ids)
{
    const firn_hparams *hp = &u->model->hp;
    firn_graph *g = u->g;
    const int64_t E = hp->n_expert, k = u->layer->n_expert_used;

    firn_tensor *probs = hp->router.gate == FIRN_GATE_SOFTMAX   ? firn_soft_max(g, logits, NULL, NULL, 1.0f)
                         : hp->router.gate == FIRN_GATE_SIGMOID ? firn_sigmoid(g, logits)
                                                                : logits;
    firn_named(probs, "router probabilities");

    firn_tensor *choice = probs, *bias = u->block->bias[FIRN_T_EXP_PROBS_B];
    if (bias)
        choice = firn_add(g, choice, bias);
    if (hp->router.n_group > 1)
        choice = within_groups(u, choice);
    *ids = firn_output(g, firn_named(firn_top_k(g, choice, (int)k), "chosen experts"));
    if (u->block->kind.router_losses)
        router_losses(u, logits, probs, *ids);
    firn_tensor *w = firn_get_rows(g, firn_reshape(g, probs, 3, (int64_t[]){1, E, u->n}), *ids);
    w = firn_reshape(g, w, 2, (int64_t[]){k, u->n});
    if (hp->router.gate == FIRN_GATE_SOFTMAX_CHOSEN)
        w = firn_soft_max(g, w, NULL, NULL, 1.0f);
    if (hp->router.renormalize)
        w = firn_div(g, w, firn_clamp(g, firn_sum_rows(g, w), 0x1p-14f, INFINITY));
    if (hp->router.scale != 1)
        w = firn_scale(g, w, hp->router.scale);
    return firn_named(w, "router weights");
}

/* ---- experts ---- */

/* The gate (half 0) or up (half 1) part of a fused product [2 Fe, k, n]. */
static firn_tensor *half(firn_builder *u, firn_tensor *both, int which)
{
    const int64_t fe = u->layer->n_ff_expert;

    return both ? firn_view(u->g, both, 3, (int64_t[]){fe, both->ne[1], both->ne[2]},
                            (int64_t[]){4, both->nb[1], both->nb[2]}, 4 * fe * which)
                : NULL;
}

static firn_tensor *routed_experts(firn_builder *u, firn_tensor *x, firn_tensor *logits)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *w = route(u, logits, &k->ids), *act;
    if (k->weight[FIRN_T_FFN_LATENT_DOWN])
        x = firn_build_product(u, FIRN_T_FFN_LATENT_DOWN, x);
    firn_tensor *column = x ? firn_reshape(g, x, 3, (int64_t[]){x->ne[0], 1, u->n}) : NULL;

    if (k->weight[FIRN_T_FFN_GATE_UP_EXPS]) {
        firn_tensor *both = firn_build_routed(u, FIRN_T_FFN_GATE_UP_EXPS, column, k->ids);
        act = activation(u, half(u, both, 0), half(u, both, 1));
    } else {
        firn_tensor *up = firn_build_routed(u, FIRN_T_FFN_UP_EXPS, column, k->ids);
        act = k->weight[FIRN_T_FFN_GATE_EXPS]
                  ? activation(u, firn_build_routed(u, FIRN_T_FFN_GATE_EXPS, column, k->ids), up)
              : u->model->arch->activation == FIRN_RELU_SQUARED ? activation(u, NULL, up)
                                                                : firn_silu(g, up);
    }
    firn_tensor *y =
        firn_named(firn_mix_slots(g, firn_build_routed(u, FIRN_T_FFN_DOWN_EXPS, act, k->ids), w), "experts");
    return k->weight[FIRN_T_FFN_LATENT_UP] ? firn_build_product(u, FIRN_T_FFN_LATENT_UP, y) : y;
}

/* NULL where the activation takes none. */
static firn_tensor *gate_of(firn_builder *u, firn_tensor_id id, firn_tensor *x)
{
    return u->block->weight[id] ? firn_build_product(u, id, x) : NULL;
}

static firn_tensor *shared_expert(firn_builder *u, firn_tensor *x)
{
    firn_graph *g = u->g;
    firn_tensor *act =
        activation(u, gate_of(u, FIRN_T_FFN_GATE_SHEXP, x), firn_build_product(u, FIRN_T_FFN_UP_SHEXP, x));
    firn_tensor *y = firn_build_product(u, FIRN_T_FFN_DOWN_SHEXP, act);

    if (u->model->arch->shared == FIRN_SHARED_GATED)
        y = firn_mul(g, y, firn_sigmoid(g, firn_build_product(u, FIRN_T_FFN_GATE_INP_SHEXP, x)));
    return firn_named(y, "shared expert");
}

static firn_tensor *dense(firn_builder *u, firn_tensor *x)
{
    return firn_build_product(u, FIRN_T_FFN_DOWN,
                              activation(u, gate_of(u, FIRN_T_FFN_GATE, x), firn_build_product(u, FIRN_T_FFN_UP, x)));
}

/* Experts beside a dense feed-forward. The router's .scale is on what it reads. */
static firn_tensor *beside_dense(firn_builder *u, firn_tensor *x, firn_tensor *stream)
{
    const firn_hparams *hp = &u->model->hp;
    const firn_tensor_id id = FIRN_T_FFN_GATE_INP;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    firn_tensor *first = firn_rms_norm(g, dense(u, x), k->weight[FIRN_T_POST_FFW_NORM_1], hp->norm_eps);
    firn_tensor *r = firn_scale(g, firn_rms_norm(g, stream, k->factor[id], hp->norm_eps), 1 / sqrtf((float)hp->n_embd));
    firn_tensor *logits = firn_adapted_product(g, k->weight[id], NULL, NULL, k->a[id], k->b[id], k->kind.t[id].scale,
                                               firn_named(r, "router input"));
    firn_named(logits, "%s", firn_tensor_rows[id].base);
    firn_tensor *second = firn_rms_norm(g, stream, k->weight[FIRN_T_PRE_FFW_NORM_2], hp->norm_eps);
    second = routed_experts(u, firn_named(second, "pre_ffw_norm_2"), logits);
    return firn_add(g, first, firn_rms_norm(g, second, k->weight[FIRN_T_POST_FFW_NORM_2], hp->norm_eps));
}

firn_tensor *firn_build_feed_forward(firn_builder *u, firn_tensor *x, firn_tensor *stream)
{
    if (!u->layer->experts)
        return dense(u, x);
    if (u->model->arch->dense_beside)
        return beside_dense(u, x, stream);
    firn_tensor *y = routed_experts(u, x, firn_build_product(u, FIRN_T_FFN_GATE_INP, x));
    return u->layer->n_ff_shared ? firn_add(u->g, y, shared_expert(u, x)) : y;
}
