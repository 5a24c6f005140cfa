/* The formats' public face (firn/kernels.h): many rows, checked, on the context's threads. */
#include "firn/kernels.h"

#include "core/pool.h"
#include "format/encode.h"
#include "format/format.h"

bool firn_type_can_decode(firn_type type)
{
    return firn_format_can_decode(type);
}

bool firn_type_can_encode(firn_type type)
{
    return firn_format_encoder(type) != NULL;
}

typedef struct {
    firn_decoder decode; /* or */
    firn_encoder encode;
    const char *src;
    char *dst;
    const float *importance;
    size_t src_stride, dst_stride;
    int64_t n, rows;
    atomic_llong next;
} rows_job;

static void run_rows(void *argument, firn_team team)
{
    rows_job *job = argument;
    int64_t begin, end;

    (void)team;
    while (firn_team_take(&job->next, job->rows, 1, &begin, &end)) {
        for (int64_t r = begin; r < end; r++) {
            const void *src = job->src + (size_t)r * job->src_stride;
            void *dst = job->dst + (size_t)r * job->dst_stride;
            if (job->decode)
                job->decode(src, job->n, dst);
            else
                job->encode(src, job->n, job->importance, dst);
        }
    }
}

/* One side of a call: pointer, stride and extent of `rows` rows of n weights. */
static firn_status check_side(firn_context *ctx, const char *what, firn_type type, const void *data, size_t stride,
                              int64_t n, int64_t rows)
{
    const size_t align = firn_type_align(type);
    size_t extent;

    FIRN_EXPECT(ctx, data, "%s must not be null", what);
    FIRN_EXPECT(ctx, (uint64_t)n / (uint64_t)firn_type_block(type) <= SIZE_MAX / firn_type_size(type),
                "a row of %lld weights of %s is more than memory can hold", (long long)n, firn_type_name(type));
    FIRN_EXPECT(ctx, stride >= firn_row_bytes(type, n), "rows of %s are %zu bytes apart and need %zu bytes each", what,
                stride, firn_row_bytes(type, n));
    FIRN_EXPECT(ctx, firn_mul_size(stride, (size_t)rows, &extent),
                "%lld rows of %zu bytes are more than memory can hold", (long long)rows, stride);
    FIRN_EXPECT(ctx, (uintptr_t)data % align == 0 && stride % align == 0,
                "%s and its stride must be multiples of %zu bytes", what, align);
    FIRN_EXPECT(ctx, extent <= UINTPTR_MAX - (uintptr_t)data, "%s passes the end of the address space", what);
    return FIRN_OK;
}

static firn_status run(firn_context *ctx, firn_type packed, bool decode, const void *src, size_t src_stride, int64_t n,
                       int64_t rows, const float *importance, void *dst, size_t dst_stride, int n_threads)
{
    const char *name = firn_type_name(packed);

    if (!ctx)
        return FIRN_ERR_ARGUMENT;
    if (!name || (decode ? !firn_type_can_decode(packed) : !firn_type_can_encode(packed)))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "there is no %s for type %s (%d)", decode ? "decoder" : "encoder",
                         name ? name : "unknown", (int)packed);
    FIRN_EXPECT(ctx, n >= 0 && rows >= 0, "sizes must not be negative: %lld weights, %lld rows", (long long)n,
                (long long)rows);
    FIRN_EXPECT(ctx, n % firn_type_block(packed) == 0, "%s has blocks of %lld weights; a row of %lld is no multiple",
                name, (long long)firn_type_block(packed), (long long)n);
    if (n == 0 || rows == 0)
        return FIRN_OK;
    FIRN_TRY(check_side(ctx, "src", decode ? packed : FIRN_F32, src, src_stride, n, rows));
    FIRN_TRY(check_side(ctx, "dst", decode ? FIRN_F32 : packed, dst, dst_stride, n, rows));

    FIRN_EXPECT(ctx, (uintptr_t)importance % sizeof *importance == 0, "the importances must be aligned to %zu bytes",
                sizeof *importance);
    const char *from = src, *to = dst;
    const size_t src_bytes = src_stride * (size_t)(rows - 1) + firn_row_bytes(decode ? packed : FIRN_F32, n);
    const size_t dst_bytes = dst_stride * (size_t)(rows - 1) + firn_row_bytes(decode ? FIRN_F32 : packed, n);
    FIRN_EXPECT(ctx, from >= to + dst_bytes || to >= from + src_bytes, "src and dst must not overlap");
    rows_job job = {.decode = decode ? firn_format_decoder(packed) : NULL,
                    .encode = decode ? NULL : firn_format_encoder(packed),
                    .src = src,
                    .dst = dst,
                    .importance = importance,
                    .src_stride = src_stride,
                    .dst_stride = dst_stride,
                    .n = n,
                    .rows = rows};
    return firn_context_run(ctx, n_threads, run_rows, &job);
}

firn_status firn_decode_rows(firn_context *ctx, firn_type type, const void *src, size_t src_stride, int64_t n,
                             int64_t rows, float *dst, size_t dst_stride, int n_threads)
{
    return run(ctx, type, true, src, src_stride, n, rows, NULL, dst, dst_stride, n_threads);
}

firn_status firn_encode_rows(firn_context *ctx, firn_type type, const float *src, size_t src_stride, int64_t n,
                             int64_t rows, const float *importance, void *dst, size_t dst_stride, int n_threads)
{
    return run(ctx, type, false, src, src_stride, n, rows, importance, dst, dst_stride, n_threads);
}
