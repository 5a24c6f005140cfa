/* Elementary functions in the common subset of C, CUDA and MSL: the CPU's vectorized loops and Metal's kernels compute
 * the same values.
 *
 * exp and tanh are the classical argument reduction with a minimax polynomial (Cephes, Moshier 1989: expf, tanhf),
 * within 1.5 units in the last place. */
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

#endif
