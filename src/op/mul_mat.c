/* MUL_MAT(w, x) -> y: y[j, n, b, c] = w[:, j, b mod B', c mod C'] . x[:, n, b, c]
 *
 *   w  [k, m, B', C']  any weight format, rows dense
 *   x  [k, n, B, C]    F32, any strides
 *   y  [m, n, B, C]    F32
 *
 * OUT_PROD(a, b) -> y: y[:, p, b, c] = sum over r of a[:, r, b mod B', c mod C'] b[p, r, b, c]
 *
 *   a  [k, r, B', C']  any weight format, rows dense
 *   b  [p, r, B, C]    F32, any strides
 *   y  [k, p, B, C]    F32
 *
 * Each is the other's gradient: dx = OUT_PROD(w, dy'), dw = OUT_PROD(x, dy) for F32 weights (summed where w was
 * repeated); da = OUT_PROD(dy, b') for F32, db = MUL_MAT(a, dy)'. Packed weights have no gradient of their own.
 * References sum in double. Fast kernels: cpu/gemm.c. */
#include "op/mathf.h"
#include "op/util.h"

#include "format/format.h"

enum { W, X }; /* OUT_PROD: a, b */

static firn_status expect_pair(firn_context *ctx, const firn_tensor *w, const firn_tensor *x, const char *what,
                               const char *with)
{
    FIRN_EXPECT(ctx, firn_format_can_decode(w->type), "%s cannot be %s: it has no decoder", what,
                firn_type_name(w->type));
    FIRN_TRY(firn_expect_rows(ctx, w, what));
    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, with));
    FIRN_EXPECT(ctx, w->ne[2] > 0 && w->ne[3] > 0 && x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0,
                "%s of %s cannot be repeated over %s of %s", what, firn_shape_text(w), with, firn_shape_text(x));
    return FIRN_OK;
}

static firn_tensor *untrained(firn_graph *g, const firn_tensor *node, const firn_tensor *w)
{
    return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED, "%s: %s holds %s, and only F32 weights can be trained",
                           node->op->name, w->name[0] ? w->name : "a weight", firn_type_name(w->type));
}

/* Weights are read once, whatever their repetition. */
static firn_cost product_cost(const firn_tensor *y, double inner)
{
    return (firn_cost){
        .flops = 2 * inner * (double)firn_n_elements(y),
        .bytes_read = (double)firn_n_bytes(y->src[W]) + (double)firn_n_bytes(y->src[X]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

/* ---- MUL_MAT ---- */

static firn_status mul_mat_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *w = y->src[W], *x = y->src[X];

    FIRN_TRY(expect_pair(ctx, w, x, "w", "x"));
    FIRN_EXPECT(ctx, w->ne[0] == x->ne[0], "rows of x have %lld values, w takes %lld", LL(x->ne[0]), LL(w->ne[0]));
    return firn_shape_set(ctx, y, FIRN_F32, 4, w->ne[1], x->ne[1], x->ne[2], x->ne[3]);
}

static firn_cost mul_mat_cost(const firn_tensor *y)
{
    return product_cost(y, (double)y->src[W]->ne[0]);
}

/* An item is a row of w at one (b, c): decoded once, used for all n. */
static int64_t mul_mat_items(const firn_tensor *y)
{
    return y->ne[0] * y->ne[2] * y->ne[3];
}

static size_t mul_mat_work(const firn_tensor *y)
{
    return (size_t)y->src[W]->ne[0] * sizeof(float);
}

FIRN_WIDE static void mul_mat_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *w = y->src[W], *x = y->src[X];
    const int64_t k = w->ne[0];

    for (int64_t item = begin; item < end; item++) {
        const int64_t j = item % y->ne[0], b = item / y->ne[0] % y->ne[2], c = item / (y->ne[0] * y->ne[2]);
        const float *row =
            firn_row_floats(w->type, firn_at(w, call->src[W], 0, j, b % w->ne[2], c % w->ne[3]), call->work, k);
        for (int64_t n = 0; n < y->ne[1]; n++) {
            const char *in = firn_at(x, call->src[X], 0, n, b, c);
            double sum = 0;
            if (firn_dense_rows(x))
                sum = firn_dot(row, (const float *)in, k);
            else
                for (int64_t i = 0; i < k; i++)
                    sum += (double)row[i] * (double)*(const float *)(in + i * x->nb[0]);
            *(float *)firn_at(y, call->dst, j, n, b, c) = (float)sum;
        }
    }
}

static firn_tensor *mul_mat_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *w = y->src[W], *x = y->src[X];

    if (of == X)
        return firn_out_prod(g, w, firn_transpose(g, dy));
    if (w->type != FIRN_F32)
        return untrained(g, y, w);
    return firn_reduce_to(g, firn_out_prod(g, firn_with_dense_rows(g, x), dy), w->ne);
}

const firn_op firn_op_mul_mat = {
    .name = "MUL_MAT",
    .n_src = 2,
    .shape = mul_mat_shape,
    .gradient = mul_mat_gradient,
    .cost = mul_mat_cost,
    .items = mul_mat_items,
    .work = mul_mat_work,
    .reference = mul_mat_reference,
};

firn_tensor *firn_mul_mat(firn_graph *g, firn_tensor *w, firn_tensor *x)
{
    return firn_node(g, &firn_op_mul_mat, (firn_tensor *[]){w, x}, 2, NULL);
}

/* ---- OUT_PROD ---- */

static firn_status out_prod_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[W], *b = y->src[X];

    FIRN_TRY(expect_pair(ctx, a, b, "a", "b"));
    FIRN_EXPECT(ctx, a->ne[1] == b->ne[1], "a has %lld rows to sum over, b has %lld", LL(a->ne[1]), LL(b->ne[1]));
    return firn_shape_set(ctx, y, FIRN_F32, 4, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
}

static firn_cost out_prod_cost(const firn_tensor *y)
{
    return product_cost(y, (double)y->src[W]->ne[1]);
}

/* Sums in double, then a decoded row. */
static size_t out_prod_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * (sizeof(double) + sizeof(float));
}

FIRN_WIDE static void out_prod_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[W], *b = y->src[X];
    const int64_t k = y->ne[0];
    double *restrict sum = call->work;
    int64_t p, i2, i3;

    for (int64_t item = begin; item < end; item++) {
        firn_row_index(y, item, &p, &i2, &i3);
        memset(sum, 0, (size_t)k * sizeof *sum);
        for (int64_t r = 0; r < a->ne[1]; r++) {
            const float *restrict row = firn_row_floats(
                a->type, firn_at(a, call->src[W], 0, r, i2 % a->ne[2], i3 % a->ne[3]), (float *)(sum + k), k);
            const double factor = (double)*(const float *)firn_at(b, call->src[X], p, r, i2, i3);
            for (int64_t i = 0; i < k; i++)
                sum[i] += factor * (double)row[i];
        }
        float *out = (float *)firn_row_at(y, call->dst, item);
        for (int64_t i = 0; i < k; i++)
            out[i] = (float)sum[i];
    }
}

static firn_tensor *out_prod_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *a = y->src[W], *b = y->src[X];

    if (of == X)
        return firn_transpose(g, firn_mul_mat(g, a, dy));
    if (a->type != FIRN_F32)
        return untrained(g, y, a);
    return firn_reduce_to(g, firn_out_prod(g, firn_with_dense_rows(g, dy), firn_transpose(g, b)), a->ne);
}

const firn_op firn_op_out_prod = {
    .name = "OUT_PROD",
    .n_src = 2,
    .shape = out_prod_shape,
    .gradient = out_prod_gradient,
    .cost = out_prod_cost,
    .work = out_prod_work,
    .reference = out_prod_reference,
};

firn_tensor *firn_out_prod(firn_graph *g, firn_tensor *a, firn_tensor *b)
{
    return firn_node(g, &firn_op_out_prod, (firn_tensor *[]){a, b}, 2, NULL);
}
