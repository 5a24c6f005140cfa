/* The router's losses in training: the gradient of the whole loss, a run that reports them, what is refused. */
#include "unit/model.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

/* ---- the gradient against differences of the whole loss ---- */

enum { DIRECTIONS = 4 };

typedef struct {
    float language, balance, z;
} weights;

static double whole_loss(fixture *f, firn_session *session, const firn_batch *batch, weights w)
{
    double loss, router[2];
    int64_t n;

    OK(f->ctx, firn_session_loss(session, batch, &loss, &n));
    firn_session_router_losses(session, router, &n);
    assert_int_equal(n, firn_model_get_info(f->model)->n_layer);
    return (double)w.language * loss + (double)w.balance * router[0] + (double)w.z * router[1];
}

static void move(fixture *f, const float *at, const double *d, double h)
{
    for (int64_t i = 0; i < f->adapter->n_values; i++)
        f->adapter->values[i] = (float)((double)at[i] + h * d[i]);
}

/* Along the gradient and some random directions. */
static void check_gradient(const char *name, weights w)
{
    fixture f;
    firn_session *session;
    double loss;
    int64_t n;

    open_case(&f, name, true, 2);
    firn_adapter_destroy(f.adapter);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "all", 3, 6, 1, &f.adapter));
    const int64_t count = f.adapter->n_values;
    for (int64_t i = 0; i < count; i++)
        if (f.adapter->values[i] == 0)
            f.adapter->values[i] = 0.05f * sinf((float)i);
    float *at = malloc((size_t)count * sizeof *at), *g = malloc((size_t)count * sizeof *g);
    double *d = malloc((size_t)count * sizeof *d);
    memcpy(at, f.adapter->values, (size_t)count * sizeof *at);
    const firn_session_params params = {.n_tokens = 2 * N, .train = true, .router_losses = true};
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    firn_batch batch = batch_of(&f, 2 * N);
    batch.router_weight[0] = w.balance;
    batch.router_weight[1] = w.z;
    OK(f.ctx, firn_session_gradient(session, &batch, w.language, &loss, &n));
    memcpy(g, firn_session_gradients(session), (size_t)count * sizeof *g);
    double top = 0; /* the slope along the gradient: what small ones are measured by */
    for (int k = 0; k < DIRECTIONS; k++) {
        double square = 0, slope = 0;
        for (int64_t i = 0; i < count; i++) {
            d[i] = k == 0 ? (double)g[i] : sin((double)(i * (2 * k + 1)) + k) * (g[i] < 0 ? -1 : 1);
            square += d[i] * d[i];
        }
        assert_true(square > 0);
        for (int64_t i = 0; i < count; i++) {
            d[i] /= sqrt(square);
            slope += d[i] * (double)g[i];
        }
        top = k == 0 ? slope : top;
        const double h = 0.003;
        move(&f, at, d, h);
        const double up = whole_loss(&f, session, &batch, w);
        move(&f, at, d, -h);
        const double down = whole_loss(&f, session, &batch, w);
        const double error = fabs((up - down) / (2 * h) - slope), size = fabs(slope);
        if (!(error < 1e-3 * size + 1e-4 * top))
            fail_msg("%s, language %g, balance %g, z %g, direction %d: %g, not %g", name, (double)w.language,
                     (double)w.balance, (double)w.z, k, slope, (up - down) / (2 * h));
    }
    free(at);
    free(g);
    free(d);
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_slopes(void **state)
{
    (void)state;
    static const weights all[] = {{0, 5, 0}, {0, 0, 1}, {0.2f, 5, 1}, {0.2f, 0, 0}};
    static const char *const names[] = {"qwen3moe", "olmoe", "mixtral-q4_0"};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            check_gradient(names[i], all[k]);
}

/* ---- equal bits ---- */

typedef struct {
    double loss, router[2];
    float *gradients;
    int64_t n, total;
} outcome;

static outcome step_of(int threads, uint64_t limit, bool router_losses)
{
    fixture f;
    firn_session *session;
    firn_session_memory memory = {.size = sizeof memory};
    int64_t n;
    outcome o = {0};

    open_case(&f, "qwen3moe", true, threads);
    const firn_session_params params = {
        .n_tokens = 2 * N, .train = true, .router_losses = router_losses, .memory_limit = limit};
    OK(f.ctx, firn_session_plan(f.ctx, f.device, f.model, f.adapter, &params, &memory));
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter, &params, &session));
    firn_batch batch = batch_of(&f, 2 * N);
    batch.router_weight[0] = 0.5f;
    batch.router_weight[1] = 0.25f;
    OK(f.ctx, firn_session_gradient(session, &batch, 0.25f, &o.loss, &n));
    firn_session_router_losses(session, o.router, &n);
    assert_int_equal(n > 0, router_losses);
    o.n = f.adapter->n_values;
    o.total = (int64_t)memory.total;
    o.gradients = malloc((size_t)o.n * sizeof(float));
    memcpy(o.gradients, firn_session_gradients(session), (size_t)o.n * sizeof(float));
    firn_session_destroy(session);
    close_fixture(&f);
    return o;
}

static void test_bits(void **state)
{
    (void)state;
    const outcome all = step_of(2, 0, true), one = step_of(1, 0, true);
    const outcome tight = step_of(2, (uint64_t)all.total - 1, true), without = step_of(2, 0, false);
    const outcome *same[] = {&one, &tight};

    assert_true(tight.total < all.total);
    assert_true(all.router[0] > 0 && all.router[1] > 0);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(&same[i]->loss, &all.loss, sizeof all.loss);
        assert_memory_equal(same[i]->router, all.router, sizeof all.router);
        assert_memory_equal(same[i]->gradients, all.gradients, (size_t)all.n * sizeof(float));
        free(same[i]->gradients);
    }
    /* They do not touch the language's loss, and they do reach the gradient. */
    assert_memory_equal(&without.loss, &all.loss, sizeof all.loss);
    assert_memory_not_equal(without.gradients, all.gradients, (size_t)all.n * sizeof(float));
    free(without.gradients);
    free(all.gradients);
}

/* ---- a run ---- */

static int sh(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int sh(const char *format, ...)
{
    char command[1024];
    va_list args;
    int n = snprintf(command, sizeof command, "cd %s && ", scratch);

    va_start(args, format);
    vsnprintf(command + n, sizeof command - (size_t)n, format, args);
    va_end(args);
    const int status = system(command);
    return status >> 8 & 255;
}

#define FIRN FIRN_BIN_DIR "/firn"

/* A number of the step's line in DIR/metrics.jsonl; NAN where there is none. */
static double metric(const char *dir, int step, const char *key)
{
    char path[128], line[2048];
    double value = NAN;

    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(in_scratch(path), "r");
    assert_non_null(f);
    for (int i = 0; i <= step && fgets(line, sizeof line, f); i++) {
        json_t *o = json_loads(line, 0, NULL);
        if (i == step && json_object_get(o, key))
            value = json_number_value(json_object_get(o, key));
        json_decref(o);
    }
    fclose(f);
    return value;
}

static void write_data(void)
{
    FILE *f = fopen(in_scratch("d.jsonl"), "w");

    assert_non_null(f);
    for (int i = 0; i < 24; i++)
        fprintf(f, "{\"text\": \"%.*s\"}\n", 20 + i, &"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"[i % 7]);
    fclose(f);
}

#define TUNE  FIRN " finetune --data d.jsonl --context 64 --rank 4 --eval-split 0 --threads 1 "
#define TRAIN TUNE "--steps 3 "

static void test_a_run(void **state)
{
    (void)state;
    write_data();
    assert_int_equal(sh(FIRN " init --like tiny --seed 1 m.gguf >out"), 0);
    assert_int_equal(sh(TRAIN "--model m.gguf --output plain >out 2>&1"), 0);
    assert_int_equal(sh(TRAIN "--model m.gguf --output both --targets all --router-aux-loss 0.01 --router-z-loss 0.001 "
                              ">out 2>&1"),
                     0);
    assert_true(isnan(metric("plain", 1, "router_aux_loss")));
    assert_int_equal(sh("grep -q 'balance by step' both/report.html && ! grep -q 'balance by step' plain/report.html"),
                     0);
    for (int step = 1; step <= 3; step++) {
        /* Near 1 with random routers, and the square of the logarithm of a few experts. */
        assert_true(metric("both", step, "router_aux_loss") > 0.8 && metric("both", step, "router_aux_loss") < 4);
        assert_true(metric("both", step, "router_z_loss") > 0.1);
    }
    /* At the first step the adapter does nothing yet: the same language loss. */
    assert_true(metric("plain", 1, "loss") == metric("both", 1, "loss"));
    /* A step is the same however its windows are spread over passes, for what is a mean over tokens. */
    assert_int_equal(sh(TRAIN "--model m.gguf --output wide --batch 2 --router-z-loss 1 >out 2>&1"), 0);
    assert_int_equal(sh(TRAIN "--model m.gguf --output long --accumulate 2 --router-z-loss 1 >out 2>&1"), 0);
    for (int step = 1; step <= 3; step++) {
        const double a = metric("wide", step, "router_z_loss"), b = metric("long", step, "router_z_loss");
        assert_true(fabs(a / b - 1) < 1e-4);
        assert_true(fabs(metric("wide", step, "grad_norm") / metric("long", step, "grad_norm") - 1) < 1e-3);
    }
}

static void test_a_strong_pull_evens_the_load(void **state)
{
    (void)state;
    assert_int_equal(sh(TUNE "--model m.gguf --output free --targets router --steps 25 --learning-rate 0.02 "
                             "--schedule constant --warmup 0 --router-aux-loss 1e-9 >out 2>&1"),
                     0);
    assert_int_equal(sh(TUNE "--model m.gguf --output even --targets router --steps 25 --learning-rate 0.02 "
                             "--schedule constant --warmup 0 --router-aux-loss 100 >out 2>&1"),
                     0);
    assert_true(metric("even", 25, "router_aux_loss") < metric("even", 1, "router_aux_loss"));
    assert_true(metric("even", 25, "router_aux_loss") < metric("free", 25, "router_aux_loss"));
}

static void test_refusals(void **state)
{
    (void)state;
    char text[1024];

    write_data();
    assert_int_equal(sh(TRAIN "--model %s/llama/model.gguf --output dense --router-aux-loss 0.1 2>err >out", CASES), 1);
    FILE *f = fopen(in_scratch("err"), "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    if (!strstr(text, "has no experts, and so no router"))
        fail_msg("%s", text);
    assert_int_equal(sh(TRAIN "--model m.gguf --output x --router-z-loss -1 2>err >out"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slopes),   cmocka_unit_test(test_bits),
        cmocka_unit_test(test_a_run),    cmocka_unit_test(test_a_strong_pull_evens_the_load),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
