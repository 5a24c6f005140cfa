/* Graphs, gradients, plans and execs, on the CPU and on a deferred device. */
#include "firn/ops.h"
#include "unit/unit.h"

#include "unit/deferred.h"

#include <math.h>
#include <stdio.h>

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_graph *g;
} fixture;

static fixture open_fixture(bool deferred, int n_threads)
{
    fixture f = {.ctx = firn_context_create(&(firn_context_params){.n_threads = n_threads})};
    assert_non_null(f.ctx);
    if (deferred)
        f.device = deferred_device_open(f.ctx);
    else
        assert_int_equal(firn_device_open(f.ctx, "CPU", &f.device), FIRN_OK);
    assert_int_equal(firn_graph_create(f.ctx, &f.g), FIRN_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    firn_graph_destroy(f->g);
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
}

static const int64_t ne[2] = {64, 40}; /* wide enough that threads share it */
enum { N = 64 * 40 };

/* loss = sum((a * b + a)^2 / 2-ish): d/da and d/db are known in closed form. */
static void forward_and_backward(bool deferred, int n_threads, float *da_out)
{
    fixture f = open_fixture(deferred, n_threads);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a"), *b = firn_slot(f.g, FIRN_F32, 2, ne, "b");
    firn_tensor *y = firn_output(f.g, firn_add(f.g, firn_mul(f.g, a, b), a));
    firn_graph_cut(f.g);
    firn_tensor *dy = firn_slot(f.g, FIRN_F32, 2, ne, "dy"), *grads[2];
    assert_int_equal(firn_graph_grad(f.g, y, dy, (firn_tensor *[]){a, b}, 2, grads), FIRN_OK);
    firn_output(f.g, grads[0]);
    firn_output(f.g, grads[1]);
    firn_plan *plan;
    firn_exec *exec;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_OK);
    assert_int_equal(firn_plan_n_parts(plan), 2);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);

    firn_buffer *memory, *arena, *work;
    const size_t bytes = N * sizeof(float);
    assert_int_equal(firn_buffer_create(f.device, 6 * bytes, &memory), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, firn_plan_arena_bytes(plan) + 1, &arena), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, firn_plan_work_bytes(plan) + 1, &work), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_ERR_ARGUMENT); /* nothing is bound yet */
    assert_non_null(strstr(firn_error(f.ctx), "was not bound"));
    firn_tensor *bound[] = {a, b, dy, y, grads[0], grads[1]};
    for (int i = 0; i < 6; i++)
        assert_int_equal(firn_exec_bind(exec, bound[i], memory, (size_t)i * bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, a, memory, 5 * bytes + 4), FIRN_ERR_ARGUMENT); /* past the end */
    assert_int_equal(firn_exec_memory(exec, arena, 0, work, 0), FIRN_OK);
    float x[3][N], out[N];
    for (int i = 0; i < N; i++) {
        x[0][i] = (float)(i % 17) - 8;
        x[1][i] = (float)(i % 13) / 4;
        x[2][i] = (float)(i % 7) - 3;
    }
    assert_int_equal(firn_buffer_write(memory, 0, x, sizeof x), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 1, 0), FIRN_OK);
    if (deferred)
        assert_int_equal(((deferred_device *)f.device)->n_run, 0); /* enqueued, not run */
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    assert_int_equal(firn_buffer_read(memory, 3 * bytes, out, bytes), FIRN_OK);
    for (int i = 0; i < N; i++)
        assert_float_equal(out[i], x[0][i] * x[1][i] + x[0][i], 1e-5);
    assert_int_equal(firn_buffer_read(memory, 5 * bytes, out, bytes), FIRN_OK);
    for (int i = 0; i < N; i++)
        assert_float_equal(out[i], x[2][i] * x[0][i], 1e-5);
    assert_int_equal(firn_buffer_read(memory, 4 * bytes, da_out, bytes), FIRN_OK);
    for (int i = 0; i < N; i++)
        assert_float_equal(da_out[i], x[2][i] * x[1][i] + x[2][i], 1e-5);

    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(memory);
    firn_buffer_destroy(arena);
    firn_buffer_destroy(work);
    close_fixture(&f);
}

static void gradients_are_right_and_alike_everywhere(void **state)
{
    (void)state;
    static float first[N], other[N];
    forward_and_backward(false, 1, first);
    for (int threads = 2; threads <= 4; threads++) {
        forward_and_backward(false, threads, other);
        assert_memory_equal(first, other, sizeof first);
    }
    forward_and_backward(true, 1, other);
    assert_memory_equal(first, other, sizeof first);
}

static void builders_are_sticky(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a");
    firn_tensor *c = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){63, 40}, "c");
    firn_tensor *bad = firn_add(f.g, a, c);
    assert_null(bad);
    assert_null(firn_mul(f.g, bad, a));
    assert_null(firn_slot(f.g, FIRN_F32, 2, ne, "later"));
    firn_fail(f.ctx, FIRN_ERR_IO, "something else in between");
    assert_int_equal(firn_graph_status(f.g), FIRN_ERR_ARGUMENT);
    assert_non_null(strstr(firn_error(f.ctx), "ADD"));
    firn_plan *plan;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_ERR_ARGUMENT);
    close_fixture(&f);
}

static void shapes_are_checked_for_overflow_and_blocks(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    assert_null(firn_slot(f.g, FIRN_F32, 4, (int64_t[]){INT64_MAX / 8, 16, 16, 16}, "huge"));
    assert_int_equal(firn_graph_status(f.g), FIRN_ERR_ARGUMENT);
    close_fixture(&f);
    f = open_fixture(false, 1);
    assert_null(firn_slot(f.g, FIRN_Q4_K, 2, (int64_t[]){100, 2}, "ragged"));
    assert_non_null(strstr(firn_error(f.ctx), "multiple of 256"));
    close_fixture(&f);
}

static void integers_and_choices_have_no_gradient(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a"), *ids = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){3}, "ids");
    firn_tensor *rows = firn_get_rows(f.g, a, ids), *grads[1];
    assert_int_equal(firn_graph_grad(f.g, rows, NULL, &ids, 1, grads), FIRN_ERR_ARGUMENT);
    assert_non_null(strstr(firn_error(f.ctx), "ids holds integers"));
    /* A packed weight has none either: the sentence names operation and tensor. */
    firn_tensor *w = firn_slot(f.g, FIRN_Q4_0, 2, (int64_t[]){64, 8}, "blk.0.w"), *y = firn_mul_mat(f.g, w, a);
    firn_tensor *dy = firn_slot(f.g, FIRN_F32, 2, (int64_t[]){8, 40}, "dy");
    assert_int_not_equal(firn_graph_grad(f.g, y, dy, &w, 1, grads), FIRN_OK);
    assert_non_null(strstr(firn_error(f.ctx), "MUL_MAT"));
    close_fixture(&f);
}

static void unreached_parameters_get_no_gradient(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a"), *b = firn_slot(f.g, FIRN_F32, 2, ne, "b");
    firn_tensor *y = firn_sum(f.g, firn_sqr(f.g, a)), *grads[2];
    assert_int_equal(firn_graph_grad(f.g, y, NULL, (firn_tensor *[]){a, b}, 2, grads), FIRN_OK);
    assert_non_null(grads[0]);
    assert_null(grads[1]);
    close_fixture(&f);
}

/* A chain of elementwise nodes lies in one piece; with the memory of two, a long chain still fits. */
static void memory_is_reused(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    firn_tensor *t = firn_slot(f.g, FIRN_F32, 2, ne, "a");
    for (int i = 0; i < 20; i++)
        t = firn_scale(f.g, t, 1.5f);
    firn_tensor *unused = firn_exp(f.g, t);
    (void)unused;
    firn_output(f.g, firn_add(f.g, t, t));
    firn_plan *plan;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_OK);
    assert_in_range(firn_plan_arena_bytes(plan), 1, 2 * N * sizeof(float));
    assert_int_equal(firn_plan_n_nodes(plan), 21); /* the unused node is dropped */
    firn_plan_destroy(plan);
    close_fixture(&f);
}

static void a_device_declines_in_words(void **state)
{
    (void)state;
    fixture f = open_fixture(true, 1);
    ((deferred_device *)f.device)->declines = "MUL";
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a");
    firn_output(f.g, firn_named(firn_mul(f.g, a, a), "square"));
    firn_plan *plan;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(f.ctx), "DEF0 cannot run MUL square: this device has no kernel for it");
    close_fixture(&f);
}

/* An id out of range comes out of the wait, the smallest index first; nothing is read through it. */
static void faults_come_from_the_wait(bool deferred)
{
    fixture f = open_fixture(deferred, 3);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a"), *ids = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){400}, "ids");
    firn_tensor *y = firn_output(f.g, firn_named(firn_get_rows(f.g, a, ids), "rows"));
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory, *work;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    const size_t a_bytes = N * 4, y_bytes = 64 * 400 * 4;
    assert_int_equal(firn_buffer_create(f.device, a_bytes + 1600 + y_bytes, &memory), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, firn_plan_work_bytes(plan) + 1, &work), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, work, 0, work, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, a, memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, ids, memory, a_bytes), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, y, memory, a_bytes + 1600), FIRN_OK);
    int32_t id[400];
    for (int i = 0; i < 400; i++)
        id[i] = i % 40;
    id[377] = -1;
    id[123] = 40;
    firn_buffer_clear(memory, 0, a_bytes);
    firn_buffer_write(memory, a_bytes, id, sizeof id);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(f.ctx), "GET_ROWS rows: id number 123 is 40, outside 0 to 39");
    id[377] = id[123] = 0; /* and the device is usable again */
    firn_buffer_write(memory, a_bytes, id, sizeof id);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    if (!deferred) {
        const float bad = NAN;
        firn_buffer_write(memory, 5 * 4, &bad, 4);
        assert_int_equal(firn_exec_run(exec, 0, FIRN_RUN_CHECK), FIRN_OK);
        assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
        assert_string_equal(firn_error(f.ctx), "GET_ROWS rows: value [5, 0] is not finite");
    }
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(memory);
    firn_buffer_destroy(work);
    close_fixture(&f);
}

/* A fault is numbers: of a plan that was destroyed before the wait there is a sentence too. */
static void a_fault_outlives_its_plan(void **state)
{
    (void)state;
    fixture f = open_fixture(false, 1);
    firn_tensor *a = firn_slot(f.g, FIRN_F32, 2, ne, "a"), *ids = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){1}, "ids");
    firn_tensor *y = firn_output(f.g, firn_get_rows(f.g, a, ids));
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory;
    const int32_t id = 40;
    assert_int_equal(firn_plan_create(f.device, f.g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, N * 4 + 64 + 64 * 4, &memory), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, a, memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, ids, memory, N * 4), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, y, memory, N * 4 + 64), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, memory, 0, memory, 0), FIRN_OK);
    assert_int_equal(firn_buffer_write(memory, N * 4, &id, sizeof id), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(f.g);
    f.g = NULL;
    assert_int_equal(firn_device_wait(f.device), FIRN_ERR_DEVICE);
    assert_string_equal(firn_error(f.ctx), "node 2 of a plan that is gone: an id is out of range");
    assert_int_equal(firn_device_wait(f.device), FIRN_OK);
    firn_buffer_destroy(memory);
    close_fixture(&f);
}

/* Rows of one buffer may move over each other towards its front, and only there. */
static void rows_move_within_a_buffer(bool deferred)
{
    fixture f = open_fixture(deferred, 1);
    firn_buffer *b;
    unsigned char x[100], y[100];
    assert_int_equal(firn_buffer_create(f.device, sizeof x, &b), FIRN_OK);
    for (int i = 0; i < 100; i++)
        x[i] = (unsigned char)i;
    assert_int_equal(firn_buffer_write(b, 0, x, sizeof x), FIRN_OK);
    assert_int_equal(firn_queue_copy(FIRN_QUEUE_COMPUTE, b, 10, b, 17, 83), FIRN_OK);
    assert_int_equal(firn_buffer_read(b, 0, y, sizeof y), FIRN_OK);
    memmove(x + 10, x + 17, 83);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(firn_queue_copy(FIRN_QUEUE_COMPUTE, b, 17, b, 10, 83), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_queue_copy(FIRN_QUEUE_COMPUTE, b, 50, b, 0, 51), FIRN_ERR_ARGUMENT);
    firn_buffer_destroy(b);
    close_fixture(&f);
}

static void rows_move(void **state)
{
    (void)state;
    rows_move_within_a_buffer(false);
    rows_move_within_a_buffer(true);
}

static void faults_on_the_cpu(void **state)
{
    (void)state;
    faults_come_from_the_wait(false);
}

static void faults_on_a_deferred_device(void **state)
{
    (void)state;
    faults_come_from_the_wait(true);
}

static void unknown_devices_are_refused_with_the_list(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device;
    char *before = getenv("FIRN_CPU") ? strdup(getenv("FIRN_CPU")) : NULL;
    setenv("FIRN_CPU", "mmx", 1);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "'mmx'"));
    assert_non_null(strstr(firn_error(ctx), "vector, scalar"));
    /* The scalar set of bf16 is everywhere, but only for those who ask for both. */
    firn_context_set_precision(ctx, FIRN_PRECISION_BF16);
    assert_int_equal(firn_context_precision(ctx), FIRN_PRECISION_BF16);
    setenv("FIRN_CPU", "scalar", 1);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_ERR_UNSUPPORTED);
    assert_non_null(strstr(firn_error(ctx), "'scalar'; with precision bf16 this machine runs: "));
    setenv("FIRN_CPU", "scalar-bf16", 1);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    assert_non_null(strstr(firn_device_about(device), "precision bf16, kernels scalar-bf16"));
    firn_device_close(device);
    firn_context_set_precision(ctx, FIRN_PRECISION_F32);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_ERR_UNSUPPORTED);
    before ? setenv("FIRN_CPU", before, 1) : unsetenv("FIRN_CPU");
    free(before);
    char expected[512] = "there is no device 'TPU0' here; there is: CPU";
    for (int i = 1; i < firn_device_count(); i++) {
        firn_device_info info = {.size = sizeof info};
        assert_int_equal(firn_device_describe(ctx, i, &info), FIRN_OK);
        strcat(strcat(expected, ", "), info.name);
    }
    assert_int_equal(firn_device_open(ctx, "TPU0", &device), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(ctx), expected);
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_right_and_alike_everywhere),
        cmocka_unit_test(builders_are_sticky),
        cmocka_unit_test(shapes_are_checked_for_overflow_and_blocks),
        cmocka_unit_test(integers_and_choices_have_no_gradient),
        cmocka_unit_test(unreached_parameters_get_no_gradient),
        cmocka_unit_test(memory_is_reused),
        cmocka_unit_test(a_device_declines_in_words),
        cmocka_unit_test(a_fault_outlives_its_plan),
        cmocka_unit_test(rows_move),
        cmocka_unit_test(faults_on_the_cpu),
        cmocka_unit_test(faults_on_a_deferred_device),
        cmocka_unit_test(unknown_devices_are_refused_with_the_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
