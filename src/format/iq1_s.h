/* IQ1_S: 256 weights in 50 bytes, eight groups of 32 in four vectors of 8, w[i] = d * (2s + 1) * (t[i] +- 1/8), t the
 * values -1, 0, 1 of a grid point.
 *
 *   bytes 0..1     d, half
 *   bytes 2..33    low eight bits of the vectors' grid points
 *   bytes 34..49   16 bits per group: three high bits of each vector's grid point, s (3 bits), the sign of 1/8
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_IQ1_S_H
#define FIRN_FORMAT_IQ1_S_H

#include "format/grids.h"

typedef struct {
    firn_half d;
    uint8_t q[32];
    uint16_t high[8];
} firn_iq1_s;
FIRN_SIZE_IS(firn_iq1_s, 50);

/* Eight weights of IQ1_S and IQ1_M. */
FIRN_INLINE void firn_iq1_vector(float d, int point, float shift, FIRN_LOCAL float *w)
{
    for (int i = 0; i < 8; i++)
        w[i] = d * ((float)(((point >> (2 * i)) & 3) - 1) + shift);
}

FIRN_INLINE void firn_iq1_s_decode16(FIRN_GLOBAL const firn_iq1_s *b, int h, FIRN_LOCAL float *w)
{
    const int high = b->high[h >> 1];
    const float d = firn_half_to_float(b->d) * (float)(2 * ((high >> 12) & 7) + 1);

    for (int k = 0; k < 2; k++) {
        const int v = 2 * h + k;
        const int q = b->q[v] | ((high >> (3 * (v & 3))) & 7) << 8;
        firn_iq1_vector(d, firn_iq1_grid[q], high & 0x8000 ? -0.125f : 0.125f, w + 8 * k);
    }
}

#endif
