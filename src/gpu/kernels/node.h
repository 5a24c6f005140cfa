/* Elements of a node's tensors: where number i lies, and parameters as what they are. */
#ifndef FIRN_GPU_NODE_H
#define FIRN_GPU_NODE_H

#include "gpu/kernels/args.h"

/* First parameters of a kernel: the arguments, and the result. */
#define FIRN_NODE constant firn_gpu_node_args &a [[buffer(0)]], device uchar *y [[buffer(1)]]

/* Last parameters of a kernel whose simdgroups each have work of their own. */
#define FIRN_SIMDS                                                                                                     \
    uint group [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]],                            \
        ushort simd [[simdgroup_index_in_threadgroup]], ushort n_simd [[simdgroups_per_threadgroup]]

typedef struct {
    int i[4];
} firn_element;

/* Element n in order, or row n (dimension 0 left out). */
static inline firn_element element_of(constant firn_gpu_view &v, uint n)
{
    firn_element at;

    for (int d = 0; d < 3; d++) {
        const uint ne = (uint)v.ne[d];
        at.i[d] = (int)(n % ne);
        n /= ne;
    }
    at.i[3] = (int)n;
    return at;
}

static inline firn_element row_of(constant firn_gpu_view &v, uint n)
{
    firn_element at;

    at.i[0] = 0;
    at.i[1] = (int)(n % (uint)v.ne[1]);
    n /= (uint)v.ne[1];
    at.i[2] = (int)(n % (uint)v.ne[2]);
    at.i[3] = (int)(n / (uint)v.ne[2]);
    return at;
}

static inline long offset_of(constant firn_gpu_view &v, firn_element at)
{
    return at.i[0] * v.nb[0] + at.i[1] * v.nb[1] + at.i[2] * v.nb[2] + at.i[3] * v.nb[3];
}

/* Of a tensor that is repeated. */
static inline long offset_repeated(constant firn_gpu_view &v, firn_element at)
{
    return at.i[0] % v.ne[0] * v.nb[0] + at.i[1] % v.ne[1] * v.nb[1] + at.i[2] % v.ne[2] * v.nb[2] +
           at.i[3] % v.ne[3] * v.nb[3];
}

static inline float float_at(device const uchar *p, long offset)
{
    return *(device const float *)(p + offset);
}

static inline void put_float(device uchar *p, long offset, float value)
{
    *(device float *)(p + offset) = value;
}

static inline int int_at(device const uchar *p, long offset)
{
    return *(device const int *)(p + offset);
}

static inline float param_float(constant firn_gpu_node_args &a, int word)
{
    return as_type<float>(a.p[word]);
}

static inline long param_long(constant firn_gpu_node_args &a, int word)
{
    return (long)((ulong)(uint)a.p[word] | (ulong)(uint)a.p[word + 1] << 32);
}

#endif
