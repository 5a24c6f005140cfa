#include "core/context.h"

#include "core/plain.h"
#include "core/pool.h"
#include "core/sized.h"
#include "core/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_THREADS = 1024 };

const char *firn_version(void)
{
    return FIRN_VERSION;
}

const char *firn_status_name(firn_status status)
{
    switch (status) {
    case FIRN_OK:
        return "ok";
    case FIRN_ERR_ARGUMENT:
        return "argument";
    case FIRN_ERR_MEMORY:
        return "memory";
    case FIRN_ERR_IO:
        return "io";
    case FIRN_ERR_FORMAT:
        return "format";
    case FIRN_ERR_UNSUPPORTED:
        return "unsupported";
    case FIRN_ERR_DEVICE:
        return "device";
    case FIRN_ERR_CANCELLED:
        return "cancelled";
    }
    return "unknown";
}

static void *std_alloc(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

static void *std_realloc(void *user, void *old, size_t size)
{
    (void)user;
    return realloc(old, size);
}

static void std_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

firn_context *firn_context_create(const firn_context_params *params)
{
    static const firn_allocator standard = {std_alloc, std_realloc, std_free, NULL};
    firn_context_params p = {0};

    if (params && FIRN_TAKE(NULL, firn_context_params, allocator, params, &p) != FIRN_OK)
        return NULL;
    const firn_allocator a = p.allocator.alloc ? p.allocator : standard;
    firn_context *ctx = a.alloc(a.user, sizeof *ctx);
    if (!ctx)
        return NULL;
    memset(ctx, 0, sizeof *ctx);
    ctx->allocator = a;
    ctx->n_threads = p.n_threads > 0 ? p.n_threads : firn_cpu_count();
    if (ctx->n_threads > MOST_THREADS)
        ctx->n_threads = MOST_THREADS;
    return ctx;
}

void firn_context_destroy(firn_context *ctx)
{
    if (!ctx)
        return;
    firn_pool_destroy(ctx, ctx->pool);
    ctx->allocator.free(ctx->allocator.user, ctx);
}

const char *firn_error(const firn_context *ctx)
{
    return ctx ? ctx->error : "";
}

int firn_context_threads(const firn_context *ctx)
{
    return ctx ? ctx->n_threads : 0;
}

void firn_context_set_precision(firn_context *ctx, firn_precision precision)
{
    if (ctx)
        ctx->precision = precision;
}

firn_precision firn_context_precision(const firn_context *ctx)
{
    return ctx ? ctx->precision : FIRN_PRECISION_F32;
}

static const char *const precision_names[] = {"f32", "bf16"};

const char *firn_precision_name(firn_precision precision)
{
    return (unsigned)precision <= FIRN_PRECISION_BF16 ? precision_names[precision] : NULL;
}

bool firn_precision_from_name(const char *name, firn_precision *precision)
{
    if (!name || !precision)
        return false;
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, precision_names[i]) != 0)
            continue;
        *precision = (firn_precision)i;
        return true;
    }
    return false;
}

static const char *const place_names[] = {"auto", "mapped", "resident", "streamed"};

const char *firn_weights_place_name(firn_weights_place place)
{
    return (unsigned)place <= FIRN_WEIGHTS_STREAMED ? place_names[place] : NULL;
}

void firn_context_set_weights(firn_context *ctx, firn_weights_place place, uint64_t ring_bytes)
{
    if (!ctx)
        return;
    ctx->weights = place;
    ctx->ring_bytes = ring_bytes;
}

firn_status firn_parse_weights(firn_context *ctx, const char *text, firn_weights_place *place, uint64_t *ring_bytes)
{
    const size_t n = strcspn(text, ":");
    int p = 0;

    while (p < 4 && (strlen(place_names[p]) != n || memcmp(text, place_names[p], n) != 0))
        p++;
    FIRN_EXPECT(ctx, p < 4 && (!text[n] || p == FIRN_WEIGHTS_STREAMED),
                "weights are auto, mapped, resident, streamed or streamed:BYTES, not '%.40s'", text);
    *place = (firn_weights_place)p;
    *ring_bytes = 0;
    return text[n] ? firn_parse_bytes(ctx, text + n + 1, ring_bytes) : FIRN_OK;
}

firn_status firn_context_set_weights_text(firn_context *ctx, const char *text)
{
    FIRN_GIVEN(ctx, ctx, text);
    firn_weights_place place;
    uint64_t ring_bytes;

    FIRN_TRY(firn_parse_weights(ctx, text, &place, &ring_bytes));
    firn_context_set_weights(ctx, place, ring_bytes);
    return FIRN_OK;
}

/* Cuts a text that filled its buffer back to a whole UTF-8 character. */
static void trim_partial(char *text, size_t limit)
{
    size_t n = strlen(text);

    if (n + 1 < limit)
        return;
    while (n > 0 && ((unsigned char)text[n - 1] & 0xC0) == 0x80)
        n--;
    if (n > 0 && (unsigned char)text[n - 1] >= 0xC0)
        n--;
    text[n] = 0;
}

firn_status firn_failv(firn_context *ctx, firn_status status, const char *format, va_list args)
{
    char sentence[FIRN_ERROR_BYTES]; /* args may point into the old sentence */

    if (!ctx)
        return status;
    firn_vsnprintf(sentence, sizeof sentence, format, args);
    trim_partial(sentence, sizeof sentence);
    firn_tame_line(sentence); /* it may quote a file */
    memcpy(ctx->error, sentence, sizeof sentence);
    return status;
}

const char firn_given_end = 0;

firn_status firn_expect_given(firn_context *ctx, const char *call, const char *names, const void *const *pointers)
{
    for (; *pointers != &firn_given_end; pointers++) {
        if (!*pointers)
            return firn_fail(ctx, FIRN_ERR_ARGUMENT, "%s: %.*s must not be null", call, (int)strcspn(names, ","),
                             names);
        names += strcspn(names, ",");
        names += strspn(names, ", ");
    }
    return FIRN_OK;
}

firn_status firn_fail(firn_context *ctx, firn_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    firn_failv(ctx, status, format, args);
    va_end(args);
    return status;
}

firn_status firn_fail_in(firn_context *ctx, firn_status status, const char *format, ...)
{
    char before[FIRN_ERROR_BYTES];
    va_list args;

    va_start(args, format);
    firn_vsnprintf(before, sizeof before, format, args);
    va_end(args);
    return firn_fail(ctx, status, "%s: %s", before, ctx->error);
}

void *firn_alloc(firn_context *ctx, size_t size)
{
    void *p = ctx->allocator.alloc(ctx->allocator.user, size ? size : 1);

    if (!p)
        firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory: %zu bytes could not be allocated", size);
    return p;
}

void *firn_alloc_zeroed(firn_context *ctx, size_t count, size_t size)
{
    size_t bytes;

    if (!firn_mul_size(count, size, &bytes)) {
        firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory: %zu times %zu bytes pass the address space", count, size);
        return NULL;
    }
    void *p = firn_alloc(ctx, bytes);
    if (p)
        memset(p, 0, bytes ? bytes : 1);
    return p;
}

void *firn_realloc(firn_context *ctx, void *old, size_t size)
{
    void *p = old ? ctx->allocator.realloc(ctx->allocator.user, old, size ? size : 1)
                  : ctx->allocator.alloc(ctx->allocator.user, size ? size : 1);

    if (!p)
        firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory: %zu bytes could not be allocated", size);
    return p;
}

void firn_free(firn_context *ctx, void *memory)
{
    if (memory)
        ctx->allocator.free(ctx->allocator.user, memory);
}

char *firn_strdup(firn_context *ctx, const char *text)
{
    const size_t n = strlen(text) + 1;
    char *copy = firn_alloc(ctx, n);

    if (copy)
        memcpy(copy, text, n);
    return copy;
}

firn_status firn_grow(firn_context *ctx, void **items, size_t n, size_t *capacity, size_t size)
{
    if (n < *capacity)
        return FIRN_OK;
    size_t bytes, wanted = *capacity ? 2 * *capacity : 16;
    if (!firn_mul_size(wanted, size, &bytes))
        return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory: a list of %zu items is too long", n);
    void *grown = firn_realloc(ctx, *items, bytes);
    if (!grown)
        return FIRN_ERR_MEMORY;
    *items = grown;
    *capacity = wanted;
    return FIRN_OK;
}

bool firn_mul_size(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}

bool firn_add_size(size_t a, size_t b, size_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}

firn_status firn_parse_bytes(firn_context *ctx, const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    char *end;

    errno = 0;
    double v = firn_strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    bool good = end != text && !errno && isfinite(v) && v > 0 && isdigit((unsigned char)text[0]);
    if (unit) {
        v = ldexp(v, 10 * (int)(unit - units + 1));
        end++;
    }
    if (*end == 'i' && unit)
        end++;
    if (*end == 'B')
        end++;
    good = good && *end == 0 && v < 0x1p62;
    if (!good)
        return firn_fail(ctx, FIRN_ERR_ARGUMENT, "'%.40s' is no size: expected one like 6G, 800M or a number of bytes",
                         text);
    *bytes = (uint64_t)v;
    return FIRN_OK;
}
