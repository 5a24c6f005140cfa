/* The AVX2+FMA+F16C kernel set: the micro-kernel and the packing of floats; packed formats are in packed_avx2.c and
 * few_avx2.c. */
#if defined(__AVX2__)
#include "cpu/decode_avx2.h"
#include "format/format.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* all of these have F16C */
}

/* ---- the micro-kernel ---- */

INLINE void put(const int height, __m256 sum[FIRN_STRIP][2], const firn_tile_out *out)
{
    if (out->n_columns < FIRN_PANEL) { /* the ragged right edge of C */
#pragma GCC unroll 6
        for (int i = 0; i < height; i++) {
            _Alignas(32) float edge[FIRN_PANEL];
            float *c = out->c[i] + out->column;
            _mm256_store_ps(edge, sum[i][0]);
            _mm256_store_ps(edge + 8, sum[i][1]);
            for (int j = 0; j < out->n_columns; j++)
                c[j] = out->add ? c[j] + edge[j] : edge[j];
        }
        return;
    }
#pragma GCC unroll 6
    for (int i = 0; i < height; i++) {
        float *c = out->c[i] + out->column;
        if (out->add) {
            sum[i][0] = _mm256_add_ps(_mm256_loadu_ps(c), sum[i][0]);
            sum[i][1] = _mm256_add_ps(_mm256_loadu_ps(c + 8), sum[i][1]);
        }
        _mm256_storeu_ps(c, sum[i][0]);
        _mm256_storeu_ps(c + 8, sum[i][1]);
    }
}

INLINE void begin(const int height, __m256 sum[FIRN_STRIP][2], const firn_tile_out *out)
{
#pragma GCC unroll 6
    for (int i = 0; i < height; i++) {
        sum[i][0] = sum[i][1] = _mm256_setzero_ps();
        if (out->add)
            _mm_prefetch((const char *)(out->c[i] + out->column), _MM_HINT_T0);
    }
}

/* 6 x 16: twelve sums hide the latency of two fused multiply-adds a cycle (4 cycles), two registers hold the panel's
 * row, one the broadcast: 15 of 16. Per depth step 12 multiply-adds, 2 loads, 6 broadcast loads. */
INLINE void tile_of(const int height, int64_t depth, const float *strip, const float *panel, const firn_tile_out *out,
                    firn_ahead *ahead)
{
    __m256 sum[FIRN_STRIP][2];

    begin(height, sum, out);
    for (int64_t p = 0; p < depth;) {
        const int64_t pause = p + FIRN_PACE < depth ? p + FIRN_PACE : depth;
        firn_look_ahead(ahead);
#pragma GCC unroll 4
        for (; p < pause; p++, panel += FIRN_PANEL, strip += height) {
            const __m256 low = _mm256_load_ps(panel), high = _mm256_load_ps(panel + 8);
#pragma GCC unroll 6
            for (int i = 0; i < height; i++) {
                const __m256 a = _mm256_broadcast_ss(strip + i);
                sum[i][0] = _mm256_fmadd_ps(a, low, sum[i][0]);
                sum[i][1] = _mm256_fmadd_ps(a, high, sum[i][1]);
            }
        }
    }
    put(height, sum, out);
}

INLINE void tile_rows_of(const int height, int64_t depth, const float *const *rows, int64_t at, const float *panel,
                         const firn_tile_out *out)
{
    __m256 sum[FIRN_STRIP][2];
    const float *row[FIRN_STRIP];

    begin(height, sum, out);
#pragma GCC unroll 6
    for (int i = 0; i < height; i++)
        row[i] = rows[i] + at;
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p++, panel += FIRN_PANEL) {
        const __m256 low = _mm256_load_ps(panel), high = _mm256_load_ps(panel + 8);
#pragma GCC unroll 6
        for (int i = 0; i < height; i++) {
            const __m256 a = _mm256_broadcast_ss(row[i] + p);
            sum[i][0] = _mm256_fmadd_ps(a, low, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(a, high, sum[i][1]);
        }
    }
    put(height, sum, out);
}

static void tile(int height, int64_t depth, const float *strip, const float *panel, const firn_tile_out *out,
                 firn_ahead *ahead)
{
    switch (height) { /* heights as constants, so that the sums live in registers */
    case 1:
        tile_of(1, depth, strip, panel, out, ahead);
        break;
    case 2:
        tile_of(2, depth, strip, panel, out, ahead);
        break;
    case 3:
        tile_of(3, depth, strip, panel, out, ahead);
        break;
    case 4:
        tile_of(4, depth, strip, panel, out, ahead);
        break;
    case 5:
        tile_of(5, depth, strip, panel, out, ahead);
        break;
    case 6:
        tile_of(6, depth, strip, panel, out, ahead);
        break;
    }
}

static void tile_rows(int height, int64_t depth, const float *const *rows, int64_t at, const float *panel,
                      const firn_tile_out *out)
{
    switch (height) {
    case 1:
        tile_rows_of(1, depth, rows, at, panel, out);
        break;
    case 2:
        tile_rows_of(2, depth, rows, at, panel, out);
        break;
    case 3:
        tile_rows_of(3, depth, rows, at, panel, out);
        break;
    case 4:
        tile_rows_of(4, depth, rows, at, panel, out);
        break;
    case 5:
        tile_rows_of(5, depth, rows, at, panel, out);
        break;
    case 6:
        tile_rows_of(6, depth, rows, at, panel, out);
        break;
    }
}

/* ---- packing floats ---- */

static void strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    int64_t p = 0;

    for (; p + 8 <= depth; p += 8) {
        __m256 r[8];
        for (int i = 0; i < 8; i++)
            r[i] = _mm256_loadu_ps(rows[i < height ? i : 0] + at + p);
        transpose8(r);
        /* Eight floats are written where `height` are wanted; the next store overwrites the rest. */
        for (int i = 0; i < 8; i++)
            _mm256_storeu_ps(strip + height * (p + i), r[i]);
    }
    for (; p < depth; p++)
        for (int i = 0; i < height; i++)
            strip[height * p + i] = rows[i][at + p];
}

static void strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                               float *strip)
{
    if (at + 8 > end) {
        firn_scalar_strip_from_columns(columns, at, end, height, depth, strip);
        return;
    }
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p++) /* as above: the rest is overwritten */
        _mm256_storeu_ps(strip + height * p, _mm256_loadu_ps(columns[p] + at));
}

INLINE void copy16(const float *from, float *to)
{
    _mm256_store_ps(to, _mm256_loadu_ps(from));
    _mm256_store_ps(to + 8, _mm256_loadu_ps(from + 8));
}

/* Two panels at once although a copy needs no pairing: rows of 2048 floats lie 8 KiB apart, so every row is a new page
 * and the same L1 set, and 128 bytes per visit halve the cost of 64. */
static void panel_straight(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                           float *second)
{
    if (n_columns == 2 * FIRN_PANEL) {
        for (int64_t p = 0; p < depth; p++) {
            copy16(rows[p] + at, first + FIRN_PANEL * p);
            copy16(rows[p] + at + FIRN_PANEL, second + FIRN_PANEL * p);
        }
    } else if (n_columns == FIRN_PANEL) {
        for (int64_t p = 0; p < depth; p++)
            copy16(rows[p] + at, first + FIRN_PANEL * p);
    } else {
        firn_scalar_panel_straight(rows, at, n_columns, depth, first, second);
    }
}

/* Eight rows at a time and 16 floats of each, a whole cache line: 16 rows 8 KiB apart would evict each other from one
 * L1 set between the two halves of their lines. */
static void panel_transposed(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel)
{
    const int64_t even = depth / 8 * 8;

    for (int64_t p = 0; p < even; p += 16)
        for (int h = 0; h < FIRN_PANEL; h += 8)
            for (int64_t q = p; q < p + 16 && q < even; q += 8) {
                __m256 r[8];
                for (int i = 0; i < 8; i++)
                    r[i] = _mm256_loadu_ps(rows[h + i < n_rows ? h + i : n_rows - 1] + at + q);
                transpose8(r);
                for (int i = 0; i < 8; i++)
                    _mm256_store_ps(panel + FIRN_PANEL * (q + i) + h, r[i]);
            }
    for (int64_t p = even; p < depth; p++)
        for (int i = 0; i < FIRN_PANEL; i++)
            panel[FIRN_PANEL * p + i] = rows[i < n_rows ? i : n_rows - 1][at + p];
}

static void decode(firn_type type, const void *packed, int64_t n, float *out)
{
    const uint16_t *h = packed;
    int64_t i = 0;

    if (type == FIRN_F16)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load128(h + i)));
    else if (type == FIRN_BF16)
        for (; i + 8 <= n; i += 8)
            _mm256_storeu_ps(out + i, bfloats_at(h + i));
    if (i < n)
        firn_decode_row(type, h + i, n - i, out + i); /* i is 0 except for the two */
}

const firn_kernel_set firn_kernel_set_avx2 = {
    .name = "avx2",
    .usable = usable,
    .tile = tile,
    .tile_rows = tile_rows,
    .strip_from_rows = strip_from_rows,
    .strip_from_columns = strip_from_columns,
    .panel_straight = panel_straight,
    .panel_transposed = panel_transposed,
    .decode = decode,
#define PACKED(CODE, name) [FIRN_##CODE] = &firn_packed_avx2_##name,
    .packed = {EACH_PACKED},
#undef PACKED
#define PACKED(CODE, name) [FIRN_##CODE] = &firn_few_avx2_##name,
    .few = {[FIRN_F32] = &firn_few_avx2_f32, EACH_PACKED},
#undef PACKED
};

#endif
