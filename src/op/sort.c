/* ARGSORT(a) -> I32 of a's shape: the places of a row's values in rising or falling order (params.i[0]: falling).
 * TOP_K(a) -> I32 [k, ne1, ne2, ne3]: the places of the k largest, falling.
 *
 * Stable: of equal values the one with the smaller index comes first. NaN comes last, in either direction. a is F32 of
 * any strides. No gradient: a choice has no slope. */
#include "op/util.h"

enum { A };

typedef struct {
    const char *row;
    int64_t stride;
    bool falling;
} order;

static float value(const order *o, int32_t i)
{
    return *(const float *)(o->row + i * o->stride);
}

/* True when i must stand before j for its value's sake; false for equals. */
static bool before(const order *o, int32_t i, int32_t j)
{
    const float a = value(o, i), b = value(o, j);

    if (a != a || b != b)
        return a == a && b != b;
    return o->falling ? a > b : a < b;
}

/* Bottom-up merge sort of index[0..n), with as much scratch. */
static void merge_sort(const order *o, int32_t *index, int32_t *scratch, int64_t n)
{
    int32_t *from = index, *to = scratch;

    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t start = 0; start < n; start += 2 * width) {
            const int64_t middle = firn_min_i64(start + width, n), end = firn_min_i64(start + 2 * width, n);
            int64_t l = start, r = middle;
            for (int64_t k = start; k < end; k++)
                to[k] = l < middle && (r >= end || !before(o, from[r], from[l])) ? from[l++] : from[r++];
        }
        int32_t *t = from;
        from = to;
        to = t;
    }
    if (from != index)
        memcpy(index, from, (size_t)n * sizeof *index);
}

/* ---- ARGSORT ---- */

static firn_status argsort_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(firn_expect_type(ctx, y->src[A], FIRN_F32, "a"));
    FIRN_EXPECT(ctx, y->src[A]->ne[0] <= INT32_MAX, "rows of %lld values have more places than I32 counts",
                LL(y->src[A]->ne[0]));
    return firn_shape_like(ctx, y, FIRN_I32, y->src[A]->ne);
}

static size_t argsort_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * sizeof(int32_t);
}

static void argsort_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];

    for (int64_t r = begin; r < end; r++) {
        const order o = {firn_row_at(a, call->src[A], r), a->nb[0], y->params.i[0] != 0};
        int32_t *out = (int32_t *)firn_row_at(y, call->dst, r);
        for (int64_t i = 0; i < y->ne[0]; i++)
            out[i] = (int32_t)i;
        merge_sort(&o, out, call->work, y->ne[0]);
    }
}

const firn_op firn_op_argsort = {
    .name = "ARGSORT",
    .n_src = 1,
    .shape = argsort_shape,
    .no_gradient = "a choice has no slope",
    .work = argsort_work,
    .reference = argsort_reference,
};

firn_tensor *firn_argsort(firn_graph *g, firn_tensor *a, bool descending)
{
    return firn_node(g, &firn_op_argsort, &a, 1, &(firn_params){.i = {descending}});
}

/* ---- TOP_K ---- */

static firn_status top_k_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A];
    const int32_t k = y->params.i[0];

    FIRN_TRY(firn_expect_type(ctx, a, FIRN_F32, "a"));
    FIRN_EXPECT(ctx, k >= 1 && k <= a->ne[0] && a->ne[0] <= INT32_MAX, "%d of %lld values cannot be chosen", k,
                LL(a->ne[0]));
    return firn_shape_set(ctx, y, FIRN_I32, 4, (int64_t)k, a->ne[1], a->ne[2], a->ne[3]);
}

/* Insertion into a list of k: most values of a row fail the first comparison. */
static void top_k_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t k = y->ne[0];

    for (int64_t r = begin; r < end; r++) {
        const order o = {firn_row_at(a, call->src[A], r), a->nb[0], true};
        int32_t *best = (int32_t *)firn_row_at(y, call->dst, r);
        int64_t n = 0;
        for (int32_t i = 0; i < a->ne[0]; i++) {
            if (n == k && !before(&o, i, best[n - 1]))
                continue;
            int64_t at = n < k ? n++ : n - 1;
            for (; at > 0 && before(&o, i, best[at - 1]); at--)
                best[at] = best[at - 1];
            best[at] = i;
        }
    }
}

static firn_cost top_k_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[A]);

    return (firn_cost){n, n * sizeof(float), (double)firn_n_bytes(y)};
}

const firn_op firn_op_top_k = {
    .name = "TOP_K",
    .n_src = 1,
    .shape = top_k_shape,
    .no_gradient = "a choice has no slope",
    .cost = top_k_cost,
    .reference = top_k_reference,
};

firn_tensor *firn_top_k(firn_graph *g, firn_tensor *a, int k)
{
    return firn_node(g, &firn_op_top_k, &a, 1, &(firn_params){.i = {k}});
}
