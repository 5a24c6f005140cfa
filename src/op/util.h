/* Small things that operations share: parameters of 64 bits, checks of types and strides, rows of weights as floats. */
#ifndef FIRN_OP_UTIL_H
#define FIRN_OP_UTIL_H

#include "core/context.h"
#include "format/common.h"
#include "op/op.h"

#include <string.h>

#define LL(x) ((long long)(x))

/* Two words of the parameters as one number of 64 bits. */
static inline void firn_param_put(firn_params *p, int word, int64_t value)
{
    memcpy(&p->i[word], &value, sizeof value);
}

static inline int64_t firn_param_get(const firn_params *p, int word)
{
    int64_t value;

    memcpy(&value, &p->i[word], sizeof value);
    return value;
}

/* A shape in words [word, word + 8); NULL becomes one that is refused. */
static inline void firn_param_put_shape(firn_params *p, int word, const int64_t ne[FIRN_MAX_DIMS])
{
    static const int64_t none[FIRN_MAX_DIMS] = {-1, -1, -1, -1};

    memcpy(&p->i[word], ne ? ne : none, FIRN_MAX_DIMS * sizeof *ne);
}

static inline void firn_param_get_shape(const firn_params *p, int word, int64_t ne[FIRN_MAX_DIMS])
{
    memcpy(ne, &p->i[word], FIRN_MAX_DIMS * sizeof *ne);
}

/* "[4, 3, 1, 1]", for sentences; one of four buffers of the thread. */
FIRN_INNER const char *firn_shape_text(const firn_tensor *t);

firn_status firn_expect_type(firn_context *ctx, const firn_tensor *t, firn_type type, const char *what);
/* F32 of b's shape. */
firn_status firn_expect_like(firn_context *ctx, const firn_tensor *t, const firn_tensor *like, const char *what);
/* Elements of a row follow each other. */
firn_status firn_expect_rows(firn_context *ctx, const firn_tensor *t, const char *what);

/* Values (packed types: blocks) of a row follow each other. */
static inline bool firn_dense_rows(const firn_tensor *t)
{
    return t->nb[0] == (int64_t)firn_type_size(t->type);
}

/* The run of n values `stride` bytes apart from p on: where it lies, or copied into scratch where it is not dense. */
FIRN_INLINE const float *firn_dense_run(const char *p, int64_t stride, int64_t n, float *scratch)
{
    if (stride == (int64_t)sizeof(float))
        return (const float *)p;
    for (int64_t i = 0; i < n; i++)
        scratch[i] = *(const float *)(p + i * stride);
    return scratch;
}

/* t, or a contiguous copy where its rows are not dense. */
firn_tensor *firn_with_dense_rows(firn_graph *g, firn_tensor *t);
/* dy summed over what was repeated from shape ne; dy itself where nothing was. */
firn_tensor *firn_reduce_to(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS]);
/* A node like firn_node's, or the one that is there already: same operation, sources, parameters and part. For
 * gradients of several sources that one node computes together. */
firn_tensor *firn_node_once(firn_graph *g, const firn_op *op, firn_tensor *const *src, int n,
                            const firn_params *params);
/* n contiguous floats of a flat F32 tensor, from element `first`, as a tensor of shape ne. */
firn_tensor *firn_slice(firn_graph *g, firn_tensor *flat, int64_t first, const int64_t ne[FIRN_MAX_DIMS]);

/* Row of n values of any weight type as floats: the row itself where it holds floats, else decoded into scratch. */
const float *firn_row_floats(firn_type type, const void *row, float *scratch, int64_t n);

static inline size_t firn_bytes_up(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

#endif
