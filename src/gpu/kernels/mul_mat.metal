/* Forward products: MUL_MAT (dense) and MUL_MAT_ID (routed, with a gather table or without). See products.h.
 *
 *     kernel_mul_mat_<type>      y[j, n]    = w[:, j] . x[:, n]
 *     kernel_mul_mat_id_<type>   y[j, s, t] = W[:, j, ids[s,t]] . x[:, s mod s', t]
 *     kernel_..._tiled_<type>    for many rows per weight */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/products.h"

/* Threadgroup (columns, row, batch); a simdgroup has one column. */
template <typename W>
kernel void mul_mat(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                    device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                    uint3 group [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]],
                    ushort simd [[simdgroup_index_in_threadgroup]], ushort n_simd [[simdgroups_per_threadgroup]])
{
    group += first_group(a);
    const int c = (int)group.x * n_simd + simd, row = (int)group.y, batch = (int)group.z;

    if (c >= a.n_columns)
        return;
    const float sum = simd_row_sum<W>(a, weight_of_batch(a, w, batch) + (int64_t)c * a.w_row,
                                      row_of_x<false>(a, x, row, batch), lane);
    if (lane == 0)
        row_of_y<false>(a, y, row, batch)[c] = sum;
}

template <typename W>
kernel void mul_mat_tiled(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                          device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                          threadgroup float *shared [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
                          ushort index [[thread_index_in_threadgroup]], ushort simd [[simdgroup_index_in_threadgroup]])
{
    dense_tile<W, false>(a, w, x, y, shared, group + first_group(a), index, simd);
}

/* Threadgroup (columns, slot). */
template <typename W>
kernel void mul_mat_id(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                       device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                       device const uchar *ids [[buffer(4)]], device const long *table [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], ushort lane [[thread_index_in_simdgroup]],
                       ushort simd [[simdgroup_index_in_threadgroup]], ushort n_simd [[simdgroups_per_threadgroup]])
{
    group += first_group(a);
    const int c = (int)group.x * n_simd + simd, slot = (int)group.y;
    int64_t at = 0;
    float sum = 0;

    if (c >= a.n_columns)
        return;
    if (find_expert(a, table, expert_of_slot(a, ids, slot), &at))
        sum = simd_row_sum<W>(a, w + at + (int64_t)c * a.w_row, row_of_x<true>(a, x, slot, 0), lane);
    if (lane == 0)
        row_of_y<true>(a, y, slot, 0)[c] = sum;
}

template <typename W>
kernel void mul_mat_id_tiled(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *w [[buffer(1)]],
                             device const uchar *x [[buffer(2)]], device uchar *y [[buffer(3)]],
                             device const int *sorted [[buffer(4)]], device const long *table [[buffer(5)]],
                             threadgroup float *shared [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
                             ushort index [[thread_index_in_threadgroup]],
                             ushort simd [[simdgroup_index_in_threadgroup]])
{
    routed_tile<W, false>(a, w, x, y, sorted, table, shared, group + first_group(a), index, simd);
}

typedef decltype(mul_mat<weight_f32>) mul_mat_t;
typedef decltype(mul_mat_tiled<weight_f32>) mul_mat_tiled_t;
typedef decltype(mul_mat_id<weight_f32>) mul_mat_id_t;
typedef decltype(mul_mat_id_tiled<weight_f32>) mul_mat_id_tiled_t;
#define FIRN_KERNELS(type)                                                                                             \
    template [[host_name("kernel_mul_mat_" #type)]] kernel mul_mat_t mul_mat<weight_##type>;                           \
    template [[host_name("kernel_mul_mat_tiled_" #type)]] kernel mul_mat_tiled_t mul_mat_tiled<weight_##type>;         \
    template [[host_name("kernel_mul_mat_id_" #type)]] kernel mul_mat_id_t mul_mat_id<weight_##type>;                  \
    template [[host_name("kernel_mul_mat_id_tiled_" #type)]] kernel mul_mat_id_tiled_t mul_mat_id_tiled<weight_##type>;
FIRN_EACH_WEIGHT(FIRN_KERNELS)
