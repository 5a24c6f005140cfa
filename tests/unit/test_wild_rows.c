/* ATTENTION and ATTENTION_BACK where a row of q, k, v or dy is NaN: what sees it is NaN, and everything else is what it
 * is without it, other documents and what comes before it in its own: 0 times NaN is never added. With every kernel set
 * that this machine has, one a process, since a process chooses once, and on every other device. */
#include "unit/unit.h"

#include "firn/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Two documents of N tokens, the second begins with DOC; row WILD is of the first. */
enum { HEADS = 4, GROUPS = 2, N = 75, DOC = 31, WILD = 20, MAX_HD = 40 };
enum { IN_Q, IN_K, IN_V, IN_DY, NOWHERE };

static const struct {
    int64_t hd; /* 36: no whole blocks of 8 */
    float cap;
} shapes[] = {{40, 0}, {36, 0}, {40, 5}};

typedef struct {
    float y[MAX_HD * HEADS * N], dq[MAX_HD * HEADS * N], dk[MAX_HD * GROUPS * N], dv[MAX_HD * GROUPS * N];
} results;

static const char *device_name = "CPU";

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

static void attend(int64_t hd, float cap, int spoilt, results *r)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 2});
    firn_device *device;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    uint32_t seed = 7;

    assert_int_equal(firn_device_open(ctx, device_name, &device), FIRN_OK);
    assert_int_equal(firn_graph_create(ctx, &g), FIRN_OK);
    firn_tensor *in[] = {firn_slot(g, FIRN_F32, 3, (int64_t[]){hd, HEADS, N}, "q"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){hd, GROUPS, N}, "k"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){hd, GROUPS, N}, "v"),
                         firn_slot(g, FIRN_F32, 3, (int64_t[]){hd, HEADS, N}, "dy")};
    firn_tensor *range = firn_slot(g, FIRN_I32, 2, (int64_t[]){2, N}, "range"), *outs[4];
    firn_tensor *y = firn_attention(g, in[0], in[1], in[2], range, NULL, 0.2f, cap);
    outs[0] = y;
    assert_int_equal(firn_graph_grad(g, y, in[3], in, 3, outs + 1), FIRN_OK);
    for (int i = 0; i < 4; i++)
        outs[i] = firn_output(g, firn_scale(g, outs[i], 1));
    assert_int_equal(firn_plan_create(device, g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    firn_buffer *memory, *arena, *work, *buffers[8];
    assert_int_equal(firn_buffer_create(device, firn_plan_arena_bytes(plan) + 64, &arena), FIRN_OK);
    assert_int_equal(firn_buffer_create(device, firn_plan_work_bytes(plan) + 64, &work), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, arena, 0, work, 0), FIRN_OK);
    for (int i = 0; i < 4; i++) {
        const size_t n = (size_t)firn_n_elements(in[i]), row = n / N;
        float *x = malloc(n * sizeof *x);
        for (size_t k = 0; k < n; k++)
            x[k] = noise(&seed);
        for (size_t k = 0; k < row && i == spoilt; k++)
            x[WILD * row + k] = NAN;
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
    for (int i = 0; i < 4; i++) {
        assert_int_equal(firn_buffer_create(device, firn_n_bytes(outs[i]), &buffers[4 + i]), FIRN_OK);
        assert_int_equal(firn_exec_bind(exec, outs[i], buffers[4 + i], 0), FIRN_OK);
    }
    for (int part = 0; part < firn_plan_n_parts(plan); part++)
        assert_int_equal(firn_exec_run(exec, part, 0), FIRN_OK);
    assert_int_equal(firn_device_wait(device), FIRN_OK);
    float *to[] = {r->y, r->dq, r->dk, r->dv};
    for (int i = 0; i < 4; i++)
        assert_int_equal(firn_buffer_read(buffers[4 + i], 0, to[i], firn_n_bytes(outs[i])), FIRN_OK);
    for (int i = 0; i < 8; i++)
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

/* Rows of `width` values, in `wild` of them NaN, the others as in `good`. */
static void expect_rows(const char *what, const float *got, const float *good, int64_t width, const bool wild[N])
{
    for (int64_t at = 0; at < width * N; at++)
        if (wild[at / width] ? !isnan(got[at]) : !(fabsf(got[at] - good[at]) < 1e-5f))
            fail_msg("%s: %s of row %d: %g, expected %g", device_name, what, (int)(at / width), (double)got[at],
                     wild[at / width] ? (double)NAN : (double)good[at]);
}

static void nan_reaches_what_sees_it(void **state)
{
    static const char *const names[] = {"q", "k", "v", "dy"};
    static results good, got;

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t hd = shapes[i].hd;
        attend(hd, shapes[i].cap, NOWHERE, &good);
        for (int in = IN_Q; in <= IN_DY; in++) {
            bool y[N] = {false}, dq[N], dk[N] = {false}, dv[N] = {false};
            attend(hd, shapes[i].cap, in, &got);
            print_message("%s: NaN in %s, heads of %d, soft-cap %g\n", device_name, names[in], (int)hd,
                          (double)shapes[i].cap);
            for (int t = 0; t < N; t++) {
                const bool sees = t < DOC && (in == IN_K || in == IN_V ? t >= WILD : t == WILD);
                y[t] = sees && in != IN_DY;
                dq[t] = sees;
                for (int j = 0; j <= t && sees; j++) {
                    dk[j] = true;
                    dv[j] = in != IN_V; /* it is made of p and dy alone */
                }
            }
            expect_rows("y", got.y, good.y, hd * HEADS, y);
            expect_rows("dQ", got.dq, good.dq, hd * HEADS, dq);
            expect_rows("dK", got.dk, good.dk, hd * GROUPS, dk);
            expect_rows("dV", got.dv, good.dv, hd * GROUPS, dv);
        }
    }
}

/* Whether this machine has the kernel set that was wished for, or the device. */
static bool is_here(void)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_device *device = NULL;
    const bool here = firn_device_open(ctx, device_name, &device) == FIRN_OK;

    firn_device_close(device);
    firn_context_destroy(ctx);
    return here;
}

static int run_in_child(const char *set, int index)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nan_reaches_what_sees_it)};
    int status = 0;
    const pid_t child = fork();

    if (child == 0) {
        static firn_device_info info = {.size = sizeof info};
        firn_context *ctx = firn_context_create(NULL);
        if (set)
            setenv("FIRN_CPU", set, 1);
        if (index > 0) {
            if (firn_device_describe(ctx, index, &info) != FIRN_OK)
                _exit(1);
            device_name = info.name;
        }
        firn_context_destroy(ctx);
        _exit(is_here() ? cmocka_run_group_tests(tests, NULL, NULL) : 0);
    }
    if (child > 0 && waitpid(child, &status, 0) == child && status == 0)
        return 0;
    fprintf(stderr, "failed on %s %s\n", set ? "the CPU with kernels" : "another device", set ? set : "");
    return 1;
}

int main(void)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512", "neon"};
    int failed = 0;

    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        failed += run_in_child(sets[i], 0);
    for (int i = 1; i < firn_device_count(); i++)
        failed += run_in_child(NULL, i);
    return failed;
}
