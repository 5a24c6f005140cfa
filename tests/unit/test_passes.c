/* Passes of any number of tokens on the plans of the largest: the bits of plans made for that number, and nothing is
 * allocated, planned or compiled for it; neither is anything inside steps of training. On every device that there is:
 * REMOTE0 and MTL0 where the build has them. */
#include "unit/model.h"

#include "core/backend.h"
#include "firn/train.h"
#include "model/model.h"
#include "model/random_model.h"

#include <math.h>
#include <stdlib.h>

enum { LARGEST = 150, FEW = 40 /* for devices in software, which take their time */ };

static const char *const devices[] = {"CPU", "REMOTE0", "MTL0"};

static bool is_there(const char *device)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *d = NULL;
    const bool there = firn_device_open(ctx, device, &d) == FIRN_OK;

    firn_device_close(d);
    firn_context_destroy(ctx);
    return there;
}

static size_t n_allocations;

static void *counted_alloc(void *user, size_t size)
{
    (void)user;
    n_allocations++;
    return malloc(size);
}

static void *counted_realloc(void *user, void *old, size_t size)
{
    (void)user;
    n_allocations++;
    return realloc(old, size);
}

static void counted_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_model *model;
    firn_adapter *adapter;
    firn_session *session;
} setup;

/* What has been made so far that steps should not make. */
typedef struct {
    size_t allocations;
    uint32_t plans, compiled;
} made;

static made made_by(const setup *s)
{
    return (made){n_allocations, s->device->n_plans, s->device->n_compiled};
}

static void expect_nothing_made(const setup *s, made before, const char *where)
{
    const made now = made_by(s);

    if (now.allocations != before.allocations || now.plans != before.plans || now.compiled != before.compiled)
        fail_msg("%s on %s allocates %zu times, makes %u plans and compiles %u kernels", where, s->device->name,
                 now.allocations - before.allocations, now.plans - before.plans, now.compiled - before.compiled);
}

static setup open_setup(const char *device, const char *model, int64_t n_tokens)
{
    const firn_context_params params = {.n_threads = 2,
                                        .allocator = {counted_alloc, counted_realloc, counted_free, NULL}};
    setup s = {.ctx = firn_context_create(&params)};

    assert_non_null(s.ctx);
    OK(s.ctx, firn_device_open(s.ctx, device, &s.device));
    OK(s.ctx, firn_model_open(s.ctx, model, &s.model));
    OK(s.ctx, firn_adapter_create(s.ctx, s.model, "all", 2, 4, 1, &s.adapter));
    for (int64_t i = 0; i < s.adapter->n_values; i++)
        if (s.adapter->values[i] == 0)
            s.adapter->values[i] = 0.02f * sinf((float)i);
    const firn_session_params session = {
        .n_tokens = n_tokens, .train = true, .router_losses = firn_model_get_info(s.model)->n_expert > 0};
    OK(s.ctx, firn_session_create(s.ctx, s.device, s.model, s.adapter, &session, &s.session));
    return s;
}

static void close_setup(setup *s)
{
    firn_session_destroy(s->session);
    firn_adapter_destroy(s->adapter);
    firn_model_close(s->model);
    firn_device_close(s->device);
    firn_context_destroy(s->ctx);
}

/* Two documents; every third token has no target. */
static double gradient(setup *s, int64_t n)
{
    static int32_t tokens[LARGEST], targets[LARGEST], position[LARGEST], first[LARGEST];
    const firn_batch batch = {.n_tokens = n,
                              .tokens = tokens,
                              .targets = targets,
                              .position = position,
                              .first = first,
                              .router_weight = {0.1f, 0.01f}};
    const int32_t v = (int32_t)firn_model_get_info(s->model)->n_vocab;
    int64_t n_targets;
    double loss;

    for (int32_t i = 0; i < n; i++) {
        const int32_t begin = i >= n / 3 ? (int32_t)(n / 3) : 0;
        tokens[i] = (i * 7 + 3) % v;
        targets[i] = i % 3 ? (i * 5 + 1) % v : -1;
        first[i] = begin;
        position[i] = i - begin;
    }
    if (n == 1)
        targets[0] = 1;
    firn_session_zero_gradients(s->session);
    OK(s->ctx, firn_session_gradient(s->session, &batch, 0.01f, &loss, &n_targets));
    return loss;
}

/* The sizes begin with the largest and end with 0. */
static void sizes_of(const char *device, const char *shape, const int64_t *sizes)
{
    const int64_t largest = sizes[0];
    const char *path = in_scratch("passes.gguf");
    firn_context *ctx = firn_context_create(NULL);

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 1, FIRN_Q4_0, 1, path, NULL));
    firn_context_destroy(ctx);
    setup s = open_setup(device, path, largest);
    gradient(&s, largest);
    (void)firn_session_gradients(s.session);
    for (size_t i = 0; sizes[i] != 0; i++) {
        char where[80];
        const made before = made_by(&s);
        const double loss = gradient(&s, sizes[i]);
        snprintf(where, sizeof where, "%s: a pass of %lld tokens", shape, (long long)sizes[i]);
        expect_nothing_made(&s, before, where);
        setup own = open_setup(device, path, sizes[i]);
        const double expected = gradient(&own, sizes[i]);
        const size_t bytes = (size_t)s.adapter->n_values * sizeof(float);
        if (loss != expected ||
            memcmp(firn_session_gradients(s.session), firn_session_gradients(own.session), bytes) != 0)
            fail_msg("%s: on the plans of %lld, on %s, it has other bits (loss %.17g, %.17g)", where,
                     (long long)largest, device, loss, expected);
        close_setup(&own);
    }
    close_setup(&s);
}

static void any_size_on_the_largest_plans(void **state)
{
    static const char *const shapes[] = {"tiny-deepseek2", "tiny-gpt-oss", "tiny-qwen2moe", "tiny-llama",
                                         "tiny-gemma4-e"};
    static const int64_t sizes[] = {LARGEST, 149, 131, 128, 127, 64, 33, LARGEST, 8, 7, 2, 1, 96, 0},
                         few[] = {FEW, 33, 32, 9, 8, 7, 1, 24, 0};

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        sizes_of("CPU", shapes[i], sizes);
    for (size_t i = 1; i < sizeof devices / sizeof *devices; i++)
        if (is_there(devices[i]))
            sizes_of(devices[i], "tiny-deepseek2", few);
}

/* Passes of other numbers of tokens, the optimizer's step, and what the host reads of both. */
static void steps_make_nothing_on(const char *device, int64_t largest)
{
    const char *path = in_scratch("steps.gguf");
    firn_context *ctx = firn_context_create(NULL);
    firn_optimizer *optimizer;
    double norm;

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find("tiny-olmoe"), 1, FIRN_Q4_0, 1, path, NULL));
    firn_context_destroy(ctx);
    setup s = open_setup(device, path, largest);
    OK(s.ctx, firn_optimizer_create(s.session, NULL, &optimizer));
    gradient(&s, largest - 11);
    OK(s.ctx, firn_optimizer_step(optimizer, 1e-3f, &norm));
    const made before = made_by(&s);
    for (int64_t n = largest; n > largest * 2 / 3; n -= 9) {
        gradient(&s, n);
        gradient(&s, n - 1);
        OK(s.ctx, firn_optimizer_step(optimizer, 1e-3f, &norm));
    }
    expect_nothing_made(&s, before, "a step of training");
    firn_optimizer_destroy(optimizer);
    close_setup(&s);
}

static void steps_allocate_plan_and_compile_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (is_there(devices[i]))
            steps_make_nothing_on(devices[i], i == 0 ? LARGEST : FEW);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_size_on_the_largest_plans),
        cmocka_unit_test(steps_allocate_plan_and_compile_nothing),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
