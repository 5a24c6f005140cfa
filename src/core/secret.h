/* A hash whose collisions nobody can choose: keyed by a secret that each table draws when it is made. Texts of
 * strangers (names of a template, keys of its dicts, tokens and merges of a vocabulary) that collide in a hash without
 * a key turn tables into lists, and linear work into quadratic. What a table holds and in which order it is read never
 * depends on the secret. Folded multiplication as in wyhash (Wang Yi, 2019): the two halves of a 128-bit product, one
 * over the other. */
#ifndef FIRN_CORE_SECRET_H
#define FIRN_CORE_SECRET_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t start, factor; /* factor is odd */
} firn_secret;

/* From the system's random numbers; where it gives none, from the clock and an address. */
firn_secret firn_secret_draw(void);

__extension__ typedef unsigned __int128 firn_product;

static inline uint64_t firn_secret_fold(const firn_secret *secret, uint64_t x)
{
    const firn_product p = (firn_product)x * secret->factor;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Once does for what follows in a text, but numbers in a row would stay in a row. */
static inline uint64_t firn_secret_end(const firn_secret *secret, uint64_t x)
{
    return firn_secret_fold(secret, firn_secret_fold(secret, x) ^ secret->start);
}

static inline uint64_t firn_secret_number(const firn_secret *secret, uint64_t x)
{
    return firn_secret_end(secret, secret->start ^ x);
}

/* Of two numbers, in this order. */
static inline uint64_t firn_secret_pair(const firn_secret *secret, uint64_t a, uint64_t b)
{
    return firn_secret_end(secret, firn_secret_fold(secret, secret->start ^ a) ^ b);
}

static inline uint64_t firn_secret_hash(const firn_secret *secret, const void *bytes, size_t n)
{
    const char *at = bytes;
    uint64_t h = secret->start ^ n, word;

    for (; n >= 8; at += 8, n -= 8) {
        memcpy(&word, at, 8);
        h = firn_secret_fold(secret, h ^ word);
    }
    word = 0;
    memcpy(&word, at, n);
    return firn_secret_end(secret, h ^ word);
}

#endif
