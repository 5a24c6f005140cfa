/* Q5_0: 32 weights in 22 bytes, w[i] = d * (q[i] - 16), q in 0..31.
 *
 *   bytes 0..1    d, half
 *   bytes 2..5    bit i (little-endian) is the fifth bit of q[i]
 *   bytes 6..21   four bits of q: low nibbles are weights 0..15, high nibbles weights 16..31
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q5_0_H
#define FIRN_FORMAT_Q5_0_H

#include "format/common.h"

typedef struct {
    firn_half d;
    uint8_t high[4];
    uint8_t q[16];
} firn_q5_0;
FIRN_SIZE_IS(firn_q5_0, 22);

FIRN_INLINE void firn_q5_0_decode16(FIRN_GLOBAL const firn_q5_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    const uint32_t high = b->high[2 * h] | (uint32_t)b->high[2 * h + 1] << 8;
    const int shift = 4 * h;

    for (int i = 0; i < 16; i++) {
        const int fifth = (int)((high >> i) & 1) << 4;
        w[i] = d * (float)((((b->q[i] >> shift) & 15) | fifth) - 16);
    }
}

#endif
