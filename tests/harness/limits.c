/* What the machine can do: the limits that perf's percentages are of. */
#include "harness.h"

#include "core/pool.h"

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

enum { CHAINS = 12, ROUNDS = 4 * 1000 * 1000 };

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2,fma"), noinline)) static float burst(void)
{
    const __m256 a = _mm256_set1_ps(0.999999f), b = _mm256_set1_ps(1e-6f);
    __m256 sum[CHAINS];
    float total = 0, lanes[8];

    for (int c = 0; c < CHAINS; c++)
        sum[c] = _mm256_set1_ps((float)c);
    for (int r = 0; r < ROUNDS; r++)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = _mm256_fmadd_ps(sum[c], a, b);
    for (int c = 0; c < CHAINS; c++) {
        _mm256_storeu_ps(lanes, sum[c]);
        total += lanes[0] + lanes[7];
    }
    return total;
}
#else
#include <math.h>

__attribute__((noinline)) static float burst(void)
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
#endif

static volatile float sink;

static void burst_work(void *argument, firn_team team)
{
    (void)argument, (void)team;
    sink = burst();
}

double limit_flops(firn_context *ctx)
{
    firn_pool *pool = firn_context_pool(ctx);
    double best = 0;

    for (int i = 0; pool && i < 3; i++) {
        const double start = now();
        firn_pool_run(pool, burst_work, NULL);
        const double rate = 2.0 * 8 * CHAINS * ROUNDS * firn_pool_threads(pool) / (now() - start);
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

double limit_bandwidth(firn_context *ctx)
{
    firn_pool *pool = firn_context_pool(ctx);
    const size_t size = (size_t)MEGABYTES << 20;
    uint64_t *data = malloc(size);
    memory m = {data, size / sizeof *data};
    double best = 0;

    if (data)
        memset(data, 1, size);
    for (int i = 0; pool && data && i < 4; i++) {
        const double start = now();
        firn_pool_run(pool, read_work, &m);
        const double rate = (double)size / (now() - start);
        best = rate > best ? rate : best;
    }
    free(data);
    return best;
}
