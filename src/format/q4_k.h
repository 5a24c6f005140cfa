/* Q4_K: 256 weights in 144 bytes, eight groups of 32, w[i] = (d * s) * q[i] - dmin * m, q in 0..15, s and m in 0..63.
 *
 *   bytes 0..1      d, half
 *   bytes 2..3      dmin, half
 *   bytes 4..15     s and m of the groups, six bits each (firn_k_scales below; Q5_K has the same)
 *   bytes 16..143   q: groups 2n (low nibbles) and 2n + 1 (high nibbles) in bytes 32n .. 32n+31
 *
 * Both products are exact in F32; the difference rounds, once. */
#ifndef FIRN_FORMAT_Q4_K_H
#define FIRN_FORMAT_Q4_K_H

#include "format/common.h"

typedef struct {
    firn_half d, dmin;
    uint8_t scale[12];
    uint8_t q[128];
} firn_q4_K;
FIRN_SIZE_IS(firn_q4_K, 144);

/* s of group g: the low six bits of byte g for g < 4; else the low nibble of byte g + 4 below the top bits of byte
 * g - 4. m: bytes 4..7 for g < 4; else the high nibble of byte g + 4 below the top bits of byte g. */
FIRN_INLINE int firn_k_scale(FIRN_GLOBAL const uint8_t *scale, int g)
{
    return g < 4 ? scale[g] & 63 : (scale[g + 4] & 15) | (scale[g - 4] >> 6) << 4;
}

FIRN_INLINE int firn_k_min(FIRN_GLOBAL const uint8_t *scale, int g)
{
    return g < 4 ? scale[g + 4] & 63 : (scale[g + 4] >> 4) | (scale[g] >> 6) << 4;
}

FIRN_INLINE void firn_q4_K_decode16(FIRN_GLOBAL const firn_q4_K *b, int h, FIRN_LOCAL float *w)
{
    const int g = h >> 1;
    const float d = firn_half_to_float(b->d) * (float)firn_k_scale(b->scale, g);
    const float m = firn_half_to_float(b->dmin) * (float)firn_k_min(b->scale, g);
    FIRN_GLOBAL const uint8_t *q = b->q + 32 * (g >> 1) + 16 * (h & 1);
    const int shift = 4 * (g & 1);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)((q[i] >> shift) & 15) - m;
}

#endif
