/* Kernels with one fault each, and some without: what test_device.m plants. All run with 64 threads, p has 64 floats and
 * sh is threadgroup memory of 64 floats. */
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

constant int FC_value [[function_constant(3)]];

/* ---- right ---- */

kernel void reversed(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                     ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    p[t] = sh[63 - t];
}

kernel void simd_functions(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]],
                           ushort lane [[thread_index_in_simdgroup]])
{
    const float x = lane;
    float ok = simd_sum(x) == 496 && simd_max(x) == 31 && simd_min(x) == 0;
    ok = ok && simd_shuffle_xor(x, 1) == (lane ^ 1) && simd_broadcast(x, 7) == 7;
    ok = ok && simd_shuffle_down(x, 2) == (lane < 30 ? lane + 2 : lane) && simd_prefix_exclusive_sum(1.0f) == x;
    ok = ok && simd_any(lane == 3) && !simd_all(lane == 3);
    p[t] = ok;
}

/* p = a b' with a[i][j] = i + 8 j, b[i][j] = i - j: by simdgroup 0; 64 values. */
kernel void matrices(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                     ushort t [[thread_index_in_threadgroup]], ushort simd [[simdgroup_index_in_threadgroup]])
{
    threadgroup float b[64];
    sh[t] = t / 8 + 8 * (t % 8);
    b[t] = t / 8 - (float)(t % 8);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simd == 0) {
        simdgroup_float8x8 ma, mb, sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        simdgroup_load(ma, sh, 8);
        simdgroup_load(mb, b, 8, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(sum, ma, mb, sum);
        simdgroup_store(sum, p, 8);
    }
}

kernel void constant_value(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    p[t] = FC_value;
}

kernel void swizzles(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    float4 v = float4(1, 2, 3, 4);
    v.xy = v.wz;
    p[t] = v.x == 4 && v.y == 3 && dot(v.xyz, float3(1, 0, 1)) == 7 && as_type<uint>(1.0f) == 0x3f800000;
}

/* 0 / 0: not seen by a kernel that is compiled with fast math, which is Metal's default. */
kernel void sees_nan(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    p[t] = isnan(p[t] / p[t]);
}

/* 1: products and sums contract; 2: denormals are zeros; 4: log is not the nearest. */
kernel void arithmetic(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    const float one = 1.0f + (t >> 6), x = one + 0.000244140625f;
    p[t] = (x * x - 1.00048828125f != 0) + 2 * (one * 1e-38f * 0.01f == 0) + 4 * (log(3 * one) != 1.09861229f);
}

#ifdef __HAVE_BFLOAT__
kernel void with_bfloat(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    p[t] = (float)(bfloat)(1.00390625f + t);
}
#endif

/* ---- found by the scheduler ---- */

kernel void barrier_in_a_branch(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    if (t < 10)
        threadgroup_barrier(mem_flags::mem_none);
    p[t] = t;
}

kernel void two_barriers(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    if (t < 32)
        threadgroup_barrier(mem_flags::mem_none);
    else
        threadgroup_barrier(mem_flags::mem_none);
    p[t] = t;
}

kernel void early_return(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    if (t > 40)
        return;
    threadgroup_barrier(mem_flags::mem_none);
    p[t] = t;
}

kernel void sum_in_a_branch(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    float v = t;
    if (t & 1)
        v = simd_sum(v);
    else
        threadgroup_barrier(mem_flags::mem_none);
    p[t] = v;
}

kernel void dead_lane(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    if (t < 5)
        return;
    p[t] = simd_shuffle(1.0f, 3);
}

kernel void partial_matrix(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    if (t == 3)
        return;
    simdgroup_multiply_accumulate(m, m, m, m);
    p[t] = 0;
}

kernel void too_much_shared(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    threadgroup float a[8000];
    threadgroup float b[8000];
    a[t] = b[t] = t;
    p[t] = a[t];
}

/* ---- found by the order of threads: the result is wrong in some order ---- */

kernel void no_barrier(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                       ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    p[t] = sh[63 - t];
}

/* ---- found by the address and undefined sanitizers ---- */

kernel void past_device_memory(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    p[t + 1] = t;
}

kernel void past_shared_memory(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                               ushort t [[thread_index_in_threadgroup]])
{
    sh[t + 1] = t;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    p[t] = sh[t];
}

kernel void past_an_array(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    float a[4] = {1, 2, 3, 4};
    p[t] = a[t / 8];
}

kernel void misaligned(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    if (t == 0)
        p[0] = (*(device float4 *)(p + 1)).x;
}

/* ---- found by the thread sanitizer, whatever the order ---- */

kernel void barrier_of_nothing(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                               ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    threadgroup_barrier(mem_flags::mem_none);
    p[t] = sh[63 - t];
}

kernel void no_simdgroup_barrier(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                                 ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    p[t] = sh[t ^ 1];
}

kernel void simdgroup_barrier_of_nothing(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                                         ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    simdgroup_barrier(mem_flags::mem_none);
    p[t] = sh[t ^ 1];
}

kernel void simdgroup_barrier_right(device float *p [[buffer(0)]], threadgroup float *sh [[threadgroup(0)]],
                                    ushort t [[thread_index_in_threadgroup]])
{
    sh[t] = t;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    p[t] = sh[t ^ 1] == (t ^ 1);
}

kernel void race_between_threadgroups(device float *p [[buffer(0)]], ushort t [[thread_index_in_threadgroup]])
{
    p[t] += 1;
}

struct four_bytes {
    int value;
};
kernel void takes_a_struct(constant four_bytes &a [[buffer(0)]])
{
    (void)a;
}
