/* What carries a state along the tokens: kernels/conv.metal, kernels/scan.metal. */
#include "gpu/plan.h"

#include "op/util.h"

#include <stddef.h>

enum { SQ, SK, SV, SG, SBETA, SFIRST, SSTATE, SDO = 6 /* in the gradients */ };
enum { CONV_FIRST = 2 };
enum { CHUNK = 64 }; /* kernels/scan.metal has the same */
enum { SIMDS = 4, THREADS = 32 * SIMDS, FEW_KEYS = 128 };

/* Reports a document that begins behind its token. */
static firn_status check_first(firn_gpu_plan *plan, int of)
{
    return firn_gpu_check_by(plan, FIRN_GPU_check_first, of, 0, 0);
}

firn_status firn_gpu_plan_conv_causal(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    firn_gpu_node_args a;

    FIRN_TRY(check_first(plan, CONV_FIRST));
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_elements(y)));
    firn_gpu_by_element(
        firn_gpu_add_node(plan, y->op == &firn_op_conv_causal ? FIRN_GPU_conv_causal : FIRN_GPU_conv_causal_back, 0,
                          &a),
        a.n);
    return FIRN_OK;
}

/* ---- GATED_DELTA, SSM_SCAN ---- */

static firn_status describe(firn_gpu_plan *plan, bool delta, const firn_tensor *state, firn_gpu_scan_args *a)
{
    const firn_tensor *y = plan->node, *q = y->src[SQ], *k = y->src[SK], *v = y->src[SV], *g = y->src[SG];

    for (int s = SQ; s <= SFIRST; s++) {
        firn_gpu_view view;
        FIRN_TRY(firn_gpu_view_of(plan->ctx, y->src[s], &view));
    }
    if (v->ne[1] == 0 || v->ne[0] * v->ne[1] > INT32_MAX / THREADS || q->ne[0] * q->ne[1] * q->ne[2] > INT32_MAX)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED,
                         "its kernels have at least one head, 2^24 values and 2^31 keys, not q of %s and v of %s",
                         firn_shape_text(q), firn_shape_text(v));
    *a = (firn_gpu_scan_args){
        .q1 = q->nb[1],
        .q2 = q->nb[2],
        .k1 = k->nb[1],
        .k2 = k->nb[2],
        .v1 = v->nb[1],
        .v2 = v->nb[2],
        .n_keys = (int32_t)q->ne[0],
        .n_values = (int32_t)v->ne[0],
        .n_head = (int32_t)v->ne[1],
        .n_group = (int32_t)q->ne[1],
        .n = (int32_t)q->ne[2],
        .tiled = y->params.i[0],
        .channels = g->ne[0] > 1,
        .delta = delta,
        .has_state = state != NULL,
    };
    return check_first(plan, SFIRST);
}

/* n simdgroups; long ones are cut. */
static void add_simds(firn_gpu_plan *plan, firn_gpu_kernel kernel, const firn_gpu_scan_args *a, int64_t n,
                      const int *refs, double flops)
{
    firn_gpu_dispatch *d = firn_gpu_add(plan, kernel, 0, a, sizeof *a, refs);

    firn_gpu_grid(d, firn_gpu_tiles(n, SIMDS), 1, 1, THREADS);
    d->cut = offsetof(firn_gpu_scan_args, cut);
    d->flops = flops;
}

firn_status firn_gpu_plan_scan(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node, *state = y->src[SSTATE];
    firn_gpu_scan_args a;

    FIRN_TRY(describe(plan, y->op == &firn_op_gated_delta, state, &a));
    add_simds(
        plan, a.n_keys <= FEW_KEYS ? FIRN_GPU_scan_128 : FIRN_GPU_scan_1024, &a, (int64_t)a.n_head * a.n_values,
        (const int[]){FIRN_GPU_DST, SQ, SK, SV, SG, SBETA, SFIRST, state ? SSTATE : FIRN_GPU_NONE, FIRN_GPU_NONE, -1},
        firn_op_cost(y).flops);
    return FIRN_OK;
}

firn_status firn_gpu_plan_scan_back(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    const double flops = firn_op_cost(y).flops / 3;
    firn_gpu_scan_args a;

    FIRN_TRY(describe(plan, y->op == &firn_op_gated_delta_back, NULL, &a));
    const int64_t chunks = firn_gpu_tiles(a.n, CHUNK), columns = (int64_t)a.n_head * a.n_values;
    const int64_t states = chunks * columns * a.n_keys, values = columns * a.n, places = (int64_t)a.n_head * a.n;
    const bool few = a.n_keys <= FEW_KEYS;
    a.dk = firn_n_elements(y->src[SQ]);
    a.dv = a.dk + firn_n_elements(y->src[SK]);
    a.dg = a.dv + values;
    a.dbeta = a.dg + firn_n_elements(y->src[SG]);
    a.behind = states;
    a.error = a.behind + states;
    a.along = a.error + values;
    a.parts = a.along + values;
    a.remembers = true;
    firn_gpu_take_work(plan, (size_t)(a.parts + (a.channels ? 0 : places * a.n_keys)) * sizeof(float));
    add_simds(plan, few ? FIRN_GPU_scan_128 : FIRN_GPU_scan_1024, &a, columns,
              (const int[]){FIRN_GPU_NONE, SQ, SK, SV, SG, SBETA, SFIRST, FIRN_GPU_NONE, FIRN_GPU_WORK, -1}, flops);
    add_simds(plan, few ? FIRN_GPU_scan_adjoint_128 : FIRN_GPU_scan_adjoint_1024, &a, columns,
              (const int[]){FIRN_GPU_DST, SQ, SK, SG, SBETA, SFIRST, SDO, FIRN_GPU_WORK, -1}, flops);
    add_simds(plan, FIRN_GPU_scan_rows, &a, (int64_t)a.n_keys * a.n_group * chunks,
              (const int[]){FIRN_GPU_DST, SQ, SK, SG, SBETA, SFIRST, SDO, FIRN_GPU_WORK, -1}, 2 * flops);
    firn_gpu_dispatch *d =
        firn_gpu_add(plan, FIRN_GPU_scan_sums, 0, &a, sizeof a, (const int[]){FIRN_GPU_DST, FIRN_GPU_WORK, -1});
    firn_gpu_grid(d, firn_gpu_tiles(places, SIMDS), 1, 1, THREADS);
    return FIRN_OK;
}
