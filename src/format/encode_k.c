/* Encoding K-quants: fit_k.h finds scales and levels, what stands here is their packing (the layouts are in the
 * formats' headers). */
#include "format/encode.h"

#include "core/wide.h"
#include "format/fit_k.h"
#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_k.h"
#include "format/q5_k.h"
#include "format/q6_k.h"

FIRN_WIDE void firn_encode_q2_K(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q2_K *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_shifted fit;
        firn_fit_k_shifted(16, 3, 0.1f, 8, 15, x + i, firn_fit_from(importance, i), &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        b->dmin = fit.dmin;
        for (int g = 0; g < 16; g++)
            b->scale[g] = (uint8_t)(fit.scale[g] | fit.min[g] << 4);
        for (int j = 0; j < 256; j++)
            b->q[32 * (j / 128) + j % 32] |= (uint8_t)((int)fit.q[j] << 2 * (j / 32 % 4));
    }
}

FIRN_WIDE void firn_encode_q3_K(const float *x, int64_t n, const float *importance, void *row)
{
    static const firn_levels levels = {FIRN_LEVELS_UNIFORM, -4, 3, -4, 0.1f, 8};
    firn_q3_K *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_scaled fit;
        firn_fit_k_scaled(levels, 16, -32, x + i, firn_fit_from(importance, i), &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        for (int g = 0; g < 16; g++) {
            const int s = fit.scale[g] + 32;
            b->scale[g & 7] |= (uint8_t)((s & 15) << 4 * (g >> 3));
            b->scale[8 + (g & 3)] |= (uint8_t)(s >> 4 << 2 * (g >> 2));
        }
        for (int j = 0; j < 256; j++) {
            const int q = (int)fit.q[j] + 4;
            b->q[32 * (j / 128) + j % 32] |= (uint8_t)((q & 3) << 2 * (j / 32 % 4));
            b->high[j % 32] |= (uint8_t)(q >> 2 << j / 32);
        }
    }
}

/* The scales and minimums of Q4_K and Q5_K. */
static void pack_scales(uint8_t *scale, const firn_fit_shifted *fit)
{
    memset(scale, 0, 12);
    for (int g = 0; g < 4; g++) {
        scale[g] = (uint8_t)(fit->scale[g] | fit->scale[g + 4] >> 4 << 6);
        scale[g + 4] = (uint8_t)(fit->min[g] | fit->min[g + 4] >> 4 << 6);
        scale[g + 8] = (uint8_t)((fit->scale[g + 4] & 15) | (fit->min[g + 4] & 15) << 4);
    }
}

FIRN_WIDE void firn_encode_q4_K(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q4_K *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_shifted fit;
        firn_fit_k_shifted(32, 15, 0.2f, 6, 63, x + i, firn_fit_from(importance, i), &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        pack_scales(b->scale, &fit);
        for (int j = 0; j < 128; j++) {
            const float *q = fit.q + 64 * (j / 32) + j % 32;
            b->q[j] = (uint8_t)((int)q[0] | (int)q[32] << 4);
        }
    }
}

FIRN_WIDE void firn_encode_q5_K(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q5_K *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_shifted fit;
        firn_fit_k_shifted(32, 31, 0.25f, 5, 63, x + i, firn_fit_from(importance, i), &fit);
        b->d = fit.d;
        b->dmin = fit.dmin;
        pack_scales(b->scale, &fit);
        memset(b->high, 0, sizeof b->high);
        for (int j = 0; j < 256; j++)
            b->high[j % 32] |= (uint8_t)((int)fit.q[j] >> 4 << j / 32);
        for (int j = 0; j < 128; j++) {
            const float *q = fit.q + 64 * (j / 32) + j % 32;
            b->q[j] = (uint8_t)(((int)q[0] & 15) | ((int)q[32] & 15) << 4);
        }
    }
}

FIRN_WIDE void firn_encode_q6_K(const float *x, int64_t n, const float *importance, void *row)
{
    static const firn_levels levels = {FIRN_LEVELS_UNIFORM, -32, 31, -32, 0.25f, 6};
    firn_q6_K *b = row;

    for (int64_t i = 0; i < n; i += 256, b++) {
        firn_fit_scaled fit;
        firn_fit_k_scaled(levels, 16, -128, x + i, firn_fit_from(importance, i), &fit);
        memset(b, 0, sizeof *b);
        b->d = fit.d;
        for (int g = 0; g < 16; g++)
            b->scale[g] = (int8_t)fit.scale[g];
        for (int j = 0; j < 256; j++) {
            const int q = (int)fit.q[j] + 32, quarter = j / 32 % 4;
            b->q[64 * (j / 128) + 32 * (quarter & 1) + j % 32] |= (uint8_t)((q & 15) << 4 * (quarter >> 1));
            b->high[32 * (j / 128) + j % 32] |= (uint8_t)(q >> 4 << 2 * quarter);
        }
    }
}
