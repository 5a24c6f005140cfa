/* Gradients through frozen weights: OUT_PROD (dense) and MUL_MAT_ID_BACK (routed); and of routed weights: OUT_PROD_ID.
 * See products.h.
 *
 *     kernel_out_prod_<type>           y[:, p]    = sum over r of a[:, r] b[p, r]
 *     kernel_mul_mat_id_back_<type>    dx[:,s,t]  = W[:,:,ids[s,t]] dy[:,s,t], one threadgroup per slot
 *     kernel_out_prod_id               dW[:,j,e]  = sum over e's slots, in order, of x[:, slot] dy[j, slot]
 *     kernel_..._tiled_<type>          for many rows per weight
 *
 * The weight stays packed: its blocks are walked along columns, 16 values at a time in registers. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/products.h"

/* Threadgroup (-, row, batch). */
template <typename W>
kernel void out_prod(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                     device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                     uint3 group [[threadgroup_position_in_grid]], ushort index [[thread_index_in_threadgroup]],
                     uint3 n_threads [[threads_per_threadgroup]])
{
    group += first_group(a);
    const int row = (int)group.y, batch = (int)group.z;

    for (int u = index; u < a.n_columns / W::unit; u += (int)n_threads.x)
        walk_rows<W>(a, true, weight_of_batch(a, w, batch), row_of_x<false>(a, x, row, batch),
                     row_of_y<false>(a, y, row, batch), u);
}

template <typename W>
kernel void out_prod_tiled(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                           device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                           threadgroup float *shared [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
                           ushort index [[thread_index_in_threadgroup]], ushort simd [[simdgroup_index_in_threadgroup]])
{
    dense_tile<W, true>(a, w, x, y, shared, group + first_group(a), index, simd);
}

/* Threadgroup (-, slot). */
template <typename W>
kernel void mul_mat_id_back(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                            device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                            device const uchar *ids [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                            ushort index [[thread_index_in_threadgroup]], uint3 n_threads [[threads_per_threadgroup]])
{
    group += first_group(a);
    const int slot = (int)group.y, e = expert_of_slot(a, ids, slot);
    const bool found = e >= 0 && e < a.n_experts;

    for (int u = index; u < a.n_columns / W::unit; u += (int)n_threads.x)
        walk_rows<W>(a, found, w + (found ? (int64_t)e * a.w_expert : 0), row_of_x<true>(a, x, slot, 0),
                     row_of_y<true>(a, y, slot, 0), u);
}

template <typename W>
kernel void mul_mat_id_back_tiled(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                                  device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                                  device const int *sorted [[buffer(4)]], threadgroup float *shared [[threadgroup(0)]],
                                  uint3 group [[threadgroup_position_in_grid]],
                                  ushort index [[thread_index_in_threadgroup]],
                                  ushort simd [[simdgroup_index_in_threadgroup]])
{
    routed_tile<W, true>(a, w, x, y, sorted, (device const long *)w, shared, group + first_group(a), index, simd);
}

/* Of OUT_PROD_ID: dy's strides are in w_row (j) and w_batch (slot, token), and its n_inner is how many j there are. An
 * expert without slots gets zeros. */
static inline device const uchar *row_of_dy(constant firn_gpu_product_args &a, device const uchar *dy, int slot)
{
    return dy + (int64_t)(slot % a.n_used) * a.w_batch[0] + (int64_t)(slot / a.n_used) * a.w_batch[1];
}

static inline float value_at(device const uchar *row, int i, int64_t stride)
{
    return *(device const float *)(row + i * stride);
}

/* Threadgroup (columns, j, e). */
kernel void kernel_out_prod_id(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *x [[buffer(1)]],
                               device const uchar *dy [[buffer(2)]], device uchar *y [[buffer(3)]],
                               device const int *sorted [[buffer(4)]], device const int *starts [[buffer(5)]],
                               uint3 group [[threadgroup_position_in_grid]],
                               ushort index [[thread_index_in_threadgroup]])
{
    group += first_group(a);
    const int c = (int)group.x * ROWS_THREADS + index, j = (int)group.y, e = (int)group.z;
    float sum = 0;

    if (c >= a.n_columns)
        return;
    for (int i = starts[e]; i < starts[e + 1]; i++)
        sum += rounded(value_at(row_of_dy(a, dy, sorted[i]), j, a.w_row)) *
               rounded(value_at(row_of_x<true>(a, x, sorted[i], 0), c, a.x_value));
    ((device float *)(y + (int64_t)j * a.y_row + (int64_t)e * a.y_token))[c] = sum;
}

/* Threadgroup (column tile, tile of j, e): TILE_INNER slots at a time, dy as [TILE_INNER][TILE_ROWS] and x as
 * [TILE_INNER][TILE_COLUMNS]. A slot's rows are found once, since that takes divisions. */
kernel void
kernel_out_prod_id_tiled(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *x [[buffer(1)]],
                         device const uchar *dy [[buffer(2)]], device uchar *y [[buffer(3)]],
                         device const int *sorted [[buffer(4)]], device const int *starts [[buffer(5)]],
                         threadgroup float *shared [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
                         ushort index [[thread_index_in_threadgroup]], ushort simd [[simdgroup_index_in_threadgroup]])
{
    group += first_group(a);
    threadgroup operand *dy_tile = (threadgroup operand *)shared, *x_tile = dy_tile + TILE_W;
    threadgroup long dy_at[TILE_INNER];
    threadgroup long x_at[TILE_INNER];
    const int c0 = (int)group.x * TILE_COLUMNS, j0 = (int)group.y * TILE_ROWS, e = (int)group.z, last = starts[e + 1];
    firn_tile_sums sum;

    clear_sums(sum);
    for (int first = starts[e]; first < last; first += TILE_INNER) {
        const int n = min((int)TILE_INNER, last - first);
        if (index < n) {
            dy_at[index] = row_of_dy(a, dy, sorted[first + index]) - dy;
            x_at[index] = row_of_x<true>(a, x, sorted[first + index], 0) - x;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = index; i < TILE_INNER * TILE_ROWS; i += TILE_THREADS) {
            const int l = i / TILE_ROWS, j = j0 + i % TILE_ROWS;
            dy_tile[l * X_ALONG_STRIDE + i % TILE_ROWS] = (operand)(l < n && j < a.n_inner ? value_at(dy + dy_at[l], j, a.w_row) : 0.0f);
        }
        for (int i = index; i < TILE_INNER * TILE_COLUMNS; i += TILE_THREADS) {
            const int l = i / TILE_COLUMNS, c = c0 + i % TILE_COLUMNS;
            x_tile[l * W_BACK_STRIDE + i % TILE_COLUMNS] = (operand)(l < n && c < a.n_columns ? value_at(x + x_at[l], c, a.x_value) : 0.0f);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<true, true>(sum, dy_tile, x_tile, simd);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    share_sums(sum, shared, simd);
    for (int i = index; i < TILE_ROWS * TILE_COLUMNS; i += TILE_THREADS) {
        const int j = j0 + i / TILE_COLUMNS, c = c0 + i % TILE_COLUMNS;
        if (j < a.n_inner && c < a.n_columns)
            ((device float *)(y + (int64_t)j * a.y_row + (int64_t)e * a.y_token))[c] = shared[i];
    }
}

typedef decltype(out_prod<weight_f32>) out_prod_t;
typedef decltype(out_prod_tiled<weight_f32>) out_prod_tiled_t;
typedef decltype(mul_mat_id_back<weight_f32>) mul_mat_id_back_t;
typedef decltype(mul_mat_id_back_tiled<weight_f32>) mul_mat_id_back_tiled_t;
#define FIRN_KERNELS(type)                                                                                             \
    template [[host_name("kernel_out_prod_" #type)]] kernel out_prod_t out_prod<weight_##type>;                        \
    template [[host_name("kernel_out_prod_tiled_" #type)]] kernel out_prod_tiled_t out_prod_tiled<weight_##type>;      \
    template [[host_name("kernel_mul_mat_id_back_" #type)]] kernel mul_mat_id_back_t mul_mat_id_back<weight_##type>;   \
    template [[host_name(                                                                                              \
        "kernel_mul_mat_id_back_tiled_" #type)]] kernel mul_mat_id_back_tiled_t mul_mat_id_back_tiled<weight_##type>;
FIRN_EACH_WEIGHT(FIRN_KERNELS)
