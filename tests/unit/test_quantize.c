/* firn quantize: which tensor gets which type, what is said, that bytes are those of the encoders, and what is refused.
 */
#include "unit/unit.h"

#include "core/context.h"
#include "core/file.h"
#include "core/random.h"
#include "firn/quantize.h"
#include "format/encode.h"
#include "format/format.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static firn_context *ctx;
static char folder[] = "/tmp/firn-quantize-XXXXXX";
static char in_path[64], out_path[64];

static const struct {
    const char *name;
    firn_type type, q4_K, f32; /* as it is, and as it becomes under q4_K (--experts mxfp4 --output-type q6_K) and f32 */
    int n_dims;
    int64_t ne[3];
} tensors[] = {
    {"token_embd.weight", FIRN_F16, FIRN_Q4_K, FIRN_F32, 2, {512, 8, 1}},
    {"output_norm.weight", FIRN_F32, FIRN_F32, FIRN_F32, 1, {512, 1, 1}},
    {"blk.0.attn_q.weight", FIRN_F32, FIRN_Q4_K, FIRN_F32, 2, {4096, 300, 1}},
    {"blk.0.attn_q.bias", FIRN_F16, FIRN_F32, FIRN_F32, 1, {300, 1, 1}},
    {"blk.0.attn_q_norm.weight", FIRN_F32, FIRN_F32, FIRN_F32, 2, {256, 2, 1}},
    {"blk.0.attn_k.weight", FIRN_F32, FIRN_Q5_0, FIRN_F32, 2, {96, 4, 1}},
    {"blk.0.attn_v.weight", FIRN_F32, FIRN_F16, FIRN_F32, 2, {40, 4, 1}},
    {"blk.0.attn_output.weight", FIRN_Q4_K, FIRN_Q4_K, FIRN_F32, 2, {256, 4, 1}},
    {"blk.0.ffn_gate_inp.weight", FIRN_F32, FIRN_F32, FIRN_F32, 2, {512, 4, 1}},
    {"blk.0.ffn_up_exps.weight", FIRN_Q8_0, FIRN_MXFP4, FIRN_F32, 3, {512, 8, 4}},
    {"blk.0.ffn_up_exps.bias", FIRN_F32, FIRN_F32, FIRN_F32, 2, {512, 4, 1}},
    {"blk.1.ffn_down.13.weight", FIRN_F32, FIRN_MXFP4, FIRN_F32, 2, {512, 8, 1}},
    {"blk.1.ffn_up_shexp.weight", FIRN_IQ2_S, FIRN_Q4_K, FIRN_F32, 2, {256, 2, 1}},
    {"numbers", FIRN_I32, FIRN_I32, FIRN_I32, 1, {5, 1, 1}},
    {"output.weight", FIRN_BF16, FIRN_Q6_K, FIRN_F32, 2, {512, 8, 1}},
};
enum { N_TENSORS = sizeof tensors / sizeof *tensors };

static int64_t count(int i)
{
    return tensors[i].ne[0] * tensors[i].ne[1] * tensors[i].ne[2];
}

/* A model of these tensors, of values that their types can hold; `spoil`, where it is not 0, becomes one of attn_q's.
 */
static void write_model(float spoil)
{
    firn_gguf_writer *w;

    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_put_string(w, "general.architecture", "llama", 5), FIRN_OK);
    assert_int_equal(firn_gguf_put_u32(w, "general.file_type", 7), FIRN_OK);
    for (int i = 0; i < N_TENSORS; i++)
        assert_int_equal(firn_gguf_add_tensor(w, tensors[i].name, tensors[i].type, tensors[i].n_dims, tensors[i].ne),
                         FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, in_path), FIRN_OK);
    for (int i = 0; i < N_TENSORS; i++) {
        const size_t bytes = firn_row_bytes(tensors[i].type, count(i));
        float *x = firn_alloc(ctx, (size_t)count(i) * sizeof *x);
        void *packed = firn_alloc_zeroed(ctx, 1, bytes);
        for (int64_t k = 0; k < count(i); k++)
            x[k] = firn_random_unit(5, (uint64_t)i, (uint64_t)k) - 0.5f;
        if (spoil != 0 && i == 2)
            x[4096 * 299] = spoil;
        if (firn_format_encoder(tensors[i].type))
            firn_encode_row(tensors[i].type, x, count(i), NULL, packed);
        assert_int_equal(firn_gguf_writer_data(w, packed, bytes), FIRN_OK);
        firn_free(ctx, packed);
        firn_free(ctx, x);
    }
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
}

typedef struct {
    int calls, fallbacks;
} told;

static void hear(void *user, const firn_quantize_step *step)
{
    told *t = user;

    assert_int_equal(step->index, t->calls);
    assert_int_equal(step->count, N_TENSORS);
    assert_true(step->done <= step->bytes);
    t->calls++;
    t->fallbacks += step->wanted != step->type;
}

/* The bytes of every tensor of `out`, against decoding and encoding it here. */
static void check_output(bool f32)
{
    firn_gguf *in, *out;

    assert_int_equal(firn_gguf_open(ctx, in_path, &in), FIRN_OK);
    assert_int_equal(firn_gguf_open(ctx, out_path, &out), FIRN_OK);
    assert_int_equal(firn_gguf_n_tensors(out), N_TENSORS);
    for (int i = 0; i < N_TENSORS; i++) {
        const firn_gguf_tensor *a = firn_gguf_tensor_at(in, (size_t)i), *b = firn_gguf_tensor_at(out, (size_t)i);
        assert_string_equal(b->name, tensors[i].name);
        if (b->type != (f32 ? tensors[i].f32 : tensors[i].q4_K))
            fail_msg("%s became %s", b->name, firn_type_name(b->type));
        assert_memory_equal(a->ne, b->ne, sizeof a->ne);
        if (a->type == b->type) {
            assert_memory_equal(a->data, b->data, a->size);
            continue;
        }
        float *x = firn_alloc(ctx, (size_t)count(i) * sizeof *x);
        void *packed = firn_alloc(ctx, b->size);
        firn_decode_row(a->type, a->data, count(i), x);
        firn_encode_row(b->type, x, count(i), NULL, packed);
        assert_memory_equal(packed, b->data, b->size);
        firn_free(ctx, packed);
        firn_free(ctx, x);
    }
    uint32_t file_type;
    assert_int_equal(firn_gguf_get_u32(ctx, out, "general.file_type", true, &file_type), FIRN_OK);
    assert_int_equal(file_type, f32 ? 0 : 14);
    assert_true(!firn_gguf_kv(out, "general.quantization_version") == f32);
    assert_non_null(firn_gguf_kv(out, "general.architecture"));
    firn_gguf_close(in);
    firn_gguf_close(out);
}

static void each_tensor_gets_its_type(void **state)
{
    const firn_type experts = FIRN_MXFP4, output = FIRN_Q6_K;
    told t = {0};
    firn_quantize_options o = {.type = FIRN_Q4_K, .experts = &experts, .output = &output, .begin = hear, .user = &t};
    firn_quantize_report r = {.size = sizeof r};

    (void)state;
    write_model(0);
    assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_OK);
    check_output(false);
    assert_int_equal(t.calls, N_TENSORS);
    assert_int_equal(t.fallbacks, 2);
    assert_int_equal(r.n_fallbacks, 2);
    assert_int_equal(r.n_tensors, N_TENSORS);
    assert_int_equal(r.n_changed, 9);
    assert_true(r.bytes_out < r.bytes_in);

    o = (firn_quantize_options){.type = FIRN_F32};
    assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_OK);
    check_output(true);
    assert_int_equal(r.n_fallbacks, 0);
}

static void without_an_output_the_embedding_is_it(void **state)
{
    const firn_type output = FIRN_Q8_0;
    const firn_quantize_options o = {.type = FIRN_Q4_0, .output = &output};
    firn_quantize_report r = {.size = sizeof r};
    firn_gguf_writer *w;
    firn_gguf *g;
    float x[64] = {0};

    (void)state;
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "token_embd.weight", FIRN_F32, 2, (int64_t[]){32, 2}), FIRN_OK);
    assert_int_equal(firn_gguf_add_tensor(w, "blk.0.ffn_up.weight", FIRN_F32, 2, (int64_t[]){32, 2}), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, in_path), FIRN_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(firn_gguf_writer_data(w, x, sizeof x), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);

    assert_int_equal(firn_quantize(ctx, in_path, in_path, &o, &r), FIRN_OK); /* in place */
    assert_int_equal(firn_gguf_open(ctx, in_path, &g), FIRN_OK);
    assert_int_equal(firn_gguf_find(g, "token_embd.weight")->type, FIRN_Q8_0);
    assert_int_equal(firn_gguf_find(g, "blk.0.ffn_up.weight")->type, FIRN_Q4_0);
    firn_gguf_close(g);
}

/* Finite, but beyond what the type holds: never saturated in silence. What it does hold passes. */
static void what_a_type_cannot_hold_is_refused(void **state)
{
    static const struct {
        firn_type type;
        float fine, lost; /* 0: nothing is lost */
        const char *instead;
    } cases[] = {
        {FIRN_F16, 65504, 70000, "bf16 or f32"},
        {FIRN_BF16, 3.38e38f, FLT_MAX, "f32"},
        {FIRN_Q8_0, 8e6f, 9e6f, "bf16 or f32"},
        {FIRN_Q8_0, -8e6f, -3e38f, "bf16 or f32"},
        {FIRN_Q4_0, 4e5f, 3e6f, "bf16 or f32"},
        {FIRN_Q5_0, 7e5f, -3e6f, "bf16 or f32"},
        {FIRN_Q4_1, 9e5f, 1e7f, "bf16 or f32"},
        {FIRN_Q5_1, 1e6f, -1e6f, "bf16 or f32"},
        {FIRN_Q2_K, 1e6f, 1e8f, "bf16 or f32"},
        {FIRN_Q3_K, 5e6f, 1e9f, "bf16 or f32"},
        {FIRN_Q4_K, 4e7f, 3e9f, "bf16 or f32"},
        {FIRN_Q5_K, 8e7f, 3e9f, "bf16 or f32"},
        {FIRN_Q6_K, 2e8f, 3e9f, "bf16 or f32"},
        {FIRN_IQ4_NL, 8e6f, 3e7f, "bf16 or f32"},
        {FIRN_IQ4_XS, 2e8f, 3e9f, "bf16 or f32"},
        {FIRN_NVFP4, 2600, 5000, "bf16 or f32"},
        {FIRN_MXFP4, 3e38f, 0, NULL},
        {FIRN_F32, FLT_MAX, 0, NULL},
        {FIRN_Q8_0, 8e6f, NAN, NULL},
        {FIRN_F16, 0, NAN, NULL},
        {FIRN_BF16, 0, -INFINITY, NULL},
    };
    firn_quantize_report r = {.size = sizeof r};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const firn_quantize_options o = {.size = sizeof o, .type = cases[i].type};
        const char *name = firn_type_name(o.type);
        char expected[256];
        write_model(cases[i].fine);
        if (firn_quantize(ctx, in_path, out_path, &o, &r) != FIRN_OK)
            fail_msg("%s of %g: %s", name, (double)cases[i].fine, firn_error(ctx));
        if (cases[i].lost == 0)
            continue;
        write_model(cases[i].lost);
        unlink(out_path);
        assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_ERR_FORMAT);
        if (cases[i].instead && (o.type == FIRN_F16 || o.type == FIRN_BF16))
            snprintf(expected, sizeof expected,
                     "tensor 'blk.0.attn_q.weight' has weights of %.9g, and %s holds none above %s: take %s",
                     (double)fabsf(cases[i].lost), name, o.type == FIRN_F16 ? "65504" : "3.38953139e+38",
                     cases[i].instead);
        else if (cases[i].instead)
            snprintf(expected, sizeof expected,
                     "tensor 'blk.0.attn_q.weight' has weights of %g, which %s cannot hold: take %s",
                     (double)fabsf(cases[i].lost), name, cases[i].instead);
        else
            snprintf(expected, sizeof expected,
                     "tensor 'blk.0.attn_q.weight' has weights that are not finite, which %s cannot hold", name);
        assert_string_equal(firn_error(ctx), expected);
        assert_int_not_equal(access(out_path, F_OK), 0);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    firn_quantize_options o = {.type = FIRN_IQ1_S};
    firn_quantize_report r = {.size = sizeof r};

    (void)state;
    write_model(INFINITY);
    unlink(out_path);
    assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(ctx), "type iq1_s can be read here but not written");
    o.type = FIRN_Q4_K;
    assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx),
                        "tensor 'blk.0.attn_q.weight' has weights that are not finite, which q4_K cannot hold");
    assert_int_not_equal(access(out_path, F_OK), 0);
    o.type = FIRN_F32;
    assert_int_equal(firn_quantize(ctx, in_path, out_path, &o, &r), FIRN_OK);
    assert_int_equal(firn_quantize(ctx, "/tmp/there-is-no-such-file.gguf", out_path, &o, &r), FIRN_ERR_IO);
}

/* ---- the command ---- */

static int command(const char *arguments, char *output, size_t size)
{
    char line[512];

    snprintf(line, sizeof line, FIRN_BIN_DIR "/firn quantize %s 2>&1", arguments);
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    output[fread(output, 1, size - 1, pipe)] = 0;
    const int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void the_command_says_what_it_does(void **state)
{
    char arguments[256], output[2048];

    (void)state;
    write_model(0);
    snprintf(arguments, sizeof arguments, "%s %s Q4_k --experts MXFP4 --output-type=q6_K", in_path, out_path);
    assert_int_equal(command(arguments, output, sizeof output), 0);
    assert_non_null(strstr(output, "blk.0.attn_k.weight: q5_0 instead of q4_K, whose blocks of 256 do not divide rows "
                                   "of 96\n"));
    assert_non_null(strstr(output, "blk.0.attn_v.weight: f16 instead of q4_K"));
    assert_non_null(strstr(output, "15 tensors, 9 of them converted"));
    check_output(false);

    snprintf(arguments, sizeof arguments, "%s %s q9_9", in_path, out_path);
    assert_int_equal(command(arguments, output, sizeof output), 2);
    assert_non_null(strstr(output, "firn: 'q9_9' is no type that can be written; these can: f32, "));
    snprintf(arguments, sizeof arguments, "%s %s iq2_xs", in_path, out_path);
    assert_int_equal(command(arguments, output, sizeof output), 2);
    assert_int_equal(command("only-one", output, sizeof output), 2);
    snprintf(arguments, sizeof arguments, "%s/none.gguf %s f32", folder, out_path);
    assert_int_equal(command(arguments, output, sizeof output), 1);
    assert_memory_equal(output, "firn: ", 6);
}

/* The peak of resident memory, mapped pages included, of a child that converts and copies tensors larger than that. */
static void memory_does_not_grow_with_the_file(void **state)
{
    enum { ROWS = 16384, MIB = 1 << 20, LIMIT = 48 };
    static const int64_t ne[2] = {2048, ROWS};
    static const struct {
        const char *name;
        firn_type type;
    } big[] = {{"blk.0.ffn_up.weight", FIRN_F16}, {"blk.0.ffn_down.weight", FIRN_Q4_0}, {"output.weight", FIRN_F16}};
    static char zeros[MIB];
    firn_gguf_writer *w;
    struct rusage used;
    int status;

    (void)state;
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    assert_int_equal(firn_gguf_put_string(w, "general.architecture", "llama", 5), FIRN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(firn_gguf_add_tensor(w, big[i].name, big[i].type, 2, ne), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, in_path), FIRN_OK);
    for (int i = 0; i < 3; i++)
        for (size_t left = firn_row_bytes(big[i].type, ne[0] * ne[1]), n; left; left -= n) {
            n = left < MIB ? left : MIB;
            assert_int_equal(firn_gguf_writer_data(w, zeros, n), FIRN_OK);
        }
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);

    const pid_t child = fork();
    if (child == 0) {
        execl(FIRN_BIN_DIR "/firn", "firn", "quantize", in_path, out_path, "q4_0", "--output-type", "f16", "--threads",
              "2", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(wait4(child, &status, 0, &used), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose shadows are larger than the program */
#ifdef __APPLE__
    used.ru_maxrss >>= 10; /* bytes there, KiB elsewhere */
#endif
    if (used.ru_maxrss > LIMIT * 1024)
        fail_msg("quantizing 146 MiB took %ld KiB", used.ru_maxrss);
#endif
}

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    if (!ctx || !mkdtemp(folder))
        return 1;
    snprintf(in_path, sizeof in_path, "%s/in.gguf", folder);
    snprintf(out_path, sizeof out_path, "%s/out.gguf", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(in_path);
    unlink(out_path);
    rmdir(folder);
    firn_context_destroy(ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tensor_gets_its_type),          cmocka_unit_test(without_an_output_the_embedding_is_it),
        cmocka_unit_test(what_a_type_cannot_hold_is_refused), cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(the_command_says_what_it_does),      cmocka_unit_test(memory_does_not_grow_with_the_file),
    };
    return cmocka_run_group_tests_name("quantize", tests, setup, teardown);
}
