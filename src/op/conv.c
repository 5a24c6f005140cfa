/* CONV_CAUSAL(x, w, first, bias) -> y: each channel's own short filter along the tokens, which reaches back within the
 * token's document.
 *
 *   x      [C, p + n]  F32, rows dense; p tokens of history in front
 *   w      [K, C]      F32, 1 <= K <= 8; w[K-1] meets the token itself
 *   first  [n]         I32, at most the token's own number: where its document begins, counted from the first token
 *                      behind the history; negative: in the history or before it
 *   bias   [C]         F32, optional
 *
 *     s[c,t] = bias[c] + sum over j < K of w[j,c] x[c, p + t - K + 1 + j], over rows of the document that are there
 *     y = s, or silu(s) where params.i[1];  y [C, n].  params.i[0] = p.
 *
 * CONV_CAUSAL_BACK(x, w, first, dy, bias) -> dx [C, p + n]: with d[c,t] = dy, times silu'(s),
 *     dx[c,i] = sum over j of w[j,c] d[c, i - p + K - 1 - j], over tokens there are whose document has row i.
 * w and bias have no gradient: no adapter reaches them. */
#include "op/mathf.h"
#include "op/util.h"

enum { X, W, FIRST, BIAS };          /* CONV_CAUSAL */
enum { BDY = 3, BBIAS = 4 };         /* CONV_CAUSAL_BACK; X, W, FIRST as above */
enum { MOST_TAPS = 8, TOKENS = 32 }; /* tokens of an item */

static firn_status expect_inputs(firn_context *ctx, const firn_tensor *y, const firn_tensor *bias)
{
    const firn_tensor *x = y->src[X], *w = y->src[W], *first = y->src[FIRST];
    const int64_t p = y->params.i[0];

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_TRY(firn_expect_type(ctx, w, FIRN_F32, "w"));
    FIRN_TRY(firn_expect_type(ctx, first, FIRN_I32, "first"));
    FIRN_EXPECT(ctx, x->ne[2] * x->ne[3] == 1 && p >= 0 && p <= x->ne[1],
                "x must be [channels, history + tokens] with %lld tokens of history, not %s", LL(p),
                firn_shape_text(x));
    FIRN_EXPECT(ctx,
                firn_is_contiguous(w) && w->ne[0] >= 1 && w->ne[0] <= MOST_TAPS && w->ne[1] == x->ne[0] &&
                    w->ne[2] * w->ne[3] == 1,
                "w must be [1 to %d, %lld], contiguous, not %s", MOST_TAPS, LL(x->ne[0]), firn_shape_text(w));
    FIRN_EXPECT(ctx, firn_is_contiguous(first) && first->ne[0] == x->ne[1] - p && firn_n_rows(first) <= 1,
                "first must be [%lld], not %s", LL(x->ne[1] - p), firn_shape_text(first));
    if (!bias)
        return FIRN_OK;
    FIRN_TRY(firn_expect_type(ctx, bias, FIRN_F32, "bias"));
    FIRN_EXPECT(ctx, firn_is_contiguous(bias) && bias->ne[0] == x->ne[0] && firn_n_rows(bias) == 1,
                "bias must be [%lld], not %s", LL(x->ne[0]), firn_shape_text(bias));
    return FIRN_OK;
}

/* What both directions know; strides in floats. */
typedef struct {
    const firn_call *call;
    const float *x, *bias;
    const int32_t *first;
    float *taps; /* [K][C], in the thread's scratch */
    int64_t row, n_channel, n, p, n_taps;
    bool silu;
} filter;

static filter filter_of(const firn_call *call, int bias)
{
    const firn_tensor *y = call->node, *x = y->src[X], *w = y->src[W];
    const float *values = call->src[W];
    filter f = {
        .call = call,
        .x = call->src[X],
        .bias = call->src[bias],
        .first = call->src[FIRST],
        .taps = call->work,
        .row = x->nb[1] / (int64_t)sizeof(float),
        .n_channel = x->ne[0],
        .n = x->ne[1] - y->params.i[0],
        .p = y->params.i[0],
        .n_taps = w->ne[0],
        .silu = y->params.i[1],
    };

    for (int64_t j = 0; j < f.n_taps; j++)
        for (int64_t c = 0; c < f.n_channel; c++)
            f.taps[j * f.n_channel + c] = values[j + c * f.n_taps];
    return f;
}

/* The first row of x that token t sees. */
static int64_t lowest_row(const filter *f, int64_t t)
{
    int64_t first = f->first[t];

    if (first > t) {
        firn_fault_set(f->call->fault, FIRN_FAULT_ID_RANGE, f->call->node, t, first, t + 1);
        first = t;
    }
    return firn_max_i64(firn_max_i64(f->p + first, f->p + t - f->n_taps + 1), 0);
}

/* s of token t. */
FIRN_INLINE void filtered(const filter *f, int64_t t, float *restrict s)
{
    const int64_t low = lowest_row(f, t), n = f->n_channel;

    for (int64_t c = 0; c < n; c++)
        s[c] = f->bias ? f->bias[c] : 0;
    for (int64_t i = low; i <= f->p + t; i++) {
        const float *restrict x = f->x + i * f->row, *restrict w = f->taps + (i - f->p - t + f->n_taps - 1) * n;
        for (int64_t c = 0; c < n; c++)
            s[c] += w[c] * x[c];
    }
}

/* ---- CONV_CAUSAL ---- */

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_inputs(ctx, y, y->src[BIAS]));
    return firn_shape_set(ctx, y, FIRN_F32, 2, y->src[X]->ne[0], y->src[X]->ne[1] - y->params.i[0]);
}

static int64_t items(const firn_tensor *y)
{
    return (y->ne[1] + TOKENS - 1) / TOKENS;
}

static size_t work(const firn_tensor *y)
{
    return (size_t)(y->src[W]->ne[0] * y->ne[0]) * sizeof(float);
}

FIRN_WIDE static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    const filter f = filter_of(call, BIAS);

    for (int64_t t = begin * TOKENS; t < firn_min_i64(end * TOKENS, f.n); t++) {
        float *y = (float *)call->dst + t * f.n_channel;
        filtered(&f, t, y);
        if (!f.silu)
            continue;
        FIRN_IN_PLACE
        for (int64_t c = 0; c < f.n_channel; c++)
            y[c] *= firn_sigmoidf(y[c]);
    }
}

static firn_cost cost(const firn_tensor *y)
{
    const firn_tensor *x = y->src[X];

    return (firn_cost){
        .flops = (double)firn_n_elements(y) * (2 * (double)y->src[W]->ne[0] + (y->params.i[1] ? 5 : 0)),
        .bytes_read = (double)firn_n_bytes(x),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

static firn_tensor *gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *src[] = {y->src[X], y->src[W], y->src[FIRST], firn_with_dense_rows(g, dy), y->src[BIAS]};

    return of == X ? firn_node(g, &firn_op_conv_causal_back, src, 5, &y->params) : NULL;
}

const firn_op firn_op_conv_causal = {
    .name = "CONV_CAUSAL",
    .n_src = 3,
    .n_optional = 1,
    .shape = shape,
    .gradient = gradient,
    .cost = cost,
    .items = items,
    .work = work,
    .reference = reference,
};

firn_tensor *firn_conv_causal(firn_graph *g, firn_tensor *x, firn_tensor *w, firn_tensor *first, firn_tensor *bias,
                              int64_t n_history, bool silu)
{
    if (n_history < 0 || n_history > INT32_MAX)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "CONV_CAUSAL with %lld tokens of history", LL(n_history));
    return firn_node(g, &firn_op_conv_causal, (firn_tensor *[]){x, w, first, bias}, 4,
                     &(firn_params){.i = {(int32_t)n_history, silu}});
}

/* ---- CONV_CAUSAL_BACK ---- */

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[X], *dy = y->src[BDY];

    FIRN_TRY(expect_inputs(ctx, y, y->src[BBIAS]));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_TRY(firn_expect_rows(ctx, dy, "dy"));
    FIRN_EXPECT(ctx, dy->ne[0] == x->ne[0] && dy->ne[1] == x->ne[1] - y->params.i[0] && dy->ne[2] * dy->ne[3] == 1,
                "dy of %s does not fit x of %s", firn_shape_text(dy), firn_shape_text(x));
    return firn_shape_like(ctx, y, FIRN_F32, x->ne);
}

/* Taps, and d of the tokens that an item's rows reach. */
static size_t back_work(const firn_tensor *y)
{
    return (size_t)((y->src[W]->ne[0] + TOKENS + MOST_TAPS) * y->ne[0]) * sizeof(float);
}

/* d of token t. */
FIRN_INLINE void unfiltered(const filter *f, int64_t t, const float *restrict dy, float *restrict d)
{
    const int64_t n = f->n_channel;

    if (!f->silu) {
        memcpy(d, dy, (size_t)n * sizeof *d);
        return;
    }
    filtered(f, t, d);
    for (int64_t c = 0; c < n; c++) {
        const float s = d[c], sigmoid = firn_sigmoidf(s);
        d[c] = dy[c] * sigmoid * (1 + s * (1 - sigmoid));
    }
}

FIRN_WIDE static void back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const filter f = filter_of(call, BBIAS);
    const firn_tensor *dy = call->node->src[BDY];
    const int64_t n = f.n_channel;
    float *d = f.taps + f.n_taps * n;

    for (int64_t item = begin; item < end; item++) {
        const int64_t i0 = item * TOKENS, i1 = firn_min_i64(i0 + TOKENS, f.p + f.n);
        const int64_t t0 = firn_max_i64(i0 - f.p, 0), t1 = firn_min_i64(i1 - f.p + f.n_taps - 1, f.n);
        for (int64_t t = t0; t < t1; t++)
            unfiltered(&f, t, (const float *)firn_row_at(dy, call->src[BDY], t), d + (t - t0) * n);
        memset((float *)call->dst + i0 * n, 0, (size_t)((i1 - i0) * n) * sizeof(float));
        for (int64_t t = t0; t < t1; t++)
            for (int64_t i = firn_max_i64(lowest_row(&f, t), i0); i < firn_min_i64(f.p + t + 1, i1); i++) {
                const float *restrict w = f.taps + (i - f.p - t + f.n_taps - 1) * n, *restrict dt = d + (t - t0) * n;
                float *restrict dx = (float *)call->dst + i * n;
                for (int64_t c = 0; c < n; c++)
                    dx[c] += w[c] * dt[c];
            }
    }
}

static firn_cost back_cost(const firn_tensor *y)
{
    return (firn_cost){
        .flops = (double)firn_n_elements(y->src[BDY]) * (2 * (double)y->src[W]->ne[0] + (y->params.i[1] ? 10 : 0)),
        .bytes_read = (double)firn_n_bytes(y->src[X]) + (double)firn_n_bytes(y->src[BDY]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

const firn_op firn_op_conv_causal_back = {
    .name = "CONV_CAUSAL_BACK",
    .n_src = 4,
    .n_optional = 1,
    .shape = back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = back_cost,
    .items = items,
    .work = back_work,
    .reference = back_reference,
};
