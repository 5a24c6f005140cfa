/* ARGSORT(a) -> I32 of a's shape: the places of a row's values in rising or falling order (params.i[0]: falling).
 * TOP_K(a) -> I32 [k, ne1, ne2, ne3]: the places of the k largest, falling.
 *
 * Stable: of equal values the one with the smaller index comes first. NaN comes last, in either direction. a is F32 of
 * any strides. No gradient: a choice has no slope. */
#include "op/mathf.h"
#include "op/util.h"

enum { A };
enum { RUN = 64, FEW = 24 };

/* An unsigned number that rises with x: -0 is 0, and NaN is above all. */
FIRN_INLINE uint32_t rising_key(float x)
{
    const uint32_t bits = firn_bits_of_float(x + 0.0f), key = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);

    return x == x ? key : 0xffffffffu;
}

/* One that rises as x falls; NaN is above all here too. */
FIRN_INLINE uint32_t falling_key(float x)
{
    return x == x ? ~rising_key(x) : 0xffffffffu;
}

/* Keys of values [at, at + n) of a row. */
FIRN_INLINE void keys_of(const char *row, int64_t stride, int64_t at, int64_t n, bool falling, uint32_t *keys)
{
    float values[RUN];
    const float *x = firn_dense_run(row + at * stride, stride, n, values);

    for (int64_t i = 0; i < n; i++)
        keys[i] = falling ? falling_key(x[i]) : rising_key(x[i]);
}

/* Sorts by the upper 32 bits, stable: by insertion, or byte by byte (LSD radix sort) with as much scratch. */
static void sort(uint64_t *pairs, uint64_t *scratch, int64_t n)
{
    uint32_t counts[4][256] = {0};

    if (n <= FEW) {
        for (int64_t i = 1; i < n; i++) {
            const uint64_t pair = pairs[i];
            int64_t at = i;
            for (; at > 0 && pairs[at - 1] > pair; at--) /* places rise: what differs in them alone is in order */
                pairs[at] = pairs[at - 1];
            pairs[at] = pair;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int byte = 0; byte < 4; byte++)
            counts[byte][pairs[i] >> (32 + 8 * byte) & 255]++;
    uint64_t *from = pairs, *to = scratch;
    for (int byte = 0; byte < 4; byte++) {
        uint32_t *count = counts[byte], total = 0;
        if (count[from[0] >> (32 + 8 * byte) & 255] == n) /* the same in all */
            continue;
        for (int i = 0; i < 256; i++) {
            const uint32_t here = count[i];
            count[i] = total;
            total += here;
        }
        for (int64_t i = 0; i < n; i++)
            to[count[from[i] >> (32 + 8 * byte) & 255]++] = from[i];
        uint64_t *t = from;
        from = to;
        to = t;
    }
    if (from != pairs)
        memcpy(pairs, from, (size_t)n * sizeof *pairs);
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
    return 2 * (size_t)y->ne[0] * sizeof(uint64_t);
}

FIRN_WIDE static void argsort_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t n = y->ne[0];
    uint64_t *pairs = call->work;
    uint32_t keys[RUN];

    for (int64_t r = begin; r < end; r++) {
        const char *row = firn_row_at(a, call->src[A], r);
        int32_t *out = (int32_t *)firn_row_at(y, call->dst, r);
        for (int64_t at = 0; at < n; at += RUN) {
            const int64_t here = firn_min_i64(RUN, n - at);
            keys_of(row, a->nb[0], at, here, y->params.i[0] != 0, keys);
            for (int64_t i = 0; i < here; i++)
                pairs[at + i] = (uint64_t)keys[i] << 32 | (uint64_t)(at + i);
        }
        sort(pairs, pairs + n, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = (int32_t)(pairs[i] & 0xffffffffu);
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

static size_t top_k_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * sizeof(uint32_t);
}

/* Insertion into a list of k. Most runs of a row have nothing to insert, and most values of the others fail the first
 * comparison. */
FIRN_WIDE static void top_k_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t k = y->ne[0];
    uint32_t keys[RUN], *restrict best_key = call->work;

    for (int64_t r = begin; r < end; r++) {
        const char *row = firn_row_at(a, call->src[A], r);
        int32_t *restrict best = (int32_t *)firn_row_at(y, call->dst, r);
        int64_t n = 0;
        for (int64_t first = 0; first < a->ne[0]; first += RUN) {
            const int64_t here = firn_min_i64(RUN, a->ne[0] - first);
            uint32_t lowest = 0xffffffffu;
            keys_of(row, a->nb[0], first, here, true, keys);
            for (int64_t i = 0; i < here; i++)
                lowest = keys[i] < lowest ? keys[i] : lowest;
            if (n == k && lowest >= best_key[k - 1])
                continue;
            for (int64_t i = 0; i < here; i++) {
                if (n == k && keys[i] >= best_key[k - 1])
                    continue;
                int64_t at = n < k ? n++ : n - 1;
                for (; at > 0 && keys[i] < best_key[at - 1]; at--) {
                    best_key[at] = best_key[at - 1];
                    best[at] = best[at - 1];
                }
                best_key[at] = keys[i];
                best[at] = (int32_t)(first + i);
            }
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
    .work = top_k_work,
    .reference = top_k_reference,
};

firn_tensor *firn_top_k(firn_graph *g, firn_tensor *a, int k)
{
    return firn_node(g, &firn_op_top_k, &a, 1, &(firn_params){.i = {k}});
}
