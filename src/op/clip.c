/* CLIP_NORM(state, x): the norm of x, and the factor that brings it down to a limit. Written into state, from element
 * `at`:
 *
 *     factor    min(1, clip / norm), 1 where clip is 0; NaN where the norm is not finite: OPT_STEP_ADAMW and _SGD
 *               change nothing then
 *     norm      sqrt(sum x^2), its float, and behind it the rest, so that both add up to it in double
 *
 *   state  F32 [n], contiguous, a slot; the result is its new contents
 *   x      F32, contiguous
 *
 * params: at [0], clip [1]. The sum is taken in double in an order that depends on the number of elements only. No
 * gradient: a step ends the graph. */
#include "op/clip.h"

#include "op/mathf.h"
#include "op/util.h"

enum { STATE, X };
enum { PART = 16384, LANES = 8 };

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *state = y->src[STATE], *x = y->src[X];
    const int at = y->params.i[0];
    const float clip = y->params.f[1];

    FIRN_TRY(firn_expect_type(ctx, state, FIRN_F32, "the state"));
    FIRN_TRY(firn_expect_type(ctx, x, FIRN_F32, "x"));
    FIRN_EXPECT(ctx, firn_is_contiguous(state) && firn_is_contiguous(x), "the state and x must be contiguous");
    FIRN_EXPECT(ctx, at >= 0 && at <= firn_n_elements(state) - FIRN_CLIP_RESULTS,
                "factor and norm at element %d do not lie in a state of %s", at, firn_shape_text(state));
    FIRN_EXPECT(ctx, isfinite(clip) && clip >= 0, "the norm is clipped to a number of at least 0, not %g",
                (double)clip);
    return firn_shape_like(ctx, y, FIRN_F32, state->ne);
}

static int64_t parts(const firn_tensor *y)
{
    return (firn_n_elements(y->src[X]) + PART - 1) / PART;
}

static size_t work(const firn_tensor *y)
{
    return (size_t)parts(y) * sizeof(double);
}

FIRN_WIDE static void gather(const firn_call *call, int64_t begin, int64_t end)
{
    const float *x = call->src[X];
    const int64_t n = firn_n_elements(call->node->src[X]);

    for (int64_t part = begin; part < end; part++) {
        const int64_t first = part * PART, last = firn_min_i64(first + PART, n);
        double sum[LANES] = {0};
        int64_t i = first;
        for (; i + LANES <= last; i += LANES)
            for (int l = 0; l < LANES; l++)
                sum[l] += (double)x[i + l] * (double)x[i + l];
        for (int l = 0; i < last; i++, l++)
            sum[l] += (double)x[i] * (double)x[i];
        ((double *)call->work)[part] =
            ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    }
}

static void finish(const firn_call *call, int64_t begin, int64_t end)
{
    float *out = (float *)call->dst + call->node->params.i[0];
    const double clip = (double)call->node->params.f[1];
    double sum = 0;

    if (begin >= end)
        return;
    for (int64_t part = 0; part < parts(call->node); part++)
        sum += ((const double *)call->work)[part];
    const double norm = sqrt(sum);
    out[FIRN_CLIP_FACTOR] = !isfinite(norm) ? NAN : clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
    out[FIRN_CLIP_NORM] = (float)norm;
    out[FIRN_CLIP_NORM_LOW] = isfinite((float)norm) ? (float)(norm - (double)(float)norm) : 0;
}

static void reference(const firn_call *call, int64_t begin, int64_t end)
{
    gather(call, 0, parts(call->node));
    finish(call, begin, end);
}

static int64_t items(const firn_tensor *y)
{
    (void)y;
    return 1;
}

static firn_cost cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[X]);

    return (firn_cost){2 * n, n * sizeof(float), FIRN_CLIP_RESULTS * sizeof(float)};
}

const firn_op firn_op_clip_norm = {
    .name = "CLIP_NORM",
    .n_src = 2,
    .into = true,
    .shape = shape,
    .no_gradient = "a step ends the graph",
    .cost = cost,
    .items = items,
    .work = work,
    .reference = reference,
    .parts = parts,
    .gather = gather,
    .finish = finish,
};

firn_tensor *firn_clip_norm(firn_graph *g, firn_tensor *state, firn_tensor *x, int at, float clip)
{
    firn_params p = {.i = {at}};

    p.f[1] = clip;
    return firn_node(g, &firn_op_clip_norm, (firn_tensor *[]){state, x}, 2, &p);
}
