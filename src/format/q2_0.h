/* Q2_0: 64 weights in 18 bytes, w[i] = d * (q[i] - 1), q in 0..3.
 *
 *   bytes 0..1    d, half
 *   bytes 2..17   weight i is bits 2(i % 4), 2(i % 4) + 1 of byte i / 4
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q2_0_H
#define FIRN_FORMAT_Q2_0_H

#include "format/common.h"

typedef struct {
    firn_half d;
    uint8_t q[16];
} firn_q2_0;
FIRN_SIZE_IS(firn_q2_0, 18);

FIRN_INLINE void firn_q2_0_decode16(FIRN_GLOBAL const firn_q2_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)(((b->q[4 * h + (i >> 2)] >> (2 * (i & 3))) & 3) - 1);
}

#endif
