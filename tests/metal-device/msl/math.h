/* Scalar functions; see metal_stdlib. half goes through float. */
#ifndef MSL_MATH_H
#define MSL_MATH_H

extern "C" {
#define MSL_LIBM(n) float n##f(float);
MSL_LIBM(exp) MSL_LIBM(exp2) MSL_LIBM(exp10) MSL_LIBM(log) MSL_LIBM(log2) MSL_LIBM(log10) MSL_LIBM(sqrt) MSL_LIBM(sin)
MSL_LIBM(cos) MSL_LIBM(tan) MSL_LIBM(asin) MSL_LIBM(acos) MSL_LIBM(atan) MSL_LIBM(sinh) MSL_LIBM(cosh) MSL_LIBM(tanh)
MSL_LIBM(asinh) MSL_LIBM(acosh) MSL_LIBM(atanh) MSL_LIBM(floor) MSL_LIBM(ceil) MSL_LIBM(round) MSL_LIBM(rint)
MSL_LIBM(trunc)
#undef MSL_LIBM
float powf(float, float);
float fmodf(float, float);
float atan2f(float, float);
float fmaf(float, float, float);
float ldexpf(float, int);
}

namespace metal
{
/* A function that Metal's specification lets be 4 units of the last place off. */
#ifdef MSL_GPU
inline float msl_about(float r)
{
    const uint bits = msl_bits<uint>(r), size = bits & 0x7fffffffu;
    return size < 0x00800010u || size >= 0x7f800000u ? r : msl_bits<float>(bits & 8u ? bits + 4u : bits - 4u);
}
#else
inline float msl_about(float r) { return r; }
#endif

#define MSL_1(n, e)                                                                                                    \
    inline float n(float x) { return e; }                                                                              \
    inline half n(half h)                                                                                              \
    {                                                                                                                  \
        float x = h;                                                                                                   \
        return (half)(e);                                                                                              \
    }
MSL_1(exp, msl_about(::expf(x))) MSL_1(exp2, msl_about(::exp2f(x))) MSL_1(exp10, msl_about(::exp10f(x)))
MSL_1(log, msl_about(::logf(x))) MSL_1(log2, msl_about(::log2f(x))) MSL_1(log10, msl_about(::log10f(x)))
MSL_1(sqrt, ::sqrtf(x)) MSL_1(rsqrt, 1.0f / ::sqrtf(x)) MSL_1(sin, msl_about(::sinf(x)))
MSL_1(cos, msl_about(::cosf(x))) MSL_1(tan, msl_about(::tanf(x))) MSL_1(asin, msl_about(::asinf(x)))
MSL_1(acos, msl_about(::acosf(x))) MSL_1(atan, msl_about(::atanf(x))) MSL_1(sinh, msl_about(::sinhf(x)))
MSL_1(cosh, msl_about(::coshf(x))) MSL_1(tanh, msl_about(::tanhf(x))) MSL_1(asinh, msl_about(::asinhf(x)))
MSL_1(acosh, msl_about(::acoshf(x))) MSL_1(atanh, msl_about(::atanhf(x))) MSL_1(floor, ::floorf(x))
MSL_1(ceil, ::ceilf(x)) MSL_1(round, ::roundf(x)) MSL_1(rint, ::rintf(x)) MSL_1(trunc, ::truncf(x))
MSL_1(fabs, __builtin_fabsf(x)) MSL_1(fract, x - ::floorf(x)) MSL_1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x)
MSL_1(saturate, x < 0 ? 0.0f : x > 1 ? 1.0f : x)
#undef MSL_1
#define MSL_2(n, e)                                                                                                    \
    inline float n(float x, float y) { return e; }                                                                     \
    inline half n(half a, half b)                                                                                      \
    {                                                                                                                  \
        float x = a, y = b;                                                                                            \
        return (half)(e);                                                                                              \
    }
MSL_2(pow, msl_about(::powf(x, y))) MSL_2(powr, msl_about(::powf(x, y))) MSL_2(fmod, ::fmodf(x, y))
MSL_2(atan2, msl_about(::atan2f(x, y))) MSL_2(copysign, __builtin_copysignf(x, y)) MSL_2(fmin, __builtin_fminf(x, y))
MSL_2(fmax, __builtin_fmaxf(x, y)) MSL_2(step, y < x ? 0.0f : 1.0f)
#undef MSL_2
inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return (half)::fmaf(a, b, c); }
inline float mix(float a, float b, float t) { return a + (b - a) * t; }
inline float ldexp(float x, int e) { return ::ldexpf(x, e); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

#define MSL_ORDER(T)                                                                                                   \
    inline T min(T a, T b) { return b < a ? b : a; }                                                                   \
    inline T max(T a, T b) { return a < b ? b : a; }                                                                   \
    inline T clamp(T x, T a, T b) { return min(max(x, a), b); }                                                        \
    inline T select(T a, T b, bool c) { return c ? b : a; }
/* Not for long and ulong: the specification leaves open whether they are integers here. */
MSL_ORDER(char) MSL_ORDER(uchar) MSL_ORDER(short) MSL_ORDER(ushort) MSL_ORDER(int) MSL_ORDER(uint) MSL_ORDER(half)
MSL_ORDER(float)
#ifdef MSL_HAS_BFLOAT
MSL_ORDER(bfloat)
#endif
#undef MSL_ORDER

#define MSL_ABS(T) inline T abs(T a) { return a < (T)0 ? (T)-a : a; }
MSL_ABS(char) MSL_ABS(short) MSL_ABS(int) MSL_ABS(half) MSL_ABS(float)
#undef MSL_ABS

#define MSL_COUNT(T)                                                                                                   \
    inline T popcount(T x) { return (T)__builtin_popcountl((ulong)x & (~0ul >> (64 - 8 * sizeof(T)))); }               \
    inline T ctz(T x) { return x ? (T)__builtin_ctzl((ulong)x) : (T)(8 * sizeof(T)); }                                 \
    inline T clz(T x)                                                                                                  \
    {                                                                                                                  \
        const ulong low = (ulong)x & (~0ul >> (64 - 8 * sizeof(T)));                                                   \
        return x ? (T)(__builtin_clzl(low) - (64 - 8 * (int)sizeof(T))) : (T)(8 * sizeof(T));                          \
    }
MSL_COUNT(uchar) MSL_COUNT(ushort) MSL_COUNT(int) MSL_COUNT(uint)
#undef MSL_COUNT
} // namespace metal

#endif
