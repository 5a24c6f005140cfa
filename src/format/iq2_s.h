/* IQ2_S: 256 weights in 82 bytes, sixteen groups of two vectors of 8, w[i] = d * (s + 1/2) / 4 * (+-level).
 *
 *   bytes 0..1     d, half
 *   bytes 2..33    low eight bits of the vectors' grid points
 *   bytes 34..65   their signs, all eight
 *   bytes 66..73   high two bits of the grid points: vector v is bits 2(v % 4), 2(v % 4) + 1 of byte v / 4
 *   bytes 74..81   s: nibble g
 *
 * Levels as in IQ2_XXS. Exact in F32. */
#ifndef FIRN_FORMAT_IQ2_S_H
#define FIRN_FORMAT_IQ2_S_H

#include "format/iq2_xxs.h"

typedef struct {
    firn_half d;
    uint8_t q[32];
    uint8_t sign[32];
    uint8_t high[8];
    uint8_t scale[8];
} firn_iq2_s;
FIRN_SIZE_IS(firn_iq2_s, 82);

FIRN_INLINE void firn_iq2_s_decode16(FIRN_GLOBAL const firn_iq2_s *b, int h, FIRN_LOCAL float *w)
{
    const int s = (b->scale[h >> 1] >> (4 * (h & 1))) & 15;
    const float d = firn_half_to_float(b->d) * ((float)s + 0.5f) * 0.25f;

    for (int k = 0; k < 2; k++) {
        const int v = 2 * h + k;
        const int q = b->q[v] | ((b->high[v >> 2] >> (2 * (v & 3))) & 3) << 8;
        firn_iq2_vector(d, firn_iq2_s_grid[q], b->sign[v], w + 8 * k);
    }
}

#endif
