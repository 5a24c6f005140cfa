/* What operations share; see util.h. */
#include "op/util.h"

#include "format/format.h"

#include <stdio.h>

const char *firn_shape_text(const firn_tensor *t)
{
    static _Thread_local char text[4][96];
    static _Thread_local unsigned next;
    char *s = text[next++ % 4];

    snprintf(s, sizeof text[0], "[%lld, %lld, %lld, %lld]", LL(t->ne[0]), LL(t->ne[1]), LL(t->ne[2]), LL(t->ne[3]));
    return s;
}

firn_status firn_expect_type(firn_context *ctx, const firn_tensor *t, firn_type type, const char *what)
{
    FIRN_EXPECT(ctx, t->type == type, "%s must be %s, not %s", what, firn_type_name(type), firn_type_name(t->type));
    return FIRN_OK;
}

firn_status firn_expect_like(firn_context *ctx, const firn_tensor *t, const firn_tensor *like, const char *what)
{
    FIRN_TRY(firn_expect_type(ctx, t, FIRN_F32, what));
    FIRN_EXPECT(ctx, firn_same_shape(t, like), "%s must be %s, not %s", what, firn_shape_text(like),
                firn_shape_text(t));
    return FIRN_OK;
}

firn_status firn_expect_rows(firn_context *ctx, const firn_tensor *t, const char *what)
{
    FIRN_EXPECT(ctx, firn_dense_rows(t), "the values of a row of %s must follow each other, not lie %lld bytes apart",
                what, LL(t->nb[0]));
    return FIRN_OK;
}

firn_tensor *firn_with_dense_rows(firn_graph *g, firn_tensor *t)
{
    return !t || firn_dense_rows(t) ? t : firn_node_once(g, &firn_op_cont, &t, 1, NULL);
}

firn_tensor *firn_reduce_to(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS])
{
    if (!dy || memcmp(dy->ne, ne, sizeof dy->ne) == 0)
        return dy;
    return firn_repeat_back(g, dy, ne);
}

firn_tensor *firn_node_once(firn_graph *g, const firn_op *op, firn_tensor *const *src, int n, const firn_params *params)
{
    for (size_t i = g->n; i-- > 0 && g->tensors[i]->part == g->part;) {
        firn_tensor *t = g->tensors[i];
        if (t->op == op && memcmp(t->src, src, (size_t)n * sizeof *src) == 0 &&
            (!params || memcmp(&t->params, params, sizeof *params) == 0))
            return t;
    }
    return firn_node(g, op, src, n, params);
}

firn_tensor *firn_slice(firn_graph *g, firn_tensor *flat, int64_t first, const int64_t ne[FIRN_MAX_DIMS])
{
    int64_t nb[FIRN_MAX_DIMS] = {sizeof(float)};

    for (int i = 1; i < FIRN_MAX_DIMS; i++)
        nb[i] = nb[i - 1] * firn_max_i64(ne[i - 1], 1);
    return firn_view(g, flat, FIRN_MAX_DIMS, ne, nb, first * (int64_t)sizeof(float));
}

const float *firn_row_floats(firn_type type, const void *row, float *scratch, int64_t n)
{
    if (type == FIRN_F32)
        return row;
    firn_decode_row(type, row, n, scratch);
    return scratch;
}
