/* ATTENTION and ATTENTION_BACK on simdgroup matrices, for whole blocks of 8 queries (of 8 keys in the gradient of k and
 * v); what is left over goes to attention.metal, and so do heads that are not a multiple of 8 wide or too wide.
 *
 * A threadgroup stages STEP keys and values as float; each of its simdgroups has 8 queries of one head and keeps their
 * 8 rows of the result in registers, as 8x8 matrices. The softmax runs along: a row's maximum grows, and what was
 * summed shrinks by a diagonal matrix. In the gradient of k and v the parts are exchanged: 8 keys in registers, queries
 * staged. One writer per element, sums in the order of the steps. A row that comes out not finite is computed anew
 * (attention_rows.h). */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/attention_rows.h"

enum { STEP = 16, BLOCK = 8, SIMDS = 4 };

/* Threadgroup memory in floats: two staged tiles, then of each simdgroup two [BLOCK, STEP] and one [8, 8]; last,
 * bounds. */
typedef struct {
    threadgroup float *first, *second, *scores, *slopes, *diagonal;
    threadgroup int *bounds;
} firn_attention_tiles;

static inline firn_attention_tiles tiles_in(threadgroup float *shared, int hd, int hv, ushort simd)
{
    firn_attention_tiles t;
    threadgroup float *own = shared + STEP * (hd + hv);

    t.first = shared;
    t.second = shared + STEP * hd;
    t.scores = own + simd * (2 * BLOCK * STEP + 64);
    t.slopes = t.scores + BLOCK * STEP;
    t.diagonal = t.slopes + BLOCK * STEP;
    t.bounds = (threadgroup int *)(own + SIMDS * (2 * BLOCK * STEP + 64));
    return t;
}

/* n rows of `width` values; zeros up to STEP. A simdgroup has a row at a time. */
static inline void stage(device const float *rows, long stride, int n, int width, threadgroup float *tile, ushort lane,
                         ushort simd)
{
    for (int r = simd; r < STEP; r += SIMDS)
        for (int i = lane; i < width; i += 32)
            tile[r * width + i] = r < n ? rows[r * stride + i] : 0.0f;
}

/* out [BLOCK, STEP] = BLOCK rows, times the rows of a tile. */
static inline void rows_by_rows(device const float *rows, long stride, threadgroup const float *tile, int width,
                                threadgroup float *out)
{
    simdgroup_float8x8 sum[STEP / 8], r, t;

    for (int j = 0; j < STEP / 8; j++)
        sum[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int d = 0; d < width; d += 8) {
        simdgroup_load(r, rows + d, (ulong)stride);
        for (int j = 0; j < STEP / 8; j++) {
            simdgroup_load(t, tile + 8 * j * width + d, (ulong)width, ulong2(0, 0), true);
            simdgroup_multiply_accumulate(sum[j], r, t, sum[j]);
        }
    }
    for (int j = 0; j < STEP / 8; j++)
        simdgroup_store(sum[j], out + 8 * j, (ulong)STEP);
}

/* sum [BLOCK, width] += weights [BLOCK, STEP] times a tile. */
template <int N>
static inline void add_weighted(thread simdgroup_float8x8 *sum, threadgroup const float *weights,
                                threadgroup const float *tile, int width)
{
    simdgroup_float8x8 w, t;

    for (int j = 0; j < STEP / 8; j++) {
        simdgroup_load(w, weights + 8 * j, (ulong)STEP);
        for (int i = 0; i < N; i++)
            if (8 * i < width) {
                simdgroup_load(t, tile + 8 * j * width + 8 * i, (ulong)width);
                simdgroup_multiply_accumulate(sum[i], w, t, sum[i]);
            }
    }
}

/* Row lane / 4 of sum times the lane's factor. */
template <int N>
static inline void scale_rows(thread simdgroup_float8x8 *sum, float factor, threadgroup float *diagonal, int width,
                              ushort lane)
{
    const int row = lane / 4, column = lane % 4 * 2;
    simdgroup_float8x8 d;

    diagonal[row * 8 + column] = row == column ? factor : 0.0f;
    diagonal[row * 8 + column + 1] = row == column + 1 ? factor : 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(d, diagonal, 8ul);
    for (int i = 0; i < N; i++)
        if (8 * i < width)
            simdgroup_multiply(sum[i], d, sum[i]);
    simdgroup_barrier(mem_flags::mem_threadgroup);
}

template <int N> static inline void clear_rows(thread simdgroup_float8x8 *sum)
{
    for (int i = 0; i < N; i++)
        sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

template <int N>
static inline void store_rows(thread simdgroup_float8x8 *sum, device float *rows, long stride, int width)
{
    for (int i = 0; i < N; i++)
        if (8 * i < width)
            simdgroup_store(sum[i], rows + 8 * i, (ulong)stride);
}

/* The unit of a simdgroup: a block of queries and a head; those of a threadgroup share their keys' group. */
typedef struct {
    int g, h, block;
    bool is; /* false past the last */
} firn_attention_unit;

static inline firn_attention_unit unit_of(constant firn_gpu_attention_args &a, uint group, ushort simd)
{
    const int heads = a.n_head / a.n_group, tiles = (heads * a.blocks + SIMDS - 1) / SIMDS;
    const int at = (int)(a.cut + group), n = at % tiles * SIMDS + simd;
    firn_attention_unit u;

    u.g = at / tiles;
    u.h = u.g * heads + n % heads;
    u.block = n / heads;
    u.is = u.block < a.blocks;
    return u;
}

/* The lane's row's keys; low and high of the simdgroup's rows. Leaves those of the threadgroup in t.bounds. */
static inline firn_range bounds_of(constant firn_gpu_attention_args &a, firn_range mine, firn_attention_tiles t,
                                   ushort lane, ushort simd)
{
    const bool any = mine.first < mine.last;
    firn_range all;

    all.first = simd_min(any ? mine.first : a.n_kv);
    all.last = simd_max(any ? mine.last : 0);
    if (lane == 0) {
        t.bounds[2 * simd] = all.first;
        t.bounds[2 * simd + 1] = all.last;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return all;
}

static inline firn_range union_of(constant firn_gpu_attention_args &a, firn_attention_tiles t)
{
    firn_range r;

    r.first = a.n_kv;
    r.last = 0;
    for (int i = 0; i < SIMDS; i++) {
        r.first = min(r.first, t.bounds[2 * i]);
        r.last = max(r.last, t.bounds[2 * i + 1]);
    }
    r.first = r.first / STEP * STEP;
    return r;
}

static inline void stage_keys(constant firn_gpu_attention_args &a, firn_attention_tiles t, device const uchar *k,
                              device const uchar *v, int g, int j0, int last, ushort lane, ushort simd)
{
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage(row_in(k, a.k1, a.k2, g, j0), a.k2 / 4, last - j0, a.hd, t.first, lane, simd);
    stage(row_in(v, a.v1, a.v2, g, j0), a.v2 / 4, last - j0, a.hv, t.second, lane, simd);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

template <int N>
kernel void attention_tiled(constant firn_gpu_attention_args &a [[buffer(0)]], device float *y [[buffer(1)]],
                            device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]],
                            device const uchar *v [[buffer(4)]], device const uchar *range [[buffer(5)]],
                            device const float *sinks [[buffer(6)]], threadgroup float *shared [[threadgroup(0)]],
                            FIRN_SIMDS)
{
    const firn_attention_unit u = unit_of(a, group, simd);
    const firn_attention_tiles tile = tiles_in(shared, a.hd, a.hv, simd);
    const int t0 = u.block * BLOCK, row = lane / 4, column = lane % 4 * 4;
    firn_range mine;
    simdgroup_float8x8 sum[N];
    (void)n_simd;
    mine.first = mine.last = 0;
    if (u.is)
        mine = range_of(a, range, t0 + row);
    const firn_range own = bounds_of(a, mine, tile, lane, simd), all = union_of(a, tile);
    float top = a.has_sinks ? sinks[u.h] : -INFINITY, below = a.has_sinks ? 1.0f : 0.0f;
    clear_rows<N>(sum);
    for (int j0 = all.first; j0 < all.last; j0 += STEP) {
        stage_keys(a, tile, k, v, u.g, j0, all.last, lane, simd);
        if (j0 >= own.last || j0 + STEP <= own.first)
            continue;
        rows_by_rows(row_in(q, a.q1, a.q2, u.h, t0), a.q2 / 4, tile.first, a.hd, tile.scores);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        float s[4], next = top, add = 0;
        for (int c = 0; c < 4; c++) {
            const int j = j0 + column + c;
            s[c] = -INFINITY;
            if (mine.first <= j && j < mine.last)
                s[c] = score_from(a, tile.scores[row * STEP + column + c]);
            next = max(next, s[c]);
        }
        next = max(next, simd_shuffle_xor(next, (ushort)1));
        next = max(next, simd_shuffle_xor(next, (ushort)2));
        for (int c = 0; c < 4; c++) {
            const float p = s[c] == -INFINITY ? 0.0f : firn_expf(s[c] - next);
            tile.scores[row * STEP + column + c] = p;
            add += p;
        }
        add += simd_shuffle_xor(add, (ushort)1);
        add += simd_shuffle_xor(add, (ushort)2);
        const float shrink = next == top ? 1.0f : firn_expf(top - next);
        below = below * shrink + add;
        top = next;
        if (simd_any(shrink != 1))
            scale_rows<N>(sum, shrink, tile.diagonal, a.hv, lane);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        add_weighted<N>(sum, tile.scores, tile.second, a.hv);
    }
    if (!u.is)
        return;
    const bool any = mine.first < mine.last;
    const long at = (long)t0 * a.n_head + u.h;
    scale_rows<N>(sum, any ? 1 / below : 0.0f, tile.diagonal, a.hv, lane);
    store_rows<N>(sum, y + at * a.hv, (long)a.n_head * a.hv, a.hv);
    if (column == 0)
        y[(long)a.n_head * a.n_q * a.hv + at + (long)row * a.n_head] =
            any ? top + float_of(log_of(pair_of(below))) : 0.0f;
    simdgroup_barrier(mem_flags::mem_device);
    for (int i = 0; i < BLOCK; i++) {
        const long n = at + (long)i * a.n_head;
        if (is_wild(y + n * a.hv, a.hv, lane))
            attention_row(a, y, q, k, v, range, sinks, (int)n, lane);
    }
}

/* dq of a block of queries. */
template <int N> kernel void attention_back_q_tiled(FIRN_BACK, threadgroup float *shared [[threadgroup(0)]], FIRN_SIMDS)
{
    const firn_attention_unit u = unit_of(a, group, simd);
    const firn_attention_tiles tile = tiles_in(shared, a.hd, a.hv, simd);
    const int t0 = u.block * BLOCK, row = lane / 4, column = lane % 4 * 4;
    const long at = (long)t0 * a.n_head + u.h, mine_at = at + (long)row * a.n_head;
    firn_range mine;
    simdgroup_float8x8 sum[N];
    float lse = 0, d = 0;
    (void)n_simd;
    mine.first = mine.last = 0;
    if (u.is) {
        mine = range_of(a, range, t0 + row);
        lse = y[(long)a.n_head * a.n_q * a.hv + mine_at];
        d = along[mine_at];
    }
    const firn_range own = bounds_of(a, mine, tile, lane, simd), all = union_of(a, tile);
    clear_rows<N>(sum);
    for (int j0 = all.first; j0 < all.last; j0 += STEP) {
        stage_keys(a, tile, k, v, u.g, j0, all.last, lane, simd);
        if (j0 >= own.last || j0 + STEP <= own.first)
            continue;
        rows_by_rows(row_in(q, a.q1, a.q2, u.h, t0), a.q2 / 4, tile.first, a.hd, tile.scores);
        rows_by_rows(dy + at * a.hv, (long)a.n_head * a.hv, tile.second, a.hv, tile.slopes);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (int c = 0; c < 4; c++) {
            const int j = j0 + column + c, i = row * STEP + column + c;
            float ds = 0;
            if (mine.first <= j && j < mine.last)
                ds = slope_from(a, score_from(a, tile.scores[i]), tile.slopes[i], lse, d).ds;
            tile.slopes[i] = ds;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
        add_weighted<N>(sum, tile.slopes, tile.first, a.hd);
    }
    if (!u.is)
        return;
    store_rows<N>(sum, out + at * a.hd, (long)a.n_head * a.hd, a.hd);
    simdgroup_barrier(mem_flags::mem_device);
    for (int i = 0; i < BLOCK; i++) {
        const long n = at + (long)i * a.n_head;
        if (is_wild(out + n * a.hd, a.hd, lane))
            attention_back_q_row(a, out, q, k, v, range, y, dy, along, (int)n, lane);
    }
}

/* dk and dv of a block of keys of one group: SIMDS blocks to a threadgroup, queries staged. */
template <int N>
kernel void attention_back_kv_tiled(FIRN_BACK, threadgroup float *shared [[threadgroup(0)]], FIRN_SIMDS)
{
    const int tiles = (a.blocks + SIMDS - 1) / SIMDS, number = (int)(a.cut + group), g = number / tiles;
    const int first = number % tiles * SIMDS * BLOCK, j0 = first + simd * BLOCK, heads = a.n_head / a.n_group;
    const int row = lane / 4, column = lane % 4 * 4, j = j0 + row;
    const bool is = j0 / BLOCK < a.blocks;
    const firn_attention_tiles tile = tiles_in(shared, a.hd, a.hv, simd);
    device const float *lse = y + (long)a.n_head * a.n_q * a.hv;
    simdgroup_float8x8 dk[N], dv[N];
    (void)n_simd;
    clear_rows<N>(dk);
    clear_rows<N>(dv);
    for (int t0 = 0; t0 < a.n_q; t0 += STEP) {
        bool seen = false;
        if (lane < STEP && t0 + lane < a.n_q) {
            const firn_range r = range_of(a, range, t0 + lane);
            seen = r.first < first + SIMDS * BLOCK && r.last > first && r.first < r.last;
        }
        if (!simd_any(seen)) /* the same answer in all simdgroups */
            continue;
        for (int h = g * heads; h < (g + 1) * heads; h++) {
            const long at = (long)t0 * a.n_head + h;
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage(row_in(q, a.q1, a.q2, h, t0), a.q2 / 4, a.n_q - t0, a.hd, tile.first, lane, simd);
            stage(dy + at * a.hv, (long)a.n_head * a.hv, a.n_q - t0, a.hv, tile.second, lane, simd);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            if (!is)
                continue;
            rows_by_rows(row_in(k, a.k1, a.k2, g, j0), a.k2 / 4, tile.first, a.hd, tile.scores);
            rows_by_rows(row_in(v, a.v1, a.v2, g, j0), a.v2 / 4, tile.second, a.hv, tile.slopes);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (int c = 0; c < 4; c++) {
                const int t = t0 + column + c, i = row * STEP + column + c;
                firn_slope s;
                s.p = s.ds = 0;
                if (t < a.n_q) {
                    const firn_range r = range_of(a, range, t);
                    const long n = (long)t * a.n_head + h;
                    if (r.first <= j && j < r.last)
                        s = slope_from(a, score_from(a, tile.scores[i]), tile.slopes[i], lse[n], along[n]);
                }
                tile.scores[i] = s.p;
                tile.slopes[i] = s.ds;
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
            add_weighted<N>(dk, tile.slopes, tile.first, a.hd);
            add_weighted<N>(dv, tile.scores, tile.second, a.hv);
        }
    }
    if (!is)
        return;
    device float *to_k = out + (long)a.n_head * a.n_q * a.hd, *to_v = to_k + (long)a.n_group * a.n_kv * a.hd;
    const long at = (long)j0 * a.n_group + g;
    store_rows<N>(dk, to_k + at * a.hd, (long)a.n_group * a.hd, a.hd);
    store_rows<N>(dv, to_v + at * a.hv, (long)a.n_group * a.hv, a.hv);
    simdgroup_barrier(mem_flags::mem_device);
    for (int i = 0; i < BLOCK; i++) {
        const long n = at + (long)i * a.n_group;
        if (is_wild(to_k + n * a.hd, a.hd, lane) || is_wild(to_v + n * a.hv, a.hv, lane))
            attention_back_kv_row(a, out, q, k, v, range, y, dy, along, (int)n, lane);
    }
}

typedef decltype(attention_tiled<8>) attention_tiled_t;
typedef decltype(attention_back_q_tiled<8>) attention_back_q_tiled_t;
typedef decltype(attention_back_kv_tiled<8>) attention_back_kv_tiled_t;
#define FIRN_WIDTH(width, n)                                                                                           \
    template [[host_name("kernel_attention_tiled_" #width)]] kernel attention_tiled_t attention_tiled<n>;              \
    template [[host_name(                                                                                              \
        "kernel_attention_back_q_tiled_" #width)]] kernel attention_back_q_tiled_t attention_back_q_tiled<n>;          \
    template [[host_name(                                                                                              \
        "kernel_attention_back_kv_tiled_" #width)]] kernel attention_back_kv_tiled_t attention_back_kv_tiled<n>;
FIRN_WIDTH(64, 8)
FIRN_WIDTH(128, 16)
FIRN_WIDTH(192, 24)
