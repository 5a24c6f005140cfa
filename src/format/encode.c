/* Encoding: the choice of an encoder, and the formats of one scale per block (F16, BF16, Q4_0 to Q8_0). K-quants are in
 * encode_k.c, IQ4 and the FP4 formats in encode_level.c; how scales are found is in fit.h. */
#include "format/encode.h"

#include "core/wide.h"

#include "format/fit.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q8_0.h"

#include <float.h>

FIRN_WIDE static void encode_f32(const float *x, int64_t n, const float *importance, void *row)
{
    (void)importance;
    memcpy(row, x, (size_t)n * sizeof *x);
}

FIRN_WIDE static void encode_f16(const float *x, int64_t n, const float *importance, void *row)
{
    firn_half *out = row;

    (void)importance;
    for (int64_t i = 0; i < n; i++)
        out[i] = firn_float_to_half(x[i]);
}

FIRN_WIDE static void encode_bf16(const float *x, int64_t n, const float *importance, void *row)
{
    uint16_t *out = row;

    (void)importance;
    for (int64_t i = 0; i < n; i++)
        out[i] = firn_float_to_bf16(x[i]);
}

void firn_fit_load(firn_fit_block *b, const float *x, const float *importance, int n, float limit)
{
    float peak = 0, most = 0;

    for (int i = 0; i < n; i++) {
        const float v = x[i] == x[i] ? firn_fit_clamp(x[i], -limit, limit) : 0.0f;
        const float w = importance ? (importance[i] > 0 ? firn_fit_clamp(importance[i], 0, FLT_MAX) : 0.0f) : 1.0f;
        b->x[i] = v;
        b->w[i] = w;
        peak = fabsf(v) > peak ? fabsf(v) : peak;
        most = w > most ? w : most;
    }
    if (importance) {
        for (int i = 0; i < n; i++)
            b->w[i] = most > 0 ? b->w[i] / most : 1.0f;
    }
    if (peak < 0x1p-100f) {
        b->unit = 0;
        return;
    }
    int exponent;
    frexpf(peak, &exponent);
    b->unit = ldexpf(1.0f, exponent - 1);
    const float inverse = ldexpf(1.0f, 1 - exponent);
    for (int i = 0; i < n; i++)
        b->x[i] *= inverse;
}

firn_half firn_fit_half(float *d, float unit)
{
    const firn_half half = firn_float_to_half(firn_fit_clamp(*d * unit, -65504.0f, 65504.0f));

    *d = firn_half_to_float(half) / unit;
    return half;
}

/* ---- one scale ---- */

/* Levels of a block of 32 under one half scale, into q. */
FIRN_FIT_INLINE firn_half fit_32(firn_levels levels, const float *x, const float *importance, float *q)
{
    firn_fit_block b;

    firn_fit_load(&b, x, importance, 32, FIRN_FIT_HALF_LIMIT);
    if (b.unit == 0) {
        memset(q, 0, 32 * sizeof *q);
        return 0;
    }
    float d = firn_fit_scale(levels, b.x, b.w, 32);
    const firn_half half = firn_fit_half(&d, b.unit);
    firn_fit_scale_error(levels, b.x, b.w, 32, d, q);
    return half;
}

static const firn_levels levels_4 = {FIRN_LEVELS_UNIFORM, -8, 7, -8, 0.15f, 8};
static const firn_levels levels_5 = {FIRN_LEVELS_UNIFORM, -16, 15, -16, 0.25f, 6};
static const firn_levels levels_8 = {FIRN_LEVELS_UNIFORM, -128, 127, -127.5f, 0.25f, 3};

FIRN_WIDE static void encode_q4_0(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q4_0 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        float q[32];
        b->d = fit_32(levels_4, x + i, firn_fit_from(importance, i), q);
        for (int j = 0; j < 16; j++)
            b->q[j] = (uint8_t)((int)q[j] + 8) | (uint8_t)(((int)q[j + 16] + 8) << 4);
    }
}

FIRN_WIDE static void encode_q5_0(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q5_0 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        float q[32];
        b->d = fit_32(levels_5, x + i, firn_fit_from(importance, i), q);
        memset(b->high, 0, sizeof b->high);
        for (int j = 0; j < 32; j++)
            b->high[j / 8] |= (uint8_t)((((int)q[j] + 16) >> 4) << (j % 8));
        for (int j = 0; j < 16; j++)
            b->q[j] = (uint8_t)(((int)q[j] + 16) & 15) | (uint8_t)((((int)q[j + 16] + 16) & 15) << 4);
    }
}

FIRN_WIDE static void encode_q8_0(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q8_0 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        float q[32];
        b->d = fit_32(levels_8, x + i, firn_fit_from(importance, i), q);
        for (int j = 0; j < 32; j++)
            b->q[j] = (int8_t)q[j];
    }
}

/* ---- scale and offset ---- */

FIRN_FIT_INLINE void fit_32_affine(float top, float step, int tries, const float *x, const float *importance,
                                   firn_half *d, firn_half *m, float *q)
{
    firn_fit_block b;
    float a, c;

    firn_fit_load(&b, x, importance, 32, FIRN_FIT_HALF_LIMIT);
    if (b.unit == 0) {
        memset(q, 0, 32 * sizeof *q);
        *d = *m = 0;
        return;
    }
    firn_fit_affine(b.x, b.w, 32, top, false, step, tries, &a, &c);
    *d = firn_fit_half(&a, b.unit);
    *m = firn_fit_half(&c, b.unit);
    firn_fit_affine_error(b.x, b.w, 32, top, a, c, q);
}

FIRN_WIDE static void encode_q4_1(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q4_1 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        float q[32];
        fit_32_affine(15, 0.2f, 6, x + i, firn_fit_from(importance, i), &b->d, &b->m, q);
        for (int j = 0; j < 16; j++)
            b->q[j] = (uint8_t)((int)q[j] | (int)q[j + 16] << 4);
    }
}

FIRN_WIDE static void encode_q5_1(const float *x, int64_t n, const float *importance, void *row)
{
    firn_q5_1 *b = row;

    for (int64_t i = 0; i < n; i += 32, b++) {
        float q[32];
        fit_32_affine(31, 0.25f, 5, x + i, firn_fit_from(importance, i), &b->d, &b->m, q);
        memset(b->high, 0, sizeof b->high);
        for (int j = 0; j < 32; j++)
            b->high[j / 8] |= (uint8_t)(((int)q[j] >> 4) << (j % 8));
        for (int j = 0; j < 16; j++)
            b->q[j] = (uint8_t)(((int)q[j] & 15) | ((int)q[j + 16] & 15) << 4);
    }
}

firn_encoder firn_format_encoder(firn_type type)
{
    switch (type) {
    case FIRN_F32:
        return encode_f32;
    case FIRN_F16:
        return encode_f16;
    case FIRN_BF16:
        return encode_bf16;
    case FIRN_Q4_0:
        return encode_q4_0;
    case FIRN_Q4_1:
        return encode_q4_1;
    case FIRN_Q5_0:
        return encode_q5_0;
    case FIRN_Q5_1:
        return encode_q5_1;
    case FIRN_Q8_0:
        return encode_q8_0;
    case FIRN_Q2_K:
        return firn_encode_q2_K;
    case FIRN_Q3_K:
        return firn_encode_q3_K;
    case FIRN_Q4_K:
        return firn_encode_q4_K;
    case FIRN_Q5_K:
        return firn_encode_q5_K;
    case FIRN_Q6_K:
        return firn_encode_q6_K;
    case FIRN_IQ4_NL:
        return firn_encode_iq4_nl;
    case FIRN_IQ4_XS:
        return firn_encode_iq4_xs;
    case FIRN_MXFP4:
        return firn_encode_mxfp4;
    case FIRN_NVFP4:
        return firn_encode_nvfp4;
    default:
        return NULL;
    }
}
