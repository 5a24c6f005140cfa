/* What the machine can do: the limits that perf's percentages are of. */
#include "harness.h"

#include "core/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a burst of fused multiply-adds ---- */

enum { CHAINS = 12, ROUNDS = 1000 * 1000 };

#if defined(__x86_64__)
#include <immintrin.h>

#define BURST(name, options, bits, lanes)                                                                              \
    __attribute__((target(options), noinline)) static float name(void)                                                 \
    {                                                                                                                  \
        const __m##bits a = _mm##bits##_set1_ps(0.999999f), b = _mm##bits##_set1_ps(1e-6f);                            \
        __m##bits sum[CHAINS];                                                                                         \
        float total = 0, out[lanes];                                                                                   \
                                                                                                                       \
        for (int c = 0; c < CHAINS; c++)                                                                               \
            sum[c] = _mm##bits##_set1_ps((float)c);                                                                    \
        for (int r = 0; r < ROUNDS; r++)                                                                               \
            for (int c = 0; c < CHAINS; c++)                                                                           \
                sum[c] = _mm##bits##_fmadd_ps(sum[c], a, b);                                                           \
        for (int c = 0; c < CHAINS; c++) {                                                                             \
            _mm##bits##_storeu_ps(out, sum[c]);                                                                        \
            total += out[0] + out[lanes - 1];                                                                          \
        }                                                                                                              \
        return total;                                                                                                  \
    }
BURST(burst8, "avx2,fma", 256, 8)
BURST(burst16, "avx512f", 512, 16)
#define BURSTS                                                                                                         \
    {burst8, 8, true},                                                                                                 \
    {                                                                                                                  \
        burst16, 16, __builtin_cpu_supports("avx512f")                                                                 \
    }
#else

__attribute__((noinline)) static float burst8(void)
{
    float sum[CHAINS * 8], total = 0;

    for (int c = 0; c < CHAINS * 8; c++)
        sum[c] = (float)c;
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS * 8; c++)
            sum[c] = fmaf(sum[c], 0.999999f, 1e-6f);
    for (int c = 0; c < CHAINS * 8; c++)
        total += sum[c];
    return total;
}
#define BURSTS                                                                                                         \
    {                                                                                                                  \
        burst8, 8, true                                                                                                \
    }
#endif

typedef struct {
    float (*run)(void);
    int lanes;
    bool usable;
} burst;

static volatile float sink;

static void burst_work(void *argument, firn_team team)
{
    (void)team;
    sink = ((const burst *)argument)->run();
}

static double best_flops(firn_pool *pool)
{
    burst bursts[] = {BURSTS};
    double best = 0;

    for (size_t k = 0; k < sizeof bursts / sizeof *bursts; k++)
        for (int i = 0; bursts[k].usable && i < 3; i++) {
            const double start = now();
            firn_pool_run(pool, burst_work, &bursts[k]);
            const double rate = 2.0 * bursts[k].lanes * CHAINS * ROUNDS * firn_pool_threads(pool) / (now() - start);
            best = rate > best ? rate : best;
        }
    return best;
}

/* ---- reading memory ---- */

enum { MEGABYTES = 256 };

typedef struct {
    const uint64_t *data;
    size_t n;
} memory;

static void read_work(void *argument, firn_team team)
{
    const memory *m = argument;
    const size_t share = m->n / (size_t)team.nth;
    uint64_t sum[8] = {0};

    for (size_t i = share * (size_t)team.ith; i + 8 <= share * (size_t)(team.ith + 1); i += 8)
        for (int j = 0; j < 8; j++)
            sum[j] += m->data[i + (size_t)j];
    sink = (float)(sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7]);
}

static double best_bandwidth(firn_pool *pool)
{
    static uint64_t *data; /* kept: touching new pages takes longer than reading them */
    const size_t size = (size_t)MEGABYTES << 20;
    double best = 0;

    if (!data) {
        data = malloc(size);
        if (!data)
            return 0;
        memset(data, 1, size);
    }
    memory m = {data, size / sizeof *data};
    for (int i = 0; i < 3; i++) {
        const double start = now();
        firn_pool_run(pool, read_work, &m);
        const double rate = (double)size / (now() - start);
        best = rate > best ? rate : best;
    }
    return best;
}

limits limits_of(firn_context *ctx)
{
    firn_pool *pool = firn_context_pool(ctx);

    return pool ? (limits){best_flops(pool), best_bandwidth(pool)} : (limits){NAN, NAN};
}
