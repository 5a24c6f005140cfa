/* The words of the kernels' dialect in CUDA: what src/gpu/kernels uses of MSL, and no more. cmake/embed_cuda.py puts it
 * before each kernel file, whose address spaces and attributes it has taken away.
 *
 * A simdgroup is a warp. Every lane takes part in simd_... and simdgroup_... (the software Metal device checks that
 * they do), so masks are full. Products of 8x8 matrices are exact to F32 on tensor cores: each operand in two parts of
 * TF32 (11 bits of significand each), three products, which leaves 2^-22 of each product. */
#ifndef FIRN_CUDA_MSL_CUH
#define FIRN_CUDA_MSL_CUH

#include <stdint.h>

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif

#define MSL __device__ __forceinline__

struct msl_uint3 {
    uint x, y, z;
    msl_uint3() = default;
    MSL msl_uint3(uint a, uint b, uint c) : x(a), y(b), z(c) {}
};
static MSL msl_uint3 operator+(msl_uint3 a, msl_uint3 b) { return msl_uint3(a.x + b.x, a.y + b.y, a.z + b.z); }
static MSL msl_uint3 &operator+=(msl_uint3 &a, msl_uint3 b) { return a = a + b; }

struct msl_ulong2 {
    ulong x, y;
    MSL msl_ulong2(ulong a, ulong b) : x(a), y(b) {}
};

namespace metal
{
}

/* ---- numbers ---- */

template <class D, class S> static MSL D as_type(S s)
{
    static_assert(sizeof(D) == sizeof(S), "as_type between types of different sizes");
    D d;
    memcpy(&d, &s, sizeof d);
    return d;
}

template <class T> static MSL T clamp(T x, T low, T high) { return min(max(x, low), high); }

/* bfloat: float's upper half, rounded to nearest even. */
struct bfloat {
    ushort bits;
    bfloat() = default;
    explicit MSL bfloat(float f)
    {
        const uint u = __float_as_uint(f);
        bits = (ushort)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
    MSL operator float() const { return __uint_as_float((uint)bits << 16); }
};
#define __HAVE_BFLOAT__ 1

/* ---- threads ---- */

enum class mem_flags { mem_none, mem_device, mem_threadgroup };
static MSL void threadgroup_barrier(mem_flags) { __syncthreads(); }
static MSL void simdgroup_barrier(mem_flags) { __syncwarp(); }

template <class T> static MSL T simd_shuffle(T v, ushort lane) { return __shfl_sync(0xffffffffu, v, lane); }
template <class T> static MSL T simd_shuffle_xor(T v, ushort mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
static MSL bool simd_any(bool v) { return __any_sync(0xffffffffu, v); }
template <class T> static MSL T simd_sum(T v)
{
    for (int by = 16; by > 0; by /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, by);
    return v;
}
template <class T> static MSL T simd_max(T v)
{
    for (int by = 16; by > 0; by /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}
template <class T> static MSL T simd_min(T v)
{
    for (int by = 16; by > 0; by /= 2)
        v = min(v, __shfl_xor_sync(0xffffffffu, v, by));
    return v;
}

/* ---- 8x8 matrices: lane (g, t) = (lane / 4, lane % 4) has elements (g, 2t) and (g, 2t + 1) ---- */

template <class T, int C, int R> struct simdgroup_matrix {
    static_assert(C == 8 && R == 8, "simdgroup matrices are 8x8");
    T e[2];
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R> static MSL simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v)
{
    simdgroup_matrix<T, C, R> m;
    m.e[0] = m.e[1] = v;
    return m;
}

static MSL uint msl_lane() { return threadIdx.x % 32; }

template <class T>
static MSL void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *p, ulong stride = 8,
                               msl_ulong2 origin = msl_ulong2(0, 0), bool transpose = false)
{
    const ulong g = msl_lane() / 4, t = msl_lane() % 4 * 2;

    p += origin.y * stride + origin.x;
    m.e[0] = transpose ? p[t * stride + g] : p[g * stride + t];
    m.e[1] = transpose ? p[(t + 1) * stride + g] : p[g * stride + t + 1];
}

template <class T> static MSL void simdgroup_store(const simdgroup_matrix<T, 8, 8> &m, T *p, ulong stride = 8)
{
    T *at = p + msl_lane() / 4 * stride + msl_lane() % 4 * 2;

    at[0] = m.e[0];
    at[1] = m.e[1];
}

/* The nearest TF32. What is not finite stays so, and makes products that are not finite. */
static MSL uint msl_tf32(float f)
{
    uint r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(f));
    return r;
}

/* a b, from zero: the tensor cores' own sums are cut off instead of rounded, which would grow with the number of steps.
 * The sum runs over k in the order that makes a's layout the instruction's: its k is 2t, and k + 4 is 2t + 1; rows 8 to
 * 15 of its a are zeros. */
static MSL void msl_mma(float (&d)[2], uint a0, uint a1, uint b0, uint b1)
{
    [[maybe_unused]] float unused0, unused1;
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(unused0), "=f"(unused1)
        : "r"(a0), "r"(0), "r"(a1), "r"(0), "r"(b0), "r"(b1), "f"(0.0f));
}

/* Rows 2t and 2t + 1 of column g, from the lanes that have them. */
static MSL void msl_column(const float (&e)[2], float (&column)[2])
{
    const uint g = msl_lane() / 4, t = msl_lane() % 4;

    for (uint i = 0; i < 2; i++) {
        const float even = __shfl_sync(0xffffffffu, e[0], (2 * t + i) * 4 + g / 2);
        const float odd = __shfl_sync(0xffffffffu, e[1], (2 * t + i) * 4 + g / 2);
        column[i] = g % 2 ? odd : even;
    }
}

static MSL uint msl_rest(float f, uint part)
{
    return msl_tf32(f - __uint_as_float(part));
}

static MSL void msl_multiply_add(float (&d)[2], const float (&a)[2], const float (&b)[2])
{
    float column[2];
    msl_column(b, column);
    const uint a0 = msl_tf32(a[0]), a1 = msl_tf32(a[1]), b0 = msl_tf32(column[0]), b1 = msl_tf32(column[1]);
    float large[2], left[2], right[2];

    msl_mma(left, msl_rest(a[0], a0), msl_rest(a[1], a1), b0, b1);
    msl_mma(right, a0, a1, msl_rest(column[0], b0), msl_rest(column[1], b1));
    msl_mma(large, a0, a1, b0, b1);
    for (int i = 0; i < 2; i++)
        d[i] += large[i] + (left[i] + right[i]);
}

/* d = a b + c */
static MSL void simdgroup_multiply_accumulate(simdgroup_float8x8 &d, const simdgroup_float8x8 &a,
                                              const simdgroup_float8x8 &b, const simdgroup_float8x8 &c)
{
    float sum[2] = {c.e[0], c.e[1]};

    msl_multiply_add(sum, a.e, b.e);
    d.e[0] = sum[0];
    d.e[1] = sum[1];
}

/* bfloats are TF32 numbers. */
static MSL void simdgroup_multiply_accumulate(simdgroup_float8x8 &d, const simdgroup_bfloat8x8 &a,
                                              const simdgroup_bfloat8x8 &b, const simdgroup_float8x8 &c)
{
    const float all[2] = {b.e[0], b.e[1]};
    float sum[2], column[2];

    msl_column(all, column);
    msl_mma(sum, __float_as_uint(a.e[0]), __float_as_uint(a.e[1]), __float_as_uint(column[0]),
            __float_as_uint(column[1]));
    d.e[0] = c.e[0] + sum[0];
    d.e[1] = c.e[1] + sum[1];
}

static MSL void simdgroup_multiply(simdgroup_float8x8 &d, const simdgroup_float8x8 &a, const simdgroup_float8x8 &b)
{
    const simdgroup_float8x8 zero = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

    simdgroup_multiply_accumulate(d, a, b, zero);
}

#undef MSL

#endif
