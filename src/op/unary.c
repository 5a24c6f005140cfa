/* Functions of one value, y = f(x): x F32 of any shape and strides, y contiguous of x's shape.
 *
 *     SCALE        s x                     CLAMP     min(max(x, low), high)      SQR   x^2
 *     SQRT         sqrt(x)                 EXP       e^x                         LOG   ln x
 *     SILU         x sigmoid(x)            GELU      x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), the tanh form
 *     GELU_QUICK   x sigmoid(1.702 x)      GELU_ERF  x Phi(x)
 *     RELU         max(x, 0)               SIGMOID   1 / (1 + e^-x)
 *     TANH         tanh(x)                 SOFTPLUS  ln(1 + e^x), x itself above 20
 *
 * dx = dy f'(x): by other operations where f' is a word of x or y, by UNARY_BACK(x, dy) where it is not. CLAMP passes
 * dy where low < x < high and RELU where x > 0; at the corners the slope is 0. */
#include "op/mathf.h"
#include "op/util.h"

enum { X, DY };

/* What UNARY_BACK is told in params.i[0]; CLAMP's bounds are params.f[1] and f[2]. */
enum {
#define BINARY(name, formula)
#define UNARY(name, formula)
#define SLOPED(name, formula, slope) K_##name,
#include "op/elementwise.def"
#undef BINARY
#undef UNARY
#undef SLOPED
    N_KINDS
};

static const float gelu_a = 0.7978845608028654f, gelu_b = 0.044715f, quick_a = 1.702f; /* sqrt(2 / pi), ... */

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[X], FIRN_F32, "x"));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[X]->ne);
}

FIRN_INLINE float gelu(float x)
{
    return x * firn_sigmoidf(2 * gelu_a * (x + gelu_b * x * x * x));
}

FIRN_INLINE float gelu_slope(float x)
{
    const float s = firn_sigmoidf(2 * gelu_a * (x + gelu_b * x * x * x));
    return s + x * s * (1 - s) * 2 * gelu_a * (1 + 3 * gelu_b * x * x);
}

FIRN_INLINE float quick_slope(float x)
{
    const float s = firn_sigmoidf(quick_a * x);
    return s + quick_a * x * s * (1 - s);
}

FIRN_INLINE float phi(float x) /* the normal distribution's Phi; erfc keeps the digits of the lower tail */
{
    return 0.5f * firn_erfcf(-0.7071067811865476f * x);
}

FIRN_INLINE float silu_slope(float x)
{
    const float s = firn_sigmoidf(x);
    return s + x * s * (1 - s);
}

FIRN_INLINE float sigmoid_slope(float x)
{
    const float s = firn_sigmoidf(x);
    return s * (1 - s);
}

FIRN_INLINE float tanh_slope(float x)
{
    const float t = firn_tanhf(x);
    return 1 - t * t;
}

/* Rows [begin, end) of y in runs: as long as all of them where x is contiguous too, a row where its values follow each
 * other, else what is gathered at a time. */
enum { GATHERED = 512 };

static int64_t run_length(const firn_tensor *y, bool contiguous, bool dense, int64_t rows)
{
    return contiguous ? rows * y->ne[0] : dense ? y->ne[0] : firn_min_i64(y->ne[0], GATHERED);
}

/* One loop over rows [begin, end) of y for an expression of x, p (parameters). */
#define LOOP(function, expression)                                                                                     \
    FIRN_WIDE static void function(const firn_call *call, int64_t begin, int64_t end)                                  \
    {                                                                                                                  \
        const firn_tensor *y = call->node, *src = y->src[X];                                                           \
        const float p[] = {y->params.f[0], y->params.f[1]};                                                            \
        const bool flat = firn_is_contiguous(src);                                                                     \
        const int64_t n = flat ? (end - begin) * y->ne[0] : y->ne[0], stride = flat ? y->nb[0] : src->nb[0];           \
        const int64_t run = run_length(y, flat, firn_dense_rows(src), end - begin);                                    \
        float gathered[GATHERED];                                                                                      \
                                                                                                                       \
        (void)p;                                                                                                       \
        for (int64_t r = begin; r < end; r += flat ? end - begin : 1) {                                                \
            const char *in = firn_row_at(src, call->src[X], r);                                                        \
            for (int64_t at = 0; at < n; at += run) {                                                                  \
                const int64_t here = firn_min_i64(run, n - at);                                                        \
                const float *xs = firn_dense_run(in + at * stride, stride, here, gathered);                            \
                float *out = (float *)firn_row_at(y, call->dst, r) + at;                                               \
                FIRN_IN_PLACE                                                                                          \
                for (int64_t i = 0; i < here; i++) {                                                                   \
                    const float x = xs[i];                                                                             \
                    out[i] = expression;                                                                               \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }

LOOP(scale_reference, p[0] * x)
LOOP(clamp_reference, x<p[0] ? p[0] : x> p[1] ? p[1] : x)
LOOP(sqr_reference, x *x)
LOOP(sqrt_reference, sqrtf(x))
LOOP(exp_reference, firn_expf(x))
LOOP(log_reference, firn_logf(x))
LOOP(silu_reference, x *firn_sigmoidf(x))
LOOP(gelu_reference, gelu(x))
LOOP(gelu_quick_reference, x *firn_sigmoidf(quick_a *x))
LOOP(gelu_erf_reference, x *phi(x))
LOOP(relu_reference, x > 0 ? x : x <= 0 ? 0.0f : x)
LOOP(sigmoid_reference, firn_sigmoidf(x))
LOOP(tanh_reference, firn_tanhf(x))
LOOP(softplus_reference, x > 20 ? x : firn_log1pf(firn_expf(x)))

/* ---- gradients ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[X], FIRN_F32, "x"));
    FIRN_TRY(firn_expect_like(ctx, y->src[DY], y->src[X], "dy"));
    FIRN_EXPECT(ctx, y->params.i[0] >= 0 && y->params.i[0] < N_KINDS, "there is no function %d", y->params.i[0]);
    return firn_shape_like(ctx, y, FIRN_F32, y->src[X]->ne);
}

#define SLOPE(kind, expression)                                                                                        \
    case kind:                                                                                                         \
        FIRN_IN_PLACE                                                                                                  \
        for (int64_t i = 0; i < here; i++) {                                                                           \
            const float x = xs[i];                                                                                     \
            out[i] = ds[i] * (expression);                                                                             \
        }                                                                                                              \
        break;

FIRN_WIDE static void unary_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *src = y->src[X], *dy = y->src[DY];
    const float low = y->params.f[1], high = y->params.f[2];
    const bool flat = firn_is_contiguous(src) && firn_is_contiguous(dy);
    const int64_t n = flat ? (end - begin) * y->ne[0] : y->ne[0];
    const int64_t sx = flat ? y->nb[0] : src->nb[0], sd = flat ? y->nb[0] : dy->nb[0];
    const int64_t run = run_length(y, flat, firn_dense_rows(src) && firn_dense_rows(dy), end - begin);
    float gathered[2][GATHERED];

    for (int64_t r = begin; r < end; r += flat ? end - begin : 1) {
        const char *px = firn_row_at(src, call->src[X], r), *pd = firn_row_at(dy, call->src[DY], r);
        for (int64_t at = 0; at < n; at += run) {
            const int64_t here = firn_min_i64(run, n - at);
            const float *xs = firn_dense_run(px + at * sx, sx, here, gathered[0]);
            const float *ds = firn_dense_run(pd + at * sd, sd, here, gathered[1]);
            float *out = (float *)firn_row_at(y, call->dst, r) + at;
            switch (y->params.i[0]) {
                SLOPE(K_clamp, x > low && x < high ? 1.0f : 0.0f)
                SLOPE(K_silu, silu_slope(x))
                SLOPE(K_gelu, gelu_slope(x))
                SLOPE(K_gelu_quick, quick_slope(x))
                SLOPE(K_gelu_erf, phi(x) + x * 0.3989422804014327f * firn_expf(-0.5f * x * x))
                SLOPE(K_relu, x > 0 ? 1.0f : 0.0f)
                SLOPE(K_sigmoid, sigmoid_slope(x))
                SLOPE(K_tanh, tanh_slope(x))
                SLOPE(K_softplus, firn_sigmoidf(x))
            }
        }
    }
}

const firn_op firn_op_unary_back = {
    .name = "UNARY_BACK",
    .n_src = 2,
    .in_place = 1u << X | 1u << DY,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .flops = 6,
    .reference = unary_back_reference,
};

static firn_tensor *slope(firn_graph *g, firn_tensor *y, firn_tensor *dy, int kind)
{
    firn_params p = {.i = {kind}};

    p.f[1] = y->params.f[0];
    p.f[2] = y->params.f[1];
    return firn_node(g, &firn_op_unary_back, (firn_tensor *[]){y->src[X], dy}, 2, &p);
}

#define GRADIENT(name, expression)                                                                                     \
    static firn_tensor *name##_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)                        \
    {                                                                                                                  \
        (void)of;                                                                                                      \
        return expression;                                                                                             \
    }

GRADIENT(scale, firn_scale(g, dy, y->params.f[0]))
GRADIENT(sqr, firn_scale(g, firn_mul(g, dy, y->src[X]), 2.0f))
GRADIENT(sqrt, firn_scale(g, firn_div(g, dy, y), 0.5f))
GRADIENT(exp, firn_mul(g, dy, y))
GRADIENT(log, firn_div(g, dy, y->src[X]))
GRADIENT(clamp, slope(g, y, dy, K_clamp))
GRADIENT(silu, slope(g, y, dy, K_silu))
GRADIENT(gelu, slope(g, y, dy, K_gelu))
GRADIENT(gelu_quick, slope(g, y, dy, K_gelu_quick))
GRADIENT(gelu_erf, slope(g, y, dy, K_gelu_erf))
GRADIENT(relu, slope(g, y, dy, K_relu))
GRADIENT(sigmoid, slope(g, y, dy, K_sigmoid))
GRADIENT(tanh, slope(g, y, dy, K_tanh))
GRADIENT(softplus, slope(g, y, dy, K_softplus))

#define OPERATION(NAME, name_, flops_)                                                                                 \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 1,                                                                                                    \
        .in_place = 1u << X,                                                                                           \
        .shape = shape,                                                                                                \
        .gradient = name_##_gradient,                                                                                  \
        .flops = flops_,                                                                                               \
        .reference = name_##_reference,                                                                                \
    };
#define FUNCTION(NAME, name_, flops_)                                                                                  \
    OPERATION(NAME, name_, flops_)                                                                                     \
    firn_tensor *firn_##name_(firn_graph *g, firn_tensor *a)                                                           \
    {                                                                                                                  \
        return firn_node(g, &firn_op_##name_, (firn_tensor *[]){a}, 1, NULL);                                          \
    }

OPERATION("SCALE", scale, 1)
OPERATION("CLAMP", clamp, 2)
FUNCTION("SQR", sqr, 1)
FUNCTION("SQRT", sqrt, 1)
FUNCTION("EXP", exp, 1)
FUNCTION("LOG", log, 1)
FUNCTION("SILU", silu, 4)
FUNCTION("GELU", gelu, 9)
FUNCTION("GELU_QUICK", gelu_quick, 5)
FUNCTION("GELU_ERF", gelu_erf, 4)
FUNCTION("RELU", relu, 1)
FUNCTION("SIGMOID", sigmoid, 3)
FUNCTION("TANH", tanh, 1)
FUNCTION("SOFTPLUS", softplus, 3)

firn_tensor *firn_scale(firn_graph *g, firn_tensor *a, float s)
{
    return firn_node(g, &firn_op_scale, (firn_tensor *[]){a}, 1, &(firn_params){.f = {s}});
}

firn_tensor *firn_clamp(firn_graph *g, firn_tensor *a, float low, float high)
{
    if (!(low <= high))
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "CLAMP between %g and %g: the lower bound comes first",
                               (double)low, (double)high);
    return firn_node(g, &firn_op_clamp, (firn_tensor *[]){a}, 1, &(firn_params){.f = {low, high}});
}
