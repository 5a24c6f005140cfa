/* MUL_MAT_ID(w, x, ids) -> y: each slot's row through the expert that the router chose for it.
 *
 *     y[:,s,t] = W[:,:,ids[s,t]]' x[:, s mod s', t]
 *
 *   w      [k, m, n_expert]       any weight format, rows dense
 *   x      [k, s', n_tokens]      F32, s' divides n_used (1: all slots of a token share a row; n_used: each has its own)
 *   ids    [n_used, n_tokens]     I32, any strides (usually a view of a sort); an expert may occur twice in a token
 *   table  [n_expert]             I64, optional: where each expert lies, in bytes from w's data (slots of a cache): inside
 *                                 w, at a multiple of firn_type_align; entries of experts that no id names may be anything
 *   y      [m, n_used, n_tokens]  F32
 *
 * MUL_MAT_ID_BACK(w, dy, ids) -> dx[:,s,t] = W[:,:,ids[s,t]] dy[:,s,t], [k, n_used, n_tokens]: one row per slot. Where
 * slots shared a row of x, the gradient rule sums over them (SUM_SLOTS).
 *
 * OUT_PROD_ID(x, dy, ids) -> dW [k, m, n_expert]: the sum over the slots routed to e, in order of (t, s), of
 * x[:, s mod s', t] dy[:,s,t]'; exact zeros for an expert without rows. params: n_expert [0, 2).
 *
 * An id outside [0, n_expert) is reported, never read through; its slot's result is zeros. ids has no gradient: a
 * choice has no slope. A packed W has none, and asking for one is an error. A node with a table has none either: a
 * kernel that ignored the table would read bytes that were deliberately never filled.
 *
 * References sum in double. Fast kernels: cpu/gemm.c, gpu/kernels. */
#include "op/mathf.h"
#include "op/util.h"

#include "format/format.h"
#include "format/gather.h"

enum { W, X, IDS, TABLE }; /* MUL_MAT_ID_BACK: w, dy, ids. OUT_PROD_ID: x, dy, ids */
enum { OX, ODY };

static firn_status expect_ids(firn_context *ctx, const firn_tensor *ids)
{
    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_EXPECT(ctx, ids->ne[2] * ids->ne[3] == 1, "ids must be [n_used, n_tokens], not %s", firn_shape_text(ids));
    return FIRN_OK;
}

static firn_status expect_experts(firn_context *ctx, const firn_tensor *w)
{
    FIRN_EXPECT(ctx, firn_format_can_decode(w->type), "experts cannot be %s: it has no decoder",
                firn_type_name(w->type));
    FIRN_TRY(firn_expect_rows(ctx, w, "the experts"));
    FIRN_EXPECT(ctx, w->ne[3] == 1, "experts must be [k, m, n_expert], not %s", firn_shape_text(w));
    return FIRN_OK;
}

/* x [k, s', n_tokens] against ids: s' divides n_used. */
static firn_status expect_shared(firn_context *ctx, const firn_tensor *x, const firn_tensor *ids)
{
    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_EXPECT(ctx, x->ne[2] == ids->ne[1] && x->ne[3] == 1, "x of %s and ids of %s differ in tokens",
                firn_shape_text(x), firn_shape_text(ids));
    FIRN_EXPECT(ctx, x->ne[1] > 0 && ids->ne[0] % x->ne[1] == 0, "%lld slots of a token cannot share %lld rows",
                LL(ids->ne[0]), LL(x->ne[1]));
    return FIRN_OK;
}

/* dy [m, n_used, n_tokens] against ids. */
static firn_status expect_slots(firn_context *ctx, const firn_tensor *dy, const firn_tensor *ids)
{
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_TRY(firn_expect_rows(ctx, dy, "dy"));
    FIRN_EXPECT(ctx, dy->ne[1] == ids->ne[0] && dy->ne[2] == ids->ne[1] && dy->ne[3] == 1,
                "dy of %s has not one row for each slot of ids, %s", firn_shape_text(dy), firn_shape_text(ids));
    return FIRN_OK;
}

static int32_t expert_of(const firn_tensor *ids, void *first, int64_t s, int64_t t)
{
    return *(const int32_t *)firn_at(ids, first, s, t, 0, 0);
}

/* Bytes of one expert, without a gap behind its last row. */
static int64_t expert_bytes(const firn_tensor *w)
{
    return (w->ne[1] - 1) * w->nb[1] + (int64_t)firn_row_bytes(w->type, w->ne[0]);
}

static bool entry_is_good(const firn_tensor *w, int64_t at)
{
    return firn_expert_lies_within(at, expert_bytes(w), (int64_t)firn_n_bytes(w), (int64_t)firn_type_align(w->type));
}

/* Reports the ids that name no expert, or one that the table (NULL: there is none) puts where it cannot lie. */
static void report_ids(const firn_call *call, int64_t n_expert, const int64_t *table)
{
    const firn_tensor *ids = call->node->src[IDS], *w = call->node->src[W];

    for (int64_t t = 0; t < ids->ne[1]; t++)
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            const int32_t e = expert_of(ids, call->src[IDS], s, t);
            const int64_t slot = s + t * ids->ne[0];
            if (e < 0 || e >= n_expert)
                firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, slot, e, n_expert);
            else if (table && !entry_is_good(w, table[e]))
                firn_fault_set(call->fault, FIRN_FAULT_TABLE, call->node, slot, table[e], (int64_t)firn_n_bytes(w));
        }
}

/* Each expert that has rows is read once; with `slots` rows at most that many experts are touched. */
static firn_cost routed_cost(const firn_tensor *y, double k, double m, double n_expert, double expert_bytes)
{
    const double slots = (double)firn_n_elements(y->src[IDS]);

    return (firn_cost){
        .flops = 2 * slots * k * m,
        .bytes_read = (slots < n_expert ? slots : n_expert) * expert_bytes + (double)firn_n_bytes(y->src[X]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

/* ---- MUL_MAT_ID ---- */

static firn_status mul_mat_id_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *w = y->src[W], *x = y->src[X], *ids = y->src[IDS], *table = y->src[TABLE];

    FIRN_TRY(expect_ids(ctx, ids));
    FIRN_TRY(expect_experts(ctx, w));
    FIRN_TRY(expect_shared(ctx, x, ids));
    FIRN_EXPECT(ctx, x->ne[0] == w->ne[0], "rows of x have %lld values, the experts take %lld", LL(x->ne[0]),
                LL(w->ne[0]));
    if (table) {
        FIRN_TRY(firn_expect_type(ctx, table, FIRN_I64, "the table"));
        FIRN_EXPECT(ctx, firn_is_contiguous(table) && firn_n_rows(table) == 1,
                    "the table must be contiguous and of one dimension, not %s", firn_shape_text(table));
    }
    return firn_shape_set(ctx, y, FIRN_F32, 3, w->ne[1], ids->ne[0], ids->ne[1]);
}

/* With a table there are as many experts as it has entries; each must lie inside w's bytes. */
static int64_t n_experts(const firn_tensor *y)
{
    return y->src[TABLE] ? y->src[TABLE]->ne[0] : y->src[W]->ne[2];
}

static firn_cost mul_mat_id_cost(const firn_tensor *y)
{
    const firn_tensor *w = y->src[W];

    return routed_cost(y, (double)w->ne[0], (double)w->ne[1], (double)n_experts(y), (double)(w->ne[1] * w->nb[1]));
}

/* An item is one row of one expert: decoded once, used for every slot that chose the expert. */
static int64_t mul_mat_id_items(const firn_tensor *y)
{
    return y->ne[0] * (n_experts(y) + 1); /* the last m: slots whose id names no expert */
}

static size_t mul_mat_id_work(const firn_tensor *y)
{
    return (size_t)y->src[W]->ne[0] * sizeof(float);
}

/* NULL where the table puts the expert where it cannot lie. */
static const char *expert_row(const firn_call *call, int64_t e, int64_t j)
{
    const firn_tensor *w = call->node->src[W];
    const int64_t *table = call->src[TABLE];

    if (!table)
        return firn_at(w, call->src[W], 0, j, e, 0);
    return entry_is_good(w, table[e]) ? (const char *)call->src[W] + table[e] + j * w->nb[1] : NULL;
}

FIRN_WIDE static void mul_mat_id_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *w = y->src[W], *x = y->src[X], *ids = y->src[IDS];
    const int64_t k = w->ne[0], n_expert = n_experts(y);

    if (begin == 0 && end > 0)
        report_ids(call, n_expert, call->src[TABLE]);
    for (int64_t item = begin; item < end; item++) {
        const int64_t j = item % y->ne[0], e = item / y->ne[0];
        const float *row = NULL;
        for (int64_t t = 0; t < ids->ne[1]; t++)
            for (int64_t s = 0; s < ids->ne[0]; s++) {
                const int32_t id = expert_of(ids, call->src[IDS], s, t);
                const bool none = id < 0 || id >= n_expert;
                if (none ? e != n_expert : e != id)
                    continue;
                float *out = (float *)firn_at(y, call->dst, j, s, t, 0);
                if (!none && !row) {
                    const char *packed = expert_row(call, e, j);
                    row = packed ? firn_row_floats(w->type, packed, call->work, k) : NULL;
                }
                const float *in = (const float *)firn_at(x, call->src[X], 0, s % x->ne[1], t, 0);
                *out = row ? (float)firn_dot(row, in, k) : 0.0f;
            }
    }
}

static firn_tensor *mul_mat_id_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *w = y->src[W], *x = y->src[X], *ids = y->src[IDS];

    if (of != W && of != X)
        return NULL;
    if (y->src[TABLE])
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED,
                               "MUL_MAT_ID: the gradient does not take a gather table: experts that are not resident "
                               "have no bytes to read");
    if (of == X)
        return firn_sum_slots(g, firn_mul_mat_id_back(g, w, firn_with_dense_rows(g, dy), ids), x->ne[1]);
    if (w->type != FIRN_F32)
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED, "MUL_MAT_ID: %s holds %s, and only F32 experts can be trained",
                               w->name[0] ? w->name : "the weight", firn_type_name(w->type));
    return firn_out_prod_id(g, x, firn_with_dense_rows(g, dy), ids, w->ne[2]);
}

const firn_op firn_op_mul_mat_id = {
    .name = "MUL_MAT_ID",
    .n_src = 3,
    .n_optional = 1,
    .shape = mul_mat_id_shape,
    .gradient = mul_mat_id_gradient,
    .cost = mul_mat_id_cost,
    .items = mul_mat_id_items,
    .work = mul_mat_id_work,
    .reference = mul_mat_id_reference,
};

firn_tensor *firn_mul_mat_id(firn_graph *g, firn_tensor *w, firn_tensor *x, firn_tensor *ids, firn_tensor *table)
{
    return firn_node(g, &firn_op_mul_mat_id, (firn_tensor *[]){w, x, ids, table}, 4, NULL);
}

/* ---- MUL_MAT_ID_BACK ---- */

static firn_status mul_mat_id_back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *w = y->src[W], *dy = y->src[X], *ids = y->src[IDS];

    FIRN_TRY(expect_ids(ctx, ids));
    FIRN_TRY(expect_experts(ctx, w));
    FIRN_TRY(expect_slots(ctx, dy, ids));
    FIRN_EXPECT(ctx, dy->ne[0] == w->ne[1], "rows of dy have %lld values, the experts give %lld", LL(dy->ne[0]),
                LL(w->ne[1]));
    return firn_shape_set(ctx, y, FIRN_F32, 3, w->ne[0], ids->ne[0], ids->ne[1]);
}

static firn_cost mul_mat_id_back_cost(const firn_tensor *y)
{
    const firn_tensor *w = y->src[W];

    return routed_cost(y, (double)w->ne[0], (double)w->ne[1], (double)w->ne[2], (double)(w->ne[1] * w->nb[1]));
}

/* Sums in double, then a decoded row. */
static size_t mul_mat_id_back_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * (sizeof(double) + sizeof(float));
}

FIRN_WIDE static void mul_mat_id_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *w = y->src[W], *dy = y->src[X];
    const int64_t k = y->ne[0];
    double *restrict sum = call->work;

    if (begin == 0 && end > 0)
        report_ids(call, w->ne[2], NULL);
    for (int64_t slot = begin; slot < end; slot++) {
        const int64_t s = slot % y->ne[1], t = slot / y->ne[1];
        const int32_t e = expert_of(y->src[IDS], call->src[IDS], s, t);
        const float *d = (const float *)firn_at(dy, call->src[X], 0, s, t, 0);
        float *out = (float *)call->dst + slot * k;
        memset(sum, 0, (size_t)k * sizeof *sum);
        for (int64_t j = 0; e >= 0 && e < w->ne[2] && j < w->ne[1]; j++) {
            const float *restrict row =
                firn_row_floats(w->type, firn_at(w, call->src[W], 0, j, e, 0), (float *)(sum + k), k);
            for (int64_t i = 0; i < k; i++)
                sum[i] += (double)d[j] * (double)row[i];
        }
        for (int64_t i = 0; i < k; i++)
            out[i] = (float)sum[i];
    }
}

/* Linear in dy, and in w. */
static firn_tensor *mul_mat_id_back_gradient(firn_graph *g, firn_tensor *y, firn_tensor *ddx, int of)
{
    firn_tensor *w = y->src[W], *ids = y->src[IDS];

    ddx = firn_with_dense_rows(g, ddx);
    if (of == X)
        return firn_mul_mat_id(g, w, ddx, ids, NULL);
    if (of != W)
        return NULL;
    if (w->type != FIRN_F32)
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED,
                               "MUL_MAT_ID_BACK: %s holds %s, and only F32 experts can be trained",
                               w->name[0] ? w->name : "the weight", firn_type_name(w->type));
    return firn_out_prod_id(g, ddx, y->src[X], ids, w->ne[2]);
}

const firn_op firn_op_mul_mat_id_back = {
    .name = "MUL_MAT_ID_BACK",
    .n_src = 3,
    .shape = mul_mat_id_back_shape,
    .gradient = mul_mat_id_back_gradient,
    .cost = mul_mat_id_back_cost,
    .work = mul_mat_id_back_work,
    .reference = mul_mat_id_back_reference,
};

firn_tensor *firn_mul_mat_id_back(firn_graph *g, firn_tensor *w, firn_tensor *dy, firn_tensor *ids)
{
    return firn_node(g, &firn_op_mul_mat_id_back, (firn_tensor *[]){w, dy, ids}, 3, NULL);
}

/* ---- OUT_PROD_ID ---- */

static firn_status out_prod_id_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[OX], *dy = y->src[ODY], *ids = y->src[IDS];

    FIRN_TRY(expect_ids(ctx, ids));
    FIRN_TRY(expect_shared(ctx, x, ids));
    FIRN_TRY(expect_slots(ctx, dy, ids));
    return firn_shape_set(ctx, y, FIRN_F32, 3, x->ne[0], dy->ne[0], firn_param_get(&y->params, 0));
}

static firn_cost out_prod_id_cost(const firn_tensor *y)
{
    const double slots = (double)firn_n_elements(y->src[IDS]), k = (double)y->ne[0], m = (double)y->ne[1];

    return (firn_cost){
        .flops = 2 * slots * k * m,
        .bytes_read = (double)firn_n_bytes(y->src[OX]) + (double)firn_n_bytes(y->src[ODY]),
        .bytes_written = (double)firn_n_bytes(y),
    };
}

static size_t out_prod_id_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * sizeof(double);
}

/* An item is row (j, e) of dW. */
FIRN_WIDE static void out_prod_id_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *x = y->src[OX], *dy = y->src[ODY], *ids = y->src[IDS];
    const int64_t k = y->ne[0];
    double *restrict sum = call->work;

    if (begin == 0 && end > 0)
        report_ids(call, y->ne[2], NULL);
    for (int64_t item = begin; item < end; item++) {
        const int64_t j = item % y->ne[1], e = item / y->ne[1];
        float *out = (float *)call->dst + item * k;
        memset(sum, 0, (size_t)k * sizeof *sum);
        for (int64_t t = 0; t < ids->ne[1]; t++)
            for (int64_t s = 0; s < ids->ne[0]; s++) {
                if (expert_of(ids, call->src[IDS], s, t) != e)
                    continue;
                const float *restrict in = (const float *)firn_at(x, call->src[OX], 0, s % x->ne[1], t, 0);
                const double d = (double)*(const float *)firn_at(dy, call->src[ODY], j, s, t, 0);
                for (int64_t i = 0; i < k; i++)
                    sum[i] += d * (double)in[i];
            }
        for (int64_t i = 0; i < k; i++)
            out[i] = (float)sum[i];
    }
}

/* Linear in x and in dy. */
static firn_tensor *out_prod_id_gradient(firn_graph *g, firn_tensor *y, firn_tensor *ddw, int of)
{
    firn_tensor *x = y->src[OX], *dy = y->src[ODY], *ids = y->src[IDS];

    ddw = firn_with_dense_rows(g, ddw);
    if (of == OX)
        return firn_sum_slots(g, firn_mul_mat_id_back(g, ddw, dy, ids), x->ne[1]);
    return of == ODY ? firn_mul_mat_id(g, ddw, x, ids, NULL) : NULL;
}

const firn_op firn_op_out_prod_id = {
    .name = "OUT_PROD_ID",
    .n_src = 3,
    .shape = out_prod_id_shape,
    .gradient = out_prod_id_gradient,
    .cost = out_prod_id_cost,
    .work = out_prod_id_work,
    .reference = out_prod_id_reference,
};

firn_tensor *firn_out_prod_id(firn_graph *g, firn_tensor *x, firn_tensor *dy, firn_tensor *ids, int64_t n_expert)
{
    firn_params p = {{0}};

    firn_param_put(&p, 0, n_expert);
    return firn_node(g, &firn_op_out_prod_id, (firn_tensor *[]){x, dy, ids}, 3, &p);
}
