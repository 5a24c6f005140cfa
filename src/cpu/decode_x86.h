/* Vector decoding, shared by the x86 kernels of packed formats (packed_format.h). Functions take the type as a constant
 * and are inlined: the choice is made by the compiler. */
#ifndef FIRN_CPU_DECODE_X86_H
#define FIRN_CPU_DECODE_X86_H

#include "cpu/packed_format.h"
#include "cpu/vector_x86.h"

/* The 16 bytes of a unit are its nibbles, and nothing else belongs to its codes. With 16 lanes a register holds the
 * floats of all 16 nibbles, which makes every such format a look-up. */
INLINE bool is_nibble(firn_type f)
{
    return f == FIRN_Q4_0 || f == FIRN_Q4_1 || f == FIRN_Q4_K || (LANES == 16 && is_looked_up(f));
}

INLINE __m128i load128(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE __m256 bytes_to_float(__m128i low_half)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low_half));
}

INLINE __m256 half_at(const uint8_t *p)
{
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load16(p))));
}

/* Halves `step` bytes apart, one per unit; zeros past `units`. */
INLINE __m256 halves(const uint8_t *b, int64_t step, int units)
{
    __m128i h;

    if (units == SPAN_UNITS) {
        h = _mm_cvtsi32_si128(load16(b));
        h = _mm_insert_epi16(h, load16(b + step), 1);
        h = _mm_insert_epi16(h, load16(b + 2 * step), 2);
        h = _mm_insert_epi16(h, load16(b + 3 * step), 3);
        h = _mm_insert_epi16(h, load16(b + 4 * step), 4);
        h = _mm_insert_epi16(h, load16(b + 5 * step), 5);
        h = _mm_insert_epi16(h, load16(b + 6 * step), 6);
        h = _mm_insert_epi16(h, load16(b + 7 * step), 7);
    } else {
        uint16_t part[SPAN_UNITS] = {0};
        for (int i = 0; i < units; i++)
            part[i] = load16(b + i * step);
        h = load128(part);
    }
    return _mm256_cvtph_ps(h);
}

/* 2^(e - 128) for a byte e of each unit; the two smallest are subnormal. */
INLINE __m256 exponents(const uint8_t *b, int64_t step, int units)
{
    uint64_t part = 0;

    for (int i = 0; i < units; i++)
        part |= (uint64_t)b[i * step] << 8 * i;
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)part));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

/* Half of E4M3 without its sign, 8 bytes; see nvfp4.h. */
INLINE __m256 half_of_e4m3(__m128i bytes)
{
    const __m256i m = _mm256_and_si256(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x7f));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), m);
    const __m256i is_nan = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x7f));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(m), _mm256_set1_ps(0x1p-10f));
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(m, 20), _mm256_set1_epi32(119 << 23));

    return _mm256_andnot_ps(_mm256_castsi256_ps(is_nan),
                            _mm256_blendv_ps(_mm256_castsi256_ps(normal), small, _mm256_castsi256_ps(is_small)));
}

/* The scales of units [first, first + units) of one row, all at once: scale[0] holds indices 0..7, scale[1] 8..15
 * (those of is_fine only), and shift likewise; what the format has not is zero. */
INLINE void scales_of(firn_type f, const uint8_t *row, int64_t first, int units, __m256 scale[2], __m256 shift[2])
{
    const int64_t step = block_bytes(f);
    scale[0] = scale[1] = shift[0] = shift[1] = _mm256_setzero_ps();
    const uint8_t *b = row + (in_blocks_of_256(f) ? first / SPAN_UNITS : f == FIRN_NVFP4 ? first / 2 : first) * step;

    if (is_paired(f)) {
        /* The 6-bit fields, four at a time inside 32-bit words. */
        const uint32_t s0 = load32(b + 4), s1 = load32(b + 8), s2 = load32(b + 12);
        const uint64_t scales = (s0 & 0x3f3f3f3f) | (uint64_t)((s2 & 0x0f0f0f0f) | (s0 >> 2 & 0x30303030)) << 32;
        const uint64_t mins = (s1 & 0x3f3f3f3f) | (uint64_t)((s2 >> 4 & 0x0f0f0f0f) | (s1 >> 2 & 0x30303030)) << 32;
        const __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load32(b)));
        const __m256 dmin = _mm256_broadcastss_ps(_mm_movehdup_ps(d));
        scale[0] = _mm256_mul_ps(bytes_to_float(_mm_cvtsi64_si128((long long)scales)), _mm256_broadcastss_ps(d));
        shift[0] =
            _mm256_mul_ps(bytes_to_float(_mm_cvtsi64_si128((long long)mins)), _mm256_sub_ps(_mm256_setzero_ps(), dmin));
    } else if (f == FIRN_Q2_K) {
        const __m128i s = _mm_and_si128(load128(b), _mm_set1_epi8(15));
        const __m128i m = _mm_and_si128(_mm_srli_epi16(load128(b), 4), _mm_set1_epi8(15));
        const __m256 d = half_at(b + 80), minus = _mm256_sub_ps(_mm256_setzero_ps(), half_at(b + 82));
        scale[0] = _mm256_mul_ps(bytes_to_float(s), d);
        scale[1] = _mm256_mul_ps(bytes_to_float(_mm_srli_si128(s, 8)), d);
        shift[0] = _mm256_mul_ps(bytes_to_float(m), minus);
        shift[1] = _mm256_mul_ps(bytes_to_float(_mm_srli_si128(m, 8)), minus);
    } else if (f == FIRN_Q3_K) {
        /* Nibbles of eight bytes, and two bits more from four. */
        const uint64_t low = load64(b + 96), nibble = 0x0f0f0f0f0f0f0f0f;
        const uint32_t high = load32(b + 104), two = 0x03030303;
        const uint64_t s0 = (low & nibble) | ((high & two) | (uint64_t)(high >> 2 & two) << 32) << 4;
        const uint64_t s1 = (low >> 4 & nibble) | ((high >> 4 & two) | (uint64_t)(high >> 6 & two) << 32) << 4;
        const __m128i s = _mm_sub_epi8(_mm_set_epi64x((long long)s1, (long long)s0), _mm_set1_epi8(32));
        const __m256 d = half_at(b + 108);
        scale[0] = _mm256_mul_ps(bytes_to_float(s), d);
        scale[1] = _mm256_mul_ps(bytes_to_float(_mm_srli_si128(s, 8)), d);
    } else if (f == FIRN_NVFP4) {
        uint32_t part[4] = {0};
        for (int i = 0; i < units / 2; i++)
            part[i] = load32(b + i * step);
        const __m128i s = load128(part);
        scale[0] = half_of_e4m3(s);
        scale[1] = half_of_e4m3(_mm_srli_si128(s, 8));
    } else if (f == FIRN_Q6_K) {
        const __m128i s = load128(b + 192);
        const __m256 d = half_at(b + 208);
        scale[0] = _mm256_mul_ps(bytes_to_float(s), d);
        scale[1] = _mm256_mul_ps(bytes_to_float(_mm_srli_si128(s, 8)), d);
    } else if (f == FIRN_IQ4_XS) {
        /* 8 x 4 low bits, then 8 x 2 high ones. */
        const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        __m256i low = _mm256_set1_epi32((int)load32(b + 4)), high = _mm256_set1_epi32(load16(b + 2));
        low = _mm256_and_si256(_mm256_srlv_epi32(low, _mm256_slli_epi32(index, 2)), _mm256_set1_epi32(15));
        high = _mm256_and_si256(_mm256_srlv_epi32(high, _mm256_slli_epi32(index, 1)), _mm256_set1_epi32(3));
        const __m256i s = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
        scale[0] = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(s, _mm256_set1_epi32(32))), half_at(b));
    } else if (f == FIRN_MXFP4) {
        scale[0] = exponents(b, step, units);
    } else {
        scale[0] = halves(b, step, units);
        if (f == FIRN_Q4_0)
            shift[0] = _mm256_mul_ps(scale[0], _mm256_set1_ps(-8.0f));
        else if (f == FIRN_Q4_1 || f == FIRN_Q5_1)
            shift[0] = halves(b + 2, step, units);
    }
}

/* Low nibbles of 16 bytes, then the high ones. */
INLINE __m256i nibbles(const uint8_t *p)
{
    const __m128i b = load128(p);

    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(b, 4), b), _mm256_set1_epi8(15));
}

/* Bit i of 32 bits as byte i, 0 or 16. */
INLINE __m256i fifth_bits(uint32_t bits)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i b = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), spread), bit);

    return _mm256_and_si256(_mm256_cmpeq_epi8(b, bit), _mm256_set1_epi8(16));
}

INLINE __m256i look_up(firn_type f, __m256i index)
{
    const __m128i table = f != FIRN_IQ4_NL && f != FIRN_IQ4_XS
                              ? _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
                              : _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);

    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
}

/* 32 codes of a unit as signed bytes: the first run, then the second. */
INLINE __m256i codes_of(firn_type f, const uint8_t *row, const unit_place *u)
{
    const uint8_t *p = row + u->bytes;

    if (f == FIRN_Q8_0)
        return _mm256_loadu_si256((const __m256i *)p);
    if (f == FIRN_Q6_K) {
        __m256i low = _mm256_loadu_si256((const __m256i *)p);
        __m256i high = _mm256_loadu_si256((const __m256i *)(row + u->high));
        low = _mm256_and_si256(_mm256_srl_epi16(low, _mm_cvtsi32_si128(u->low_shift)), _mm256_set1_epi8(15));
        high = _mm256_and_si256(_mm256_srl_epi16(high, _mm_cvtsi32_si128(u->high_shift)), _mm256_set1_epi8(3));
        return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
    }
    if (f == FIRN_Q2_K || f == FIRN_Q3_K) {
        __m256i low = _mm256_loadu_si256((const __m256i *)p);
        low = _mm256_and_si256(_mm256_srl_epi16(low, _mm_cvtsi32_si128(u->low_shift)), _mm256_set1_epi8(3));
        if (f == FIRN_Q2_K)
            return low;
        __m256i high = _mm256_loadu_si256((const __m256i *)(row + u->high));
        high = _mm256_and_si256(_mm256_srl_epi16(high, _mm_cvtsi32_si128(u->high_shift)), _mm256_set1_epi8(1));
        return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 2)), _mm256_set1_epi8(4));
    }
    if (f == FIRN_NVFP4) { /* eight bytes hold a run: its first half in their low nibbles */
        const __m128i b = load128(p), mask = _mm_set1_epi8(15), high = _mm_and_si128(_mm_srli_epi16(b, 4), mask);
        const __m128i low = _mm_and_si128(b, mask);
        return look_up(f, _mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high)));
    }
    __m256i code = nibbles(p);
    if (f == FIRN_Q5_0 || f == FIRN_Q5_1)
        code = _mm256_or_si256(code, fifth_bits(load32(row + u->high)));
    if (f == FIRN_Q5_0)
        code = _mm256_sub_epi8(code, _mm256_set1_epi8(16));
    if (f == FIRN_Q5_K) {
        const __m128i high = load128(row + u->high);
        const __m256i two = _mm256_set_m128i(_mm_srl_epi16(high, _mm_cvtsi32_si128(u->high_shift + 1)),
                                             _mm_srl_epi16(high, _mm_cvtsi32_si128(u->high_shift)));
        code = _mm256_or_si256(code, _mm256_slli_epi16(_mm256_and_si256(two, _mm256_set1_epi8(1)), 4));
    }
    if (is_looked_up(f))
        code = look_up(f, code);
    return code;
}

#if FIRN_LANES == 16
/* The floats of the 16 nibbles. */
INLINE vf nibble_table(firn_type f)
{
    if (f == FIRN_MXFP4)
        return _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    if (is_looked_up(f))
        return _mm512_setr_ps(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* The low and the high nibbles of 16 bytes, each through its table. */
INLINE void nibble_floats(const uint8_t *p, vf low, vf high, vf v[2])
{
    const __m512i bytes = _mm512_cvtepu8_epi32(load128(p));

    v[0] = _mm512_permutexvar_ps(bytes, low); /* which looks at four bits alone */
    v[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), high);
}
#endif

/* The codes of one unit of one row, as floats: v[0..RUN) are the first run of 16, then the second. */
INLINE void float_codes(firn_type f, const uint8_t *row, const unit_place *u, vf v[2 * RUN])
{
    const uint8_t *p = row + u->bytes;

    if (is_nibble(f)) {
#if FIRN_LANES == 16
        nibble_floats(p, nibble_table(f), nibble_table(f), v);
#else
        const __m256i mask = _mm256_set1_epi32(15);
        for (int i = 0; i < 2; i++) {
            const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * i)));
            v[i] = _mm256_cvtepi32_ps(_mm256_and_si256(bytes, mask));
            v[2 + i] = _mm256_cvtepi32_ps(_mm256_srli_epi32(bytes, 4));
        }
#endif
    } else if (f == FIRN_Q8_0) {
        for (int i = 0; i < 2 * RUN; i++)
            v[i] = vf_bytes((const __m128i *)p, i);
    } else if (f == FIRN_F32) {
        for (int i = 0; i < 2 * RUN; i++)
            v[i] = vf_load((const float *)p + LANES * i);
    } else if (f == FIRN_F16) {
        for (int i = 0; i < 2 * RUN; i++)
            v[i] = vf_halves(p + 2 * LANES * i);
    } else if (f == FIRN_BF16) {
        for (int i = 0; i < 2 * RUN; i++)
            v[i] = vf_bfloats(p + 2 * LANES * i);
    } else {
        const __m256i c = codes_of(f, row, u);
        const __m128i a = _mm256_castsi256_si128(c), b = _mm256_extracti128_si256(c, 1);
#if FIRN_LANES == 16
        v[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(a));
        v[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
#else
        v[0] = bytes_to_float(a);
        v[1] = bytes_to_float(_mm_srli_si128(a, 8));
        v[2] = bytes_to_float(b);
        v[3] = bytes_to_float(_mm_srli_si128(b, 8));
#endif
    }
}

INLINE vf finish(firn_type f, vf code, vf scale, vf shift)
{
    return is_plain(f) ? code : has_shift(f) ? vf_fma(code, scale, shift) : vf_mul(code, scale);
}

/* The weights of one unit of one row; scale and shift point to one number for each run. */
INLINE void float_weights(firn_type f, const uint8_t *row, const unit_place *u, const float *const scale[2],
                          const float *const shift[2], vf v[2 * RUN])
{
    vf s[2], h[2];

    for (int i = 0; i < 2; i++) {
        s[i] = is_plain(f) ? vf_zero() : i && one_scale(f) ? s[0] : vf_all(scale[i]);
        h[i] = !has_shift(f) ? vf_zero() : i && one_scale(f) ? h[0] : vf_all(shift[i]);
    }
#if FIRN_LANES == 16
    if (is_nibble(f)) {
        const vf low = finish(f, nibble_table(f), s[0], h[0]);
        nibble_floats(row + u->bytes, low, one_scale(f) ? low : finish(f, nibble_table(f), s[1], h[1]), v);
        return;
    }
#endif
    float_codes(f, row, u, v);
    for (int i = 0; i < 2 * RUN; i++)
        v[i] = finish(f, v[i], s[i / RUN], h[i / RUN]);
}

/* For a few rows: the caches' own prefetchers lose a stream at every short strided piece, so each group of rows asks
 * for the next one: at unit j of a span for row j's piece of it, a few lines at a time, and into the L2, where the
 * request does not hold one of the L1's two dozen miss buffers until memory answers. */
INLINE void look_ahead(firn_type f, const uint8_t *w, int64_t row_bytes, int group, int j, int64_t first)
{
    if (j >= group)
        return;
    const uint8_t *p = w + (group + j) * row_bytes + first / SPAN_UNITS * span_bytes(f);
    for (int64_t i = 0; i < span_bytes(f); i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T1);
}

/* The formats that have kernels of their own: codes of a few bits, and all of them. */
#define FIRN_EACH_CODED(X)                                                                                             \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q5_0, q5_0)                                                                                                      \
    X(Q5_1, q5_1)                                                                                                      \
    X(Q8_0, q8_0)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q5_K, q5_k)                                                                                                      \
    X(Q6_K, q6_k)                                                                                                      \
    X(IQ4_NL, iq4_nl)                                                                                                  \
    X(IQ4_XS, iq4_xs)                                                                                                  \
    X(MXFP4, mxfp4)                                                                                                    \
    X(Q2_K, q2_k)                                                                                                      \
    X(Q3_K, q3_k)                                                                                                      \
    X(NVFP4, nvfp4)
#define FIRN_EACH_PACKED(X) X(F16, f16) X(BF16, bf16) FIRN_EACH_CODED(X)

#define FIRN_DECLARE_PACKED(CODE, name)                                                                                \
    extern const firn_packed_kernels FIRN_SET(packed_##name);                                                          \
    extern const firn_few_kernels FIRN_SET(few_##name);
FIRN_EACH_PACKED(FIRN_DECLARE_PACKED)
extern const firn_few_kernels FIRN_SET(few_f32);

#endif
