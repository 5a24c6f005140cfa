/* The micro-kernel, for any vector width and precision (vector_x86.h). The including file
 * says FIRN_STRIP, the highest strip, and FIRN_EACH_STRIP(X), X of every height up to it, FIRN_DIRECT and
 * FIRN_EACH_DIRECT(X) likewise for rows where they lie, and makes its row of functions. */
#include "cpu/vector_x86.h"

/* ---- the micro-kernel ----
 *
 * height x 2 vectors: one panel of two AVX2 vectors, or two panels of one AVX-512 vector each. AVX2 6 x 16: twelve sums
 * hide the latency of two fused multiply-adds a cycle (4 cycles), two registers hold the panel's row, one the
 * broadcast: 15 of 16. AVX-512 14 x 32: 28 sums, 31 of 32. */

/* Where vector h of a tile's row lies in C, and how many of its lanes there are. */
INLINE int64_t column_of(const firn_tile_out *out, int h)
{
    return LANES == 16 ? out->column[h] : out->column[0] + LANES * h;
}

INLINE int64_t lanes_of(const firn_tile_out *out, int h)
{
    return LANES == 16 ? out->n_columns[h] : out->n_columns[0] - LANES * h;
}

INLINE void tile_begin(const int height, const int vectors, vf sum[][2])
{
#pragma GCC unroll 16
    for (int i = 0; i < height; i++)
#pragma GCC unroll 2
        for (int h = 0; h < vectors; h++)
            sum[i][h] = vf_zero();
}

INLINE void tile_end(const int height, const int vectors, vf sum[][2], const firn_tile_out *out)
{
#pragma GCC unroll 2
    for (int h = 0; h < vectors; h++) {
        const int64_t column = column_of(out, h), n = lanes_of(out, h);
        if (n < LANES) { /* the ragged right edge of C */
#pragma GCC unroll 16
            for (int i = 0; i < height; i++) {
                float *c = out->c[i] + column;
                vf_store_part(c, n, out->add ? vf_add(vf_load_part(c, n), sum[i][h]) : sum[i][h]);
            }
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < height; i++) {
            float *c = out->c[i] + column;
            vf_store(c, out->add ? vf_add(vf_load(c), sum[i][h]) : sum[i][h]);
        }
    }
}

/* The broadcast operand is a strip, or with `row` given rows where they lie. */
INLINE void tile_step(const int height, const int vectors, vf sum[][2], const float *strip, const float *const *row,
                      int64_t p, const float *first, const float *second)
{
    const vf low = vf_load(first), high = vectors == 2 ? vf_load(second) : low;
#pragma GCC unroll 16
    for (int i = 0; i < height; i++) {
        const vf a = vf_all(row ? row[i] + p : strip + i);
        sum[i][0] = cell_dot(a, low, sum[i][0]);
        if (vectors == 2)
            sum[i][1] = cell_dot(a, high, sum[i][1]);
    }
}

INLINE void tile_of(const int height, const int vectors, int64_t steps, const float *strip, const float *const panel[2],
                    const firn_tile_out *out, firn_ahead *ahead)
{
    vf sum[FIRN_STRIP][2];
    const float *first = panel[0], *second = LANES == 16 ? panel[1] : panel[0] + LANES;

    const int64_t rows = FIRN_PACE * height / steps + 1; /* of C, asked for at each pause */
    int64_t asked = 0;

    tile_begin(height, vectors, sum);
    for (int64_t p = 0; p < steps;) {
        const int64_t pause = smaller(p + FIRN_PACE, steps), ask = smaller(asked + rows, height);
        firn_look_ahead(ahead);
        ask_for_c(asked, ask, vectors, out);
        asked = ask;
#pragma GCC unroll 4
        for (; p < pause; p++, first += FIRN_PANEL, second += FIRN_PANEL, strip += height)
            tile_step(height, vectors, sum, strip, NULL, 0, first, second);
    }
    tile_end(height, vectors, sum, out);
}

#define TILE(height)                                                                                                   \
    static void tile_##height(int64_t steps, const float *strip, const float *const panel[2],                          \
                              const firn_tile_out *out, firn_ahead *ahead)                                             \
    {                                                                                                                  \
        if (LANES == 8 || out->n_columns[1] > 0)                                                                       \
            tile_of(height, 2, steps, strip, panel, out, ahead);                                                       \
        else                                                                                                           \
            tile_of(height, 1, steps, strip, panel, out, ahead);                                                       \
    }
FIRN_EACH_STRIP(TILE) /* heights as constants, so that the sums live in registers */
#undef TILE

static void tile(int height, int64_t steps, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
#define TILE(height) tile_##height,
    static void (*const tiles[])(int64_t, const float *, const float *const[2], const firn_tile_out *,
                                 firn_ahead *) = {FIRN_EACH_STRIP(TILE)};
#undef TILE
    tiles[height - 1](steps, strip, panel, out, ahead);
}

#if !defined(FIRN_BF16_CELLS)
INLINE void tile_rows_of(const int height, const int vectors, int64_t depth, const float *const *rows, int64_t at,
                         const float *const panel[2], const firn_tile_out *out)
{
    vf sum[FIRN_DIRECT][2];
    const float *row[FIRN_DIRECT], *first = panel[0], *second = LANES == 16 ? panel[1] : panel[0] + LANES;

    tile_begin(height, vectors, sum);
#pragma GCC unroll 8
    for (int i = 0; i < height; i++)
        row[i] = rows[i] + at;
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p++, first += FIRN_PANEL, second += FIRN_PANEL)
        tile_step(height, vectors, sum, NULL, row, p, first, second);
    tile_end(height, vectors, sum, out);
}

#define TILE(height)                                                                                                   \
    static void tile_rows_##height(int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],   \
                                   const firn_tile_out *out)                                                           \
    {                                                                                                                  \
        if (LANES == 8 || out->n_columns[1] > 0)                                                                       \
            tile_rows_of(height, 2, depth, rows, at, panel, out);                                                      \
        else                                                                                                           \
            tile_rows_of(height, 1, depth, rows, at, panel, out);                                                      \
    }
FIRN_EACH_DIRECT(TILE)
#undef TILE

static void tile_rows(int height, int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],
                      const firn_tile_out *out)
{
#define TILE(height) tile_rows_##height,
    static void (*const tiles[])(int64_t, const float *const *, int64_t, const float *const[2],
                                 const firn_tile_out *) = {FIRN_EACH_DIRECT(TILE)};
#undef TILE
    tiles[height - 1](depth, rows, at, panel, out);
}
#endif
