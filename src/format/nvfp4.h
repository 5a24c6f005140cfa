/* NVFP4: 64 weights in 36 bytes, four groups of 16, w[i] = (s / 2) * level[q[i]] with the levels of MXFP4 (twice E2M1).
 *
 *   bytes 0..3     s of the groups: E4M3 without its sign
 *   bytes 4..35    q: group g in bytes 8g .. 8g+7, low nibbles its weights 0..7, high nibbles 8..15
 *
 * As ggml has it, the top bit of s is ignored, but 7f is zero where ff is 480. A tensor's own factor (a `.scale` tensor
 * beside it) is not the block's affair. Exact in F32. */
#ifndef FIRN_FORMAT_NVFP4_H
#define FIRN_FORMAT_NVFP4_H

#include "format/mxfp4.h"

typedef struct {
    uint8_t scale[4];
    uint8_t q[32];
} firn_nvfp4;
FIRN_SIZE_IS(firn_nvfp4, 36);

/* s / 2: the denormals of E4M3 are multiples of 2^-9, its exponent's bias is 7. */
FIRN_INLINE float firn_nvfp4_scale(int s)
{
    const uint32_t magnitude = (uint32_t)s & 0x7fu;
    const float denormal = (float)(int)magnitude * 0.0009765625f; /* 2^-10 */
    const float normal = firn_float_of_bits((magnitude << 20) + (119u << 23));

    return s == 0x7f ? 0.0f : magnitude < 8 ? denormal : normal;
}

FIRN_INLINE void firn_nvfp4_decode16(FIRN_GLOBAL const firn_nvfp4 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_nvfp4_scale(b->scale[h]);
    FIRN_GLOBAL const uint8_t *q = b->q + 8 * h;

    for (int i = 0; i < 8; i++) {
        w[i] = d * (float)firn_fp4_level[q[i] & 15];
        w[i + 8] = d * (float)firn_fp4_level[q[i] >> 4];
    }
}

#endif
