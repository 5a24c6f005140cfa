/* Graphs, devices, plans, execs and buffers die in any order (firn/graph.h): every order of their five destructors,
 * under the address sanitizer in CI, and a context's memory that is all given back. */
#include "firn/ops.h"
#include "unit/unit.h"

#include "model/model.h"

#include <stdlib.h>
#include <string.h>

static size_t n_blocks; /* allocated and not freed */

static void *take(void *user, size_t size)
{
    (void)user;
    n_blocks++;
    return malloc(size);
}

static void *retake(void *user, void *old, size_t size)
{
    (void)user;
    n_blocks += !old;
    return realloc(old, size);
}

static void give(void *user, void *memory)
{
    (void)user;
    n_blocks -= memory != NULL;
    free(memory);
}

typedef struct {
    firn_graph *graph;
    firn_device *device;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory;
} handles;

enum { N = 5 };

static void destroy(handles *h, int which)
{
    switch (which) {
    case 0:
        firn_graph_destroy(h->graph);
        break;
    case 1:
        firn_device_close(h->device);
        break;
    case 2:
        firn_plan_destroy(h->plan);
        break;
    case 3:
        firn_exec_destroy(h->exec);
        break;
    default:
        firn_buffer_destroy(h->memory);
    }
}

static void one_order(const int *order)
{
    const firn_context_params params = {.n_threads = 1, .allocator = {take, retake, give, NULL}};
    firn_context *ctx = firn_context_create(&params);
    handles h;
    float x[16] = {1}, y[16];
    bool there[N] = {true, true, true, true, true};

    assert_int_equal(firn_device_open(ctx, "CPU", &h.device), FIRN_OK);
    assert_int_equal(firn_graph_create(ctx, &h.graph), FIRN_OK);
    firn_tensor *a = firn_slot(h.graph, FIRN_F32, 1, (int64_t[]){16}, "a");
    firn_tensor *twice = firn_output(h.graph, firn_scale(h.graph, a, 2));
    assert_int_equal(firn_plan_create(h.device, h.graph, &h.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(h.plan, &h.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(h.device, 4096, &h.memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(h.exec, a, h.memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(h.exec, twice, h.memory, 1024), FIRN_OK);
    assert_int_equal(firn_exec_memory(h.exec, h.memory, 2048, NULL, 0), FIRN_OK);
    for (int i = 0; i < N; i++) {
        if (there[3] && there[4]) { /* what is still there still works */
            x[0] = (float)i + 1;
            assert_int_equal(firn_buffer_write(h.memory, 0, x, sizeof x), FIRN_OK);
            assert_int_equal(firn_exec_run(h.exec, 0, 0), FIRN_OK);
            assert_int_equal(firn_buffer_read(h.memory, 1024, y, sizeof y), FIRN_OK);
            assert_true(y[0] == 2 * x[0]);
        }
        destroy(&h, order[i]);
        there[order[i]] = false;
    }
    firn_context_destroy(ctx);
    assert_int_equal(n_blocks, 0);
}

static void every_order(int *order, int n)
{
    if (n == N) {
        one_order(order);
        return;
    }
    for (int i = n; i < N; i++) {
        const int swap = order[n];
        order[n] = order[i];
        order[i] = swap;
        every_order(order, n + 1);
        order[i] = order[n];
        order[n] = swap;
    }
}

static void handles_die_in_any_order(void **state)
{
    int order[N] = {0, 1, 2, 3, 4};

    (void)state;
    every_order(order, 0);
}

static void a_device_dies_before_its_session(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;
    firn_model *model;
    firn_session *session;
    firn_generator *generator;
    firn_adapter *adapter;
    const firn_session_params params = {.size = sizeof params, .n_tokens = 4};
    const float *logits;

    (void)state;
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    assert_int_equal(firn_model_open(ctx, FIRN_SOURCE_DIR "/tests/data/cases/qwen3moe/model.gguf", &model), FIRN_OK);
    assert_int_equal(firn_session_create(ctx, device, model, NULL, &params, &session), FIRN_OK);
    assert_int_equal(firn_generator_create(ctx, device, model, NULL, 8, &generator), FIRN_OK);
    /* An adapter of another architecture is refused though its names and shapes are the model's. */
    assert_int_equal(firn_adapter_create(ctx, model, "attention", 2, 4, 1, &adapter), FIRN_OK);
    strcpy(adapter->arch, "llama");
    firn_session *none;
    assert_int_equal(firn_session_create(ctx, device, model, adapter, &params, &none), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx),
                        "the adapter is for models of architecture llama, and this one is of qwen3moe");
    firn_generator *nothing;
    assert_int_equal(firn_generator_create(ctx, device, model, adapter, 8, &nothing), FIRN_ERR_ARGUMENT);
    firn_adapter_destroy(adapter);
    firn_device_close(device);
    assert_int_equal(firn_generator_feed(generator, (int32_t[]){1, 2}, 2, &logits), FIRN_OK);
    firn_session_destroy(session);
    firn_generator_destroy(generator);
    firn_model_close(model);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles_die_in_any_order),
        cmocka_unit_test(a_device_dies_before_its_session),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
