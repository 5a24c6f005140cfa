/* What the machine can do: the limits that perf's percentages are of. */
#include "harness.h"

#include "bench/measure.h"

static volatile float sink;

static double best_flops(firn_pool *pool)
{
    enum { RUNS = 15 };
    const burst bursts[] = {burst_of_lanes(8), burst_of_lanes(16)};
    const int n = firn_pool_threads(pool);
    double best = 0;

    for (int k = 0; k < 2; k++)
        for (int i = 0; bursts[k].usable && i < RUNS; i++) {
            const double rate = burst_rate(&bursts[k], pool, n, CLOCK_MONOTONIC);
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
        const double start = clock_now(CLOCK_MONOTONIC);
        firn_pool_run(pool, read_work, &m);
        const double rate = (double)size / (clock_now(CLOCK_MONOTONIC) - start);
        best = rate > best ? rate : best;
    }
    return best;
}

limits limits_of(firn_context *ctx)
{
    firn_pool *pool = firn_context_pool(ctx);

    return pool ? (limits){best_flops(pool), best_bandwidth(pool)} : (limits){NAN, NAN};
}
