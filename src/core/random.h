/* Random numbers as a function of (seed, stream, index): no state to save, the same on every machine and thread.
 * SplitMix64's finalizer over a mixed key (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").
 */
#ifndef FIRN_CORE_RANDOM_H
#define FIRN_CORE_RANDOM_H

#include <stdint.h>

/* A stream of its own for each name (FNV-1a). */
static inline uint64_t firn_stream(const char *name)
{
    uint64_t h = 0xCBF29CE484222325u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return h;
}

static inline uint64_t firn_mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* 64 random bits. */
static inline uint64_t firn_random(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t key = firn_mix64(firn_mix64(seed + 0x9E3779B97F4A7C15u) ^ stream);
    return firn_mix64(key + (index + 1) * 0x9E3779B97F4A7C15u);
}

/* Uniform in [0, 1), 24 bits: exact in F32. */
static inline float firn_random_unit(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (float)(firn_random(seed, stream, index) >> 40) * 0x1p-24f;
}

/* Uniform with mean 0 and standard deviation 1: in +-sqrt(3). */
static inline float firn_random_even(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (2 * firn_random_unit(seed, stream, index) - 1) * 1.7320508f;
}

/* Uniform in [0, n), n > 0; the bias of at most n / 2^64 does not matter here. */
static inline uint64_t firn_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    return (uint64_t)(((__uint128_t)firn_random(seed, stream, index) * n) >> 64);
}

#endif
