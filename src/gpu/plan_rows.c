/* Sums and sorts: their kernels (kernels/rows.metal) want more than the table of plan_nodes.c says. */
#include "gpu/plan.h"

#include "op/util.h"

#include <stddef.h>

enum { A };
enum { CLIPPED = 1 };       /* the source whose norm is taken */
enum { SUM_CHUNK = 16384 }; /* kernels/rows.metal has the same */
enum { MAX_SORTED = 8192 }; /* every value is compared with every other */

/* ---- sums and sorts ---- */

/* Everything of source `of` into one number: a threadgroup for each SUM_CHUNK of it leaves a part, and one the whole.
 */
static firn_status plan_in_parts(firn_gpu_plan *plan, int of, firn_gpu_kernel parts_kernel,
                                 firn_gpu_kernel whole_kernel)
{
    const int64_t n = firn_n_elements(plan->node->src[of]), n_parts = firn_gpu_tiles(n, SUM_CHUNK);
    const size_t parts = firn_gpu_take_work(plan, (size_t)n_parts * sizeof(firn_gpu_pair));
    firn_gpu_node_args a;
    firn_gpu_dispatch *d;

    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, n));
    if (n > 0) {
        d = firn_gpu_add(plan, parts_kernel, 0, &a, sizeof a, (const int[]){FIRN_GPU_WORK, of, -1});
        d->refs[0].offset = parts;
        firn_gpu_grid(d, n_parts, 1, 1, firn_gpu_row_threads(n));
    }
    a.n = (uint32_t)n_parts;
    d = firn_gpu_add(plan, whole_kernel, 0, &a, sizeof a,
                     (const int[]){FIRN_GPU_DST, n > 0 ? FIRN_GPU_WORK : FIRN_GPU_NONE, -1});
    d->refs[1].offset = parts;
    firn_gpu_grid(d, 1, 1, 1, firn_gpu_row_threads(n_parts));
    return FIRN_OK;
}

firn_status firn_gpu_plan_sum(firn_gpu_plan *plan)
{
    return plan_in_parts(plan, A, FIRN_GPU_sum_parts, FIRN_GPU_sum_total);
}

firn_status firn_gpu_plan_clip_norm(firn_gpu_plan *plan)
{
    return plan_in_parts(plan, CLIPPED, FIRN_GPU_clip_parts, FIRN_GPU_clip_norm);
}

firn_status firn_gpu_plan_sort(firn_gpu_plan *plan)
{
    const firn_tensor *y = plan->node;
    const int64_t n = y->src[A]->ne[0];
    firn_gpu_node_args a;

    if (n > MAX_SORTED)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "it sorts rows of %d values at most, not %lld", MAX_SORTED,
                         LL(n));
    FIRN_TRY(firn_gpu_describe_node(plan, &a));
    FIRN_TRY(firn_gpu_set_count(plan, &a, firn_n_rows(y)));
    firn_gpu_dispatch *d = firn_gpu_add_node(plan, y->op == &firn_op_top_k ? FIRN_GPU_top_k : FIRN_GPU_argsort, 0, &a);
    firn_gpu_grid(d, a.n, 1, 1, firn_gpu_row_threads(n));
    d->cut = offsetof(firn_gpu_node_args, cut);
    d->flops = (double)firn_n_rows(y) * (double)n * (double)n;
    return FIRN_OK;
}
