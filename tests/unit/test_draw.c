/* Random blocks: finite, of the mean and deviation asked for, the same however they are cut; and the fallback rule. */
#include "unit/unit.h"

#include "format/draw.h"
#include "format/fallback.h"
#include "format/format.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void drawn_blocks_have_their_deviation(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *x = malloc(N * sizeof *x);
    int n_types = 0;
    for (int t = 0; t < FIRN_TYPE_LIMIT; t++) {
        const firn_type type = (firn_type)t;
        if (!firn_format_can_draw(type))
            continue;
        n_types++;
        for (float std = 0.01f; std < 0.1f; std *= 4) {
            const int64_t blocks = N / firn_type_block(type);
            uint8_t *whole = malloc(firn_row_bytes(type, N)), *cut = malloc(firn_row_bytes(type, N));
            firn_format_draw(type, std, 3, 5, 0, blocks, whole);
            firn_format_draw(type, std, 3, 5, 0, 7, cut);
            firn_format_draw(type, std, 3, 5, 7, blocks - 7, cut + 7 * firn_type_size(type));
            assert_memory_equal(whole, cut, firn_row_bytes(type, N));
            firn_decode_row(type, whole, N, x);
            double sum = 0, square = 0;
            for (int i = 0; i < N; i++) {
                assert_true(isfinite(x[i]));
                sum += x[i];
                square += (double)x[i] * x[i];
            }
            const double deviation = sqrt(square / N) / std, mean = sum / N / std;
            const double slack = type == FIRN_MXFP4 || type == FIRN_NVFP4 ? 0.25 : 0.05;
            if (fabs(deviation - 1) > slack || fabs(mean) > 0.03)
                fail_msg("%s at %g: deviation %g, mean %g of what is asked for", firn_type_name(type), std, deviation,
                         mean);
            firn_format_draw(type, std, 4, 5, 0, blocks, cut);
            assert_memory_not_equal(whole, cut, firn_row_bytes(type, N));
            free(whole);
            free(cut);
        }
    }
    assert_int_equal(n_types, 17);
    free(x);
}

static void types_fall_back_as_llama_cpp_has_it(void **state)
{
    (void)state;
    static const struct {
        firn_type wanted;
        int64_t row;
        firn_type got;
    } cases[] = {
        {FIRN_Q4_K, 2048, FIRN_Q4_K}, {FIRN_Q4_K, 96, FIRN_Q5_0},     {FIRN_Q4_K, 40, FIRN_F16},
        {FIRN_Q5_K, 96, FIRN_Q5_1},   {FIRN_Q6_K, 96, FIRN_Q8_0},     {FIRN_Q2_K, 96, FIRN_Q4_0},
        {FIRN_Q3_K, 96, FIRN_Q4_0},   {FIRN_IQ4_XS, 96, FIRN_IQ4_NL}, {FIRN_IQ2_XXS, 96, FIRN_IQ4_NL},
        {FIRN_IQ1_M, 33, FIRN_F16},   {FIRN_Q8_0, 33, FIRN_F16},      {FIRN_F32, 33, FIRN_F32},
        {FIRN_BF16, 33, FIRN_BF16},   {FIRN_Q4_1, 32, FIRN_Q4_1},     {FIRN_MXFP4, 16, FIRN_F16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(firn_quantize_fallback(cases[i].wanted, cases[i].row), cases[i].got);
    assert_true(firn_quantize_keeps_f32("blk.0.attn_norm.weight", 1));
    assert_true(firn_quantize_keeps_f32("blk.0.attn_q_norm.weight", 2));
    assert_true(firn_quantize_keeps_f32("blk.0.ffn_gate_inp.weight", 2));
    assert_true(firn_quantize_keeps_f32("blk.0.ffn_gate_inp_shexp.weight", 1));
    assert_true(firn_quantize_keeps_f32("blk.0.attn_q.bias", 1));
    assert_false(firn_quantize_keeps_f32("blk.0.ffn_gate_exps.weight", 3));
    assert_false(firn_quantize_keeps_f32("token_embd.weight", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drawn_blocks_have_their_deviation),
        cmocka_unit_test(types_fall_back_as_llama_cpp_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
