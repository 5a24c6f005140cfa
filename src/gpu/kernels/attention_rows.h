/* Rows of ATTENTION and ATTENTION_BACK, a simdgroup each (attention.metal), and what a tile does about its rows that
 * are not finite (attention_tiled.metal): 0 times NaN is NaN, and a tile multiplies by zero what a row does not see, so
 * such a row is computed anew from what it sees alone.
 *
 * A simdgroup takes 32 keys (queries) at a time: each lane computes one score; then each lane owns columns lane,
 * lane + 32, ... of what is summed and the lanes' weights go round. */
#ifndef FIRN_GPU_ATTENTION_ROWS_H
#define FIRN_GPU_ATTENTION_ROWS_H

#include "gpu/kernels/attention.h"
#include "gpu/kernels/pair.h"

enum { SIMD = 32, MAX_OWN = 20 }; /* columns of a lane: heads of up to 640 values (gpu/plan_attention.c) */

static inline float dot_of(device const float *p, device const float *q, int n)
{
    float sum = 0;

    for (int i = 0; i < n; i++)
        sum += p[i] * q[i];
    return sum;
}

static inline float score_of(constant firn_gpu_attention_args &a, device const float *q, device const float *k)
{
    return score_from(a, dot_of(q, k, a.hd));
}

/* Whether something in a row of n values is not finite: the same answer in all lanes. */
static inline bool is_wild(device const float *row, int n, ushort lane)
{
    bool wild = false;

    for (int i = lane; i < n; i += SIMD)
        wild = wild || !isfinite(row[i]);
    return simd_any(wild);
}

/* Query and head number n: y, then lse. */
static inline void attention_row(constant firn_gpu_attention_args &a, device float *y, device const uchar *q,
                                 device const uchar *k, device const uchar *v, device const uchar *range,
                                 device const float *sinks, int n, ushort lane)
{
    const int h = n % a.n_head, t = n / a.n_head, g = h / (a.n_head / a.n_group);
    const firn_range r = range_of(a, range, t);
    device const float *query = row_in(q, a.q1, a.q2, h, t);
    float top = a.has_sinks ? sinks[h] : -INFINITY, below = a.has_sinks ? 1.0f : 0.0f, sum[MAX_OWN];
    for (int i = 0; i < MAX_OWN; i++)
        sum[i] = 0;
    for (int j0 = r.first; j0 < r.last; j0 += SIMD) {
        const bool mine = j0 + lane < r.last;
        const float s = mine ? score_of(a, query, row_in(k, a.k1, a.k2, g, j0 + lane)) : -INFINITY;
        const float next = max(top, simd_max(s));
        if (next == -INFINITY)
            continue;
        const float p = mine ? firn_expf(s - next) : 0.0f, shrink = firn_expf(top - next);
        below = below * shrink + simd_sum(p);
        top = next;
        for (int i = 0; i < MAX_OWN; i++)
            sum[i] *= shrink;
        for (int j = 0; j < min((int)SIMD, r.last - j0); j++) {
            const float weight = simd_shuffle(p, (ushort)j);
            device const float *value = row_in(v, a.v1, a.v2, g, j0 + j);
            for (int i = 0; i < MAX_OWN && lane + SIMD * i < a.hv; i++)
                sum[i] += weight * value[lane + SIMD * i];
        }
    }
    const bool any = r.first < r.last;
    const float inverse = any ? 1 / below : 0.0f;
    for (int i = 0; i < MAX_OWN && lane + SIMD * i < a.hv; i++)
        y[(long)n * a.hv + lane + SIMD * i] = sum[i] * inverse;
    if (lane == 0)
        y[(long)a.n_head * a.n_q * a.hv + n] = any ? top + float_of(log_of(pair_of(below))) : 0.0f;
}

/* p and ds of a query and a key, from the forward's lse. */
static inline firn_slope slope_at(constant firn_gpu_attention_args &a, device const float *query,
                                  device const float *key, device const float *dy, device const float *value, float lse,
                                  float along)
{
    return slope_from(a, score_of(a, query, key), dot_of(dy, value, a.hv), lse, along);
}

/* dq of query and head number n. */
static inline void attention_back_q_row(constant firn_gpu_attention_args &a, device float *out, device const uchar *q,
                                        device const uchar *k, device const uchar *v, device const uchar *range,
                                        device const float *y, device const float *dy, device const float *along, int n,
                                        ushort lane)
{
    const int h = n % a.n_head, t = n / a.n_head, g = h / (a.n_head / a.n_group);
    const firn_range r = range_of(a, range, t);
    device const float *query = row_in(q, a.q1, a.q2, h, t);
    const float lse = y[(long)a.n_head * a.n_q * a.hv + n];
    float sum[MAX_OWN];
    for (int i = 0; i < MAX_OWN; i++)
        sum[i] = 0;
    for (int j0 = r.first; j0 < r.last; j0 += SIMD) {
        firn_slope slope;
        slope.ds = 0;
        if (j0 + lane < r.last)
            slope = slope_at(a, query, row_in(k, a.k1, a.k2, g, j0 + lane), dy + (long)n * a.hv,
                             row_in(v, a.v1, a.v2, g, j0 + lane), lse, along[n]);
        for (int j = 0; j < min((int)SIMD, r.last - j0); j++) {
            const float ds = simd_shuffle(slope.ds, (ushort)j);
            device const float *key = row_in(k, a.k1, a.k2, g, j0 + j);
            for (int i = 0; i < MAX_OWN && lane + SIMD * i < a.hd; i++)
                sum[i] += ds * key[lane + SIMD * i];
        }
    }
    for (int i = 0; i < MAX_OWN && lane + SIMD * i < a.hd; i++)
        out[(long)n * a.hd + lane + SIMD * i] = sum[i];
}

/* dk and dv of key and group number n. */
static inline void attention_back_kv_row(constant firn_gpu_attention_args &a, device float *out, device const uchar *q,
                                         device const uchar *k, device const uchar *v, device const uchar *range,
                                         device const float *y, device const float *dy, device const float *along,
                                         int n, ushort lane)
{
    const int g = n % a.n_group, j = n / a.n_group, heads = a.n_head / a.n_group;
    device const float *key = row_in(k, a.k1, a.k2, g, j), *value = row_in(v, a.v1, a.v2, g, j);
    device const float *lse = y + (long)a.n_head * a.n_q * a.hv;
    float dk[MAX_OWN], dv[MAX_OWN];
    for (int i = 0; i < MAX_OWN; i++)
        dk[i] = dv[i] = 0;
    for (int t0 = 0; t0 < a.n_q; t0 += SIMD) {
        bool seen = t0 + lane < a.n_q;
        if (seen) {
            const firn_range r = range_of(a, range, t0 + lane);
            seen = r.first <= j && j < r.last;
        }
        if (!simd_any(seen))
            continue;
        for (int h = g * heads; h < (g + 1) * heads; h++) {
            firn_slope slope;
            slope.p = slope.ds = 0;
            if (seen) {
                const long at = (long)(t0 + lane) * a.n_head + h;
                slope =
                    slope_at(a, row_in(q, a.q1, a.q2, h, t0 + lane), key, dy + at * a.hv, value, lse[at], along[at]);
            }
            for (int i = 0; i < min((int)SIMD, a.n_q - t0); i++) {
                const float p = simd_shuffle(slope.p, (ushort)i), ds = simd_shuffle(slope.ds, (ushort)i);
                if (p == 0) /* ds as well */
                    continue;
                device const float *query = row_in(q, a.q1, a.q2, h, t0 + i);
                device const float *d = dy + ((long)(t0 + i) * a.n_head + h) * a.hv;
                for (int c = 0; c < MAX_OWN && lane + SIMD * c < a.hd; c++)
                    dk[c] += ds * query[lane + SIMD * c];
                for (int c = 0; c < MAX_OWN && lane + SIMD * c < a.hv; c++)
                    dv[c] += p * d[lane + SIMD * c];
            }
        }
    }
    device float *to_k = out + (long)a.n_head * a.n_q * a.hd, *to_v = to_k + (long)a.n_group * a.n_kv * a.hd;
    for (int c = 0; c < MAX_OWN && lane + SIMD * c < a.hd; c++)
        to_k[(long)n * a.hd + lane + SIMD * c] = dk[c];
    for (int c = 0; c < MAX_OWN && lane + SIMD * c < a.hv; c++)
        to_v[(long)n * a.hv + lane + SIMD * c] = dv[c];
}

#endif
