/* MXFP4 (Open Compute Project, Microscaling Formats 1.0): 32 weights in 17 bytes, w[i] = 2^(e - 128) * level[q[i]].
 *
 *   byte 0        e: the block's exponent, E8M0. The levels are twice E2M1's, hence 128 where the norm has 127.
 *   bytes 1..16   q: low nibbles are weights 0..15, high nibbles weights 16..31
 *
 * As ggml has it, e = 255 is an ordinary scale and not NaN, and code 8 is +0. Exact in F32; e = 0 and e = 1 are
 * denormal scales. */
#ifndef FIRN_FORMAT_MXFP4_H
#define FIRN_FORMAT_MXFP4_H

#include "format/common.h"

typedef struct {
    uint8_t e;
    uint8_t q[16];
} firn_mxfp4;
FIRN_SIZE_IS(firn_mxfp4, 17);

/* Twice the values of E2M1; NVFP4 has the same. */
FIRN_TABLE int8_t firn_fp4_level[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* 2^(e - 128) */
FIRN_INLINE float firn_mxfp4_scale(int e)
{
    return firn_float_of_bits(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

FIRN_INLINE void firn_mxfp4_decode16(FIRN_GLOBAL const firn_mxfp4 *b, int h, FIRN_LOCAL float *w)
{
    const float d = firn_mxfp4_scale(b->e);
    const int shift = 4 * h;

    for (int i = 0; i < 16; i++)
        w[i] = d * (float)firn_fp4_level[(b->q[i] >> shift) & 15];
}

#endif
