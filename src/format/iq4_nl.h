/* IQ4_NL: 32 weights in 18 bytes, w[i] = d * level[q[i]], q in 0..15: sixteen levels that lie denser near zero.
 *
 *   bytes 0..1    d, half
 *   bytes 2..17   q: low nibbles are weights 0..15, high nibbles weights 16..31
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_IQ4_NL_H
#define FIRN_FORMAT_IQ4_NL_H

#include "format/common.h"

typedef struct {
    firn_half d;
    uint8_t q[16];
} firn_iq4_nl;
FIRN_SIZE_IS(firn_iq4_nl, 18);

FIRN_TABLE int8_t firn_iq4_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

FIRN_INLINE void firn_iq4_nl_decode16(FIRN_GLOBAL const firn_iq4_nl *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    const int shift = 4 * h;

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)firn_iq4_level[(b->q[i] >> shift) & 15];
}

#endif
