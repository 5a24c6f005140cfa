/* Q3_K: 256 weights in 110 bytes, sixteen groups of 16, w[i] = d * (s - 32) * (q[i] - 4), q in 0..7, s in 0..63.
 *
 *   bytes 0..31      third bit of q: weights 32j + i (i < 32) are bit j of byte i
 *   bytes 32..95     two bits of q: weights 128n + 32j + i are bits 2j, 2j+1 of byte 32n + i
 *   bytes 96..107    s: its low four bits are nibbles (groups 0..7 low, 8..15 high) of the first eight bytes, its high
 *                    two bits those numbered g / 4 of byte 8 + g % 4
 *   bytes 108..109   d, half
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q3_K_H
#define FIRN_FORMAT_Q3_K_H

#include "format/common.h"

typedef struct {
    uint8_t high[32];
    uint8_t q[64];
    uint8_t scale[12];
    firn_half d;
} firn_q3_K;
FIRN_SIZE_IS(firn_q3_K, 110);

/* s - 32 of a group. */
FIRN_INLINE int firn_q3_K_scale(FIRN_GLOBAL const firn_q3_K *b, int g)
{
    const int low = (b->scale[g & 7] >> (4 * (g >> 3))) & 15;
    const int high = (b->scale[8 + (g & 3)] >> (2 * (g >> 2))) & 3;

    return (low | high << 4) - 32;
}

FIRN_INLINE void firn_q3_K_decode16(FIRN_GLOBAL const firn_q3_K *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d) * (float)firn_q3_K_scale(b, h);
    FIRN_GLOBAL const uint8_t *q = b->q + 32 * (h >> 3) + 16 * (h & 1);
    FIRN_GLOBAL const uint8_t *high = b->high + 16 * (h & 1);
    const int shift = 2 * ((h >> 1) & 3);
    const int bit = h >> 1;

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)((((q[i] >> shift) & 3) | ((high[i] >> bit) & 1) << 2) - 4);
}

#endif
