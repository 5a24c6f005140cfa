/* Q8_0: 32 weights in 34 bytes, w[i] = d * q[i], q in -128..127.
 *
 *   bytes 0..1    d, half
 *   bytes 2..33   q, signed bytes
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_Q8_0_H
#define FIRN_FORMAT_Q8_0_H

#include "format/common.h"

typedef struct {
    firn_half d;
    int8_t q[32];
} firn_q8_0;
FIRN_SIZE_IS(firn_q8_0, 34);

FIRN_INLINE void firn_q8_0_decode16(FIRN_GLOBAL const firn_q8_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)b->q[16 * h + i];
}

#endif
