/* What an operation is: one static struct in its own file (src/op/<name>.c), one row in src/ops.def.
 *
 * The scalar reference is the definition: fast kernels are compared with it, and it with mathematics. It computes items
 * [begin, end) of firn_op_items(y) independent pieces, each output element in exactly one piece, so that any backend
 * can spread them over threads without the bits changing. */
#ifndef FIRN_CORE_OP_H
#define FIRN_CORE_OP_H

#include "core/graph.h"

typedef struct {
    double flops, bytes_read, bytes_written;
} firn_cost;

/* One launch of a node: addresses of the tensors' first elements. Shapes and strides are in node and node->src. */
typedef struct {
    const firn_tensor *node;
    void *dst;
    void *src[FIRN_MAX_SRC]; /* NULL where the source is absent */
    void *work;              /* scratch of firn_op.work bytes, aligned to 64: this thread's, or all threads' (gather) */
    firn_fault *fault;
} firn_call;

typedef struct firn_op {
    const char *name;
    int n_src, n_optional; /* required sources, then optional ones (NULL) */
    bool view;             /* the result lies in src[0]'s storage, and there is nothing to run */
    bool into; /* the result lies in src[0]'s storage, and running writes there (accumulate, optimizer, cache) */
    uint32_t in_place; /* bit i: dst may take src[i]'s memory when both have the same size and i is not read later */

    /* Checks sources and params, then calls firn_shape_set (or sets ne, nb, offset of a view). */
    firn_status (*shape)(firn_context *ctx, firn_tensor *y);

    /* The gradient with respect to src[of], given dy of y's shape; NULL: none by nature (ids, masks). Without the
     * function the operation has no gradient, and `no_gradient` says why ("a choice has no slope"). */
    firn_tensor *(*gradient)(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of);
    const char *no_gradient;

    /* What a run costs: additions, multiplications, comparisons and elementary functions count as one operation each.
     * Without the function: the bytes of the tensors, and `flops` operations per element of y (0: one). */
    firn_cost (*cost)(const firn_tensor *y);
    int flops;
    int64_t (*items)(const firn_tensor *y);                               /* NULL: the rows of y */
    size_t (*work)(const firn_tensor *y);                                 /* NULL: none */
    void (*reference)(const firn_call *call, int64_t begin, int64_t end); /* NULL for views */

    /* The reference in two stages, where every item needs sums over everything; or NULL. gather leaves what parts
     * [begin, end) add up to in `work`, each part in a place of its own; when all are there, finish computes items. */
    int64_t (*parts)(const firn_tensor *y);
    void (*gather)(const firn_call *call, int64_t begin, int64_t end);
    void (*finish)(const firn_call *call, int64_t begin, int64_t end);
} firn_op;

/* All of them, NULL-terminated, in the order of ops.def (src/tables/ops.c). */
FIRN_INNER extern const firn_op *const firn_ops[];

/* Adds a node: sources are copied from src[0..n) (NULL entries only for optional ones; a NULL required one makes the
 * result NULL), params may be NULL. */
firn_tensor *firn_node(firn_graph *g, const firn_op *op, firn_tensor *const *src, int n, const firn_params *params);
/* Contiguous result of that shape. ne past n_dims is 1. */
firn_status firn_shape_set(firn_context *ctx, firn_tensor *y, firn_type type, int n_dims, ...); /* int64_t each */
firn_status firn_shape_like(firn_context *ctx, firn_tensor *y, firn_type type, const int64_t ne[FIRN_MAX_DIMS]);
/* Fails the graph (sticky) from inside a builder or gradient rule, and returns NULL. */
firn_tensor *firn_graph_fail(firn_graph *g, firn_status status, const char *format, ...) FIRN_PRINTF(3, 4);
firn_context *firn_graph_context(const firn_graph *g);

FIRN_INNER firn_cost firn_op_cost(const firn_tensor *y);
FIRN_INNER int64_t firn_op_items(const firn_tensor *y);

/* Address of element (i0, i1, i2, i3) given the address of the first. i0 counts blocks in packed types. */
static inline char *firn_at(const firn_tensor *t, void *first, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (char *)first + i0 * t->nb[0] + i1 * t->nb[1] + i2 * t->nb[2] + i3 * t->nb[3];
}

/* Row number r of t (rows counted over dimensions 1, 2, 3) as its three indices. */
static inline void firn_row_index(const firn_tensor *t, int64_t r, int64_t *i1, int64_t *i2, int64_t *i3)
{
    *i1 = r % t->ne[1];
    *i2 = r / t->ne[1] % t->ne[2];
    *i3 = r / (t->ne[1] * t->ne[2]);
}

static inline char *firn_row_at(const firn_tensor *t, void *first, int64_t r)
{
    int64_t i1, i2, i3;

    firn_row_index(t, r, &i1, &i2, &i3);
    return firn_at(t, first, 0, i1, i2, i3);
}

#endif
