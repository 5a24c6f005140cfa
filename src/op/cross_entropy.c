/* CROSS_ENTROPY(logits, targets, mask) -> y[t] = mask[t] (ln(sum over i of e^logits[i,t]) - logits[targets[t], t])
 *
 *   logits   [n_vocab, n]  F32, rows dense
 *   targets  [n]           I32, any strides; below 0 or the ignore value: the token counts for nothing, y[t] = 0
 *   mask     [n]           F32, any strides, optional: what a token counts; at 0 its logits are not read
 *   y        [n]           F32
 *
 * A target of n_vocab or more that is not the ignore value is reported and counts for nothing. params.i[0]: the ignore
 * value.
 * CROSS_ENTROPY_BACK(logits, targets, dy, mask): dlogits[i,t] = dy[t] mask[t] (softmax(logits[:,t])[i] - (i =
 * targets[t])), zeros for tokens that count for nothing. The mask is a constant. Tokens are independent, so chunks of
 * them do not change bits. */
#include "op/mathf.h"
#include "op/util.h"

enum { LOGITS, TARGETS, MASK, DY = 2, BMASK };

static firn_status expect_inputs(firn_context *ctx, const firn_tensor *y, const firn_tensor *mask)
{
    const firn_tensor *logits = y->src[LOGITS], *targets = y->src[TARGETS];

    FIRN_TRY(firn_expect_type(ctx, logits, FIRN_F32, "logits"));
    FIRN_TRY(firn_expect_rows(ctx, logits, "logits"));
    FIRN_TRY(firn_expect_type(ctx, targets, FIRN_I32, "targets"));
    FIRN_EXPECT(ctx, logits->ne[2] * logits->ne[3] == 1 && logits->ne[0] > 0, "logits must be [n_vocab, n], not %s",
                firn_shape_text(logits));
    FIRN_EXPECT(ctx, targets->ne[0] == logits->ne[1] && firn_n_rows(targets) == 1, "targets must be [%lld], not %s",
                LL(logits->ne[1]), firn_shape_text(targets));
    if (mask) {
        FIRN_TRY(firn_expect_type(ctx, mask, FIRN_F32, "the mask"));
        FIRN_EXPECT(ctx, mask->ne[0] == logits->ne[1] && firn_n_rows(mask) == 1, "the mask must be [%lld], not %s",
                    LL(logits->ne[1]), firn_shape_text(mask));
    }
    return FIRN_OK;
}

/* What token t counts; its target is -1 where that is nothing. */
static float weight_at(const firn_call *call, int mask, int64_t t, int32_t *target)
{
    const firn_tensor *node = call->node;
    const int64_t n_vocab = node->src[LOGITS]->ne[0];
    const float weight = node->src[mask] ? *(const float *)firn_at(node->src[mask], call->src[mask], t, 0, 0, 0) : 1;

    *target = *(const int32_t *)firn_at(node->src[TARGETS], call->src[TARGETS], t, 0, 0, 0);
    if (*target == node->params.i[0] || weight == 0)
        *target = -1;
    if (*target >= n_vocab) {
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, node, t, *target, n_vocab);
        *target = -1;
    }
    return weight;
}

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_inputs(ctx, y, y->src[MASK]));
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
        int32_t target;
        const double weight = (double)weight_at(call, MASK, t, &target);
        const float *x = (const float *)firn_row_at(logits, call->src[LOGITS], t);
        float loss = 0;
        if (target >= 0) {
            const float top = firn_max_of(x, n);
            loss = (float)(weight * (log(firn_sum_exp(x, n, top)) + ((double)top - (double)x[target])));
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

    FIRN_TRY(expect_inputs(ctx, y, y->src[BMASK]));
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
        int32_t target;
        const double weight = (double)weight_at(call, BMASK, t, &target);
        const float *x = (const float *)firn_row_at(logits, call->src[LOGITS], t);
        const double d = weight * (double)*(const float *)firn_at(y->src[DY], call->src[DY], t, 0, 0, 0);
        float *out = (float *)firn_row_at(y, call->dst, t);
        if (target < 0) {
            memset(out, 0, (size_t)n * sizeof *out);
            continue;
        }
        const float top = firn_max_of(x, n);
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            out[i] = firn_expf(x[i] - top);
        const double sum = firn_sum_of(out, n);
        /* p - 1 of a confident target loses digits unless taken in double. */
        const double hit = d * ((double)out[target] / sum - 1);
        const float factor = (float)(d / sum);
        for (int64_t i = 0; i < n; i++)
            out[i] *= factor;
        out[target] = (float)hit;
    }
}

static firn_cost back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y);

    return (firn_cost){5 * n, n * sizeof(float), n * sizeof(float)};
}

const firn_op firn_op_cross_entropy_back = {
    .name = "CROSS_ENTROPY_BACK",
    .n_src = 3,
    .n_optional = 1,
    .in_place = 1u << LOGITS,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = back_cost,
    .items = tokens,
    .reference = back_reference,
};

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of != LOGITS)
        return NULL;
    firn_tensor *src[] = {y->src[LOGITS], y->src[TARGETS], dy, y->src[MASK]};
    return firn_node(g, &firn_op_cross_entropy_back, src, 4, &y->params);
}

const firn_op firn_op_cross_entropy = {
    .name = "CROSS_ENTROPY",
    .n_src = 2,
    .n_optional = 1,
    .shape = shape,
    .gradient = gradient,
    .cost = cost,
    .items = tokens,
    .reference = reference,
};

firn_tensor *firn_cross_entropy(firn_graph *g, firn_tensor *logits, firn_tensor *targets)
{
    return firn_cross_entropy_masked(g, logits, targets, NULL, -1);
}

firn_tensor *firn_cross_entropy_masked(firn_graph *g, firn_tensor *logits, firn_tensor *targets, firn_tensor *mask,
                                       int32_t ignore)
{
    firn_tensor *src[] = {logits, targets, mask};

    return firn_node(g, &firn_op_cross_entropy, src, 3, &(firn_params){.i = {ignore}});
}
