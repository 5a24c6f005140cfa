/* Copies and gathers on GPUs: kernels/copies.metal. */
#include "gpu/plan.h"

#include "op/util.h"

enum { THREADS = 256 };

static int scalar_kind(firn_type type)
{
    return type == FIRN_F32 ? 0 : type == FIRN_F16 ? 1 : type == FIRN_BF16 ? 2 : -1;
}

static void over_elements(firn_gpu_dispatch *d, int64_t n)
{
    firn_gpu_grid(d, firn_gpu_tiles(n, THREADS), 1, 1, THREADS);
}

/* Source number `from` into y, element by element in order. */
static firn_status plan_copy(firn_gpu_plan *plan, int from)
{
    const firn_tensor *y = plan->node, *x = y->src[from];
    const int refs[] = {FIRN_GPU_DST, from, -1};
    firn_gpu_kernel kernel = FIRN_GPU_convert;
    firn_gpu_node_args a;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_elements(y) / firn_type_block(y->type)));
    a.src[0] = a.src[from];
    if (x->type == y->type) { /* packed types: whole blocks */
        kernel = FIRN_GPU_copy;
        a.y.ne[0] /= (int32_t)firn_type_block(x->type);
        a.src[0].ne[0] /= (int32_t)firn_type_block(x->type);
        a.p[0] = (int32_t)firn_type_size(x->type);
    } else {
        a.p[0] = scalar_kind(x->type);
        a.p[1] = scalar_kind(y->type);
        if (a.p[0] < 0 || a.p[1] < 0)
            return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "it does not copy %s into %s", firn_type_name(x->type),
                             firn_type_name(y->type));
    }
    over_elements(firn_gpu_add(plan, kernel, 0, &a, sizeof a, refs), a.n);
    return FIRN_OK;
}

firn_status firn_gpu_plan_cont(firn_gpu_plan *plan)
{
    return plan_copy(plan, 0);
}

firn_status firn_gpu_plan_cpy(firn_gpu_plan *plan)
{
    return plan_copy(plan, 1);
}

/* A grid of (units of a row, rows): 16 values a thread of packed types, one of scalar ones. */
static firn_status over_units(firn_gpu_plan *plan, firn_gpu_kernel kernel)
{
    const firn_tensor *y = plan->node;
    const firn_type type = y->src[0]->type;
    const int weight = firn_gpu_weight(type);
    const int64_t units = y->ne[0] / (firn_type_block(type) > 1 ? 16 : 1);
    firn_gpu_node_args a;

    if (weight < 0)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "its kernels do not read %s", firn_type_name(type));
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_rows(y)));
    firn_gpu_grid(firn_gpu_add_node(plan, kernel, weight, &a), firn_gpu_tiles(units, THREADS), a.n, 1, THREADS);
    return FIRN_OK;
}

firn_status firn_gpu_plan_cast(firn_gpu_plan *plan)
{
    return scalar_kind(plan->node->src[0]->type) >= 0 ? plan_copy(plan, 0) : over_units(plan, FIRN_GPU_decode_rows);
}

firn_status firn_gpu_plan_get_rows(firn_gpu_plan *plan)
{
    FIRN_TRY(firn_gpu_check_ids(plan, 1, 0, plan->node->src[0]->ne[1]));
    return over_units(plan, FIRN_GPU_get_rows);
}

/* Zeros first. */
firn_status firn_gpu_plan_get_rows_back(firn_gpu_plan *plan)
{
    enum { FILL_VALUE = 8 }; /* FILL's parameter word */
    const firn_tensor *y = plan->node;
    firn_gpu_node_args a;

    FIRN_TRY(firn_gpu_check_ids(plan, 1, 0, y->ne[1]));
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_elements(y)));
    a.p[FILL_VALUE] = 0;
    over_elements(firn_gpu_add(plan, FIRN_GPU_fill, 0, &a, sizeof a, (const int[]){FIRN_GPU_DST, -1}), a.n);
    a.n = (uint32_t)(y->ne[0] * y->ne[2] * y->ne[3]);
    over_elements(firn_gpu_add_node(plan, FIRN_GPU_get_rows_back, 0, &a), a.n);
    return FIRN_OK;
}

/* dst, a, ids: the result lies in dst. */
firn_status firn_gpu_plan_set_rows(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    firn_gpu_node_args a;

    FIRN_TRY(firn_gpu_check_ids(plan, 2, 0, y->ne[1]));
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_elements(y->src[1])));
    if (a.n == 0)
        return FIRN_OK;
    a.p[0] = y->type == FIRN_F16;
    over_elements(firn_gpu_add(plan, FIRN_GPU_set_rows, 0, &a, sizeof a, (const int[]){FIRN_GPU_DST, 1, 2, -1}), a.n);
    return FIRN_OK;
}
