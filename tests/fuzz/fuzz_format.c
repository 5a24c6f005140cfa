/* Any bytes as packed weights of every format, and any floats into every format that can be written. What must hold:
 * decoding reads what is there and nothing else, what was encoded of finite weights decodes to finite ones unless it is
 * said to be lost, and encoding them again loses nothing more than the format does. */
#include "core/context.h"
#include "format/encode.h"
#include "format/format.h"
#include "format/range.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N = 256 };

static volatile float sum;

static void decode(firn_type type, const uint8_t *data, size_t size)
{
    const int64_t block = firn_type_block(type), n = (int64_t)(size / firn_row_bytes(type, block)) * block;
    const int64_t take = n < 4 * N ? n : 4 * N;
    if (take < 1)
        return;
    const size_t bytes = firn_row_bytes(type, take);
    void *row = aligned_alloc(64, (bytes + 63) / 64 * 64); /* as tensors lie, to the byte for the sanitizer's sake */
    float *x = malloc((size_t)take * sizeof *x);

    memcpy(row, data, bytes);
    firn_decode_row(type, row, take, x);
    for (int64_t i = 0; i < take; i++)
        sum = x[i];
    free(x);
    free(row);
}

static void encode(firn_type type, const uint8_t *data, size_t size)
{
    float x[N] = {0}, y[N];
    _Alignas(64) uint8_t row[N * sizeof(float)];

    memcpy(x, data, size < sizeof x ? size : sizeof x);
    firn_encode_row(type, x, N, NULL, row);
    firn_decode_row(type, row, N, y);
    const bool plain = firn_type_block(type) == 1;
    if (!plain && !firn_all_finite(y, N))
        abort();
    if (!firn_all_finite(x, N))
        return;
    const float lost = firn_format_lost(type, x, N, row);
    if (!(lost >= 0) || isinf(lost) || (lost == 0 && !firn_all_finite(y, N)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const firn_type type = (firn_type)(data[0] % FIRN_TYPE_LIMIT);
    if (firn_format_can_decode(type))
        decode(type, data + 1, size - 1);
    if (firn_format_encoder(type))
        encode(type, data + 1, size - 1);
    return 0;
}
