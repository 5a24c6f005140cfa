/* IQ4_XS: 256 weights in 136 bytes, eight groups of 32, w[i] = d * (s - 32) * level[q[i]], q in 0..15, s in 0..63, the
 * levels of IQ4_NL.
 *
 *   bytes 0..1      d, half
 *   bytes 2..3      high two bits of s: group g is bits 2g, 2g+1 (little-endian)
 *   bytes 4..7      low four bits of s: nibble g
 *   bytes 8..135    q: group g in bytes 16g .. 16g+15, low nibbles its weights 0..15, high nibbles 16..31
 *
 * Exact in F32. */
#ifndef FIRN_FORMAT_IQ4_XS_H
#define FIRN_FORMAT_IQ4_XS_H

#include "format/iq4_nl.h"

typedef struct {
    firn_half d;
    uint16_t scale_high;
    uint8_t scale_low[4];
    uint8_t q[128];
} firn_iq4_xs;
FIRN_SIZE_IS(firn_iq4_xs, 136);

/* s - 32 of a group. */
FIRN_INLINE int firn_iq4_xs_scale(FIRN_GLOBAL const firn_iq4_xs *b, int g)
{
    return (((b->scale_low[g >> 1] >> (4 * (g & 1))) & 15) | ((b->scale_high >> (2 * g)) & 3) << 4) - 32;
}

FIRN_INLINE void firn_iq4_xs_decode16(FIRN_GLOBAL const firn_iq4_xs *b, int h, FIRN_LOCAL float *w)
{
    const int g = h >> 1;
    const float d = firn_half_to_float(b->d) * (float)firn_iq4_xs_scale(b, g);
    FIRN_GLOBAL const uint8_t *q = b->q + 16 * g;
    const int shift = 4 * (h & 1);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)firn_iq4_level[(q[i] >> shift) & 15];
}

#endif
