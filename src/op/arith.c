/* ADD SUB MUL DIV (a, b) -> y: y = a op b, with b repeated over a.
 *
 *   a  any shape, F32, any strides
 *   b  F32, any strides, a.ne[i] a multiple of b.ne[i]
 *   y  a's shape
 *
 * da = dy (times 1, 1, b, 1/b); db is the sum over what was repeated of dy (times 1, -1, a, -y/b). */
#include "op/mathf.h"
#include "op/util.h"

enum { A, B };

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *a = y->src[A], *b = y->src[B];

    FIRN_TRY(firn_expect_type(ctx, a, FIRN_F32, "a"));
    FIRN_TRY(firn_expect_type(ctx, b, FIRN_F32, "b"));
    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        FIRN_EXPECT(ctx, b->ne[i] > 0 ? a->ne[i] % b->ne[i] == 0 : a->ne[i] == 0,
                    "b of %s cannot be repeated over a of %s", firn_shape_text(b), firn_shape_text(a));
    return firn_shape_like(ctx, y, FIRN_F32, a->ne);
}

/* The row of b that meets row r of a. */
static const char *row_of_b(const firn_tensor *y, void *first, int64_t r)
{
    const firn_tensor *b = y->src[B];
    int64_t i1, i2, i3;

    firn_row_index(y, r, &i1, &i2, &i3);
    return firn_at(b, first, 0, i1 % b->ne[1], i2 % b->ne[2], i3 % b->ne[3]);
}

/* One operation: rows side by side (all of them as one where everything is contiguous), a row and one value, and
 * anything else. */
#define ARITHMETIC(name, OPERATOR)                                                                                     \
    FIRN_WIDE static void name##_reference(const firn_call *call, int64_t begin, int64_t end)                          \
    {                                                                                                                  \
        const firn_tensor *y = call->node, *a = y->src[A], *b = y->src[B];                                             \
        const bool flat = firn_is_contiguous(a) && firn_is_contiguous(b) && firn_same_shape(a, b);                     \
        const int64_t step = flat ? end - begin : 1, n = step * y->ne[0], nb = flat ? n : b->ne[0];                    \
        const int64_t sa = flat ? y->nb[0] : a->nb[0], sb = flat ? y->nb[0] : b->nb[0];                                \
                                                                                                                       \
        for (int64_t r = begin; r < end; r += step) {                                                                  \
            float *out = (float *)firn_row_at(y, call->dst, r);                                                        \
            const char *pa = firn_row_at(a, call->src[A], r), *pb = row_of_b(y, call->src[B], r);                      \
            const float *fa = (const float *)pa, *fb = (const float *)pb;                                              \
            if (sa == sizeof(float) && sb == sizeof(float) && nb == n) {                                               \
                FIRN_IN_PLACE                                                                                          \
                for (int64_t i = 0; i < n; i++)                                                                        \
                    out[i] = fa[i] OPERATOR fb[i];                                                                     \
            } else if (sa == sizeof(float) && nb == 1) {                                                               \
                const float v = *fb;                                                                                   \
                FIRN_IN_PLACE                                                                                          \
                for (int64_t i = 0; i < n; i++)                                                                        \
                    out[i] = fa[i] OPERATOR v;                                                                         \
            } else {                                                                                                   \
                for (int64_t i = 0; i < n; i += nb)                                                                    \
                    for (int64_t j = 0; j < nb; j++)                                                                   \
                        out[i + j] = *(const float *)(pa + (i + j) * sa) OPERATOR * (const float *)(pb + j * sb);      \
            }                                                                                                          \
        }                                                                                                              \
    }

ARITHMETIC(add, +)
ARITHMETIC(sub, -)
ARITHMETIC(mul, *)
ARITHMETIC(div, /)

static firn_tensor *add_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return of == A ? dy : firn_reduce_to(g, dy, y->src[B]->ne);
}

static firn_tensor *sub_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return of == A ? dy : firn_scale(g, firn_reduce_to(g, dy, y->src[B]->ne), -1.0f);
}

static firn_tensor *mul_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of == A)
        return firn_mul(g, dy, y->src[B]);
    return firn_reduce_to(g, firn_mul(g, dy, y->src[A]), y->src[B]->ne);
}

static firn_tensor *div_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *b = y->src[B];

    if (of == A)
        return firn_div(g, dy, b);
    return firn_scale(g, firn_reduce_to(g, firn_div(g, firn_mul(g, dy, y), b), b->ne), -1.0f);
}

#define OPERATION(NAME, name_)                                                                                         \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 2,                                                                                                    \
        .in_place = 1u << A | 1u << B,                                                                                 \
        .shape = shape,                                                                                                \
        .gradient = name_##_gradient,                                                                                  \
        .reference = name_##_reference,                                                                                \
    };                                                                                                                 \
    firn_tensor *firn_##name_(firn_graph *g, firn_tensor *a, firn_tensor *b)                                           \
    {                                                                                                                  \
        return firn_node(g, &firn_op_##name_, (firn_tensor *[]){a, b}, 2, NULL);                                       \
    }

OPERATION("ADD", add)
OPERATION("SUB", sub)
OPERATION("MUL", mul)
OPERATION("DIV", div)
