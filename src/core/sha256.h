/* SHA-256 (FIPS 180-4), for fingerprints of models and data sets. */
#ifndef FIRN_CORE_SHA256_H
#define FIRN_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { FIRN_SHA256_BYTES = 32, FIRN_SHA256_HEX = 65 };

typedef struct {
    uint32_t state[8];
    uint64_t bytes; /* added so far */
    uint8_t block[64];
} firn_sha256;

void firn_sha256_init(firn_sha256 *hash);
/* In pieces of any size. */
void firn_sha256_add(firn_sha256 *hash, const void *data, size_t size);
/* Ends the message; `hash` must be initialized again before more is added. */
void firn_sha256_digest(firn_sha256 *hash, uint8_t digest[FIRN_SHA256_BYTES]);
/* The digest as 64 lower-case hexadecimal digits and a NUL. */
void firn_sha256_hex(firn_sha256 *hash, char text[FIRN_SHA256_HEX]);

#endif
