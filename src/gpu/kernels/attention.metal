/* ATTENTION and ATTENTION_BACK: formulas and contract in src/op/attention.c. The score matrix is never stored.
 *
 * A simdgroup has one query of one head (the gradients of k and v: one key of one group of heads). Every element has one
 * writer, and sums run in the order of the keys (queries), so results do not depend on the device's scheduling. No
 * threadgroup memory, no barriers. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/attention_rows.h"

kernel void kernel_attention(constant firn_gpu_attention_args &a [[buffer(0)]], device float *y [[buffer(1)]],
                             device const uchar *q [[buffer(2)]], device const uchar *k [[buffer(3)]],
                             device const uchar *v [[buffer(4)]], device const uchar *range [[buffer(5)]],
                             device const float *sinks [[buffer(6)]], FIRN_SIMDS)
{
    const int n = a.first + (int)(a.cut + group) * n_simd + simd;
    if (n < a.n_head * a.n_q)
        attention_row(a, y, q, k, v, range, sinks, n, lane);
}

/* D = y . dy of query and head number n. */
kernel void kernel_attention_along(constant firn_gpu_attention_args &a [[buffer(0)]], device float *along [[buffer(1)]],
                                   device const float *y [[buffer(2)]], device const float *dy [[buffer(3)]],
                                   FIRN_SIMDS)
{
    const int n = (int)(a.cut + group) * n_simd + simd;
    if (n >= a.n_head * a.n_q)
        return;
    firn_pair sum = pair_of(0);
    for (int i = lane; i < a.hv; i += SIMD)
        sum = sum + two_product(y[(long)n * a.hv + i], dy[(long)n * a.hv + i]);
    sum = simd_pair_sum(sum);
    if (lane == 0)
        along[n] = float_of(sum);
}

kernel void kernel_attention_back_q(FIRN_BACK, FIRN_SIMDS)
{
    const int n = a.first + (int)(a.cut + group) * n_simd + simd;
    if (n < a.n_head * a.n_q)
        attention_back_q_row(a, out, q, k, v, range, y, dy, along, n, lane);
}

kernel void kernel_attention_back_kv(FIRN_BACK, FIRN_SIMDS)
{
    const int n = a.first + (int)(a.cut + group) * n_simd + simd;
    if (n < a.n_group * a.n_kv)
        attention_back_kv_row(a, out, q, k, v, range, y, dy, along, n, lane);
}

/* dsinks of head `row`. */
kernel void kernel_attention_back_sinks(constant firn_gpu_attention_args &a [[buffer(0)]],
                                        device float *out [[buffer(1)]], device const uchar *range [[buffer(2)]],
                                        device const float *y [[buffer(3)]], device const float *along [[buffer(4)]],
                                        device const float *sinks [[buffer(5)]], FIRN_GROUP)
{
    FIRN_ME;
    const int h = (int)row;
    device const float *lse = y + (long)a.n_head * a.n_q * a.hv;
    firn_pair sum = pair_of(0);
    FIRN_EACH (t, a.n_q) {
        const firn_range r = range_of(a, range, t);
        const long at = (long)t * a.n_head + h;
        if (r.first < r.last)
            sum = sum - two_product(firn_expf(sinks[h] - lse[at]), along[at]);
    }
    sum = group_sum(sum, part, me);
    if (index == 0)
        out[(long)a.n_head * a.n_q * a.hd + (long)a.n_group * a.n_kv * (a.hd + a.hv) + h] = float_of(sum);
}
