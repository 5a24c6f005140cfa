/* What both forms of attention share (attention.metal, attention_tiled.metal): where rows lie, the keys of a query, and
 * a score's value and slope. Formulas: src/op/attention.c. */
#ifndef FIRN_GPU_ATTENTION_H
#define FIRN_GPU_ATTENTION_H

#include "gpu/kernels/node.h"
#include "op/elementary.h"

#define FIRN_BACK                                                                                                      \
    constant firn_gpu_attention_args &a [[buffer(0)]], device float *out [[buffer(1)]],                                \
        device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]], device const uchar *v [[buffer(4)]], \
        device const uchar *range [[buffer(5)]], device const float *y [[buffer(6)]],                                  \
        device const float *dy [[buffer(7)]], device const float *along [[buffer(8)]]

static inline device const float *row_in(device const uchar *p, int64_t nb1, int64_t nb2, int head, int t)
{
    return (device const float *)(p + head * nb1 + t * nb2);
}

typedef struct {
    int first, last;
} firn_range;

/* Keys of query t, inside [0, n_kv]. */
static inline firn_range range_of(constant firn_gpu_attention_args &a, device const uchar *range, int t)
{
    firn_range r;

    r.first = max(int_at(range, t * a.range_token), 0);
    r.last = min(int_at(range, t * a.range_token + a.range_value), a.n_kv);
    return r;
}

static inline float score_from(constant firn_gpu_attention_args &a, float dot)
{
    return a.cap > 0 ? a.cap * firn_tanhf(dot * (a.scale / a.cap)) : dot * a.scale;
}

typedef struct {
    float p, ds;
} firn_slope;

/* From a score, dy . v, the forward's lse and D. */
static inline firn_slope slope_from(constant firn_gpu_attention_args &a, float s, float dp, float lse, float along)
{
    const float u = a.cap > 0 ? s / a.cap : 0.0f;
    firn_slope r;

    r.p = firn_expf(s - lse);
    r.ds = r.p > 0 ? r.p * (dp - along) * a.scale * (1 - u * u) : r.p;
    return r;
}

#endif
