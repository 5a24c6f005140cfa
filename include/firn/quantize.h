/* A model written in other weight formats: tensor by tensor, in pieces, with little memory. */
#ifndef FIRN_QUANTIZE_H
#define FIRN_QUANTIZE_H

#include "firn/gguf.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What becomes of one tensor. */
typedef struct {
    size_t size;          /* sizeof(firn_quantize_step) of the library */
    int64_t index, count; /* which of how many */
    const firn_gguf_tensor *tensor;
    firn_type wanted, type; /* asked for, and what it gets; they differ where blocks do not divide a row */
    uint64_t done, bytes;   /* of the input, before this tensor and in all */
} firn_quantize_step;

typedef struct {
    size_t size;    /* sizeof(firn_quantize_options) */
    firn_type type; /* FIRN_F32: everything, exactly; else of matrices whose names end in .weight and that are no
                     * norms or routers (those stay F32) */
    const firn_type *experts,
        *output; /* types of expert tensors and of the output (the embedding where tied); NULL: type */
    void (*begin)(void *user, const firn_quantize_step *step); /* NULL: not told; called before each tensor */
    void *user;
} firn_quantize_options;

typedef struct {
    size_t size; /* sizeof(firn_quantize_report), set before the call */
    int64_t n_tensors, n_changed, n_fallbacks;
    uint64_t bytes_in, bytes_out; /* of tensor data */
} firn_quantize_report;

/* Writes `out` (whole or not at all) from the model `in`; both may be one path. A tensor that has its type already is
 * copied. Types are those of firn_type_can_encode. A weight that is not finite, or beyond what its type can hold,
 * refuses the model by the tensor's name, unless it goes to F32. report may be NULL; after a failure it tells how far
 * it came. */
FIRN_API firn_status firn_quantize(firn_context *ctx, const char *in, const char *out,
                                   const firn_quantize_options *options, firn_quantize_report *report);

#ifdef __cplusplus
}
#endif
#endif
