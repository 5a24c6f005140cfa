/* The packing of floats, for any vector width and precision (vector_x86.h). A file that defines FIRN_STRIP, its highest
 * strip, gets strips as kernel_set.h describes them; without it, it makes its own. */
#include "cpu/team.h"
#include "cpu/vector_x86.h"
#include "format/format.h"

/* Eight steps of 8 rows from rows[from] on, as lanes; rows past n_rows repeat the last. `n` elements are left. */
INLINE void rows_to_steps(const float *const *rows, int from, int n_rows, int64_t at, int64_t n, __m256 r[8])
{
    for (int i = 0; i < 8; i++)
        r[i] = cells_along(rows[from + i < n_rows ? from + i : n_rows - 1] + at, n);
    transpose8(r);
}

#if defined(FIRN_STRIP)
/* Eight cells are written where `height` (or what is left of it) are wanted: the next stores overwrite the rest. */
static void strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    for (int64_t p = 0; p < depth; p += 8 * CELL) {
        const int64_t steps = smaller(8, (depth - p + CELL - 1) / CELL);
        float *to = strip + height * (p / CELL);
        __m256 low[8], high[8];
        rows_to_steps(rows, 0, height, at + p, depth - p, low);
        if (FIRN_STRIP > 8 && height > 8)
            rows_to_steps(rows, 8, height, at + p, depth - p, high);
        for (int64_t i = 0; i < steps; i++) {
            _mm256_storeu_ps(to + height * i, low[i]);
            if (FIRN_STRIP > 8 && height > 8)
                _mm256_storeu_ps(to + height * i + 8, high[i]);
        }
    }
}

INLINE void strip_of_columns(const float *const *columns, int64_t at, const int64_t n, int height, int64_t depth,
                             float *strip)
{
#pragma GCC unroll 4
    for (int64_t p = 0; p < depth; p += CELL) { /* as above: the rest is overwritten */
        const vf even = vf_load_part(columns[p] + at, n);
        const vf odd = CELL == 2 && p + 1 < depth ? vf_load_part(columns[p + 1] + at, n) : vf_zero();
        vf_store(strip + height * (p / CELL), cell_join(even, odd));
    }
}

static void strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                               float *strip)
{
    if (end - at >= LANES)
        strip_of_columns(columns, at, LANES, height, depth, strip);
    else
        strip_of_columns(columns, at, end - at, height, depth, strip);
}
#endif

/* Two panels at once although a copy needs no pairing: rows of 2048 floats lie 8 KiB apart, so every row is a new page
 * and the same L1 set, and 128 bytes per visit halve the cost of 64. */
INLINE void panel_straight_of(const float *const *rows, int64_t at, const int n_columns, int64_t depth, float *first,
                              float *second)
{
    for (int64_t p = 0; p < depth; p += CELL)
        for (int h = 0; h < (n_columns > FIRN_PANEL ? 2 : 1); h++)
            for (int i = 0; i < RUN; i++) {
                const int64_t c = FIRN_PANEL * h + LANES * i;
                const vf even = vf_load_part(rows[p] + at + c, n_columns - c);
                const vf odd =
                    CELL == 2 && p + 1 < depth ? vf_load_part(rows[p + 1] + at + c, n_columns - c) : vf_zero();
                vf_store((h ? second : first) + FIRN_PANEL * (p / CELL) + LANES * i, cell_join(even, odd));
            }
}

static void panel_straight(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                           float *second)
{
    if (n_columns == 2 * FIRN_PANEL)
        panel_straight_of(rows, at, 2 * FIRN_PANEL, depth, first, second);
    else if (n_columns == FIRN_PANEL)
        panel_straight_of(rows, at, FIRN_PANEL, depth, first, second);
    else
        panel_straight_of(rows, at, n_columns, depth, first, second);
}

/* Eight rows at a time and 16 floats of each, a whole cache line: 16 rows 8 KiB apart would evict each other from one
 * L1 set between the two halves of their lines. */
static void panel_transposed(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel)
{
    for (int64_t p = 0; p < depth; p += 16)
        for (int h = 0; h < FIRN_PANEL; h += 8)
            for (int64_t q = p; q < smaller(p + 16, depth); q += 8 * CELL) {
                __m256 r[8];
                rows_to_steps(rows, h, n_rows, at + q, depth - q, r);
                for (int64_t i = 0; i < 8 && q + CELL * i < depth; i++)
                    _mm256_store_ps(panel + FIRN_PANEL * (q / CELL + i) + h, r[i]);
            }
}

static void decode(firn_type type, const void *packed, int64_t n, float *out)
{
    const uint16_t *h = packed;
    int64_t i = 0;

    if (type == FIRN_F16)
        for (; i + LANES <= n; i += LANES)
            vf_store(out + i, vf_halves(h + i));
    else if (type == FIRN_BF16)
        for (; i + LANES <= n; i += LANES)
            vf_store(out + i, vf_bfloats(h + i));
    if (i < n)
        firn_decode_row(type, h + i, n - i, out + i); /* i is 0 except for the two */
}

/* What every kernel set of these files has: tile and the strips are named alike wherever they come from. */
#define FIRN_PACKED_OF(CODE, name) [FIRN_##CODE] = &FIRN_SET(packed_##name),
#define FIRN_FEW_OF(CODE, name)    [FIRN_##CODE] = &FIRN_SET(few_##name),
#if FIRN_LANES == 16
#define FIRN_TEAM .attention = &firn_avx512_attention, .scan = &firn_avx512_scan
#else
#define FIRN_TEAM .attention = &firn_avx2_attention, .scan = &firn_avx2_scan
#endif
#define FIRN_X86_KERNELS                                                                                               \
    FIRN_TEAM, .tile = tile, .strip_from_rows = strip_from_rows, .strip_from_columns = strip_from_columns,             \
               .panel_straight = panel_straight, .panel_transposed = panel_transposed, .decode = decode,               \
               .packed = {FIRN_EACH_PACKED(FIRN_PACKED_OF)}
