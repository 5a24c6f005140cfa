/* Matrix products on GPUs (kernels/products.h): which weights can be read, and which form runs. */
#include "gpu/plan.h"

#include "op/util.h"

#include <stddef.h>
#include <string.h>

enum { W, X, IDS, TABLE };
enum { ROWS_THREADS = 128 }; /* of the rows form */
enum { SORT_THREADS = 256, SIMDGROUPS = 4 };

/* The one heuristic. */
static bool prefers_tiles(const firn_gpu_plan *plan, double rows_per_weight)
{
    return rows_per_weight >= plan->tile.least;
}

/* Tiles over n_columns x n_row_tiles x z of a result. */
static void by_tiles(const firn_gpu_plan *plan, firn_gpu_dispatch *d, int64_t n_columns, int64_t n_row_tiles, int64_t z)
{
    firn_gpu_grid(d, firn_gpu_tiles(n_columns, plan->tile.columns), n_row_tiles, z, (uint32_t)plan->tile.threads);
    d->shared = plan->tile.shared;
}

/* The one predicate of frozen weights, for forward products and gradients alike. */
static firn_status expect_weight(firn_gpu_plan *plan, int *weight)
{
    const firn_tensor *w = plan->node->src[W];

    *weight = firn_gpu_weight(w->type);
    if (*weight < 0)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "its kernels do not read weights of %s",
                         firn_type_name(w->type));
    return FIRN_OK;
}

static firn_status expect_small(firn_gpu_plan *plan)
{
    firn_gpu_view ignored;

    for (int i = 0; i < FIRN_MAX_SRC; i++)
        if (plan->node->src[i])
            FIRN_TRY(firn_gpu_view_of(plan->ctx, plan->node->src[i], &ignored));
    return firn_gpu_view_of(plan->ctx, plan->node, &ignored);
}

/* Threadgroups across a row of y in the rows form: forward, each of their simdgroups has one column; back, one
 * threadgroup has them all. */
static int64_t column_blocks(const firn_tensor *y, bool back)
{
    return back ? 1 : firn_gpu_tiles(y->ne[0], SIMDGROUPS);
}

/* Long products are cut along the grid's longest axis. */
static void may_be_cut(firn_gpu_dispatch *d, const firn_tensor *y)
{
    for (int i = 1; i < 3; i++)
        if (d->grid[i] > d->grid[d->axis])
            d->axis = i;
    d->cut = offsetof(firn_gpu_product_args, first) + (size_t)d->axis * sizeof(uint32_t);
    d->flops = firn_op_cost(y).flops;
}

/* ---- dense ---- */

/* `value` is the axis of x along which is summed, `row` that of its rows. */
static firn_status plan_dense(firn_gpu_plan *plan, bool back, firn_gpu_kernel rows, firn_gpu_kernel tiled)
{
    const firn_tensor *y = plan->node, *w = y->src[W], *x = y->src[X];
    const int value = back ? 1 : 0, row = back ? 0 : 1;
    int weight;

    FIRN_TRY(expect_weight(plan, &weight));
    FIRN_TRY(expect_small(plan));
    const firn_gpu_product_args a = {
        .n_columns = (int32_t)y->ne[0],
        .n_inner = (int32_t)w->ne[back ? 1 : 0],
        .n_rows = (int32_t)y->ne[1],
        .n_batch = (int32_t)y->ne[2],
        .w_repeat = {(int32_t)w->ne[2], (int32_t)w->ne[3]},
        .w_row = w->nb[1],
        .w_batch = {w->nb[2], w->nb[3]},
        .x_value = x->nb[value],
        .x_row = x->nb[row],
        .x_batch = {x->nb[2], x->nb[3]},
        .y_row = y->nb[1],
        .y_batch = {y->nb[2], y->nb[3]},
    };
    const int refs[] = {W, X, FIRN_GPU_DST, -1};
    const int64_t batches = y->ne[2] * y->ne[3];
    const bool tiles = prefers_tiles(plan, (double)y->ne[1]);
    firn_gpu_dispatch *d = firn_gpu_add(plan, tiles ? tiled : rows, weight, &a, sizeof a, refs);
    if (tiles) {
        by_tiles(plan, d, y->ne[0], firn_gpu_tiles(y->ne[1], plan->tile.rows), batches);
    } else {
        firn_gpu_grid(d, column_blocks(y, back), y->ne[1], batches, ROWS_THREADS);
    }
    may_be_cut(d, y);
    return FIRN_OK;
}

firn_status firn_gpu_plan_mul_mat(firn_gpu_plan *plan)
{
    return plan_dense(plan, false, FIRN_GPU_mul_mat, FIRN_GPU_mul_mat_tiled);
}

firn_status firn_gpu_plan_out_prod(firn_gpu_plan *plan)
{
    return plan_dense(plan, true, FIRN_GPU_out_prod, FIRN_GPU_out_prod_tiled);
}

/* ---- routed ---- */

static firn_status expect_slots(firn_gpu_plan *plan, int64_t slots, int64_t experts)
{
    FIRN_TRY(expect_small(plan));
    if (slots > INT32_MAX / 2 || experts >= INT32_MAX / SORT_THREADS)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED,
                         "it routes 2^30 slots to 2^23 experts at most, not %lld to %lld", LL(slots), LL(experts));
    return FIRN_OK;
}

/* Sorts the slots of ids by expert: the order and its tiles go to *sorted, where each expert's begin to *starts, behind
 * which the kernel counts. */
static void sort_slots(firn_gpu_plan *plan, const firn_gpu_product_args *a, size_t *sorted, size_t *starts)
{
    *sorted =
        firn_gpu_take_work(plan, (size_t)a->n_rows * sizeof(int32_t) + (size_t)a->n_tiles * sizeof(firn_gpu_tile));
    *starts = firn_gpu_take_work(plan, (size_t)(a->n_experts + 1) * (2 + SORT_THREADS) * sizeof(int32_t));
    firn_gpu_dispatch *d =
        firn_gpu_add(plan, FIRN_GPU_sort_slots, 0, a, sizeof *a, (const int[]){IDS, FIRN_GPU_WORK, FIRN_GPU_WORK, -1});
    d->refs[1].offset = *sorted;
    d->refs[2].offset = *starts;
    firn_gpu_grid(d, 1, 1, 1, SORT_THREADS);
}

/* x is what comes in by slot: x or dy. */
static firn_gpu_product_args routed_args(const firn_gpu_plan *plan, const firn_tensor *y, const firn_tensor *x,
                                         const firn_tensor *ids, int64_t experts)
{
    const int64_t slots = firn_n_elements(ids);

    return (firn_gpu_product_args){
        .n_rows = (int32_t)slots,
        .n_used = (int32_t)ids->ne[0],
        .n_shared = (int32_t)x->ne[1],
        .n_experts = (int32_t)experts,
        .n_tiles = (int32_t)(firn_gpu_tiles(slots, plan->tile.rows) + firn_min_i64(slots, experts + 1)),
        .x_value = x->nb[0],
        .x_row = x->nb[1],
        .x_token = x->nb[2],
        .y_row = y->nb[1],
        .y_token = y->nb[2],
        .ids_slot = ids->nb[0],
        .ids_token = ids->nb[1],
    };
}

static firn_status check_table(firn_gpu_plan *plan, const firn_gpu_product_args *p, int64_t expert_bytes)
{
    firn_gpu_check_args a = {.node = plan->id,
                             .node_index = plan->node->index,
                             .kind = FIRN_FAULT_TABLE,
                             .low = expert_bytes,
                             .limit = (int64_t)firn_n_bytes(plan->node->src[W]),
                             .align = (int32_t)firn_type_align(plan->node->src[W]->type),
                             .n_experts = p->n_experts};

    FIRN_TRY(firn_gpu_view_of(plan->ctx, plan->node->src[IDS], &a.ids));
    firn_gpu_grid(
        firn_gpu_add(plan, FIRN_GPU_check_table, 0, &a, sizeof a, (const int[]){IDS, FIRN_GPU_FAULT, TABLE, -1}), 1, 1,
        1, SORT_THREADS);
    return FIRN_OK;
}

static firn_status plan_routed(firn_gpu_plan *plan, bool back, firn_gpu_kernel rows, firn_gpu_kernel tiled)
{
    const firn_tensor *y = plan->node, *w = y->src[W], *x = y->src[X], *ids = y->src[IDS];
    const firn_tensor *table = back ? NULL : y->src[TABLE];
    const int64_t experts = table ? table->ne[0] : w->ne[2], slots = firn_n_elements(ids);
    const int64_t expert_bytes = (w->ne[1] - 1) * w->nb[1] + (int64_t)firn_row_bytes(w->type, w->ne[0]);
    int weight;

    FIRN_TRY(expect_weight(plan, &weight));
    FIRN_TRY(expect_slots(plan, slots, experts));
    firn_gpu_product_args a = routed_args(plan, y, x, ids, experts);
    a.n_columns = (int32_t)y->ne[0];
    a.n_inner = (int32_t)w->ne[back ? 1 : 0];
    a.w_row = w->nb[1];
    a.w_expert = w->nb[2];
    a.table_align = table ? (int32_t)firn_type_align(w->type) : 0;
    a.last_offset = (int64_t)firn_n_bytes(w) - expert_bytes;
    FIRN_TRY(firn_gpu_check_ids(plan, IDS, 0, experts));
    if (table)
        FIRN_TRY(check_table(plan, &a, expert_bytes));
    const int second = table ? TABLE : FIRN_GPU_NONE;
    if (!prefers_tiles(plan, (double)slots / (double)firn_max_i64(1, experts))) {
        const int refs[] = {W, X, FIRN_GPU_DST, IDS, second, -1};
        firn_gpu_dispatch *d = firn_gpu_add(plan, rows, weight, &a, sizeof a, refs);
        firn_gpu_grid(d, column_blocks(y, back), slots, 1, ROWS_THREADS);
        may_be_cut(d, y);
        return FIRN_OK;
    }
    size_t sorted, starts;
    sort_slots(plan, &a, &sorted, &starts);
    firn_gpu_dispatch *d =
        firn_gpu_add(plan, tiled, weight, &a, sizeof a, (const int[]){W, X, FIRN_GPU_DST, FIRN_GPU_WORK, second, -1});
    d->refs[3].offset = sorted;
    by_tiles(plan, d, y->ne[0], a.n_tiles, 1);
    may_be_cut(d, y);
    return FIRN_OK;
}

firn_status firn_gpu_plan_mul_mat_id(firn_gpu_plan *plan)
{
    return plan_routed(plan, false, FIRN_GPU_mul_mat_id, FIRN_GPU_mul_mat_id_tiled);
}

firn_status firn_gpu_plan_mul_mat_id_back(firn_gpu_plan *plan)
{
    return plan_routed(plan, true, FIRN_GPU_mul_mat_id_back, FIRN_GPU_mul_mat_id_back_tiled);
}

/* Both operands come by slot; dy's place is in the fields of w. */
firn_status firn_gpu_plan_out_prod_id(firn_gpu_plan *plan)
{
    enum { OX, ODY };
    const firn_tensor *y = plan->node, *x = y->src[OX], *dy = y->src[ODY], *ids = y->src[IDS];
    const int refs[] = {OX, ODY, FIRN_GPU_DST, FIRN_GPU_WORK, FIRN_GPU_WORK, -1};
    const bool tiles = prefers_tiles(plan, (double)firn_n_elements(ids) / (double)y->ne[2]);
    size_t sorted, starts;

    FIRN_TRY(expect_slots(plan, firn_n_elements(ids), y->ne[2]));
    firn_gpu_product_args a = routed_args(plan, y, x, ids, y->ne[2]);
    a.n_columns = (int32_t)y->ne[0];
    a.n_inner = (int32_t)y->ne[1];
    a.w_row = dy->nb[0];
    a.w_batch[0] = dy->nb[1];
    a.w_batch[1] = dy->nb[2];
    FIRN_TRY(firn_gpu_check_ids(plan, IDS, 0, y->ne[2]));
    sort_slots(plan, &a, &sorted, &starts);
    firn_gpu_dispatch *d =
        firn_gpu_add(plan, tiles ? FIRN_GPU_out_prod_id_tiled : FIRN_GPU_out_prod_id, 0, &a, sizeof a, refs);
    d->refs[3].offset = sorted;
    d->refs[4].offset = starts;
    if (tiles) {
        by_tiles(plan, d, y->ne[0], firn_gpu_tiles(y->ne[1], plan->tile.rows), y->ne[2]);
    } else {
        firn_gpu_grid(d, firn_gpu_tiles(y->ne[0], ROWS_THREADS), y->ne[1], y->ne[2], ROWS_THREADS);
    }
    may_be_cut(d, y);
    return FIRN_OK;
}
