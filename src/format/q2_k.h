/* Q2_K: 256 weights in 84 bytes, sixteen groups of 16, w[i] = (d * s) * q[i] - dmin * m, q in 0..3, s and m in 0..15.
 *
 *   bytes 0..15    group g: s is the low nibble of byte g, m the high one
 *   bytes 16..79   q: weights 128n + 32j + i (i < 32) are bits 2j, 2j+1 of byte 32n + i
 *   bytes 80..81   d, half
 *   bytes 82..83   dmin, half
 *
 * Both products are exact in F32; the difference rounds, once. */
#ifndef FIRN_FORMAT_Q2_K_H
#define FIRN_FORMAT_Q2_K_H

#include "format/common.h"

typedef struct {
    uint8_t scale[16];
    uint8_t q[64];
    firn_half d, dmin;
} firn_q2_K;
FIRN_SIZE_IS(firn_q2_K, 84);

FIRN_INLINE void firn_q2_K_decode16(FIRN_GLOBAL const firn_q2_K *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d) * (float)(b->scale[h] & 15);
    const float m = firn_half_to_float(b->dmin) * (float)(b->scale[h] >> 4);
    FIRN_GLOBAL const uint8_t *q = b->q + 32 * (h >> 3) + 16 * (h & 1);
    const int shift = 2 * ((h >> 1) & 3);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)((q[i] >> shift) & 3) - m;
}

#endif
