/* The vectors that the x86 kernels are written in; the width and the precision are the including file's choice:
 *
 *     #define FIRN_LANES 8 | 16    floats of a vector: AVX2 or AVX-512
 *     #define FIRN_BF16_CELLS      FIRN_PRECISION_BF16: cells of two bf16 (AVX-512 with bf16 only)
 *     #define FIRN_SET(name)       the set's own name of an external symbol
 *
 * A run of 16 columns is RUN vectors. Cells are what panels and strips are made of (kernel_set.h): CELL elements each.
 */
#ifndef FIRN_CPU_VECTOR_X86_H
#define FIRN_CPU_VECTOR_X86_H

#include "cpu/packed_format.h"

#include <immintrin.h>
#include <string.h>

enum {
    LANES = FIRN_LANES,
    RUN = FIRN_PANEL / FIRN_LANES,
#if defined(FIRN_BF16_CELLS)
    CELL = 2,
#else
    CELL = 1,
#endif
};

#if FIRN_LANES == 16
typedef __m512 vf;

INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
INLINE vf vf_all(const float *p)
{
    return _mm512_set1_ps(*p);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
/* Eight lanes and zeros. */
INLINE vf vf_widen(__m256 v)
{
    return _mm512_zextps256_ps512(v);
}
INLINE float vf_sum(vf v)
{
    return _mm512_reduce_add_ps(v);
}
/* Lane i: the sum of the lanes of v[i]. */
INLINE vf vf_sums(const vf v[16])
{
    vf t[8], u[4], w[2];

    for (int i = 0; i < 8; i++)
        t[i] = vf_add(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        const __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
        u[i] = vf_add(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    for (int i = 0; i < 2; i++)
        w[i] = vf_add(_mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(u[2 * i], u[2 * i + 1], 0xdd));
    return vf_add(_mm512_shuffle_f32x4(w[0], w[1], 0x88), _mm512_shuffle_f32x4(w[0], w[1], 0xdd));
}
INLINE __mmask16 first_lanes(int64_t n)
{
    return (__mmask16)(n >= LANES ? 0xffff : n <= 0 ? 0 : (1u << n) - 1);
}
/* The first n lanes, the others zero; memory behind them is not touched. */
INLINE vf vf_load_part(const float *p, int64_t n)
{
    return n >= LANES ? vf_load(p) : _mm512_maskz_loadu_ps(first_lanes(n), p);
}
INLINE void vf_store_part(float *p, int64_t n, vf v)
{
    if (n >= LANES)
        vf_store(p, v);
    else
        _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
/* Signed bytes; 16 bits in the low and in the high half of a float. */
INLINE vf vf_bytes(const __m128i *p, int at)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p + at)));
}
INLINE vf vf_halves(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
INLINE vf vf_bfloats(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
#else
typedef __m256 vf;

INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
INLINE vf vf_all(const float *p)
{
    return _mm256_broadcast_ss(p);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_widen(__m256 v)
{
    return v;
}
INLINE float vf_sum(vf v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE vf vf_sums(const vf v[8])
{
    vf t[4], u[2];

    for (int i = 0; i < 4; i++)
        t[i] = vf_add(_mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++) {
        const __m256d a = _mm256_castps_pd(t[2 * i]), b = _mm256_castps_pd(t[2 * i + 1]);
        u[i] = vf_add(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    }
    return vf_add(_mm256_permute2f128_ps(u[0], u[1], 0x20), _mm256_permute2f128_ps(u[0], u[1], 0x31));
}
INLINE __m256i first_lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)smaller(n, LANES)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf vf_load_part(const float *p, int64_t n)
{
    return n >= LANES ? vf_load(p) : _mm256_maskload_ps(p, first_lanes(n));
}
INLINE void vf_store_part(float *p, int64_t n, vf v)
{
    if (n >= LANES)
        vf_store(p, v);
    else
        _mm256_maskstore_ps(p, first_lanes(n), v);
}
INLINE vf vf_bytes(const __m128i *p, int at)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)((const uint8_t *)p + 8 * at))));
}
INLINE vf vf_halves(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
INLINE vf vf_bfloats(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
#endif

/* sum + a b over a vector of cells; cells of 16 columns from two steps of depth (F32: the first alone); eight cells of
 * one row, whose `n` elements left may be less. */
#if defined(FIRN_BF16_CELLS)
INLINE vf cell_dot(vf a, vf b, vf sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}
INLINE vf cell_join(vf even, vf odd)
{
    const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(zip, (__m512i)_mm512_cvtne2ps_pbh(odd, even)));
}
INLINE __m256 cells_along(const float *p, int64_t n)
{
    return (__m256)_mm512_cvtneps_pbh(vf_load_part(p, n));
}
#else
INLINE vf cell_dot(vf a, vf b, vf sum)
{
    return vf_fma(a, b, sum);
}
INLINE vf cell_join(vf even, vf odd)
{
    (void)odd;
    return even;
}
INLINE __m256 cells_along(const float *p, int64_t n)
{
    return n >= 8 ? _mm256_loadu_ps(p)
                  : _mm256_maskload_ps(
                        p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
#endif

/* Asks for rows [from, to) of C, which will be written: spread over the loop, since all at once would hold the miss
 * buffers that panel and strip need, and without it the stores of a tile wait for each other. */
INLINE void ask_for_c(int64_t from, int64_t to, const int vectors, const firn_tile_out *out)
{
    for (int64_t i = from; i < to; i++) {
        __builtin_prefetch(out->c[i] + out->column[0], 1);
        if (LANES == 16 && vectors == 2)
            __builtin_prefetch(out->c[i] + out->column[1], 1);
    }
}

INLINE void transpose8(__m256 r[8])
{
    __m256 t[8], u[8];

    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

#endif
