/* A model with an adapter's update in its weights: W + scale B A, in the file's weight formats or better ones. */
#ifndef FIRN_MERGE_H
#define FIRN_MERGE_H

#include "firn/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What became of one tensor that the adapter changes. W' is what its new weights decode to, dW the update. */
typedef struct {
    size_t size; /* sizeof(firn_merge_tensor) of the library */
    const firn_gguf_tensor *tensor;
    firn_type type;  /* written; tensor->type is the model's */
    double update;   /* |dW| / |W| */
    double survives; /* <W' - W, dW> / |dW|^2: 1 where the whole update is in W', 0 where nothing of it is */
    double error;    /* |W' - (W + dW)| / |W + dW|: what encoding adds */
} firn_merge_tensor;

typedef struct {
    size_t size;           /* sizeof(firn_merge_options) */
    const firn_type *type; /* of tensors that the adapter changes, or the one that llama.cpp falls back to; NULL: each
                            * keeps its own, or gets the next better one in which `least` of the update survives */
    double least;          /* 0: 0.9 */
    void (*tensor)(void *user, const firn_merge_tensor *tensor); /* NULL: not told; after each changed tensor */
    void *user;
} firn_merge_options;

typedef struct {
    size_t size; /* sizeof(firn_merge_report), set before the call */
    int64_t n_tensors, n_changed, n_retyped;
    uint64_t bytes_in, bytes_out; /* of tensor data */
} firn_merge_report;

/* Writes `out` (whole or not at all; it may be the model's own path, but no part of a split model) from the file of
 * `model` with the adapter in it: tensors that it does not change are copied. Memory: the adapter's, and some rows. The
 * key firn.merged tells which adapters a model has swallowed. Refused: a weight that becomes infinite or that its type
 * cannot hold. options and report may be NULL. */
FIRN_API firn_status firn_merge(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                                const char *out, const firn_merge_options *options, firn_merge_report *report);

#ifdef __cplusplus
}
#endif
#endif
