/* Operations that one kernel runs over elements or rows, as they stand in the node: a table. kernels/elementwise.metal,
 * kernels/rows.metal and kernels/copies.metal. */
#include "gpu/plan.h"

#include "op/util.h"

#include <string.h>

enum { ELEMENT_THREADS = 256, ROW_THREADS = 256, SIMD = 32 };

firn_status firn_gpu_describe_node(firn_gpu_plan *plan, firn_gpu_node_args *a)
{
    const firn_tensor *y = plan->node;

    *a = (firn_gpu_node_args){.n = 0};
    FIRN_TRY(firn_gpu_view_of(plan->ctx, y, &a->y));
    for (int i = 0; i < FIRN_MAX_SRC && i < (int)(sizeof a->src / sizeof *a->src); i++)
        if (y->src[i]) {
            FIRN_TRY(firn_gpu_view_of(plan->ctx, y->src[i], &a->src[i]));
            a->has |= 1u << i;
        }
    memcpy(a->p, y->params.i, sizeof a->p);
    return FIRN_OK;
}

firn_status firn_gpu_set_count(firn_gpu_plan *plan, firn_gpu_node_args *a, int64_t n)
{
    if (n > INT32_MAX)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "its kernels count 2^31 elements, not %lld", LL(n));
    a->n = (uint32_t)n;
    return FIRN_OK;
}

/* The result, then the sources. */
firn_gpu_dispatch *firn_gpu_add_node(firn_gpu_plan *plan, firn_gpu_kernel kernel, int weight,
                                     const firn_gpu_node_args *a)
{
    const firn_tensor *y = plan->node;
    int refs[FIRN_GPU_MAX_REFS + 1] = {FIRN_GPU_DST}, n = 1;

    for (int i = 0; i < y->op->n_src + y->op->n_optional; i++)
        refs[n++] = y->src[i] ? i : FIRN_GPU_NONE;
    refs[n] = -1;
    return firn_gpu_add(plan, kernel, weight, a, sizeof *a, refs);
}

uint32_t firn_gpu_row_threads(int64_t n)
{
    return (uint32_t)firn_min_i64(ROW_THREADS, firn_max_i64(1, firn_gpu_tiles(n, SIMD)) * SIMD);
}

void firn_gpu_by_element(firn_gpu_dispatch *d, int64_t n)
{
    firn_gpu_grid(d, firn_gpu_tiles(n, ELEMENT_THREADS), 1, 1, ELEMENT_THREADS);
}

/* ---- the table ---- */

typedef enum {
    BY_ELEMENT, /* a thread for each element of the tensor */
    BY_ROW,     /* a threadgroup for each of its rows */
    BY_VALUE,   /* a threadgroup for each of its elements */
} spread;

enum { NO_IDS = -1 };

static const struct {
    const firn_op *op;
    firn_gpu_kernel kernel;
    spread over;
    int of;  /* the tensor: a source's number or FIRN_GPU_DST */
    int ids; /* the source of row numbers, which are checked against ne[1] of source `limit` or the result */
    int limit;
} nodes[] = {
#define ELEMENTS(op, kernel)                                                                                           \
    {                                                                                                                  \
        &firn_op_##op, FIRN_GPU_##kernel, BY_ELEMENT, FIRN_GPU_DST, NO_IDS, 0                                          \
    }
#define ROWS(op, kernel)                                                                                               \
    {                                                                                                                  \
        &firn_op_##op, FIRN_GPU_##kernel, BY_ROW, FIRN_GPU_DST, NO_IDS, 0                                              \
    }
#define BINARY(name, formula)        ELEMENTS(name, name),
#define UNARY(name, formula)         ELEMENTS(name, name),
#define SLOPED(name, formula, slope) ELEMENTS(name, name),
#include "op/elementwise.def"
    ELEMENTS(add_into, add_into),
    ELEMENTS(unary_back, unary_back),
    ELEMENTS(swiglu, glu),
    ELEMENTS(geglu, glu),
    ELEMENTS(reglu, glu),
    ELEMENTS(swiglu_oai, glu),
    {&firn_op_glu_back, FIRN_GPU_glu_back, BY_ELEMENT, 0, NO_IDS, 0},
    ELEMENTS(repeat, repeat),
    ELEMENTS(repeat_back, repeat_back),
    ELEMENTS(concat, concat),
    ELEMENTS(fill, fill),
    ELEMENTS(view_back, view_back),
    ELEMENTS(sum_slots, sum_slots),
    ELEMENTS(mix_slots, mix_slots),
    ELEMENTS(mix_slots_back_x, mix_slots_back_x),
    {&firn_op_add_id, FIRN_GPU_add_id, BY_ELEMENT, FIRN_GPU_DST, 2, 1},
    {&firn_op_mix_slots_back_w, FIRN_GPU_mix_slots_back_w, BY_VALUE, FIRN_GPU_DST, NO_IDS, 0},
    ROWS(sum_rows, sum_rows),
    ROWS(mean, mean),
    ROWS(rms_norm, rms_norm),
    ROWS(rms_norm_back, rms_norm_back),
    ROWS(norm, norm),
    ROWS(norm_back, norm_back),
    ROWS(l2_norm, l2_norm),
    ROWS(l2_norm_back, l2_norm_back),
    ROWS(soft_max, soft_max),
    ROWS(soft_max_back, soft_max_back),
    ROWS(router_z_back, router_z_back),
    ELEMENTS(opt_step_adamw, opt_step_adamw),
    ELEMENTS(opt_step_sgd, opt_step_sgd),
};

bool firn_gpu_in_table(const firn_op *op)
{
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (nodes[i].op == op)
            return true;
    return false;
}

firn_status firn_gpu_plan_node(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    firn_gpu_node_args a;
    size_t i = 0;

    while (nodes[i].op != y->op)
        i++;
    const firn_tensor *of = nodes[i].of == FIRN_GPU_DST ? y : y->src[nodes[i].of];
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, nodes[i].over == BY_ROW ? firn_n_rows(of) : firn_n_elements(of)));
    if (nodes[i].ids != NO_IDS)
        FIRN_TRY(firn_gpu_check_ids(plan, nodes[i].ids, 0,
                                    (nodes[i].limit == FIRN_GPU_DST ? y : y->src[nodes[i].limit])->ne[1]));
    if (a.n == 0)
        return FIRN_OK;
    firn_gpu_dispatch *d = firn_gpu_add_node(plan, nodes[i].kernel, 0, &a);
    if (nodes[i].over != BY_ELEMENT)
        firn_gpu_grid(d, a.n, 1, 1, firn_gpu_row_threads(y->src[0]->ne[0]));
    else
        firn_gpu_by_element(d, a.n);
    return FIRN_OK;
}
