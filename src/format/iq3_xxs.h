/* IQ3_XXS: 256 weights in 98 bytes, eight groups of 32 in eight vectors of 4, w[i] = d * (s + 1/2) / 2 * (+-level).
 *
 *   bytes 0..1     d, half
 *   bytes 2..65    indices of the vectors' grid points
 *   bytes 66..97   32 bits per group: seven bits of signs per two vectors, s in the top four
 *
 * Code c of a grid point has the level 8c + 4, the last one 62. The eighth sign makes the number of minuses even. Exact
 * in F32. */
#ifndef FIRN_FORMAT_IQ3_XXS_H
#define FIRN_FORMAT_IQ3_XXS_H

#include "format/iq2_xxs.h"

typedef struct {
    firn_half d;
    uint8_t q[64];
    uint8_t sign[32];
} firn_iq3_xxs;
FIRN_SIZE_IS(firn_iq3_xxs, 98);

FIRN_INLINE void firn_iq3_xxs_decode16(FIRN_GLOBAL const firn_iq3_xxs *b, int h, FIRN_LOCAL float *w)
{
    FIRN_GLOBAL const uint8_t *s = b->sign + 4 * (h >> 1);
    const uint32_t word = s[0] | (uint32_t)s[1] << 8 | (uint32_t)s[2] << 16 | (uint32_t)s[3] << 24;
    const float d = firn_half_to_float(b->d) * ((float)(word >> 28) + 0.5f) * 0.5f;

    for (int i = 0; i < 16; i++) {
        const int code = (firn_iq3_xxs_grid[b->q[4 * h + (i >> 2)]] >> (4 * (i & 3))) & 15;
        const int level = code < 7 ? 8 * code + 4 : 62;
        const int signs = firn_iq_signs((int)(word >> (7 * (2 * (h & 1) + (i >> 3)))) & 127);
        w[i] = d * (float)((signs >> (i & 7)) & 1 ? -level : level);
    }
}

#endif
