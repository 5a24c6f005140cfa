/* Faults: kernels of one threadgroup that look before others compute. The first fault in graph order is kept, and in a
 * node the smallest index; whoever meets a bad id later passes over it without a word.
 *
 *     kernel_check_ids       I32 outside [low, limit)
 *     kernel_check_first     a document's begin behind its token (CONV_CAUSAL, GATED_DELTA, SSM_SCAN)
 *     kernel_check_table     offsets of a gather table that lead outside the experts
 *     kernel_check_targets   a target of limit or more that counts for something (CROSS_ENTROPY)
 *     kernel_check_finite    a float result's first value that is not finite */
#include <metal_stdlib>
using namespace metal;

#include "format/gather.h"
#include "gpu/kernels/args.h"

static inline device const uchar *element_at(constant firn_gpu_view &v, device const uchar *base, long i)
{
    const long i0 = i % v.ne[0], i1 = i / v.ne[0] % v.ne[1], i2 = i / ((long)v.ne[0] * v.ne[1]) % v.ne[2];
    const long i3 = i / ((long)v.ne[0] * v.ne[1] * v.ne[2]);

    return base + i0 * v.nb[0] + i1 * v.nb[1] + i2 * v.nb[2] + i3 * v.nb[3];
}

/* Metal's min may not take longs. */
static inline long lesser(long a, long b)
{
    return a < b ? a : b;
}

/* The smallest over the threadgroup; every thread has it. */
static inline long least_of_all(long mine, threadgroup long *part, ushort lane, ushort simd, ushort n_simd)
{
    for (ushort by = 16; by > 0; by /= 2) {
        const uint low = simd_shuffle_xor((uint)mine, by), high = simd_shuffle_xor((uint)(mine >> 32), by);
        mine = lesser(mine, (long)((ulong)high << 32 | low));
    }
    if (lane == 0)
        part[simd] = mine;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (ushort i = 0; i < n_simd; i++)
        mine = lesser(mine, part[i]);
    return mine;
}

/* By one thread. */
static inline void report(constant firn_gpu_check_args &a, device firn_gpu_fault *fault, long index, long value,
                          long limit)
{
    if (fault->kind != 0 && (fault->node_index < a.node_index || (fault->node == a.node && fault->index <= index)))
        return;
    fault->kind = a.kind;
    fault->node_index = a.node_index;
    fault->node = a.node;
    fault->index = index;
    fault->value = value;
    fault->limit = limit;
}

constant long NONE = 0x7fffffffffffffff;

/* Element i, v, is reported where it is `bad`: as `shown`, with `below` for its limit. */
#define FIRN_CHECK(name, type, bad, shown, below)                                                                      \
    kernel void kernel_check_##name(                                                                                   \
        constant firn_gpu_check_args &a [[buffer(0)]], device const uchar *ids [[buffer(1)]],                          \
        device firn_gpu_fault *fault [[buffer(2)]], ushort index [[thread_index_in_threadgroup]],                      \
        ushort n_threads [[threads_per_threadgroup]], ushort lane [[thread_index_in_simdgroup]],                       \
        ushort simd [[simdgroup_index_in_threadgroup]], ushort n_simd [[simdgroups_per_threadgroup]])                  \
    {                                                                                                                  \
        threadgroup long part[32];                                                                                     \
        const long n = (long)a.ids.ne[0] * a.ids.ne[1] * a.ids.ne[2] * a.ids.ne[3];                                    \
        long first = NONE;                                                                                             \
        for (long i = index; i < n && first == NONE; i += n_threads) {                                                 \
            const type v = *(device const type *)element_at(a.ids, ids, i);                                            \
            if (bad)                                                                                                   \
                first = i;                                                                                             \
        }                                                                                                              \
        first = least_of_all(first, part, lane, simd, n_simd);                                                         \
        if (index == 0 && first != NONE) {                                                                             \
            const type v = *(device const type *)element_at(a.ids, ids, first);                                        \
            report(a, fault, first, (shown), (below));                                                                 \
        }                                                                                                              \
    }
FIRN_CHECK(ids, int, v < a.low || v >= a.limit, v, a.limit)
FIRN_CHECK(first, int, v > i, v, first + 1)
FIRN_CHECK(finite, float, !isfinite(v), 0, a.limit)

/* The first id whose expert, `low` bytes, does not lie within the weight's `limit` (format/gather.h). */
kernel void kernel_check_table(constant firn_gpu_check_args &a [[buffer(0)]], device const uchar *ids [[buffer(1)]],
                               device firn_gpu_fault *fault [[buffer(2)]], device const long *table [[buffer(3)]],
                               ushort index [[thread_index_in_threadgroup]],
                               ushort n_threads [[threads_per_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                               ushort simd [[simdgroup_index_in_threadgroup]],
                               ushort n_simd [[simdgroups_per_threadgroup]])
{
    threadgroup long part[32];
    const long n = (long)a.ids.ne[0] * a.ids.ne[1] * a.ids.ne[2] * a.ids.ne[3];
    long first = NONE;

    for (long i = index; i < n && first == NONE; i += n_threads) {
        const int e = *(device const int *)element_at(a.ids, ids, i);
        if (e >= 0 && e < a.n_experts && !firn_expert_lies_within(table[e], a.low, a.limit, a.align))
            first = i;
    }
    first = least_of_all(first, part, lane, simd, n_simd);
    if (index == 0 && first != NONE)
        report(a, fault, first, table[*(device const int *)element_at(a.ids, ids, first)], a.limit);
}

kernel void kernel_check_targets(constant firn_gpu_check_args &a [[buffer(0)]],
                                 device const uchar *targets [[buffer(1)]], device firn_gpu_fault *fault [[buffer(2)]],
                                 device const uchar *mask [[buffer(3)]], ushort index [[thread_index_in_threadgroup]],
                                 ushort n_threads [[threads_per_threadgroup]],
                                 ushort lane [[thread_index_in_simdgroup]],
                                 ushort simd [[simdgroup_index_in_threadgroup]],
                                 ushort n_simd [[simdgroups_per_threadgroup]])
{
    threadgroup long part[32];
    long first = NONE;
    for (int t = index; t < a.ids.ne[0] && first == NONE; t += n_threads) {
        const int target = *(device const int *)(targets + t * a.ids.nb[0]);
        const float weight = a.masked ? *(device const float *)(mask + t * a.mask_token) : 1.0f;
        if (target >= a.limit && target != a.low && weight != 0)
            first = t;
    }
    first = least_of_all(first, part, lane, simd, n_simd);
    if (index == 0 && first != NONE)
        report(a, fault, first, *(device const int *)(targets + first * a.ids.nb[0]), a.limit);
}
