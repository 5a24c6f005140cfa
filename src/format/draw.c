/* A block is random bits, in which the half-precision scale is then set:
 *     d = std / unit      unit: the root mean square of what d multiplies, for random codes (and group scales)
 *     m = shift * d       for formats with a minimum, so that the mean is 0
 * d varies by a quarter from block to block. Its sign is random where codes are not centred on 0: their mean then
 * vanishes over many blocks. */
#include "format/draw.h"

#include "core/random.h"
#include "format/common.h"

#include <math.h>
#include <string.h>

typedef struct {
    int d, m; /* where the scale and the minimum lie; -1: there is none */
    float unit, shift;
    bool signed_d;
    /* What d and m do not say; `bits` are 64 random ones. */
    void (*finish)(uint8_t *block, float std, uint64_t bits);
} draw;

/* Groups of Q4_K and Q5_K: s = m in 32..63, six bits each, packed as firn_k_scale and firn_k_min read them. */
static void k_scales(uint8_t *block, float std, uint64_t bits)
{
    uint8_t *s = block + 4;

    (void)std;
    for (int g = 0; g < 4; g++, bits >>= 10) {
        const unsigned a = 32 | (bits & 31), b = 32 | (bits >> 5 & 31);
        s[g] = s[g + 4] = (uint8_t)(a | b >> 4 << 6);
        s[g + 8] = (uint8_t)((b & 15) | (b & 15) << 4);
    }
}

/* Groups of Q2_K: s = m in 8..15. */
static void q2_K_scales(uint8_t *block, float std, uint64_t bits)
{
    (void)std;
    for (int g = 0; g < 16; g++, bits >>= 4) {
        const unsigned s = 8 | (bits & 7);
        block[g] = (uint8_t)(s | s << 4);
    }
}

/* The power of two next to std over the levels' root mean square, 2.926 (twice that in the table, 2^(e - 128)). */
static void mxfp4_exponent(uint8_t *block, float std, uint64_t bits)
{
    const float e = log2f(std / 2.926f) + 127.0f + (float)(bits >> 40) * 0x1p-24f - 0.5f;

    block[0] = (uint8_t)fminf(fmaxf(roundf(e), 1), 254);
}

/* E4M3 without sign of std over that root mean square; 448 at most. */
static void nvfp4_scales(uint8_t *block, float std, uint64_t bits)
{
    const float x = fminf(std / 2.926f, 448.0f);
    int exponent;

    (void)bits;
    const float mantissa = frexpf(x, &exponent); /* x = mantissa * 2^exponent, mantissa in [1/2, 1) */
    const int code = exponent + 6 < 1 ? (int)lrintf(x * 512) : (exponent + 6) * 8 + (int)lrintf((mantissa - 0.5f) * 16);
    memset(block, code < 1 ? 1 : code > 126 ? 126 : code, 4);
}

/* unit: sqrt of the mean of squares over the codes, times that over the group scales (48.4 over 32..63, 11.7 over
 * 8..15, 18.5 over -32..31, 73.9 over -128..127). */
static const draw draws[FIRN_TYPE_LIMIT] = {
    [FIRN_Q4_0] = {0, -1, 4.637f, 0, true, NULL},
    [FIRN_Q4_1] = {0, 2, 4.610f, -7.5f, false, NULL},
    [FIRN_Q5_0] = {0, -1, 9.247f, 0, true, NULL},
    [FIRN_Q5_1] = {0, 2, 9.233f, -15.5f, false, NULL},
    [FIRN_Q8_0] = {0, -1, 73.9f, 0, true, NULL},
    [FIRN_Q2_K] = {80, 82, 1.118f * 11.73f, 1.5f, false, q2_K_scales},
    [FIRN_Q3_K] = {108, -1, 2.345f * 18.48f, 0, true, NULL},
    [FIRN_Q4_K] = {0, 2, 4.610f * 48.4f, 7.5f, false, k_scales},
    [FIRN_Q5_K] = {0, 2, 9.233f * 48.4f, 15.5f, false, k_scales},
    [FIRN_Q6_K] = {208, -1, 18.48f * 73.9f, 0, true, NULL},
    [FIRN_IQ4_NL] = {0, -1, 67.4f, 0, true, NULL},
    [FIRN_IQ4_XS] = {0, -1, 67.4f * 18.48f, 0, true, NULL},
    [FIRN_MXFP4] = {-1, -1, 1, 0, false, mxfp4_exponent},
    [FIRN_NVFP4] = {-1, -1, 1, 0, false, nvfp4_scales},
};

bool firn_format_can_draw(firn_type type)
{
    return type == FIRN_F32 || type == FIRN_F16 || type == FIRN_BF16 ||
           ((unsigned)type < FIRN_TYPE_LIMIT && draws[type].unit > 0);
}

static void put_half(uint8_t *at, float value)
{
    const uint16_t half = firn_float_to_half(value);

    memcpy(at, &half, sizeof half);
}

static void draw_packed(const draw *f, size_t size, float std, uint64_t seed, uint64_t stream, uint64_t index,
                        uint8_t *block)
{
    const uint64_t words = (size + 7) / 8; /* 64-bit draws for the codes; two more for the scales */
    const uint64_t at = index * (words + 2);

    for (size_t i = 0; i < size; i += 8) {
        const uint64_t bits = firn_random(seed, stream, at + i / 8);
        memcpy(block + i, &bits, size - i < 8 ? size - i : 8);
    }
    const float vary = 0.75f + 0.5f * firn_random_unit(seed, stream, at + words);
    float d = std * vary / f->unit;
    const uint64_t bits = firn_random(seed, stream, at + words + 1);
    if (f->signed_d && bits >> 63)
        d = -d;
    if (f->d >= 0)
        put_half(block + f->d, d);
    if (f->m >= 0)
        put_half(block + f->m, d * f->shift);
    if (f->finish)
        f->finish(block, std, bits);
}

void firn_format_draw(firn_type type, float std, uint64_t seed, uint64_t stream, int64_t first, int64_t n, void *out)
{
    const size_t size = firn_type_size(type);

    for (int64_t i = 0; i < n; i++) {
        uint8_t *block = (uint8_t *)out + (size_t)i * size;
        const uint64_t index = (uint64_t)(first + i);
        const float value = std * firn_random_even(seed, stream, index);
        const uint16_t bf16 = firn_float_to_bf16(value);
        switch (type) {
        case FIRN_F32:
            memcpy(block, &value, sizeof value);
            break;
        case FIRN_F16:
            put_half(block, value);
            break;
        case FIRN_BF16:
            memcpy(block, &bf16, sizeof bf16);
            break;
        default:
            draw_packed(&draws[type], size, std, seed, stream, index, block);
        }
    }
}
