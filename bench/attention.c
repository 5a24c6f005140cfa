/* bench-attention: ATTENTION and ATTENTION_BACK, each alone, beside the machine's own limit.
 *
 *     bench-attention [--heads N] [--groups N] [--size N] [--queries N] [--keys N] [--threads N] [--clock wall|cpu]
 *                     [--samples N]
 *
 * Causal: the queries are the last ones of the keys (as many where nothing is said). Prints of each the best sample's
 * time, GFLOP/s (two products forward, five back) and percent of the best FMA burst, on the vectors that reach most,
 * seen between the samples. FIRN_CPU names the kernel set. On a busy machine use --threads 1 --clock cpu, which counts
 * this process's time only. */
#include "bench/node.h"

#include <getopt.h>

static struct {
    int64_t heads, groups, size, queries, keys;
} options = {.heads = 32, .groups = 4, .size = 128, .keys = 4096};
static bench b = {.program = "bench-attention", .threads = 1, .samples = 5, .clock = CLOCK_MONOTONIC};

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
        want(&b, firn_graph_create(b.ctx, &g));
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
        want(&b, firn_graph_status(g));
        void *data[FIRN_MAX_SRC] = {q, k, v, range, y, dy};
        const measured m = measure(&b, g, node, data, back ? gradients : y);
        const double rate = firn_op_cost(node).flops / m.seconds / 1e9;
        printf("%-8s %10.3f ms %8.1f GFLOP/s  %5.1f %% of %.1f\n", back ? "backward" : "forward", 1e3 * m.seconds, rate,
               100 * rate / m.limit, m.limit);
        firn_graph_destroy(g);
    }
    free(q), free(dy), free(k), free(v), free(y), free(gradients), free(range);
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"heads", 1, 0, 'h'},   {"groups", 1, 0, 'g'}, {"size", 1, 0, 'd'},
                                          {"queries", 1, 0, 'q'}, {"keys", 1, 0, 'k'},   {"threads", 1, 0, 'j'},
                                          {"samples", 1, 0, 's'}, {"clock", 1, 0, 'c'},  {0}};
    int64_t *const numbers[] = {&options.heads, &options.groups, &options.size, &options.queries,
                                &options.keys,  &b.threads,      &b.samples};
    int c, which;

    while ((c = getopt_long(argc, argv, "", names, &which)) != -1) {
        if (c == '?')
            return 2;
        if (c == 'c')
            b.clock = strcmp(optarg, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        else
            *numbers[which] = atoll(optarg);
    }
    if (options.queries == 0)
        options.queries = options.keys;
    bench_open(&b);
    printf("%s: %lld heads of %lld, %lld groups, %lld queries, %lld keys\n", firn_device_about(b.device),
           (long long)options.heads, (long long)options.size, (long long)options.groups, (long long)options.queries,
           (long long)options.keys);
    run();
    bench_close(&b);
    return 0;
}
