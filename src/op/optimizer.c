/* OPT_STEP_ADAMW(p, grad, m, v, hyper): one step of AdamW (Loshchilov & Hutter 2019), in place.
 *
 *     g = scale grad;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *     p -= lr (m c1 / (sqrt(v c2) + eps) + decay p)
 *
 *   p, grad, m, v  one shape, F32, contiguous; p, m and v are slots and all three are written
 *   hyper          F32 [8]: lr, b1, b2, eps, decay, c1 = 1/(1-b1^t), c2 = 1/(1-b2^t), scale
 *
 * OPT_STEP_SGD(p, grad, hyper): p -= lr (scale grad + decay p); hyper F32 [>= 3]: lr, decay, scale.
 *
 * hyper may have more elements, which nobody reads. A scale that is NaN changes nothing: CLIP_NORM gives it where the
 * gradient is not finite.
 *
 * The result is p's new contents. No gradient: a step ends the graph. */
#include "op/mathf.h"
#include "op/util.h"

enum { P, GRAD, M, V, HYPER };
enum { SGD_HYPER = 2 };
enum { CHUNK = 4096 }; /* values per item */

static firn_status expect_values(firn_context *ctx, const firn_tensor *y, int s, const char *what)
{
    FIRN_TRY(firn_expect_like(ctx, y->src[s], y->src[P], what));
    FIRN_EXPECT(ctx, firn_is_contiguous(y->src[s]), "%s must be contiguous", what);
    return FIRN_OK;
}

static firn_status expect_step(firn_context *ctx, firn_tensor *y, const firn_tensor *hyper, int n)
{
    FIRN_TRY(expect_values(ctx, y, P, "p"));
    FIRN_TRY(expect_values(ctx, y, GRAD, "the gradient"));
    FIRN_TRY(firn_expect_type(ctx, hyper, FIRN_F32, "hyper"));
    FIRN_EXPECT(ctx, firn_is_contiguous(hyper) && firn_n_elements(hyper) >= n, "hyper must be [%d], not %s", n,
                firn_shape_text(hyper));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[P]->ne);
}

static firn_status adamw_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_values(ctx, y, M, "m"));
    FIRN_TRY(expect_values(ctx, y, V, "v"));
    return expect_step(ctx, y, y->src[HYPER], 8);
}

static firn_status sgd_shape(firn_context *ctx, firn_tensor *y)
{
    return expect_step(ctx, y, y->src[SGD_HYPER], 3);
}

static int64_t items(const firn_tensor *y)
{
    return (firn_n_elements(y) + CHUNK - 1) / CHUNK;
}

FIRN_WIDE static void adamw_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const int64_t last = firn_min_i64(end * CHUNK, firn_n_elements(call->node));
    float *restrict p = call->src[P], *restrict m = call->src[M], *restrict v = call->src[V];
    const float *restrict grad = call->src[GRAD], *h = call->src[HYPER];
    const float lr = h[0], b1 = h[1], b2 = h[2], eps = h[3], decay = h[4], c1 = h[5], c2 = h[6], scale = h[7];

    if (isnan(scale))
        return;
    for (int64_t i = begin * CHUNK; i < last; i++) {
        const float g = scale * grad[i];
        m[i] = b1 * m[i] + (1 - b1) * g;
        v[i] = b2 * v[i] + (1 - b2) * g * g;
        p[i] -= lr * (m[i] * c1 / (sqrtf(v[i] * c2) + eps) + decay * p[i]);
    }
}

static void sgd_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const int64_t last = firn_min_i64(end * CHUNK, firn_n_elements(call->node));
    float *restrict p = call->src[P];
    const float *restrict grad = call->src[GRAD], *h = call->src[SGD_HYPER];

    if (isnan(h[2]))
        return;
    for (int64_t i = begin * CHUNK; i < last; i++)
        p[i] -= h[0] * (h[2] * grad[i] + h[1] * p[i]);
}

static firn_cost adamw_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y);

    return (firn_cost){14 * n, 4 * n * sizeof(float), 3 * n * sizeof(float)};
}

const firn_op firn_op_opt_step_adamw = {
    .name = "OPT_STEP_ADAMW",
    .n_src = 5,
    .into = true,
    .shape = adamw_shape,
    .no_gradient = "a step ends the graph",
    .cost = adamw_cost,
    .items = items,
    .reference = adamw_reference,
};

const firn_op firn_op_opt_step_sgd = {
    .name = "OPT_STEP_SGD",
    .n_src = 3,
    .into = true,
    .shape = sgd_shape,
    .no_gradient = "a step ends the graph",
    .flops = 5,
    .items = items,
    .reference = sgd_reference,
};

firn_tensor *firn_opt_step_adamw(firn_graph *g, firn_tensor *p, firn_tensor *grad, firn_tensor *m, firn_tensor *v,
                                 firn_tensor *hyper)
{
    return firn_node(g, &firn_op_opt_step_adamw, (firn_tensor *[]){p, grad, m, v, hyper}, 5, NULL);
}

firn_tensor *firn_opt_step_sgd(firn_graph *g, firn_tensor *p, firn_tensor *grad, firn_tensor *hyper)
{
    return firn_node(g, &firn_op_opt_step_sgd, (firn_tensor *[]){p, grad, hyper}, 3, NULL);
}
