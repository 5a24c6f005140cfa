/* Q5_K: 256 weights in 176 bytes, eight groups of 32, w[i] = (d * s) * q[i] - dmin * m, q in 0..31, s and m in 0..63.
 *
 *   bytes 0..1      d, half
 *   bytes 2..3      dmin, half
 *   bytes 4..15     s and m of the groups, as in Q4_K
 *   bytes 16..47    fifth bit of q: group g is bit g of byte i
 *   bytes 48..175   four bits of q: groups 2n (low nibbles) and 2n + 1 (high nibbles) in bytes 32n .. 32n+31
 *
 * Both products are exact in F32; the difference rounds, once. */
#ifndef FIRN_FORMAT_Q5_K_H
#define FIRN_FORMAT_Q5_K_H

#include "format/q4_k.h"

typedef struct {
    firn_half d, dmin;
    uint8_t scale[12];
    uint8_t high[32];
    uint8_t q[128];
} firn_q5_K;
FIRN_SIZE_IS(firn_q5_K, 176);

FIRN_INLINE void firn_q5_K_decode16(FIRN_GLOBAL const firn_q5_K *b, int h, FIRN_LOCAL float *w)
{
    const int g = h >> 1;
    const float d = firn_half_to_float(b->d) * (float)firn_k_scale(b->scale, g);
    const float m = firn_half_to_float(b->dmin) * (float)firn_k_min(b->scale, g);
    FIRN_GLOBAL const uint8_t *q = b->q + 32 * (g >> 1) + 16 * (h & 1);
    FIRN_GLOBAL const uint8_t *high = b->high + 16 * (h & 1);
    const int shift = 4 * (g & 1);

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)(((q[i] >> shift) & 15) | ((high[i] >> g) & 1) << 4) - m;
}

#endif
