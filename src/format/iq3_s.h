/* IQ3_S: 256 weights in 110 bytes, eight groups of 32 in eight vectors of 4, w[i] = d * (2s + 1) * (+-level).
 *
 *   bytes 0..1       d, half
 *   bytes 2..65      low eight bits of the vectors' grid points
 *   bytes 66..73     their ninth bits: vector v is bit v % 8 of byte v / 8
 *   bytes 74..105    signs: weight i is bit i % 8 of byte i / 8
 *   bytes 106..109   s: nibble g
 *
 * Code c of a grid point has the level 2c + 1. Exact in F32. */
#ifndef FIRN_FORMAT_IQ3_S_H
#define FIRN_FORMAT_IQ3_S_H

#include "format/grids.h"

typedef struct {
    firn_half d;
    uint8_t q[64];
    uint8_t high[8];
    uint8_t sign[32];
    uint8_t scale[4];
} firn_iq3_s;
FIRN_SIZE_IS(firn_iq3_s, 110);

FIRN_INLINE void firn_iq3_s_decode16(FIRN_GLOBAL const firn_iq3_s *b, int h, FIRN_LOCAL float *w)
{
    const int s = (b->scale[h >> 2] >> (4 * ((h >> 1) & 1))) & 15;
    const float d = firn_half_to_float(b->d) * (float)(2 * s + 1);

    for (int i = 0; i < 16; i++) {
        const int v = 4 * h + (i >> 2);
        const int point = firn_iq3_s_grid[b->q[v] | ((b->high[v >> 3] >> (v & 7)) & 1) << 8];
        const int level = 2 * ((point >> (4 * (i & 3))) & 15) + 1;
        w[i] = d * (float)((b->sign[2 * h + (i >> 3)] >> (i & 7)) & 1 ? -level : level);
    }
}

#endif
