/* TQ2_0: 256 weights in 66 bytes, w[i] = d * (q[i] - 1), q in 0..3.
 *
 *   bytes 0..63    weights 128n + 32j + i (i < 32) are bits 2j, 2j+1 of byte 32n + i
 *   bytes 64..65   d, half
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_TQ2_0_H
#define FIRN_FORMAT_TQ2_0_H

#include "format/common.h"

typedef struct {
    uint8_t q[64];
    firn_half d;
} firn_tq2_0;
FIRN_SIZE_IS(firn_tq2_0, 66);

FIRN_INLINE void firn_tq2_0_decode16(FIRN_GLOBAL const firn_tq2_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    FIRN_GLOBAL const uint8_t *q = b->q + 32 * (h >> 3) + 16 * (h & 1);
    const int shift = 2 * ((h >> 1) & 3);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)(((q[i] >> shift) & 3) - 1);
}

#endif
