/* Norms along rows; x F32 with dense rows, sums in double.
 *
 *     RMS_NORM(x, w)  y = x r w,  r = 1 / sqrt(mean(x^2) + eps);  w F32 [n], optional
 *     NORM(x)         y = (x - mean(x)) r,  r = 1 / sqrt(var(x) + eps)
 *     L2_NORM(x)      y = x / max(|x|, eps)
 *
 * RMS_NORM_BACK(x, dy, w): with h = dy w,  dx = r (h - x r^2 mean(h x)).  dw = sum over rows of dy x r.
 * NORM_BACK(x, dy): with xhat = (x - mean) r,  dx = r (dy - mean(dy) - xhat mean(dy xhat)).
 * L2_NORM_BACK(x, dy): with s = 1 / |x|,  dx = s (dy - x s^2 sum(dy x)); dy / eps where |x| <= eps.
 * params.f[0]: eps. */
#include "op/mathf.h"
#include "op/util.h"

enum { X, W };        /* RMS_NORM */
enum { BX, BDY, BW }; /* the gradients; W only of RMS_NORM_BACK */

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[X], FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[X], "x"));
    FIRN_EXPECT(ctx, y->params.f[0] >= 0, "eps must not be negative, it is %g", (double)y->params.f[0]);
    return firn_shape_like(ctx, y, FIRN_F32, y->src[X]->ne);
}

static firn_status expect_weight(firn_context *ctx, const firn_tensor *w, int64_t n)
{
    if (!w)
        return FIRN_OK;
    FIRN_TRY(firn_expect_type(ctx, w, FIRN_F32, "w"));
    FIRN_TRY(firn_expect_rows(ctx, w, "w"));
    FIRN_EXPECT(ctx, w->ne[0] == n && firn_n_rows(w) == 1, "w must be [%lld], not %s", LL(n), firn_shape_text(w));
    return FIRN_OK;
}

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(shape(ctx, y));
    FIRN_TRY(firn_expect_like(ctx, y->src[BDY], y->src[BX], "dy"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[BDY], "dy"));
    return expect_weight(ctx, y->src[BW], y->ne[0]);
}

static firn_tensor *node(firn_graph *g, const firn_op *op, firn_tensor *const *src, int n, float eps)
{
    return firn_node(g, op, src, n, &(firn_params){.f = {eps}});
}

/* ---- RMS_NORM ---- */

static firn_status rms_norm_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(shape(ctx, y));
    return expect_weight(ctx, y->src[W], y->ne[0]);
}

FIRN_INLINE double rms_scale(const float *x, int64_t n, float eps)
{
    return 1.0 / sqrt(firn_dot(x, x, n) / (double)n + (double)eps);
}

FIRN_WIDE static void rms_norm_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[X], call->src[X], row), *w = call->src[W];
        float *out = (float *)firn_row_at(y, call->dst, row);
        const float r = (float)rms_scale(x, n, y->params.f[0]);
        if (w) {
            FIRN_IN_PLACE
            for (int64_t i = 0; i < n; i++)
                out[i] = x[i] * r * w[i];
        } else {
            FIRN_IN_PLACE
            for (int64_t i = 0; i < n; i++)
                out[i] = x[i] * r;
        }
    }
}

static firn_tensor *rms_norm_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *x = y->src[X], *w = y->src[W];
    const float eps = y->params.f[0];

    if (of == X)
        return firn_rms_norm_back(g, x, w, firn_with_dense_rows(g, dy), eps);
    return firn_reduce_to(g, firn_mul(g, dy, firn_rms_norm(g, x, NULL, eps)), w->ne);
}

const firn_op firn_op_rms_norm = {
    .name = "RMS_NORM",
    .n_src = 1,
    .n_optional = 1,
    .in_place = 1u << X,
    .shape = rms_norm_shape,
    .gradient = rms_norm_gradient,
    .flops = 4,
    .reference = rms_norm_reference,
};

firn_tensor *firn_rms_norm(firn_graph *g, firn_tensor *x, firn_tensor *w, float eps)
{
    return node(g, &firn_op_rms_norm, (firn_tensor *[]){x, w}, 2, eps);
}

FIRN_WIDE static void rms_norm_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[BX], call->src[BX], row), *w = call->src[BW];
        const float *dy = (const float *)firn_row_at(y->src[BDY], call->src[BDY], row);
        float *dx = (float *)firn_row_at(y, call->dst, row);
        const double scale = rms_scale(x, n, y->params.f[0]);
        const double hx = w ? firn_dot3(dy, w, x, n) : firn_dot(dy, x, n);
        const double c = scale * scale * scale * hx / (double)n; /* in double: in short rows the two halves cancel */
        if (w) {
            FIRN_IN_PLACE
            for (int64_t i = 0; i < n; i++)
                dx[i] = (float)(scale * ((double)dy[i] * (double)w[i]) - c * (double)x[i]);
        } else {
            FIRN_IN_PLACE
            for (int64_t i = 0; i < n; i++)
                dx[i] = (float)(scale * (double)dy[i] - c * (double)x[i]);
        }
    }
}

const firn_op firn_op_rms_norm_back = {
    .name = "RMS_NORM_BACK",
    .n_src = 2,
    .n_optional = 1,
    .in_place = 1u << BX | 1u << BDY,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .flops = 8,
    .reference = rms_norm_back_reference,
};

firn_tensor *firn_rms_norm_back(firn_graph *g, firn_tensor *x, firn_tensor *w, firn_tensor *dy, float eps)
{
    return node(g, &firn_op_rms_norm_back, (firn_tensor *[]){x, dy, w}, 3, eps);
}

/* ---- NORM ---- */

FIRN_SUM_OF_TERMS(dot_from, ((double)a[i] - from_a) * ((double)b[i] - from_b), const float *a, double from_a,
                  const float *b, double from_b)

FIRN_INLINE void moments(const float *x, int64_t n, float eps, double *mean, double *r)
{
    *mean = firn_sum_of(x, n) / (double)n;
    *r = 1.0 / sqrt(dot_from(x, *mean, x, *mean, n) / (double)n + (double)eps);
}

FIRN_WIDE static void norm_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[X], call->src[X], row);
        float *out = (float *)firn_row_at(y, call->dst, row);
        double mean, r;
        moments(x, n, y->params.f[0], &mean, &r);
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(((double)x[i] - mean) * r);
    }
}

FIRN_WIDE static void norm_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[BX], call->src[BX], row);
        const float *dy = (const float *)firn_row_at(y->src[BDY], call->src[BDY], row);
        float *dx = (float *)firn_row_at(y, call->dst, row);
        double mean, r;
        moments(x, n, y->params.f[0], &mean, &r);
        const double mean_dy = firn_sum_of(dy, n) / (double)n;
        const double along = r * dot_from(dy, 0, x, mean, n) / (double)n;
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            dx[i] = (float)(r * ((double)dy[i] - mean_dy - ((double)x[i] - mean) * r * along));
    }
}

/* ---- L2_NORM ---- */

FIRN_WIDE static void l2_norm_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[X], call->src[X], row);
        float *out = (float *)firn_row_at(y, call->dst, row);
        const float s = (float)(1.0 / fmax(sqrt(firn_dot(x, x, n)), (double)y->params.f[0]));
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            out[i] = x[i] * s;
    }
}

FIRN_WIDE static void l2_norm_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t n = y->ne[0];

    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)firn_row_at(y->src[BX], call->src[BX], row);
        const float *dy = (const float *)firn_row_at(y->src[BDY], call->src[BDY], row);
        float *dx = (float *)firn_row_at(y, call->dst, row);
        const double length = sqrt(firn_dot(x, x, n)), eps = (double)y->params.f[0];
        const double s = 1.0 / fmax(length, eps), c = length > eps ? s * s * s * firn_dot(dy, x, n) : 0;
        FIRN_IN_PLACE
        for (int64_t i = 0; i < n; i++)
            dx[i] = (float)(s * (double)dy[i] - c * (double)x[i]);
    }
}

#define PAIR(NAME, name_, flops_, back_flops_)                                                                         \
    const firn_op firn_op_##name_##_back = {                                                                           \
        .name = NAME "_BACK",                                                                                          \
        .n_src = 2,                                                                                                    \
        .in_place = 1u << BX | 1u << BDY,                                                                              \
        .shape = back_shape,                                                                                           \
        .no_gradient = "a gradient is not differentiated again",                                                       \
        .flops = back_flops_,                                                                                          \
        .reference = name_##_back_reference,                                                                           \
    };                                                                                                                 \
    static firn_tensor *name_##_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)                       \
    {                                                                                                                  \
        firn_tensor *src[] = {y->src[of], firn_with_dense_rows(g, dy)};                                                \
        return node(g, &firn_op_##name_##_back, src, 2, y->params.f[0]);                                               \
    }                                                                                                                  \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 1,                                                                                                    \
        .in_place = 1u << X,                                                                                           \
        .shape = shape,                                                                                                \
        .gradient = name_##_gradient,                                                                                  \
        .flops = flops_,                                                                                               \
        .reference = name_##_reference,                                                                                \
    };                                                                                                                 \
    firn_tensor *firn_##name_(firn_graph *g, firn_tensor *x, float eps)                                                \
    {                                                                                                                  \
        return node(g, &firn_op_##name_, &x, 1, eps);                                                                  \
    }

PAIR("NORM", norm, 6, 10)
PAIR("L2_NORM", l2_norm, 3, 6)
