/* bench-attention: ATTENTION and ATTENTION_BACK, each alone, beside the machine's own limit.
 *
 *     bench-attention [--heads N] [--groups N] [--size N] [--queries N] [--keys N] [--threads N] [--clock wall|cpu]
 *                     [--samples N]
 *
 * Causal: the queries are the last ones of the keys (as many where nothing is said). Prints of each the best sample's
 * time, GFLOP/s (two products forward, five back) and percent of the best FMA burst, on the vectors that reach most,
 * seen between the samples. FIRN_CPU names the kernel set. On a busy machine use --threads 1 --clock cpu, which counts
 * this process's time only. */
#include "bench/measure.h"
#include "op/op.h"

#include <getopt.h>

enum { BURSTS = 3, N_BUFFERS = FIRN_MAX_SRC + 1 };

static struct {
    int64_t heads, groups, size, queries, keys, threads, samples;
    clockid_t clock;
    firn_context *ctx;
    firn_device *device;
} options = {.heads = 32, .groups = 4, .size = 128, .keys = 4096, .threads = 1, .samples = 5, .clock = CLOCK_MONOTONIC};

static void want(firn_status s)
{
    if (s == FIRN_OK)
        return;
    fprintf(stderr, "bench-attention: %s\n", firn_error(options.ctx));
    exit(1);
}

static double burst_gflops(double best)
{
    const burst bursts[] = {burst_of_lanes(8), burst_of_lanes(16)};

    for (int i = 0; i < 2 * BURSTS; i++)
        if (bursts[i % 2].usable)
            best = fmax(
                best,
                burst_rate(&bursts[i % 2], firn_context_pool(options.ctx), (int)options.threads, options.clock) / 1e9);
    return best;
}

/* Runs the node, whose sources are slots with data[i] in them; its result goes to `result`. */
static void measure(const char *what, firn_graph *g, firn_tensor *node, void *const *data, void *result)
{
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *buffers[N_BUFFERS] = {NULL}, *work;
    double best = INFINITY, limit = 0;

    firn_output(g, node);
    want(firn_plan_create(options.device, g, &plan));
    want(firn_exec_create(plan, &exec));
    for (int i = 0; i < FIRN_MAX_SRC + 1; i++) {
        const firn_tensor *t = i < FIRN_MAX_SRC ? node->src[i] : node;
        if (!t)
            continue;
        want(firn_buffer_wrap(options.device, i < FIRN_MAX_SRC ? data[i] : result, firn_n_bytes(t), &buffers[i]));
        want(firn_exec_bind(exec, t, buffers[i], 0));
    }
    want(firn_buffer_create(options.device, firn_plan_work_bytes(plan), &work));
    want(firn_exec_memory(exec, NULL, 0, work, 0));
    for (int64_t i = 0; i < options.samples; i++) {
        limit = burst_gflops(limit);
        const double start = clock_now(options.clock);
        want(firn_exec_run(exec, 0, 0));
        want(firn_device_wait(options.device));
        best = fmin(best, clock_now(options.clock) - start);
    }
    const double rate = firn_op_cost(node).flops / best / 1e9;
    printf("%-8s %10.3f ms %8.1f GFLOP/s  %5.1f %% of %.1f\n", what, 1e3 * best, rate, 100 * rate / limit, limit);
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_buffer_destroy(work);
    for (int i = 0; i < N_BUFFERS; i++)
        firn_buffer_destroy(buffers[i]);
}

static firn_tensor *slot(firn_graph *g, firn_type type, int64_t a, int64_t b, int64_t c, const char *name)
{
    return firn_slot(g, type, 3, (int64_t[]){a, b, c}, "%s", name);
}

static void run(void)
{
    const int64_t hd = options.size, n_q = options.queries, n_kv = options.keys, flat = (hd + 1) * options.heads * n_q;
    const float scale = 1 / sqrtf((float)hd);
    float *q = random_floats(hd * options.heads * n_q, 1), *dy = random_floats(hd * options.heads * n_q, 2);
    float *k = random_floats(hd * options.groups * n_kv, 3), *v = random_floats(hd * options.groups * n_kv, 4);
    float *y = need((size_t)flat * sizeof *y);
    float *gradients = need((size_t)hd * (size_t)(options.heads * n_q + 2 * options.groups * n_kv) * sizeof *gradients);
    int32_t *range = need((size_t)n_q * 2 * sizeof *range);

    for (int64_t t = 0; t < n_q; t++)
        range[2 * t + 1] = (int32_t)(n_kv - n_q + t + 1);
    for (int back = 0; back < 2; back++) {
        firn_graph *g;
        want(firn_graph_create(options.ctx, &g));
        firn_tensor *src[] = {slot(g, FIRN_F32, hd, options.heads, n_q, "q"),
                              slot(g, FIRN_F32, hd, options.groups, n_kv, "k"),
                              slot(g, FIRN_F32, hd, options.groups, n_kv, "v"),
                              slot(g, FIRN_I32, 2, n_q, 1, "range"),
                              back ? slot(g, FIRN_F32, flat, 1, 1, "y") : NULL,
                              back ? slot(g, FIRN_F32, hd, options.heads, n_q, "dy") : NULL,
                              NULL};
        const firn_params params = {.f = {scale, 0}};
        firn_tensor *node =
            firn_node(g, back ? &firn_op_attention_back : &firn_op_attention, src, back ? 7 : 5, &params);
        want(firn_graph_status(g));
        void *data[FIRN_MAX_SRC] = {q, k, v, range, y, dy};
        measure(back ? "backward" : "forward", g, node, data, back ? gradients : y);
        firn_graph_destroy(g);
    }
    free(q), free(dy), free(k), free(v), free(y), free(gradients), free(range);
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"heads", 1, 0, 'h'},   {"groups", 1, 0, 'g'}, {"size", 1, 0, 'd'},
                                          {"queries", 1, 0, 'q'}, {"keys", 1, 0, 'k'},   {"threads", 1, 0, 'j'},
                                          {"samples", 1, 0, 's'}, {"clock", 1, 0, 'c'},  {0}};
    int64_t *const numbers[] = {&options.heads, &options.groups,  &options.size,   &options.queries,
                                &options.keys,  &options.threads, &options.samples};
    int c, which;

    while ((c = getopt_long(argc, argv, "", names, &which)) != -1) {
        if (c == '?')
            return 2;
        if (c == 'c')
            options.clock = strcmp(optarg, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        else
            *numbers[which] = atoll(optarg);
    }
    if (options.queries == 0)
        options.queries = options.keys;
    if (options.clock != CLOCK_MONOTONIC && options.threads != 1) {
        fprintf(stderr, "bench-attention: --clock cpu needs --threads 1\n");
        return 2;
    }
    options.ctx = firn_context_create(&(firn_context_params){.n_threads = (int)options.threads});
    if (!options.ctx || !firn_context_pool(options.ctx))
        return 1;
    want(firn_device_open(options.ctx, "CPU", &options.device));
    printf("%s: %lld heads of %lld, %lld groups, %lld queries, %lld keys\n", firn_device_about(options.device),
           (long long)options.heads, (long long)options.size, (long long)options.groups, (long long)options.queries,
           (long long)options.keys);
    run();
    firn_device_close(options.device);
    firn_context_destroy(options.ctx);
    return 0;
}
