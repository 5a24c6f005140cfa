/* Sums as the CPU makes them in double, where there is no double: a number is a pair of floats whose sum it is, about
 * 48 bits (Dekker 1971, Knuth: two-sum; two-product by fma). Kernels are compiled without fast math, which would cancel
 * it. Sums over a threadgroup run in an order that the number of threads fixes. */
#ifndef FIRN_GPU_PAIR_H
#define FIRN_GPU_PAIR_H

#include "format/common.h"

typedef struct {
    float hi, lo;
} firn_pair;

static inline firn_pair pair_of(float a)
{
    firn_pair r;

    r.hi = a;
    r.lo = 0;
    return r;
}

/* |a| >= |b|, or a = 0. What is not finite stays what it is. */
static inline firn_pair quick_two_sum(float a, float b)
{
    firn_pair r;

    r.hi = a + b;
    r.lo = isfinite(r.hi) ? b - (r.hi - a) : 0.0f;
    return r;
}

static inline firn_pair two_sum(float a, float b)
{
    firn_pair r;

    r.hi = a + b;
    const float part = r.hi - a;
    r.lo = isfinite(r.hi) ? (a - (r.hi - part)) + (b - part) : 0.0f;
    return r;
}

static inline firn_pair two_product(float a, float b)
{
    firn_pair r;

    r.hi = a * b;
    r.lo = isfinite(r.hi) ? fma(a, b, -r.hi) : 0.0f;
    return r;
}

static inline firn_pair operator+(firn_pair a, firn_pair b)
{
    const firn_pair s = two_sum(a.hi, b.hi);

    return quick_two_sum(s.hi, s.lo + (a.lo + b.lo));
}

static inline firn_pair operator-(firn_pair a)
{
    a.hi = -a.hi;
    a.lo = -a.lo;
    return a;
}

static inline firn_pair operator-(firn_pair a, firn_pair b)
{
    return a + -b;
}

static inline firn_pair operator*(firn_pair a, firn_pair b)
{
    const firn_pair p = two_product(a.hi, b.hi);

    return quick_two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

static inline firn_pair operator/(firn_pair a, firn_pair b)
{
    const float q = a.hi / b.hi;

    if (!isfinite(q) || q == 0)
        return pair_of(q);
    const firn_pair rest = a - pair_of(q) * b;
    return quick_two_sum(q, rest.hi / b.hi);
}

static inline float float_of(firn_pair a)
{
    return a.hi + a.lo;
}

/* One Newton step from the float's. */
static inline firn_pair pair_sqrt(firn_pair a)
{
    const float s = sqrt(a.hi);

    if (!isfinite(s) || s == 0)
        return pair_of(s);
    const firn_pair rest = a - two_product(s, s);
    return quick_two_sum(s, rest.hi / (2 * s));
}

/* The logarithm, from log m = 2 atanh((m - 1) / (m + 1)) with m near 1: its error is 3e-10 of the result and below. The
 * device's own may be 4 units of the last place off, which is much where a loss or z is near 0. */
static inline firn_pair log_of(firn_pair a)
{
    firn_pair m, ln2;
    float e = 0;

    if (!(a.hi > 0) || !isfinite(a.hi))
        return pair_of(a.hi == 0 ? -INFINITY : a.hi < 0 ? NAN : a.hi);
    if (a.hi < 1.17549435e-38f) { /* denormal */
        a.hi *= 16777216.0f;
        e = -24;
    }
    const uint32_t bits = firn_bits_of_float(a.hi);
    e += (float)((int)(bits >> 23) - 127);
    m.hi = firn_float_of_bits((bits & 0x7fffffu) | 0x3f800000u);
    m.lo = a.lo / a.hi * m.hi;
    if (m.hi > 1.41421354f) {
        m.hi *= 0.5f;
        m.lo *= 0.5f;
        e += 1;
    }
    const firn_pair s = (m - pair_of(1)) / (m + pair_of(1));
    const float z = s.hi * s.hi;
    const float p =
        0.66666667f + z * (0.4f + z * (0.28571429f + z * (0.22222222f + z * (0.18181818f + z * 0.15384615f))));
    ln2.hi = 0.693147182f;
    ln2.lo = -1.90465430e-9f;
    return pair_of(e) * ln2 + (s + s + pair_of(s.hi * z * p));
}

static inline firn_pair simd_pair_sum(firn_pair a)
{
    for (ushort by = 16; by > 0; by /= 2) {
        firn_pair other;
        other.hi = simd_shuffle_xor(a.hi, by);
        other.lo = simd_shuffle_xor(a.lo, by);
        a = a + other;
    }
    return a;
}

/* A thread of a threadgroup that reduces together. */
typedef struct {
    uint index, n_threads;
    ushort lane, simd, n_simd;
} firn_member;

/* Last parameters of a kernel of which threadgroup number `row` has a row; `me` and `part` from them; the thread's
 * elements of a row of n. */
#define FIRN_GROUP                                                                                                     \
    uint row [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],                             \
        uint n_threads [[threads_per_threadgroup]], ushort lane [[thread_index_in_simdgroup]],                         \
        ushort simd [[simdgroup_index_in_threadgroup]], ushort n_simd [[simdgroups_per_threadgroup]]
#define FIRN_ME                                                                                                        \
    threadgroup firn_pair part[32];                                                                                    \
    firn_member me;                                                                                                    \
    me.index = index;                                                                                                  \
    me.n_threads = n_threads;                                                                                          \
    me.lane = lane;                                                                                                    \
    me.simd = simd;                                                                                                    \
    me.n_simd = n_simd
#define FIRN_EACH(i, n) for (int i = (int)index; i < (n); i += (int)n_threads)

/* The sum over the threadgroup; every thread has it. part: of n_simd, free for the next one at once. */
static inline firn_pair group_sum(firn_pair a, threadgroup firn_pair *part, firn_member me)
{
    a = simd_pair_sum(a);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (me.lane == 0)
        part[me.simd] = a;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a = part[0];
    for (ushort i = 1; i < me.n_simd; i++)
        a = a + part[i];
    return a;
}

/* The largest value; a NaN is passed over. */
static inline float group_max(float a, threadgroup firn_pair *part, firn_member me)
{
    for (ushort by = 16; by > 0; by /= 2) {
        const float other = simd_shuffle_xor(a, by);
        a = other > a ? other : a;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (me.lane == 0)
        part[me.simd].hi = a;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    a = part[0].hi;
    for (ushort i = 1; i < me.n_simd; i++)
        a = part[i].hi > a ? part[i].hi : a;
    return a;
}

#endif
