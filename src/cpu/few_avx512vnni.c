/* AVX-512 with vpdpbusd: one to eight rows of an expert forward through packed formats, in integers.
 *
 * Turning each 4-bit code into a float costs more than the product itself. Here codes stay bytes, 64 in a register, and
 * x becomes a 24-bit integer: for each group of columns that share a scale of W,
 *
 *     x = unit * X,   unit = max|x| / UNITS,   X = round(x / unit) = d0 + 256 d1 + 65536 d2,   di in [-128, 127]
 *
 * so that sum(code * X) over a group is exact in 32 bits: four products a lane and instruction, the highest digit
 * first, shifted up by 8 bits before the next. Only X is rounded, by at most half a unit, 2^-24 of the group's largest
 * |x|: what F32 loses when it adds that largest product.
 *
 * Codes count from 0; where a format's begin at -offset, the sum of X carries that away, as it carries shifts:
 *
 *     w = scale * (code - offset) + shift
 *     sum(w x) = scale * unit * sum(code X) + (shift - scale * offset) * unit * sum(X)
 *
 * Rows of x for which this does not do (not finite, or so large or small that a unit or its products leave F32's
 * range) go to avx512's kernels. See decode_x86.h for the formats. */
#if defined(__AVX512VNNI__)
#define FIRN_LANES     16
#define FIRN_SET(name) firn_avx512_##name /* the kernels that are shared */
#include "cpu/decode_x86.h"

enum {
    FEW = 8,
    VECTORS = 4, /* of 64 codes, in a span */
    PIECES = 8,  /* of 8 columns, in a vector */
};

#define UNITS   8355584.0f /* under 127 * (1 + 256 + 65536), by more than a rounding */
#define LARGEST 0x1p100f
#define LEAST   0x1p-80f

/* What prepare leaves in scratch: a head of 64 bytes, then every row's spans. */
typedef struct {
    _Alignas(64) int32_t in_floats; /* the sums of avx512's kernels follow instead */
} head;

typedef struct {
    _Alignas(64) int8_t digit[3][FIRN_SPAN]; /* the lowest first, in the order of the codes */
    float unit[16], sum[16];                 /* of each group; sum is unit * sum(X) */
} x_span;

_Static_assert(sizeof(head) == FIRN_PANEL * sizeof(float), "firn_few_scratch");
_Static_assert(sizeof(x_span) <= FIRN_SPAN * sizeof(float), "firn_few_scratch");

/* What a code counts from; q4_0's is the shift that packed_format.h gives it. */
INLINE int offset_of(firn_type f)
{
    switch (f) {
    case FIRN_Q4_0:
        return 8;
    case FIRN_Q5_0:
        return 16;
    case FIRN_Q8_0:
        return 128;
    case FIRN_Q6_K:
        return 32;
    case FIRN_IQ4_NL:
    case FIRN_IQ4_XS:
        return 127;
    case FIRN_MXFP4:
    case FIRN_NVFP4:
        return 12;
    case FIRN_Q3_K:
        return 4;
    default:
        return 0;
    }
}

/* 8-bit codes: three digits at once would not fit 32 bits. */
INLINE bool is_wide(firn_type f)
{
    return f == FIRN_Q8_0 || f == FIRN_IQ4_NL || f == FIRN_IQ4_XS;
}

/* Codes come 64 to a vector: of units 4(t/2)..4(t/2)+3 their runs t%2 where a unit's 16 bytes hold both runs,
 * else as the format's bytes lie. The column where piece p of vector t begins, in the span. */
INLINE int column_of(firn_type f, int t, int p)
{
    switch (f) {
    case FIRN_Q8_0:
    case FIRN_Q6_K:
        return 64 * t + 8 * p;
    case FIRN_Q2_K:
    case FIRN_Q3_K:
        return 32 * t + 128 * (p / 4) + 8 * (p % 4);
    case FIRN_NVFP4: /* a run has its first half in the low nibbles of its eight bytes */
        return 128 * (t / 2) + 16 * p + 8 * (t % 2);
    default:
        return place_of(f, 0, 4 * (t / 2) + p / 2).column[t % 2] + 8 * (p % 2);
    }
}

INLINE int group_columns(firn_type f)
{
    return is_fine(f) ? FIRN_PANEL : FIRN_UNIT;
}

/* ---- x ---- */

/* The units per 1 of x of each group; false: not representable. */
INLINE bool choose_units(int columns, const float *x, x_span *s, float *per_unit)
{
    memset(s->unit, 0, sizeof s->unit);
    for (int g = 0; g < FIRN_SPAN / columns; g++) {
        __m512i most = _mm512_setzero_si512();
        for (int c = 0; c < columns; c += LANES) /* a NaN is more than any number */
            most = _mm512_max_epu32(most, _mm512_castps_si512(_mm512_abs_ps(vf_load(x + columns * g + c))));
        const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)_mm512_reduce_max_epu32(most))));
        if (!(largest < LARGEST) || (largest < LEAST && largest != 0))
            return false;
        per_unit[g] = largest > 0 ? UNITS / largest : 0;
        s->unit[g] = largest / UNITS;
    }
    return true;
}

/* The three digits of each of 8 integers. */
INLINE void store_digits(__m256i units, x_span *s, int at)
{
    const __m256i half = _mm256_set1_epi32(128);

    _mm_storel_epi64((__m128i *)(s->digit[0] + at), _mm256_cvtepi32_epi8(units));
    units = _mm256_srai_epi32(_mm256_add_epi32(units, half), 8);
    _mm_storel_epi64((__m128i *)(s->digit[1] + at), _mm256_cvtepi32_epi8(units));
    units = _mm256_srai_epi32(_mm256_add_epi32(units, half), 8);
    _mm_storel_epi64((__m128i *)(s->digit[2] + at), _mm256_cvtepi32_epi8(units));
}

INLINE bool make_span(firn_type f, const float *x, x_span *s)
{
    const int columns = group_columns(f);
    float per_unit[16];
    int32_t sum[16] = {0};

    if (!choose_units(columns, x, s, per_unit))
        return false;
    for (int t = 0; t < VECTORS; t++)
        for (int p = 0; p < PIECES; p++) {
            const int column = column_of(f, t, p), group = column / columns;
            const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + column), _mm256_set1_ps(per_unit[group]));
            const __m256i units = _mm256_cvtps_epi32(v);
            const __m256i two = _mm256_hadd_epi32(units, units), four = _mm256_hadd_epi32(two, two);
            sum[group] += _mm256_extract_epi32(four, 0) + _mm256_extract_epi32(four, 4);
            store_digits(units, s, 64 * t + 8 * p);
        }
    _mm512_store_ps(s->sum, vf_mul(vf_load(s->unit), _mm512_cvtepi32_ps(_mm512_loadu_si512(sum))));
    return true;
}

INLINE int64_t spans_of(int64_t k)
{
    return (k + FIRN_SPAN - 1) / FIRN_SPAN;
}

INLINE bool prepare(firn_type f, int64_t k, int n, const float *const *x, float *scratch)
{
    head *h = (head *)scratch;
    x_span *to = (x_span *)(h + 1);

    h->in_floats = 0;
    for (int i = 0; i < n; i++)
        for (int64_t c = 0; c < k; c += FIRN_SPAN, to++) {
            float tail[FIRN_SPAN] = {0};
            if (c + FIRN_SPAN > k)
                memcpy(tail, x[i] + c, (size_t)(k - c) * sizeof *tail);
            if (!make_span(f, c + FIRN_SPAN > k ? tail : x[i] + c, to)) {
                h->in_floats = 1;
                return false;
            }
        }
    return true;
}

/* ---- codes ---- */

/* Four units' 16 bytes, `step` apart. */
INLINE __m512i four_units(const uint8_t *p, int64_t step)
{
    if (step == 16)
        return _mm512_loadu_si512(p);
    __m512i v = _mm512_castsi128_si512(load128(p));
    v = _mm512_mask_broadcast_i32x4(v, 0x00f0, load128(p + step));
    v = _mm512_mask_broadcast_i32x4(v, 0x0f00, load128(p + 2 * step));
    return _mm512_mask_broadcast_i32x4(v, 0xf000, load128(p + 3 * step));
}

INLINE __m512i low_nibbles(__m512i v)
{
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

/* 16 bits of each of four units, from bit `at` of their words of fifth bits on. */
INLINE __mmask64 fifth_bits_of(const uint8_t *p, int64_t step, int at)
{
    return (uint64_t)load16(p + at / 8) | (uint64_t)load16(p + step + at / 8) << 16 |
           (uint64_t)load16(p + 2 * step + at / 8) << 32 | (uint64_t)load16(p + 3 * step + at / 8) << 48;
}

/* The codes of vector t of a span that begins at b. */
INLINE __m512i codes(firn_type f, const uint8_t *b, int t)
{
    const int64_t step = block_bytes(f);
    const int pair = t / 2, high = t % 2;

    if (f == FIRN_Q8_0) {
        const __m256i first = _mm256_loadu_si256((const __m256i *)(b + 2 * t * step + 2));
        const __m256i second = _mm256_loadu_si256((const __m256i *)(b + (2 * t + 1) * step + 2));
        return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), _mm512_set1_epi8(-128));
    }
    if (f == FIRN_Q2_K || f == FIRN_Q3_K) {
        const __m512i low = _mm512_loadu_si512(b + (f == FIRN_Q2_K ? 16 : 32));
        const __m512i two = _mm512_and_si512(_mm512_srli_epi16(low, (unsigned)(2 * t)), _mm512_set1_epi8(3));
        if (f == FIRN_Q2_K)
            return two;
        const __m512i bit = _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << t)), _mm256_set1_epi8((char)(16 << t)), 1);
        const __m512i bits = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)b));
        return _mm512_mask_add_epi8(two, _mm512_test_epi8_mask(bits, bit), two, _mm512_set1_epi8(4));
    }
    if (f == FIRN_Q6_K) {
        const __m512i low = _mm512_loadu_si512(b + 64 * pair);
        const __m512i two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b + 128 + 32 * pair)));
        const __m512i by = high ? _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1)
                                : _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
        const __m512i placed = high ? _mm512_srlv_epi16(two, by) : _mm512_sllv_epi16(two, by);
        return _mm512_or_si512(low_nibbles(high ? _mm512_srli_epi16(low, 4) : low),
                               _mm512_and_si512(placed, _mm512_set1_epi8(0x30)));
    }

    const int64_t unit_step = in_blocks_of_256(f) ? 16 : step;
    const uint8_t *p = b + place_of(f, 0, 4 * pair).bytes;
    __m512i bytes;
    if (f == FIRN_NVFP4) { /* two units to a block */
        bytes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p));
        bytes = _mm512_inserti64x4(bytes, _mm256_loadu_si256((const __m256i *)(p + step)), 1);
    } else {
        bytes = four_units(p, unit_step);
    }
    __m512i code = low_nibbles(high ? _mm512_srli_epi16(bytes, 4) : bytes);
    if (f == FIRN_Q5_0 || f == FIRN_Q5_1) {
        const __mmask64 fifth = fifth_bits_of(b + place_of(f, 0, 4 * pair).high, step, 16 * high);
        return _mm512_mask_add_epi8(code, fifth, code, _mm512_set1_epi8(16));
    }
    if (f == FIRN_Q5_K) { /* a bit for each of eight groups of 32 */
        const __m512i bits = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(b + 16)));
        const int first = 4 * pair + high;
        const __m512i bit =
            _mm512_inserti64x4(_mm512_set1_epi8((char)(1 << first)), _mm256_set1_epi8((char)(4 << first)), 1);
        return _mm512_mask_add_epi8(code, _mm512_test_epi8_mask(bits, bit), code, _mm512_set1_epi8(16));
    }
    if (is_looked_up(f) || f == FIRN_NVFP4) {
        const __m128i table = is_wide(f)
                                  ? _mm_setr_epi8(0, 23, 44, 62, 78, 92, 105, 117, (char)128, (char)140, (char)152,
                                                  (char)165, (char)180, (char)196, (char)216, (char)240)
                                  : _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), code);
    }
    return code;
}

/* ---- the product ---- */

/* Which scale each lane's four codes have. */
INLINE __m512i scale_lanes(firn_type f, int t)
{
    int32_t lane[16];

    for (int i = 0; i < 16; i++)
        lane[i] = column_of(f, t, i / 2) / group_columns(f);
    return _mm512_loadu_si512(lane);
}

typedef struct {
    __m512i v[3];
} digits;

INLINE digits load_digits(const x_span *x, int t)
{
    return (digits){{_mm512_load_si512(x->digit[0] + 64 * t), _mm512_load_si512(x->digit[1] + 64 * t),
                     _mm512_load_si512(x->digit[2] + 64 * t)}};
}

INLINE vf scaled_dot(firn_type f, __m512i code, const digits *x, vf scale, vf total)
{
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), code, x->v[2]);
    sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), code, x->v[1]);
    if (is_wide(f)) {
        const vf low = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), code, x->v[0]));
        return vf_fma(vf_fma(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(256), low), scale, total);
    }
    sum = _mm512_dpbusd_epi32(_mm512_slli_epi32(sum, 8), code, x->v[0]);
    return vf_fma(_mm512_cvtepi32_ps(sum), scale, total);
}

INLINE vf join(firn_type f, const __m256 v[2])
{
    return is_fine(f) ? _mm512_insertf32x8(_mm512_castps256_ps512(v[0]), v[1], 1) : vf_widen(v[0]);
}

INLINE void forward_rows(firn_type f, const int group, const int n, const uint8_t *w, int64_t row_bytes, int64_t k,
                         const x_span *x, float *const *y, int64_t r, bool add)
{
    const int64_t n_spans = spans_of(k), bytes = span_bytes(f);
    vf total[8][FEW];

#pragma GCC unroll 8
    for (int g = 0; g < group; g++)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            total[g][i] = vf_zero();
    for (int64_t s = 0; s < n_spans; s++) {
        const int units = (int)smaller(SPAN_UNITS, k / FIRN_UNIT - s * SPAN_UNITS);
        const uint8_t *b[8];
        uint8_t tail[8][SPAN_UNITS * 34 + 64];
        vf scaled[8][FEW];
#pragma GCC unroll 8
        for (int g = 0; g < group; g++) {
            b[g] = w + g * row_bytes + s * bytes;
            for (int64_t i = 0; i < bytes; i += 64)
                _mm_prefetch((const char *)b[g] + group * row_bytes + i, _MM_HINT_T1);
            if (!in_blocks_of_256(f) && units < SPAN_UNITS) {
                memset(tail[g], 0, sizeof tail[g]);
                memcpy(tail[g], b[g], (size_t)(bytes / SPAN_UNITS * units));
                b[g] = tail[g];
            }
            __m256 half_scale[2], half_shift[2];
            scales_of(f, b[g], 0, SPAN_UNITS, half_scale, half_shift);
            const vf scale = join(f, half_scale);
            const vf shift = has_shift(f) ? join(f, half_shift) : vf_mul(scale, _mm512_set1_ps((float)-offset_of(f)));
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                const x_span *xs = x + i * n_spans + s;
                scaled[g][i] = vf_mul(scale, vf_load(xs->unit));
                total[g][i] = vf_fma(shift, vf_load(xs->sum), total[g][i]);
            }
        }
#pragma GCC unroll 4
        for (int t = 0; t < VECTORS; t++) {
            const __m512i lanes = scale_lanes(f, t);
            __m512i code[8];
#pragma GCC unroll 8
            for (int g = 0; g < group; g++)
                code[g] = codes(f, b[g], t);
#pragma GCC unroll 8
            for (int i = 0; i < n; i++) {
                const digits d = load_digits(x + i * n_spans + s, t);
#pragma GCC unroll 8
                for (int g = 0; g < group; g++)
                    total[g][i] = scaled_dot(f, code[g], &d, _mm512_permutexvar_ps(lanes, scaled[g][i]), total[g][i]);
            }
        }
    }
#pragma GCC unroll 8
    for (int g = 0; g < group; g++)
#pragma GCC unroll 8
        for (int i = 0; i < n; i++) {
            const float sum = vf_sum(total[g][i]);
            y[i][r + g] = add ? y[i][r + g] + sum : sum;
        }
}

INLINE void forward(firn_type f, const int n, const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to,
                    const float *scratch, float *const *y, bool add)
{
    const x_span *x = (const x_span *)((const head *)scratch + 1);
    const int group = n == 1 ? 8 : n == 2 ? 4 : 2;
    int64_t r = from;

    for (; r + group <= to; r += group)
        forward_rows(f, group, n, w + r * row_bytes, row_bytes, k, x, y, r, add);
    for (; r < to; r++)
        forward_rows(f, 1, n, w + r * row_bytes, row_bytes, k, x, y, r, add);
}

/* avx512's kernels take four rows at a time. */
enum { FLOAT_ROWS = 4 };

static void prepare_floats(const firn_few_kernels *floats, int64_t k, int n, const float *const *x, float *scratch)
{
    float *sums = (float *)((head *)scratch + 1);

    for (int i = 0; i < n; i += FLOAT_ROWS)
        floats->prepare(k, n - i < FLOAT_ROWS ? n - i : FLOAT_ROWS, x + i, sums + i * FIRN_SPAN * spans_of(k));
}

static void forward_floats(const firn_few_kernels *floats, const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from,
                           int64_t to, int n, const float *const *x, const float *scratch, float *const *y, bool add)
{
    const float *sums = (const float *)((const head *)scratch + 1);

    for (int i = 0; i < n; i += FLOAT_ROWS)
        floats->forward(w, row_bytes, k, from, to, n - i < FLOAT_ROWS ? n - i : FLOAT_ROWS, x + i,
                        sums + i * FIRN_SPAN * spans_of(k), y + i, add);
}

#define CASE(CODE, n)                                                                                                  \
    case n:                                                                                                            \
        forward(FIRN_##CODE, n, w, row_bytes, k, from, to, scratch, y, add);                                           \
        break;

#define DOT_ROW(CODE, name)                                                                                            \
    static void prepare_##name(int64_t k, int n, const float *const *x, float *scratch)                                \
    {                                                                                                                  \
        if (!prepare(FIRN_##CODE, k, n, x, scratch))                                                                   \
            prepare_floats(&FIRN_SET(few_##name), k, n, x, scratch);                                                   \
    }                                                                                                                  \
    static void forward_##name(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to, int n,        \
                               const float *const *x, const float *scratch, float *const *y, bool add)                 \
    {                                                                                                                  \
        if (((const head *)scratch)->in_floats) {                                                                      \
            forward_floats(&FIRN_SET(few_##name), w, row_bytes, k, from, to, n, x, scratch, y, add);                   \
            return;                                                                                                    \
        }                                                                                                              \
        switch (n) {                                                                                                   \
            CASE(CODE, 1)                                                                                              \
            CASE(CODE, 2)                                                                                              \
            CASE(CODE, 3)                                                                                              \
            CASE(CODE, 4)                                                                                              \
            CASE(CODE, 5)                                                                                              \
            CASE(CODE, 6)                                                                                              \
            CASE(CODE, 7)                                                                                              \
            CASE(CODE, 8)                                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    static void back_##name(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t m, int64_t from, int64_t to,       \
                            int n, const float *const *dy, float *const *dx, bool add)                                 \
    {                                                                                                                  \
        FIRN_SET(few_##name).back(w, row_bytes, k, m, from, to, n, dy, dx, add);                                       \
    }                                                                                                                  \
    const firn_few_kernels firn_avx512vnni_few_##name = {FEW, FLOAT_ROWS, prepare_##name, forward_##name, back_##name};
FIRN_EACH_CODED(DOT_ROW)

#endif
