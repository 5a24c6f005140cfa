/* Fitting scales: the search that the encoders share. A group of weights x is to become scale * level, or
 * scale * level + offset, with levels from a small set; what counts is the squared error, each weight's times its
 * importance.
 *
 * For a trial scale every weight takes its nearest level; for these levels the best scale is a least-squares quotient.
 * So a handful of trial scales around "the largest weight meets the outermost level" is tried, and the quotient of the
 * best one returned. Rounding to what the format can store, and taking levels anew, is the encoder's part.
 *
 * Lengths are multiples of 16. Sums run over eight lanes that the source spells out: the compiler may not reorder
 * additions, and with lanes it does not have to. */
#ifndef FIRN_FORMAT_FIT_H
#define FIRN_FORMAT_FIT_H

#include "format/common.h"

#include <math.h>
#include <stdbool.h>

enum { FIRN_FIT_LANES = 8 };

/* Into the encoders, which are compiled for more than one machine (core/wide.h), and with their constants. */
#define FIRN_FIT_INLINE static inline __attribute__((always_inline))

/* One block on its way to be encoded: finite, scaled by a power of two so that the largest magnitude is in [1, 2) and
 * no sum of squares over- or underflows, with importances in [0, 1]. */
typedef struct {
    float x[256], w[256];
    float unit; /* the weights are x * unit; 0: all of them are zero, or smaller than 2^-100 */
} firn_fit_block;

/* importance may be NULL. A NaN counts as zero; magnitudes beyond `limit`, and infinities, count as the limit, which is
 * far above what the format can hold. A weight without a usable importance counts nothing, unless all are such. */
void firn_fit_load(firn_fit_block *b, const float *x, const float *importance, int n, float limit);

/* For formats whose scale is a half: they end before 2^28. */
#define FIRN_FIT_HALF_LIMIT 0x1p30f

/* importance from column i on. */
FIRN_FIT_INLINE const float *firn_fit_from(const float *importance, int64_t i)
{
    return importance ? importance + i : NULL;
}

/* The finite half nearest to d * unit; *d becomes what it stands for, in units. */
firn_half firn_fit_half(float *d, float unit);

typedef enum {
    FIRN_LEVELS_UNIFORM, /* integers lo..hi */
    FIRN_LEVELS_IQ4,     /* the sixteen of firn_iq4_level */
    FIRN_LEVELS_FP4,     /* the fifteen of firn_fp4_level */
} firn_levels_kind;

typedef struct {
    firn_levels_kind kind;
    float lo, hi; /* of FIRN_LEVELS_UNIFORM */
    float top;    /* the level that a group's largest weight meets in the middle of the trials */
    float step;   /* from one trial to the next, in levels */
    int tries;    /* on either side */
} firn_levels;

/* To the nearest integer, ties to even; |x| well below 2^22, or a value to be clamped. */
FIRN_FIT_INLINE float firn_fit_round(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

FIRN_FIT_INLINE float firn_fit_clamp(float x, float lo, float hi)
{
    x = x < lo ? lo : x;
    return x > hi ? hi : x;
}

/* The nearest level. */
FIRN_FIT_INLINE float firn_fit_level(firn_levels levels, float x)
{
    if (levels.kind == FIRN_LEVELS_IQ4) {
        static const float middle[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                         7.0f,    19.0f,  31.5f,  45.5f,  61.0f,  79.0f,  101.0f};
        static const float rise[15] = {23, 21, 18, 16, 14, 13, 12, 11, 12, 12, 13, 15, 16, 20, 24};
        float level = -127.0f;
        for (int i = 0; i < 15; i++)
            level += x > middle[i] ? rise[i] : 0.0f;
        return level;
    }
    if (levels.kind == FIRN_LEVELS_FP4) {
        static const float middle[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};
        static const float rise[7] = {1, 1, 1, 1, 2, 2, 4};
        const float magnitude = x < 0 ? -x : x;
        float level = 0.0f;
        for (int i = 0; i < 7; i++)
            level += magnitude > middle[i] ? rise[i] : 0.0f;
        return x < 0 ? -level : level;
    }
    return firn_fit_clamp(firn_fit_round(x), levels.lo, levels.hi);
}

/* 1/d, 0 for a d that no weight could be a multiple of. */
FIRN_FIT_INLINE float firn_fit_inverse(float d)
{
    return fabsf(d) > 1e-30f ? 1.0f / d : 0.0f;
}

FIRN_FIT_INLINE float firn_fit_sum(const float *lane)
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

/* The signed value of largest magnitude. */
FIRN_FIT_INLINE float firn_fit_peak(const float *x, int n)
{
    float peak = 0;

    for (int i = 0; i < n; i++)
        peak = fabsf(x[i]) > fabsf(peak) ? x[i] : peak;
    return peak;
}

/* Levels under the scale d into q, and what they leave of the error: sum w (x - d q)^2. */
FIRN_FIT_INLINE float firn_fit_scale_error(firn_levels levels, const float *x, const float *w, int n, float d, float *q)
{
    const float inverse = firn_fit_inverse(d);
    float error[FIRN_FIT_LANES] = {0};

    for (int i = 0; i < n; i += FIRN_FIT_LANES) {
        for (int l = 0; l < FIRN_FIT_LANES; l++) {
            q[i + l] = firn_fit_level(levels, x[i + l] * inverse);
            const float e = x[i + l] - d * q[i + l];
            error[l] += w[i + l] * e * e;
        }
    }
    return firn_fit_sum(error);
}

/* The scale of a group, levels symmetric or nearly so. */
FIRN_FIT_INLINE float firn_fit_scale(firn_levels levels, const float *x, const float *w, int n)
{
    const float peak = firn_fit_peak(x, n);
    float best = 0, d = 0;

    if (peak == 0)
        return 0;
    for (int t = -levels.tries; t <= levels.tries; t++) {
        const float inverse = (levels.top + levels.step * (float)t) * firn_fit_inverse(peak);
        float xq[FIRN_FIT_LANES] = {0}, qq[FIRN_FIT_LANES] = {0};
        for (int i = 0; i < n; i += FIRN_FIT_LANES) {
            for (int l = 0; l < FIRN_FIT_LANES; l++) {
                const float q = firn_fit_level(levels, x[i + l] * inverse);
                xq[l] += w[i + l] * q * x[i + l];
                qq[l] += w[i + l] * q * q;
            }
        }
        /* The error is sum w x^2 - xq^2 / qq. */
        const float sxq = firn_fit_sum(xq), sqq = firn_fit_sum(qq);
        if (sqq > 0 && sxq * sxq > best * sqq) {
            best = sxq * sxq / sqq;
            d = sxq / sqq;
        }
    }
    return d;
}

/* Levels 0..top under scale a and offset b into q, and the error. */
FIRN_FIT_INLINE float firn_fit_affine_error(const float *x, const float *w, int n, float top, float a, float b,
                                            float *q)
{
    const float inverse = firn_fit_inverse(a);
    float error[FIRN_FIT_LANES] = {0};

    for (int i = 0; i < n; i += FIRN_FIT_LANES) {
        for (int l = 0; l < FIRN_FIT_LANES; l++) {
            q[i + l] = firn_fit_clamp(firn_fit_round((x[i + l] - b) * inverse), 0, top);
            const float e = x[i + l] - (a * q[i + l] + b);
            error[l] += w[i + l] * e * e;
        }
    }
    return firn_fit_sum(error);
}

/* Scale and offset of a group, levels 0..top. below: the offset may not be positive. Trials: the range of the weights
 * meets top + step * t levels. */
FIRN_FIT_INLINE void firn_fit_affine(const float *x, const float *w, int n, float top, bool below, float step,
                                     int tries, float *a, float *b)
{
    float lo = below && x[0] > 0 ? 0 : x[0], hi = x[0], best = INFINITY;

    for (int i = 0; i < n; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    *a = 0;
    *b = lo;
    if (hi == lo)
        return;
    for (int t = -tries; t <= tries; t++) {
        const float inverse = (top + step * (float)t) * firn_fit_inverse(hi - lo);
        float lw[FIRN_FIT_LANES] = {0}, lx[FIRN_FIT_LANES] = {0}, lq[FIRN_FIT_LANES] = {0};
        float lxq[FIRN_FIT_LANES] = {0}, lqq[FIRN_FIT_LANES] = {0};
        for (int i = 0; i < n; i += FIRN_FIT_LANES) {
            for (int l = 0; l < FIRN_FIT_LANES; l++) {
                const float v = x[i + l], q = firn_fit_clamp(firn_fit_round((v - lo) * inverse), 0, top);
                const float wq = w[i + l] * q;
                lw[l] += w[i + l];
                lx[l] += w[i + l] * v;
                lq[l] += wq;
                lxq[l] += wq * v;
                lqq[l] += wq * q;
            }
        }
        const double sw = firn_fit_sum(lw), sx = firn_fit_sum(lx), sq = firn_fit_sum(lq);
        const double sxq = firn_fit_sum(lxq), sqq = firn_fit_sum(lqq), det = sw * sqq - sq * sq;
        double ta, tb;
        if (!(sw > 0))
            continue;
        if (det > 1e-6 * sw * sqq) {
            ta = (sw * sxq - sx * sq) / det;
            tb = (sqq * sx - sq * sxq) / det;
        } else { /* all that counts is on one level, as far as sums can tell */
            ta = 0;
            tb = sx / sw;
        }
        if (below && tb > 0) {
            if (!(sqq > 0))
                continue;
            ta = sxq / sqq;
            tb = 0;
        }
        /* Up to sum w x^2. */
        const double error = ta * ta * sqq + 2 * ta * tb * sq + tb * tb * sw - 2 * ta * sxq - 2 * tb * sx;
        if (error < best) {
            best = (float)error;
            *a = (float)ta;
            *b = (float)tb;
        }
    }
}

#endif
