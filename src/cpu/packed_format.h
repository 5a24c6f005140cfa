/* Where the codes and scales of packed formats lie, as the vector kernels walk them.
 *
 * A row is walked in units of 32 elements: two runs of 16 columns. For nibble formats the runs are the low and the high
 * halves of the same 16 bytes, so that no byte is unpacked twice. The value is always
 *     w = scale * code + shift
 * with one scale (and shift) per run; scale * code is exact in F32 for all of them, so one fused multiply-add gives the
 * scalar decoder's bits. Functions take the type as a constant and are inlined: the choice is made by the compiler.
 *
 *            code                        scale                shift            scales in a span of 256
 *   q4_0     nibble                      d                    -8 d             8
 *   q4_1     nibble                      d                    m                8
 *   q5_0     5 bits - 16                 d                                     8
 *   q5_1     5 bits                      d                    m                8
 *   q8_0     int8                        d                                     8
 *   q4_K     nibble                      d * 6 bits           -dmin * 6 bits   8
 *   q5_K     5 bits                      d * 6 bits           -dmin * 6 bits   8
 *   q6_K     6 bits - 32                 d * int8                              16
 *   iq4_nl   table of 16 int8            d                                     8
 *   iq4_xs   table of 16 int8            d * (6 bits - 32)                     8
 *   mxfp4    table of 16, doubled        2^(e - 128)                           8
 *   q2_K     2 bits                      d * 4 bits           -dmin * 4 bits   16
 *   q3_K     3 bits - 4                  d * (6 bits - 32)                     16
 *   nvfp4    table of 16, doubled        half of E4M3                          16
 *   f16, bf16, f32: the weight itself
 *
 * The layouts are GGUF's; src/format/ has one header each. */
#ifndef FIRN_CPU_PACKED_FORMAT_H
#define FIRN_CPU_PACKED_FORMAT_H

#include "cpu/kernel_set.h"

#include <string.h>

#if defined(__OPTIMIZE__) && !defined(FIRN_LEAVE_INLINING)
#define INLINE static inline __attribute__((always_inline))
#else
/* Left to themselves for debuggers and sanitizers: forced inlining of all instances would take minutes. */
#define INLINE static inline
#endif

INLINE int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum { SPAN_UNITS = FIRN_SPAN / FIRN_UNIT };

INLINE bool has_shift(firn_type f)
{
    return f == FIRN_Q4_0 || f == FIRN_Q4_1 || f == FIRN_Q5_1 || f == FIRN_Q4_K || f == FIRN_Q5_K || f == FIRN_Q2_K;
}

/* No scales: the codes are the weights. */
INLINE bool is_plain(firn_type f)
{
    return f == FIRN_F32 || f == FIRN_F16 || f == FIRN_BF16;
}

/* The nibbles are places in a table. */
INLINE bool is_looked_up(firn_type f)
{
    return f == FIRN_IQ4_NL || f == FIRN_IQ4_XS || f == FIRN_MXFP4;
}

/* Nibbles of runs 32 columns apart: a unit spans two scales. */
INLINE bool is_paired(firn_type f)
{
    return f == FIRN_Q4_K || f == FIRN_Q5_K;
}

/* Each run of a unit has a scale of its own. */
INLINE bool is_fine(firn_type f)
{
    return f == FIRN_Q6_K || f == FIRN_Q2_K || f == FIRN_Q3_K || f == FIRN_NVFP4;
}

INLINE bool one_scale(firn_type f) /* for both runs of a unit */
{
    return !is_paired(f) && !is_fine(f);
}

INLINE bool in_blocks_of_256(firn_type f)
{
    return is_paired(f) || f == FIRN_Q6_K || f == FIRN_IQ4_XS || f == FIRN_Q2_K || f == FIRN_Q3_K;
}

INLINE int64_t block_bytes(firn_type f)
{
    switch (f) {
    case FIRN_Q4_0:
        return 18;
    case FIRN_Q4_1:
        return 20;
    case FIRN_Q5_0:
        return 22;
    case FIRN_Q5_1:
        return 24;
    case FIRN_Q8_0:
        return 34;
    case FIRN_Q4_K:
        return 144;
    case FIRN_Q5_K:
        return 176;
    case FIRN_Q6_K:
        return 210;
    case FIRN_IQ4_NL:
        return 18;
    case FIRN_IQ4_XS:
        return 136;
    case FIRN_MXFP4:
        return 17;
    case FIRN_Q2_K:
        return 84;
    case FIRN_Q3_K:
        return 110;
    case FIRN_NVFP4: /* of 64 */
        return 36;
    case FIRN_F16:
    case FIRN_BF16:
        return 2;
    default:
        return 4;
    }
}

INLINE int64_t span_bytes(firn_type f)
{
    return block_bytes(f) * (in_blocks_of_256(f) ? 1 : f == FIRN_NVFP4 ? 4 : is_plain(f) ? FIRN_SPAN : SPAN_UNITS);
}

typedef struct {
    int64_t bytes, high;       /* offsets in the row: of its codes, of their high bits */
    int low_shift, high_shift; /* q6_K, q5_K, q2_K, q3_K: where the bits are in those bytes */
    int column[2];             /* first column of each run of 16, counted from the first unit's */
    int scale[2];              /* index of each run's scale */
} unit_place;

/* Unit first + j, j < 8. */
INLINE unit_place place_of(firn_type f, int64_t first, int j)
{
    const int64_t block = in_blocks_of_256(f) ? first / SPAN_UNITS * block_bytes(f) : (first + j) * block_bytes(f);
    unit_place u = {.column = {FIRN_UNIT * j, FIRN_UNIT * j + 16}, .scale = {j, j}};

    switch (f) {
    case FIRN_Q4_0:
    case FIRN_Q8_0:
    case FIRN_IQ4_NL:
        u.bytes = block + 2;
        break;
    case FIRN_Q4_1:
        u.bytes = block + 4;
        break;
    case FIRN_MXFP4:
        u.bytes = block + 1;
        break;
    case FIRN_Q5_0:
        u.high = block + 2;
        u.bytes = block + 6;
        break;
    case FIRN_Q5_1:
        u.high = block + 4;
        u.bytes = block + 8;
        break;
    case FIRN_Q4_K: /* 32 bytes hold 64 columns: bytes 0..15 hold columns 0..15 and 32..47 */
    case FIRN_Q5_K:
        u.bytes = block + (f == FIRN_Q4_K ? 16 : 48) + 16 * j;
        u.high = block + 16 + 16 * (j % 2);
        u.high_shift = j / 2 * 2;
        u.column[0] = 64 * (j / 2) + 16 * (j % 2);
        u.column[1] = u.column[0] + 32;
        u.scale[0] = j / 2 * 2;
        u.scale[1] = u.scale[0] + 1;
        break;
    case FIRN_Q6_K:
        u.bytes = block + 64 * (j / 4) + 32 * (j % 2);
        u.high = block + 128 + 32 * (j / 4);
        u.low_shift = j % 4 / 2 * 4;
        u.high_shift = j % 4 * 2;
        u.scale[0] = 2 * j;
        u.scale[1] = 2 * j + 1;
        break;
    case FIRN_IQ4_XS:
        u.bytes = block + 8 + 16 * j;
        break;
    case FIRN_Q2_K:
    case FIRN_Q3_K:
        u.bytes = block + (f == FIRN_Q2_K ? 16 : 32) + 32 * (j / 4);
        u.low_shift = j % 4 * 2;
        u.high = block;
        u.high_shift = j;
        u.scale[0] = 2 * j;
        u.scale[1] = 2 * j + 1;
        break;
    case FIRN_NVFP4:
        u.bytes = (first + j) / 2 * block_bytes(f) + 4 + 16 * ((first + j) % 2);
        u.scale[0] = 2 * j;
        u.scale[1] = 2 * j + 1;
        break;
    default:
        u.bytes = block * FIRN_UNIT;
        break; /* F32, F16, BF16 */
    }
    return u;
}

INLINE uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE uint16_t load16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
