#include "core/sha256.h"

#include <stdio.h>
#include <string.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load_be(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Round t of 6.2.2, where s[(k - t) mod 8] is the standard's variable number k (a is 0, h is 7): the variables move on
 * by counting, not by copying. t mod 8 is a constant in each of the unrolled rounds. */
static inline void one_round(uint32_t s[8], unsigned t, uint32_t k_and_w)
{
#define S(k) s[((k)-t) & 7]
    const uint32_t e = S(4), a = S(0);
    const uint32_t t1 = S(7) + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & S(5)) ^ (~e & S(6))) + k_and_w;
    const uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & S(1)) ^ (a & S(2)) ^ (S(1) & S(2)));

    S(3) += t1;
    S(7) = t1 + t2;
#undef S
}

static void compress(uint32_t state[8], const uint8_t block[64])
{
    uint32_t w[64], s[8];

    for (int t = 0; t < 16; t++)
        w[t] = load_be(block + 4 * t);
    for (int t = 16; t < 64; t++)
        w[t] = w[t - 16] + w[t - 7] + (rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3) +
               (rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10);
    memcpy(s, state, sizeof s);
    for (int t = 0; t < 64; t += 8) {
        one_round(s, 0, K[t] + w[t]);
        one_round(s, 1, K[t + 1] + w[t + 1]);
        one_round(s, 2, K[t + 2] + w[t + 2]);
        one_round(s, 3, K[t + 3] + w[t + 3]);
        one_round(s, 4, K[t + 4] + w[t + 4]);
        one_round(s, 5, K[t + 5] + w[t + 5]);
        one_round(s, 6, K[t + 6] + w[t + 6]);
        one_round(s, 7, K[t + 7] + w[t + 7]);
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void firn_sha256_init(firn_sha256 *hash)
{
    /* The first 32 bits of the fractional parts of the square roots of the first 8 primes (5.3.3). */
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

    memcpy(hash->state, start, sizeof start);
    hash->bytes = 0;
}

void firn_sha256_add(firn_sha256 *hash, const void *data, size_t size)
{
    const uint8_t *p = data;

    while (size) {
        const size_t used = hash->bytes % 64, room = 64 - used, n = size < room ? size : room;
        hash->bytes += n;
        if (n == 64) {
            compress(hash->state, p);
        } else {
            memcpy(hash->block + used, p, n);
            if (n == room)
                compress(hash->state, hash->block);
        }
        p += n;
        size -= n;
    }
}

void firn_sha256_digest(firn_sha256 *hash, uint8_t digest[FIRN_SHA256_BYTES])
{
    static const uint8_t pad[64] = {0x80};
    const uint64_t bits = hash->bytes * 8;
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    firn_sha256_add(hash, pad, 64 - (hash->bytes + 8) % 64);
    firn_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < FIRN_SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void firn_sha256_hex(firn_sha256 *hash, char text[FIRN_SHA256_HEX])
{
    uint8_t digest[FIRN_SHA256_BYTES];

    firn_sha256_digest(hash, digest);
    for (int i = 0; i < FIRN_SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}
