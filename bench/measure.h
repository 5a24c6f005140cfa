/* What benchmarks share: clocks, medians, lists of words, memory, random values and routings. They stop the program
 * where a library would return an error. */
#ifndef FIRN_BENCH_MEASURE_H
#define FIRN_BENCH_MEASURE_H

#include "bench/burst.h"
#include "core/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Seconds of CLOCK_MONOTONIC, or of CLOCK_PROCESS_CPUTIME_ID. */
static inline double clock_now(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Floating-point operations a second of all n_threads threads of the pool. */
static inline double burst_rate(const burst *b, firn_pool *pool, int n_threads, clockid_t clock)
{
    const double t = clock_now(clock);

    firn_pool_run(pool, b->work, NULL);
    return burst_flops(b, n_threads) / (clock_now(clock) - t);
}

static inline int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts v; NAN when n is 0. */
static inline double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n == 0 ? NAN : n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Whether "a,b,c" holds the word, in upper or lower case; NULL, a list that was not given, holds every word. */
static inline bool in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = list; p && *p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncasecmp(p, word, n) == 0 && (p[n] == ',' || p[n] == 0))
            return true;
    return !list;
}

/* Zeroed, so that its pages are there. */
static inline void *need(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4096) / 4096 * 4096);

    if (!p) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

/* In [-1, 1). */
static inline float *random_floats(int64_t n, uint64_t seed)
{
    float *p = need((size_t)n * sizeof *p);

    for (int64_t i = 0; i < n; i++)
        p[i] = 2 * firn_random_unit(seed, 0, (uint64_t)i) - 1;
    return p;
}

/* ids [n_used, n_tokens]: n_used different experts for each token. */
static inline void random_routing(int32_t *ids, int64_t n_used, int64_t n_tokens, int64_t n_expert)
{
    uint64_t draws = 0;

    for (int64_t t = 0; t < n_tokens; t++)
        for (int64_t s = 0; s < n_used; s++) {
            int32_t *token = ids + t * n_used;
            bool fresh;
            do {
                token[s] = (int32_t)firn_random_below(7, 8, draws++, (uint64_t)n_expert);
                fresh = true;
                for (int64_t i = 0; i < s; i++)
                    fresh = fresh && token[i] != token[s];
            } while (!fresh);
        }
}

#endif
