/* bench/peer-ggml: the routed product beside ggml's, on the same bytes, in the same process and run.
 *
 *     peer_ggml [--threads N] [--layer NAME,..] [--type T,..] [--tokens N,..] [--samples N]
 *               [--patience SECONDS] [--gate PERCENT] [--clock wall|cpu]
 *
 * A module that bench/peer_ggml.py loads into a process that holds ggml already (the Python package of llama.cpp
 * exports its C interface); ggml's functions are found by name. firn's side is firn/kernels.h, as another engine would
 * call it. Each sample is firn's forward product, ggml's, and firn's gradient, each between two FMA bursts; samples
 * beside which a burst fell under --gate percent of the best (90) are dropped: somebody else was running. Weights are
 * found cold: as many copies take turns as pass the caches. On a busy machine use --threads 1 --clock cpu, which counts
 * this process's time only.
 *
 * ggml reads the same packed bytes where they lie (no repacking) but rounds activations to 8 bits before it multiplies;
 * `apart` is the normalized mean squared difference of the two results. It has no gradient through packed experts. */
#include "bench/measure.h"
#include "firn/kernels.h"

#include <dlfcn.h>

enum { ROUTINGS = 8, COLD_BYTES = 96 << 20, SAMPLES_MAX = 64 };

/* ---- ggml's C interface, as far as it is used ---- */

typedef struct {
    size_t size;
    void *buffer;
    bool no_alloc;
} ggml_params;

/* The library fills in what follows work_data: threads, pool, callbacks; with room for later fields. */
typedef struct {
    size_t work_size;
    uint8_t *work_data;
    uint64_t rest[16];
} ggml_plan;

enum { GGML_I32 = 26 }; /* weight types have firn's numbers, which are GGUF's */

static struct {
    void *(*init)(ggml_params);
    void (*free)(void *context);
    void *(*new_tensor_2d)(void *context, int type, int64_t, int64_t);
    void *(*new_tensor_3d)(void *context, int type, int64_t, int64_t, int64_t);
    void *(*mul_mat_id)(void *context, void *w, void *x, void *ids);
    void *(*new_graph)(void *context);
    void (*build_forward_expand)(void *graph, void *tensor);
    void *(*get_data)(const void *tensor);
    ggml_plan (*graph_plan)(const void *graph, int n_threads, void *threadpool);
    int (*graph_compute)(void *graph, ggml_plan *plan);
    void (*threadpool_params_init)(void *params, int n_threads);
    void *(*threadpool_new)(void *params);
    void (*threadpool_pause)(void *threadpool);
    void (*threadpool_resume)(void *threadpool);
    void (*cpu_init)(void);
} ggml;

static void *threadpool;
static size_t data_offset; /* of a tensor's data pointer in its struct */

static bool find(const char *name, void *function)
{
    void *p = dlsym(RTLD_DEFAULT, name);

    memcpy(function, &p, sizeof p);
    if (!p)
        fprintf(stderr, "peer-ggml: this process holds no %s\n", name);
    return p != NULL;
}

/* There is no call to set a tensor's data: the field is found by the value that it holds. */
static void point(void *tensor, const void *data)
{
    memcpy((char *)tensor + data_offset, &data, sizeof data);
}

static bool find_data_offset(void)
{
    void *context = ggml.init((ggml_params){1 << 20, NULL, false}), *data;
    char *tensor = context ? ggml.new_tensor_2d(context, FIRN_F32, 4, 4) : NULL;
    bool found = false;

    for (size_t at = 0; tensor && at < 512 && !found; at += sizeof data) {
        memcpy(&data, tensor + at, sizeof data);
        found = data == ggml.get_data(tensor);
        data_offset = at;
    }
    if (context)
        ggml.free(context);
    return found;
}

static bool ggml_open(int n_threads)
{
#define FIND(name) find("ggml_" #name, &ggml.name)
    if (!(FIND(init) && FIND(free) && FIND(new_tensor_2d) && FIND(new_tensor_3d) && FIND(mul_mat_id) &&
          FIND(new_graph) && FIND(build_forward_expand) && FIND(get_data) && FIND(graph_plan) && FIND(graph_compute) &&
          FIND(threadpool_params_init) && FIND(threadpool_new) && FIND(threadpool_pause) && FIND(threadpool_resume) &&
          FIND(cpu_init)))
        return false;
#undef FIND
    static const char *const features[] = {"avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx_int8"};
    ggml.cpu_init();
    printf("ggml is built for");
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        char name[64];
        int (*has)(void);
        void *p;
        snprintf(name, sizeof name, "ggml_cpu_has_%s", features[i]);
        p = dlsym(RTLD_DEFAULT, name);
        memcpy(&has, &p, sizeof p);
        if (p && has())
            printf(" %s", features[i]);
    }
    printf("\n");
    uint64_t params[256] = {0}; /* larger than the library's struct */
    ggml.threadpool_params_init(params, n_threads);
    threadpool = ggml.threadpool_new(params);
    if (!threadpool || !find_data_offset()) {
        fprintf(stderr, "peer-ggml: this ggml's tensors or threads are not as expected\n");
        return false;
    }
    ggml.threadpool_pause(threadpool);
    return true;
}

/* ---- one case ---- */

typedef struct {
    const char *name;
    int64_t n_expert, n_used, k, m;
} layer;

static const layer layers[] = {
    {"qwen_up", 128, 8, 2048, 768},
    {"olmoe", 64, 8, 2048, 1024},
    {"mixtral/4", 8, 2, 1024, 3584},
};

static struct {
    const char *layers, *types, *tokens;
    int threads, samples;
    double patience, gate;
    bool cpu_clock;
    firn_context *ctx;
    firn_pool *pool;
} options = {.types = "f32,q8_0,q4_0,q4_K,q6_K", .tokens = "1,8,32,512", .samples = 7, .patience = 8, .gate = 90};

typedef struct {
    const layer *l;
    firn_type type;
    int64_t n_tokens, copy_bytes, n_copies;
    uint8_t *weights;
    float *x, *dy, *out, *out_ggml, *dx;
    int32_t *ids; /* ROUTINGS of [n_used, n_tokens] */
    firn_product forward, back;
    void *work;
    size_t work_bytes;
    struct {
        void *context, *w, *ids, *graph;
        ggml_plan plan;
    } ggml;
} problem;

static clockid_t the_clock(void)
{
    return options.cpu_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
}

static double now(void)
{
    return clock_now(the_clock());
}

static void must(firn_status status)
{
    if (status == FIRN_OK)
        return;
    fprintf(stderr, "peer-ggml: %s\n", firn_error(options.ctx));
    exit(1);
}

/* Experts of different random weights would take minutes to encode; the values do not matter to the speed, so that each
 * has the same few rows, turned. */
static void fill_weights(problem *p)
{
    enum { ROWS = 64 };
    const int64_t k = p->l->k, n = p->l->m * p->l->n_expert;
    const size_t row = firn_row_bytes(p->type, k);
    float *rows = random_floats(ROWS * k, 3);
    uint8_t *packed = need(ROWS * row);

    must(firn_encode_rows(options.ctx, p->type, rows, (size_t)k * sizeof(float), k, ROWS, NULL, packed, row, 0));
    for (int64_t i = 0; i < n; i++)
        memcpy(p->weights + (size_t)i * row, packed + (size_t)((i * 7 + i / ROWS) % ROWS) * row, row);
    for (int64_t c = 1; c < p->n_copies; c++)
        memcpy(p->weights + c * p->copy_bytes, p->weights, (size_t)p->copy_bytes);
    free(packed);
    free(rows);
}

static bool ggml_prepare(problem *p)
{
    const layer *l = p->l;

    p->ggml.context = ggml.init((ggml_params){1 << 22, NULL, true});
    if (!p->ggml.context)
        return false;
    p->ggml.w = ggml.new_tensor_3d(p->ggml.context, (int)p->type, l->k, l->m, l->n_expert);
    void *x = ggml.new_tensor_3d(p->ggml.context, FIRN_F32, l->k, 1, p->n_tokens);
    p->ggml.ids = ggml.new_tensor_2d(p->ggml.context, GGML_I32, l->n_used, p->n_tokens);
    void *y = ggml.mul_mat_id(p->ggml.context, p->ggml.w, x, p->ggml.ids);
    point(x, p->x);
    point(y, p->out_ggml);
    p->ggml.graph = ggml.new_graph(p->ggml.context);
    ggml.build_forward_expand(p->ggml.graph, y);
    p->ggml.plan = ggml.graph_plan(p->ggml.graph, options.threads, threadpool);
    p->ggml.plan.work_data = need(p->ggml.plan.work_size + 64);
    return true;
}

static void prepare(problem *p, const layer *l, firn_type type, int64_t n_tokens)
{
    const int64_t slots = l->n_used * n_tokens;
    size_t forward, back;

    *p = (problem){.l = l, .type = type, .n_tokens = n_tokens};
    p->copy_bytes = (int64_t)firn_row_bytes(type, l->k) * l->m * l->n_expert;
    p->n_copies = (COLD_BYTES + p->copy_bytes - 1) / p->copy_bytes;
    p->weights = need((size_t)(p->n_copies * p->copy_bytes));
    fill_weights(p);
    p->x = random_floats(l->k * n_tokens, 1);
    p->dy = random_floats(l->m * slots, 2);
    p->out = need((size_t)(l->m * slots) * sizeof(float));
    p->out_ggml = need((size_t)(l->m * slots) * sizeof(float));
    p->dx = need((size_t)(l->k * slots) * sizeof(float));
    p->ids = need((size_t)(ROUTINGS * slots) * sizeof *p->ids);
    random_routing(p->ids, l->n_used, ROUTINGS * n_tokens, l->n_expert);
    const firn_array w = firn_array_dense(type, p->weights, l->k, l->m, l->n_expert, 1);
    const firn_array ids = firn_array_dense(FIRN_I32, p->ids, l->n_used, n_tokens, 1, 1);
    p->forward = (firn_product){.kind = FIRN_PRODUCT_MUL_MAT_ID,
                                .w = w,
                                .ids = ids,
                                .x = firn_array_dense(FIRN_F32, p->x, l->k, 1, n_tokens, 1),
                                .out = firn_array_dense(FIRN_F32, p->out, l->m, l->n_used, n_tokens, 1)};
    p->back = (firn_product){.kind = FIRN_PRODUCT_MUL_MAT_ID_BACK,
                             .w = w,
                             .ids = ids,
                             .dy = firn_array_dense(FIRN_F32, p->dy, l->m, l->n_used, n_tokens, 1),
                             .out = firn_array_dense(FIRN_F32, p->dx, l->k, l->n_used, n_tokens, 1)};
    must(firn_product_work_bytes(options.ctx, &p->forward, &forward));
    must(firn_product_work_bytes(options.ctx, &p->back, &back));
    p->work_bytes = forward > back ? forward : back;
    p->work = need(p->work_bytes + 64);
    if (!ggml_prepare(p)) {
        fprintf(stderr, "peer-ggml: ggml_init failed\n");
        exit(1);
    }
}

static void release(problem *p)
{
    void *const memory[] = {
        p->weights, p->x, p->dy, p->out, p->out_ggml, p->dx, p->ids, p->work, p->ggml.plan.work_data};

    ggml.free(p->ggml.context);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

enum { FORWARD, GGML, BACK, N_WAYS };

static void run(problem *p, int way, int64_t round)
{
    uint8_t *w = p->weights + round % p->n_copies * p->copy_bytes;
    int32_t *ids = p->ids + round % ROUTINGS * p->l->n_used * p->n_tokens;

    if (way == GGML) {
        point(p->ggml.w, w);
        point(p->ggml.ids, ids);
        if (ggml.graph_compute(p->ggml.graph, &p->ggml.plan) != 0) {
            fprintf(stderr, "peer-ggml: ggml_graph_compute failed\n");
            exit(1);
        }
        return;
    }
    firn_product *f = way == FORWARD ? &p->forward : &p->back;
    f->w.data = w;
    f->ids.data = ids;
    must(firn_product_run(options.ctx, f, p->work, p->work_bytes));
}

static double burst_now(void)
{
    const burst b = burst_of_lanes(8);

    return burst_rate(&b, options.pool, options.threads, the_clock());
}

/* Seconds of one run, over enough runs for the clock; the threads have been at work just before. */
static double seconds_of(problem *p, int way, int64_t *round)
{
    double t = now();

    run(p, way, (*round)++);
    const double once = now() - t;
    const int repeat = once < 1e-3 ? (int)(1e-3 / (once + 1e-7)) + 1 : 1;
    t = now();
    for (int i = 0; i < repeat; i++)
        run(p, way, (*round)++);
    return (now() - t) / repeat;
}

static double difference(const problem *p)
{
    double error = 0, norm = 0;

    for (int64_t i = 0; i < p->l->m * p->l->n_used * p->n_tokens; i++) {
        error += pow((double)p->out[i] - (double)p->out_ggml[i], 2);
        norm += pow((double)p->out[i], 2);
    }
    return error / norm;
}

static void measure(problem *p)
{
    static double best_burst;
    double seconds[N_WAYS][SAMPLES_MAX], percent[N_WAYS][SAMPLES_MAX];
    const double flops = 2.0 * (double)(p->l->k * p->l->m * p->l->n_used * p->n_tokens);
    const double deadline = clock_now(CLOCK_MONOTONIC) + options.patience;
    int kept = 0, taken = 0;
    int64_t round = 0;

    ggml.threadpool_resume(threadpool);
    for (int way = 0; way < N_WAYS; way++)
        run(p, way, 0);
    const double apart = difference(p);
    for (; taken < SAMPLES_MAX && kept < options.samples && (clock_now(CLOCK_MONOTONIC) < deadline || taken == 0);
         taken++) {
        bool quiet = true;
        for (int way = 0; way < N_WAYS; way++) {
            ggml.threadpool_pause(threadpool); /* its threads would go on spinning beside the others */
            const double before = burst_now();
            if (way == GGML)
                ggml.threadpool_resume(threadpool);
            seconds[way][kept] = seconds_of(p, way, &round);
            ggml.threadpool_pause(threadpool);
            const double after = burst_now();
            best_burst = fmax(best_burst, fmax(before, after));
            quiet = quiet && fmin(before, after) >= options.gate / 100 * best_burst;
            percent[way][kept] = 200 * flops / seconds[way][kept] / (before + after);
        }
        kept += quiet;
    }
    double rate[N_WAYS], part[N_WAYS];
    for (int way = 0; way < N_WAYS; way++) {
        rate[way] = 1e-9 * flops / median(seconds[way], kept);
        part[way] = median(percent[way], kept);
    }
    printf("| %s | %s | %lld (%.3g) | %.1f (%.0f %%) | %.1f (%.0f %%) | %.2f | %.1f (%.0f %%) | %.0e | %d of %d |\n",
           p->l->name, firn_type_name(p->type), (long long)p->n_tokens,
           (double)(p->l->n_used * p->n_tokens) / (double)p->l->n_expert, rate[FORWARD], part[FORWARD], rate[GGML],
           part[GGML], rate[FORWARD] / rate[GGML], rate[BACK], part[BACK], apart, kept, taken);
    fflush(stdout);
}

static void measure_all(void)
{
    double best = 0;

    for (int i = 0; i < 50; i++)
        best = fmax(best, burst_now());
    printf("FMA burst %.1f GFLOP/s on %d threads\n\n", best * 1e-9, options.threads);
    printf("| layer | type | tokens (rows per expert) | firn GFLOP/s (of the burst) | ggml | firn/ggml | firn's "
           "gradient | "
           "apart | samples |\n|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
            const char *name = firn_type_name((firn_type)type);
            if (!name || !in_list(options.types, name) || !in_list(options.layers, layers[i].name))
                continue;
            for (const char *at = options.tokens; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
                problem p;
                prepare(&p, &layers[i], (firn_type)type, atoll(at));
                measure(&p);
                release(&p);
            }
        }
}

/* False for a word that is not known, or a number that is none. */
static bool parse(int argc, char **argv)
{
    for (int i = 0; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0)
            options.threads = atoi(value);
        else if (strcmp(argv[i], "--samples") == 0)
            options.samples = atoi(value);
        else if (strcmp(argv[i], "--patience") == 0)
            options.patience = atof(value);
        else if (strcmp(argv[i], "--gate") == 0)
            options.gate = atof(value);
        else if (strcmp(argv[i], "--clock") == 0)
            options.cpu_clock = strcmp(value, "cpu") == 0;
        else if (strcmp(argv[i], "--layer") == 0)
            options.layers = value;
        else if (strcmp(argv[i], "--type") == 0)
            options.types = value;
        else if (strcmp(argv[i], "--tokens") == 0)
            options.tokens = value;
        else
            return false;
    }
    return argc % 2 == 0 && options.threads >= 0 && (!options.cpu_clock || options.threads == 1) &&
           options.samples > 0 && options.samples <= SAMPLES_MAX;
}

__attribute__((visibility("default"))) int peer_ggml(int argc, char **argv);

int peer_ggml(int argc, char **argv)
{
    if (!parse(argc, argv)) {
        fputs("usage: bench/peer-ggml [--threads N] [--layer NAME,..] [--type T,..] [--tokens N,..] [--samples N]\n"
              "                       [--patience SECONDS] [--gate PERCENT] [--clock wall|cpu]\n",
              stderr);
        return 2;
    }
    options.ctx = firn_context_create(&(firn_context_params){.n_threads = options.threads});
    options.pool = options.ctx ? firn_context_pool(options.ctx) : NULL;
    if (!options.pool)
        return 1;
    options.threads = firn_pool_threads(options.pool);
    const bool open = ggml_open(options.threads);
    if (open)
        measure_all();
    firn_context_destroy(options.ctx);
    return open ? 0 : 1;
}
