/* The context from inside: errors, memory, threads. Every part of the library starts by including this.
 *
 *     FIRN_EXPECT(ctx, cond, "what was expected, %s", and_what_came);   returns FIRN_ERR_ARGUMENT when cond is false
 *     FIRN_TRY(call);                                                   returns what call returned unless FIRN_OK
 *
 * Memory of the library comes from here alone, so that a test can fail each allocation in turn. */
#ifndef FIRN_CORE_CONTEXT_H
#define FIRN_CORE_CONTEXT_H

#include "firn/firn.h"

#include <stdarg.h>
#include <string.h>

enum { FIRN_ERROR_BYTES = 4096 };

/* Not public, but seen by backends in shared objects (core/plugin.c), which are of the same version. */
#define FIRN_INNER FIRN_API

struct firn_pool;

struct firn_context {
    firn_allocator allocator;
    int n_threads;
    firn_precision precision;
    firn_weights_place weights;
    uint64_t ring_bytes;    /* streamed weights; 0: as many blocks as are usual */
    struct firn_pool *pool; /* made by the first firn_context_pool */
    bool (*stop)(
        void *); /* asked between the blocks of a pass; true: it ends with FIRN_ERR_CANCELLED. NULL: not asked */
    void *stop_user;
    char error[FIRN_ERROR_BYTES];
};

/* Keeps the sentence (cut to FIRN_ERROR_BYTES, never in the middle of a character) and returns status. */
FIRN_INNER firn_status firn_fail(firn_context *ctx, firn_status status, const char *format, ...) FIRN_PRINTF(3, 4);
FIRN_INNER firn_status firn_failv(firn_context *ctx, firn_status status, const char *format, va_list args);
/* Puts "prefix: " before the sentence that is there; for context that only the caller knows (a file's name). */
FIRN_INNER firn_status firn_fail_in(firn_context *ctx, firn_status status, const char *format, ...) FIRN_PRINTF(3, 4);

#define FIRN_EXPECT(ctx, cond, ...)                                                                                    \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return firn_fail(ctx, FIRN_ERR_ARGUMENT, __VA_ARGS__);                                                     \
    } while (0)
#define FIRN_TRY(call)                                                                                                 \
    do {                                                                                                               \
        const firn_status firn_try_ = (call);                                                                          \
        if (firn_try_ != FIRN_OK)                                                                                      \
            return firn_try_;                                                                                          \
    } while (0)

/* FIRN_GIVEN(ctx, path, model) returns FIRN_ERR_ARGUMENT, naming the first of the pointers that is NULL. The first
 * argument may be NULL too: then there is nowhere to keep a sentence. At the top of every public call. */
#define FIRN_GIVEN(ctx, ...)                                                                                           \
    FIRN_TRY(firn_expect_given(ctx, __func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__, &firn_given_end}))
FIRN_INNER extern const char firn_given_end;
FIRN_INNER firn_status firn_expect_given(firn_context *ctx, const char *call, const char *names,
                                         const void *const *pointers);

/* NULL with the sentence set when memory is short. size 0 gives memory for 1 byte. */
FIRN_INNER void *firn_alloc(firn_context *ctx, size_t size);
FIRN_INNER void *firn_alloc_zeroed(firn_context *ctx, size_t count, size_t size); /* checks count * size */
FIRN_INNER void *firn_realloc(firn_context *ctx, void *old, size_t size);         /* old stays valid on failure */
FIRN_INNER void firn_free(firn_context *ctx, void *memory);                       /* NULL is fine */
char *firn_strdup(firn_context *ctx, const char *text);
/* Grows *items (of `size` bytes each) so that n + 1 fit; capacity doubles. For append loops. */
firn_status firn_grow(firn_context *ctx, void **items, size_t n, size_t *capacity, size_t size);

/* a * b and a + b, false on overflow. */
bool firn_mul_size(size_t a, size_t b, size_t *product);
/* "6G", "1.5g", "800M", "123456": K, M, G, T are powers of 1024; a B or iB behind is fine. */
firn_status firn_parse_bytes(firn_context *ctx, const char *text, uint64_t *bytes);
/* "auto", "mapped", "resident", "streamed", "streamed:2G". */
firn_status firn_parse_weights(firn_context *ctx, const char *text, firn_weights_place *place, uint64_t *ring_bytes);
bool firn_add_size(size_t a, size_t b, size_t *sum);

static inline int64_t firn_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t firn_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* No infinity, no NaN among x[n]; without a branch in the loop. */
static inline bool firn_all_finite(const float *x, int64_t n)
{
    uint32_t bad = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7F800000u) == 0x7F800000u;
    }
    return !bad;
}

#endif
