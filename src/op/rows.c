/* GET_ROWS(a, ids) -> y: y[:, i, j, l] = a[:, ids[i, j, l], j, l]
 *
 *   a    [n, rows, B, C]  any weight format, rows dense
 *   ids  [r, B, C]        I32, any strides
 *   y    [n, r, B, C]     F32
 *
 * GET_ROWS_BACK(dy, ids) -> da [n, rows, B, C]: zeros, and each dy[:, i, j, l] added to row ids[i, j, l]; a row that
 * was read several times gets its sum in order of i. params: rows [0, 2).
 *
 * SET_ROWS(dst, a, ids): dst[:, ids[i], j, l] = a[:, i, j, l], in place. dst F32 or F16, a F32, ids I32 [rows of a]. An
 * id that occurs twice is the caller's mistake: which row stays is not said. No gradient: it fills a cache that
 * outlives the graph.
 *
 * An id that names no row is reported; its row of y is zeros, and nothing is read or written for it. */
#include "op/mathf.h"
#include "op/util.h"

#include "format/format.h"

enum { A, IDS };
enum { COLUMNS = 512, SET_COLUMNS = 128 }; /* what one item owns: of GET_ROWS_BACK, of SET_ROWS */

static int32_t id_at(const firn_tensor *ids, void *first, int64_t i, int64_t j, int64_t l)
{
    return *(const int32_t *)firn_at(ids, first, i, j, l, 0);
}

/* ---- GET_ROWS ---- */

static firn_status get_rows_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A], *ids = y->src[IDS];

    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_EXPECT(ctx, firn_format_can_decode(a->type), "rows of %s cannot be decoded", firn_type_name(a->type));
    FIRN_TRY(firn_expect_rows(ctx, a, "a"));
    FIRN_EXPECT(ctx, ids->ne[1] == a->ne[2] && ids->ne[2] == a->ne[3] && ids->ne[3] == 1,
                "ids of %s do not fit a of %s: they are [r, %lld, %lld]", firn_shape_text(ids), firn_shape_text(a),
                LL(a->ne[2]), LL(a->ne[3]));
    return firn_shape_set(ctx, y, FIRN_F32, 4, a->ne[0], ids->ne[0], ids->ne[1], ids->ne[2]);
}

static void get_rows_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A], *ids = y->src[IDS];
    const int64_t n = y->ne[0];
    int64_t i, j, l;

    if (begin >= end)
        return;
    firn_row_index(y, begin, &i, &j, &l);
    for (int64_t r = begin; r < end; r++) {
        const int32_t id = id_at(ids, call->src[IDS], i, j, l);
        const bool inside = id >= 0 && id < a->ne[1];
        const void *row = inside ? firn_at(a, call->src[A], 0, id, j, l) : NULL;
        float *out = (float *)call->dst + r * n;
        if (!inside) {
            firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, y, r, id, a->ne[1]);
            memset(out, 0, (size_t)n * sizeof *out);
        } else if (a->type != FIRN_F32) {
            firn_decode_row(a->type, row, n, out);
        } else if (n == 1) { /* a router's weights */
            *out = *(const float *)row;
        } else {
            memcpy(out, row, (size_t)n * sizeof *out);
        }
        if (++i == y->ne[1]) {
            i = 0;
            if (++j == y->ne[2]) {
                j = 0;
                l++;
            }
        }
    }
}

static firn_cost get_rows_cost(const firn_tensor *y)
{
    const double rows = (double)firn_n_rows(y);

    return (firn_cost){.flops = (double)firn_n_elements(y),
                       .bytes_read = rows * (double)(firn_row_bytes(y->src[A]->type, y->ne[0]) + sizeof(int32_t)),
                       .bytes_written = (double)firn_n_bytes(y)};
}

static firn_tensor *get_rows_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *a = y->src[A];

    if (of != A)
        return NULL;
    if (a->type != FIRN_F32)
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED, "GET_ROWS: %s holds %s, and only F32 can be trained", a->name,
                               firn_type_name(a->type));
    return firn_get_rows_back(g, dy, y->src[IDS], a->ne[1]);
}

const firn_op firn_op_get_rows = {
    .name = "GET_ROWS",
    .n_src = 2,
    .shape = get_rows_shape,
    .gradient = get_rows_gradient,
    .cost = get_rows_cost,
    .reference = get_rows_reference,
};

firn_tensor *firn_get_rows(firn_graph *g, firn_tensor *a, firn_tensor *ids)
{
    return firn_node(g, &firn_op_get_rows, (firn_tensor *[]){a, ids}, 2, NULL);
}

/* ---- GET_ROWS_BACK ---- */

static firn_status get_rows_back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *dy = y->src[A], *ids = y->src[IDS];

    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_EXPECT(ctx, ids->ne[0] == dy->ne[1] && ids->ne[1] == dy->ne[2] && ids->ne[2] == dy->ne[3] && ids->ne[3] == 1,
                "ids of %s do not name a row for each of dy's, %s", firn_shape_text(ids), firn_shape_text(dy));
    return firn_shape_set(ctx, y, FIRN_F32, 4, dy->ne[0], firn_param_get(&y->params, 0), dy->ne[2], dy->ne[3]);
}

static int64_t column_blocks(const firn_tensor *y)
{
    return (y->ne[0] + COLUMNS - 1) / COLUMNS;
}

static int64_t get_rows_back_items(const firn_tensor *y)
{
    return column_blocks(y) * y->ne[2] * y->ne[3];
}

FIRN_WIDE static void get_rows_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *dy = y->src[A], *ids = y->src[IDS];
    const int64_t blocks = column_blocks(y), sd = dy->nb[0];

    for (int64_t item = begin; item < end; item++) {
        const int64_t c0 = item % blocks * COLUMNS, n = firn_min_i64(COLUMNS, y->ne[0] - c0);
        const int64_t j = item / blocks % y->ne[2], l = item / blocks / y->ne[2];
        const int64_t runs = blocks == 1 ? 1 : y->ne[1]; /* y is contiguous */
        for (int64_t r = 0; r < runs; r++)
            memset(firn_at(y, call->dst, c0, r, j, l), 0, (size_t)(n * (y->ne[1] / runs)) * sizeof(float));
        for (int64_t i = 0; i < ids->ne[0]; i++) {
            const int32_t id = id_at(ids, call->src[IDS], i, j, l);
            if (id < 0 || id >= y->ne[1]) {
                firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, y, i + ids->ne[0] * (j + ids->ne[1] * l), id,
                               y->ne[1]);
                continue;
            }
            float *restrict out = (float *)firn_at(y, call->dst, c0, id, j, l);
            const char *in = firn_at(dy, call->src[A], c0, i, j, l);
            if (sd == sizeof(float)) {
                for (int64_t c = 0; c < n; c++)
                    out[c] += ((const float *)in)[c];
            } else {
                for (int64_t c = 0; c < n; c++)
                    out[c] += *(const float *)(in + c * sd);
            }
        }
    }
}

static firn_tensor *get_rows_back_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return of == A ? firn_get_rows(g, firn_with_dense_rows(g, dy), y->src[IDS]) : NULL;
}

static firn_cost get_rows_back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[A]);

    return (firn_cost){n, n * sizeof(float), (double)firn_n_bytes(y)};
}

const firn_op firn_op_get_rows_back = {
    .name = "GET_ROWS_BACK",
    .n_src = 2,
    .shape = get_rows_back_shape,
    .gradient = get_rows_back_gradient,
    .cost = get_rows_back_cost,
    .items = get_rows_back_items,
    .reference = get_rows_back_reference,
};

firn_tensor *firn_get_rows_back(firn_graph *g, firn_tensor *dy, firn_tensor *ids, int64_t n_rows)
{
    firn_params p = {{0}};

    firn_param_put(&p, 0, n_rows);
    return firn_node(g, &firn_op_get_rows_back, (firn_tensor *[]){dy, ids}, 2, &p);
}

/* ---- SET_ROWS ---- */

enum { DST, FROM, TO };

static firn_status set_rows_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *dst = y->src[DST], *a = y->src[FROM], *ids = y->src[TO];

    FIRN_EXPECT(ctx, dst->type == FIRN_F32 || dst->type == FIRN_F16, "rows are set in F32 or F16, not %s",
                firn_type_name(dst->type));
    FIRN_TRY(firn_expect_type(ctx, a, FIRN_F32, "a"));
    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_EXPECT(ctx, a->ne[0] == dst->ne[0] && a->ne[2] == dst->ne[2] && a->ne[3] == dst->ne[3],
                "rows of %s do not fit %s", firn_shape_text(a), firn_shape_text(dst));
    FIRN_EXPECT(ctx, firn_n_elements(ids) == ids->ne[0] && ids->ne[0] == a->ne[1], "ids of %s do not name %lld rows",
                firn_shape_text(ids), LL(a->ne[1]));
    y->type = dst->type;
    memcpy(y->ne, dst->ne, sizeof y->ne);
    memcpy(y->nb, dst->nb, sizeof y->nb);
    return FIRN_OK;
}

/* Items are columns, not rows: the head's padding names its spare row many times. */
static int64_t set_rows_parts(const firn_tensor *y)
{
    return (y->ne[0] + SET_COLUMNS - 1) / SET_COLUMNS;
}

static int64_t set_rows_items(const firn_tensor *y)
{
    return set_rows_parts(y) * y->ne[2] * y->ne[3];
}

static void set_rows_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[FROM];
    const int64_t parts = set_rows_parts(y);

    for (int64_t item = begin; item < end; item++) {
        const int64_t from = item % parts * SET_COLUMNS, to = firn_min_i64(from + SET_COLUMNS, y->ne[0]);
        const int64_t j = item / parts % y->ne[2], l = item / parts / y->ne[2];
        for (int64_t i = 0; i < a->ne[1]; i++) {
            const int32_t id = id_at(y->src[TO], call->src[TO], i, 0, 0);
            if (id < 0 || id >= y->ne[1]) {
                firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, y, i, id, y->ne[1]);
                continue;
            }
            char *out = firn_at(y, call->dst, 0, id, j, l);
            const char *in = firn_at(a, call->src[FROM], 0, i, j, l);
            for (int64_t c = from; c < to; c++) {
                const float v = *(const float *)(in + c * a->nb[0]);
                if (y->type == FIRN_F32)
                    *(float *)(out + c * y->nb[0]) = v;
                else
                    *(uint16_t *)(out + c * y->nb[0]) = firn_float_to_half(v);
            }
        }
    }
}

static firn_cost set_rows_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[FROM]);

    return (firn_cost){0, n * sizeof(float), n * (double)firn_type_size(y->type)};
}

const firn_op firn_op_set_rows = {
    .name = "SET_ROWS",
    .n_src = 3,
    .into = true,
    .shape = set_rows_shape,
    .no_gradient = "it fills a cache that outlives the graph",
    .cost = set_rows_cost,
    .items = set_rows_items,
    .reference = set_rows_reference,
};

firn_tensor *firn_set_rows(firn_graph *g, firn_tensor *dst, firn_tensor *a, firn_tensor *ids)
{
    return firn_node(g, &firn_op_set_rows, (firn_tensor *[]){dst, a, ids}, 3, NULL);
}
