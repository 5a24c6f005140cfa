/* Reading safetensors files (source: the format's own description, huggingface.co/docs/safetensors):
 *
 *     size:u64 little-endian, header: JSON of `size` bytes, data
 *     header = {"name": {"dtype": "F32", "shape": [..., innermost last], "data_offsets": [begin, end]}, "__metadata__"}
 *
 * Nothing in a file is trusted: names are unique, offsets lie in the data, and bytes are what dtype and shape take. */
#ifndef FIRN_TRAIN_SAFETENSORS_H
#define FIRN_TRAIN_SAFETENSORS_H

#include "core/context.h"

#include <jansson.h>

typedef struct {
    firn_context *ctx;
    json_t *header;
    const uint8_t *data; /* the caller keeps the bytes */
    size_t size;
} firn_safetensors;

typedef struct {
    firn_type type; /* FIRN_F32, FIRN_F16 or FIRN_BF16 */
    int n_dims;
    int64_t ne[FIRN_MAX_DIMS]; /* innermost first, 1 past n_dims */
    const uint8_t *data;       /* perhaps unaligned */
} firn_safetensor;

firn_status firn_safetensors_parse(firn_context *ctx, const void *bytes, size_t size, firn_safetensors *file);
void firn_safetensors_forget(firn_safetensors *file);
/* A tensor by name; *found false: there is none. What is not in one of those three types is refused. */
firn_status firn_safetensors_find(const firn_safetensors *file, const char *name, firn_safetensor *tensor, bool *found);
/* n values from the `at`-th on, as floats. */
void firn_safetensor_values(const firn_safetensor *tensor, int64_t at, int64_t n, float *values);

#endif
