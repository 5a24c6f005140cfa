/* The same bits on 1, 2, 3, 5 and 16 threads: every family of operations with its gradient, and a step of a model
 * (loss, gradients, optimizer) with generation after it; on 1 and 3, what a run writes. Sizes are such that work is
 * shared out, and small, since many threads on few processors mostly wait for each other. (test_gemm.c and
 * test_kernels.c compare the products of every format.) */
#include "core/file.h"
#include "core/random.h"
#include "firn/ops.h"
#include "firn/train.h"
#include "model/random_model.h"
#include "train/optimizer.h"
#include "unit/families.h"
#include "unit/model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) /* ten times slower */
static const int counts[] = {1, 3};
#else
static const int counts[] = {1, 2, 3, 5, 16};
#endif
enum { N_COUNTS = sizeof counts / sizeof *counts, W = 160, ROWS = 72 };

/* ---- operations ---- */

static void fill(const firn_tensor *t, uint8_t *data, size_t bytes)
{
    const uint64_t stream = firn_stream(t->name);

    for (size_t i = 0; i < bytes / 4; i++)
        if (t->type == FIRN_F32)
            memcpy(data + 4 * i, &(float){0.1f + firn_random_unit(1, stream, i)}, 4);
        else if (t->type == FIRN_I32)
            memcpy(data + 4 * i, &(int32_t){(int32_t)(strcmp(t->name, "range") == 0 ? i % 2 * (1 + i / 2) : i % 3)}, 4);
        else /* Q4_0: halves that are small and finite */
            memcpy(data + 4 * i, &(uint32_t){(uint32_t)firn_random(1, stream, i) & 0x2FFF2FFFu}, 4);
}

/* All outputs of a family, one after the other. */
static uint8_t *outputs_of(int family, int n_threads, size_t *size)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = n_threads});
    firn_device *device = NULL;
    firn_graph *g = NULL;
    firn_plan *plan = NULL;
    firn_exec *exec = NULL;
    firn_buffer *buffers[512] = {NULL};
    firn_tensor *da = NULL;
    uint8_t *out = NULL;

    assert_non_null(ctx);
    OK(ctx, firn_device_open(ctx, "CPU", &device));
    OK(ctx, firn_graph_create(ctx, &g));
    firn_tensor *a = slot2(g, FIRN_F32, W, ROWS, "a"), *result = families[family].build(g, a);
    firn_tensor *y = firn_output(g, firn_sum(g, result));
    if (result->root == result)
        firn_output(g, result);
    OK(ctx, firn_graph_grad(g, y, NULL, &a, 1, &da));
    assert_non_null(da);
    firn_output(g, firn_scale(g, da, 1));
    OK(ctx, firn_plan_create(device, g, &plan));
    OK(ctx, firn_exec_create(plan, &exec));
    assert_true(firn_graph_n_tensors(g) < 510);
    for (int i = 0; i < firn_graph_n_tensors(g); i++) {
        const firn_tensor *t = firn_graph_tensor(g, i);
        const size_t bytes = firn_n_bytes(t);
        if (t->op && !t->output)
            continue;
        uint8_t *data = calloc(1, bytes + 4);
        assert_non_null(data);
        fill(t, data, bytes);
        OK(ctx, firn_buffer_create(device, bytes, &buffers[i]));
        OK(ctx, firn_buffer_write(buffers[i], 0, data, bytes));
        OK(ctx, firn_exec_bind(exec, t, buffers[i], 0));
        free(data);
    }
    OK(ctx, firn_buffer_create(device, firn_plan_arena_bytes(plan), &buffers[510]));
    OK(ctx, firn_buffer_create(device, firn_plan_work_bytes(plan), &buffers[511]));
    OK(ctx, firn_exec_memory(exec, buffers[510], 0, buffers[511], 0));
    OK(ctx, firn_exec_run(exec, 0, FIRN_RUN_CHECK));
    OK(ctx, firn_device_wait(device));
    *size = 0;
    for (int i = 0; i < firn_graph_n_tensors(g); i++) {
        if (!buffers[i])
            continue;
        const size_t bytes = firn_buffer_size(buffers[i]);
        out = realloc(out, *size + bytes + 1);
        assert_non_null(out);
        OK(ctx, firn_buffer_read(buffers[i], 0, out + *size, bytes));
        *size += bytes;
    }
    for (int i = 0; i < 512; i++)
        firn_buffer_destroy(buffers[i]);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(g);
    firn_device_close(device);
    firn_context_destroy(ctx);
    return out;
}

static void operations(void **state)
{
    (void)state;
    for (int f = 0; f < N_FAMILIES; f++) {
        size_t n, m;
        uint8_t *one = outputs_of(f, 1, &n);
        for (int c = 1; c < N_COUNTS; c++) {
            uint8_t *other = outputs_of(f, counts[c], &m);
            if (n != m || memcmp(one, other, n) != 0)
                fail_msg("%s: %d threads give other bits than one", families[f].name, counts[c]);
            free(other);
        }
        free(one);
    }
}

/* ---- a model ---- */

typedef struct {
    double loss;
    float *values;
    size_t n;
} outcome;

/* Loss and gradients of one pass, the adapter after the optimizer's step, and logits with it. */
static outcome pass_of(const char *model, int n_threads)
{
    fixture f;
    firn_optimizer_params adamw;
    firn_session *session;
    firn_optimizer *optimizer;
    firn_generator *generator;
    const float *logits;
    int64_t n_targets;
    double norm;
    outcome o = {0};

    open_at(&f, in_scratch(model), NULL, n_threads);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "all", 4, 8, 1, &f.adapter));
    for (int64_t i = 0; i < f.adapter->n_values; i++) /* B too, so that every tensor has a gradient */
        f.adapter->values[i] = 0.1f * firn_random_even(3, 0, (uint64_t)i);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true};
    const firn_batch batch = batch_of(&f, 2 * N);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    OK(f.ctx, firn_session_gradient(session, &batch, 1, &o.loss, &n_targets));
    const size_t n = (size_t)f.adapter->n_values, v = (size_t)firn_model_get_info(f.model)->n_vocab;
    o.n = 2 * n + v;
    o.values = malloc(o.n * sizeof(float));
    assert_non_null(o.values);
    memcpy(o.values, firn_session_gradients(session), n * sizeof(float));
    firn_optimizer_params_init(&adamw);
    adamw.clip = 1e-2f; /* the norm decides every value */
    OK(f.ctx, firn_optimizer_create(session, &adamw, &optimizer));
    OK(f.ctx, firn_optimizer_step(optimizer, 1e-3f, &norm));
    assert_true(norm > 1e-2);
    memcpy(o.values + n, f.adapter->values, n * sizeof(float));
    firn_optimizer_destroy(optimizer);
    firn_session_destroy(session);
    OK(f.ctx, firn_generator_create(f.ctx, f.device, f.model, f.adapter, 2 * N, &generator));
    OK(f.ctx, firn_generator_feed(generator, f.tokens, N, &logits));
    memcpy(o.values + 2 * n, logits, v * sizeof(float));
    firn_generator_destroy(generator);
    close_fixture(&f);
    return o;
}

static void models(void **state)
{
    static const char *const names[] = {"tiny-qwen3moe", "tiny-llama"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        firn_context *ctx = firn_context_create(NULL);
        OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(names[i]), 1, i ? FIRN_F16 : FIRN_Q4_K, 1,
                                        in_scratch("m.gguf"), NULL));
        firn_context_destroy(ctx);
        outcome one = pass_of("m.gguf", 1);
        for (int c = 1; c < (i ? 2 : N_COUNTS); c++) {
            outcome other = pass_of("m.gguf", counts[c]);
            assert_memory_equal(&one.loss, &other.loss, sizeof one.loss);
            if (memcmp(one.values, other.values, one.n * sizeof(float)) != 0)
                fail_msg("%s: %d threads give other bits than one", names[i], counts[c]);
            free(other.values);
        }
        free(one.values);
    }
}

/* ---- a run ---- */

/* Two steps: the adapter's file, and the last checkpoint's. */
static void train(int n_threads, const char *output, char *files[2], size_t sizes[2])
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = n_threads});
    firn_train_options o;
    firn_train_result result = {.size = sizeof result};
    char path[512];

    firn_train_options_init(&o);
    o.model = in_scratch("r.gguf");
    o.data = FIRN_STRINGS(in_scratch("d.jsonl"));
    o.output = output;
    o.steps = 2;
    o.context = 32;
    o.rank = 4;
    o.save_every = 2;
    OK(ctx, firn_train(ctx, &o, 0, NULL, &result));
    snprintf(path, sizeof path, "%s/adapter.gguf", output);
    OK(ctx, firn_file_read(ctx, path, 0, &files[0], &sizes[0]));
    snprintf(path, sizeof path, "%s/checkpoints/step-00000002.gguf", output);
    OK(ctx, firn_file_read(ctx, path, 0, &files[1], &sizes[1]));
    firn_context_destroy(ctx);
}

static void runs(void **state)
{
    static const char lines[] = "{\"prompt\": \"red and blue\", \"completion\": \" green\"}\n"
                                "{\"prompt\": \"one and two\", \"completion\": \" three\"}\n"
                                "{\"text\": \"the winter is long and the water is ice\"}\n";
    firn_context *ctx = firn_context_create(NULL);
    char *one[2], *other[2];
    size_t n[2], m[2];

    (void)state;
    OK(ctx,
       firn_random_model_write(ctx, firn_random_shape_find("tiny-olmoe"), 1, FIRN_Q4_0, 1, in_scratch("r.gguf"), NULL));
    OK(ctx, firn_file_write(ctx, in_scratch("d.jsonl"), lines, sizeof lines - 1));
    train(1, in_scratch("run1"), one, n);
    train(3, in_scratch("run3"), other, m);
    for (int i = 0; i < 2; i++) {
        /* the checkpoint also says how many seconds have passed, the length of metrics.jsonl, and its own hash */
        size_t differing = n[i] != m[i];
        for (size_t j = 0; j < n[i] && j < m[i]; j++)
            differing += one[i][j] != other[i][j];
        if (differing > (i ? 16 + 64 : 0))
            fail_msg("%s of a run on 3 threads differs in %zu bytes", i ? "the checkpoint" : "the adapter", differing);
        free(one[i]);
        free(other[i]);
    }
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations),
        cmocka_unit_test(models),
        cmocka_unit_test(runs),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
