/* Q6_K: 256 weights in 210 bytes, sixteen groups of 16, w[i] = d * s * (q[i] - 32), q in 0..63, s in -128..127.
 *
 *   bytes 0..127     four bits of q: weights 128n + 32j + i (i < 32) are byte 64n + 32(j % 2) + i, low nibble for
 *                    j < 2, high nibble after
 *   bytes 128..191   two bits of q: weights 128n + 32j + i are bits 2j, 2j+1 of byte 32n + i
 *   bytes 192..207   s of the groups, signed bytes
 *   bytes 208..209   d, half
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q6_K_H
#define FIRN_FORMAT_Q6_K_H

#include "format/common.h"

typedef struct {
    uint8_t q[128];
    uint8_t high[64];
    int8_t scale[16];
    firn_half d;
} firn_q6_K;
FIRN_SIZE_IS(firn_q6_K, 210);

FIRN_INLINE void firn_q6_K_decode16(FIRN_GLOBAL const firn_q6_K *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d) * (float)b->scale[h];
    const int n = h >> 3, j = (h >> 1) & 3, low = 16 * (h & 1);
    FIRN_GLOBAL const uint8_t *q = b->q + 64 * n + 32 * (j & 1) + low;
    FIRN_GLOBAL const uint8_t *high = b->high + 32 * n + low;
    const int shift = 4 * (j >> 1);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)((((q[i] >> shift) & 15) | ((high[i] >> (2 * j)) & 3) << 4) - 32);
}

#endif
