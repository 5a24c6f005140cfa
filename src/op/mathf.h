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
