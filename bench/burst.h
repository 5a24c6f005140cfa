/* What the processor's arithmetic can do at most: independent chains of fused multiply-adds on vectors in registers.
 * Included by benchmarks and by test-backend-ops, which measure it beside what they compare with it. */
#ifndef FIRN_BENCH_BURST_H
#define FIRN_BENCH_BURST_H

#include "core/pool.h"

enum { BURST_SUMS = 12, BURST_STEPS = 200000 };

typedef struct {
    void (*work)(void *argument, firn_team team); /* for firn_pool_run */
    int lanes;                                    /* floats of a vector */
    bool usable;
} burst;

static volatile float burst_sink;

#if defined(__x86_64__)
#include <immintrin.h>

#define BURST(name, options, bits, n)                                                                                  \
    __attribute__((target(options))) static void name(void *argument, firn_team team)                                  \
    {                                                                                                                  \
        const __m##bits a = _mm##bits##_set1_ps(0.999f), b = _mm##bits##_set1_ps(1e-3f);                               \
        __m##bits sum[BURST_SUMS];                                                                                     \
        float total = 0, out[n];                                                                                       \
                                                                                                                       \
        (void)argument, (void)team;                                                                                    \
        for (int i = 0; i < BURST_SUMS; i++)                                                                           \
            sum[i] = _mm##bits##_set1_ps((float)i);                                                                    \
        for (int k = 0; k < BURST_STEPS; k++)                                                                          \
            _Pragma("GCC unroll 12") for (int i = 0; i < BURST_SUMS; i++) sum[i] = _mm##bits##_fmadd_ps(sum[i], a, b); \
        for (int i = 0; i < BURST_SUMS; i++) {                                                                         \
            _mm##bits##_storeu_ps(out, sum[i]);                                                                        \
            total += out[0] + out[n - 1];                                                                              \
        }                                                                                                              \
        burst_sink = total;                                                                                            \
    }
BURST(burst_256, "avx2,fma", 256, 8)
BURST(burst_512, "avx512f", 512, 16)
#undef BURST

static inline burst burst_of_lanes(int lanes)
{
    return lanes == 16 ? (burst){burst_512, 16, __builtin_cpu_supports("avx512f")}
                       : (burst){burst_256, 8, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")};
}
#else
typedef float burst_vector __attribute__((vector_size(16)));
#if defined(__aarch64__)
#include <arm_neon.h>
#define BURST_MADD(s, a, b) (burst_vector) vfmaq_f32((float32x4_t)(b), (float32x4_t)(s), (float32x4_t)(a))
#else
#define BURST_MADD(s, a, b) ((s) * (a) + (b))
#endif

static void burst_128(void *argument, firn_team team)
{
    const burst_vector a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
    burst_vector sum[BURST_SUMS];
    float total = 0;

    (void)argument, (void)team;
    for (int i = 0; i < BURST_SUMS; i++)
        sum[i] = (float)i + (burst_vector){0};
    for (int k = 0; k < BURST_STEPS; k++)
#pragma GCC unroll 12
        for (int i = 0; i < BURST_SUMS; i++)
            sum[i] = BURST_MADD(sum[i], a, b);
    for (int i = 0; i < BURST_SUMS; i++)
        total += sum[i][0] + sum[i][3];
    burst_sink = total;
}

static inline burst burst_of_lanes(int lanes)
{
    return (burst){burst_128, 4, lanes != 16};
}
#endif

/* Floating-point operations of one burst. */
static inline double burst_flops(const burst *b, int n_threads)
{
    return 2.0 * BURST_STEPS * BURST_SUMS * b->lanes * n_threads;
}

#endif
