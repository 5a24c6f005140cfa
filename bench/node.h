/* What benchmarks of one operation share: its node alone on the CPU, run beside the machine's own limit. The program
 * that includes it has a context and a device, and says what it is called. */
#ifndef FIRN_BENCH_NODE_H
#define FIRN_BENCH_NODE_H

#include "bench/measure.h"
#include "op/op.h"

typedef struct {
    const char *program; /* "bench-attention" */
    int64_t threads, samples;
    clockid_t clock;
    firn_context *ctx;
    firn_device *device;
} bench;

static inline void want(const bench *b, firn_status s)
{
    if (s == FIRN_OK)
        return;
    fprintf(stderr, "%s: %s\n", b->program, firn_error(b->ctx));
    exit(1);
}

/* Context and device; what is wrong with the options is said and ends the program. */
static inline void bench_open(bench *b)
{
    if (b->clock != CLOCK_MONOTONIC && b->threads != 1) {
        fprintf(stderr, "%s: --clock cpu needs --threads 1\n", b->program);
        exit(2);
    }
    b->ctx = firn_context_create(&(firn_context_params){.n_threads = (int)b->threads});
    if (!b->ctx || !firn_context_pool(b->ctx))
        exit(1);
    want(b, firn_device_open(b->ctx, "CPU", &b->device));
}

static inline void bench_close(bench *b)
{
    firn_device_close(b->device);
    firn_context_destroy(b->ctx);
}

/* GFLOP/s of the best burst of FMAs, on the vectors that reach most; `best` of before where that was more. */
static inline double burst_gflops(const bench *b, double best)
{
    enum { BURSTS = 3 };
    const burst bursts[] = {burst_of_lanes(8), burst_of_lanes(16)};

    for (int i = 0; i < 2 * BURSTS; i++)
        if (bursts[i % 2].usable)
            best = fmax(best, burst_rate(&bursts[i % 2], firn_context_pool(b->ctx), (int)b->threads, b->clock) / 1e9);
    return best;
}

static inline firn_tensor *slot(firn_graph *g, firn_type type, int64_t a, int64_t b, int64_t c, const char *name)
{
    return firn_slot(g, type, 3, (int64_t[]){a, b, c}, "%s", name);
}

typedef struct {
    double seconds, limit; /* the best sample's; GFLOP/s of the best burst seen between the samples */
    size_t work;           /* bytes of workspace */
} measured;

/* Runs the node, whose sources are slots with data[i] in them; its result goes to `result`. */
static inline measured measure(const bench *b, firn_graph *g, firn_tensor *node, void *const *data, void *result)
{
    measured m = {.seconds = INFINITY};
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *buffers[FIRN_MAX_SRC + 1] = {NULL}, *work;

    firn_output(g, node);
    want(b, firn_plan_create(b->device, g, &plan));
    want(b, firn_exec_create(plan, &exec));
    for (int i = 0; i < FIRN_MAX_SRC + 1; i++) {
        const firn_tensor *t = i < FIRN_MAX_SRC ? node->src[i] : node;
        if (!t)
            continue;
        want(b, firn_buffer_wrap(b->device, i < FIRN_MAX_SRC ? data[i] : result, firn_n_bytes(t), &buffers[i]));
        want(b, firn_exec_bind(exec, t, buffers[i], 0));
    }
    m.work = firn_plan_work_bytes(plan);
    want(b, firn_buffer_create(b->device, m.work + 64, &work));
    want(b, firn_exec_memory(exec, NULL, 0, work, 0));
    for (int64_t i = 0; i < b->samples; i++) {
        m.limit = burst_gflops(b, m.limit);
        const double start = clock_now(b->clock);
        want(b, firn_exec_run(exec, 0, 0));
        want(b, firn_device_wait(b->device));
        m.seconds = fmin(m.seconds, clock_now(b->clock) - start);
    }
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(work);
    for (int i = 0; i < FIRN_MAX_SRC + 1; i++)
        firn_buffer_destroy(buffers[i]);
    return m;
}

#endif
