/* Weight formats: decoding bit for bit against tests/data/decode (see its README), encoding by its error against ggml's
 * encoders, and what any bits and any floats must not do. */
#include "unit/unit.h"

#include "core/context.h"
#include "core/file.h"
#include "core/random.h"
#include "firn/kernels.h"
#include "format/common.h"
#include "format/encode.h"
#include "format/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DATA FIRN_SOURCE_DIR "/tests/data/decode/"

static const struct {
    firn_type type;
    const char *name;
} formats[] = {
#define NAMED(CODE)                                                                                                    \
    {                                                                                                                  \
        FIRN_##CODE, #CODE                                                                                             \
    }
    NAMED(F16),   NAMED(BF16),  NAMED(Q4_0),    NAMED(Q4_1),   NAMED(Q5_0),  NAMED(Q5_1),    NAMED(Q8_0),
    NAMED(Q2_K),  NAMED(Q3_K),  NAMED(Q4_K),    NAMED(Q5_K),   NAMED(Q6_K),  NAMED(IQ4_NL),  NAMED(IQ4_XS),
    NAMED(MXFP4), NAMED(NVFP4), NAMED(IQ2_XXS), NAMED(IQ2_XS), NAMED(IQ2_S), NAMED(IQ3_XXS), NAMED(IQ3_S),
    NAMED(IQ1_S), NAMED(IQ1_M), NAMED(TQ1_0),   NAMED(TQ2_0),  NAMED(Q1_0),  NAMED(Q2_0),
#undef NAMED
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static firn_context *ctx;

static void read_file(const char *name, const char *suffix, char **data, size_t *size)
{
    char path[512];

    snprintf(path, sizeof path, "%s%s%s", DATA, name, suffix);
    if (firn_file_read(ctx, path, 0, data, size) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
}

/* Every bit, signs of zero and NaN included. */
static void decodes_bit_for_bit(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f++) {
        char *blocks, *want;
        size_t n_bytes, n_want;
        read_file(formats[f].name, ".blocks", &blocks, &n_bytes);
        read_file(formats[f].name, ".f32", &want, &n_want);
        const firn_type type = formats[f].type;
        const int64_t n = (int64_t)(n_bytes / firn_type_size(type)) * firn_type_block(type);
        assert_true(n > 0 && (size_t)n * sizeof(float) == n_want);

        assert_true(firn_format_can_decode(type));
        float *got = firn_alloc(ctx, n_want);
        firn_decode_row(type, blocks, n, got);
        for (int64_t i = 0; i < n; i++) {
            uint32_t g, w;
            memcpy(&g, got + i, 4);
            memcpy(&w, want + 4 * i, 4);
            if (g != w)
                fail_msg("%s: weight %lld is %08x and should be %08x", formats[f].name, (long long)i, g, w);
        }
        firn_free(ctx, got);
        firn_free(ctx, blocks);
        firn_free(ctx, want);
    }
}

/* ---- half and bf16 ---- */

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* Every finite half, the floats half way to its neighbour and the ones beside them. */
static void rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float f = firn_half_to_float((firn_half)h);
        assert_int_equal(firn_float_to_half(f), h);
        assert_int_equal(firn_float_to_half(-f), h | 0x8000);
        const float next = h == 0x7bff ? 65536.0f : firn_half_to_float((firn_half)(h + 1));
        const float middle = f + (next - f) / 2; /* exact: floats have 13 bits more */
        assert_int_equal(firn_float_to_half(middle), h + (h & 1));
        assert_int_equal(firn_float_to_half(nextafterf(middle, 0)), h);
        assert_int_equal(firn_float_to_half(nextafterf(middle, next)), h + 1);
    }
    for (uint32_t h = 0; h < 0x7f80; h++) {
        const float f = firn_bf16_to_float((uint16_t)h), middle = float_of(h << 16 | 0x8000);
        assert_int_equal(firn_float_to_bf16(f), h);
        assert_int_equal(firn_float_to_bf16(-f), h | 0x8000);
        assert_int_equal(firn_float_to_bf16(middle), h + (h & 1));
        assert_int_equal(firn_float_to_bf16(nextafterf(middle, 0)), h);
        assert_int_equal(firn_float_to_bf16(nextafterf(middle, INFINITY)), h + 1);
    }
    assert_int_equal(firn_float_to_half(INFINITY), 0x7c00);
    assert_int_equal(firn_float_to_half(-1e30f), 0xfc00);
    assert_int_equal(firn_float_to_half(float_of(0x7f800001)), 0x7e00);
    assert_int_equal(firn_float_to_half(float_of(0xffc02000)), 0xfe01);
    assert_int_equal(firn_float_to_bf16(float_of(0x7f800001)), 0x7fc0);
    assert_true(isnan(firn_half_to_float(0x7c01)) && isnan(firn_half_to_float(0xfe00)));
}

/* ---- random bits ---- */

/* Halves of a block by offset; a finite scale may give no NaN and no infinity. */
static const struct {
    firn_type type;
    int n, offset[2];
} halves[] = {
    {FIRN_Q4_0, 1, {0}},    {FIRN_Q4_1, 2, {0, 2}},   {FIRN_Q5_0, 1, {0}},   {FIRN_Q5_1, 2, {0, 2}},
    {FIRN_Q8_0, 1, {0}},    {FIRN_Q2_K, 2, {80, 82}}, {FIRN_Q3_K, 1, {108}}, {FIRN_Q4_K, 2, {0, 2}},
    {FIRN_Q5_K, 2, {0, 2}}, {FIRN_Q6_K, 1, {208}},    {FIRN_IQ4_NL, 1, {0}}, {FIRN_IQ4_XS, 1, {0}},
    {FIRN_NVFP4, 0, {0}},   {FIRN_IQ2_XXS, 1, {0}},   {FIRN_IQ2_XS, 1, {0}}, {FIRN_IQ2_S, 1, {0}},
    {FIRN_IQ3_XXS, 1, {0}}, {FIRN_IQ3_S, 1, {0}},     {FIRN_IQ1_S, 1, {0}},  {FIRN_TQ1_0, 1, {52}},
    {FIRN_TQ2_0, 1, {64}},  {FIRN_Q1_0, 1, {0}},      {FIRN_Q2_0, 1, {0}},
};

static void random_bits_decode(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof halves / sizeof *halves; t++) {
        const firn_type type = halves[t].type;
        for (uint64_t k = 0; k < 500; k++) {
            uint16_t block[128];
            float out[256];
            for (int i = 0; i < 128; i++)
                block[i] = (uint16_t)firn_random(1, t * 1000 + k, (uint64_t)i);
            for (int i = 0; i < halves[t].n; i++) {
                uint16_t *half = block + halves[t].offset[i] / 2;
                *half = (*half & 0x7c00) == 0x7c00 ? *half & 0xbfff : *half;
            }
            firn_decode_row(type, block, firn_type_block(type), out);
            for (int64_t i = 0; i < firn_type_block(type); i++)
                if (!isfinite(out[i]))
                    fail_msg("%s: weight %d of block %d is %g", firn_type_name(type), (int)i, (int)k, out[i]);
        }
    }
}

/* ---- encoders ---- */

enum { ROWS = 256, COLS = 1024, COUNT = ROWS * COLS };

/* Mean squared error of ggml's encoders (llama.cpp, PyPI xllamacpp 2026.10.11549, no importances) on the two matrices
 * below, and the factor of it that ours may have. */
static const struct {
    firn_type type;
    double mse[2], factor;
} anchors[] = {
    {FIRN_F16, {1.395590956e-11, 2.647130280e-11}, 1.0},     {FIRN_BF16, {8.906872635e-10, 1.610456178e-09}, 1.0},
    {FIRN_Q4_0, {2.335075762e-06, 8.070373141e-06}, 1.001},  {FIRN_Q4_1, {1.938752389e-06, 5.461370900e-06}, 1.001},
    {FIRN_Q5_0, {5.720678447e-07, 2.143971175e-06}, 1.001},  {FIRN_Q5_1, {4.541972758e-07, 1.232901638e-06}, 1.001},
    {FIRN_Q8_0, {8.986070881e-09, 3.701443677e-08}, 1.001},  {FIRN_Q2_K, {2.794720211e-05, 6.293986788e-05}, 1.05},
    {FIRN_Q3_K, {7.200940561e-06, 1.865624389e-05}, 1.05},   {FIRN_Q4_K, {1.612758378e-06, 4.283140654e-06}, 1.05},
    {FIRN_Q5_K, {4.133138836e-07, 1.135823530e-06}, 1.05},   {FIRN_Q6_K, {9.942772002e-08, 3.443005925e-07}, 1.05},
    {FIRN_IQ4_NL, {1.843422938e-06, 5.288332383e-06}, 1.05}, {FIRN_IQ4_XS, {1.872564132e-06, 5.488571141e-06}, 1.05},
    {FIRN_MXFP4, {4.109762751e-06, 1.084816832e-05}, 1.02},  {FIRN_NVFP4, {3.588907479e-06, 5.462408236e-06}, 1.02},
};
enum { N_ANCHORS = sizeof anchors / sizeof *anchors };

/* Value i of a matrix that any language can make: nearly normal, deviation 0.018; or with heavy tails. */
static float matrix_value(bool heavy, uint64_t i)
{
    const uint64_t base = (heavy ? 50000000 : 1000) + 8 * i;
    int64_t sum = -524280;
    int zeros = 0;

    for (uint64_t j = 0; j < 4; j++) {
        const uint64_t z = firn_mix64((base + j + 1) * 0x9E3779B97F4A7C15u);
        for (int shift = 0; shift < 64; shift += 16)
            sum += (int64_t)(z >> shift & 0xffff);
    }
    if (heavy) {
        const uint64_t z = firn_mix64((base + 5) * 0x9E3779B97F4A7C15u);
        while (zeros < 30 && !(z >> zeros & 1))
            zeros++;
    }
    return (float)sum * 0x1p-22f * (float)(1 << zeros / 3);
}

static float *matrix(bool heavy)
{
    float *x = firn_alloc(ctx, COUNT * sizeof *x);

    for (uint64_t i = 0; i < COUNT; i++)
        x[i] = matrix_value(heavy, i);
    return x;
}

/* Mean of w (x - y)^2. */
static double mean_error(const float *x, const float *y, const float *w, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - (double)y[i];
        sum += (w ? (double)w[i % COLS] : 1.0) * d * d;
    }
    return sum / (double)n;
}

/* Encodes and decodes through the public calls. */
static void there_and_back(firn_type type, const float *x, const float *w, int64_t n, int64_t rows, float *y)
{
    const size_t bytes = firn_row_bytes(type, n), stride = (size_t)n * sizeof(float);
    void *packed = firn_alloc(ctx, bytes * (size_t)rows);

    assert_int_equal(firn_encode_rows(ctx, type, x, stride, n, rows, w, packed, bytes, 0), FIRN_OK);
    assert_int_equal(firn_decode_rows(ctx, type, packed, bytes, n, rows, y, stride, 0), FIRN_OK);
    firn_free(ctx, packed);
}

static void encoders_reach_their_anchors(void **state)
{
    float *y = firn_alloc(ctx, COUNT * sizeof *y);

    (void)state;
    for (int heavy = 0; heavy < 2; heavy++) {
        float *x = matrix(heavy);
        assert_true(x[0] == (heavy ? 0.009699583053588867f : -0.018918514251708984f));
        for (int t = 0; t < N_ANCHORS; t++) {
            there_and_back(anchors[t].type, x, NULL, COLS, ROWS, y);
            const double error = mean_error(x, y, NULL, COUNT), bound = anchors[t].mse[heavy] * anchors[t].factor;
            if (!(error <= bound * (1 + 1e-9)))
                fail_msg("%s: mean squared error %g, at most %g", firn_type_name(anchors[t].type), error, bound);
        }
        firn_free(ctx, x);
    }
    firn_free(ctx, y);
}

/* What importance asks for it gets: the weighted error falls, well so where only one column in sixteen counts. */
static void importance_is_obeyed(void **state)
{
    enum { N = 64 * COLS };
    float *x = matrix(true), *y = firn_alloc(ctx, N * sizeof *y), w[COLS];

    (void)state;
    for (int i = 0; i < COLS; i++)
        w[i] = i % 16 == 5 ? 1.0f : 0.001f;
    for (int t = 2; t < N_ANCHORS; t++) {
        const firn_type type = anchors[t].type;
        there_and_back(type, x, NULL, COLS, N / COLS, y);
        const double before = mean_error(x, y, w, N);
        there_and_back(type, x, w, COLS, N / COLS, y);
        const double after = mean_error(x, y, w, N);
        if (!(after < 0.9 * before))
            fail_msg("%s: weighted error %g without, %g with importances", firn_type_name(type), before, after);
    }
    /* Importances that say nothing are as none. */
    for (int i = 0; i < COLS; i++)
        w[i] = i % 2 ? NAN : -1.0f;
    there_and_back(FIRN_Q4_K, x, w, COLS, 1, y);
    assert_true(mean_error(x, y, NULL, COLS) < 0.02 * mean_error(x, (float[COLS]){0}, NULL, COLS));
    firn_free(ctx, x);
    firn_free(ctx, y);
}

/* Groups whose weights are all alike, or almost, on either side of zero: no format may lose them. */
static void weights_of_one_value_stay(void **state)
{
    static const float values[] = {1.0f, -1.0f, 0.37f, -100.0f}, noise[] = {0, 1e-6f, 0.01f};
    float x[256], y[256], w[256];

    (void)state;
    for (int i = 0; i < 256; i++)
        w[i] = i % 16 == 5 ? 1.0f : 0.001f;
    for (int t = 2; t < N_ANCHORS; t++) {
        const firn_type type = anchors[t].type;
        const double bound = type == FIRN_MXFP4 || type == FIRN_NVFP4 ? 0.2 : 0.05;
        for (size_t k = 0; k < 2 * 4 * 3; k++) {
            const float v = values[k / 2 % 4];
            for (uint64_t i = 0; i < 256; i++)
                x[i] = v * (1 + noise[k / 8] * ((float)firn_random_below(3, k, i, 201) / 100 - 1));
            there_and_back(type, x, k % 2 ? w : NULL, 256, 1, y);
            for (int i = 0; i < 256; i++)
                if (!(fabsf(y[i] / x[i] - 1) <= bound))
                    fail_msg("%s: %g became %g in case %zu", firn_type_name(type), x[i], y[i], k);
        }
        /* A weight that hardly counts spans the group's range; all that count are alike. */
        float counts[256];
        for (int i = 0; i < 256; i++) {
            x[i] = i % 32 == 3 ? -2 : -1;
            counts[i] = i % 16 == 5 ? 1.0f : 1e-6f;
        }
        there_and_back(type, x, counts, 256, 1, y);
        for (int i = 5; i < 256; i += 16)
            if (!(fabsf(y[i] / x[i] - 1) <= bound))
                fail_msg("%s: %g became %g beside a weight that hardly counts", firn_type_name(type), x[i], y[i]);
    }
}

/* Zeros, single spikes, the largest and smallest floats, infinities, NaNs: what comes out is finite, and zero is zero.
 */
static void any_floats_encode(void **state)
{
    static const float odd[] = {0.0f,     -0.0f, 1e-45f, -1e-38f, 1e-30f,   6e-8f,    1.0f,      -3.5f,
                                65504.0f, 1e6f,  -1e12f, 3.4e38f, -3.4e38f, INFINITY, -INFINITY, NAN};
    enum { N_ODD = sizeof odd / sizeof *odd };
    float x[256], y[256];

    (void)state;
    for (int t = 2; t < N_ANCHORS; t++) {
        const firn_type type = anchors[t].type;
        for (uint64_t k = 0; k < 400; k++) {
            const uint64_t few = 1 + k % N_ODD; /* how many of them to draw from */
            for (uint64_t i = 0; i < 256; i++)
                x[i] = k < N_ODD ? odd[k] : odd[firn_random_below(2, k, i, few)];
            if (k % 3 == 2)
                x[k % 256] = odd[k % 7 + 9];
            there_and_back(type, x, NULL, 256, 1, y);
            for (int i = 0; i < 256; i++)
                if (!isfinite(y[i]))
                    fail_msg("%s: %g became %g in case %d", firn_type_name(type), x[i], y[i], (int)k);
        }
        memset(x, 0, sizeof x);
        there_and_back(type, x, NULL, 256, 1, y);
        for (int i = 0; i < 256; i++)
            assert_true(y[i] == 0);
        /* Too large for a half: as large as the format has, with the sign. */
        for (int i = 0; i < 256; i++)
            x[i] = i % 2 ? 1e30f : -1e30f;
        there_and_back(type, x, NULL, 256, 1, y);
        for (int i = 0; i < 256; i++)
            assert_true(type == FIRN_NVFP4 ? fabsf(y[i]) > 2000 && (y[i] < 0) == (x[i] < 0)
                                           : fabsf(y[i]) > 60000 || (type != FIRN_Q8_0 && i % 2));
    }
}

/* A multiple of the block encodes to the same bytes alone and among others, in any number of threads. */
static void rows_do_not_depend_on_company(void **state)
{
    enum { N = 1024, R = 6, GAP = 64 };
    float *x = matrix(false), *y = firn_alloc(ctx, N * R * sizeof *y);
    firn_context *many = firn_context_create(&(firn_context_params){.n_threads = 3});

    (void)state;
    for (int t = 0; t < N_ANCHORS; t++) {
        const firn_type type = anchors[t].type;
        const size_t bytes = firn_row_bytes(type, N), stride = bytes + GAP;
        uint8_t *one = firn_alloc(ctx, bytes), *all = firn_alloc(ctx, stride * R);
        memset(all, 0xa5, stride * R);
        assert_int_equal(firn_encode_rows(many, type, x, N * sizeof *x, N, R, NULL, all, stride, 0), FIRN_OK);
        for (int r = 0; r < R; r++) {
            firn_encode_row(type, x + N * r, N, NULL, one);
            assert_memory_equal(one, all + stride * (size_t)r, bytes);
            for (int i = 0; i < GAP; i++)
                assert_int_equal(all[stride * (size_t)r + bytes + (size_t)i], 0xa5);
        }
        assert_int_equal(firn_decode_rows(many, type, all, stride, N, R, y, N * sizeof *y, 0), FIRN_OK);
        firn_decode_row(type, all + 3 * stride, N, x + N * R);
        assert_memory_equal(x + N * R, y + 3 * N, N * sizeof *y);
        firn_free(ctx, one);
        firn_free(ctx, all);
    }
    firn_context_destroy(many);
    firn_free(ctx, x);
    firn_free(ctx, y);
}

static void wrong_calls_are_refused(void **state)
{
    _Alignas(4) uint16_t packed[512] = {0};
    float x[256] = {0};

    (void)state;
#define REFUSED(call, status, sentence)                                                                                \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        assert_string_equal(firn_error(ctx), sentence);                                                                \
    } while (0)
    REFUSED(firn_decode_rows(ctx, FIRN_I32, packed, 4, 1, 1, x, 4, 0), FIRN_ERR_UNSUPPORTED,
            "there is no decoder for type i32 (26)");
    REFUSED(firn_encode_rows(ctx, FIRN_IQ2_S, x, 1024, 256, 1, NULL, packed, 82, 0), FIRN_ERR_UNSUPPORTED,
            "there is no encoder for type iq2_s (22)");
    REFUSED(firn_decode_rows(ctx, (firn_type)77, packed, 4, 1, 1, x, 4, 0), FIRN_ERR_UNSUPPORTED,
            "there is no decoder for type unknown (77)");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_K, packed, 144, 128, 1, x, 1024, 0), FIRN_ERR_ARGUMENT,
            "q4_K has blocks of 256 weights; a row of 128 is no multiple");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, packed, 18, -32, 1, x, 1024, 0), FIRN_ERR_ARGUMENT,
            "sizes must not be negative: -32 weights, 1 rows");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, NULL, 18, 32, 1, x, 128, 0), FIRN_ERR_ARGUMENT, "src must not be null");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, packed, 16, 32, 2, x, 128, 0), FIRN_ERR_ARGUMENT,
            "rows of src are 16 bytes apart and need 18 bytes each");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, (char *)packed + 1, 18, 32, 2, x, 128, 0), FIRN_ERR_ARGUMENT,
            "src and its stride must be multiples of 2 bytes");
    REFUSED(firn_encode_rows(ctx, FIRN_Q4_0, x, 128, 32, 1, NULL, packed, 10, 0), FIRN_ERR_ARGUMENT,
            "rows of dst are 10 bytes apart and need 18 bytes each");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, packed, SIZE_MAX / 2 - 1, 32, 64, x, 128, 0), FIRN_ERR_ARGUMENT,
            "64 rows of 9223372036854775806 bytes are more than memory can hold");
    REFUSED(firn_decode_rows(ctx, FIRN_F32, x, 128, 32, 2, x + 63, 128, 0), FIRN_ERR_ARGUMENT,
            "src and dst must not overlap");
    REFUSED(firn_decode_rows(ctx, FIRN_Q4_0, packed, 18, 32, 2, x, 128, 1 << 20), FIRN_ERR_ARGUMENT,
            "1048576 threads were asked for; the context has 2");
    REFUSED(firn_encode_rows(ctx, FIRN_Q4_0, x, 128, 32, 1, (float *)(packed + 1), packed, 18, 0), FIRN_ERR_ARGUMENT,
            "the importances must be aligned to 4 bytes");
#undef REFUSED
    assert_int_equal(firn_decode_rows(ctx, FIRN_Q4_0, packed, 18, 32, 1, x, 128, 0), FIRN_OK);
    assert_int_equal(firn_decode_rows(ctx, FIRN_Q4_0, NULL, 0, 0, 5, NULL, 0, 0), FIRN_OK);
}

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    return ctx ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    firn_context_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_bit_for_bit),     cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(random_bits_decode),      cmocka_unit_test(encoders_reach_their_anchors),
        cmocka_unit_test(importance_is_obeyed),    cmocka_unit_test(weights_of_one_value_stay),
        cmocka_unit_test(any_floats_encode),       cmocka_unit_test(rows_do_not_depend_on_company),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests_name("format", tests, setup, teardown);
}
