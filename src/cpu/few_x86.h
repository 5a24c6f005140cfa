/* One to FIRN_FEW rows of an expert, too few to pay for a panel, for any vector width. The packed bytes stream through
 * registers once; every decoded vector serves all rows. See decode_x86.h for the formats. */
#include "cpu/decode_x86.h"

/* Columns that share a shift. */
INLINE int64_t sum_columns(firn_type f)
{
    return is_fine(f) ? FIRN_PANEL : FIRN_UNIT;
}

/* y = sum over runs of scale * (sum of code * x) + shift * (sum of x): the scale is applied once per run, and the shift
 * once per span, against sums of x that were made beforehand. */
INLINE void forward_rows(firn_type f, const int group, const int n, const uint8_t *w, int64_t row_bytes, int64_t k,
                         const float *const *x, const float *sums, int64_t n_sums, float *const *y, int64_t r, bool add)
{
    vf total[4][FIRN_FEW];
#pragma GCC unroll 4
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            total[g][i] = vf_zero();

    const int64_t n_units = k / FIRN_UNIT;
    for (int64_t first = 0; first < n_units; first += SPAN_UNITS) {
        const int units = (int)smaller(SPAN_UNITS, n_units - first);
        _Alignas(32) float scale[4][16];
#pragma GCC unroll 4
        for (int g = 0; g < group; g++) {
            __m256 s[2], shift[2];
            if (is_plain(f))
                continue;
            scales_of(f, w + g * row_bytes, first, units, s, shift);
            _mm256_store_ps(scale[g], s[0]);
            if (is_fine(f))
                _mm256_store_ps(scale[g] + 8, s[1]);
            if (has_shift(f))
#pragma GCC unroll 4
                for (int i = 0; i < n; i++)
                    for (int h = 0; h < (is_fine(f) ? 2 : 1); h++) {
                        const float *at = sums + i * n_sums + first * FIRN_UNIT / sum_columns(f) + 8 * h;
                        total[g][i] = vf_fma(vf_widen(shift[h]), vf_widen(_mm256_loadu_ps(at)), total[g][i]);
                    }
        }
        for (int j = 0; j < units; j++) {
            const unit_place u = place_of(f, first, j);
            look_ahead(f, w, row_bytes, group, j, first);
#pragma GCC unroll 4
            for (int g = 0; g < group; g++) {
                vf v[2 * RUN];
                float_codes(f, w + g * row_bytes, &u, v);
#pragma GCC unroll 4
                for (int i = 0; i < n; i++) {
                    vf part[2];
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++) {
                        const float *at = x[i] + FIRN_UNIT * first + u.column[h];
                        if (is_plain(f)) {
                            for (int q = 0; q < RUN; q++)
                                total[g][i] = vf_fma(v[RUN * h + q], vf_load(at + LANES * q), total[g][i]);
                            continue;
                        }
                        part[h] = h && one_scale(f) && RUN == 1 ? vf_fma(v[h], vf_load(at), part[0])
                                                                : vf_mul(v[RUN * h], vf_load(at));
                        if (RUN == 2)
                            part[h] = vf_fma(v[RUN * h + 1], vf_load(at + LANES), part[h]);
                    }
                    if (is_plain(f))
                        continue;
                    if (!one_scale(f))
                        total[g][i] = vf_fma(part[0], vf_all(&scale[g][u.scale[0]]), total[g][i]);
                    else if (RUN == 2)
                        part[1] = vf_add(part[0], part[1]);
                    total[g][i] = vf_fma(part[1], vf_all(&scale[g][u.scale[1]]), total[g][i]);
                }
            }
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < group; g++)
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            float sum = vf_sum(total[g][i]);
            if (f == FIRN_F32)
                for (int64_t c = n_units * FIRN_UNIT; c < k; c++)
                    sum += ((const float *)(w + g * row_bytes))[c] * x[i][c];
            y[i][r + g] = add ? y[i][r + g] + sum : sum;
        }
}

INLINE int64_t sums_of(firn_type f, int64_t k)
{
    return (k / FIRN_UNIT + 7) / 8 * 8 * (FIRN_UNIT / sum_columns(f));
}

INLINE void prepare(firn_type f, int64_t k, int n, const float *const *x, float *sums)
{
    const int64_t columns = sum_columns(f), n_sums = sums_of(f, k);

    for (int i = 0; i < n && has_shift(f); i++)
        for (int64_t b = 0; b < n_sums; b++) {
            const float *p = x[i] + b * columns;
            vf sum = vf_zero();
            for (int64_t c = 0; b < k / columns && c < columns; c += LANES)
                sum = vf_add(sum, vf_load(p + c));
            sums[i * n_sums + b] = vf_sum(sum);
        }
}

INLINE void forward(firn_type f, const int n, const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to,
                    const float *const *x, const float *sums, float *const *y, bool add)
{
    const int group = n <= 2 || LANES == 16 ? 4 : 2; /* rows of W at once: as many as the accumulators allow */
    const int64_t n_sums = sums_of(f, k);
    int64_t r = from;

    for (; r + group <= to; r += group)
        forward_rows(f, group, n, w + r * row_bytes, row_bytes, k, x, sums, n_sums, y, r, add);
    for (; r < to; r++)
        forward_rows(f, 1, n, w + r * row_bytes, row_bytes, k, x, sums, n_sums, y, r, add);
}

/* `group` rows of W are added to dx in one pass, so that dx is loaded and stored once per group. The scale is
 * multiplied into dy (one coefficient per row, run and i) instead of into 16 weights; the shifts of a group collapse
 * into one number per run. */
INLINE void back_rows(firn_type f, const int group, const int n, const uint8_t *w, int64_t row_bytes, int64_t k,
                      int64_t from, int64_t to, const float *const *dy, float *const *dx, int64_t r, bool add)
{
    const int64_t n_units = smaller(to, k) / FIRN_UNIT;

    for (int64_t first = from / FIRN_UNIT; first < n_units; first += SPAN_UNITS) {
        const int units = (int)smaller(SPAN_UNITS, n_units - first);
        _Alignas(32) float factor[FIRN_FEW][8][16], offset[FIRN_FEW][16];
        __m256 shifts[FIRN_FEW][2];
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            shifts[i][0] = shifts[i][1] = _mm256_setzero_ps();
#pragma GCC unroll 8
        for (int g = 0; g < group; g++) {
            __m256 s[2] = {_mm256_set1_ps(1), _mm256_set1_ps(1)}, shift[2];
            if (!is_plain(f))
                scales_of(f, w + g * row_bytes, first, units, s, shift);
#pragma GCC unroll 4
            for (int i = 0; i < n; i++) {
                const __m256 d = _mm256_broadcast_ss(dy[i] + r + g);
                _mm256_store_ps(factor[i][g], _mm256_mul_ps(d, s[0]));
                if (is_fine(f))
                    _mm256_store_ps(factor[i][g] + 8, _mm256_mul_ps(d, s[1]));
                for (int h = 0; has_shift(f) && h < (is_fine(f) ? 2 : 1); h++)
                    shifts[i][h] = _mm256_fmadd_ps(d, shift[h], shifts[i][h]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            for (int h = 0; h < 2; h++)
                _mm256_store_ps(offset[i] + 8 * h, shifts[i][h]);

        for (int j = 0; j < units; j++) {
            const unit_place u = place_of(f, first, j);
            look_ahead(f, w, row_bytes, group, j, first);
            /* Both runs at once, or run by run where the sums would not fit. */
            const int runs = n <= 2 || LANES == 16 ? 2 : 1;
#pragma GCC unroll 2
            for (int h = 0; h < 2; h += runs) {
                vf sum[FIRN_FEW][2 * RUN];
#pragma GCC unroll 4
                for (int i = 0; i < n; i++)
#pragma GCC unroll 4
                    for (int q = RUN * h; q < RUN * (h + runs); q++) {
                        const float *at = dx[i] + FIRN_UNIT * first + u.column[q / RUN] + q % RUN * LANES;
                        sum[i][q] = r == 0 && !add ? vf_zero() : vf_load(at);
                        if (has_shift(f))
                            sum[i][q] = vf_add(sum[i][q], vf_all(&offset[i][u.scale[q / RUN]]));
                    }
#pragma GCC unroll 8
                for (int g = 0; g < group; g++) {
                    vf v[2 * RUN];
                    float_codes(f, w + g * row_bytes, &u, v); /* the unused half is optimized away */
#pragma GCC unroll 4
                    for (int i = 0; i < n; i++)
#pragma GCC unroll 2
                        for (int e = h; e < h + runs; e++) {
                            const vf a = vf_all(&factor[i][g][u.scale[one_scale(f) ? 0 : e]]);
#pragma GCC unroll 2
                            for (int q = RUN * e; q < RUN * (e + 1); q++)
                                sum[i][q] = vf_fma(v[q], a, sum[i][q]);
                        }
                }
#pragma GCC unroll 4
                for (int i = 0; i < n; i++)
#pragma GCC unroll 4
                    for (int q = RUN * h; q < RUN * (h + runs); q++)
                        vf_store(dx[i] + FIRN_UNIT * first + u.column[q / RUN] + q % RUN * LANES, sum[i][q]);
            }
        }
    }
    if (f == FIRN_F32)
        for (int64_t c = n_units * FIRN_UNIT; c < smaller(to, k); c++)
            for (int i = 0; i < n; i++) {
                float sum = r == 0 && !add ? 0 : dx[i][c];
                for (int g = 0; g < group; g++)
                    sum += ((const float *)(w + g * row_bytes))[c] * dy[i][r + g];
                dx[i][c] = sum;
            }
}

#include "cpu/few_row.h"
FEW_ROW(F32, f32)
FIRN_EACH_PACKED(FEW_ROW)
