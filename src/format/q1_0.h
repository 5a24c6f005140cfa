/* Q1_0: 128 weights in 18 bytes, w[i] = d where bit i is set, -d where it is not.
 *
 *   bytes 0..1    d, half
 *   bytes 2..17   weight i is bit i % 8 of byte i / 8
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q1_0_H
#define FIRN_FORMAT_Q1_0_H

#include "format/common.h"

typedef struct {
    firn_half d;
    uint8_t q[16];
} firn_q1_0;
FIRN_SIZE_IS(firn_q1_0, 18);

FIRN_INLINE void firn_q1_0_decode16(FIRN_GLOBAL const firn_q1_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    const int bits = b->q[2 * h] | b->q[2 * h + 1] << 8;

    for (int i = 0; i < 16; i++)
        w[i] = (bits >> i) & 1 ? d : -d;
}

#endif
