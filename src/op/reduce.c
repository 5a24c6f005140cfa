/* Sums of F32 values in double, in an order that depends on the shape only. x has any strides.
 *
 *     SUM       [1]                  over everything: rows first, then over the rows of a part, then over parts
 *     SUM_ROWS  [1, ne1, ne2, ne3]   over each row
 *     MEAN      [1, ne1, ne2, ne3]   SUM_ROWS / ne0
 *
 * dx repeats dy (MEAN: divided by ne0). */
#include "op/mathf.h"
#include "op/util.h"

enum { X };

enum { PART = 4096 }; /* elements of SUM that one thread adds up, or a row where that is longer */

FIRN_INLINE double row_sum(const firn_tensor *x, void *first, int64_t r)
{
    const char *row = firn_row_at(x, first, r);
    double sum = 0;

    if (firn_dense_rows(x))
        return firn_sum_of((const float *)row, x->ne[0]);
    for (int64_t i = 0; i < x->ne[0]; i++)
        sum += (double)*(const float *)(row + i * x->nb[0]);
    return sum;
}

static firn_status sum_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[X], FIRN_F32, "x"));
    return firn_shape_set(ctx, y, FIRN_F32, 1, (int64_t)1);
}

static int64_t rows_of_part(const firn_tensor *y)
{
    return firn_max_i64(1, PART / firn_max_i64(1, y->src[X]->ne[0]));
}

static int64_t sum_parts(const firn_tensor *y)
{
    const int64_t rows = firn_n_elements(y->src[X]) ? firn_n_rows(y->src[X]) : 0; /* however many rows of nothing */

    return (rows + rows_of_part(y) - 1) / rows_of_part(y);
}

static size_t sum_work(const firn_tensor *y)
{
    return (size_t)sum_parts(y) * sizeof(double);
}

FIRN_WIDE static void sum_gather(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *x = call->node->src[X];
    const int64_t rows = rows_of_part(call->node);

    for (int64_t part = begin; part < end; part++) {
        double sum = 0;
        for (int64_t r = part * rows; r < firn_min_i64((part + 1) * rows, firn_n_rows(x)); r++)
            sum += row_sum(x, call->src[X], r);
        ((double *)call->work)[part] = sum;
    }
}

static void sum_finish(const firn_call *call, int64_t begin, int64_t end)
{
    double sum = 0;

    if (begin >= end)
        return;
    for (int64_t part = 0; part < sum_parts(call->node); part++)
        sum += ((const double *)call->work)[part];
    *(float *)call->dst = (float)sum;
}

static void sum_reference(const firn_call *call, int64_t begin, int64_t end)
{
    sum_gather(call, 0, sum_parts(call->node));
    sum_finish(call, begin, end);
}

static firn_tensor *sum_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_repeat(g, dy, y->src[of]->ne);
}

static firn_cost cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[X]);

    return (firn_cost){n, n * sizeof(float), (double)firn_n_bytes(y)};
}

const firn_op firn_op_sum = {
    .name = "SUM",
    .n_src = 1,
    .shape = sum_shape,
    .gradient = sum_gradient,
    .cost = cost,
    .work = sum_work,
    .reference = sum_reference,
    .parts = sum_parts,
    .gather = sum_gather,
    .finish = sum_finish,
};

firn_tensor *firn_sum(firn_graph *g, firn_tensor *a)
{
    return firn_node(g, &firn_op_sum, &a, 1, NULL);
}

static firn_status rows_shape(firn_context *ctx, firn_tensor *y)
{
    const int64_t *ne = y->src[X]->ne;

    FIRN_TRY(firn_expect_type(ctx, y->src[X], FIRN_F32, "x"));
    return firn_shape_set(ctx, y, FIRN_F32, 4, (int64_t)1, ne[1], ne[2], ne[3]);
}

FIRN_WIDE static void sum_rows_reference(const firn_call *call, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++)
        ((float *)call->dst)[r] = (float)row_sum(call->node->src[X], call->src[X], r);
}

const firn_op firn_op_sum_rows = {
    .name = "SUM_ROWS",
    .n_src = 1,
    .shape = rows_shape,
    .gradient = sum_gradient,
    .cost = cost,
    .reference = sum_rows_reference,
};

firn_tensor *firn_sum_rows(firn_graph *g, firn_tensor *a)
{
    return firn_node(g, &firn_op_sum_rows, &a, 1, NULL);
}

FIRN_WIDE static void mean_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *x = call->node->src[X];

    for (int64_t r = begin; r < end; r++)
        ((float *)call->dst)[r] = (float)(row_sum(x, call->src[X], r) / (double)x->ne[0]);
}

static firn_tensor *mean_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    const firn_tensor *x = y->src[of];

    return firn_repeat(g, firn_scale(g, dy, 1.0f / (float)x->ne[0]), x->ne);
}

const firn_op firn_op_mean = {
    .name = "MEAN",
    .n_src = 1,
    .shape = rows_shape,
    .gradient = mean_gradient,
    .cost = cost,
    .reference = mean_reference,
};

firn_tensor *firn_mean(firn_graph *g, firn_tensor *a)
{
    return firn_node(g, &firn_op_mean, &a, 1, NULL);
}
