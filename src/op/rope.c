/* ROPE(x, pos, factors) -> y: each pair of values of a head turned by an angle that grows with the token's position
 * (Su et al. 2021), stretched as in YaRN (Peng et al. 2023).
 *
 *   x        [head, n_head, n_tokens]  F32, rows dense
 *   pos      [n_tokens]                I32
 *   factors  [n_rot/2]                 F32, optional
 *
 *     (y_a, y_b) = m (x_a cos t - x_b sin t, x_a sin t + x_b cos t)
 *     pair i: (a, b) = (2i, 2i+1), neox: (i, i + n_rot/2), i < n_rot/2; values past n_rot pass unchanged
 *     t = pos (freq_scale (1 - mix) + mix) base^(-2i/n_rot) / factors[i],   mix = ext_factor ramp(i)
 *     ramp is 1 below dimension d(beta_fast), 0 above d(beta_slow), linear between;
 *     d(beta) = n_rot ln(n_ctx_orig / (2 pi beta)) / (2 ln base)
 *     m = attn_factor, times 1 + 0.1 ln(1 / freq_scale) where ext_factor is not 0
 *
 * Angles are computed in double: at position 100,000 a float's angle is off by 0.004.
 * ROPE_BACK turns back by the same angles (same m): it is the transpose, and each is the other's gradient. */
#include "op/mathf.h"
#include "op/util.h"

enum { X, POS, FACTORS };
enum { TOKENS = 16 }; /* per item: frequencies are computed once for them */

_Static_assert(sizeof(firn_rope_params) <= sizeof(firn_params), "rope's parameters must fit a node's");

static firn_rope_params params_of(const firn_tensor *y)
{
    firn_rope_params p;

    memcpy(&p, &y->params, sizeof p);
    return p;
}

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[X], *pos = y->src[POS], *factors = y->src[FACTORS];
    const firn_rope_params p = params_of(y);

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_TRY(firn_expect_type(ctx, pos, FIRN_I32, "pos"));
    FIRN_EXPECT(ctx, x->ne[3] == 1 && firn_n_elements(pos) == x->ne[2] && pos->ne[0] == x->ne[2],
                "positions of %s do not fit x of %s", firn_shape_text(pos), firn_shape_text(x));
    FIRN_EXPECT(ctx, p.n_rot >= 0 && p.n_rot % 2 == 0 && p.n_rot <= x->ne[0],
                "%d rotated values of a head of %lld: an even number up to it is expected", p.n_rot, LL(x->ne[0]));
    FIRN_EXPECT(ctx, p.freq_base > 1 && p.freq_scale > 0,
                "base %g and scale %g of the frequencies must be above 1 and 0", (double)p.freq_base,
                (double)p.freq_scale);
    FIRN_EXPECT(ctx, p.ext_factor == 0 || (p.n_ctx_orig > 0 && p.beta_fast > 0 && p.beta_slow > 0),
                "YaRN needs the original context and both betas, not %d, %g, %g", p.n_ctx_orig, (double)p.beta_fast,
                (double)p.beta_slow);
    if (factors) {
        FIRN_TRY(firn_expect_type(ctx, factors, FIRN_F32, "factors"));
        FIRN_TRY(firn_expect_rows(ctx, factors, "factors"));
        FIRN_EXPECT(ctx, factors->ne[0] == p.n_rot / 2, "factors must be [%d], not %s", p.n_rot / 2,
                    firn_shape_text(factors));
    }
    return firn_shape_like(ctx, y, FIRN_F32, x->ne);
}

/* Angle per position of pair i. */
static void frequencies(const firn_rope_params *p, const float *factors, double *freq)
{
    const double log_base = log((double)p->freq_base), n = p->n_rot, pi = 3.14159265358979323846;
    double low = 0, high = 0;

    if (p->ext_factor != 0) {
        low = floor(n * log(p->n_ctx_orig / (2 * pi * (double)p->beta_fast)) / (2 * log_base));
        high = ceil(n * log(p->n_ctx_orig / (2 * pi * (double)p->beta_slow)) / (2 * log_base));
        low = fmax(low, 0);
        high = fmin(high, n - 1);
    }
    for (int i = 0; i < p->n_rot / 2; i++) {
        double f = exp(-2.0 * i / n * log_base);
        if (factors)
            f /= (double)factors[i];
        double stretch = (double)p->freq_scale;
        if (p->ext_factor != 0) {
            const double ramp = 1 - fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
            const double mix = ramp * (double)p->ext_factor;
            stretch = stretch * (1 - mix) + mix;
        }
        freq[i] = f * stretch;
    }
}

static int64_t items(const firn_tensor *y)
{
    return (y->ne[2] + TOKENS - 1) / TOKENS;
}

/* freq [n_rot/2] double, then cos and sin [n_rot/2] float. */
static size_t work(const firn_tensor *y)
{
    return (size_t)params_of(y).n_rot * (sizeof(double) / 2 + sizeof(float));
}

/* Pair (a, b) of a head, by pair i of the table; y may be x. */
#define TURN(a_, b_)                                                                                                   \
    FIRN_IN_PLACE                                                                                                      \
    for (int64_t i = 0; i < half; i++) {                                                                               \
        const int64_t a = a_, b = b_;                                                                                  \
        const float xa = x[a], xb = x[b];                                                                              \
        y[a] = xa * c[i] - xb * s[i];                                                                                  \
        y[b] = xa * s[i] + xb * c[i];                                                                                  \
    }

FIRN_INLINE void turn(const firn_rope_params *p, const float *x, float *y, const float *restrict c,
                      const float *restrict s, int64_t head)
{
    const int64_t half = p->n_rot / 2;

    if (p->neox)
        TURN(i, i + half)
    else
        TURN(2 * i, 2 * i + 1)
    for (int64_t i = p->n_rot; i < head; i++)
        y[i] = x[i];
}

FIRN_INLINE void run(const firn_call *call, int64_t begin, int64_t end, double direction)
{
    const firn_tensor *y = call->node, *x = y->src[X], *pos = y->src[POS];
    const firn_rope_params p = params_of(y);
    double *freq = call->work;
    float *c = (float *)(freq + p.n_rot / 2), *s = c + p.n_rot / 2;
    double m = (double)p.attn_factor;

    if (p.ext_factor != 0)
        m *= 1 + 0.1 * log(1 / (double)p.freq_scale);
    if (begin < end)
        frequencies(&p, call->src[FACTORS], freq);
    for (int64_t t = begin * TOKENS; t < firn_min_i64(end * TOKENS, y->ne[2]); t++) {
        const double at = direction * *(const int32_t *)firn_at(pos, call->src[POS], t, 0, 0, 0);
        for (int i = 0; i < p.n_rot / 2; i++) {
            c[i] = (float)(m * cos(at * freq[i]));
            s[i] = (float)(m * sin(at * freq[i]));
        }
        for (int64_t h = 0; h < y->ne[1]; h++)
            turn(&p, (const float *)firn_at(x, call->src[X], 0, h, t, 0), (float *)firn_at(y, call->dst, 0, h, t, 0), c,
                 s, y->ne[0]);
    }
}

FIRN_WIDE static void rope_reference(const firn_call *call, int64_t begin, int64_t end)
{
    run(call, begin, end, 1);
}

FIRN_WIDE static void rope_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    run(call, begin, end, -1);
}

static firn_tensor *node(firn_graph *g, const firn_op *op, firn_tensor *x, firn_tensor *pos, firn_tensor *factors,
                         const firn_rope_params *params)
{
    firn_params p = {{0}};

    if (!params)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "%s: its parameters must not be null", op->name);
    memcpy(&p, params, sizeof *params);
    return firn_node(g, op, (firn_tensor *[]){x, pos, factors}, 3, &p);
}

static firn_tensor *rope_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    const firn_rope_params p = params_of(y);

    return of == X ? firn_rope_back(g, firn_with_dense_rows(g, dy), y->src[POS], y->src[FACTORS], &p) : NULL;
}

static firn_tensor *rope_back_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    const firn_rope_params p = params_of(y);

    return of == X ? firn_rope(g, firn_with_dense_rows(g, dy), y->src[POS], y->src[FACTORS], &p) : NULL;
}

#define OPERATION(NAME, name_)                                                                                         \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 2,                                                                                                    \
        .n_optional = 1,                                                                                               \
        .in_place = 1u << X,                                                                                           \
        .shape = shape,                                                                                                \
        .gradient = name_##_gradient,                                                                                  \
        .flops = 3,                                                                                                    \
        .items = items,                                                                                                \
        .work = work,                                                                                                  \
        .reference = name_##_reference,                                                                                \
    };                                                                                                                 \
    firn_tensor *firn_##name_(firn_graph *g, firn_tensor *x, firn_tensor *pos, firn_tensor *factors,                   \
                              const firn_rope_params *params)                                                          \
    {                                                                                                                  \
        return node(g, &firn_op_##name_, x, pos, factors, params);                                                     \
    }
OPERATION("ROPE", rope)
OPERATION("ROPE_BACK", rope_back)
