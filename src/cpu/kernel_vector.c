/* The portable kernel set: the micro-kernel in vectors of four floats (the compilers' vector extension), which every
 * 64-bit processor has. Packing borrows the plain loops.
 *
 * A 6x16 tile is made as two 6x8 halves: twelve sums, two panel registers and a broadcast fit in sixteen registers. */
#include "cpu/kernel_set.h"

#include <string.h>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { STRIP = 6 };

typedef float f4 __attribute__((vector_size(16)));

static bool usable(void)
{
    return true;
}

static inline f4 load(const float *p)
{
    f4 v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline f4 multiply_add(f4 sum, f4 a, f4 b)
{
#if defined(__aarch64__)
    return (f4)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
    return sum + a * b;
#endif
}

/* rows NULL: the strip. */
static inline __attribute__((always_inline)) void half(const int height, int64_t depth, const float *strip,
                                                       const float *const *rows, int64_t at, const float *panel,
                                                       const firn_tile_out *out, int from)
{
    f4 sum[STRIP][2];

#pragma GCC unroll 6
    for (int i = 0; i < height; i++)
        sum[i][0] = sum[i][1] = (f4){0, 0, 0, 0};
    for (int64_t p = 0; p < depth; p++) {
        const f4 low = load(panel + p * FIRN_PANEL + from), high = load(panel + p * FIRN_PANEL + from + 4);
#pragma GCC unroll 6
        for (int i = 0; i < height; i++) {
            const float s = rows ? rows[i][at + p] : strip[p * height + i];
            const f4 a = {s, s, s, s};
            sum[i][0] = multiply_add(sum[i][0], a, low);
            sum[i][1] = multiply_add(sum[i][1], a, high);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < height; i++) {
        float edge[8], *c = out->c[i] + out->column[0] + from;
        const int n = out->n_columns[0] - from < 8 ? out->n_columns[0] - from : 8;
        memcpy(edge, &sum[i][0], sizeof sum[i][0]);
        memcpy(edge + 4, &sum[i][1], sizeof sum[i][1]);
        for (int j = 0; j < n; j++)
            c[j] = out->add ? c[j] + edge[j] : edge[j];
    }
}

static inline __attribute__((always_inline)) void both(const int height, int64_t depth, const float *strip,
                                                       const float *const *rows, int64_t at, const float *panel,
                                                       const firn_tile_out *out)
{
    half(height, depth, strip, rows, at, panel, out, 0);
    if (out->n_columns[0] > 8)
        half(height, depth, strip, rows, at, panel, out, 8);
}

/* Heights as constants, so that the sums live in registers. */
#define EACH_HEIGHT(strip, rows, at)                                                                                   \
    switch (height) {                                                                                                  \
    case 1:                                                                                                            \
        both(1, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    case 2:                                                                                                            \
        both(2, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    case 3:                                                                                                            \
        both(3, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    case 4:                                                                                                            \
        both(4, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    case 5:                                                                                                            \
        both(5, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    case 6:                                                                                                            \
        both(6, depth, strip, rows, at, panel[0], out);                                                                \
        break;                                                                                                         \
    }

static void tile(int height, int64_t depth, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
    (void)ahead;
    EACH_HEIGHT(strip, NULL, 0)
}

static void tile_rows(int height, int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],
                      const firn_tile_out *out)
{
    EACH_HEIGHT(NULL, rows, at)
}

const firn_kernel_set firn_kernel_set_vector = {
    .name = "vector",
    .usable = usable,
    .strip = STRIP,
    .strip_direct = STRIP,
    .strip_whole = 1,
    .panels = 1,
    .step_whole = 1,
    .tile = tile,
    .tile_rows = tile_rows,
    FIRN_SCALAR_PACKERS,
};
