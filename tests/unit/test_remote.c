/* REMOTE0 (tests/remote-device/remote.c): what a device with memory of its own asks of those who use it. */
#include "unit/unit.h"

#include "core/backend.h"
#include "firn/ops.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 1000 };

typedef struct {
    firn_context *ctx;
    firn_device *device;
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = firn_context_create(&(firn_context_params){.n_threads = 2})};

    assert_non_null(f.ctx);
    assert_int_equal(firn_device_open(f.ctx, "REMOTE0", &f.device), FIRN_OK);
    return f;
}

static void close_fixture(fixture *f)
{
    firn_device_close(f->device);
    firn_context_destroy(f->ctx);
}

static void the_hosts_memory_is_refused(void **state)
{
    (void)state;
    fixture f = open_fixture();
    firn_device_info info = {.size = sizeof info};
    firn_buffer *b;
    float x[4] = {1, 2, 3, 4}, y[4];
    bool wrapped = true;

    assert_int_equal(firn_device_get_info(f.device, &info), FIRN_OK);
    assert_false(info.host_memory);
    assert_int_equal(firn_buffer_wrap(f.device, x, sizeof x, &b), FIRN_ERR_UNSUPPORTED);
    assert_string_equal(firn_error(f.ctx), "REMOTE0 cannot use the host's memory in place");
    assert_int_equal(firn_buffer_of(f.device, x, sizeof x, &b, &wrapped), FIRN_OK); /* the other way: a copy */
    assert_false(wrapped);
    x[0] = 9;
    assert_int_equal(firn_buffer_read(b, 0, y, sizeof y), FIRN_OK);
    assert_true(y[0] == 1 && y[3] == 4);
    firn_buffer_destroy(b);
    close_fixture(&f);
}

/* Whoever takes a buffer's handle for an address dies there. */
static void memory_cannot_be_touched(void **state)
{
    (void)state;
    fixture f = open_fixture();
    firn_buffer *b;
    int status;

    assert_int_equal(firn_buffer_create(f.device, 3 * N, &b), FIRN_OK);
    for (int write = 0; write < 2; write++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            volatile char *p = (volatile char *)b->memory + write * (3 * N - 1);
            signal(SIGSEGV, SIG_DFL);
            if (write)
                *p = 1;
            _exit(*p != 0 ? 2 : 3);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
    }
    firn_buffer_destroy(b);
    close_fixture(&f);
}

/* What begins unwritten is NaN: a kernel that reads it shows. */
static void memory_begins_as_nans(void **state)
{
    (void)state;
    fixture f = open_fixture();
    firn_buffer *b;
    float x;

    assert_int_equal(firn_buffer_create(f.device, 64, &b), FIRN_OK);
    assert_int_equal(firn_buffer_read(b, 60, &x, sizeof x), FIRN_OK);
    assert_true(x != x);
    firn_buffer_destroy(b);
    close_fixture(&f);
}

/* One queue brings numbers, the other takes them on, round after round, in one place: events hold each to the other. */
static void events_order_queues(void **state)
{
    (void)state;
    fixture f = open_fixture();
    firn_buffer *ring, *all;
    static int32_t from[N], to[N];

    assert_int_equal(firn_buffer_create(f.device, sizeof *from, &ring), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, sizeof from, &all), FIRN_OK);
    for (int i = 0; i < N; i++) {
        from[i] = i + 1;
        assert_int_equal(firn_queue_upload(FIRN_QUEUE_TRANSFER, ring, 0, &from[i], sizeof *from), FIRN_OK);
        firn_event there = firn_queue_event(f.device, FIRN_QUEUE_TRANSFER);
        assert_int_equal(firn_queue_after(f.device, FIRN_QUEUE_COMPUTE, there), FIRN_OK);
        assert_int_equal(firn_queue_copy(FIRN_QUEUE_COMPUTE, all, (size_t)i * sizeof *from, ring, 0, sizeof *from),
                         FIRN_OK);
        firn_event taken = firn_queue_event(f.device, FIRN_QUEUE_COMPUTE);
        assert_int_equal(firn_queue_after(f.device, FIRN_QUEUE_TRANSFER, taken), FIRN_OK);
    }
    assert_int_equal(firn_queue_download(FIRN_QUEUE_COMPUTE, all, 0, to, sizeof to), FIRN_OK);
    assert_int_equal(firn_event_finish(f.device, firn_queue_event(f.device, FIRN_QUEUE_COMPUTE)), FIRN_OK);
    assert_memory_equal(from, to, sizeof from);
    firn_buffer_destroy(ring);
    firn_buffer_destroy(all);
    close_fixture(&f);
}

/* Plan, graph and exec may go while their work is still queued: it is done before they are gone. */
static void plans_go_while_their_work_is_queued(void **state)
{
    (void)state;
    fixture f = open_fixture();
    const int64_t n = 256;
    const float one = 1;
    firn_buffer *b, *busy;
    firn_graph *g;
    firn_plan *plan;
    firn_exec *exec;
    float y[256];

    assert_int_equal(firn_buffer_create(f.device, 4096, &b), FIRN_OK);
    assert_int_equal(firn_buffer_create(f.device, 1 << 20, &busy), FIRN_OK);
    for (int i = 0; i < 256; i++)
        assert_int_equal(firn_buffer_write(b, (size_t)i * sizeof one, &one, sizeof one), FIRN_OK);
    assert_int_equal(firn_graph_create(f.ctx, &g), FIRN_OK);
    firn_tensor *x = firn_slot(g, FIRN_F32, 1, &n, "x"), *twice = firn_output(g, firn_scale(g, x, 2));
    assert_int_equal(firn_plan_create(f.device, g, &plan), FIRN_OK);
    assert_int_equal(firn_exec_create(plan, &exec), FIRN_OK);
    assert_int_equal(firn_exec_memory(exec, busy, 0, busy, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, x, b, 0), FIRN_OK);
    assert_int_equal(firn_exec_bind(exec, twice, b, 2048), FIRN_OK);
    for (int i = 0; i < 50; i++)
        assert_int_equal(firn_queue_clear(FIRN_QUEUE_COMPUTE, busy, 0, 1 << 20), FIRN_OK);
    assert_int_equal(firn_exec_run(exec, 0, 0), FIRN_OK);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(g);
    assert_int_equal(firn_buffer_read(b, 2048, y, sizeof y), FIRN_OK);
    for (int i = 0; i < 256; i++)
        assert_true(y[i] == 2);
    firn_buffer_destroy(b);
    firn_buffer_destroy(busy);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hosts_memory_is_refused),
        cmocka_unit_test(memory_cannot_be_touched),
        cmocka_unit_test(memory_begins_as_nans),
        cmocka_unit_test(events_order_queues),
        cmocka_unit_test(plans_go_while_their_work_is_queued),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
