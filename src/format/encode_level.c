/* Encoding the formats whose levels are a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4. */
#include "format/encode.h"

#include "core/wide.h"
#include "format/fit_k.h"
#include "format/iq4_nl.h"
#include "format/iq4_xs.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"

#include <float.h>

/* The code of a level that the table has. */
static uint8_t code_of(const int8_t *table, float level)
{
    int code = 0;

    while (code < 15 && (float)table[code] != level)
        code++;
    return (uint8_t)code;
}

/* Two codes a byte: the first half of n levels in the low nibbles. */
static void pack(const int8_t *table, const float *q, int n, uint8_t *bytes)
{
    for (int i = 0; i < n / 2; i++)
        bytes[i] = (uint8_t)(code_of(table, q[i]) | code_of(table, q[i + n / 2]) << 4);
}

/* ---- IQ4 ---- */

static const firn_levels levels_iq4 = {FIRN_LEVELS_IQ4, 0, 0, -127, 2, 10};

FIRN_WIDE void firn_encode_iq4_nl(const float *x, int64_t n, const float *importance, void *row)
{
    firn_iq4_nl *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        firn_fit_block f;
        float q[32], d = 0;
        firn_fit_load(&f, x + i, firn_fit_from(importance, i), 32, FIRN_FIT_HALF_LIMIT);
        b->d = 0;
        if (f.unit != 0) {
            d = firn_fit_scale(levels_iq4, f.x, f.w, 32);
            b->d = firn_fit_half(&d, f.unit);
        }
        firn_fit_scale_error(levels_iq4, f.x, f.w, 32, d, q);
        pack(firn_iq4_level, q, 32, b->q);
    }
}

FIRN_WIDE void firn_encode_iq4_xs(const float *x, int64_t n, const float *importance, void *row)
{
    firn_iq4_xs *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_scaled fit;
        firn_fit_k_scaled(levels_iq4, 32, -32, x + i, firn_fit_from(importance, i), &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        for (int g = 0; g < 8; g++) {
            const int s = fit.scale[g] + 32;
            b->scale_low[g / 2] |= (uint8_t)((s & 15) << 4 * (g % 2));
            b->scale_high |= (uint16_t)(s >> 4 << 2 * g);
            pack(firn_iq4_level, fit.q + 32 * g, 32, b->q + 16 * g);
        }
    }
}

/* ---- FP4: the scales are few, so that each is tried around the one under which the largest weight meets the largest
 * level ---- */

static const firn_levels levels_fp4 = {FIRN_LEVELS_FP4, 0, 0, 12, 0, 0};

void firn_encode_mxfp4(const float *x, int64_t n, const float *importance, void *row)
{
    firn_mxfp4 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        firn_fit_block f;
        float q[32], best_q[32], best = INFINITY;
        firn_fit_load(&f, x + i, firn_fit_from(importance, i), 32, FLT_MAX);
        memset(b, 0, sizeof *b);
        if (f.unit == 0)
            continue;
        int exponent;
        frexpf(f.unit, &exponent);
        exponent += 124; /* of the scale under which the largest weight is 8 to 16 */
        for (int e = exponent - 1; e <= exponent + 1; e++) {
            if (e < 0 || e > 252) /* 12 * 2^(253 - 128) is no float any more */
                continue;
            const float d = firn_mxfp4_scale(e) / f.unit;
            const float error = firn_fit_scale_error(levels_fp4, f.x, f.w, 32, d, q);
            if (error < best) {
                best = error;
                b->e = (uint8_t)e;
                memcpy(best_q, q, sizeof q);
            }
        }
        pack(firn_fp4_level, best_q, 32, b->q);
    }
}

FIRN_WIDE void firn_encode_nvfp4(const float *x, int64_t n, const float *importance, void *row)
{
    firn_nvfp4 *b = row;

    for (int64_t i = 0; i < n; i += 64, b++) {
        memset(b, 0, sizeof *b);
        for (int g = 0; g < 4; g++) {
            firn_fit_block f;
            float q[16], best_q[16], best = INFINITY;
            firn_fit_load(&f, x + i + 16 * g, firn_fit_from(importance, i + 16 * g), 16, FIRN_FIT_HALF_LIMIT);
            if (f.unit == 0)
                continue;
            /* Scales ascend with their codes 0..0x7e: the last one under which the largest weight is beyond the largest
             * level, then some on either side. */
            const float peak = fabsf(firn_fit_peak(f.x, 16)) * f.unit;
            int middle = 0;
            while (middle < 0x7e && firn_nvfp4_scale(middle + 1) * 12.0f <= peak)
                middle++;
            for (int s = middle - 3; s <= middle + 8; s++) {
                if (s < 0 || s > 0x7e)
                    continue;
                const float error = firn_fit_scale_error(levels_fp4, f.x, f.w, 16, firn_nvfp4_scale(s) / f.unit, q);
                if (error < best) {
                    best = error;
                    b->scale[g] = (uint8_t)s;
                    memcpy(best_q, q, sizeof q);
                }
            }
            pack(firn_fp4_level, best_q, 16, b->q + 8 * g);
        }
    }
}
