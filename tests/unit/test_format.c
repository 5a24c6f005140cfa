/* Weight formats: decoding bit for bit against tests/data/decode (see its README). */
#include "unit/unit.h"

#include "core/context.h"
#include "core/file.h"
#include "format/format.h"

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

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
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
        cmocka_unit_test(decodes_bit_for_bit),
    };
    return cmocka_run_group_tests_name("format", tests, setup, teardown);
}
