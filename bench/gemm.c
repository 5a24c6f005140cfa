/* bench-gemm: the tiled product beside the machine's own limit.
 *
 *     bench-gemm [--layer NAME] [--op forward|back|outer] [--type T,T..] [--tokens N] [--threads N] [--clock wall|cpu]
 *                [--samples N] [--patience SECONDS] [--set NAME] [--case k=..,m=..,experts=..,used=..,tokens=..,own=1]
 *
 * Prints medians: GFLOP/s (2*k*m per row), percent of the FMA burst measured around each sample, GB/s of weights
 * touched. experts=0 is a dense product of `tokens` rows; own=1 gives each slot its own row of x. A sample whose bursts
 * fell under 90 % of the best one seen is discarded: someone else was running. On a busy machine use --threads 1
 * --clock cpu, which counts this process's time only (the prototype's figures agreed with quiet two-thread runs within
 * 2 points). */
#include "cpu/gemm.h"
#include "bench/measure.h"

#include <getopt.h>

enum { SAMPLES_MAX = 400, ROUTINGS = 8, COLD_BYTES = 96 << 20 };

typedef struct {
    const char *name;
    int64_t n_expert, n_used, k, m;
    int own_x;         /* each slot has its own row of x */
    int64_t tokens[4]; /* 0-terminated */
    const char *types; /* comma list */
} layer;

static const layer layers[] = {
    {"qwen_up", 128, 8, 2048, 768, 0, {1, 32, 512}, "q4_0,q4_K,q8_0,q6_K,f32"},
    {"qwen_down", 128, 8, 768, 2048, 1, {512}, "q4_0,q4_K,q8_0"},
    {"mixtral", 8, 2, 1024, 3584, 0, {512}, "q4_0,q4_K"},
    {"olmoe", 64, 8, 2048, 1024, 0, {512}, "q4_0,q4_K"},
    {"short", 16, 8, 2048, 768, 0, {64}, "q4_0,q4_1,q5_0,q5_1,q8_0,q4_K,q5_K,q6_K,iq4_nl,iq4_xs,mxfp4,f16,bf16,f32"},
    {"demo_up", 8, 2, 576, 1536, 0, {512}, "q4_1"},
    {"demo_down", 8, 2, 1536, 576, 1, {512}, "q4_1"},
    {"demo_attn", 0, 1, 576, 576, 0, {512}, "q4_1"},
    {"lora_a", 0, 1, 2048, 16, 0, {32, 128, 512}, "f32"},
    {"lora_b", 0, 1, 16, 768, 0, {32, 128, 512}, "f32"},
    {"lora_a_experts", 8, 2, 576, 16, 0, {512}, "f32"},
    {"lora_b_experts", 8, 2, 16, 1536, 1, {512}, "f32"},
};

static const char *const op_names[] = {"forward", "back", "outer"};

static struct {
    const char *layer, *op, *types;
    int64_t tokens;
    int threads, samples;
    bool cpu_clock;
    double patience;
    const firn_kernel_set *set;
    firn_context *ctx;
    firn_pool *pool;
} options = {.threads = 1, .samples = 9, .patience = 5};

static clockid_t the_clock(void)
{
    return options.cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
}

static double now(void)
{
    return clock_now(the_clock());
}

/* ---- the limit ---- */

static const firn_kernel_set *set_of(void)
{
    return options.set ? options.set : firn_kernel_set_default(FIRN_PRECISION_F32);
}

/* F32 on the vectors that the kernel set uses. */
static int burst_lanes(void)
{
    return set_of()->panels == 2 ? 16 : 8;
}

/* GFLOP/s of all threads. */
static double burst_gflops(void)
{
    const burst b = burst_of_lanes(burst_lanes());

    return 1e-9 * burst_rate(&b, options.pool, options.threads, the_clock());
}

/* ---- one case ---- */

typedef struct {
    firn_gemm g;
    int64_t n_copies, copy_bytes; /* of the weights: a run finds them cold */
    uint8_t *weights;
    int32_t *ids; /* ROUTINGS of [n_used, n_tokens] */
    void *work;
    double flops, touched;
} job;

static void run_on_team(void *argument, firn_team team)
{
    const job *j = argument;

    firn_gemm_run(&j->g, j->work, team, NULL);
}

static void run(job *j, int64_t round)
{
    if (j->weights)
        j->g.w.data = j->weights + round % j->n_copies * j->copy_bytes;
    if (j->ids)
        j->g.ids = j->ids + round % ROUTINGS * j->g.n_used * j->g.n_tokens;
    firn_pool_run(options.pool, run_on_team, j);
}

static void measure(job *j, const char *layer_name, const char *op, firn_type type, double rows_per_expert)
{
    static double best_burst;
    double seconds[SAMPLES_MAX], percent[SAMPLES_MAX];
    int kept = 0, taken = 0, repeat = 1;

    run(j, 0);
    double t = now();
    run(j, 1);
    const double once = now() - t;
    if (once < 1e-3)
        repeat = (int)(1e-3 / (once + 1e-7)) + 1; /* clocks are coarse */
    const double deadline = clock_now(CLOCK_MONOTONIC) + options.patience;
    for (; taken < SAMPLES_MAX && kept < options.samples && clock_now(CLOCK_MONOTONIC) < deadline; taken++) {
        const double before = burst_gflops();
        t = now();
        for (int i = 0; i < repeat; i++)
            run(j, (int64_t)taken * repeat + i);
        const double took = (now() - t) / repeat, after = burst_gflops();
        best_burst = fmax(best_burst, fmax(before, after));
        if (fmin(before, after) < 0.9 * best_burst)
            continue;
        seconds[kept] = took;
        percent[kept++] = 200e-9 * j->flops / took / (before + after);
    }
    const double s = median(seconds, kept);
    printf(
        "%-14s %-8s %-6s %5lld tokens %6.1f rows/expert %9.3f ms %7.1f GFLOP/s %5.1f %% of burst %6.1f GB/s (%d/%d)\n",
        layer_name, op, firn_type_name(type), (long long)(j->g.ids ? j->g.n_tokens : j->g.n), rows_per_expert, s * 1e3,
        j->flops / s * 1e-9, median(percent, kept), j->touched / s * 1e-9, kept, taken);
    fflush(stdout);
}

/* Random bytes are random weights; only their halves must not be wild, and the values do not matter here. */
static void random_weights(firn_type type, uint8_t *w, int64_t n)
{
    if (type == FIRN_F32) {
        for (int64_t i = 0; i < n / 4; i++)
            ((float *)w)[i] = firn_random_unit(3, 4, (uint64_t)i) - 0.5f;
        return;
    }
    for (int64_t i = 0; i < n; i++)
        w[i] = (uint8_t)firn_random(5, 6, (uint64_t)i) & 0xbb; /* no exponent of all ones at any offset */
    for (int64_t i = 0; type == FIRN_MXFP4 && i < n; i += 17)
        w[i] = 118 + w[i] % 8; /* an exponent of eight bits: the sums would overflow, or be slow for being subnormal */
}

static void bench_case(const layer *l, firn_gemm_kind kind, firn_type type, int64_t n_tokens)
{
    const bool routed = l->n_expert > 0, outer = kind == FIRN_GEMM_OUTER;
    const int64_t k = l->k, m = l->m, slots = n_tokens * l->n_used, n_groups = routed ? l->n_expert : 1;
    const int64_t row = (int64_t)firn_row_bytes(type, k), x_slots = l->own_x ? l->n_used : 1;
    float *x = random_floats(k * n_tokens * x_slots, 1), *dy = random_floats(m * slots, 2);
    float *out = need((size_t)(outer ? k * m * n_groups : firn_max_i64(k, m) * slots) * sizeof *out);
    job j = {.flops = 2.0 * (double)k * (double)m * (double)slots};
    firn_gemm *g = &j.g;

    *g = (firn_gemm){.kind = kind, .type = type, .k = k, .m = m, .set = options.set, .out = out};
    const firn_gemm_view x_view = {x, {4, 4 * k, 4 * k * x_slots}}, dy_view = {dy, {4, 4 * m, 4 * m * l->n_used}};
    g->in1 = kind == FIRN_GEMM_BACK ? dy_view : x_view;
    g->in2 = dy_view;
    const int64_t length = kind == FIRN_GEMM_FORWARD ? m : k;
    const int64_t out_nb[] = {4, 4 * length, 4 * length * (outer ? m : l->n_used)};
    memcpy(g->out_nb, out_nb, sizeof out_nb);
    g->n = n_tokens;
    if (routed) {
        j.ids = need((size_t)(ROUTINGS * slots) * sizeof *j.ids);
        random_routing(j.ids, l->n_used, ROUTINGS * n_tokens, l->n_expert);
        g->ids = j.ids;
        g->ids_nb[0] = 4;
        g->ids_nb[1] = 4 * l->n_used;
        g->n_expert = l->n_expert;
        g->n_used = l->n_used;
        g->n_tokens = n_tokens;
        g->x_slots = x_slots;
    }
    if (outer && !routed) { /* OUT_PROD(x, dy): BACK through x with the tokens as depth */
        *g = (firn_gemm){.kind = FIRN_GEMM_BACK,
                         .type = FIRN_F32,
                         .k = k,
                         .m = n_tokens,
                         .n = m,
                         .set = options.set,
                         .w = {x, {4, 4 * k}},
                         .in1 = {dy, {4 * m, 4}},
                         .out = out,
                         .out_nb = {4, 4 * k}};
    } else if (!outer) {
        j.copy_bytes = row * m * n_groups;
        j.n_copies = (COLD_BYTES + j.copy_bytes - 1) / j.copy_bytes;
        j.weights = need((size_t)(j.n_copies * j.copy_bytes));
        random_weights(type, j.weights, j.copy_bytes);
        for (int64_t c = 1; c < j.n_copies; c++)
            memcpy(j.weights + c * j.copy_bytes, j.weights, (size_t)j.copy_bytes);
        g->w = (firn_gemm_view){j.weights, {0, row, row * m}};
    }
    const double share = routed ? 1 - pow(1 - (double)l->n_used / (double)l->n_expert, (double)n_tokens) : 1;
    j.touched = outer ? 4.0 * (double)(k * m * n_groups) : share * (double)(row * m * n_groups);
    j.work = need(firn_gemm_work_bytes(g, options.threads));
    measure(&j, l->name, op_names[kind], type, (double)slots / (double)n_groups);
    free(j.work);
    free(j.weights);
    free(j.ids);
    free(x);
    free(dy);
    free(out);
}

static void bench_layer(const layer *l)
{
    for (int t = 0; t < 4 && (l->tokens[t] || (options.tokens && t == 0)); t++) {
        const int64_t n_tokens = options.tokens ? options.tokens : l->tokens[t];
        for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
            const char *name = firn_type_name((firn_type)type);
            if (!name || !in_list(options.types ? options.types : l->types, name))
                continue;
            for (int kind = 0; kind < 3; kind++)
                if ((!options.op || strcmp(options.op, op_names[kind]) == 0) &&
                    (kind != FIRN_GEMM_OUTER || type == FIRN_F32))
                    bench_case(l, (firn_gemm_kind)kind, (firn_type)type, n_tokens);
        }
        if (options.tokens)
            return;
    }
}

/* k=..,m=..: false when a word is unknown. */
static bool parse_case(char *text, layer *l)
{
    *l = (layer){.name = "case", .n_used = 1, .types = "f32", .tokens = {512}};
    for (char *word = strtok(text, ","); word; word = strtok(NULL, ",")) {
        char *value = strchr(word, '=');
        if (!value)
            return false;
        *value++ = 0;
        const long long n = atoll(value);
        if (strcmp(word, "k") == 0)
            l->k = n;
        else if (strcmp(word, "m") == 0)
            l->m = n;
        else if (strcmp(word, "experts") == 0)
            l->n_expert = n;
        else if (strcmp(word, "used") == 0)
            l->n_used = n;
        else if (strcmp(word, "tokens") == 0)
            l->tokens[0] = n;
        else if (strcmp(word, "own") == 0)
            l->own_x = n != 0;
        else
            return false;
    }
    return l->k > 0 && l->m > 0 && l->n_used > 0 && l->tokens[0] > 0;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench-gemm [--layer NAME] [--op forward|back|outer] [--type T,..] [--tokens N] [--threads N]\n"
            "       [--clock wall|cpu] [--samples N] [--patience SECONDS] [--set NAME] [--case k=..,m=..,..]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option names[] = {
        {"layer", 1, 0, 'l'},
        {"op", 1, 0, 'o'},
        {"type", 1, 0, 't'},
        {"tokens", 1, 0, 'n'},
        {"threads", 1, 0, 'j'},
        {"clock", 1, 0, 'c'},
        {"samples", 1, 0, 's'},
        {"patience", 1, 0, 'p'},
        {"set", 1, 0, 'k'},
        {"case", 1, 0, 'C'},
        {0},
    };
    layer one = {0};
    int c;

    while ((c = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (c) {
        case 'l':
            options.layer = optarg;
            break;
        case 'o':
            options.op = optarg;
            break;
        case 't':
            options.types = optarg;
            break;
        case 'n':
            options.tokens = atoll(optarg);
            break;
        case 'j':
            options.threads = atoi(optarg);
            break;
        case 'c':
            options.cpu_clock = strcmp(optarg, "cpu") == 0;
            break;
        case 's':
            options.samples = atoi(optarg);
            break;
        case 'p':
            options.patience = atof(optarg);
            break;
        case 'k':
            options.set = firn_kernel_set_named(optarg);
            if (!options.set) {
                fprintf(stderr, "bench-gemm: no kernel set %s here\n", optarg);
                return 1;
            }
            break;
        case 'C':
            if (!parse_case(optarg, &one))
                return usage();
            break;
        default:
            return usage();
        }
    }
    if (options.cpu_clock && options.threads != 1) {
        fprintf(stderr, "bench-gemm: --clock cpu needs --threads 1\n");
        return 2;
    }
    options.ctx = firn_context_create(&(firn_context_params){.n_threads = options.threads});
    options.pool = options.ctx ? firn_context_pool(options.ctx) : NULL;
    if (!options.pool)
        return 1;
    double best = 0;
    for (int i = 0; i < 50; i++)
        best = fmax(best, burst_gflops());
    printf("burst %.1f GFLOP/s of F32 in %d lanes on %d threads, kernel set %s\n", best, burst_lanes(), options.threads,
           set_of()->name);
    if (one.k)
        bench_layer(&one);
    for (size_t i = 0; !one.k && i < sizeof layers / sizeof *layers; i++)
        if (options.layer ? strcmp(options.layer, layers[i].name) == 0 : strcmp("short", layers[i].name) != 0)
            bench_layer(&layers[i]);
    firn_context_destroy(options.ctx);
    return 0;
}
