/* Gated units (gate, up) -> y, F32 of one shape, rows dense:
 *
 *     SWIGLU      silu(gate) up
 *     GEGLU       gelu(gate) up, the tanh form
 *     REGLU       max(gate, 0) up
 *     SWIGLU_OAI  g sigmoid(alpha g) (u + 1), g = min(gate, limit), u = min(max(up, -limit), limit)   (gpt-oss)
 *
 * GLU_BACK(gate, up, dy) -> dgate and dup, one after the other in a result of twice gate's outermost dimension: both
 * need the same exponential. Where SWIGLU_OAI's clamps hold a value, its slope is 0. */
#include "op/mathf.h"
#include "op/util.h"

enum { GATE, UP, DY };
enum { SWIGLU, GEGLU, REGLU, SWIGLU_OAI, N_KINDS }; /* params.i[0]; f[1] is alpha, f[2] the limit */

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[GATE], FIRN_F32, "gate"));
    FIRN_TRY(firn_expect_like(ctx, y->src[UP], y->src[GATE], "up"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[GATE], "gate"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[UP], "up"));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[GATE]->ne);
}

static const float gelu_a = 0.7978845608028654f, gelu_b = 0.044715f;

/* dst may be a source's memory: each element is read before it is written, by the same index. */
#define LOOP(name, expression)                                                                                         \
    FIRN_WIDE static void name##_reference(const firn_call *call, int64_t begin, int64_t end)                          \
    {                                                                                                                  \
        const firn_tensor *y = call->node;                                                                             \
        const float alpha = y->params.f[1], limit = y->params.f[2];                                                    \
        const int64_t n = y->ne[0];                                                                                    \
                                                                                                                       \
        (void)alpha, (void)limit;                                                                                      \
        for (int64_t r = begin; r < end; r++) {                                                                        \
            float *out = (float *)firn_row_at(y, call->dst, r);                                                        \
            const float *gate = (const float *)firn_row_at(y->src[GATE], call->src[GATE], r);                          \
            const float *up = (const float *)firn_row_at(y->src[UP], call->src[UP], r);                                \
            FIRN_IN_PLACE                                                                                              \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                const float a = gate[i], b = up[i];                                                                    \
                out[i] = expression;                                                                                   \
            }                                                                                                          \
        }                                                                                                              \
    }

FIRN_INLINE float oai(float a, float b, float alpha, float limit)
{
    a = a > limit ? limit : a;
    b = b > limit ? limit : b < -limit ? -limit : b;
    return a * firn_sigmoidf(alpha * a) * (b + 1);
}

LOOP(swiglu, a *firn_sigmoidf(a) * b)
LOOP(geglu, a *firn_sigmoidf(2 * gelu_a * (a + gelu_b * a * a * a)) * b)
LOOP(reglu, (a > 0 ? a : 0.0f) * b)
LOOP(swiglu_oai, oai(a, b, alpha, limit))

/* ---- the gradient ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    const int64_t *ne = y->src[GATE]->ne;

    FIRN_TRY(shape(ctx, y));
    FIRN_TRY(firn_expect_like(ctx, y->src[DY], y->src[GATE], "dy"));
    FIRN_TRY(firn_expect_rows(ctx, y->src[DY], "dy"));
    FIRN_EXPECT(ctx, y->params.i[0] >= 0 && y->params.i[0] < N_KINDS, "there is no gated unit %d", y->params.i[0]);
    return firn_shape_set(ctx, y, FIRN_F32, 4, ne[0], ne[1], ne[2], 2 * ne[3]);
}

static int64_t back_items(const firn_tensor *y)
{
    return firn_n_rows(y->src[GATE]);
}

static firn_cost back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y);

    return (firn_cost){.flops = 4 * n, .bytes_read = 1.5 * n * sizeof(float), .bytes_written = n * sizeof(float)};
}

/* slope = df/da without the factor up, value = f's factor of up. */
#define BACK(kind, ...)                                                                                                \
    case kind:                                                                                                         \
        FIRN_IN_PLACE                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const float a = gate[i], b = up[i], d = dy[i];                                                             \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
        break;

FIRN_WIDE static void glu_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const float alpha = y->params.f[1], limit = y->params.f[2];
    const int64_t n = y->ne[0], rows = back_items(y);

    for (int64_t r = begin; r < end; r++) {
        float *restrict dgate = (float *)call->dst + r * n, *restrict dup = dgate + rows * n;
        const float *restrict gate = (const float *)firn_row_at(y->src[GATE], call->src[GATE], r);
        const float *restrict up = (const float *)firn_row_at(y->src[UP], call->src[UP], r);
        const float *restrict dy = (const float *)firn_row_at(y->src[DY], call->src[DY], r);
        switch (y->params.i[0]) {
            BACK(SWIGLU, {
                const float s = firn_sigmoidf(a);
                dgate[i] = d * b * (s + a * s * (1 - s));
                dup[i] = d * a * s;
            })
            BACK(GEGLU, {
                const float s = firn_sigmoidf(2 * gelu_a * (a + gelu_b * a * a * a));
                dgate[i] = d * b * (s + a * s * (1 - s) * 2 * gelu_a * (1 + 3 * gelu_b * a * a));
                dup[i] = d * a * s;
            })
            BACK(REGLU, {
                dgate[i] = a > 0 ? d * b : 0.0f;
                dup[i] = a > 0 ? d * a : 0.0f;
            })
            BACK(SWIGLU_OAI, {
                const float ga = a > limit ? limit : a;
                const float ub = b > limit ? limit : b < -limit ? -limit : b;
                const float s = firn_sigmoidf(alpha * ga);
                dgate[i] = a < limit ? d * (ub + 1) * (s + alpha * ga * s * (1 - s)) : 0.0f;
                dup[i] = b < limit && b > -limit ? d * ga * s : 0.0f;
            })
        }
    }
}

const firn_op firn_op_glu_back = {
    .name = "GLU_BACK",
    .n_src = 3,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = back_cost,
    .items = back_items,
    .reference = glu_back_reference,
};

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *gate = y->src[GATE];
    firn_tensor *src[3] = {gate, y->src[UP], firn_with_dense_rows(g, dy)};
    firn_tensor *both = firn_node_once(g, &firn_op_glu_back, src, 3, &y->params);

    return firn_slice(g, both, of == GATE ? 0 : firn_n_elements(gate), gate->ne);
}

#define OPERATION(NAME, name_, flops_)                                                                                 \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 2,                                                                                                    \
        .in_place = 1u << GATE | 1u << UP,                                                                             \
        .shape = shape,                                                                                                \
        .gradient = gradient,                                                                                          \
        .flops = flops_,                                                                                               \
        .reference = name_##_reference,                                                                                \
    };
OPERATION("SWIGLU", swiglu, 5)
OPERATION("GEGLU", geglu, 10)
OPERATION("REGLU", reglu, 2)
OPERATION("SWIGLU_OAI", swiglu_oai, 9)

static firn_tensor *node(firn_graph *g, const firn_op *op, firn_tensor *gate, firn_tensor *up, int kind)
{
    return firn_node(g, op, (firn_tensor *[]){gate, up}, 2, &(firn_params){.i = {kind}});
}

firn_tensor *firn_swiglu(firn_graph *g, firn_tensor *gate, firn_tensor *up)
{
    return node(g, &firn_op_swiglu, gate, up, SWIGLU);
}

firn_tensor *firn_geglu(firn_graph *g, firn_tensor *gate, firn_tensor *up)
{
    return node(g, &firn_op_geglu, gate, up, GEGLU);
}

firn_tensor *firn_reglu(firn_graph *g, firn_tensor *gate, firn_tensor *up)
{
    return node(g, &firn_op_reglu, gate, up, REGLU);
}

firn_tensor *firn_swiglu_oai(firn_graph *g, firn_tensor *gate, firn_tensor *up, float alpha, float limit)
{
    firn_params p = {.i = {SWIGLU_OAI}};

    p.f[1] = alpha;
    p.f[2] = limit;
    return firn_node(g, &firn_op_swiglu_oai, (firn_tensor *[]){gate, up}, 2, &p);
}
