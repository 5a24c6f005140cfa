/* From nodes to dispatches: the list of operations and kernels, and what their planners share. See plan.h. */
#include "gpu/plan.h"

#include "core/backend.h"
#include "op/util.h"

#include <stdio.h>
#include <string.h>

/* ---- kernels ---- */

#define WEIGHT(CODE, name) FIRN_##CODE,
static const firn_type weights[] = {FIRN_GPU_WEIGHTS(WEIGHT)};
#undef WEIGHT
const int firn_gpu_n_weights = sizeof weights / sizeof *weights;

int firn_gpu_weight(firn_type type)
{
    for (int i = 0; i < firn_gpu_n_weights; i++)
        if (weights[i] == type)
            return i;
    return -1;
}

static const struct {
    const char *name;
    firn_gpu_library library;
    bool typed;
} kernels[] = {
#define LIBRARY(file)
#define KERNEL(file, name) {#name, FIRN_GPU_LIBRARY_##file, false},
#define TYPED(file, name)  {#name, FIRN_GPU_LIBRARY_##file, true},
#include "gpu/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
};

bool firn_gpu_is_typed(firn_gpu_kernel kernel)
{
    return kernels[kernel].typed;
}

firn_gpu_library firn_gpu_kernel_name(firn_gpu_kernel kernel, int weight, char *name, size_t size)
{
    static const char *const suffixes[] = {
#define WEIGHT(CODE, suffix) #suffix,
        FIRN_GPU_WEIGHTS(WEIGHT)
#undef WEIGHT
    };

    snprintf(name, size, "kernel_%s%s%s", kernels[kernel].name, kernels[kernel].typed ? "_" : "",
             kernels[kernel].typed ? suffixes[weight] : "");
    return kernels[kernel].library;
}

/* ---- operations ---- */

static const struct {
    const firn_op *op;
    firn_gpu_planner planner;
} planners[] = {
#define PLAN(op, planner) {&firn_op_##op, firn_gpu_plan_##planner},
#include "gpu/planners.def"
#undef PLAN
};

firn_status firn_gpu_prepare(firn_gpu_plan *plan)
{
    plan->n = 0;
    plan->work = 0;
    for (size_t i = 0; i < sizeof planners / sizeof *planners; i++)
        if (planners[i].op == plan->node->op)
            return firn_n_elements(plan->node) == 0 ? FIRN_OK : planners[i].planner(plan);
    if (firn_gpu_in_table(plan->node->op))
        return firn_n_elements(plan->node) == 0 ? FIRN_OK : firn_gpu_plan_node(plan);
    return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "there is no kernel for it yet");
}

/* ---- what planners share ---- */

firn_gpu_dispatch *firn_gpu_add(firn_gpu_plan *plan, firn_gpu_kernel kernel, int weight, const void *args,
                                size_t n_args, const int *refs)
{
    firn_gpu_dispatch *d = &plan->d[plan->n++];

    *d = (firn_gpu_dispatch){.kernel = kernel, .weight = weight, .n_args = n_args};
    memcpy(d->args, args, n_args);
    for (; refs[d->n_refs] >= 0; d->n_refs++)
        d->refs[d->n_refs].what = refs[d->n_refs];
    return d;
}

void firn_gpu_grid(firn_gpu_dispatch *d, int64_t x, int64_t y, int64_t z, uint32_t threads)
{
    d->grid[0] = (uint32_t)x;
    d->grid[1] = (uint32_t)y;
    d->grid[2] = (uint32_t)z;
    d->threads = threads;
}

size_t firn_gpu_take_work(firn_gpu_plan *plan, size_t size)
{
    const size_t at = plan->work;

    plan->work += firn_bytes_up(size);
    return at;
}

firn_status firn_gpu_view_of(firn_context *ctx, const firn_tensor *t, firn_gpu_view *view)
{
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        if (t->ne[i] > INT32_MAX)
            return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "its kernels count to 2^31 along a dimension; %s is %s",
                             t->name[0] ? t->name : "a tensor", firn_shape_text(t));
        view->ne[i] = (int32_t)t->ne[i];
        view->nb[i] = t->nb[i];
    }
    return FIRN_OK;
}

firn_status firn_gpu_check_by(firn_gpu_plan *plan, firn_gpu_kernel kernel, int of, int64_t low, int64_t limit)
{
    firn_gpu_check_args a = {
        .node = plan->id, .node_index = plan->node->index, .kind = FIRN_FAULT_ID_RANGE, .low = low, .limit = limit};

    if (firn_n_elements(plan->node->src[of]) == 0)
        return FIRN_OK;
    FIRN_TRY(firn_gpu_view_of(plan->ctx, plan->node->src[of], &a.ids));
    firn_gpu_grid(firn_gpu_add(plan, kernel, 0, &a, sizeof a, (const int[]){of, FIRN_GPU_FAULT, -1}), 1, 1, 1, 256);
    return FIRN_OK;
}

firn_status firn_gpu_check_ids(firn_gpu_plan *plan, int of, int64_t low, int64_t limit)
{
    return firn_gpu_check_by(plan, FIRN_GPU_check_ids, of, low, limit);
}
