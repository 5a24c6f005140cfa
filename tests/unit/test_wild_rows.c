/* ATTENTION_BACK where a row's dy is NaN: dK and dV of keys that the row does not see are what they are without the
 * NaN's row (0 times NaN is not added), those of keys that it sees are NaN. With every kernel set that this machine
 * has, one a process, since a process chooses once. */
#include "unit/unit.h"

#include "firn/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HD = 40, HEADS = 4, GROUPS = 2, N = 75, DOC = 31, WILD = 20 }; /* two documents; row WILD is of the first */

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

/* The gradients of q, k and v behind each other. */
static void gradients(float spoil, float *dq, float *dk, float *dv)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    firn_device *device;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    uint32_t seed = 7;

    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    firn_tensor *in[] = {firn_slot(g, FIRN_F32, 3, (int64_t[]){HD, HEADS, N}, "q"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){HD, GROUPS, N}, "k"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){HD, GROUPS, N}, "v"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){HD, HEADS, N}, "dy")};
    firn_tensor *range = firn_slot(g, FIRN_I32, 2, (int64_t[]){2, N}, "range"), *grads[3];
    firn_tensor *y = firn_attention(g, in[0], in[1], in[2], range, NULL, 0.2f, 0);
    assert_int_equal(firn_graph_grad(g, y, in[3], in, 3, grads), FIRN_OK);
    for (int i = 0; i < 3; i++)
        grads[i] = firn_output(g, firn_scale(g, grads[i], 1));
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    firn_buffer *memory, *arena, *work, *buffers[8];
    assert_int_equal(firn_buffer_create(device, firn_plan_arena_bytes(plan) + 64, &arena), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, firn_plan_work_bytes(plan) + 64, &work), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, arena, 0, work, 0), FIRN_OK);
    for (int i = 0; i < 4; i++) {
        const size_t n = (size_t)firn_n_elements(in[i]);
        float *x = malloc(n * sizeof *x);
        for (size_t k = 0; k < n; k++)
            x[k] = noise(&seed);
        if (i == 3)
            for (size_t k = 0; k < HD * HEADS; k++)
                x[WILD * HD * HEADS + k] = spoil;
        assert_int_equal(firn_buffer_create(device, n * sizeof *x, &buffers[i]), FIRN_OK);
        assert_int_equal(firn_buffer_write(buffers[i], 0, x, n * sizeof *x), FIRN_OK);
        assert_int_equal(firn_exec_bind(exec, in[i], buffers[i], 0), FIRN_OK);
        free(x);
    }
    int32_t ranges[2 * N];
    for (int t = 0; t < N; t++) {
        ranges[2 * t] = t < DOC ? 0 : DOC;
        ranges[2 * t + 1] = t + 1;
    }
    assert_int_equal(firn_buffer_create(device, sizeof ranges, &memory), FIRN_OK);
    assert_int_equal(firn_buffer_write(memory, 0, ranges, sizeof ranges), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, range, memory, 0), FIRN_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(firn_buffer_create(device, firn_n_bytes(grads[i]), &buffers[4 + i]), FIRN_OK);
        assert_int_equal(firn_exec_bind(exec, grads[i], buffers[4 + i], 0), FIRN_OK);
    }
    for (int part = 0; part < firn_plan_n_parts(plan); part++)
        assert_int_equal(firn_exec_run(exec, part, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(device), FIRN_OK);
    float *out[] = {dq, dk, dv};
    for (int i = 0; i < 3; i++)
        assert_int_equal(firn_buffer_read(buffers[4 + i], 0, out[i], firn_n_bytes(grads[i])), FIRN_OK);
    for (int i = 0; i < 7; i++)
        firn_buffer_destroy(buffers[i]);
    firn_buffer_destroy(memory);
    firn_buffer_destroy(arena);
    firn_buffer_destroy(work);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(g);
    firn_device_close(device);
    firn_context_destroy(ctx);
}

static void a_wild_row_reaches_what_it_sees(void **state)
{
    static float q[2][HD * HEADS * N], k[2][HD * GROUPS * N], v[2][HD * GROUPS * N];

    (void)state;
    gradients(0, q[0], k[0], v[0]);
    gradients(NAN, q[1], k[1], v[1]);
    for (int t = 0; t < N; t++) {
        const bool seen = t <= WILD;
        for (int d = 0; d < HD * GROUPS; d++) {
            const int at = t * HD * GROUPS + d;
            if (seen ? !isnan(v[1][at]) || !isnan(k[1][at])
                     : fabsf(v[1][at] - v[0][at]) > 1e-5f || fabsf(k[1][at] - k[0][at]) > 1e-5f || isnan(v[1][at]) ||
                           isnan(k[1][at]))
                fail_msg("key %d: dK %g, dV %g", t, (double)k[1][at], (double)v[1][at]);
        }
        for (int d = 0; d < HD * HEADS; d++)
            assert_true(isnan(q[1][t * HD * HEADS + d]) == (t == WILD));
    }
}

/* Whether this machine has the kernel set that was wished for. */
static bool is_here(void)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device = NULL;
    const bool here = firn_device_open(ctx, "CPU", &device) == FIRN_OK;

    firn_device_close(device);
    firn_context_destroy(ctx);
    return here;
}

int main(void)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512", "neon"};
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_wild_row_reaches_what_it_sees)};
    int failed = 0, status;

    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const pid_t child = fork();
        if (child == 0) {
            setenv("FIRN_CPU", sets[i], 1);
            if (!is_here())
                _exit(0);
            _exit(cmocka_run_group_tests(tests, NULL, NULL));
        }
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "failed with FIRN_CPU=%s\n", sets[i]);
            failed++;
        }
    }
    return failed;
}
