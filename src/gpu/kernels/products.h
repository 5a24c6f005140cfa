/* One matrix product for all: loader x tile multiply x epilogue.
 *
 *     y[c, row] = sum over l of W(l, c) x[l, row]
 *     forward   W(l, c) = w[l, c]    c runs over w's rows, l along a row
 *     back      W(l, c) = w[c, l]    c runs along a row, l over w's rows; w stays packed both ways
 *
 * Dense: x and y have n_rows rows in each batch, w is repeated over batches. Routed: a row is a slot (s, t), and its
 * expert says which w; slots come sorted by expert (sort.metal), so that a tile of rows has one w. Sums are float, in
 * the order of l, and every element has one writer: results do not depend on the device's scheduling.
 *
 * Rows form (few rows per weight): forward, a simdgroup sums along a row of w; back, a thread owns `unit` columns and
 * walks w's rows. Tiled form (tile.h): TILE_ROWS x TILE_COLUMNS of y per threadgroup on the GPU's matrix instructions,
 * both operands staged in threadgroup memory.
 *
 * The host defines FIRN_PRECISION_BF16 before the text for `--precision bf16`: both operands are rounded to bfloat, to
 * nearest even, and tiles are staged so; sums stay float. */
#ifndef FIRN_GPU_PRODUCTS_H
#define FIRN_GPU_PRODUCTS_H

#include "format/gather.h"
#include "gpu/kernels/args.h"
#include "gpu/kernels/formats.h"
#include "gpu/kernels/tile.h"

static inline float rounded(float value)
{
    return (float)(operand)value;
}

enum { SIMD = 32, ROWS_THREADS = 128 };

/* A launch may be a part of the grid. */
static inline uint3 first_group(constant firn_gpu_product_args &a)
{
    return uint3(a.first[0], a.first[1], a.first[2]);
}

/* ---- where rows and weights lie ---- */

template <bool ROUTED>
static inline device const uchar *row_of_x(constant firn_gpu_product_args &a, device const uchar *x, int row, int batch)
{
    if (ROUTED)
        return x + (int64_t)(row % a.n_used % a.n_shared) * a.x_row + (int64_t)(row / a.n_used) * a.x_token;
    return x + (int64_t)row * a.x_row + (int64_t)(batch % a.n_batch) * a.x_batch[0] +
           (int64_t)(batch / a.n_batch) * a.x_batch[1];
}

template <bool ROUTED>
static inline device float *row_of_y(constant firn_gpu_product_args &a, device uchar *y, int row, int batch)
{
    if (ROUTED)
        return (device float *)(y + (int64_t)(row % a.n_used) * a.y_row + (int64_t)(row / a.n_used) * a.y_token);
    return (device float *)(y + (int64_t)row * a.y_row + (int64_t)(batch % a.n_batch) * a.y_batch[0] +
                            (int64_t)(batch / a.n_batch) * a.y_batch[1]);
}

static inline device const uchar *weight_of_batch(constant firn_gpu_product_args &a, device const uchar *w, int batch)
{
    return w + (int64_t)(batch % a.n_batch % a.w_repeat[0]) * a.w_batch[0] +
           (int64_t)(batch / a.n_batch % a.w_repeat[1]) * a.w_batch[1];
}

static inline int expert_of_slot(constant firn_gpu_product_args &a, device const uchar *ids, int slot)
{
    return *(device const int *)(ids + (int64_t)(slot % a.n_used) * a.ids_slot +
                                 (int64_t)(slot / a.n_used) * a.ids_token);
}

/* Whether expert e is one, and where; what the check kernels report is passed over here. */
static inline bool find_expert(constant firn_gpu_product_args &a, device const long *table, int e, thread int64_t *at)
{
    if (e < 0 || e >= a.n_experts)
        return false;
    *at = a.table_align ? table[e] : (int64_t)e * a.w_expert;
    return !a.table_align || firn_expert_lies_within(*at, 0, a.last_offset, a.table_align);
}

/* ---- rows form ---- */

/* A simdgroup sums one row of w. */
template <typename W>
static inline float simd_row_sum(constant firn_gpu_product_args &a, device const uchar *w_row, device const uchar *x,
                                 ushort lane)
{
    float sum = 0, w[16];

    for (int u = lane; u < a.n_inner / W::unit; u += SIMD) {
        W::read(w_row, u, w);
        for (int i = 0; i < W::unit; i++)
            sum += rounded(w[i]) * rounded(*(device const float *)(x + (int64_t)(u * W::unit + i) * a.x_value));
    }
    return simd_sum(sum);
}

/* Columns [unit u, unit (u + 1)) of one row of y; w NULL: zeros. */
template <typename W>
static inline void walk_rows(constant firn_gpu_product_args &a, bool found, device const uchar *w,
                             device const uchar *x, device float *y, int u)
{
    float sum[16], row[16];

    for (int i = 0; i < W::unit; i++)
        sum[i] = 0;
    for (int l = 0; found && l < a.n_inner; l++) {
        const float d = rounded(*(device const float *)(x + (int64_t)l * a.x_value));
        W::read(w + (int64_t)l * a.w_row, u, row);
        for (int i = 0; i < W::unit; i++)
            sum[i] += d * rounded(row[i]);
    }
    for (int i = 0; i < W::unit; i++)
        y[u * W::unit + i] = sum[i];
}

/* ---- tiled form ---- */

/* Threadgroup memory: x, then W(l, c), as tile.h has them; the result takes their place. */
template <typename W, bool BACK>
static inline void load_weights(constant firn_gpu_product_args &a, device const uchar *w, int column0, int l0,
                                threadgroup operand *tile, ushort thread_index)
{
    const int along = BACK ? TILE_COLUMNS : TILE_INNER, across = BACK ? TILE_INNER : TILE_COLUMNS;
    const int first = BACK ? column0 : l0, first_row = BACK ? l0 : column0;
    const int n = BACK ? a.n_columns : a.n_inner, n_rows = BACK ? a.n_inner : a.n_columns;
    float values[16];

    for (int i = thread_index; i < along * across / W::unit; i += TILE_THREADS) {
        const int r = i / (along / W::unit), at = i % (along / W::unit) * W::unit;
        const bool inside = first_row + r < n_rows && first + at < n;
        if (inside)
            W::read(w + (int64_t)(first_row + r) * a.w_row, (first + at) / W::unit, values);
        else
            for (int j = 0; j < W::unit; j++)
                values[j] = 0;
        stage<W::unit>(tile + r * (BACK ? W_BACK_STRIDE : W_STRIDE) + at, values);
    }
}

/* Where the rows of x begin that a thread loads, found once: a slot's takes divisions. `order` maps rows of the tile to
 * slots; row0 the first, n how many. */
enum { ROWS_OF_THREAD = TILE_ROWS * TILE_INNER / TILE_THREADS, ROWS_APART = TILE_THREADS / TILE_INNER };

template <bool ROUTED>
static inline void find_rows(constant firn_gpu_product_args &a, device const uchar *x, device const int *order,
                             int row0, int n, int batch, thread int64_t *rows, ushort thread_index)
{
    for (int i = 0; i < ROWS_OF_THREAD; i++) {
        const int r = min(thread_index / TILE_INNER + i * ROWS_APART, n - 1);
        rows[i] = row_of_x<ROUTED>(a, x, ROUTED ? order[row0 + r] : row0 + r, batch) - x;
    }
}

static inline void load_x(constant firn_gpu_product_args &a, device const uchar *x, thread const int64_t *rows, int n,
                          int l0, threadgroup operand *tile, ushort thread_index)
{
    const int l = l0 + thread_index % TILE_INNER;

    for (int i = 0; i < ROWS_OF_THREAD; i++) {
        const bool inside = thread_index / TILE_INNER + i * ROWS_APART < n && l < a.n_inner;
        tile[(thread_index / TILE_INNER + i * ROWS_APART) * X_STRIDE + thread_index % TILE_INNER] =
            (operand)(inside ? *(device const float *)(x + rows[i] + (int64_t)l * a.x_value) : 0.0f);
    }
}

template <typename W, bool BACK, bool ROUTED>
static inline void tile_product(constant firn_gpu_product_args &a, bool found, device const uchar *w,
                                device const uchar *x, device uchar *y, device const int *order, int column0, int row0,
                                int n, int batch, threadgroup float *shared, ushort thread_index, ushort simd)
{
    threadgroup operand *x_tile = (threadgroup operand *)shared, *w_tile = x_tile + TILE_W;
    int64_t rows[ROWS_OF_THREAD];
    firn_tile_sums sum;

    find_rows<ROUTED>(a, x, order, row0, n, batch, rows, thread_index);
    clear_sums(sum);
    for (int l0 = 0; found && l0 < a.n_inner; l0 += TILE_INNER) {
        load_x(a, x, rows, n, l0, x_tile, thread_index);
        load_weights<W, BACK>(a, w, column0, l0, w_tile, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<BACK, false>(sum, x_tile, w_tile, simd);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    share_sums(sum, shared, simd);
    for (int i = thread_index; i < TILE_ROWS * TILE_COLUMNS; i += TILE_THREADS) {
        const int r = i / TILE_COLUMNS, c = column0 + i % TILE_COLUMNS;
        if (r < n && c < a.n_columns)
            row_of_y<ROUTED>(a, y, ROUTED ? order[row0 + r] : row0 + r, batch)[c] = shared[i];
    }
}

/* Dense: threadgroup (column tile, row tile, batch). */
template <typename W, bool BACK>
static inline void dense_tile(constant firn_gpu_product_args &a, device const uchar *w, device const uchar *x,
                              device uchar *y, threadgroup float *shared, uint3 group, ushort thread_index, ushort simd)
{
    const int row0 = (int)group.y * TILE_ROWS;

    tile_product<W, BACK, false>(a, true, weight_of_batch(a, w, (int)group.z), x, y, (device const int *)x,
                                 (int)group.x * TILE_COLUMNS, row0, min((int)TILE_ROWS, a.n_rows - row0), (int)group.z,
                                 shared, thread_index, simd);
}

/* Routed: threadgroup (column tile, tile of sorted slots). */
template <typename W, bool BACK>
static inline void routed_tile(constant firn_gpu_product_args &a, device const uchar *w, device const uchar *x,
                               device uchar *y, device const int *sorted, device const long *table,
                               threadgroup float *shared, uint3 group, ushort thread_index, ushort simd)
{
    const firn_gpu_tile tile = ((device const firn_gpu_tile *)(sorted + a.n_rows))[group.y];
    int64_t at = 0;

    if (tile.n == 0)
        return;
    const bool found = find_expert(a, table, tile.expert, &at);
    tile_product<W, BACK, true>(a, found, w + at, x, y, sorted, (int)group.x * TILE_COLUMNS, tile.first, tile.n, 0,
                                shared, thread_index, simd);
}

#endif
