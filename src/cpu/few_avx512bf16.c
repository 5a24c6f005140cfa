/* AVX-512 with bf16: one to four rows of an expert through packed formats. As few_x86.h, but weights must be rounded
 * with their scales, so that these are applied while decoding. See decode_x86.h for the formats. */
#if defined(__AVX512BF16__)
#define FIRN_LANES      16
#define FIRN_BF16_CELLS 1
#define FIRN_SET(name)  firn_avx512bf16_##name
#include "cpu/decode_x86.h"

enum { FEW = 4 };

/* The scales and shifts of a span, as float_weights wants them. */
typedef struct {
    _Alignas(64) float scale[16], shift[16];
} row_scales;

INLINE void load_scales(firn_type f, const uint8_t *row, int64_t first, int units, row_scales *s)
{
    __m256 scale[2], shift[2];

    if (is_plain(f))
        return;
    scales_of(f, row, first, units, scale, shift);
    _mm256_store_ps(s->scale, scale[0]);
    if (is_fine(f))
        _mm256_store_ps(s->scale + 8, scale[1]);
    if (has_shift(f))
        _mm256_store_ps(s->shift, shift[0]);
    if (has_shift(f) && is_fine(f))
        _mm256_store_ps(s->shift + 8, shift[1]);
}

INLINE void unit_weights(firn_type f, const uint8_t *row, const unit_place *u, const row_scales *s, vf v[2])
{
    const float *const scale[2] = {&s->scale[u->scale[0]], &s->scale[u->scale[1]]};
    const float *const shift[2] = {&s->shift[u->scale[0]], &s->shift[u->scale[1]]};

    float_weights(f, row, u, scale, shift, v);
}

/* x are cells, 16 of each unit: those of its first run, then of its second. */
INLINE void forward_rows(firn_type f, const int group, const int n, const uint8_t *w, int64_t row_bytes, int64_t k,
                         const float *x, int64_t n_cells, float *const *y, int64_t r, bool add)
{
    const int64_t n_units = k / FIRN_UNIT;
    vf total[4][FEW];

#pragma GCC unroll 4
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            total[g][i] = vf_zero();
    for (int64_t first = 0; first < n_units; first += SPAN_UNITS) {
        const int units = (int)smaller(SPAN_UNITS, n_units - first);
        row_scales scales[4];
#pragma GCC unroll 4
        for (int g = 0; g < group; g++)
            load_scales(f, w + g * row_bytes, first, units, &scales[g]);
        for (int j = 0; j < units; j++) {
            const unit_place u = place_of(f, first, j);
            look_ahead(f, w, row_bytes, group, j, first);
#pragma GCC unroll 4
            for (int g = 0; g < group; g++) {
                vf v[2];
                unit_weights(f, w + g * row_bytes, &u, &scales[g], v);
                const vf cells = (vf)_mm512_cvtne2ps_pbh(v[1], v[0]);
#pragma GCC unroll 4
                for (int i = 0; i < n; i++)
                    total[g][i] = cell_dot(cells, vf_load(x + i * n_cells + FIRN_PANEL * (first + j)), total[g][i]);
            }
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            const float sum = vf_sum(total[g][i]);
            y[i][r + g] = add ? y[i][r + g] + sum : sum;
        }
}

INLINE void prepare(firn_type f, int64_t k, int n, const float *const *x, float *cells)
{
    const int64_t n_cells = k / 2;

    for (int i = 0; i < n; i++)
        for (int64_t unit = 0; unit < k / FIRN_UNIT; unit++) {
            const unit_place u = place_of(f, unit / SPAN_UNITS * SPAN_UNITS, (int)(unit % SPAN_UNITS));
            const float *span = x[i] + unit / SPAN_UNITS * FIRN_SPAN;
            vf_store(cells + i * n_cells + FIRN_PANEL * unit,
                     (vf)_mm512_cvtne2ps_pbh(vf_load(span + u.column[1]), vf_load(span + u.column[0])));
        }
}

INLINE void forward(firn_type f, const int n, const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to,
                    const float *const *x, const float *cells, float *const *y, bool add)
{
    const int64_t n_cells = k / 2;
    int64_t r = from;

    (void)x;
    for (; r + 4 <= to; r += 4)
        forward_rows(f, 4, n, w + r * row_bytes, row_bytes, k, cells, n_cells, y, r, add);
    for (; r < to; r++)
        forward_rows(f, 1, n, w + r * row_bytes, row_bytes, k, cells, n_cells, y, r, add);
}

/* `group` rows of W, in pairs, are added to dx in one pass; a last odd one pairs with zeros. */
INLINE void back_rows(firn_type f, const int group, const int n, const uint8_t *w, int64_t row_bytes, int64_t k,
                      int64_t from, int64_t to, const float *const *dy, float *const *dx, int64_t r, bool add)
{
    const int64_t n_units = smaller(to, k) / FIRN_UNIT;
    float pair[FEW][4];

#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int g = 0; g < group; g += 2) {
            const __m128 two = _mm_setr_ps(dy[i][r + g], g + 1 < group ? dy[i][r + g + 1] : 0, 0, 0);
            pair[i][g / 2] = _mm_cvtss_f32((__m128)_mm_cvtneps_pbh(two));
        }
    for (int64_t first = from / FIRN_UNIT; first < n_units; first += SPAN_UNITS) {
        const int units = (int)smaller(SPAN_UNITS, n_units - first);
        row_scales scales[8];
#pragma GCC unroll 8
        for (int g = 0; g < group; g++)
            load_scales(f, w + g * row_bytes, first, units, &scales[g]);
        for (int j = 0; j < units; j++) {
            const unit_place u = place_of(f, first, j);
            vf sum[FEW][2];
            look_ahead(f, w, row_bytes, group, j, first);
#pragma GCC unroll 4
            for (int i = 0; i < n; i++)
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++)
                    sum[i][h] = r == 0 && !add ? vf_zero() : vf_load(dx[i] + FIRN_UNIT * first + u.column[h]);
#pragma GCC unroll 4
            for (int g = 0; g < group; g += 2) {
                vf even[2], odd[2] = {vf_zero(), vf_zero()};
                unit_weights(f, w + g * row_bytes, &u, &scales[g], even);
                if (g + 1 < group)
                    unit_weights(f, w + (g + 1) * row_bytes, &u, &scales[g + 1], odd);
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++) {
                    const vf cells = cell_join(even[h], odd[h]);
#pragma GCC unroll 4
                    for (int i = 0; i < n; i++)
                        sum[i][h] = cell_dot(cells, vf_all(&pair[i][g / 2]), sum[i][h]);
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < n; i++)
#pragma GCC unroll 2
                for (int h = 0; h < 2; h++)
                    vf_store(dx[i] + FIRN_UNIT * first + u.column[h], sum[i][h]);
        }
    }
}

#include "cpu/few_row.h"
FIRN_EACH_PACKED(FEW_ROW)

#endif
