/* Row sums in plain C that a compiler vectorizes without -ffast-math, and the elementary functions (elementary.h). Sums
 * run in a fixed number of lanes, so that their order depends on the length only. */
#ifndef FIRN_OP_MATHF_H
#define FIRN_OP_MATHF_H

#include "core/wide.h"
#include "op/elementary.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { FIRN_LANES = 8 };

FIRN_INLINE double firn_lanes_sum(const double *lanes)
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

/* double name(..., n): the sum over i < n of a term, products and sums in double. */
#define FIRN_SUM_OF_TERMS(name, term, ...)                                                                             \
    FIRN_INLINE double name(__VA_ARGS__, int64_t n)                                                                    \
    {                                                                                                                  \
        double lanes[FIRN_LANES] = {0};                                                                                \
        const int64_t whole = n - n % FIRN_LANES;                                                                      \
                                                                                                                       \
        for (int64_t at = 0; at < whole; at += FIRN_LANES)                                                             \
            for (int l = 0; l < FIRN_LANES; l++) {                                                                     \
                const int64_t i = at + l;                                                                              \
                lanes[l] += term;                                                                                      \
            }                                                                                                          \
        for (int64_t i = whole; i < n; i++)                                                                            \
            lanes[i % FIRN_LANES] += term;                                                                             \
        return firn_lanes_sum(lanes);                                                                                  \
    }
FIRN_SUM_OF_TERMS(firn_sum_of, (double)a[i], const float *a)
FIRN_SUM_OF_TERMS(firn_dot, (double)a[i] * (double)b[i], const float *restrict a, const float *restrict b)
FIRN_SUM_OF_TERMS(firn_dot3, (double)a[i] * (double)b[i] * (double)c[i], const float *restrict a,
                  const float *restrict b, const float *restrict c)

/* exp in double for x <= 0, within 1 unit in the last place: argument reduction and the Taylor series' first terms with
 * the rest to degree 11 fitted in Chebyshev nodes. 0 below -708; NaN stays NaN. */
FIRN_INLINE double firn_exp_below(double x)
{
    const double magic = 6755399441055744.0; /* 1.5 2^52 */

    x = x < -708.0 ? -708.0 : x;
    const double t = x * 1.4426950408889634 + magic, n = t - magic;
    const double r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
    double p = 2.5100377619606371036e-8;
    p = p * r + 2.7620078203806393335e-7;
    p = p * r + 2.7557268476553696175e-6;
    p = p * r + 2.4801521317484084006e-5;
    p = p * r + 1.9841269863042962312e-4;
    p = p * r + 1.3888888917199862106e-3;
    p = p * r + 8.3333333333300639656e-3;
    p = p * r + 4.1666666666624155611e-2;
    p = p * r + 1.6666666666666667452e-1;
    p = p * r + 5.0000000000000010213e-1;
    p = p * (r * r) + r + 1.0;
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    bits = (bits + 1023) << 52; /* 2^n: t's low bits are n */
    double power;
    memcpy(&power, &bits, sizeof power);
    return x > -708.0 ? p * power : x <= -708.0 ? 0.0 : x;
}

/* Sums of e^(x - top), for x up to top: exponentials in float, or in double. A run of them at a time, since compilers
 * do not turn the sum's lanes and a function into vector code together. */
#define FIRN_SUM_EXP(name, number, function)                                                                           \
    FIRN_INLINE double name(const float *x, int64_t n, float top)                                                      \
    {                                                                                                                  \
        enum { RUN = 16 * FIRN_LANES };                                                                                \
        double lanes[FIRN_LANES] = {0};                                                                                \
        number e[RUN];                                                                                                 \
                                                                                                                       \
        for (int64_t at = 0; at < n; at += RUN) {                                                                      \
            const int64_t here = n - at < RUN ? n - at : RUN, whole = here - here % FIRN_LANES;                        \
            for (int64_t i = 0; i < here; i++)                                                                         \
                e[i] = function((number)x[at + i] - (number)top);                                                      \
            for (int64_t i = 0; i < whole; i += FIRN_LANES)                                                            \
                for (int l = 0; l < FIRN_LANES; l++)                                                                   \
                    lanes[l] += (double)e[i + l];                                                                      \
            for (int64_t i = whole; i < here; i++)                                                                     \
                lanes[i % FIRN_LANES] += (double)e[i];                                                                 \
        }                                                                                                              \
        return firn_lanes_sum(lanes);                                                                                  \
    }
FIRN_SUM_EXP(firn_sum_exp, float, firn_expf)
FIRN_SUM_EXP(firn_sum_exp_double, double, firn_exp_below)
#undef FIRN_SUM_EXP

/* The largest value, -infinity for none; a NaN is passed over. */
FIRN_INLINE float firn_max_of(const float *a, int64_t n)
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
