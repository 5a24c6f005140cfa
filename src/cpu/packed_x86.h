/* Decoding packed formats while packing panels, for any vector width and precision (vector_x86.h); see decode_x86.h for
 * the formats. */
#include "cpu/decode_x86.h"

/* One row's scales arrive as a vector; the table wants them per scale. Eight rows make one 8x8 transposition. */
INLINE void fill_scales(firn_type f, const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first, int units,
                        firn_scale_table *table)
{
    for (int64_t r = 0; !is_plain(f) && r < n_rows; r += 8) {
        __m256 low[8], high[8], shift[8], high_shift[8];
        for (int64_t i = 0; i < 8; i++) {
            const int64_t row = r + i < n_rows ? r + i : n_rows - 1;
            __m256 scale[2], both[2];
            scales_of(f, w + row * row_bytes, first, units, scale, both);
            low[i] = scale[0];
            if (is_fine(f))
                high[i] = scale[1];
            if (has_shift(f))
                shift[i] = both[0];
            if (has_shift(f) && is_fine(f))
                high_shift[i] = both[1];
        }
        transpose8(low);
        for (int i = 0; i < 8; i++)
            _mm256_store_ps(&table->scale[i][r], low[i]);
        if (is_fine(f)) {
            transpose8(high);
            for (int i = 0; i < 8; i++)
                _mm256_store_ps(&table->scale[8 + i][r], high[i]);
        }
        if (has_shift(f)) {
            transpose8(shift);
            for (int i = 0; i < 8; i++)
                _mm256_store_ps(&table->shift[i][r], shift[i]);
        }
        if (has_shift(f) && is_fine(f)) {
            transpose8(high_shift);
            for (int i = 0; i < 8; i++)
                _mm256_store_ps(&table->shift[8 + i][r], high_shift[i]);
        }
    }
}

INLINE void pack_straight(firn_type f, const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int j,
                          const firn_scale_table *table, float *first, float *second)
{
    const unit_place u = place_of(f, first_unit, j);
    const float *scale[2] = {table->scale[u.scale[0]], table->scale[u.scale[1]]};
    const float *shift[2] = {table->shift[u.scale[0]], table->shift[u.scale[1]]};

    for (int64_t p = 0; p < n_rows; p += CELL, first += FIRN_PANEL, second += FIRN_PANEL) {
        vf v[CELL][2 * RUN];
        for (int q = 0; q < CELL; q++, w += row_bytes) {
            const float *const s[2] = {scale[0] + p + q, scale[1] + p + q}, *const h[2] = {shift[0] + p + q,
                                                                                           shift[1] + p + q};
            if (q == 0 || p + q < n_rows)
                float_weights(f, w, &u, s, h, v[q]);
            else
                for (int i = 0; i < 2 * RUN; i++)
                    v[q][i] = vf_zero();
        }
        for (int i = 0; i < RUN; i++) {
            vf_store(first + LANES * i, cell_join(v[0][i], v[CELL - 1][i]));
            vf_store(second + LANES * i, cell_join(v[0][RUN + i], v[CELL - 1][RUN + i]));
        }
    }
}

/* 16 rows x 16 bytes, transposed as bytes, before they grow to floats: a quarter of the shuffles. Rows r and r+8 share
 * a register. Afterwards bytes[32*i ..] holds columns 2i and 2i+1: rows 0..7 of both, then rows 8..15; with 16 lanes
 * column after column. */
INLINE void transpose_bytes(const __m256i r[8], uint8_t *bytes)
{
    __m256i t[8], u[8];

    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
        t[4 + i] = _mm256_unpackhi_epi8(r[2 * i], r[2 * i + 1]);
    }
    for (int h = 0; h < 8; h += 4)
        for (int i = 0; i < 2; i++) {
            u[h + i] = _mm256_unpacklo_epi16(t[h + 2 * i], t[h + 2 * i + 1]);
            u[h + 2 + i] = _mm256_unpackhi_epi16(t[h + 2 * i], t[h + 2 * i + 1]);
        }
    for (int i = 0; i < 4; i++) {
        __m256i c[2] = {_mm256_unpacklo_epi32(u[2 * i], u[2 * i + 1]), _mm256_unpackhi_epi32(u[2 * i], u[2 * i + 1])};
        for (int h = 0; h < 2; h++)
            _mm256_store_si256((__m256i *)bytes + 2 * i + h, LANES == 16 ? _mm256_permute4x64_epi64(c[h], 0xd8) : c[h]);
    }
}

INLINE __m256i two_rows(const uint8_t *low, const uint8_t *high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load128(low)), load128(high), 1);
}

/* Eight rows of one unit at a time: 32 columns are four 8x8 transpositions of floats, or two of cells. */
INLINE void transpose_plain(firn_type f, const uint8_t *const row[16], int64_t first_unit, int units, float *panel)
{
    for (int j = 0; j < units; j++, panel += FIRN_PANEL * FIRN_UNIT / CELL) {
        const unit_place u = place_of(f, first_unit, j);
        for (int h = 0; h < FIRN_PANEL; h += 8) {
            _Alignas(64) float v[8][FIRN_UNIT];
            for (int i = 0; i < 8; i++) {
                vf codes[2 * RUN];
                float_codes(f, row[h + i], &u, codes);
                for (int q = 0; q < 2 * RUN; q++)
                    vf_store(v[i] + LANES * q, codes[q]);
            }
            for (int q = 0; q < FIRN_UNIT; q += 8 * CELL) {
                __m256 r[8];
                for (int i = 0; i < 8; i++)
                    r[i] = cells_along(v[i] + q, FIRN_UNIT);
                transpose8(r);
                for (int i = 0; i < 8; i++)
                    _mm256_store_ps(panel + FIRN_PANEL * (q / CELL + i) + h, r[i]);
            }
        }
    }
}

/* One column of both runs of a unit: 16 rows each, from transposed bytes. */
INLINE void column_weights(firn_type f, uint8_t bytes[2][256], int c, vf scale[2][RUN], vf shift[2][RUN], vf v[2][RUN])
{
    for (int i = 0; i < RUN; i++) { /* rows 0..7, rows 8..15 */
        const int at = LANES == 16 ? 16 * c : 32 * (c / 2) + 8 * (c % 2) + 16 * i;
        vf code[2];
        if (is_nibble(f)) {
#if FIRN_LANES == 16
            nibble_floats(bytes[0] + at, nibble_table(f), nibble_table(f), code);
#else
            const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(bytes[0] + at)));
            code[0] = _mm256_cvtepi32_ps(_mm256_and_si256(b, _mm256_set1_epi32(15)));
            code[1] = _mm256_cvtepi32_ps(_mm256_srli_epi32(b, 4));
#endif
        } else {
            code[0] = vf_bytes((const __m128i *)(bytes[0] + at), 0);
            code[1] = vf_bytes((const __m128i *)(bytes[1] + at), 0);
        }
        for (int h = 0; h < 2; h++)
            v[h][i] = finish(f, code[h], scale[h][i], shift[h][i]);
    }
}

INLINE void pack_transposed(firn_type f, const uint8_t *w, int64_t row_bytes, int n_rows, int64_t first_unit, int units,
                            firn_scale_table *table, float *panel)
{
    const uint8_t *row[16];

    for (int i = 0; i < 16; i++)
        row[i] = w + (i < n_rows ? i : n_rows - 1) * row_bytes;
    if (is_plain(f)) {
        transpose_plain(f, row, first_unit, units, panel);
        return;
    }
    fill_scales(f, w, row_bytes, n_rows, first_unit, units, table);
    for (int i = n_rows; i < 16; i++) /* rows that are not there: any finite value will do */
        for (int s = 0; s < 16; s++)
            table->scale[s][i] = table->shift[s][i] = 0;

    for (int j = 0; j < units; j++) {
        const unit_place u = place_of(f, first_unit, j);
        float *run[2] = {panel + FIRN_PANEL * u.column[0] / CELL, panel + FIRN_PANEL * u.column[1] / CELL};
        _Alignas(32) uint8_t bytes[2][256];
        __m256i first[8], second[8];
        for (int i = 0; i < 8; i++) {
            if (is_nibble(f)) {
                first[i] = two_rows(row[i] + u.bytes, row[i + 8] + u.bytes);
                continue;
            }
            const __m256i a = codes_of(f, row[i], &u), b = codes_of(f, row[i + 8], &u);
            first[i] = _mm256_permute2x128_si256(a, b, 0x20);
            second[i] = _mm256_permute2x128_si256(a, b, 0x31);
        }
        transpose_bytes(first, bytes[0]);
        if (!is_nibble(f))
            transpose_bytes(second, bytes[1]);
        vf scale[2][RUN], shift[2][RUN];
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < RUN; i++) {
                scale[h][i] = vf_load(&table->scale[u.scale[h]][LANES * i]);
                shift[h][i] = has_shift(f) ? vf_load(&table->shift[u.scale[h]][LANES * i]) : vf_zero();
            }
        for (int c = 0; c < 16; c += CELL) {
            vf v[CELL][2][RUN];
            for (int q = 0; q < CELL; q++)
                column_weights(f, bytes, c + q, scale, shift, v[q]);
            for (int h = 0; h < 2; h++)
                for (int i = 0; i < RUN; i++)
                    vf_store(run[h] + FIRN_PANEL * (c / CELL) + LANES * i, cell_join(v[0][h][i], v[CELL - 1][h][i]));
        }
    }
}

#include "cpu/packed_row.h"
#define ROWS(CODE, name)                                                                                               \
    PACKED_ROW(CODE, name) const firn_packed_kernels FIRN_SET(packed_##name) = PACKED_KERNELS(name);
FIRN_EACH_PACKED(ROWS)
#undef ROWS
