/* Losses of the model and of the router on GPUs: kernels/losses.metal. */
#include "gpu/plan.h"

#include "op/util.h"

enum { LOGITS, TARGETS, MASK, BMASK }; /* CROSS_ENTROPY and its gradient, which has dy in MASK's place */
enum { PROBS, IDS, WEIGHTS };          /* ROUTER_BALANCE */
enum { BIDS, DL, BWEIGHTS };           /* ROUTER_BALANCE_BACK */
enum { ZWEIGHTS = 1 };                 /* ROUTER_Z */

/* What a source is called in a dispatch, present or not. */
static int ref_of(const firn_tensor *y, int s)
{
    return y->src[s] ? s : FIRN_GPU_NONE;
}

/* Reports targets that name nothing and count for something. */
static firn_status check_targets(firn_gpu_plan *plan, int mask)
{
    const firn_tensor *y = plan->node;
    firn_gpu_check_args a = {.node = plan->id,
                             .node_index = y->index,
                             .kind = FIRN_FAULT_ID_RANGE,
                             .low = y->params.i[0],
                             .limit = y->src[LOGITS]->ne[0],
                             .masked = y->src[mask] != NULL,
                             .mask_token = y->src[mask] ? y->src[mask]->nb[0] : 0};

    FIRN_TRY(firn_gpu_view_of(plan->ctx, y->src[TARGETS], &a.ids));
    firn_gpu_grid(firn_gpu_add(plan, FIRN_GPU_check_targets, 0, &a, sizeof a,
                               (const int[]){TARGETS, FIRN_GPU_FAULT, ref_of(y, mask), -1}),
                  1, 1, 1, 256);
    return FIRN_OK;
}

firn_status firn_gpu_plan_cross_entropy(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node, *logits = y->src[LOGITS];
    const bool back = y->op == &firn_op_cross_entropy_back;
    firn_gpu_node_args a;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, logits->ne[1]));
    FIRN_TRY(check_targets(plan, back ? BMASK : MASK));
    firn_gpu_grid(firn_gpu_add_node(plan, back ? FIRN_GPU_cross_entropy_back : FIRN_GPU_cross_entropy, 0, &a), a.n, 1,
                  1, firn_gpu_row_threads(logits->ne[0]));
    return FIRN_OK;
}

/* ---- the router ---- */

firn_status firn_gpu_plan_router_balance(firn_gpu_plan *plan)
{
    const firn_tensor *probs = plan->node->src[PROBS];
    firn_gpu_node_args a;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_check_ids(plan, IDS, 0, probs->ne[0]));
    firn_gpu_grid(firn_gpu_add_node(plan, FIRN_GPU_router_balance, 0, &a), 1, 1, 1, firn_gpu_row_threads(probs->ne[0]));
    return FIRN_OK;
}

firn_status firn_gpu_plan_router_balance_back(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    const size_t shares = firn_gpu_take_work(plan, (size_t)y->ne[0] * sizeof(firn_gpu_pair));
    firn_gpu_node_args a;
    firn_gpu_dispatch *d;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_elements(y)));
    FIRN_TRY(firn_gpu_check_ids(plan, BIDS, 0, y->ne[0]));
    d = firn_gpu_add(plan, FIRN_GPU_router_shares, 0, &a, sizeof a,
                     (const int[]){FIRN_GPU_WORK, BIDS, DL, ref_of(y, BWEIGHTS), -1});
    d->refs[0].offset = shares;
    firn_gpu_grid(d, 1, 1, 1, firn_gpu_row_threads(y->ne[0]));
    d = firn_gpu_add(plan, FIRN_GPU_router_balance_back, 0, &a, sizeof a,
                     (const int[]){FIRN_GPU_DST, FIRN_GPU_WORK, ref_of(y, BWEIGHTS), -1});
    d->refs[1].offset = shares;
    firn_gpu_by_element(d, a.n);
    return FIRN_OK;
}

firn_status firn_gpu_plan_router_z(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node, *logits = y->src[LOGITS];
    const size_t parts = firn_gpu_take_work(plan, (size_t)logits->ne[1] * sizeof(firn_gpu_pair));
    firn_gpu_node_args a;
    firn_gpu_dispatch *d;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    if (logits->ne[1] > 0) {
        d = firn_gpu_add(plan, FIRN_GPU_router_z_parts, 0, &a, sizeof a,
                         (const int[]){FIRN_GPU_WORK, LOGITS, ref_of(y, ZWEIGHTS), -1});
        d->refs[0].offset = parts;
        firn_gpu_grid(d, logits->ne[1], 1, 1, firn_gpu_row_threads(logits->ne[0]));
    }
    d = firn_gpu_add(
        plan, FIRN_GPU_router_z, 0, &a, sizeof a,
        (const int[]){FIRN_GPU_DST, logits->ne[1] > 0 ? FIRN_GPU_WORK : FIRN_GPU_NONE, ref_of(y, ZWEIGHTS), -1});
    d->refs[1].offset = parts;
    firn_gpu_grid(d, 1, 1, 1, firn_gpu_row_threads(logits->ne[1]));
    return FIRN_OK;
}
