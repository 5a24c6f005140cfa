/* The common subset of C, CUDA and MSL in which the weight formats are written: what lives here is what the three
 * languages spell differently (address spaces, inlining, bit casts, tables) and the half-precision number.
 *
 *     FIRN_INLINE            a function of a header
 *     FIRN_GLOBAL, _LOCAL    address space of the weights, of a thread's own values
 *     FIRN_TABLE             a constant table at file level
 *     FIRN_SIZE_IS(t, n)     the layout is the file's: compilation stops when sizeof(t) is not n
 *
 * Block structs have an alignment of 2 bytes at most; so a row of blocks has to lie at an even address. */
#ifndef FIRN_FORMAT_COMMON_H
#define FIRN_FORMAT_COMMON_H

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define FIRN_INLINE        static inline
#define FIRN_GLOBAL        device
#define FIRN_LOCAL         thread
#define FIRN_TABLE         constant
#define FIRN_SIZE_IS(t, n) static_assert(sizeof(t) == (n), "the size of " #t)
#elif defined(__CUDACC__)
#include <stdint.h>
#define FIRN_INLINE static __device__ __forceinline__
#define FIRN_GLOBAL
#define FIRN_LOCAL
#define FIRN_TABLE         static __device__ const
#define FIRN_SIZE_IS(t, n) static_assert(sizeof(t) == (n), "the size of " #t)
#else
#include <stdint.h>
#include <string.h>
/* Always: a function called from clones of a loop (core/wide.h) would be compiled for the baseline alone. */
#define FIRN_INLINE static inline __attribute__((always_inline))
#define FIRN_GLOBAL
#define FIRN_LOCAL
#define FIRN_TABLE static const
#ifdef __cplusplus
#define FIRN_SIZE_IS(t, n) static_assert(sizeof(t) == (n), "the size of " #t)
#else
#define FIRN_SIZE_IS(t, n) _Static_assert(sizeof(t) == (n), "the size of " #t)
#endif
#endif

/* IEEE binary16 by its bits: no language's own half is in all three. */
typedef uint16_t firn_half;

FIRN_INLINE float firn_float_of_bits(uint32_t bits)
{
#if defined(__METAL_VERSION__)
    return as_type<float>(bits);
#elif defined(__CUDACC__)
    return __uint_as_float(bits);
#else
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
#endif
}

FIRN_INLINE uint32_t firn_bits_of_float(float f)
{
#if defined(__METAL_VERSION__)
    return as_type<uint32_t>(f);
#elif defined(__CUDACC__)
    return __float_as_uint(f);
#else
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
#endif
}

/* Exact. Denormals come out as the normal floats they are; a NaN keeps its payload and becomes quiet, as hardware has
 * it. Selections instead of branches, so that loops over it become vector code. */
FIRN_INLINE float firn_half_to_float(firn_half bits)
{
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t denormal = firn_bits_of_float((float)(int)magnitude * 5.9604644775390625e-8f); /* 2^-24 */
    const uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x400000u : 0u);
    const uint32_t finite = magnitude < 0x400u ? denormal : normal;

    return firn_float_of_bits(sign | (magnitude < 0x7c00u ? finite : special));
}

/* To nearest, ties to even; past the largest half: infinity. A NaN stays one, quiet. */
FIRN_INLINE firn_half firn_float_to_half(float f)
{
    const uint32_t bits = firn_bits_of_float(f);
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Between 1/2 and 1 a float's steps are the denormal halves' 2^-24: the addition does the rounding. */
    const uint32_t denormal = firn_bits_of_float(firn_float_of_bits(magnitude) + 0.5f) - (126u << 23);
    const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < (113u << 23) ? denormal : normal;
    const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;

    return (firn_half)((bits >> 16 & 0x8000u) | (magnitude < 0x477ff000u ? finite : special));
}

FIRN_INLINE float firn_bf16_to_float(uint16_t bits)
{
    return firn_float_of_bits((uint32_t)bits << 16);
}

/* To nearest, ties to even. A NaN stays one, quiet. */
FIRN_INLINE uint16_t firn_float_to_bf16(float f)
{
    const uint32_t bits = firn_bits_of_float(f);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

#endif
