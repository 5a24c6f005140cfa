/* One thread per element, in the order of the result: arithmetic with repeated operands, functions of one value, gated
 * units, shapes, slots and optimizer steps. Formulas and contracts: src/op/<family>.c. Every result has one writer and
 * is read by its own index alone, so that it may lie in a source's memory. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/node.h"
#include "gpu/kernels/pair.h"
#include "op/elementary.h"

/* Of a.n elements. */
#define FIRN_PLACE uint n [[thread_position_in_grid]]

/* ---- arithmetic (arith.c) ---- */

#define UNARY(name, formula)
#define SLOPED(name, formula, slope)
#define BINARY(name, formula)                                                                                          \
    struct do_##name {                                                                                                 \
        static inline float of(float p, float q)                                                                       \
        {                                                                                                              \
            return formula;                                                                                            \
        }                                                                                                              \
    };
#include "op/elementwise.def"
#undef BINARY

template <typename F>
kernel void arithmetic(FIRN_NODE, device const uchar *p [[buffer(2)]], device const uchar *q [[buffer(3)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    put_float(y, (long)n * 4, F::of(float_at(p, offset_of(a.src[0], at)), float_at(q, offset_repeated(a.src[1], at))));
}

typedef decltype(arithmetic<do_add>) arithmetic_t;
#define BINARY(name, formula) template [[host_name("kernel_" #name)]] kernel arithmetic_t arithmetic<do_##name>;
#include "op/elementwise.def"
#undef UNARY
#undef SLOPED
#undef BINARY

/* The result is the sum's own storage. */
kernel void kernel_add_into(FIRN_NODE, device const uchar *slot [[buffer(2)]], device const uchar *p [[buffer(3)]],
                            FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    const long to = offset_of(a.y, at);
    put_float(y, to, float_at(y, to) + float_at(p, offset_of(a.src[1], at)));
}

/* ---- functions of one value (unary.c) ---- */

constant float GELU_A = 0.7978845608028654f; /* sqrt(2 / pi) */
constant float GELU_B = 0.044715f;
constant float QUICK_A = 1.702f;

static inline float gelu_gate(float x)
{
    return firn_sigmoidf(2 * GELU_A * (x + GELU_B * x * x * x));
}

static inline float gelu_slope(float x)
{
    const float s = gelu_gate(x);

    return s + x * s * (1 - s) * 2 * GELU_A * (1 + 3 * GELU_B * x * x);
}

/* erfc(x) e^(x^2) = t P(t), t = 1 / (1 + |x| / 2), by interpolation in 11 Chebyshev nodes: within 6e-9. */
static inline float erfc_of(float x)
{
    const float m = fabs(x), t = 1 / (1 + 0.5f * m), square = m * m, rest = fma(m, m, -square);
    float p = 3.505510013e-02f;

    p = p * t - 1.875216730e-01f;
    p = p * t + 3.742375589e-01f;
    p = p * t - 2.818922568e-01f;
    p = p * t - 2.627187620e-02f;
    p = p * t + 3.616485945e-02f;
    p = p * t + 5.540050401e-02f;
    p = p * t + 1.852142810e-01f;
    p = p * t + 2.452863066e-01f;
    p = p * t + 2.822379060e-01f;
    p = p * t + 2.820892925e-01f;
    const float tail = m < 12 ? p * t * firn_expf(-square) * (1 - rest) : m >= 12 ? 0.0f : x;
    return x < 0 ? 2 - tail : tail;
}

static inline float phi_of(float x)
{
    return 0.5f * erfc_of(-0.7071067811865476f * x);
}

static inline float log1p_of(float e)
{
    return float_of(log_of(two_sum(1, e)));
}

static inline float silu_slope(float x)
{
    const float s = firn_sigmoidf(x);

    return s + x * s * (1 - s);
}

static inline float quick_slope(float x)
{
    const float s = firn_sigmoidf(QUICK_A * x);

    return s + QUICK_A * x * s * (1 - s);
}

static inline float sigmoid_slope(float x)
{
    const float s = firn_sigmoidf(x);

    return s * (1 - s);
}

static inline float tanh_slope(float x)
{
    const float t = firn_tanhf(x);

    return 1 - t * t;
}

#define BINARY(name, formula)
#define UNARY(name, formula)                                                                                           \
    struct do_##name {                                                                                                 \
        static inline float of(constant firn_gpu_node_args &a, float x)                                                \
        {                                                                                                              \
            (void)a;                                                                                                   \
            return formula;                                                                                            \
        }                                                                                                              \
    };
#define SLOPED(name, formula, slope) UNARY(name, formula)
#include "op/elementwise.def"
#undef UNARY

template <typename F> kernel void unary(FIRN_NODE, device const uchar *x [[buffer(2)]], FIRN_PLACE)
{
    if (n < a.n)
        put_float(y, (long)n * 4, F::of(a, float_at(x, offset_of(a.src[0], element_of(a.y, n)))));
}

typedef decltype(unary<do_scale>) unary_t;
#define UNARY(name, formula) template [[host_name("kernel_" #name)]] kernel unary_t unary<do_##name>;
#include "op/elementwise.def"
#undef UNARY
#undef SLOPED

#define UNARY(name, formula)
#define SLOPED(name, formula, slope) K_##name,
enum {
#include "op/elementwise.def"
};
#undef SLOPED

/* f'(x) of the kind in word 0. */
static inline float slope_of(constant firn_gpu_node_args &a, float x)
{
    switch (a.p[0]) {
#define SLOPED(name, formula, slope)                                                                                   \
    case K_##name:                                                                                                     \
        return slope;
#include "op/elementwise.def"
    default:
        return 0;
    }
}
#undef UNARY
#undef SLOPED
#undef BINARY

kernel void kernel_unary_back(FIRN_NODE, device const uchar *x [[buffer(2)]], device const uchar *dy [[buffer(3)]],
                              FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    put_float(y, (long)n * 4,
              float_at(dy, offset_of(a.src[1], at)) * slope_of(a, float_at(x, offset_of(a.src[0], at))));
}

/* ---- gated units (glu.c) ---- */

enum { SWIGLU, GEGLU, REGLU, SWIGLU_OAI };

static inline float gated(constant firn_gpu_node_args &a, float gate, float up)
{
    if (a.p[0] == SWIGLU)
        return gate * firn_sigmoidf(gate) * up;
    if (a.p[0] == GEGLU)
        return gate * gelu_gate(gate) * up;
    if (a.p[0] == REGLU)
        return (gate > 0 ? gate : 0.0f) * up;
    const float alpha = param_float(a, 1), limit = param_float(a, 2);
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate * firn_sigmoidf(alpha * gate) * (up + 1);
}

kernel void kernel_glu(FIRN_NODE, device const uchar *gate [[buffer(2)]], device const uchar *up [[buffer(3)]],
                       FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    put_float(y, (long)n * 4, gated(a, float_at(gate, offset_of(a.src[0], at)), float_at(up, offset_of(a.src[1], at))));
}

/* dgate, then dup; n counts gate's elements. */
kernel void kernel_glu_back(FIRN_NODE, device const uchar *gate [[buffer(2)]], device const uchar *up [[buffer(3)]],
                            device const uchar *dy [[buffer(4)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.src[0], n);
    const float g = float_at(gate, offset_of(a.src[0], at)), u = float_at(up, offset_of(a.src[1], at));
    const float d = float_at(dy, offset_of(a.src[2], at));
    float dgate, dup;
    if (a.p[0] == SWIGLU || a.p[0] == GEGLU) {
        dgate = d * u * (a.p[0] == SWIGLU ? silu_slope(g) : gelu_slope(g));
        dup = d * g * (a.p[0] == SWIGLU ? firn_sigmoidf(g) : gelu_gate(g));
    } else if (a.p[0] == REGLU) {
        dgate = g > 0 ? d * u : 0.0f;
        dup = g > 0 ? d * g : 0.0f;
    } else {
        const float alpha = param_float(a, 1), limit = param_float(a, 2);
        const float held = g > limit ? limit : g, within = u > limit ? limit : u < -limit ? -limit : u;
        const float s = firn_sigmoidf(alpha * held);
        dgate = g < limit ? d * (within + 1) * (s + alpha * held * s * (1 - s)) : 0.0f;
        dup = u < limit && u > -limit ? d * held * s : 0.0f;
    }
    put_float(y, (long)n * 4, dgate);
    put_float(y, ((long)a.n + n) * 4, dup);
}

/* ---- shapes (repeat.c, shape.c) ---- */

kernel void kernel_repeat(FIRN_NODE, device const uchar *p [[buffer(2)]], FIRN_PLACE)
{
    if (n < a.n)
        put_float(y, (long)n * 4, float_at(p, offset_repeated(a.src[0], element_of(a.y, n))));
}

/* The repetitions in order. */
kernel void kernel_repeat_back(FIRN_NODE, device const uchar *dy [[buffer(2)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element first = element_of(a.y, n);
    firn_element at;
    firn_pair sum = pair_of(0);
    for (at.i[3] = first.i[3]; at.i[3] < a.src[0].ne[3]; at.i[3] += a.y.ne[3])
        for (at.i[2] = first.i[2]; at.i[2] < a.src[0].ne[2]; at.i[2] += a.y.ne[2])
            for (at.i[1] = first.i[1]; at.i[1] < a.src[0].ne[1]; at.i[1] += a.y.ne[1])
                for (at.i[0] = first.i[0]; at.i[0] < a.src[0].ne[0]; at.i[0] += a.y.ne[0])
                    sum = sum + pair_of(float_at(dy, offset_of(a.src[0], at)));
    put_float(y, (long)n * 4, float_of(sum));
}

kernel void kernel_concat(FIRN_NODE, device const uchar *p [[buffer(2)]], device const uchar *q [[buffer(3)]],
                          FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const int axis = a.p[0], split = a.src[0].ne[axis];
    firn_element at = element_of(a.y, n);
    if (at.i[axis] < split) {
        put_float(y, (long)n * 4, float_at(p, offset_of(a.src[0], at)));
    } else {
        at.i[axis] -= split;
        put_float(y, (long)n * 4, float_at(q, offset_of(a.src[1], at)));
    }
}

kernel void kernel_fill(FIRN_NODE, FIRN_PLACE)
{
    if (n < a.n)
        put_float(y, (long)n * 4, param_float(a, 8));
}

/* The view's strides (ascending, checked) are in words 8 to 13, its offset in 14. */
kernel void kernel_view_back(FIRN_NODE, device const uchar *dy [[buffer(2)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    long left = (long)n * 4 - param_long(a, 14);
    bool inside = left >= 0;
    firn_element at = element_of(a.src[0], 0);
    for (int d = 3; d > 0 && inside; d--) {
        const long stride = param_long(a, 8 + 2 * (d - 1));
        if (a.src[0].ne[d] == 1)
            continue;
        const long n_before = left / stride, last = a.src[0].ne[d] - 1;
        at.i[d] = (int)(n_before < last ? n_before : last);
        left -= at.i[d] * stride;
    }
    inside = inside && left / 4 < a.src[0].ne[0];
    at.i[0] = inside ? (int)(left / 4) : 0;
    put_float(y, (long)n * 4, inside ? float_at(dy, offset_of(a.src[0], at)) : 0.0f);
}

/* ---- slots (slots.c) ---- */

kernel void kernel_sum_slots(FIRN_NODE, device const uchar *x [[buffer(2)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    firn_element at = element_of(a.y, n);
    float sum = 0;
    for (; at.i[1] < a.src[0].ne[1]; at.i[1] += a.y.ne[1])
        sum += float_at(x, offset_of(a.src[0], at));
    put_float(y, (long)n * 4, sum);
}

kernel void kernel_mix_slots(FIRN_NODE, device const uchar *x [[buffer(2)]], device const uchar *w [[buffer(3)]],
                             FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    device const uchar *in = x + at.i[0] * a.src[0].nb[0] + at.i[1] * a.src[0].nb[2];
    device const uchar *weights = w + at.i[1] * a.src[1].nb[1];
    float sum = 0;
    for (int s = 0; s < a.src[0].ne[1]; s++)
        sum += float_at(weights, s * a.src[1].nb[0]) * float_at(in, s * a.src[0].nb[1]);
    put_float(y, (long)n * 4, sum);
}

kernel void kernel_mix_slots_back_x(FIRN_NODE, device const uchar *w [[buffer(2)]],
                                    device const uchar *dy [[buffer(3)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    put_float(y, (long)n * 4,
              float_at(w, at.i[1] * a.src[0].nb[0] + at.i[2] * a.src[0].nb[1]) *
                  float_at(dy, at.i[0] * a.src[1].nb[0] + at.i[2] * a.src[1].nb[1]));
}

/* An id that names no bias gives zeros; the check has reported it. */
kernel void kernel_add_id(FIRN_NODE, device const uchar *p [[buffer(2)]], device const uchar *bias [[buffer(3)]],
                          device const uchar *ids [[buffer(4)]], FIRN_PLACE)
{
    if (n >= a.n)
        return;
    const firn_element at = element_of(a.y, n);
    const int id = int_at(ids, at.i[1] * a.src[2].nb[0] + at.i[2] * a.src[2].nb[1]);
    float value = 0;
    if (id >= 0 && id < a.src[1].ne[1])
        value = float_at(p, offset_of(a.src[0], at)) + float_at(bias, at.i[0] * a.src[1].nb[0] + id * a.src[1].nb[1]);
    put_float(y, (long)n * 4, value);
}

/* ---- steps (optimizer.c); hyper is read from memory, since it changes from run to run ---- */

kernel void kernel_opt_step_adamw(FIRN_NODE, device float *p [[buffer(2)]], device const float *grad [[buffer(3)]],
                                  device float *m [[buffer(4)]], device float *v [[buffer(5)]],
                                  device const float *h [[buffer(6)]], FIRN_PLACE)
{
    if (n >= a.n || isnan(h[7]))
        return;
    const float lr = h[0], b1 = h[1], b2 = h[2], eps = h[3], decay = h[4], c1 = h[5], c2 = h[6];
    const float g = h[7] * grad[n], first = b1 * m[n] + (1 - b1) * g, second = b2 * v[n] + (1 - b2) * g * g;
    m[n] = first;
    v[n] = second;
    p[n] -= lr * (first * c1 / (sqrt(second * c2) + eps) + decay * p[n]);
}

kernel void kernel_opt_step_sgd(FIRN_NODE, device float *p [[buffer(2)]], device const float *grad [[buffer(3)]],
                                device const float *h [[buffer(4)]], FIRN_PLACE)
{
    if (n < a.n && !isnan(h[2]))
        p[n] -= h[0] * (h[2] * grad[n] + h[1] * p[n]);
}
