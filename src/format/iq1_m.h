/* IQ1_M: 256 weights in 56 bytes, sixteen groups of two vectors of 8, w[i] = d * (2s + 1) * (t[i] +- 1/8), t the values
 * -1, 0, 1 of a grid point of IQ1_S.
 *
 *   bytes 0..31    low eight bits of the vectors' grid points
 *   bytes 32..47   nibble v: three high bits of vector v's grid point, the sign of its 1/8
 *   bytes 48..55   four 16-bit words: s of four groups (3 bits each), and a quarter of d (a half), lowest first, on top
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_IQ1_M_H
#define FIRN_FORMAT_IQ1_M_H

#include "format/iq1_s.h"

typedef struct {
    uint8_t q[32];
    uint8_t high[16];
    uint16_t scale[4];
} firn_iq1_m;
FIRN_SIZE_IS(firn_iq1_m, 56);

FIRN_INLINE void firn_iq1_m_decode16(FIRN_GLOBAL const firn_iq1_m *b, int h, FIRN_LOCAL float *w)
{
    const int bits =
        b->scale[0] >> 12 | (b->scale[1] >> 12) << 4 | (b->scale[2] >> 12) << 8 | (b->scale[3] >> 12) << 12;
    const int s = (b->scale[h >> 2] >> (3 * (h & 3))) & 7;
    const float d = firn_half_to_float((firn_half)bits) * (float)(2 * s + 1);

    for (int k = 0; k < 2; k++) {
        const int high = b->high[h] >> (4 * k);
        const int q = b->q[2 * h + k] | (high & 7) << 8;
        firn_iq1_vector(d, firn_iq1_grid[q], high & 8 ? -0.125f : 0.125f, w + 8 * k);
    }
}

#endif
