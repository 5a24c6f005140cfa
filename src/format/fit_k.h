/* Scales of two levels, as K-quants and IQ4_XS have them: groups of a block of 256 have small integers as scales, in
 * units of one half (or two: for scales and for minimums) per block.
 *
 * Each group's own best scale is found first. The block's unit lets the largest one meet the outermost integer. Then in
 * turn: integers and levels for this unit (the integers beside the rounded one are tried too), and the least-squares
 * unit for these integers and levels. The best of the rounds is kept. */
#ifndef FIRN_FORMAT_FIT_K_H
#define FIRN_FORMAT_FIT_K_H

#include "format/fit.h"

enum { FIRN_FIT_ROUNDS = 3 };

typedef struct {
    firn_half d;
    int scale[16];
    float q[256]; /* levels */
} firn_fit_scaled;

typedef struct {
    firn_half d, dmin;
    int scale[16], min[16];
    float q[256];
} firn_fit_shifted;

/* w = d * scale * level: groups of n, scales lo..-lo-1. */
FIRN_FIT_INLINE void firn_fit_k_scaled(firn_levels levels, int n, int lo, const float *x, const float *importance,
                                       firn_fit_scaled *out)
{
    const int groups = 256 / n;
    firn_fit_block b;
    firn_fit_scaled trial;
    float own[16], best = INFINITY;

    memset(out, 0, sizeof *out);
    firn_fit_load(&b, x, importance, 256, FIRN_FIT_HALF_LIMIT);
    if (b.unit == 0) {
        for (int i = 0; i < 256; i++)
            out->q[i] = firn_fit_level(levels, 0);
        return;
    }
    for (int g = 0; g < groups; g++)
        own[g] = firn_fit_scale(levels, b.x + n * g, b.w + n * g, n);
    float d = firn_fit_peak(own, groups) / (float)lo;

    for (int round = 0; round < FIRN_FIT_ROUNDS; round++) {
        float error = 0, xu = 0, uu = 0;
        trial.d = firn_fit_half(&d, b.unit);
        for (int g = 0; g < groups; g++) {
            const float *gx = b.x + n * g, *gw = b.w + n * g;
            const int near =
                (int)firn_fit_clamp(firn_fit_round(own[g] * firn_fit_inverse(d)), (float)lo, -(float)lo - 1);
            float q[32], least = INFINITY;
            for (int s = near - 1; s <= near + 1; s++) {
                if (s < lo || s >= -lo)
                    continue;
                const float e = firn_fit_scale_error(levels, gx, gw, n, d * (float)s, q);
                if (e < least) {
                    least = e;
                    trial.scale[g] = s;
                    memcpy(trial.q + n * g, q, (size_t)n * sizeof *q);
                }
            }
            error += least;
            for (int i = 0; i < n; i++) {
                const float u = (float)trial.scale[g] * trial.q[n * g + i];
                xu += gw[i] * gx[i] * u;
                uu += gw[i] * u * u;
            }
        }
        if (!(error < best))
            break;
        best = error;
        *out = trial;
        if (uu > 0)
            d = xu / uu;
    }
}

/* w = d * scale * level - dmin * min: groups of n, levels 0..top, scales and minimums 0..limit. */
FIRN_FIT_INLINE void firn_fit_k_shifted(int n, float top, float step, int tries, int limit, const float *x,
                                        const float *importance, firn_fit_shifted *out)
{
    const int groups = 256 / n;
    firn_fit_block b;
    firn_fit_shifted trial;
    float scale[16], min[16], best = INFINITY;
    float d = 0, m = 0;

    memset(out, 0, sizeof *out);
    firn_fit_load(&b, x, importance, 256, FIRN_FIT_HALF_LIMIT);
    if (b.unit == 0)
        return;
    for (int g = 0; g < groups; g++) {
        firn_fit_affine(b.x + n * g, b.w + n * g, n, top, true, step, tries, &scale[g], &min[g]);
        min[g] = -min[g];
        d = scale[g] > d ? scale[g] : d;
        m = min[g] > m ? min[g] : m;
    }
    d /= (float)limit;
    m /= (float)limit;

    for (int round = 0; round < FIRN_FIT_ROUNDS; round++) {
        double error = 0, uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
        trial.d = firn_fit_half(&d, b.unit);
        trial.dmin = firn_fit_half(&m, b.unit);
        for (int g = 0; g < groups; g++) {
            const float *gx = b.x + n * g, *gw = b.w + n * g;
            const int s0 = (int)firn_fit_clamp(firn_fit_round(scale[g] * firn_fit_inverse(d)), 0, (float)limit);
            const int m0 = (int)firn_fit_clamp(firn_fit_round(min[g] * firn_fit_inverse(m)), 0, (float)limit);
            float q[32], least = INFINITY;
            for (int i = 0; i < 9; i++) {
                const int s = s0 + i / 3 - 1, k = m0 + i % 3 - 1;
                if (s < 0 || s > limit || k < 0 || k > limit)
                    continue;
                const float e = firn_fit_affine_error(gx, gw, n, top, d * (float)s, -m * (float)k, q);
                if (e < least) {
                    least = e;
                    trial.scale[g] = s;
                    trial.min[g] = k;
                    memcpy(trial.q + n * g, q, (size_t)n * sizeof *q);
                }
            }
            error += least;
            float sw = 0, su = 0, suu = 0, sx = 0, sxu = 0; /* u: levels; the integers come in after the loop */
            for (int i = 0; i < n; i++) {
                const float u = trial.q[n * g + i];
                sw += gw[i];
                su += gw[i] * u;
                suu += gw[i] * u * u;
                sx += gw[i] * gx[i];
                sxu += gw[i] * gx[i] * u;
            }
            const double s = trial.scale[g], k = -trial.min[g];
            uu += s * s * suu;
            uv += s * k * su;
            vv += k * k * sw;
            xu += s * sxu;
            xv += k * sx;
        }
        if (!(error < best))
            break;
        best = (float)error;
        *out = trial;
        const double det = uu * vv - uv * uv;
        if (det > 0) {
            d = (float)((vv * xu - uv * xv) / det);
            m = (float)((uu * xv - uv * xu) / det);
        } else if (uu > 0) {
            d = (float)(xu / uu);
        }
    }
}

#endif
