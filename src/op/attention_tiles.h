/* The tiles of ATTENTION and ATTENTION_BACK, forward and backward over items; the contract and the formulas stand in
 * op/attention.c, whose scalar reference this is. A file that includes it may define FIRN_MADD(s, b, c), which is s b +
 * c on eight floats, to have a fused one (cpu/attention_avx2.c); everything else is the same code. */
#ifndef FIRN_OP_ATTENTION_TILES_H
#define FIRN_OP_ATTENTION_TILES_H

#include "op/mathf.h"
#include "op/util.h"

#ifndef FIRN_MADD
#define FIRN_MADD(s, b, c) ((s) * (b) + (c))
#endif

enum { Q, K, V, RANGE, SINKS };
enum { BY = 4, BDY, BSINKS };
enum { BQ = 32, BK = 64 }; /* queries and keys of a tile */

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
            sum[i][0] = FIRN_MADD(s, b0, sum[i][0]);
            sum[i][1] = FIRN_MADD(s, b1, sum[i][1]);
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

/* What both directions know of their tensors; strides in floats. */
typedef struct {
    const float *q, *k, *v;
    const firn_tensor *range;
    void *range_first;
    int64_t hd, hv, n_head, n_group, n_q, n_kv; /* n_group: G */
    int64_t q1, q2, k1, k2, v1, v2;
    float scale, cap;
} shapes;

static shapes shapes_of(const firn_call *call)
{
    const firn_tensor *y = call->node, *q = y->src[Q], *k = y->src[K], *v = y->src[V];
    const int64_t size = sizeof(float);

    return (shapes){
        .q = call->src[Q],
        .k = call->src[K],
        .v = call->src[V],
        .range = y->src[RANGE],
        .range_first = call->src[RANGE],
        .hd = q->ne[0],
        .hv = v->ne[0],
        .n_head = q->ne[1],
        .n_group = k->ne[1],
        .n_q = q->ne[2],
        .n_kv = k->ne[2],
        .q1 = q->nb[1] / size,
        .q2 = q->nb[2] / size,
        .k1 = k->nb[1] / size,
        .k2 = k->nb[2] / size,
        .v1 = v->nb[1] / size,
        .v2 = v->nb[2] / size,
        .scale = y->params.f[0],
        .cap = y->params.f[1],
    };
}

static int64_t blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Keys of query t, inside [0, n_kv]. */
static void range_at(const firn_call *call, const shapes *s, int64_t t, int64_t *first, int64_t *last)
{
    const int32_t a = *(const int32_t *)firn_at(s->range, s->range_first, 0, t, 0, 0);
    const int32_t b = *(const int32_t *)firn_at(s->range, s->range_first, 1, t, 0, 0);

    if (a < 0 || a > s->n_kv)
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, 2 * t, a, s->n_kv + 1);
    if (b < 0 || b > s->n_kv)
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, 2 * t + 1, b, s->n_kv + 1);
    *first = firn_max_i64(a, 0);
    *last = firn_min_i64(b, s->n_kv);
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

/* ---- forward ---- */

static int64_t y_values(const firn_tensor *q, const firn_tensor *v)
{
    return v->ne[0] * q->ne[1] * q->ne[2];
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

__attribute__((always_inline)) static inline void attention_forward(const firn_call *call, int64_t begin, int64_t end)
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
            }
    }
}

/* ---- backward ---- */

/* Where the four gradients begin in the flat result. */
typedef struct {
    int64_t dq, dk, dv, dsinks, end;
} layout;

static layout layout_of(const firn_tensor *q, const firn_tensor *k, const firn_tensor *v, const firn_tensor *sinks)
{
    layout l = {0};

    l.dk = firn_n_elements(q);
    l.dv = l.dk + firn_n_elements(k);
    l.dsinks = l.dv + firn_n_elements(v);
    l.end = l.dsinks + (sinks ? sinks->ne[0] : 0);
    return l;
}

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
            product(n, s->hv, b.n, st->p, 1, BK, st->dy + b.t0 * y_row + h * s->hv, y_row, dv + j0 * v_row + g * s->hv,
                    v_row);
            product(n, s->hd, b.n, st->dp, 1, BK, s->q + b.t0 * s->q2 + h * s->q1, s->q2, dk + j0 * k_row + g * s->hd,
                    k_row);
        }
    }
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

__attribute__((always_inline)) static inline void attention_backward(const firn_call *call, int64_t begin, int64_t end)
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

#endif
