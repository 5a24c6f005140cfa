/* SOFT_MAX(x, mask, sinks) -> y: softmax(scale x + mask) along rows.
 *
 *   x      [n, ne1, ne2, ne3]  F32, rows dense
 *   mask   [n, ...]            F32, optional, repeated over x's outer dimensions; -infinity hides a value
 *   sinks  [ne2]               F32, optional: a logit per head that enters the denominator only
 *
 * A row that is hidden whole gives zeros. params.f[0]: scale.
 *
 * SOFT_MAX_BACK(y, dy): dx = scale y (dy - sum(y dy)), which does not need x. dsinks[h] = -sum over h's rows of
 * (1 - sum(y)) sum(y dy). The mask is a constant. */
#include "op/mathf.h"
#include "op/util.h"

enum { X, MASK, SINKS };
enum { Y, DY };

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[X], *mask = y->src[MASK], *sinks = y->src[SINKS];

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    if (mask) {
        FIRN_TRY(firn_expect_type(ctx, mask, FIRN_F32, "the mask"));
        FIRN_TRY(firn_expect_rows(ctx, mask, "the mask"));
        bool fits = mask->ne[0] == x->ne[0];
        for (int i = 1; i < FIRN_MAX_DIMS; i++)
            fits &= mask->ne[i] > 0 && x->ne[i] % mask->ne[i] == 0;
        FIRN_EXPECT(ctx, fits, "a mask of %s cannot be repeated over %s", firn_shape_text(mask), firn_shape_text(x));
    }
    if (sinks) {
        FIRN_TRY(firn_expect_type(ctx, sinks, FIRN_F32, "the sinks"));
        FIRN_TRY(firn_expect_rows(ctx, sinks, "the sinks"));
        FIRN_EXPECT(ctx, sinks->ne[0] == x->ne[2] && firn_n_rows(sinks) == 1, "sinks must be [%lld], not %s",
                    LL(x->ne[2]), firn_shape_text(sinks));
    }
    return firn_shape_like(ctx, y, FIRN_F32, x->ne);
}

FIRN_WIDE static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *x = y->src[X], *mask = y->src[MASK];
    const float scale = y->params.f[0];
    const int64_t n = y->ne[0];
    int64_t i1, i2, i3;

    for (int64_t r = begin; r < end; r++) {
        firn_row_index(y, r, &i1, &i2, &i3);
        float *out = (float *)firn_row_at(y, call->dst, r);
        const float *in = (const float *)firn_row_at(x, call->src[X], r);
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            out[i] = scale * in[i];
        if (mask) {
            const float *m =
                (const float *)firn_at(mask, call->src[MASK], 0, i1 % mask->ne[1], i2 % mask->ne[2], i3 % mask->ne[3]);
            for (int64_t i = 0; i < n; i++)
                out[i] += m[i];
        }
        const float sink = call->src[SINKS] ? ((const float *)call->src[SINKS])[i2] : -INFINITY;
        const float highest = firn_max_of(out, n), top = sink > highest ? sink : highest;
        if (top == -INFINITY) { /* all hidden; a NaN among them is not */
            const double nan = firn_sum_of(out, n);
            for (int64_t i = 0; i < n; i++)
                out[i] = nan == nan ? 0.0f : NAN;
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            out[i] = firn_expf(out[i] - top);
        double sum = firn_sum_of(out, n);
        if (call->src[SINKS])
            sum += (double)firn_expf(sink - top);
        const float inverse = (float)(1.0 / sum);
        for (int64_t i = 0; i < n; i++)
            out[i] *= inverse;
    }
}

/* ---- the gradient ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[Y], FIRN_F32, "y"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[Y], "y"));
    FIRN_TRY(firn_expect_like(ctx, y->src[DY], y->src[Y], "dy"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[DY], "dy"));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[Y]->ne);
}

FIRN_WIDE static void back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *node = call->node;
    const float scale = node->params.f[0];
    const int64_t n = node->ne[0];

    for (int64_t r = begin; r < end; r++) {
        const float *y = (const float *)firn_row_at(node->src[Y], call->src[Y], r);
        const float *dy = (const float *)firn_row_at(node->src[DY], call->src[DY], r);
        float *dx = (float *)firn_row_at(node, call->dst, r);
        const float along = (float)firn_dot(y, dy, n);
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            dx[i] = scale * (y[i] * (dy[i] - along));
    }
}

const firn_op firn_op_soft_max_back = {
    .name = "SOFT_MAX_BACK",
    .n_src = 2,
    .in_place = 1u << Y | 1u << DY,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .flops = 5,
    .reference = back_reference,
};

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of == X) {
        firn_tensor *src[] = {y, firn_with_dense_rows(g, dy)};
        return firn_node(g, &firn_op_soft_max_back, src, 2, &y->params);
    }
    if (of == MASK)
        return NULL;
    firn_tensor *along = firn_sum_rows(g, firn_mul(g, y, dy));
    /* -(1 - sum(y)) along = sum(y) along - along, summed over all but the heads. */
    firn_tensor *rows = firn_sub(g, firn_mul(g, along, firn_sum_rows(g, y)), along);
    const int64_t heads[FIRN_MAX_DIMS] = {1, 1, y->ne[2], 1}, flat[] = {y->ne[2]};
    return firn_reshape(g, firn_reduce_to(g, rows, heads), 1, flat);
}

const firn_op firn_op_soft_max = {
    .name = "SOFT_MAX",
    .n_src = 1,
    .n_optional = 2,
    .in_place = 1u << X,
    .shape = shape,
    .gradient = gradient,
    .flops = 6,
    .reference = reference,
};

firn_tensor *firn_soft_max(firn_graph *g, firn_tensor *x, firn_tensor *mask, firn_tensor *sinks, float scale)
{
    return firn_node(g, &firn_op_soft_max, (firn_tensor *[]){x, mask, sinks}, 3, &(firn_params){.f = {scale}});
}
