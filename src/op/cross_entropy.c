/* CROSS_ENTROPY(logits, targets) -> y[t] = ln(sum over i of e^logits[i,t]) - logits[targets[t], t]
 *
 *   logits   [n_vocab, n]  F32, rows dense
 *   targets  [n]           I32; below 0: the token counts for nothing, y[t] = 0
 *   y        [n]           F32
 *
 * A target of n_vocab or more is reported and counts for nothing.
 * CROSS_ENTROPY_BACK(logits, targets, dy): dlogits[i,t] = dy[t] (softmax(logits[:,t])[i] - (i = targets[t])), zeros for
 * tokens that count for nothing. Tokens are independent, so chunks of them do not change bits. */
#include "op/mathf.h"
#include "op/util.h"

enum { LOGITS, TARGETS, DY };

static firn_status expect_inputs(firn_context *ctx, const firn_tensor *y)
{
    const firn_tensor *logits = y->src[LOGITS], *targets = y->src[TARGETS];

    FIRN_TRY(firn_expect_type(ctx, logits, FIRN_F32, "logits"));
    FIRN_TRY(firn_expect_rows(ctx, logits, "logits"));
    FIRN_TRY(firn_expect_type(ctx, targets, FIRN_I32, "targets"));
    FIRN_EXPECT(ctx, logits->ne[2] * logits->ne[3] == 1 && logits->ne[0] > 0, "logits must be [n_vocab, n], not %s",
                firn_shape_text(logits));
    FIRN_EXPECT(ctx, targets->ne[0] == logits->ne[1] && firn_n_rows(targets) == 1, "targets must be [%lld], not %s",
                LL(logits->ne[1]), firn_shape_text(targets));
    return FIRN_OK;
}

/* The target of token t, -1 where it counts for nothing. */
static int32_t target_at(const firn_call *call, int64_t t)
{
    const firn_tensor *targets = call->node->src[TARGETS];
    const int64_t n_vocab = call->node->src[LOGITS]->ne[0];
    const int32_t target = *(const int32_t *)firn_at(targets, call->src[TARGETS], t, 0, 0, 0);

    if (target < n_vocab)
        return target;
    firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, t, target, n_vocab);
    return -1;
}

static inline double sum_exp(const float *x, int64_t n, float top)
{
    double lanes[FIRN_LANES] = {0};
    const int64_t whole = n - n % FIRN_LANES;

    for (int64_t i = 0; i < whole; i += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] += (double)firn_expf(x[i + l] - top);
    for (int64_t i = whole; i < n; i++)
        lanes[i % FIRN_LANES] += (double)firn_expf(x[i] - top);
    return firn_lanes_sum(lanes);
}

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_inputs(ctx, y));
    return firn_shape_set(ctx, y, FIRN_F32, 1, y->src[LOGITS]->ne[1]);
}

static int64_t tokens(const firn_tensor *y)
{
    return y->src[LOGITS]->ne[1];
}

FIRN_WIDE static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *logits = call->node->src[LOGITS];
    const int64_t n = logits->ne[0];

    for (int64_t t = begin; t < end; t++) {
        const int32_t target = target_at(call, t);
        const float *x = (const float *)firn_row_at(logits, call->src[LOGITS], t);
        float loss = 0;
        if (target >= 0) {
            const float top = firn_max_of(x, n);
            loss = (float)(log(sum_exp(x, n, top)) + ((double)top - (double)x[target]));
        }
        ((float *)call->dst)[t] = loss;
    }
}

static firn_cost cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[LOGITS]);

    return (firn_cost){4 * n, n * sizeof(float), (double)firn_n_bytes(y)};
}

/* ---- the gradient ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *dy = y->src[DY];

    FIRN_TRY(expect_inputs(ctx, y));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_EXPECT(ctx, dy->ne[0] == tokens(y) && firn_n_rows(dy) == 1, "dy must be [%lld], not %s", LL(tokens(y)),
                firn_shape_text(dy));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[LOGITS]->ne);
}

FIRN_WIDE static void back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *logits = y->src[LOGITS];
    const int64_t n = logits->ne[0];

    for (int64_t t = begin; t < end; t++) {
        const int32_t target = target_at(call, t);
        const float *x = (const float *)firn_row_at(logits, call->src[LOGITS], t);
        const float d = *(const float *)firn_at(y->src[DY], call->src[DY], t, 0, 0, 0);
        float *out = (float *)firn_row_at(y, call->dst, t);
        if (target < 0) {
            memset(out, 0, (size_t)n * sizeof *out);
            continue;
        }
        const float top = firn_max_of(x, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = firn_expf(x[i] - top);
        const double sum = firn_sum_of(out, n);
        /* p - 1 of a confident target loses digits unless taken in double. */
        const double hit = (double)d * ((double)out[target] / sum - 1);
        const float factor = (float)((double)d / sum);
        for (int64_t i = 0; i < n; i++)
            out[i] *= factor;
        out[target] = (float)hit;
    }
}

const firn_op firn_op_cross_entropy_back = {
    .name = "CROSS_ENTROPY_BACK",
    .n_src = 3,
    .in_place = 1u << LOGITS,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .items = tokens,
    .reference = back_reference,
};

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of != LOGITS)
        return NULL;
    return firn_node(g, &firn_op_cross_entropy_back, (firn_tensor *[]){y->src[LOGITS], y->src[TARGETS], dy}, 3, NULL);
}

const firn_op firn_op_cross_entropy = {
    .name = "CROSS_ENTROPY",
    .n_src = 2,
    .shape = shape,
    .gradient = gradient,
    .cost = cost,
    .items = tokens,
    .reference = reference,
};

firn_tensor *firn_cross_entropy(firn_graph *g, firn_tensor *logits, firn_tensor *targets)
{
    return firn_node(g, &firn_op_cross_entropy, (firn_tensor *[]){logits, targets}, 2, NULL);
}
