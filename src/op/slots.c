/* What surrounds the expert-routed product. A token t has n_used slots s, one per expert that the router chose.
 *
 * SUM_SLOTS(x) -> y: x [k, n_used, n_tokens] to [k, s', n_tokens], summing the slots s with the same s mod s', in order
 *     (the gradient where slots shared a row). dx[:,s,t] = dy[:, s mod s', t]. params: s' [0, 2).
 * MIX_SLOTS(x, w) -> y: y[:,t] = sum over s, in order, of w[s,t] x[:,s,t]
 *     x [m, n_used, n_tokens], w [n_used, n_tokens] -> [m, n_tokens]
 *     MIX_SLOTS_BACK_X(w, dy): dx[:,s,t] = w[s,t] dy[:,t].   MIX_SLOTS_BACK_W(x, dy): dw[s,t] = x[:,s,t] . dy[:,t].
 * ADD_ID(a, b, ids) -> y: y[:,s,t] = a[:,s,t] + b[:, ids[s,t]]
 *     a [m, n_used, n_tokens], b [m, n_expert], ids I32 [n_used, n_tokens]; an id that names no expert is reported.
 *     da = dy; db = the rows of dy summed by expert, in order of (t, s).
 * All F32; rows dense; w and ids of any strides. */
#include "op/mathf.h"
#include "op/util.h"

/* ---- SUM_SLOTS ---- */

enum { X, W };

static firn_status sum_slots_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[X];
    const int64_t s = firn_param_get(&y->params, 0);

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_EXPECT(ctx, s > 0 && x->ne[1] % s == 0 && x->ne[3] == 1, "%lld slots of %s cannot be summed to %lld",
                LL(x->ne[1]), firn_shape_text(x), LL(s));
    return firn_shape_set(ctx, y, FIRN_F32, 3, x->ne[0], s, x->ne[2]);
}

FIRN_WIDE static void sum_slots_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *x = y->src[X];
    const int64_t n = y->ne[0], shared = y->ne[1];

    for (int64_t r = begin; r < end; r++) {
        const int64_t s0 = r % shared, t = r / shared;
        float *restrict out = (float *)call->dst + r * n;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t s = s0; s < x->ne[1]; s += shared) {
            const float *restrict in = (const float *)firn_at(x, call->src[X], 0, s, t, 0);
            for (int64_t i = 0; i < n; i++)
                out[i] += in[i];
        }
    }
}

static firn_tensor *sum_slots_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_repeat(g, dy, y->src[of]->ne);
}

static firn_cost sum_slots_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[X]);

    return (firn_cost){n, n * sizeof(float), (double)firn_n_bytes(y)};
}

const firn_op firn_op_sum_slots = {
    .name = "SUM_SLOTS",
    .n_src = 1,
    .shape = sum_slots_shape,
    .gradient = sum_slots_gradient,
    .cost = sum_slots_cost,
    .reference = sum_slots_reference,
};

firn_tensor *firn_sum_slots(firn_graph *g, firn_tensor *x, int64_t s)
{
    firn_params p = {{0}};

    firn_param_put(&p, 0, s);
    return firn_node(g, &firn_op_sum_slots, &x, 1, &p);
}

/* ---- MIX_SLOTS ---- */

static firn_status mix_slots_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[X], *w = y->src[W];

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_type(ctx, w, FIRN_F32, "w"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_EXPECT(ctx, w->ne[0] == x->ne[1] && w->ne[1] == x->ne[2] && w->ne[2] * w->ne[3] == 1 && x->ne[3] == 1,
                "weights of %s do not fit slots of %s", firn_shape_text(w), firn_shape_text(x));
    return firn_shape_set(ctx, y, FIRN_F32, 2, x->ne[0], x->ne[2]);
}

FIRN_WIDE static void mix_slots_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *x = y->src[X], *w = y->src[W];
    const int64_t n = y->ne[0];

    for (int64_t t = begin; t < end; t++) {
        float *restrict out = (float *)call->dst + t * n;
        memset(out, 0, (size_t)n * sizeof *out);
        for (int64_t s = 0; s < x->ne[1]; s++) {
            const float *restrict in = (const float *)firn_at(x, call->src[X], 0, s, t, 0);
            const float weight = *(const float *)firn_at(w, call->src[W], s, t, 0, 0);
            for (int64_t i = 0; i < n; i++)
                out[i] += weight * in[i];
        }
    }
}

static firn_cost mix_slots_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[X]);

    return (firn_cost){2 * n, n * sizeof(float), (double)firn_n_bytes(y)};
}

enum { BW, BX = 0, BDY = 1 };

static firn_status back_x_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *w = y->src[BW], *dy = y->src[BDY];

    FIRN_TRY(firn_expect_type(ctx, w, FIRN_F32, "w"));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_TRY(firn_expect_rows(ctx, dy, "dy"));
    FIRN_EXPECT(ctx, w->ne[1] == dy->ne[1] && w->ne[2] * w->ne[3] == 1 && dy->ne[2] * dy->ne[3] == 1,
                "weights of %s do not fit dy of %s", firn_shape_text(w), firn_shape_text(dy));
    return firn_shape_set(ctx, y, FIRN_F32, 3, dy->ne[0], w->ne[0], dy->ne[1]);
}

FIRN_WIDE static void back_x_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *w = y->src[BW], *dy = y->src[BDY];
    const int64_t n = y->ne[0];

    for (int64_t r = begin; r < end; r++) {
        const int64_t s = r % y->ne[1], t = r / y->ne[1];
        const float weight = *(const float *)firn_at(w, call->src[BW], s, t, 0, 0);
        const float *restrict in = (const float *)firn_at(dy, call->src[BDY], 0, t, 0, 0);
        float *restrict out = (float *)call->dst + r * n;
        for (int64_t i = 0; i < n; i++)
            out[i] = weight * in[i];
    }
}

const firn_op firn_op_mix_slots_back_x = {
    .name = "MIX_SLOTS_BACK_X",
    .n_src = 2,
    .shape = back_x_shape,
    .no_gradient = "a gradient is not differentiated again",
    .reference = back_x_reference,
};

static firn_status back_w_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *x = y->src[BX], *dy = y->src[BDY];

    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "dy"));
    FIRN_TRY(firn_expect_rows(ctx, x, "x"));
    FIRN_TRY(firn_expect_rows(ctx, dy, "dy"));
    FIRN_EXPECT(ctx, x->ne[0] == dy->ne[0] && x->ne[2] == dy->ne[1] && x->ne[3] == 1 && dy->ne[2] * dy->ne[3] == 1,
                "slots of %s do not fit dy of %s", firn_shape_text(x), firn_shape_text(dy));
    return firn_shape_set(ctx, y, FIRN_F32, 2, x->ne[1], x->ne[2]);
}

FIRN_WIDE static void back_w_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *x = y->src[BX], *dy = y->src[BDY];

    for (int64_t t = begin; t < end; t++)
        for (int64_t s = 0; s < y->ne[0]; s++)
            ((float *)call->dst)[s + t * y->ne[0]] =
                (float)firn_dot((const float *)firn_at(x, call->src[BX], 0, s, t, 0),
                                (const float *)firn_at(dy, call->src[BDY], 0, t, 0, 0), x->ne[0]);
}

static firn_cost back_w_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[BX]);

    return (firn_cost){2 * n, n * sizeof(float), (double)firn_n_bytes(y)};
}

const firn_op firn_op_mix_slots_back_w = {
    .name = "MIX_SLOTS_BACK_W",
    .n_src = 2,
    .shape = back_w_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = back_w_cost,
    .reference = back_w_reference,
};

static firn_tensor *mix_slots_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    dy = firn_with_dense_rows(g, dy);
    if (of == X)
        return firn_node(g, &firn_op_mix_slots_back_x, (firn_tensor *[]){y->src[W], dy}, 2, NULL);
    return firn_node(g, &firn_op_mix_slots_back_w, (firn_tensor *[]){y->src[X], dy}, 2, NULL);
}

const firn_op firn_op_mix_slots = {
    .name = "MIX_SLOTS",
    .n_src = 2,
    .shape = mix_slots_shape,
    .gradient = mix_slots_gradient,
    .cost = mix_slots_cost,
    .reference = mix_slots_reference,
};

firn_tensor *firn_mix_slots(firn_graph *g, firn_tensor *x, firn_tensor *w)
{
    return firn_node(g, &firn_op_mix_slots, (firn_tensor *[]){x, w}, 2, NULL);
}

/* ---- ADD_ID ---- */

enum { A, B, IDS };

static firn_status add_id_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A], *b = y->src[B], *ids = y->src[IDS];

    FIRN_TRY(firn_expect_type(ctx, a, FIRN_F32, "a"));
    FIRN_TRY(firn_expect_type(ctx, b, FIRN_F32, "b"));
    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_TRY(firn_expect_rows(ctx, a, "a"));
    FIRN_TRY(firn_expect_rows(ctx, b, "b"));
    FIRN_EXPECT(ctx, a->ne[0] == b->ne[0] && b->ne[2] * b->ne[3] == 1, "biases of %s do not fit rows of %s",
                firn_shape_text(b), firn_shape_text(a));
    FIRN_EXPECT(ctx, a->ne[1] == ids->ne[0] && a->ne[2] == ids->ne[1] && a->ne[3] == 1 && ids->ne[2] * ids->ne[3] == 1,
                "ids of %s do not fit slots of %s", firn_shape_text(ids), firn_shape_text(a));
    return firn_shape_like(ctx, y, FIRN_F32, a->ne);
}

static void add_id_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A], *b = y->src[B];
    const int64_t n = y->ne[0];

    for (int64_t r = begin; r < end; r++) {
        const int64_t s = r % y->ne[1], t = r / y->ne[1];
        const int32_t id = *(const int32_t *)firn_at(y->src[IDS], call->src[IDS], s, t, 0, 0);
        float *out = (float *)call->dst + r * n;
        const float *in = (const float *)firn_at(a, call->src[A], 0, s, t, 0);
        if (id < 0 || id >= b->ne[1]) {
            firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, y, r, id, b->ne[1]);
            memset(out, 0, (size_t)n * sizeof *out);
            continue;
        }
        const float *bias = (const float *)firn_at(b, call->src[B], 0, id, 0, 0);
        for (int64_t i = 0; i < n; i++)
            out[i] = in[i] + bias[i];
    }
}

/* db is GET_ROWS_BACK of the rows of dy, all slots in one line. */
static firn_tensor *add_id_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of != B)
        return of == A ? dy : NULL;
    const int64_t slots = y->ne[1] * y->ne[2], ids_ne[] = {slots}, dy_ne[] = {y->ne[0], slots};
    firn_tensor *ids = y->src[IDS];
    if (!firn_is_contiguous(ids))
        ids = firn_cont(g, ids);
    if (!firn_is_contiguous(dy))
        dy = firn_cont(g, dy);
    return firn_get_rows_back(g, firn_reshape(g, dy, 2, dy_ne), firn_reshape(g, ids, 1, ids_ne), y->src[B]->ne[1]);
}

const firn_op firn_op_add_id = {
    .name = "ADD_ID",
    .n_src = 3,
    .in_place = 1u << A,
    .shape = add_id_shape,
    .gradient = add_id_gradient,
    .reference = add_id_reference,
};

firn_tensor *firn_add_id(firn_graph *g, firn_tensor *a, firn_tensor *b, firn_tensor *ids)
{
    return firn_node(g, &firn_op_add_id, (firn_tensor *[]){a, b, ids}, 3, NULL);
}
