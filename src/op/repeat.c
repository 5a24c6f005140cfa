/* REPEAT(a) -> y of shape ne, a multiple of a's in each dimension: y[i] = a[i mod a.ne].
 * REPEAT_BACK(dy) -> dx of shape ne, of which dy's is a multiple: the sum over the repetitions, in order, in double.
 * CONCAT(a, b) -> a and then b along an axis (params.i[0]); the other dimensions agree.
 * FILL() -> a constant of shape ne. params: ne [0, 8), value f[8].
 * ADD_INTO(slot, a): slot += a, in place. Never differentiated: it is what adds gradients up. */
#include "op/mathf.h"
#include "op/util.h"

enum { A, B };
enum { P_NE = 0, P_VALUE = 8 };

static firn_status expect_multiple(firn_context *ctx, const int64_t large[FIRN_MAX_DIMS],
                                   const int64_t small[FIRN_MAX_DIMS])
{
    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        FIRN_EXPECT(ctx, small[i] > 0 ? large[i] % small[i] == 0 : large[i] == 0,
                    "%lld elements along dimension %d are no multiple of %lld", LL(large[i]), i, LL(small[i]));
    return FIRN_OK;
}

/* ---- REPEAT ---- */

static firn_status repeat_shape(firn_context *ctx, firn_tensor *y)
{
    int64_t ne[FIRN_MAX_DIMS];

    firn_param_get_shape(&y->params, P_NE, ne);
    FIRN_TRY(firn_expect_type(ctx, y->src[A], FIRN_F32, "a"));
    FIRN_TRY(firn_shape_like(ctx, y, FIRN_F32, ne));
    return expect_multiple(ctx, ne, y->src[A]->ne);
}

static void repeat_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[A];
    const int64_t n = y->ne[0], na = a->ne[0];
    int64_t i1, i2, i3;

    for (int64_t r = begin; r < end; r++) {
        firn_row_index(y, r, &i1, &i2, &i3);
        float *out = (float *)firn_row_at(y, call->dst, r);
        const char *in = firn_at(a, call->src[A], 0, i1 % a->ne[1], i2 % a->ne[2], i3 % a->ne[3]);
        for (int64_t i = 0; i < n; i += na)
            for (int64_t j = 0; j < na; j++)
                out[i + j] = *(const float *)(in + j * a->nb[0]);
    }
}

static firn_tensor *repeat_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_reduce_to(g, dy, y->src[of]->ne);
}

const firn_op firn_op_repeat = {
    .name = "REPEAT",
    .n_src = 1,
    .shape = repeat_shape,
    .gradient = repeat_gradient,
    .reference = repeat_reference,
};

static firn_tensor *with_shape(firn_graph *g, const firn_op *op, firn_tensor *a, const int64_t ne[FIRN_MAX_DIMS])
{
    firn_params p = {{0}};

    firn_param_put_shape(&p, P_NE, ne);
    return firn_node(g, op, &a, 1, &p);
}

firn_tensor *firn_repeat(firn_graph *g, firn_tensor *a, const int64_t ne[FIRN_MAX_DIMS])
{
    return with_shape(g, &firn_op_repeat, a, ne);
}

/* ---- REPEAT_BACK ---- */

static firn_status repeat_back_shape(firn_context *ctx, firn_tensor *y)
{
    int64_t ne[FIRN_MAX_DIMS];

    firn_param_get_shape(&y->params, P_NE, ne);
    FIRN_TRY(firn_expect_type(ctx, y->src[A], FIRN_F32, "dy"));
    FIRN_TRY(firn_shape_like(ctx, y, FIRN_F32, ne));
    return expect_multiple(ctx, y->src[A]->ne, ne);
}

static size_t repeat_back_work(const firn_tensor *y)
{
    return (size_t)y->ne[0] * sizeof(double);
}

FIRN_WIDE static void repeat_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *dy = y->src[A];
    const int64_t n = y->ne[0], stride = dy->nb[0];
    double *restrict sum = call->work;
    int64_t i1, i2, i3;

    for (int64_t r = begin; r < end; r++) {
        firn_row_index(y, r, &i1, &i2, &i3);
        memset(sum, 0, (size_t)n * sizeof *sum);
        for (int64_t j3 = i3; j3 < dy->ne[3]; j3 += y->ne[3])
            for (int64_t j2 = i2; j2 < dy->ne[2]; j2 += y->ne[2])
                for (int64_t j1 = i1; j1 < dy->ne[1]; j1 += y->ne[1]) {
                    const char *in = firn_at(dy, call->src[A], 0, j1, j2, j3);
                    for (int64_t i = 0; i < dy->ne[0]; i += n, in += n * stride) {
                        if (stride == sizeof(float)) {
                            const float *restrict row = (const float *)in;
                            for (int64_t j = 0; j < n; j++)
                                sum[j] += (double)row[j];
                        } else {
                            for (int64_t j = 0; j < n; j++)
                                sum[j] += (double)*(const float *)(in + j * stride);
                        }
                    }
                }
        float *out = (float *)firn_row_at(y, call->dst, r);
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)sum[i];
    }
}

static firn_cost repeat_back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[A]);

    return (firn_cost){n, n * sizeof(float), (double)firn_n_bytes(y)};
}

static firn_tensor *repeat_back_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return firn_repeat(g, dy, y->src[of]->ne);
}

const firn_op firn_op_repeat_back = {
    .name = "REPEAT_BACK",
    .n_src = 1,
    .shape = repeat_back_shape,
    .gradient = repeat_back_gradient,
    .cost = repeat_back_cost,
    .work = repeat_back_work,
    .reference = repeat_back_reference,
};

firn_tensor *firn_repeat_back(firn_graph *g, firn_tensor *dy, const int64_t ne[FIRN_MAX_DIMS])
{
    return with_shape(g, &firn_op_repeat_back, dy, ne);
}

/* ---- CONCAT ---- */

static firn_status concat_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A], *b = y->src[B];
    const int axis = y->params.i[0];
    int64_t ne[FIRN_MAX_DIMS];

    FIRN_EXPECT(ctx, axis >= 0 && axis < FIRN_MAX_DIMS, "there is no axis %d", axis);
    FIRN_TRY(firn_expect_type(ctx, a, FIRN_F32, "a"));
    FIRN_TRY(firn_expect_type(ctx, b, FIRN_F32, "b"));
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        FIRN_EXPECT(ctx, i == axis || a->ne[i] == b->ne[i], "%s and %s differ along dimension %d", firn_shape_text(a),
                    firn_shape_text(b), i);
        ne[i] = i == axis ? a->ne[i] + b->ne[i] : a->ne[i];
    }
    return firn_shape_like(ctx, y, FIRN_F32, ne);
}

static void concat_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int axis = y->params.i[0];
    const int64_t *split = y->src[A]->ne;

    for (int64_t r = begin; r < end; r++) {
        int64_t at[FIRN_MAX_DIMS] = {0};
        float *out = (float *)firn_row_at(y, call->dst, r);
        firn_row_index(y, r, &at[1], &at[2], &at[3]);
        int s = A;
        if (axis > 0 && at[axis] >= split[axis]) {
            s = B;
            at[axis] -= split[axis];
        }
        for (const int last = axis == 0 ? B : s; s <= last; s++) {
            const firn_tensor *x = y->src[s];
            const char *in = firn_at(x, call->src[s], 0, at[1], at[2], at[3]);
            for (int64_t i = 0; i < x->ne[0]; i++)
                *out++ = *(const float *)(in + i * x->nb[0]);
        }
    }
}

/* Each half's gradient is a view of dy. */
static firn_tensor *concat_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    const int axis = y->params.i[0];

    dy = firn_with_dense_rows(g, dy);
    if (!dy)
        return NULL;
    return firn_view(g, dy, FIRN_MAX_DIMS, y->src[of]->ne, dy->nb, of == A ? 0 : y->src[A]->ne[axis] * dy->nb[axis]);
}

const firn_op firn_op_concat = {
    .name = "CONCAT",
    .n_src = 2,
    .shape = concat_shape,
    .gradient = concat_gradient,
    .reference = concat_reference,
};

firn_tensor *firn_concat(firn_graph *g, firn_tensor *a, firn_tensor *b, int axis)
{
    return firn_node(g, &firn_op_concat, (firn_tensor *[]){a, b}, 2, &(firn_params){.i = {axis}});
}

/* ---- FILL ---- */

static firn_status fill_shape(firn_context *ctx, firn_tensor *y)
{
    int64_t ne[FIRN_MAX_DIMS];

    firn_param_get_shape(&y->params, P_NE, ne);
    return firn_shape_like(ctx, y, FIRN_F32, ne);
}

static void fill_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    float *out = (float *)call->dst;

    for (int64_t i = begin * y->ne[0]; i < end * y->ne[0]; i++)
        out[i] = y->params.f[P_VALUE];
}

const firn_op firn_op_fill = {
    .name = "FILL",
    .shape = fill_shape,
    .no_gradient = "a constant depends on nothing",
    .reference = fill_reference,
};

firn_tensor *firn_fill(firn_graph *g, const int64_t ne[FIRN_MAX_DIMS], float value)
{
    firn_params p = {{0}};

    firn_param_put_shape(&p, P_NE, ne);
    p.f[P_VALUE] = value;
    return firn_node(g, &firn_op_fill, NULL, 0, &p);
}

/* ---- ADD_INTO ---- */

static firn_status add_into_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *slot = y->src[A];

    FIRN_TRY(firn_expect_type(ctx, slot, FIRN_F32, "the sum"));
    FIRN_TRY(firn_expect_like(ctx, y->src[B], slot, "what is added"));
    FIRN_TRY(firn_shape_like(ctx, y, FIRN_F32, slot->ne));
    memcpy(y->nb, slot->nb, sizeof y->nb);
    return FIRN_OK;
}

FIRN_WIDE static void add_into_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *a = y->src[B];
    const bool flat = firn_is_contiguous(y) && firn_is_contiguous(a);
    const int64_t step = flat ? end - begin : 1, n = step * y->ne[0];

    for (int64_t r = begin; r < end; r += step) {
        char *out = firn_row_at(y, call->dst, r);
        const char *in = firn_row_at(a, call->src[B], r);
        if (flat || (y->nb[0] == sizeof(float) && a->nb[0] == sizeof(float))) {
            FIRN_IN_PLACE
            for (int64_t i = 0; i < n; i++)
                ((float *)out)[i] += ((const float *)in)[i];
        } else {
            for (int64_t i = 0; i < n; i++)
                *(float *)(out + i * y->nb[0]) += *(const float *)(in + i * a->nb[0]);
        }
    }
}

const firn_op firn_op_add_into = {
    .name = "ADD_INTO",
    .n_src = 2,
    .into = true,
    .shape = add_into_shape,
    .no_gradient = "a running sum outlives the graph",
    .reference = add_into_reference,
};

firn_tensor *firn_add_into(firn_graph *g, firn_tensor *slot, firn_tensor *a)
{
    return firn_node(g, &firn_op_add_into, (firn_tensor *[]){slot, a}, 2, NULL);
}
