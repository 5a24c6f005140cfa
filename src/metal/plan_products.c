/* Matrix products on Metal (kernels/products.h): which weights can be read, and which form runs. */
#include "metal/plan.h"

#include "op/util.h"

#include <string.h>

enum { W, X, IDS, TABLE };
enum { TILE_ROWS = 32, TILE_COLUMNS = 64, TILE_THREADS = 128, TILE_SHARED = 4 * (32 * 32 + 32 * 64) };
enum { SORT_THREADS = 256, MAX_GRID = 65535 };

/* The one heuristic: tiles pay once they are a quarter full on average; below that, each row for itself. */
static bool prefers_tiles(double rows_per_weight)
{
    return rows_per_weight >= TILE_ROWS / 4;
}

/* The one predicate of frozen weights, for forward products and gradients alike. */
static firn_status expect_weight(firn_metal_plan *plan, int *weight)
{
    const firn_tensor *w = plan->node->src[W];

    *weight = firn_metal_weight(w->type);
    if (*weight < 0)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "Metal's kernels do not read weights of %s",
                         firn_type_name(w->type));
    return FIRN_OK;
}

static firn_status expect_small(firn_metal_plan *plan)
{
    firn_metal_view ignored;

    for (int i = 0; i < FIRN_MAX_SRC; i++)
        if (plan->node->src[i])
            FIRN_TRY(firn_metal_view_of(plan->ctx, plan->node->src[i], &ignored));
    return firn_metal_view_of(plan->ctx, plan->node, &ignored);
}

/* ---- dense ---- */

/* `value` is the axis of x along which is summed, `row` that of its rows. */
static firn_status plan_dense(firn_metal_plan *plan, bool back, firn_metal_kernel rows, firn_metal_kernel tiled)
{
    const firn_tensor *y = plan->node, *w = y->src[W], *x = y->src[X];
    const int value = back ? 1 : 0, row = back ? 0 : 1;
    int weight;

    FIRN_TRY(expect_weight(plan, &weight));
    FIRN_TRY(expect_small(plan));
    const firn_metal_product_args a = {
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
    const int refs[] = {W, X, FIRN_METAL_DST, -1};
    const int64_t batches = y->ne[2] * y->ne[3];
    if (batches > MAX_GRID)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "Metal takes %d products at once, not %lld", MAX_GRID,
                         LL(batches));
    if (prefers_tiles((double)y->ne[1])) {
        firn_metal_dispatch *d = firn_metal_add(plan, tiled, weight, &a, sizeof a, refs);
        firn_metal_grid(d, firn_metal_tiles(y->ne[0], TILE_COLUMNS), firn_metal_tiles(y->ne[1], TILE_ROWS), batches,
                        TILE_THREADS);
        d->shared = TILE_SHARED;
    } else {
        firn_metal_grid(firn_metal_add(plan, rows, weight, &a, sizeof a, refs), 1, y->ne[1], batches, TILE_THREADS);
    }
    return FIRN_OK;
}

firn_status firn_metal_plan_out_prod(firn_metal_plan *plan)
{
    return plan_dense(plan, true, FIRN_METAL_out_prod, FIRN_METAL_out_prod_tiled);
}

/* ---- routed ---- */

static firn_status plan_routed(firn_metal_plan *plan, bool back, firn_metal_kernel rows, firn_metal_kernel tiled)
{
    const firn_tensor *y = plan->node, *w = y->src[W], *x = y->src[X], *ids = y->src[IDS];
    const int64_t slots = firn_n_elements(ids), experts = w->ne[2];
    const int64_t n_tiles = firn_metal_tiles(slots, TILE_ROWS) + firn_min_i64(slots, experts + 1);
    int weight;

    FIRN_TRY(expect_weight(plan, &weight));
    FIRN_TRY(expect_small(plan));
    if (slots > INT32_MAX / 2)
        return firn_fail(plan->ctx, FIRN_ERR_UNSUPPORTED, "Metal routes 2^30 slots at once, not %lld", LL(slots));
    const firn_metal_product_args a = {
        .n_columns = (int32_t)y->ne[0],
        .n_inner = (int32_t)w->ne[back ? 1 : 0],
        .n_rows = (int32_t)slots,
        .n_used = (int32_t)ids->ne[0],
        .n_shared = (int32_t)x->ne[1],
        .n_experts = (int32_t)experts,
        .n_tiles = (int32_t)n_tiles,
        .w_row = w->nb[1],
        .w_expert = w->nb[2],
        .x_value = x->nb[0],
        .x_row = x->nb[1],
        .x_token = x->nb[2],
        .y_row = y->nb[1],
        .y_token = y->nb[2],
        .ids_slot = ids->nb[0],
        .ids_token = ids->nb[1],
    };
    FIRN_TRY(firn_metal_check_ids(plan, IDS, 0, experts));
    if (!prefers_tiles((double)slots / (double)firn_max_i64(1, experts))) {
        const int refs[] = {W, X, FIRN_METAL_DST, IDS, -1};
        firn_metal_grid(firn_metal_add(plan, rows, weight, &a, sizeof a, refs), 1, slots, 1, TILE_THREADS);
        return FIRN_OK;
    }
    const size_t sorted =
        firn_metal_take_work(plan, (size_t)slots * sizeof(int32_t) + (size_t)n_tiles * sizeof(firn_metal_tile));
    const size_t counts = firn_metal_take_work(plan, (size_t)(experts + 1) * sizeof(int32_t));
    firn_metal_dispatch *d = firn_metal_add(plan, FIRN_METAL_sort_slots, 0, &a, sizeof a,
                                            (const int[]){IDS, FIRN_METAL_WORK, FIRN_METAL_WORK, -1});
    d->refs[1].offset = sorted;
    d->refs[2].offset = counts;
    firn_metal_grid(d, 1, 1, 1, SORT_THREADS);
    d = firn_metal_add(plan, tiled, weight, &a, sizeof a, (const int[]){W, X, FIRN_METAL_DST, FIRN_METAL_WORK, -1});
    d->refs[3].offset = sorted;
    d->shared = TILE_SHARED;
    firn_metal_grid(d, firn_metal_tiles(y->ne[0], TILE_COLUMNS), n_tiles, 1, TILE_THREADS);
    return FIRN_OK;
}

firn_status firn_metal_plan_mul_mat_id_back(firn_metal_plan *plan)
{
    return plan_routed(plan, true, FIRN_METAL_mul_mat_id_back, FIRN_METAL_mul_mat_id_back_tiled);
}
