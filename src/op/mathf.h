/* Elementary functions and row sums in plain C that a compiler vectorizes without -ffast-math.
 *
 * exp and tanh are the classical argument reduction with a minimax polynomial (Cephes, Moshier 1989: expf, tanhf),
 * within 1.5 units in the last place. Sums run in a fixed number of lanes, so that their order depends on the length
 * only. */
#ifndef FIRN_OP_MATHF_H
#define FIRN_OP_MATHF_H

#include "core/wide.h"
#include "format/common.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* exp: 0 below -104, infinity above 88.8, denormals between; NaN stays NaN. */
static inline float firn_expf(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves round(x / ln 2) in the low bits */

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
    const int32_t e = (int32_t)(firn_bits_of_float(t) - firn_bits_of_float(magic)), half = e >> 1;
    const float s1 = firn_float_of_bits(((uint32_t)half + 127u) << 23);
    const float s2 = firn_float_of_bits(((uint32_t)e - (uint32_t)half + 127u) << 23);
    return p * s1 * s2;
}

static inline float firn_sigmoidf(float x)
{
    return 1.0f / (1.0f + firn_expf(-x));
}

static inline float firn_tanhf(float x)
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

enum { FIRN_LANES = 8 };

static inline double firn_lanes_sum(const double *lanes)
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* sum of a[i] b[i], products and sums in double. */
static inline double firn_dot(const float *restrict a, const float *restrict b, int64_t n)
{
    double lanes[FIRN_LANES] = {0};
    const int64_t whole = n - n % FIRN_LANES;

    for (int64_t i = 0; i < whole; i += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] += (double)a[i + l] * (double)b[i + l];
    for (int64_t i = whole; i < n; i++)
        lanes[i % FIRN_LANES] += (double)a[i] * (double)b[i];
    return firn_lanes_sum(lanes);
}

/* sum of a[i] b[i] c[i]. */
static inline double firn_dot3(const float *restrict a, const float *restrict b, const float *restrict c, int64_t n)
{
    double lanes[FIRN_LANES] = {0};
    const int64_t whole = n - n % FIRN_LANES;

    for (int64_t i = 0; i < whole; i += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] += (double)a[i + l] * (double)b[i + l] * (double)c[i + l];
    for (int64_t i = whole; i < n; i++)
        lanes[i % FIRN_LANES] += (double)a[i] * (double)b[i] * (double)c[i];
    return firn_lanes_sum(lanes);
}

static inline double firn_sum_of(const float *a, int64_t n)
{
    double lanes[FIRN_LANES] = {0};
    const int64_t whole = n - n % FIRN_LANES;

    for (int64_t i = 0; i < whole; i += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] += (double)a[i + l];
    for (int64_t i = whole; i < n; i++)
        lanes[i % FIRN_LANES] += (double)a[i];
    return firn_lanes_sum(lanes);
}

/* The largest value, -infinity for none; a NaN is passed over. */
static inline float firn_max_of(const float *a, int64_t n)
{
    float lanes[FIRN_LANES], m = -INFINITY;
    const int64_t whole = n - n % FIRN_LANES;

    for (int l = 0; l < FIRN_LANES; l++)
        lanes[l] = -INFINITY;
    for (int64_t i = 0; i < whole; i += FIRN_LANES)
        for (int l = 0; l < FIRN_LANES; l++)
            lanes[l] = a[i + l] > lanes[l] ? a[i + l] : lanes[l];
    for (int64_t i = whole; i < n; i++)
        m = a[i] > m ? a[i] : m;
    for (int l = 0; l < FIRN_LANES; l++)
        m = lanes[l] > m ? lanes[l] : m;
    return m;
}

#endif
