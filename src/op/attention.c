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
 * flat forward result, dy [hv, H, n_q] contiguous (more may follow it):
 *
 *     p_j = exp(s_j - lse),  D = y . dy,  ds_j = p_j (dy . v_j - D)    (with soft-cap times 1 - (s_j/c)^2)
 *     dq = scale sum over j of ds_j k_j
 *     dk_j = scale sum over its heads and t of ds_j q;  dv_j = the same sum of p_j dy
 *     dsinks[h] = -sum over t of exp(sinks[h] - lse) D
 *
 * One writer per element: items are (g, block of queries) for dq, then (g, block of keys) for dk and dv, then the
 * sinks. Scores are computed in both passes, once for dq and once for dk and dv.
 *
 * A range that leaves [0, n_kv] is reported, and cut to it. params.f: scale, soft-cap (0: none). */
#include "op/attention.h"
#include "op/mathf.h"

enum { BQ = 32, BK = FIRN_ATTENTION_TILE }; /* queries and keys of a tile */

/* ---- tiles ---- */

/* Eight floats that may lie anywhere. */
typedef float v8 __attribute__((vector_size(32), aligned(4)));

enum { MR = 4, NR = 16 };

/* c[i][j] += sum over p of a[i][p] b[p][j], i < mr <= MR, j < NR. a's element (i, p) is a[i * ai + p * ap]. */
__attribute__((always_inline)) static inline void tile(int mr, int64_t n_p, const float *a, int64_t ai, int64_t ap,
                                                       const float *b, int64_t bp, float *c, int64_t ci)
{
    v8 sum[MR][2];

    for (int i = 0; i < mr; i++) {
        sum[i][0] = *(const v8 *)(c + i * ci);
        sum[i][1] = *(const v8 *)(c + i * ci + 8);
    }
    for (int64_t p = 0; p < n_p; p++) {
        const v8 b0 = *(const v8 *)(b + p * bp), b1 = *(const v8 *)(b + p * bp + 8);
        for (int i = 0; i < mr; i++) {
            const float s = a[i * ai + p * ap];
            sum[i][0] = s * b0 + sum[i][0];
            sum[i][1] = s * b1 + sum[i][1];
        }
    }
    for (int i = 0; i < mr; i++) {
        *(v8 *)(c + i * ci) = sum[i][0];
        *(v8 *)(c + i * ci + 8) = sum[i][1];
    }
}

/* C [m, n] += A [m, k] B [k, n], rows of B and C dense. */
__attribute__((always_inline)) static inline void product(int64_t m, int64_t n, int64_t k, const float *a, int64_t ai,
                                                          int64_t ap, const float *b, int64_t bp, float *c, int64_t ci)
{
    const int64_t wide = n - n % NR;

    for (int64_t j = 0; j < wide; j += NR) {
        int64_t i = 0;
        for (; i + MR <= m; i += MR)
            tile(MR, k, a + i * ai, ai, ap, b + j, bp, c + i * ci + j, ci);
        for (; i < m; i++)
            tile(1, k, a + i * ai, ai, ap, b + j, bp, c + i * ci + j, ci);
    }
    for (int64_t i = 0; i < m && wide < n; i++)
        for (int64_t p = 0; p < k; p++) {
            const float s = a[i * ai + p * ap];
            for (int64_t j = wide; j < n; j++)
                c[i * ci + j] += s * b[p * bp + j];
        }
}

/* A block of up to BQ queries: their ranges, and the keys that any of them sees. */
typedef struct {
    int64_t t0, n, low, high;
    int64_t first[BQ], last[BQ];
} query_block;

static void query_block_at(const firn_call *call, const shapes *s, int64_t block, query_block *b)
{
    b->t0 = block * BQ;
    b->n = firn_min_i64(BQ, s->n_q - b->t0);
    b->low = s->n_kv;
    b->high = 0;
    for (int64_t i = 0; i < b->n; i++) {
        range_at(call, s, b->t0 + i, &b->first[i], &b->last[i]);
        if (b->first[i] < b->last[i]) {
            b->low = firn_min_i64(b->low, b->first[i]);
            b->high = firn_max_i64(b->high, b->last[i]);
        }
    }
}

/* Rows [j0, j0 + n) of k or v as columns: out [width, BK], zero past n. */
static void transpose_rows(const float *rows, int64_t stride, int64_t n, int64_t width, float *restrict out)
{
    for (int64_t d = 0; d < width; d++)
        for (int64_t j = n; j < BK; j++)
            out[d * BK + j] = 0;
    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < width; d++)
            out[d * BK + j] = rows[j * stride + d];
}

/* Scores [b->n, BK] of one head against keys in columns kt; -infinity outside a query's range. */
__attribute__((always_inline)) static inline void scores(const shapes *s, const query_block *b, int64_t head,
                                                         const float *kt, int64_t j0, float *restrict out)
{
    memset(out, 0, (size_t)(b->n * BK) * sizeof *out);
    product(b->n, BK, s->hd, s->q + b->t0 * s->q2 + head * s->q1, s->q2, 1, kt, BK, out, BK);
    for (int64_t i = 0; i < b->n; i++) {
        float *restrict row = out + i * BK;
        const int64_t first = firn_min_i64(firn_max_i64(b->first[i] - j0, 0), BK);
        const int64_t last = firn_min_i64(firn_max_i64(b->last[i] - j0, first), BK);
        if (s->cap > 0) {
            const float inner = s->scale / s->cap;
            for (int64_t j = 0; j < BK; j++)
                row[j] = s->cap * firn_tanhf(row[j] * inner);
        } else {
            for (int64_t j = 0; j < BK; j++)
                row[j] *= s->scale;
        }
        for (int64_t j = 0; j < first; j++)
            row[j] = -INFINITY;
        for (int64_t j = last; j < BK; j++)
            row[j] = -INFINITY;
    }
}

/* ---- both directions ---- */

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

/* Takes one tile of scores into a row's running maximum, denominator and sum. */
__attribute__((always_inline)) static inline void take_row(float *restrict p, float *top, float *below,
                                                           float *restrict sum, int64_t hv)
{
    const float highest = firn_max_of(p, BK), next = highest > *top ? highest : *top;
    float lanes[FIRN_LANES] = {0};

    if (next == -INFINITY) { /* nothing seen yet */
        memset(p, 0, BK * sizeof *p);
        return;
    }
    for (int64_t j = 0; j < BK; j++)
        p[j] = firn_expf(p[j] - next);
    for (int64_t j = 0; j < BK; j += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] += p[j + l];
    float add = 0;
    for (int l = 0; l < FIRN_LANES; l++)
        add += lanes[l];
    if (next != *top) {
        const float shrink = firn_expf(*top - next);
        *below *= shrink;
        for (int64_t d = 0; d < hv; d++)
            sum[d] *= shrink;
        *top = next;
    }
    *below += add;
}

FIRN_WIDE static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    const shapes s = shapes_of(call);
    const int64_t n_blocks = blocks(s.n_q, BQ), group = s.n_head / s.n_group, rows = group * BQ;
    const float *sinks = call->src[SINKS];
    float *kt = call->work, *p = kt + s.hd * BK, *sum = p + BQ * BK, *top = sum + rows * s.hv, *below = top + rows;
    float *y = call->dst, *lse = y + s.hv * s.n_head * s.n_q;
    query_block b;

    for (int64_t item = begin; item < end; item++) {
        const int64_t g = item / n_blocks;
        query_block_at(call, &s, item % n_blocks, &b);
        for (int64_t h = 0; h < group; h++)
            memset(sum + h * BQ * s.hv, 0, (size_t)(b.n * s.hv) * sizeof *sum);
        for (int64_t r = 0; r < rows; r++) {
            top[r] = sinks ? sinks[g * group + r / BQ] : -INFINITY;
            below[r] = sinks ? 1.0f : 0.0f;
        }
        for (int64_t j0 = b.low / BK * BK; j0 < b.high; j0 += BK) {
            const int64_t n = firn_min_i64(BK, b.high - j0); /* what lies past it may not have been written yet */
            transpose_rows(s.k + g * s.k1 + j0 * s.k2, s.k2, n, s.hd, kt);
            for (int64_t h = 0; h < group; h++) {
                scores(&s, &b, g * group + h, kt, j0, p);
                for (int64_t i = 0; i < b.n; i++)
                    take_row(p + i * BK, &top[h * BQ + i], &below[h * BQ + i], sum + (h * BQ + i) * s.hv, s.hv);
                product(b.n, s.hv, n, p, BK, 1, s.v + g * s.v1 + j0 * s.v2, s.v2, sum + h * BQ * s.hv, s.hv);
            }
        }
        for (int64_t h = 0; h < group; h++)
            for (int64_t i = 0; i < b.n; i++) {
                const int64_t r = h * BQ + i, at = g * group + h + (b.t0 + i) * s.n_head;
                const bool any = b.first[i] < b.last[i];
                const float inverse = any ? 1.0f / below[r] : 0.0f;
                for (int64_t d = 0; d < s.hv; d++)
                    y[at * s.hv + d] = sum[r * s.hv + d] * inverse;
                lse[at] = any ? top[r] + logf(below[r]) : 0.0f;
                firn_attention_mend_row(call, &s, g * group + h, b.t0 + i);
            }
    }
}

/* ---- backward ---- */

static int64_t query_items(const firn_tensor *y)
{
    return y->src[K]->ne[1] * blocks(y->src[Q]->ne[2], BQ);
}

static int64_t key_items(const firn_tensor *y)
{
    return y->src[K]->ne[1] * blocks(y->src[K]->ne[2], BK);
}

typedef struct {
    shapes s;
    const float *y, *lse, *dy;
    float *kt, *vt, *p, *dp, *along;
} back_state;

/* p = exp(scores - lse) and dp = ds for one head and one tile of keys. */
__attribute__((always_inline)) static inline void tile_gradients(const back_state *st, const query_block *b,
                                                                 int64_t head, int64_t j0)
{
    const shapes *s = &st->s;
    const int64_t row = s->n_head * s->hv;

    scores(s, b, head, st->kt, j0, st->p);
    memset(st->dp, 0, (size_t)(b->n * BK) * sizeof *st->dp);
    product(b->n, BK, s->hv, st->dy + b->t0 * row + head * s->hv, row, 1, st->vt, BK, st->dp, BK);
    for (int64_t i = 0; i < b->n; i++) {
        const float lse = st->lse[head + (b->t0 + i) * s->n_head], along = st->along[i];
        float *restrict p = st->p + i * BK, *restrict dp = st->dp + i * BK;
        if (s->cap > 0) {
            for (int64_t j = 0; j < BK; j++) {
                const float e = firn_expf(p[j] - lse), u = p[j] / s->cap, slope = 1 - u * u;
                dp[j] = e * (dp[j] - along) * s->scale * (e > 0 ? slope : 0.0f);
                p[j] = e;
            }
        } else {
            for (int64_t j = 0; j < BK; j++) {
                p[j] = firn_expf(p[j] - lse);
                dp[j] = p[j] * (dp[j] - along) * s->scale;
            }
        }
    }
}

/* D = y . dy of each query of the block. */
static void find_along(const back_state *st, const query_block *b, int64_t head)
{
    const shapes *s = &st->s;

    for (int64_t i = 0; i < b->n; i++) {
        const int64_t at = (head + (b->t0 + i) * s->n_head) * s->hv;
        st->along[i] = (float)firn_dot(st->y + at, st->dy + at, s->hv);
    }
}

__attribute__((always_inline)) static inline void queries_back(const firn_call *call, const back_state *st,
                                                               int64_t item, float *dq)
{
    const shapes *s = &st->s;
    const int64_t n_blocks = blocks(s->n_q, BQ), g = item / n_blocks, group = s->n_head / s->n_group;
    const int64_t row = s->n_head * s->hd;
    query_block b;

    query_block_at(call, s, item % n_blocks, &b);
    for (int64_t i = 0; i < b.n; i++)
        memset(dq + (b.t0 + i) * row + g * group * s->hd, 0, (size_t)(group * s->hd) * sizeof *dq);
    for (int64_t j0 = b.low / BK * BK; j0 < b.high; j0 += BK) {
        const int64_t n = firn_min_i64(BK, s->n_kv - j0);
        const float *k = s->k + g * s->k1 + j0 * s->k2;
        transpose_rows(k, s->k2, n, s->hd, st->kt);
        transpose_rows(s->v + g * s->v1 + j0 * s->v2, s->v2, n, s->hv, st->vt);
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            find_along(st, &b, h);
            tile_gradients(st, &b, h, j0);
            product(b.n, s->hd, n, st->dp, BK, 1, k, s->k2, dq + b.t0 * row + h * s->hd, row);
        }
    }
    for (int64_t t = b.t0; t < b.t0 + b.n; t++)
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            firn_attention_mend_query(call, s, h, t);
}

__attribute__((always_inline)) static inline void keys_back(const firn_call *call, const back_state *st, int64_t item,
                                                            float *dk, float *dv)
{
    const shapes *s = &st->s;
    const int64_t n_blocks = blocks(s->n_kv, BK), g = item / n_blocks, j0 = item % n_blocks * BK;
    const int64_t group = s->n_head / s->n_group, n = firn_min_i64(BK, s->n_kv - j0);
    const int64_t k_row = s->n_group * s->hd, v_row = s->n_group * s->hv, y_row = s->n_head * s->hv;
    query_block b;

    for (int64_t j = j0; j < j0 + n; j++) {
        memset(dk + j * k_row + g * s->hd, 0, (size_t)s->hd * sizeof *dk);
        memset(dv + j * v_row + g * s->hv, 0, (size_t)s->hv * sizeof *dv);
    }
    transpose_rows(s->k + g * s->k1 + j0 * s->k2, s->k2, n, s->hd, st->kt);
    transpose_rows(s->v + g * s->v1 + j0 * s->v2, s->v2, n, s->hv, st->vt);
    for (int64_t block = 0; block < blocks(s->n_q, BQ); block++) {
        query_block_at(call, s, block, &b);
        if (b.low >= j0 + n || b.high <= j0)
            continue;
        for (int64_t h = g * group; h < (g + 1) * group; h++) {
            find_along(st, &b, h);
            tile_gradients(st, &b, h, j0);
            const float *dy = st->dy + b.t0 * y_row + h * s->hv, *q = s->q + b.t0 * s->q2 + h * s->q1;
            product(n, s->hv, b.n, st->p, 1, BK, dy, y_row, dv + j0 * v_row + g * s->hv, v_row);
            product(n, s->hd, b.n, st->dp, 1, BK, q, s->q2, dk + j0 * k_row + g * s->hd, k_row);
        }
    }
    for (int64_t j = j0; j < j0 + n; j++)
        firn_attention_mend_key(call, s, g, j);
}

static void sinks_back(const firn_call *call, const back_state *st, float *dsinks)
{
    const shapes *s = &st->s;
    const float *sinks = call->src[BSINKS];
    int64_t first, last;

    for (int64_t h = 0; h < s->n_head; h++) {
        double sum = 0;
        for (int64_t t = 0; t < s->n_q; t++) {
            const int64_t at = h + t * s->n_head;
            range_at(call, s, t, &first, &last);
            if (first < last)
                sum -= exp((double)sinks[h] - (double)st->lse[at]) *
                       firn_dot(st->y + at * s->hv, st->dy + at * s->hv, s->hv);
        }
        dsinks[h] = (float)sum;
    }
}

FIRN_WIDE static void back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const layout l = layout_of(y->src[Q], y->src[K], y->src[V], y->src[BSINKS]);
    const int64_t n_queries = query_items(y), n_keys = key_items(y);
    float *out = call->dst;
    back_state st = {.s = shapes_of(call), .y = call->src[BY], .dy = call->src[BDY], .kt = call->work};

    st.lse = st.y + y_values(y->src[Q], y->src[V]);
    st.vt = st.kt + st.s.hd * BK;
    st.p = st.vt + st.s.hv * BK;
    st.dp = st.p + BQ * BK;
    st.along = st.dp + BQ * BK;
    for (int64_t item = begin; item < end; item++) {
        if (item < n_queries)
            queries_back(call, &st, item, out + l.dq);
        else if (item < n_queries + n_keys)
            keys_back(call, &st, item - n_queries, out + l.dk, out + l.dv);
        else
            sinks_back(call, &st, out + l.dsinks);
    }
}

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
