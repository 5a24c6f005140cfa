/* ATTENTION_BACK for any vector width, with attention_x86.h's panels, strips and products. Of one head:
 *
 *     S  [keys, NR]  = K [keys, hd] Q' [hd, NR]        P  = exp(S - lse)
 *     dP [keys, NR]  = V [keys, hv] dY' [hv, NR]       dS = P (dP - D)    D = y . dy
 *     dQ' [hd, NR]  += K' [hd, keys] dS
 *     dV [keys, hv] += P [keys, NR] dY [NR, hv]
 *     dK [keys, hd] += dS [keys, NR] Q [NR, hd]
 *
 * Five products, none twice: dQ sums over keys, dK and dV over rows of q, so P and dS of a
 * rectangle of scores, CK keys of a chunk of panels, are kept between two phases that the team deals out:
 *     first    P and dS of each (group, panel, block of keys)
 *     second   dK and dV of each (group, half a block of keys, columns), dQ of each (group, panel)
 * The next rectangle adds to what this one left; rectangles that no query sees into are passed over. The kept part is
 * at most KEPT rows of q times CK keys, whatever the length, and half of all. Every element has one writer, and the
 * order of its sum depends on shapes and ranges alone. */
#ifndef FIRN_CPU_ATTENTION_BACK_X86_H
#define FIRN_CPU_ATTENTION_BACK_X86_H

#include "cpu/attention_x86.h"

enum {
    CK = 5 * BK,   /* keys of a rectangle */
    HALF = BK / 2, /* keys of an item of dK or dV */
    KEPT = 8192,   /* rows of q of a rectangle, of all groups */
    COLUMNS = 128, /* of an item of dK or dV */
};

_Static_assert(HALF % STRIP == 0 && COLUMNS % NR == 0, "whole strips and vectors");

typedef struct {
    team_state t;
    const float *y, *lse, *dy;
    layout out;
    float *dq, *dk, *dv;
    int64_t panels;                        /* of a chunk */
    int64_t k_floats, v_floats, kt_floats; /* of a group's strips */
    float *k, *v, *kt;                     /* key strips of K and V, value strips of K */
    float *along;                          /* [H, n_q] D */
    /* Of a chunk, for each group: panels of Q' and dY' [width, NR], columns of Q and dY [columns / NR, rows, NR],
     * panels of dQ'. */
    float *q_panels, *dy_panels, *q_columns, *dy_columns, *dq_panels;
    float *p, *ds; /* of a rectangle: [group, panel, CK, NR] */
    int64_t p0, n; /* the chunk's first panel, how many */
    int64_t c0;    /* the rectangle's first key */
} back_state;

static back_state back_state_of(const firn_call *call, firn_team team, part_cursor *parts)
{
    const firn_tensor *node = call->node;
    back_state b = {.t = team_state_of(call, team, parts)};
    const shapes *s = &b.t.s;
    const int64_t n_keys = b.t.n_blocks * BK;

    b.out = layout_of(node->src[Q], node->src[K], node->src[V], node->src[BSINKS]);
    b.panels = firn_max_i64(1, firn_min_i64(KEPT / NR / s->n_group, blocks(b.t.n_panels, 2)));
    b.k_floats = n_keys / STRIP * key_strip(s->hd);
    b.v_floats = n_keys / STRIP * key_strip(s->hv);
    b.kt_floats = n_keys * stripped(s->hd);
    b.k = part(parts, s->n_group * b.k_floats);
    b.v = part(parts, s->n_group * b.v_floats);
    b.kt = part(parts, s->n_group * b.kt_floats);
    b.along = part(parts, s->n_head * s->n_q);
    const int64_t lanes = s->n_group * b.panels * NR;
    b.q_panels = part(parts, lanes * s->hd);
    b.dy_panels = part(parts, lanes * s->hv);
    b.q_columns = part(parts, lanes * blocks(s->hd, NR) * NR);
    b.dy_columns = part(parts, lanes * blocks(s->hv, NR) * NR);
    b.dq_panels = part(parts, lanes * stripped(s->hd));
    b.p = part(parts, lanes * CK);
    b.ds = part(parts, lanes * CK);
    return b;
}

static void back_places(back_state *b)
{
    const firn_call *call = b->t.call;
    const firn_tensor *node = call->node;
    float *out = call->dst;

    b->y = call->src[BY];
    b->lse = b->y + y_values(node->src[Q], node->src[V]);
    b->dy = call->src[BDY];
    b->dq = out + b->out.dq;
    b->dk = out + b->out.dk;
    b->dv = out + b->out.dv;
}

/* ---- once ---- */

/* In double: D is subtracted from numbers that are near to it. */
static void find_along(const back_state *b, int64_t t)
{
    const shapes *s = &b->t.s;

    for (int64_t at = t * s->n_head; at < (t + 1) * s->n_head; at++) {
        const float *y = b->y + at * s->hv, *dy = b->dy + at * s->hv;
        double sum[8] = {0};
        int64_t d = 0;
        for (; d + 8 <= s->hv; d += 8)
            for (int l = 0; l < 8; l++)
                sum[l] += (double)y[d + l] * (double)dy[d + l];
        for (; d < s->hv; d++)
            sum[d % 8] += (double)y[d] * (double)dy[d];
        b->along[at] = (float)(((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7])));
    }
}

/* The block's strips, and its rows of dK and dV cleared. */
static void pack_back(const void *state, int64_t item)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;
    const int64_t g = item / b->t.n_blocks, j0 = item % b->t.n_blocks * BK, strip = j0 / STRIP;
    const float *rows[BK];
    bool seen[BK];

    seen_keys(&b->t, j0, seen);
    block_rows(&b->t, seen, s->k + g * s->k1 + j0 * s->k2, s->k2, rows);
    pack_key_strips(rows, s->hd, b->k + g * b->k_floats + strip * key_strip(s->hd));
    pack_value_strips(rows, s->hd, b->t.n_blocks * BK, b->kt + g * b->kt_floats + j0 * strip_width(s->hd));
    block_rows(&b->t, seen, s->v + g * s->v1 + j0 * s->v2, s->v2, rows);
    pack_key_strips(rows, s->hv, b->v + g * b->v_floats + strip * key_strip(s->hv));
    for (int64_t j = j0; j < firn_min_i64(j0 + BK, s->n_kv); j++) {
        memset(b->dk + (j * s->n_group + g) * s->hd, 0, (size_t)s->hd * sizeof(float));
        memset(b->dv + (j * s->n_group + g) * s->hv, 0, (size_t)s->hv * sizeof(float));
    }
}

static void sink_back(const void *state, int64_t head)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;
    const float *sinks = b->t.call->src[BSINKS];
    double sum = 0;

    for (int64_t t = 0; t < s->n_q; t++)
        if (b->t.first[t * b->t.group] < b->t.last[t * b->t.group])
            sum -= exp((double)sinks[head] - (double)b->lse[head + t * s->n_head]) *
                   (double)b->along[head + t * s->n_head];
    ((float *)b->t.call->dst)[b->out.dsinks + head] = (float)sum;
}

/* ---- once a chunk ---- */

/* The rows of one panel as columns: out[column / NR][row][NR], those of the chunk n_rows; zeros past n and `width`. */
static void pack_columns(const float *x, const int64_t at[NR], int64_t n, int64_t width, float by, int64_t n_rows,
                         float *out)
{
    const vf factor = vf_of(by);

    for (int64_t i = 0; i < NR; i++)
        for (int64_t d = 0; d < blocks(width, NR) * NR; d += LANES) {
            const vf v = i < n ? vf_mul(vf_load_part(x + at[i] + d, width - d), factor) : vf_zero();
            vf_store(out + (d / NR * n_rows + i) * NR + d % NR, v);
        }
}

static void pack_chunk(const void *state, int64_t item)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;
    const int64_t g = item / b->n, panel = item % b->n, n_rows = b->panels * NR;
    const int64_t place = g * b->panels + panel, q_width = blocks(s->hd, NR) * NR, v_width = blocks(s->hv, NR) * NR;
    const panel_range r = panel_at(&b->t, b->p0 + panel);
    const float none[NR] = {0};
    int64_t at[NR];

    lane_offsets(&b->t, g, &r, s->q1, s->q2, at);
    pack_panel(s->q, at, r.n, s->hd, s->cap > 0 ? s->scale / s->cap : s->scale, b->q_panels + place * NR * s->hd);
    pack_columns(s->q, at, r.n, s->hd, s->scale, n_rows, b->q_columns + (g * q_width * b->panels + panel * NR) * NR);
    lane_offsets(&b->t, g, &r, s->hv, s->n_head * s->hv, at);
    pack_panel(b->dy, at, r.n, s->hv, 1, b->dy_panels + place * NR * s->hv);
    pack_columns(b->dy, at, r.n, s->hv, 1, n_rows, b->dy_columns + (g * v_width * b->panels + panel * NR) * NR);
    if (r.low >= r.high) {
        lane_offsets(&b->t, g, &r, s->hd, s->n_head * s->hd, at);
        unpack_panel(b->dq_panels + place * NR * stripped(s->hd), r.n, s->hd, none, b->dq, at);
    }
}

/* ---- first phase ---- */

static void probabilities(const void *state, int64_t item)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;
    const int64_t n_blocks = firn_min_i64(CK / BK, b->t.n_blocks - b->c0 / BK);
    const int64_t g = item / n_blocks / b->n, panel = item / n_blocks % b->n;
    const int64_t j0 = b->c0 + item % n_blocks * BK, place = g * b->panels + panel;
    const panel_range r = panel_at(&b->t, b->p0 + panel);
    const int64_t from = firn_max_i64(r.low, j0) / STRIP * STRIP, to = firn_min_i64(r.high, j0 + BK);
    const float *q = b->q_panels + place * NR * s->hd, *dy = b->dy_panels + place * NR * s->hv;
    const float *k = b->k + g * b->k_floats, *v = b->v + g * b->v_floats;
    float *p = b->p + (place * CK - b->c0) * NR, *ds = b->ds + (place * CK - b->c0) * NR;
    float lse[NR] = {0}, along[NR] = {0};
    int64_t at[NR];

    if (from >= to)
        return;
    lane_offsets(&b->t, g, &r, 1, s->n_head, at);
    for (int64_t l = 0; l < r.n; l++) {
        lse[l] = b->lse[at[l]];
        along[l] = b->along[at[l]];
    }
    for (int64_t j = from; j < to; j += STRIP)
        strip_product(STRIP, s->hd, k + j / STRIP * key_strip(s->hd), q, p + j * NR, false);
    for (int64_t j = from; j < to; j += STRIP)
        strip_product(STRIP, s->hv, v + j / STRIP * key_strip(s->hv), dy, ds + j * NR, false);
    for (int64_t j = from; j < blocks(to, STRIP) * STRIP; j++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *p_at = p + j * NR + h * LANES, *ds_at = ds + j * NR + h * LANES;
            vf x = vf_load(p_at), slope = vf_load(ds_at) - vf_load(along + h * LANES);
            if (s->cap > 0) {
                const vf u = vf_tanh(x);
                x = vf_of(s->cap) * u;
                slope = slope * (vf_of(1.0f) - u * u);
            }
            x = vf_exp(x - vf_load(lse + h * LANES));
            slope = x * slope;
            if (!all_see(&r, j)) {
                const vi seen = sees(&r, j, h);
                x = vf_select(seen, x, vf_zero());
                slope = vf_select(seen, slope, vf_zero());
            }
            vf_store(p_at, x);
            vf_store(ds_at, slope);
        }
}

/* ---- second phase ---- */

/* c[i][0, n) += sum over panels and lanes of a[panel][i][lane] b[panel][lane][..], i < STRIP: a [CK, NR] a panel. */
static void rows_product(int64_t n_panels, const float *a, const float *b, float *c, int64_t stride, int rows,
                         int64_t n)
{
    vf sum[STRIP][2];

    clear_sums(STRIP, sum);
    for (int64_t panel = 0; panel < n_panels; panel++)
        multiply(STRIP, NR, 1, NR, a + panel * CK * NR, b + panel * NR * NR, a + (panel + 1) * CK * NR, sum);
#pragma GCC unroll 16
    for (int i = 0; i < STRIP; i++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            if (i < rows) { /* not in the loop's condition: sums live in registers where the loop is unrolled */
                float *at = c + i * stride + h * LANES;
                vf_store_part(at, n - h * LANES, vf_load_part(at, n - h * LANES) + sum[i][h]);
            }
}

/* One strip of keys against columns of all rows that see any of it: runs of panels at once. */
static void strip_rows(const back_state *b, int64_t j, const float *a, const float *columns, float *c, int64_t stride,
                       int64_t n)
{
    const int rows = (int)firn_min_i64(STRIP, b->t.s.n_kv - j);
    const int32_t *low = b->t.low + b->p0, *high = b->t.high + b->p0;

    for (int64_t panel = 0, end; panel < b->n; panel = end) {
        for (end = panel; end < b->n && low[end] < j + STRIP && high[end] > j; end++)
            ;
        if (end > panel)
            rows_product(end - panel, a + panel * CK * NR, columns + panel * NR * NR, c, stride, rows, n);
        else
            end++;
    }
}

/* Columns [begin, begin + COLUMNS) of keys [j0, j0 + HALF) of dV (P and dY) or dK (dS and Q). */
static void keys_back(const back_state *b, int64_t g, int64_t j0, int64_t begin, bool values)
{
    const shapes *s = &b->t.s;
    const int64_t width = values ? s->hv : s->hd, stride = s->n_group * width, wide = blocks(width, NR) * NR;
    const int64_t end = firn_min_i64(begin + COLUMNS, width), last = firn_min_i64(j0 + HALF, s->n_kv);
    const float *scores = values ? b->p : b->ds, *sources = values ? b->dy_columns : b->q_columns;
    float *out = (values ? b->dv : b->dk) + g * width;

    for (int64_t column = begin; column < end; column += NR)
        for (int64_t j = j0; j < last; j += STRIP)
            strip_rows(b, j, scores + (g * b->panels * CK + j - b->c0) * NR,
                       sources + (g * wide + column) * b->panels * NR, out + j * stride + column, stride, end - column);
}

static void queries_back(const back_state *b, int64_t g, int64_t panel)
{
    const shapes *s = &b->t.s;
    const panel_range r = panel_at(&b->t, b->p0 + panel);
    const int64_t place = g * b->panels + panel, w = strip_width(s->hd);
    const int64_t from = firn_max_i64(r.low, b->c0), to = firn_min_i64(r.high, b->c0 + CK);
    const float *ds = b->ds + (place * CK - b->c0) * NR, *kt = b->kt + g * b->kt_floats;
    float *dq = b->dq_panels + place * NR * stripped(s->hd), factors[NR];
    int64_t at[NR];

    for (int64_t j = from, next; j < to; j = next) {
        next = firn_min_i64((j / BK + 1) * BK, to);
        for (int64_t d = 0; d < s->hd; d += w)
            strip_product(w, next - j, kt + d * b->t.n_blocks * BK + j * w, ds + j * NR, dq + d * NR, j > r.low);
    }
    if (from >= to || to < r.high)
        return;
    for (int l = 0; l < NR; l++)
        factors[l] = r.first[l] < r.last[l] ? s->scale : 0;
    lane_offsets(&b->t, g, &r, s->hd, s->n_head * s->hd, at);
    unpack_panel(dq, r.n, s->hd, factors, b->dq, at);
}

/* The longest first: dV and dK, then dQ. */
static void gradients(const void *state, int64_t item)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;
    const int64_t halves = firn_min_i64(CK / HALF, blocks(s->n_kv - b->c0, HALF));
    const int64_t v_parts = blocks(s->hv, COLUMNS), parts = v_parts + blocks(s->hd, COLUMNS);
    const int64_t n_keys = s->n_group * halves * parts;

    if (item >= n_keys) {
        const int64_t at = item - n_keys;
        queries_back(b, at / b->n, at % b->n);
        return;
    }
    const int64_t column = item % parts, at = item / parts;
    keys_back(b, at / halves, b->c0 + at % halves * HALF, (column < v_parts ? column : column - v_parts) * COLUMNS,
              column < v_parts);
}

static int64_t gradient_items(const back_state *b)
{
    const shapes *s = &b->t.s;
    const int64_t halves = firn_min_i64(CK / HALF, blocks(s->n_kv - b->c0, HALF));

    return s->n_group * halves * (blocks(s->hv, COLUMNS) + blocks(s->hd, COLUMNS)) + s->n_group * b->n;
}

static bool chunk_sees(const back_state *b)
{
    for (int64_t panel = b->p0; panel < b->p0 + b->n; panel++)
        if (b->t.low[panel] < b->c0 + CK && b->t.high[panel] > b->c0)
            return true;
    return false;
}

/* Key or query `item` of all groups or heads, where it is not finite. */
static void mend(const void *state, int64_t item)
{
    const back_state *b = state;
    const shapes *s = &b->t.s;

    for (int64_t g = 0; g < s->n_group && item < s->n_kv; g++)
        firn_attention_mend_key(b->t.call, s, g, item);
    for (int64_t h = 0; h < s->n_head && item >= s->n_kv; h++)
        firn_attention_mend_query(b->t.call, s, h, item - s->n_kv);
}

static void attention_back(const firn_call *call, firn_team team)
{
    part_cursor cursor = {.base = (uintptr_t)call->work};
    back_state b = back_state_of(call, team, &cursor);
    const shapes *s = &b.t.s;

    back_places(&b);
    team_begin(&b.t);
    for (int64_t t = team.ith; t < s->n_q; t += team.nth)
        find_along(&b, t);
    firn_team_barrier(team);
    deal(&b.t, s->n_group * b.t.n_blocks, pack_back, &b);
    if (call->src[BSINKS])
        deal(&b.t, s->n_head, sink_back, &b);
    for (b.p0 = 0; b.p0 < b.t.n_panels; b.p0 += b.n) {
        b.n = firn_min_i64(b.panels, b.t.n_panels - b.p0);
        deal(&b.t, s->n_group * b.n, pack_chunk, &b);
        for (b.c0 = 0; b.c0 < s->n_kv; b.c0 += CK) {
            if (!chunk_sees(&b))
                continue;
            deal(&b.t, s->n_group * b.n * firn_min_i64(CK / BK, b.t.n_blocks - b.c0 / BK), probabilities, &b);
            deal(&b.t, gradient_items(&b), gradients, &b);
        }
    }
    deal(&b.t, s->n_kv + s->n_q, mend, &b);
}

static size_t back_work(const firn_tensor *node, int n_threads)
{
    const firn_call call = {.node = node};
    part_cursor parts = {0};

    back_state_of(&call, (firn_team){.nth = n_threads}, &parts);
    return parts.used;
}

const firn_team_kernels FIRN_SET(attention) = {
    .work = forward_work, .forward = attention_forward, .back_work = back_work, .back = attention_back};

#endif
