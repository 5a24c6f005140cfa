/* ROPE and ATTENTION on GPUs: kernels/rope.metal, kernels/attention.metal. */
#include "gpu/plan.h"

#include "op/util.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- rope ---- */

enum { X, POS, FACTORS };

static firn_gpu_pair pair_of(double v)
{
    const float hi = (float)v;

    return (firn_gpu_pair){hi, (float)(v - (double)hi)};
}

firn_status firn_gpu_plan_rope(firn_gpu_plan *plan)
{
    static const double pi = 3.14159265358979323846;
    const firn_tensor *y = plan->node;
    firn_gpu_rope_args a = {.direction = y->op == &firn_op_rope ? 1 : -1};
    firn_rope_params p;

    memcpy(&p, &y->params, sizeof p);
    const double log_base = log((double)p.freq_base), n = p.n_rot;
    const int64_t threads = (y->ne[0] - p.n_rot / 2) * y->ne[2];
    FIRN_TRY(firn_gpu_view_of(plan->ctx, y, &a.y));
    FIRN_TRY(firn_gpu_view_of(plan->ctx, y->src[X], &a.x));
    if (threads > INT32_MAX || p.n_rot >= 1 << 17)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "it turns 2^31 values at once, and not %s",
                         firn_shape_text(y));
    for (int k = 0; p.n_rot > 0 && k < 16; k++)
        a.powers[k] = pair_of(exp(-2 * ldexp(1, k) / n * log_base));
    a.turn = pair_of(1 / (2 * pi));
    a.circle = pair_of(2 * pi);
    a.scale = pair_of((double)p.freq_scale);
    double m = (double)p.attn_factor;
    if (p.ext_factor != 0) {
        const double low = floor(n * log(p.n_ctx_orig / (2 * pi * (double)p.beta_fast)) / (2 * log_base));
        const double high = ceil(n * log(p.n_ctx_orig / (2 * pi * (double)p.beta_slow)) / (2 * log_base));
        const double first = fmax(low, 0), last = fmin(high, n - 1);
        a.mix = pair_of((double)p.ext_factor);
        a.low = (float)first;
        a.span = pair_of(fmax(0.001, last - first));
        m *= 1 + 0.1 * log(1 / (double)p.freq_scale);
    }
    a.magnitude = (float)m;
    a.pos_token = y->src[POS]->nb[0];
    a.n_rot = p.n_rot;
    a.neox = p.neox;
    a.has_factors = y->src[FACTORS] != NULL;
    a.n = (uint32_t)threads;
    firn_gpu_by_element(firn_gpu_add(plan, FIRN_GPU_rope, 0, &a, sizeof a,
                                     (const int[]){FIRN_GPU_DST, X, POS, a.has_factors ? FACTORS : FIRN_GPU_NONE, -1}),
                        threads);
    return FIRN_OK;
}

/* ---- attention ---- */

enum { Q, K, V, RANGE, SINKS, BY = 4, BDY, BSINKS };
enum { MAX_HEAD = 640, SIMDS = 4, THREADS = 32 * SIMDS }; /* kernels/attention.metal: MAX_OWN columns of a lane */

static firn_status describe(firn_gpu_plan *plan, const firn_tensor *sinks, firn_gpu_attention_args *a)
{
    const firn_tensor *y = plan->node, *q = y->src[Q], *k = y->src[K], *v = y->src[V], *range = y->src[RANGE];

    if (q->ne[0] > MAX_HEAD || v->ne[0] > MAX_HEAD)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "its attention has heads of %d values at most, not %lld",
                         MAX_HEAD, LL(firn_max_i64(q->ne[0], v->ne[0])));
    if (q->ne[1] * q->ne[2] > INT32_MAX / 2 || k->ne[1] * k->ne[2] > INT32_MAX / 2)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "it attends to 2^30 rows at once, not %s and %s",
                         firn_shape_text(q), firn_shape_text(k));
    *a = (firn_gpu_attention_args){
        .q1 = q->nb[1],
        .q2 = q->nb[2],
        .k1 = k->nb[1],
        .k2 = k->nb[2],
        .v1 = v->nb[1],
        .v2 = v->nb[2],
        .range_value = range->nb[0],
        .range_token = range->nb[1],
        .hd = (int32_t)q->ne[0],
        .hv = (int32_t)v->ne[0],
        .n_head = (int32_t)q->ne[1],
        .n_group = (int32_t)k->ne[1],
        .n_q = (int32_t)q->ne[2],
        .n_kv = (int32_t)k->ne[2],
        .has_sinks = sinks != NULL,
        .scale = y->params.f[0],
        .cap = y->params.f[1],
    };
    return firn_gpu_check_ids(plan, RANGE, 0, k->ne[2] + 1);
}

/* A source that may be absent. */
static int ref_of(const firn_tensor *y, int s)
{
    return y->src[s] ? s : FIRN_GPU_NONE;
}

/* ---- on simdgroup matrices: kernels/attention_tiled.metal ---- */

enum { BLOCK = 8, STEP = 16 };

/* Which of the widths 64, 128, 192; -1: none. */
static int tiled_width(const firn_gpu_attention_args *a)
{
    const int widest = a->hd > a->hv ? a->hd : a->hv;

    return a->hd % 8 || a->hv % 8 || widest > 192 || a->n_q < BLOCK ? -1 : (widest - 1) / 64;
}

static firn_gpu_dispatch *add_tiled(firn_gpu_plan *plan, int kernel, firn_gpu_attention_args *a, int64_t tiles,
                                    const int *refs)
{
    firn_gpu_dispatch *d = firn_gpu_add(plan, (firn_gpu_kernel)kernel, 0, a, sizeof *a, refs);

    d->shared = sizeof(float) * (size_t)(STEP * (a->hd + a->hv) + SIMDS * (2 * BLOCK * STEP + 64)) +
                2 * SIMDS * sizeof(int32_t);
    firn_gpu_grid(d, tiles, 1, 1, THREADS);
    return d;
}

/* Blocks of 8 queries of all heads, four to a threadgroup; a.first becomes the first unit that is left. */
static firn_gpu_dispatch *add_queries(firn_gpu_plan *plan, int kernel, firn_gpu_attention_args *a, const int *refs)
{
    a->blocks = a->n_q / BLOCK;
    a->first = a->n_head * a->blocks * BLOCK;
    return add_tiled(plan, kernel, a, a->n_group * firn_gpu_tiles((int64_t)a->n_head / a->n_group * a->blocks, SIMDS),
                     refs);
}

static firn_gpu_dispatch *add_keys(firn_gpu_plan *plan, int kernel, firn_gpu_attention_args *a, const int *refs)
{
    a->blocks = a->n_kv / BLOCK;
    a->first = a->n_group * a->blocks * BLOCK;
    return add_tiled(plan, kernel, a, a->n_group * firn_gpu_tiles(a->blocks, SIMDS), refs);
}

/* ---- one simdgroup per row: kernels/attention.metal ---- */

static firn_gpu_dispatch *add_rows(firn_gpu_plan *plan, firn_gpu_kernel kernel, const firn_gpu_attention_args *a,
                                   int64_t n, const int *refs)
{
    firn_gpu_dispatch *d = firn_gpu_add(plan, kernel, 0, a, sizeof *a, refs);

    firn_gpu_grid(d, firn_gpu_tiles(n, SIMDS), 1, 1, THREADS);
    return d;
}

/* Long ones are cut. */
static void may_be_cut(firn_gpu_dispatch *d, double flops)
{
    d->cut = offsetof(firn_gpu_attention_args, cut);
    d->flops = flops;
}

firn_status firn_gpu_plan_attention(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    const int refs[] = {FIRN_GPU_DST, Q, K, V, RANGE, ref_of(y, SINKS), -1};
    const double flops = firn_op_cost(y).flops;
    firn_gpu_attention_args a;

    FIRN_TRY(describe(plan, y->src[SINKS], &a));
    const int64_t queries = (int64_t)a.n_head * a.n_q;
    const int width = tiled_width(&a);
    if (width >= 0)
        may_be_cut(add_queries(plan, FIRN_GPU_attention_tiled_64 + width, &a, refs), flops);
    if (a.first < queries)
        may_be_cut(add_rows(plan, FIRN_GPU_attention, &a, queries - a.first, refs),
                   flops * (double)(queries - a.first) / (double)queries);
    return FIRN_OK;
}

firn_status firn_gpu_plan_attention_back(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    const int refs[] = {FIRN_GPU_DST, Q, K, V, RANGE, BY, BDY, FIRN_GPU_WORK, -1};
    const double flops = firn_op_cost(y).flops;
    firn_gpu_attention_args a;
    firn_gpu_dispatch *d;

    FIRN_TRY(describe(plan, y->src[BSINKS], &a));
    const int64_t queries = (int64_t)a.n_head * a.n_q, keys = (int64_t)a.n_group * a.n_kv;
    const int width = tiled_width(&a);
    const size_t along = firn_gpu_take_work(plan, (size_t)queries * sizeof(float));
    if (queries > 0) {
        d = add_rows(plan, FIRN_GPU_attention_along, &a, queries, (const int[]){FIRN_GPU_WORK, BY, BDY, -1});
        d->refs[0].offset = along;
        if (width >= 0) {
            d = add_queries(plan, FIRN_GPU_attention_back_q_tiled_64 + width, &a, refs);
            d->refs[7].offset = along;
            may_be_cut(d, flops / 2);
        }
        if (a.first < queries) {
            d = add_rows(plan, FIRN_GPU_attention_back_q, &a, queries - a.first, refs);
            d->refs[7].offset = along;
            may_be_cut(d, flops / 2 * (double)(queries - a.first) / (double)queries);
        }
    }
    a.first = 0;
    if (width >= 0 && a.n_kv >= BLOCK) {
        d = add_keys(plan, FIRN_GPU_attention_back_kv_tiled_64 + width, &a, refs);
        d->refs[7].offset = along;
        may_be_cut(d, flops);
    }
    if (a.first < keys) {
        d = add_rows(plan, FIRN_GPU_attention_back_kv, &a, keys - a.first, refs);
        d->refs[7].offset = along;
        may_be_cut(d, flops * (double)(keys - a.first) / (double)keys);
    }
    if (y->src[BSINKS]) {
        d = firn_gpu_add(plan, FIRN_GPU_attention_back_sinks, 0, &a, sizeof a,
                         (const int[]){FIRN_GPU_DST, RANGE, BY, FIRN_GPU_WORK, BSINKS, -1});
        d->refs[3].offset = along;
        firn_gpu_grid(d, a.n_head, 1, 1, 128);
    }
    return FIRN_OK;
}
