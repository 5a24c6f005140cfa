/* RESHAPE VIEW PERMUTE TRANSPOSE: other ways to look at the same bytes. Nothing runs.
 *
 *     RESHAPE    a contiguous, the same number of elements
 *     VIEW       ne, nb and an offset in bytes, inside a's own extent; nb[0] is a's element (packed types: block)
 *     PERMUTE    axis i of a becomes axis axes[i]
 *     TRANSPOSE  axes 0 and 1 exchanged
 *
 * VIEW_BACK(dy) -> dx of shape ne, contiguous: zero but for the elements of the view, which receive dy. The view's rows
 * must come in rising order and not overlap (each element of dx has one source); params: ne [0, 8), nb[1..3] [8, 14),
 * offset [14, 16). */
#include "op/util.h"

enum { A };
enum { P_NE = 0, P_NB = 8, P_OFFSET = 14 };

/* ---- RESHAPE ---- */

static firn_status reshape_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A];
    int64_t ne[FIRN_MAX_DIMS];

    firn_param_get_shape(&y->params, P_NE, ne);
    FIRN_EXPECT(ctx, firn_is_contiguous(a), "a must be contiguous; make a copy with CONT first");
    FIRN_TRY(firn_shape_like(ctx, y, a->type, ne));
    FIRN_EXPECT(ctx, firn_n_elements(y) == firn_n_elements(a), "%s has not as many elements as a, %s",
                firn_shape_text(y), firn_shape_text(a));
    return FIRN_OK;
}

static firn_tensor *reshape_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_reshape(g, firn_is_contiguous(dy) ? dy : firn_cont(g, dy), FIRN_MAX_DIMS, y->src[of]->ne);
}

const firn_op firn_op_reshape = {
    .name = "RESHAPE",
    .n_src = 1,
    .view = true,
    .shape = reshape_shape,
    .gradient = reshape_gradient,
};

static bool fill_dims(firn_graph *g, const char *op, int n_dims, const int64_t *ne, int64_t full[FIRN_MAX_DIMS])
{
    if (!ne || n_dims < 1 || n_dims > FIRN_MAX_DIMS) {
        firn_graph_fail(g, FIRN_ERR_ARGUMENT, "%s: a tensor has a shape of 1 to 4 dimensions, not %d%s", op, n_dims,
                        ne ? "" : " and null");
        return false;
    }
    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        full[i] = i < n_dims ? ne[i] : 1;
    return true;
}

firn_tensor *firn_reshape(firn_graph *g, firn_tensor *a, int n_dims, const int64_t *ne)
{
    int64_t full[FIRN_MAX_DIMS];
    firn_params p = {{0}};

    if (!fill_dims(g, "RESHAPE", n_dims, ne, full))
        return NULL;
    firn_param_put_shape(&p, P_NE, full);
    return firn_node(g, &firn_op_reshape, &a, 1, &p);
}

/* ---- VIEW ---- */

/* ne, nb and offset from the parameters; nb[0] is the caller's. */
static void unpack(const firn_params *p, int64_t ne[FIRN_MAX_DIMS], int64_t nb[FIRN_MAX_DIMS], int64_t *offset)
{
    firn_param_get_shape(p, P_NE, ne);
    memcpy(nb + 1, &p->i[P_NB], 3 * sizeof *nb);
    *offset = firn_param_get(p, P_OFFSET);
}

static void pack(firn_params *p, const int64_t ne[FIRN_MAX_DIMS], const int64_t nb[FIRN_MAX_DIMS], int64_t offset)
{
    firn_param_put_shape(p, P_NE, ne);
    memcpy(&p->i[P_NB], nb + 1, 3 * sizeof *nb);
    firn_param_put(p, P_OFFSET, offset);
}

/* Bytes from the first to past the last element of a view; -1 when they do not fit 63 bits or are negative. */
static int64_t extent(const int64_t ne[FIRN_MAX_DIMS], const int64_t nb[FIRN_MAX_DIMS], int64_t row_bytes)
{
    int64_t end = row_bytes, step;

    for (int i = 1; i < FIRN_MAX_DIMS; i++)
        if (nb[i] < 0 || __builtin_mul_overflow(ne[i] - 1, nb[i], &step) || __builtin_add_overflow(end, step, &end))
            return -1;
    return end;
}

static firn_status view_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A];
    const int64_t size = (int64_t)firn_type_size(a->type);
    int64_t ne[FIRN_MAX_DIMS], nb[FIRN_MAX_DIMS], offset;

    unpack(&y->params, ne, nb, &offset);
    FIRN_TRY(firn_shape_like(ctx, y, a->type, ne));
    FIRN_TRY(firn_expect_rows(ctx, a, "a"));
    for (int i = 1; i < FIRN_MAX_DIMS; i++) {
        FIRN_EXPECT(ctx, nb[i] % size == 0, "stride %d of %lld bytes cuts an element of %lld", i, LL(nb[i]), LL(size));
        y->nb[i] = nb[i];
    }
    FIRN_EXPECT(ctx, offset >= 0 && offset % size == 0, "an offset of %lld bytes is not one of whole elements of %lld",
                LL(offset), LL(size));
    if (firn_n_elements(y) > 0) {
        const int64_t end = extent(ne, nb, (int64_t)firn_row_bytes(a->type, ne[0]));
        FIRN_EXPECT(ctx, end >= 0 && end <= (int64_t)firn_n_bytes(a) - offset,
                    "%s at byte %lld ends past its source, which has %zu bytes", firn_shape_text(y), LL(offset),
                    firn_n_bytes(a));
    } else {
        offset = 0;
    }
    y->offset = offset;
    return FIRN_OK;
}

static firn_tensor *view_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *a = y->src[of];
    int64_t ne[FIRN_MAX_DIMS], nb[FIRN_MAX_DIMS], offset;

    unpack(&y->params, ne, nb, &offset);
    nb[0] = sizeof(float);
    if (a->type != FIRN_F32 || !firn_is_contiguous(a))
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED,
                               "VIEW of %s%s has a gradient only where its source is contiguous F32",
                               firn_shape_text(a), a->name);
    return firn_view_back(g, dy, a->ne, nb, offset);
}

const firn_op firn_op_view = {
    .name = "VIEW",
    .n_src = 1,
    .view = true,
    .shape = view_shape,
    .gradient = view_gradient,
};

firn_tensor *firn_view(firn_graph *g, firn_tensor *a, int n_dims, const int64_t *ne, const int64_t *nb, int64_t offset)
{
    int64_t full[FIRN_MAX_DIMS], strides[FIRN_MAX_DIMS];
    firn_params p = {{0}};

    if (!a || !fill_dims(g, "VIEW", n_dims, ne, full))
        return NULL;
    if (!nb)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "VIEW: the strides must not be null");
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        strides[i] = i < n_dims ? nb[i] : strides[i - 1];
        if (i >= n_dims && __builtin_mul_overflow(strides[i], full[i - 1] > 0 ? full[i - 1] : 1, &strides[i]))
            strides[i] = -1;
    }
    if (strides[0] != (int64_t)firn_type_size(a->type))
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "VIEW: the first stride must be the element's %zu bytes, not %lld",
                               firn_type_size(a->type), LL(strides[0]));
    pack(&p, full, strides, offset);
    return firn_node(g, &firn_op_view, &a, 1, &p);
}

/* ---- VIEW_BACK ---- */

static firn_status view_back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *dy = y->src[A];
    int64_t ne[FIRN_MAX_DIMS], nb[FIRN_MAX_DIMS], offset;
    int64_t span = dy->ne[0] * (int64_t)sizeof(float); /* bytes that dimensions below i cover */

    unpack(&y->params, ne, nb, &offset);
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_TRY(firn_shape_like(ctx, y, FIRN_F32, ne));
    if (firn_n_elements(dy) == 0)
        return FIRN_OK;
    FIRN_EXPECT(ctx, extent(dy->ne, nb, span) >= 0, "the view's strides are negative or reach further than 64 bits");
    for (int i = 1; i < FIRN_MAX_DIMS; i++) {
        FIRN_EXPECT(ctx, dy->ne[i] == 1 || (nb[i] >= span && nb[i] % (int64_t)sizeof(float) == 0),
                    "the view's elements overlap or come out of order along dimension %d (stride %lld, below it %lld "
                    "bytes)",
                    i, LL(nb[i]), LL(span));
        if (dy->ne[i] > 1)
            span += (dy->ne[i] - 1) * nb[i];
    }
    FIRN_EXPECT(ctx, offset >= 0 && offset % (int64_t)sizeof(float) == 0 && span <= (int64_t)firn_n_bytes(y) - offset,
                "the view of %s at byte %lld ends past %s", firn_shape_text(dy), LL(offset), firn_shape_text(y));
    return FIRN_OK;
}

/* The last row of the view that begins at or before byte `at`, -1 when none does. */
static int64_t row_before(const firn_tensor *dy, const int64_t nb[FIRN_MAX_DIMS], int64_t at)
{
    int64_t row = 0, rows = firn_n_rows(dy);

    if (at < 0)
        return -1;
    for (int i = 3; i > 0; i--) {
        rows /= dy->ne[i];
        if (dy->ne[i] == 1)
            continue;
        const int64_t index = firn_min_i64(at / nb[i], dy->ne[i] - 1);
        row += index * rows;
        at -= index * nb[i];
    }
    return row;
}

static void view_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *dy = y->src[A];
    const int64_t row_bytes = y->ne[0] * (int64_t)sizeof(float), width = dy->ne[0] * (int64_t)sizeof(float);
    const int64_t first = begin * row_bytes, last = end * row_bytes, n_rows = firn_n_rows(dy);
    int64_t ne[FIRN_MAX_DIMS], nb[FIRN_MAX_DIMS], offset, i1, i2, i3;

    unpack(&y->params, ne, nb, &offset);
    memset((char *)call->dst + first, 0, (size_t)(last - first));
    for (int64_t r = firn_max_i64(0, row_before(dy, nb, first - offset)); width > 0 && r < n_rows; r++) {
        firn_row_index(dy, r, &i1, &i2, &i3);
        const int64_t at = offset + i1 * nb[1] + i2 * nb[2] + i3 * nb[3];
        if (at >= last)
            break;
        const char *src = firn_at(dy, call->src[A], 0, i1, i2, i3);
        const int64_t from = firn_max_i64(at, first), to = firn_min_i64(at + width, last);
        if (firn_dense_rows(dy) && from < to)
            memcpy((char *)call->dst + from, src + (from - at), (size_t)(to - from));
        for (int64_t b = from; !firn_dense_rows(dy) && b < to; b += (int64_t)sizeof(float))
            *(float *)((char *)call->dst + b) = *(const float *)(src + (b - at) / (int64_t)sizeof(float) * dy->nb[0]);
    }
}

static firn_tensor *view_back_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    const firn_tensor *x = y->src[of];
    int64_t ne[FIRN_MAX_DIMS], nb[FIRN_MAX_DIMS], offset;

    unpack(&y->params, ne, nb, &offset);
    nb[0] = sizeof(float);
    return firn_view(g, firn_is_contiguous(dy) ? dy : firn_cont(g, dy), FIRN_MAX_DIMS, x->ne, nb, offset);
}

const firn_op firn_op_view_back = {
    .name = "VIEW_BACK",
    .n_src = 1,
    .shape = view_back_shape,
    .gradient = view_back_gradient,
    .reference = view_back_reference,
};

firn_tensor *firn_view_back(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS],
                            const int64_t nb[FIRN_MAX_DIMS], int64_t offset)
{
    static const int64_t none[FIRN_MAX_DIMS] = {-1, -1, -1, -1};
    firn_params p = {{0}};

    pack(&p, ne, nb ? nb : none, offset);
    return firn_node(g, &firn_op_view_back, &dy, 1, &p);
}

/* ---- PERMUTE, TRANSPOSE ---- */

static firn_status permute_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A];
    const int32_t *axes = y->params.i;
    unsigned seen = 0;

    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        seen |= axes[i] >= 0 && axes[i] < FIRN_MAX_DIMS ? 1u << axes[i] : 0;
    FIRN_EXPECT(ctx, seen == 15, "axes %d, %d, %d, %d are not 0 to 3 in some order", axes[0], axes[1], axes[2],
                axes[3]);
    FIRN_EXPECT(ctx, axes[0] == 0 || firn_type_block(a->type) == 1, "rows of %s cannot be taken apart",
                firn_type_name(a->type));
    y->type = a->type;
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        y->ne[axes[i]] = a->ne[i];
        y->nb[axes[i]] = a->nb[i];
    }
    return FIRN_OK;
}

static firn_tensor *permute_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    int back[FIRN_MAX_DIMS];

    (void)of;
    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        back[y->params.i[i]] = i;
    return firn_permute(g, dy, back[0], back[1], back[2], back[3]);
}

#define OPERATION(NAME, name_)                                                                                         \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 1,                                                                                                    \
        .view = true,                                                                                                  \
        .shape = permute_shape,                                                                                        \
        .gradient = permute_gradient,                                                                                  \
    };
OPERATION("PERMUTE", permute)
OPERATION("TRANSPOSE", transpose)

firn_tensor *firn_permute(firn_graph *g, firn_tensor *a, int a0, int a1, int a2, int a3)
{
    return firn_node(g, &firn_op_permute, &a, 1, &(firn_params){.i = {a0, a1, a2, a3}});
}

firn_tensor *firn_transpose(firn_graph *g, firn_tensor *a)
{
    return firn_node(g, &firn_op_transpose, &a, 1, &(firn_params){.i = {1, 0, 2, 3}});
}
