/* bench-scan: what carries a state along the tokens, forward and backward, beside the machine's own limit.
 *
 *     bench-scan [--op gated_delta|ssm_scan|conv] [--keys N] [--values N] [--groups N] [--heads N] [--tokens N]
 * [--channels 0|1]
 *                [--threads N] [--clock wall|cpu] [--samples N]
 *
 * The default is a block of Qwen3.5-35B-A3B. Prints of each direction the best sample's time and, for the scans, what
 * the chunked form's floating-point operations (chunks of 64 tokens; see chunked_flops) would take at 70 % of the best
 * FMA burst seen between the samples: time / that is what is to be small. conv prints GB/s. FIRN_CPU names the kernel
 * set. On a busy machine use --threads 1 --clock cpu, which counts this process's time only. */
#include "bench/node.h"

#include <getopt.h>

enum { CHUNK = 64, TAPS = 4 };

static struct {
    int64_t keys, values, groups, heads, tokens, channels;
    const char *op;
} options = {.keys = 128, .values = 128, .groups = 16, .heads = 32, .tokens = 4096, .op = "gated_delta"};
static bench b = {.program = "bench-scan", .threads = 1, .samples = 5, .clock = CLOCK_MONOTONIC};

/* Operations of the chunked form for s keys and v values, C tokens a chunk, each token of a head. Delta: K K^T, its
 * inverse, that times K and V, the new values, Q S, Q K^T, that times the values, the state; half of what is causal.
 * The scan of Mamba has neither inverse nor new values. Backward: two products for each, and the new values and states
 * once more. */
static double chunked_flops(bool delta, bool back)
{
    const double s = (double)options.keys, v = (double)options.values, C = CHUNK;
    const double again = delta ? 4 * s * v + 2 * C * s + C * v + C * C / 3 : 2 * s * v;
    const double forward = again + 2 * s * v + C * s + C * v;

    return (back ? 2 * forward + again : forward) * (double)(options.heads * options.tokens);
}

/* Rows of length 1, as the models make them. */
static float *unit_rows(int64_t size, int64_t n, uint64_t seed)
{
    float *x = random_floats(size * n, seed);

    for (int64_t r = 0; r < n; r++) {
        double sum = 0;
        for (int64_t i = 0; i < size; i++)
            sum += (double)x[r * size + i] * (double)x[r * size + i];
        for (int64_t i = 0; i < size; i++)
            x[r * size + i] /= (float)sqrt(sum);
    }
    return x;
}

static void scan(bool delta)
{
    const int64_t s = options.keys, dv = options.values, G = options.groups, H = options.heads, n = options.tokens;
    const int64_t width = options.channels ? s : 1;
    float *q = unit_rows(s, G * n, 1), *k = unit_rows(s, G * n, 2), *v = random_floats(dv * H * n, 3);
    float *decay = random_floats(width * H * n, 4), *beta = random_floats(H * n, 5), *dy = random_floats(dv * H * n, 6);
    float *result = need((size_t)(2 * s * G * n + dv * H * n + width * H * n + H * n + s * dv * H) * sizeof *result);
    int32_t *first = need((size_t)n * sizeof *first);
    double times[2], allowed[2];

    for (int64_t i = 0; i < width * H * n; i++)
        decay[i] = -0.1f * fabsf(decay[i]);
    for (int64_t i = 0; i < H * n; i++)
        beta[i] = 1 / (1 + expf(-beta[i]));
    for (int back = 0; back < 2; back++) {
        firn_graph *g;
        want(&b, firn_graph_create(b.ctx, &g));
        firn_tensor *src[] = {slot(g, FIRN_F32, s, G, n, "q"),
                              slot(g, FIRN_F32, s, G, n, "k"),
                              slot(g, FIRN_F32, dv, H, n, "v"),
                              slot(g, FIRN_F32, width, H, n, "g"),
                              slot(g, FIRN_F32, 1, H, n, "beta"),
                              slot(g, FIRN_I32, n, 1, 1, "first"),
                              back ? slot(g, FIRN_F32, dv, H, n, "do") : NULL};
        const firn_op *ops[2][2] = {{&firn_op_ssm_scan, &firn_op_ssm_scan_back},
                                    {&firn_op_gated_delta, &firn_op_gated_delta_back}};
        firn_tensor *node = firn_node(g, ops[delta][back], src, 7, &(firn_params){.i = {1}});
        want(&b, firn_graph_status(g));
        void *data[FIRN_MAX_SRC] = {q, k, v, decay, beta, first, dy};
        const measured m = measure(&b, g, node, data, result);
        times[back] = m.seconds;
        allowed[back] = chunked_flops(delta, back) / (0.7e9 * m.limit);
        printf("%-8s work %6.1f MB %9.2f ms %7.1f GFLOP/s chunked, %5.1f %% of %.1f; %.2f x its time at 70 %%\n",
               back ? "backward" : "forward", (double)m.work / 1e6, 1e3 * times[back],
               chunked_flops(delta, back) / times[back] / 1e9, 70 * allowed[back] / times[back], m.limit,
               times[back] / allowed[back]);
        firn_graph_destroy(g);
    }
    printf("both     %9.2f ms; %.2f x (aim 1.5), %.0f tokens/s of one block\n", 1e3 * (times[0] + times[1]),
           (times[0] + times[1]) / (allowed[0] + allowed[1]), (double)n / (times[0] + times[1]));
    free(q), free(k), free(v), free(decay), free(beta), free(dy), free(result), free(first);
}

/* The channels that a gated delta net filters: queries, keys and values. */
static void conv(void)
{
    const int64_t C = 2 * options.keys * options.groups + options.values * options.heads, n = options.tokens;
    float *x = random_floats(C * n, 1), *w = random_floats(TAPS * C, 2), *dy = random_floats(C * n, 3);
    float *result = need((size_t)(C * n) * sizeof *result);
    int32_t *first = need((size_t)n * sizeof *first);

    for (int back = 0; back < 2; back++) {
        firn_graph *g;
        want(&b, firn_graph_create(b.ctx, &g));
        firn_tensor *src[] = {slot(g, FIRN_F32, C, n, 1, "x"), slot(g, FIRN_F32, TAPS, C, 1, "w"),
                              slot(g, FIRN_I32, n, 1, 1, "first"), back ? slot(g, FIRN_F32, C, n, 1, "dy") : NULL,
                              NULL};
        firn_tensor *node = firn_node(g, back ? &firn_op_conv_causal_back : &firn_op_conv_causal, src, back ? 5 : 4,
                                      &(firn_params){.i = {0, 1}});
        want(&b, firn_graph_status(g));
        void *data[FIRN_MAX_SRC] = {x, w, first, dy};
        const measured m = measure(&b, g, node, data, result);
        printf("%-8s work %6.1f MB %9.2f ms %7.2f GB/s\n", back ? "backward" : "forward", (double)m.work / 1e6,
               1e3 * m.seconds, (double)(C * n * (back ? 3 : 2)) * sizeof(float) / m.seconds / 1e9);
        firn_graph_destroy(g);
    }
    free(x), free(w), free(dy), free(result), free(first);
}

int main(int argc, char **argv)
{
    static const struct option names[] = {{"keys", 1, 0, 'k'},
                                          {"values", 1, 0, 'v'},
                                          {"groups", 1, 0, 'g'},
                                          {"heads", 1, 0, 'h'},
                                          {"tokens", 1, 0, 't'},
                                          {"channels", 1, 0, 'e'},
                                          {"threads", 1, 0, 'j'},
                                          {"samples", 1, 0, 's'},
                                          {"clock", 1, 0, 'c'},
                                          {"op", 1, 0, 'o'},
                                          {0}};
    int64_t *const numbers[] = {&options.keys,   &options.values,   &options.groups, &options.heads,
                                &options.tokens, &options.channels, &b.threads,      &b.samples};
    int c, which;

    while ((c = getopt_long(argc, argv, "", names, &which)) != -1) {
        if (c == '?')
            return 2;
        if (c == 'c')
            b.clock = strcmp(optarg, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
        else if (c == 'o')
            options.op = optarg;
        else
            *numbers[which] = atoll(optarg);
    }
    bench_open(&b);
    printf("%s: %s, %lld keys in %lld heads, %lld values in %lld, %lld tokens\n", firn_device_about(b.device),
           options.op, (long long)options.keys, (long long)options.groups, (long long)options.values,
           (long long)options.heads, (long long)options.tokens);
    if (strcmp(options.op, "conv") == 0)
        conv();
    else
        scan(strcmp(options.op, "gated_delta") == 0);
    bench_close(&b);
    return 0;
}
