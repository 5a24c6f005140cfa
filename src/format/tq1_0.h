/* TQ1_0: 256 weights in 54 bytes, w[i] = d * t[i], t in -1, 0, 1: five base-3 digits in a byte.
 *
 *   bytes 0..31    weights 32p + i: digit p (first of five) of byte i
 *   bytes 32..47   weights 160 + 16p + i: digit p of byte 32 + i
 *   bytes 48..51   weights 240 + 4p + i: digit p (of four) of byte 48 + i
 *   bytes 52..53   d, half
 *
 * A byte is its digits as a fraction of 256, rounded up: multiplying by 3^p shifts p digits out, and the next one is
 * what 3 times the remaining fraction carries over. Exact in F32. */
#ifndef FIRN_FORMAT_TQ1_0_H
#define FIRN_FORMAT_TQ1_0_H

#include "format/common.h"

typedef struct {
    uint8_t q[48];
    uint8_t rest[4];
    firn_half d;
} firn_tq1_0;
FIRN_SIZE_IS(firn_tq1_0, 54);

/* Digit p of a byte, minus one. 3^p = 1, 3, 9, 27, 81. */
FIRN_INLINE int firn_tq1_0_digit(int byte, int p)
{
    const int power = p == 0 ? 1 : p == 1 ? 3 : p == 2 ? 9 : p == 3 ? 27 : 81;

    return (((byte * power) & 255) * 3 >> 8) - 1;
}

FIRN_INLINE void firn_tq1_0_decode16(FIRN_GLOBAL const firn_tq1_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);

    for (int i = 0; i < 16; i++) {
        const int digit = h < 10   ? firn_tq1_0_digit(b->q[16 * (h & 1) + i], h >> 1)
                          : h < 15 ? firn_tq1_0_digit(b->q[32 + i], h - 10)
                                   : firn_tq1_0_digit(b->rest[i & 3], i >> 2);
        w[i] = d * (float)digit;
    }
}

#endif
