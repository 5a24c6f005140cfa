/* Elementary functions in the common subset of C, CUDA and MSL: the CPU's vectorized loops and Metal's kernels compute
 * the same values.
 *
 * exp, tanh and log are the classical argument reduction with a minimax polynomial (Cephes, Moshier 1989: expf, tanhf,
 * logf). Largest errors in units in the last place, over every 97th float (tests/unit/test_elementary.c looks at
 * fewer): exp 0.97, tanh 1.31, log 0.79, log1p 1.20, erfc 6.1 where it is a normal number. Selections instead of
 * branches, so that loops become vector code. */
#ifndef FIRN_OP_ELEMENTARY_H
#define FIRN_OP_ELEMENTARY_H

#include "format/common.h"

/* exp: 0 below -104, infinity above 88.8, denormals between; NaN stays NaN. */
FIRN_INLINE float firn_expf(float x)
{
    const float magic = 12582912.0f; /* 1.5 2^23: adding it leaves round(x / ln 2) in the low bits */

    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float t = x * 1.44269504088896341f + magic, n = t - magic;
    const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    /* 2^n in two factors, each a normal number. */
    const int32_t e = (int32_t)(firn_bits_of_float(t) - firn_bits_of_float(magic)), halved = e >> 1;
    const float s1 = firn_float_of_bits(((uint32_t)halved + 127u) << 23);
    const float s2 = firn_float_of_bits(((uint32_t)e - (uint32_t)halved + 127u) << 23);
    return p * s1 * s2;
}

FIRN_INLINE float firn_sigmoidf(float x)
{
    return 1.0f / (1.0f + firn_expf(-x));
}

FIRN_INLINE float firn_tanhf(float x)
{
    const float a = x < 0 ? -x : x, z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z + -5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z + -3.33332819422e-1f;
    const float small = x + x * z * p;
    const float large = 1.0f - 2.0f / (firn_expf(2.0f * a) + 1.0f);
    const float signed_large = x < 0 ? -large : large;
    return a < 0.625f ? small : signed_large;
}

/* ln x: -infinity at 0, NaN below; denormals like the normal numbers. */
FIRN_INLINE float firn_logf(float x)
{
    const float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x, exponent = x < 1.17549435e-38f ? -23.0f : 0.0f;
    /* x = 2^n m, m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2). */
    const uint32_t shifted = firn_bits_of_float(scaled) - 0x3f3504f3u;
    const float n = exponent + (float)((int32_t)shifted >> 23);
    const float f = firn_float_of_bits((shifted & 0x7fffffu) + 0x3f3504f3u) - 1.0f, z = f * f;
    float p = 7.0376836292e-2f;
    p = p * f + -1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f + -1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f + -1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f + -2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    const float tail = p * f * z + n * -2.12194440e-4f - 0.5f * z;
    const float finite = f + tail + n * 0.693359375f;
    const float negative = x < 0 ? firn_float_of_bits(0x7fc00000u) : x; /* NaN and infinity are their own logarithms */
    const float positive = x < 3.40282347e38f || x == 3.40282347e38f ? finite : x;
    return x > 0 ? positive : x == 0 ? firn_float_of_bits(0xff800000u) : negative;
}

/* ln(1 + x) for finite x >= 0. */
FIRN_INLINE float firn_log1pf(float x)
{
    const float u = 1.0f + x, lost = x - (u - 1.0f);

    return firn_logf(u) + lost / u;
}

/* 1 - erf(x), whose upper tail keeps its digits: erfc(x) e^(x^2) = t P(t), t = 1 / (1 + |x| / 2), by interpolation in
 * 11 Chebyshev nodes, within 6e-9. What x^2 loses to rounding is made good: the head of x has an exact square. */
FIRN_INLINE float firn_erfcf(float x)
{
    const float m = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.5f * m), square = m * m;
    const float head = firn_float_of_bits(firn_bits_of_float(m) & 0xfffff000u);
    const float rest = (head * head - square) + (m - head) * (m + head);
    float p = 3.505510013e-02f;
    p = p * t + -1.875216730e-01f;
    p = p * t + 3.742375589e-01f;
    p = p * t + -2.818922568e-01f;
    p = p * t + -2.627187620e-02f;
    p = p * t + 3.616485945e-02f;
    p = p * t + 5.540050401e-02f;
    p = p * t + 1.852142810e-01f;
    p = p * t + 2.452863066e-01f;
    p = p * t + 2.822379060e-01f;
    p = p * t + 2.820892925e-01f;
    const float near = p * t * firn_expf(-square) * (1.0f - rest);
    const float tail = m < 12.0f ? near : m >= 12.0f ? 0.0f : x;
    return x < 0 ? 2.0f - tail : tail;
}

#endif
