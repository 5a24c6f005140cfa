/* IQ2_XS: 256 weights in 74 bytes, sixteen groups of two vectors of 8, w[i] = d * (s + 1/2) / 4 * (+-level).
 *
 *   bytes 0..1     d, half
 *   bytes 2..65    32 vectors, 16 bits each: the index of a grid point (9 bits), seven bits of signs
 *   bytes 66..73   s: nibble g
 *
 * Levels and signs as in IQ2_XXS. Exact in F32. */
#ifndef FIRN_FORMAT_IQ2_XS_H
#define FIRN_FORMAT_IQ2_XS_H

#include "format/iq2_xxs.h"

typedef struct {
    firn_half d;
    uint16_t q[32];
    uint8_t scale[8];
} firn_iq2_xs;
FIRN_SIZE_IS(firn_iq2_xs, 74);

FIRN_INLINE void firn_iq2_xs_decode16(FIRN_GLOBAL const firn_iq2_xs *b, int h, FIRN_LOCAL float *w)
{
    const int s = (b->scale[h >> 1] >> (4 * (h & 1))) & 15;
    const float d = firn_half_to_float(b->d) * ((float)s + 0.5f) * 0.25f;

    for (int k = 0; k < 2; k++) {
        const int q = b->q[2 * h + k];
        firn_iq2_vector(d, firn_iq2_xs_grid[q & 511], firn_iq_signs(q >> 9), w + 8 * k);
    }
}

#endif
