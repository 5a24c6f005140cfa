/* ATTENTION(q, k, v, range, sinks): softmax attention without the score matrix (FlashAttention 2, Dao 2023).
 *
 *     s_j = scale q[:,h,t] . k[:,g,j], with soft-cap c: c tanh(s_j / c);  g = h / (H/G)
 *     y[:,h,t] = sum over j in [range[0,t], range[1,t]) of p_j v[:,g,j],  p = softmax over those j
 *
 *   q      [hd, H, n_q]   F32, rows dense
 *   k      [hd, G, n_kv]  F32, rows dense; G divides H
 *   v      [hv, G, n_kv]  F32, rows dense
 *   range  [2, n_q]       I32, any strides: first key and past the last. Says causality, isolated documents, sliding
 *                         window and cache length in one. Empty: zeros.
 *   sinks  [H]            F32, optional: a logit per head that enters the denominator only
 *
 * The node's result is flat: y [hv, H, n_q], then lse [H, n_q], the logarithm of each denominator (0 for an empty
 * range), from which ATTENTION_BACK recomputes p. firn_attention returns the view of y.
 *
 * ATTENTION_BACK(q, k, v, range, y, dy, sinks) -> dq | dk | dv | dsinks, flat, each of its source's shape; y is the
 * flat forward result, dy [hv, H, n_q] contiguous (more may follow it): p_j = exp(s_j - lse),  D = y . dy,  ds_j = p_j
 * (dy . v_j - D) (with soft-cap times 1 - (s_j/c)^2) dq = scale sum_j ds_j k_j;  dk_j = scale sum over its heads and t
 * of ds_j q;  dv_j = the same of p_j dy dsinks[h] = -sum over t of exp(sinks[h] - lse) D One writer per element: items
 * are (g, block of queries) for dq, then (g, block of keys) for dk and dv, then the sinks. Scores are computed in both
 * passes, once for dq and once for dk and dv.
 *
 * A range that leaves [0, n_kv] is reported, and cut to it. params.f: scale, soft-cap (0: none). */
#include "op/attention_tiles.h"

static firn_status expect_inputs(firn_context *ctx, const firn_tensor *y, const firn_tensor *sinks)
{
    const firn_tensor *q = y->src[Q], *k = y->src[K], *v = y->src[V], *range = y->src[RANGE];
    const char *names[] = {"q", "k", "v"};

    for (int i = Q; i <= V; i++) {
        FIRN_TRY(firn_expect_type(ctx, y->src[i], FIRN_F32, names[i]));
        FIRN_TRY(firn_expect_rows(ctx, y->src[i], names[i]));
        FIRN_EXPECT(ctx, y->src[i]->ne[3] == 1, "%s must have three dimensions, not %s", names[i],
                    firn_shape_text(y->src[i]));
    }
    FIRN_EXPECT(ctx, q->ne[0] == k->ne[0], "q has %lld values a head, k %lld", LL(q->ne[0]), LL(k->ne[0]));
    FIRN_EXPECT(ctx, k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2], "k of %s and v of %s differ in heads or keys",
                firn_shape_text(k), firn_shape_text(v));
    FIRN_EXPECT(ctx, k->ne[1] > 0 && q->ne[1] % k->ne[1] == 0, "%lld heads cannot share %lld", LL(q->ne[1]),
                LL(k->ne[1]));
    FIRN_TRY(firn_expect_type(ctx, range, FIRN_I32, "range"));
    FIRN_EXPECT(ctx, range->ne[0] == 2 && range->ne[1] == q->ne[2] && range->ne[2] * range->ne[3] == 1,
                "range must be [2, %lld], not %s", LL(q->ne[2]), firn_shape_text(range));
    FIRN_EXPECT(ctx, y->params.f[1] >= 0, "a soft-cap of %g is negative", (double)y->params.f[1]);
    if (sinks) {
        FIRN_TRY(firn_expect_type(ctx, sinks, FIRN_F32, "sinks"));
        FIRN_TRY(firn_expect_rows(ctx, sinks, "sinks"));
        FIRN_EXPECT(ctx, sinks->ne[0] == q->ne[1] && firn_n_rows(sinks) == 1, "sinks must be [%lld], not %s",
                    LL(q->ne[1]), firn_shape_text(sinks));
    }
    return FIRN_OK;
}

/* Pairs of a query and a key that a causal mask leaves, times heads; ranges are not known before the run. */
static double score_pairs(const firn_tensor *y)
{
    const double n_q = (double)y->src[Q]->ne[2], n_kv = (double)y->src[K]->ne[2];

    return (double)y->src[Q]->ne[1] * n_q * (n_kv - (n_q <= n_kv ? (n_q - 1) / 2 : 0));
}

/* ---- forward ---- */

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *q = y->src[Q];

    FIRN_TRY(expect_inputs(ctx, y, y->src[SINKS]));
    return firn_shape_set(ctx, y, FIRN_F32, 1, y_values(q, y->src[V]) + q->ne[1] * q->ne[2]);
}

static firn_cost cost(const firn_tensor *y)
{
    return (firn_cost){
        .flops = 2 * score_pairs(y) * (double)(y->src[Q]->ne[0] + y->src[V]->ne[0]),
        .bytes_read =
            (double)firn_n_bytes(y->src[Q]) + (double)firn_n_bytes(y->src[K]) + (double)firn_n_bytes(y->src[V]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

static int64_t items(const firn_tensor *y)
{
    return y->src[K]->ne[1] * blocks(y->src[Q]->ne[2], BQ);
}

/* Floats: keys in columns, scores, the block's sums of all heads of a group, their maxima and denominators. */
static size_t work(const firn_tensor *y)
{
    const int64_t hd = y->src[Q]->ne[0], hv = y->src[V]->ne[0], rows = y->src[Q]->ne[1] / y->src[K]->ne[1] * BQ;

    return (size_t)(hd * BK + BQ * BK + rows * (hv + 2)) * sizeof(float);
}

FIRN_WIDE static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    attention_forward(call, begin, end);
}

/* ---- backward ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *q = y->src[Q], *v = y->src[V], *forward = y->src[BY], *dy = y->src[BDY];

    FIRN_TRY(expect_inputs(ctx, y, y->src[BSINKS]));
    FIRN_TRY(firn_expect_type(ctx, forward, FIRN_F32, "the forward result"));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_EXPECT(ctx,
                firn_is_contiguous(forward) && firn_n_elements(forward) == y_values(q, v) + q->ne[1] * q->ne[2] &&
                    firn_is_contiguous(dy) && firn_n_elements(dy) >= y_values(q, v),
                "the forward result of %s and dy of %s do not fit q of %s", firn_shape_text(forward),
                firn_shape_text(dy), firn_shape_text(q));
    return firn_shape_set(ctx, y, FIRN_F32, 1, layout_of(q, y->src[K], v, y->src[BSINKS]).end);
}

static firn_cost back_cost(const firn_tensor *y)
{
    const double hd = (double)y->src[Q]->ne[0], hv = (double)y->src[V]->ne[0];

    return (firn_cost){
        /* Scores and dy . v counted once, though they are computed twice: useful work. */
        .flops = 2 * score_pairs(y) * (3 * hd + 2 * hv),
        .bytes_read = 2 * (double)firn_n_bytes(y->src[BDY]) + (double)firn_n_bytes(y->src[Q]) +
                      (double)firn_n_bytes(y->src[K]) + (double)firn_n_bytes(y->src[V]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

static int64_t back_items(const firn_tensor *y)
{
    return query_items(y) + key_items(y) + (y->src[BSINKS] ? 1 : 0);
}

/* Floats: keys and values in columns, probabilities, their gradients, D. */
static size_t back_work(const firn_tensor *y)
{
    return (size_t)((y->src[Q]->ne[0] + y->src[V]->ne[0]) * BK + 2 * BQ * BK + BQ) * sizeof(float);
}

FIRN_WIDE static void back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    attention_backward(call, begin, end);
}

const firn_op firn_op_attention_back = {
    .name = "ATTENTION_BACK",
    .n_src = 6,
    .n_optional = 1,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = back_cost,
    .items = back_items,
    .work = back_work,
    .reference = back_reference,
};

/* dy of y's part, contiguous. Usually the node's dy is that part, spread out by VIEW_BACK; else it is dy itself, whose
 * tail (lse, which reaches nobody) is not read. One answer for q, k, v and sinks, so that they share an ATTENTION_BACK.
 */
static firn_tensor *dy_of(firn_graph *g, const firn_tensor *node, firn_tensor *dy)
{
    if (dy->op == &firn_op_view_back && firn_n_elements(dy->src[0]) == y_values(node->src[Q], node->src[V]))
        dy = dy->src[0];
    return firn_is_contiguous(dy) ? dy : firn_node_once(g, &firn_op_cont, &dy, 1, NULL);
}

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *q = y->src[Q], *k = y->src[K], *v = y->src[V], *sinks = y->src[SINKS];
    const layout l = layout_of(q, k, v, sinks);

    if (of == RANGE)
        return NULL;
    firn_tensor *src[] = {q, k, v, y->src[RANGE], y, dy_of(g, y, dy), sinks};
    firn_tensor *all = firn_node_once(g, &firn_op_attention_back, src, 7, &y->params);
    const int64_t at = of == Q ? l.dq : of == K ? l.dk : of == V ? l.dv : l.dsinks;
    return firn_slice(g, all, at, y->src[of]->ne);
}

const firn_op firn_op_attention = {
    .name = "ATTENTION",
    .n_src = 4,
    .n_optional = 1,
    .shape = shape,
    .gradient = gradient,
    .cost = cost,
    .items = items,
    .work = work,
    .reference = reference,
};

firn_tensor *firn_attention(firn_graph *g, firn_tensor *q, firn_tensor *k, firn_tensor *v, firn_tensor *range,
                            firn_tensor *sinks, float scale, float softcap)
{
    firn_tensor *src[] = {q, k, v, range, sinks};
    firn_tensor *flat = firn_node(g, &firn_op_attention, src, 5, &(firn_params){.f = {scale, softcap}});

    if (!flat)
        return NULL;
    const int64_t ne[FIRN_MAX_DIMS] = {v->ne[0], q->ne[1], q->ne[2], 1};
    return firn_slice(g, flat, 0, ne);
}
