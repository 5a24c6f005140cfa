/* Q4_0: 32 weights in 18 bytes, w[i] = d * (q[i] - 8), q in 0..15.
 *
 *   bytes 0..1    d, half
 *   bytes 2..17   q: low nibbles are weights 0..15, high nibbles weights 16..31
 *
 * Read by C, CUDA and Metal alike: no pointers without an address space, no library calls. Decoding is exact in F32 (a
 * half times a small integer), so every backend gives the same bits; checked against tests/data/decode/Q4_0.
 */
#ifndef FIRN_FORMAT_Q4_0_H
#define FIRN_FORMAT_Q4_0_H

#include "format/common.h"

typedef struct {
    firn_half d;
    uint8_t q[16];
} firn_q4_0;
FIRN_SIZE_IS(firn_q4_0, 18);

/* Weights 16h .. 16h+15 of one block: the unit in which the GPU kernels decode. */
FIRN_INLINE void firn_q4_0_decode16(FIRN_GLOBAL const firn_q4_0 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_half_to_float(b->d);
    const int shift = 4 * h;

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)(((b->q[i] >> shift) & 15) - 8);
}

#endif
