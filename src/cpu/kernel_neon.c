/* The NEON kernel set of aarch64: a 6x16 tile with multiply-adds by lane, and decoding of the common formats in 16-byte
 * tables. Tried under user-mode emulation only (tests/aarch64), never on a processor: nothing is known of its speed. */
#if defined(__aarch64__)
#include "cpu/packed_format.h"
#include "format/common.h"
#include "format/format.h"
#include "format/mxfp4.h"

#include <arm_neon.h>

enum { STRIP = 6, QUADS = FIRN_PANEL / 4 };

static bool usable(void)
{
    return true;
}

/* ---- the micro-kernel: 24 sums, 4 vectors of the panel, 2 of the strip: 30 of 32 registers ---- */

INLINE void tile_end(const int height, float32x4_t sum[STRIP][QUADS], const firn_tile_out *out)
{
    for (int i = 0; i < height; i++) {
        float *c = out->c[i] + out->column[0];
        if (out->n_columns[0] < FIRN_PANEL) { /* the ragged right edge of C */
            float edge[FIRN_PANEL];
            for (int q = 0; q < QUADS; q++)
                vst1q_f32(edge + 4 * q, sum[i][q]);
            for (int j = 0; j < out->n_columns[0]; j++)
                c[j] = out->add ? c[j] + edge[j] : edge[j];
            continue;
        }
        for (int q = 0; q < QUADS; q++)
            vst1q_f32(c + 4 * q, out->add ? vaddq_f32(vld1q_f32(c + 4 * q), sum[i][q]) : sum[i][q]);
    }
}

#define ROW(i, a, lane)                                                                                                \
    if (height > i)                                                                                                    \
        for (int q = 0; q < QUADS; q++)                                                                                \
            sum[i][q] = vfmaq_laneq_f32(sum[i][q], b[q], a, lane);

/* rows NULL: the strip. */
INLINE void tile_of(const int height, int64_t depth, const float *strip, const float *const *rows, int64_t at,
                    const float *panel, const firn_tile_out *out, firn_ahead *ahead)
{
    float32x4_t sum[STRIP][QUADS];

    for (int i = 0; i < height; i++)
        for (int q = 0; q < QUADS; q++)
            sum[i][q] = vdupq_n_f32(0);
    for (int64_t p = 0; p < depth; p++, panel += FIRN_PANEL, strip += height) {
        float32x4_t b[QUADS], low, high;
        if (ahead && p % FIRN_PACE == 0)
            firn_look_ahead(ahead);
        for (int q = 0; q < QUADS; q++)
            b[q] = vld1q_f32(panel + 4 * q);
        if (rows) {
            for (int i = 0; i < height; i++)
                for (int q = 0; q < QUADS; q++)
                    sum[i][q] = vfmaq_n_f32(sum[i][q], b[q], rows[i][at + p]);
            continue;
        }
        low = vld1q_f32(strip); /* packing leaves FIRN_SLACK behind a strip */
        high = height > 4 ? vcombine_f32(vld1_f32(strip + 4), vdup_n_f32(0)) : low;
        ROW(0, low, 0)
        ROW(1, low, 1)
        ROW(2, low, 2)
        ROW(3, low, 3)
        ROW(4, high, 0)
        ROW(5, high, 1)
    }
    tile_end(height, sum, out);
}

#define EACH_HEIGHT(strip, rows, at, ahead)                                                                            \
    switch (height) { /* heights as constants, so that the sums live in registers */                                   \
    case 1:                                                                                                            \
        tile_of(1, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    case 2:                                                                                                            \
        tile_of(2, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    case 3:                                                                                                            \
        tile_of(3, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    case 4:                                                                                                            \
        tile_of(4, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    case 5:                                                                                                            \
        tile_of(5, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    case 6:                                                                                                            \
        tile_of(6, depth, strip, rows, at, panel[0], out, ahead);                                                      \
        break;                                                                                                         \
    }

static void tile(int height, int64_t depth, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
    EACH_HEIGHT(strip, NULL, 0, ahead)
}

static void tile_rows(int height, int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],
                      const firn_tile_out *out){EACH_HEIGHT(rows[0], rows, at, NULL)}

/* ---- packed formats ---- */

/* Scales of units [first, first + units) of one row, indexed as unit_place has them. */
INLINE void scales_of(firn_type f, const uint8_t *row, int64_t first, int units, float scale[16], float shift[16])
{
    const int64_t step = block_bytes(f);
    const uint8_t *b = row + (in_blocks_of_256(f) ? first / SPAN_UNITS : first) * step;

    for (int i = 0; i < (f == FIRN_Q6_K ? 2 * units : units); i++) {
        const float d = firn_half_to_float(load16(f == FIRN_Q6_K ? b + 208 : in_blocks_of_256(f) ? b : b + i * step));
        scale[i] = d;
        if (f == FIRN_Q4_0)
            shift[i] = -8 * d;
        else if (f == FIRN_Q4_1)
            shift[i] = firn_half_to_float(load16(b + i * step + 2));
        else if (f == FIRN_MXFP4)
            scale[i] = firn_mxfp4_scale(b[i * step]);
        else if (f == FIRN_Q6_K)
            scale[i] = d * (float)(int8_t)b[192 + i];
        else if (f == FIRN_IQ4_XS)
            scale[i] = d * (float)((((b[4 + i / 2] >> 4 * (i % 2)) & 15) | (load16(b + 2) >> 2 * i & 3) << 4) - 32);
        else if (f == FIRN_Q4_K) {
            const uint8_t *s = b + 4;
            const int low = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
            const int min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
            scale[i] = d * (float)low;
            shift[i] = -(firn_half_to_float(load16(b + 2)) * (float)min);
        }
    }
}

/* 16 codes of run h of a unit. */
INLINE int8x16_t codes_of(firn_type f, const uint8_t *row, const unit_place *u, int h)
{
    static const int8_t levels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t fp4[] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const uint8_t *p = row + u->bytes;

    if (f == FIRN_Q8_0)
        return vreinterpretq_s8_u8(vld1q_u8(p + 16 * h));
    if (f == FIRN_Q6_K) {
        const uint8x16_t low = vshlq_u8(vld1q_u8(p + 16 * h), vdupq_n_s8((int8_t)-u->low_shift));
        const uint8x16_t high = vshlq_u8(vld1q_u8(row + u->high + 16 * h), vdupq_n_s8((int8_t)-u->high_shift));
        const uint8x16_t code = vorrq_u8(vandq_u8(low, vdupq_n_u8(15)), vshlq_n_u8(vandq_u8(high, vdupq_n_u8(3)), 4));
        return vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32));
    }
    const uint8x16_t bytes = vld1q_u8(p), nibble = h ? vshrq_n_u8(bytes, 4) : vandq_u8(bytes, vdupq_n_u8(15));
    if (is_looked_up(f))
        return vqtbl1q_s8(vld1q_s8(f == FIRN_MXFP4 ? fp4 : levels), nibble);
    return vreinterpretq_s8_u8(nibble);
}

/* The 16 weights of run h of a unit. */
INLINE void run_weights(firn_type f, const uint8_t *row, const unit_place *u, int h, float scale, float shift,
                        float32x4_t v[QUADS])
{
    const int8x16_t codes = codes_of(f, row, u, h);
    const int16x8_t half[2] = {vmovl_s8(vget_low_s8(codes)), vmovl_high_s8(codes)};

    for (int q = 0; q < QUADS; q++) {
        const int32x4_t code = q % 2 ? vmovl_high_s16(half[q / 2]) : vmovl_s16(vget_low_s16(half[q / 2]));
        v[q] = has_shift(f) ? vfmaq_n_f32(vdupq_n_f32(shift), vcvtq_f32_s32(code), scale)
                            : vmulq_n_f32(vcvtq_f32_s32(code), scale);
    }
}

INLINE void fill_scales(firn_type f, const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first, int units,
                        firn_scale_table *table)
{
    for (int64_t r = 0; r < n_rows; r++) {
        float scale[16] = {0}, shift[16] = {0};
        scales_of(f, w + r * row_bytes, first, units, scale, shift);
        for (int i = 0; i < 16; i++) {
            table->scale[i][r] = scale[i];
            table->shift[i][r] = shift[i];
        }
    }
}

INLINE void pack_straight(firn_type f, const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int j,
                          const firn_scale_table *table, float *first, float *second)
{
    const unit_place u = place_of(f, first_unit, j);

    for (int64_t p = 0; p < n_rows; p++, w += row_bytes)
        for (int h = 0; h < 2; h++) {
            float32x4_t v[QUADS];
            run_weights(f, w, &u, h, table->scale[u.scale[h]][p], table->shift[u.scale[h]][p], v);
            for (int q = 0; q < QUADS; q++)
                vst1q_f32((h ? second : first) + FIRN_PANEL * p + 4 * q, v[q]);
        }
}

/* Four rows of a run at a time: 16 columns are four 4x4 transpositions. */
INLINE void pack_transposed(firn_type f, const uint8_t *w, int64_t row_bytes, int n_rows, int64_t first_unit, int units,
                            firn_scale_table *table, float *panel)
{
    fill_scales(f, w, row_bytes, n_rows, first_unit, units, table);
    for (int j = 0; j < units; j++) {
        const unit_place u = place_of(f, first_unit, j);
        for (int h = 0; h < 2; h++)
            for (int r = 0; r < FIRN_PANEL; r += 4) {
                float32x4_t v[4][QUADS];
                for (int i = 0; i < 4; i++) { /* rows past n_rows repeat the last */
                    const int row = r + i < n_rows ? r + i : n_rows - 1;
                    run_weights(f, w + row * row_bytes, &u, h, table->scale[u.scale[h]][row],
                                table->shift[u.scale[h]][row], v[i]);
                }
                for (int q = 0; q < QUADS; q++) {
                    const float32x4_t a = vtrn1q_f32(v[0][q], v[1][q]), b = vtrn2q_f32(v[0][q], v[1][q]);
                    const float32x4_t c = vtrn1q_f32(v[2][q], v[3][q]), d = vtrn2q_f32(v[2][q], v[3][q]);
                    float *to = panel + FIRN_PANEL * (u.column[h] + 4 * q) + r;
                    vst1q_f32(to, vcombine_f32(vget_low_f32(a), vget_low_f32(c)));
                    vst1q_f32(to + FIRN_PANEL, vcombine_f32(vget_low_f32(b), vget_low_f32(d)));
                    vst1q_f32(to + 2 * FIRN_PANEL, vcombine_f32(vget_high_f32(a), vget_high_f32(c)));
                    vst1q_f32(to + 3 * FIRN_PANEL, vcombine_f32(vget_high_f32(b), vget_high_f32(d)));
                }
            }
    }
}

#include "cpu/packed_row.h"

#define EACH_NEON(X)                                                                                                   \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q8_0, q8_0)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q6_K, q6_k)                                                                                                      \
    X(IQ4_NL, iq4_nl)                                                                                                  \
    X(IQ4_XS, iq4_xs)                                                                                                  \
    X(MXFP4, mxfp4)
#define FIRN_SET(name) firn_neon_##name
#define ROWS(CODE, name)                                                                                               \
    PACKED_ROW(CODE, name) static const firn_packed_kernels FIRN_SET(packed_##name) = PACKED_KERNELS(name);
EACH_NEON(ROWS)
#define PACKED(CODE, name) [FIRN_##CODE] = &FIRN_SET(packed_##name),

const firn_kernel_set firn_kernel_set_neon = {
    .name = "neon",
    .usable = usable,
    .strip = STRIP,
    .strip_direct = STRIP,
    .strip_whole = 1,
    .panels = 1,
    .step_whole = 1,
    .tile = tile,
    .tile_rows = tile_rows,
    FIRN_SCALAR_PACKERS,
    .packed = {EACH_NEON(PACKED)},
};
#endif
