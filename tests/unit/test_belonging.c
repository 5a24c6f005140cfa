/* What is given together must belong together: graphs, plans, execs, buffers, devices, contexts, files. Each call here
 * crashed, wrote past its memory or was silently ignored before it was refused. */
#include "unit/unit.h"

#include "core/backend.h"
#include "op/op.h"

#include "unit/deferred.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_graph *g;
    firn_tensor *a, *y;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = firn_context_create(NULL)};

    assert_int_equal(firn_device_open(f.ctx, "CPU", &f.device), FIRN_OK);
    assert_int_equal(firn_graph_create(f.ctx, &f.g), FIRN_OK);
    f.a = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){64}, "a");
    f.y = firn_output(f.g, firn_named(firn_exp(f.g, firn_named(firn_scale(f.g, f.a, 2), "twice")), "y"));
    assert_int_equal(firn_plan_create(f.device, f.g, &f.plan), FIRN_OK);
    assert_int_equal(firn_exec_create(f.plan, &f.exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 4096, &f.memory), FIRN_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    firn_exec_destroy(f->exec);
    firn_plan_destroy(f->plan);
    firn_buffer_destroy(f->memory);
    firn_graph_destroy(f->g);
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
}

#define REFUSED(ctx, call, sentence)                                                                                   \
    do {                                                                                                               \
        assert_int_equal(call, FIRN_ERR_ARGUMENT);                                                                     \
        if (strcmp(firn_error(ctx), sentence) != 0)                                                                    \
            fail_msg("'%s', not '%s'", firn_error(ctx), sentence);                                                     \
    } while (0)

static void gradients_of_one_graph(void **state)
{
    fixture f = open_fixture(), other = open_fixture();
    firn_tensor *sum = firn_sum(f.g, f.y), *dx = NULL, *ids = firn_slot(f.g, FIRN_I32, 1, (int64_t[]){1}, "ids");
    firn_tensor *seed = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){64}, "seed");

    (void)state;
    firn_tensor *strange = firn_sum(other.g, other.y);
    REFUSED(f.ctx, firn_graph_grad(f.g, strange, NULL, &f.a, 1, &dx), "y, SUM, is of another graph");
    REFUSED(f.ctx, firn_graph_grad(f.g, f.y, other.a, &f.a, 1, &dx), "dy, a, is of another graph");
    REFUSED(f.ctx, firn_graph_grad(f.g, sum, NULL, &other.a, 1, &dx), "a wanted tensor, a, is of another graph");
    REFUSED(f.ctx, firn_graph_grad(f.g, ids, NULL, &f.a, 1, &dx), "y, ids, holds integers, which have no gradient");
    REFUSED(f.ctx, firn_graph_grad(f.g, sum, ids, &f.a, 1, &dx), "dy holds integers, which are no gradient");
    REFUSED(f.ctx,
            firn_graph_grad_all(f.g, (firn_tensor *[]){f.y, strange}, (firn_tensor *[]){seed, NULL}, 2, &f.a, 1, &dx),
            "y, SUM, is of another graph");
    assert_null(dx);
    /* None of it hurt the graph; a tensor that came after y does not hang on it. */
    firn_tensor *both[] = {f.a, firn_slot(f.g, FIRN_F32, 1, (int64_t[]){64}, "late")}, *grads[2];
    assert_int_equal(firn_graph_grad(f.g, sum, NULL, both, 2, grads), FIRN_OK);
    assert_non_null(grads[0]);
    assert_null(grads[1]);
    close_fixture(&f);
    close_fixture(&other);
}

static void bindings_of_one_plan(void **state)
{
    fixture f = open_fixture(), other = open_fixture();
    firn_buffer *beside, *wrapped;
    static _Alignas(64) char bytes[1024];

    (void)state;
    REFUSED(f.ctx, firn_exec_bind(f.exec, other.a, f.memory, 0), "the tensor to bind is not in the plan's graph");
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.y->src[0], f.memory, 0),
            "twice is computed inside the plan and cannot be bound");
    /* Tensors that the plan has not seen lie past the end of what the exec has room for. */
    for (int i = 0; i < 64; i++) {
        firn_tensor *late = firn_slot(f.g, FIRN_F32, 1, (int64_t[]){1}, "late");
        REFUSED(f.ctx, firn_exec_bind(f.exec, late, f.memory, 0),
                "late was added to the graph after the plan was made");
    }
    firn_output(f.g, f.y->src[0]);
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.y->src[0], f.memory, 0),
            "twice is computed inside the plan and cannot be bound");
    /* Offsets. */
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.a, f.memory, 2),
            "a needs an address that is a multiple of 4: offset 2 of a buffer is not");
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.a, f.memory, 4096 - 252),
            "a needs 256 bytes at offset 3844, the buffer has 4096");
    assert_int_equal(firn_buffer_wrap(f.device, bytes + 2, 1000, &wrapped), FIRN_OK);
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.a, wrapped, 4),
            "a needs an address that is a multiple of 4: offset 4 of a buffer that begins beside one is not");
    assert_int_equal(firn_exec_bind(f.exec, f.a, wrapped, 2), FIRN_OK);
    assert_int_equal(firn_exec_bind(f.exec, f.y, f.memory, 4), FIRN_OK);
    if (firn_plan_arena_bytes(f.plan)) {
        REFUSED(f.ctx, firn_exec_memory(f.exec, f.memory, 32, f.memory, 0),
                "the arena needs an address that is a multiple of 64: offset 32 of a buffer is not");
        REFUSED(f.ctx, firn_exec_memory(f.exec, wrapped, 0, f.memory, 0),
                "the arena needs an address that is a multiple of 64: offset 0 of a buffer that begins beside one is "
                "not");
    }
    /* Devices and contexts. */
    assert_int_equal(firn_buffer_create(other.device, 4096, &beside), FIRN_OK);
    REFUSED(f.ctx, firn_exec_bind(f.exec, f.a, beside, 0), "a lies on CPU, the plan on CPU");
    firn_plan *plan;
    REFUSED(f.ctx, firn_plan_create(f.device, other.g, &plan),
            "the graph was made with another context than the device CPU");
    REFUSED(f.ctx, firn_exec_run(f.exec, 1, 0), "the plan has parts 0 to 0, not 1");
    REFUSED(f.ctx, firn_exec_run(f.exec, 0, 6), "a run has no flags 0x6");
    firn_buffer_destroy(beside);
    firn_buffer_destroy(wrapped);
    close_fixture(&f);
    close_fixture(&other);
}

/* ---- MUL_MAT_ID's table: one contract, whoever computes ---- */

enum { K = 32, M = 3, EXPERTS = 4, SLOTS = 6 };

static void expect_table(firn_context *ctx, firn_device *device, firn_type type, int64_t entry, bool good)
{
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *memory, *work;
    const int64_t expert = (int64_t)firn_row_bytes(type, K) * M, all = expert * EXPERTS;
    const size_t x_at = 4096, ids_at = 8192, table_at = 8448, y_at = 8704;
    int32_t ids[SLOTS] = {0, 1, 0, 2, 2, 0};
    int64_t table[EXPERTS] = {0, expert, entry, INT64_MIN}; /* the last is never asked for */
    char sentence[200];

    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    firn_tensor *w = firn_slot(g, type, 3, (int64_t[]){K, M, EXPERTS}, "w");
    firn_tensor *x = firn_slot(g, FIRN_F32, 3, (int64_t[]){K, 1, 3}, "x");
    firn_tensor *i = firn_slot(g, FIRN_I32, 2, (int64_t[]){2, 3}, "ids");
    firn_tensor *t = firn_slot(g, FIRN_I64, 1, (int64_t[]){EXPERTS}, "table");
    firn_tensor *y = firn_output(g, firn_mul_mat_id(g, w, x, i, t));
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, 16384, &memory), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, firn_plan_work_bytes(plan) + 1, &work), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, work, 0, work, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, w, memory, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, x, memory, x_at), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, i, memory, ids_at), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, t, memory, table_at), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, y, memory, y_at), FIRN_OK);
    assert_int_equal(firn_buffer_clear(memory, 0, 16384), FIRN_OK);
    assert_int_equal(firn_buffer_write(memory, ids_at, ids, sizeof ids), FIRN_OK);
    assert_int_equal(firn_buffer_write(memory, table_at, table, sizeof table), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    const firn_status s = firn_device_wait(device);
    snprintf(sentence, sizeof sentence,
             "MUL_MAT_ID: id number 3 is an expert that the table puts at byte %lld: a whole one must lie inside the "
             "weight's %lld bytes, at a multiple of %zu",
             (long long)entry, (long long)all, firn_type_align(type));
    if (s != (good ? FIRN_OK : FIRN_ERR_DEVICE) || (!good && strcmp(firn_error(ctx), sentence) != 0))
        fail_msg("%s, %s, byte %lld: %s '%s'", firn_device_name(device), firn_type_name(type), (long long)entry,
                 firn_status_name(s), s == FIRN_OK ? "" : firn_error(ctx));
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(memory);
    firn_buffer_destroy(work);
    firn_graph_destroy(g);
}

static void expect_tables(firn_context *ctx, firn_device *device)
{
    static const firn_type types[] = {FIRN_F32, FIRN_Q4_0, FIRN_Q8_0, FIRN_MXFP4};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int64_t expert = (int64_t)firn_row_bytes(types[i], K) * M, align = (int64_t)firn_type_align(types[i]);
        const int64_t last = expert * (EXPERTS - 1);
        expect_table(ctx, device, types[i], last, true);
        expect_table(ctx, device, types[i], align, true);
        expect_table(ctx, device, types[i], last + align, false);
        expect_table(ctx, device, types[i], -align, false);
        expect_table(ctx, device, types[i], INT64_MAX & -align, false);
        expect_table(ctx, device, types[i], INT64_MAX, false);
        expect_table(ctx, device, types[i], INT64_MIN, false);
        if (align > 1)
            expect_table(ctx, device, types[i], align / 2, false);
    }
}

/* The reference (on the deferred device), the CPU's kernels, and every other device that is there. */
static void tables_alike_everywhere(void **state)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    firn_device *device = deferred_device_open(ctx);

    (void)state;
    expect_tables(ctx, device);
    firn_device_close(device);
    for (int i = 0; i < firn_device_count(); i++) {
        firn_device_info info = {.size = sizeof info};
        assert_int_equal(firn_device_describe(ctx, i, &info), FIRN_OK);
        if (info.error[0])
            continue;
        assert_int_equal(firn_device_open(ctx, info.name, &device), FIRN_OK);
        expect_tables(ctx, device);
        firn_device_close(device);
    }
    firn_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_one_graph),
        cmocka_unit_test(bindings_of_one_plan),
        cmocka_unit_test(tables_alike_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
