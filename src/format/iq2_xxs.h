/* IQ2_XXS: 256 weights in 66 bytes, eight groups of 32 in four vectors of 8, w[i] = d * (s + 1/2) / 4 * (+-level).
 *
 *   bytes 0..1    d, half
 *   bytes 2..65   a group's eight bytes: four indices of grid points (one per vector), then 32 bits: seven bits of
 * signs per vector, s in the top four
 *
 * The levels of a grid point's codes are 8, 25, 43. The eighth sign makes the number of minuses even. Exact in F32. */
#ifndef FIRN_FORMAT_IQ2_XXS_H
#define FIRN_FORMAT_IQ2_XXS_H

#include "format/grids.h"

typedef struct {
    firn_half d;
    uint8_t q[64];
} firn_iq2_xxs;
FIRN_SIZE_IS(firn_iq2_xxs, 66);

/* Seven signs and the one that makes their number even. */
FIRN_INLINE int firn_iq_signs(int seven)
{
    int parity = seven ^ seven >> 4;

    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & 1) << 7;
}

/* Eight weights: the vector of a grid point of IQ2_XXS, IQ2_XS and IQ2_S under its signs. */
FIRN_INLINE void firn_iq2_vector(float d, int point, int signs, FIRN_LOCAL float *w)
{
    for (int i = 0; i < 8; i++) {
        const int level = (0x2b1908 >> 8 * ((point >> (2 * i)) & 3)) & 255;
        w[i] = d * (float)((signs >> i) & 1 ? -level : level);
    }
}

FIRN_INLINE void firn_iq2_xxs_decode16(FIRN_GLOBAL const firn_iq2_xxs *b, int h, FIRN_LOCAL float *w)
{
    FIRN_GLOBAL const uint8_t *q = b->q + 8 * (h >> 1);
    const uint32_t word = q[4] | (uint32_t)q[5] << 8 | (uint32_t)q[6] << 16 | (uint32_t)q[7] << 24;
    const float d = firn_half_to_float(b->d) * ((float)(word >> 28) + 0.5f) * 0.25f;

    for (int k = 0; k < 2; k++) {
        const int v = 2 * (h & 1) + k;
        firn_iq2_vector(d, firn_iq2_xxs_grid[q[v]], firn_iq_signs((int)(word >> (7 * v)) & 127), w + 8 * k);
    }
}

#endif
