/* Q5_1: 32 weights in 24 bytes, w[i] = d * q[i] + m, q in 0..31.
 *
 *   bytes 0..1    d, half
 *   bytes 2..3    m, half: the block's least weight
 *   bytes 4..7    bit i (little-endian) is the fifth bit of q[i]
 *   bytes 8..23   four bits of q: low nibbles are weights 0..15, high nibbles weights 16..31
 *
 * d * q is exact in F32; adding m rounds, once. */
#ifndef FIRN_FORMAT_Q5_1_H
#define FIRN_FORMAT_Q5_1_H

#include "format/common.h"

typedef struct {
    firn_half d, m;
    uint8_t high[4];
    uint8_t q[16];
} firn_q5_1;
FIRN_SIZE_IS(firn_q5_1, 24);

FIRN_INLINE void firn_q5_1_decode16(FIRN_GLOBAL const firn_q5_1 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    const float m = firn_half_to_float(b->m);
    const uint32_t high = b->high[2 * h] | (uint32_t)b->high[2 * h + 1] << 8;
    const int shift = 4 * h;

    for (int i = 0; i < 16; i++) {
        const int fifth = (int)((high >> i) & 1) << 4;
        w[i] = d * (float)(((b->q[i] >> shift) & 15) | fifth) + m;
    }
}

#endif
