/* Elements that change place or type: copies and gathers. A thread has one element (a block of a packed type where it
 * is moved whole), or one unit of a packed row that is decoded. The contracts stand in src/op/{copy,rows}.c. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/formats.h"
#include "gpu/kernels/node.h"

/* ---- CONT, CPY, CAST among scalars: element number id of the result is number id of the source, whose shape may be
 * another. p[0]: bytes of an element; p[0], p[1]: type of the source and of the result, 0 F32, 1 F16, 2 BF16. ---- */

kernel void kernel_copy(constant firn_gpu_node_args &a [[buffer(0)]], device uchar *y [[buffer(1)]],
                        device const uchar *x [[buffer(2)]], uint id [[thread_position_in_grid]])
{
    if (id >= a.n)
        return;
    device const uchar *from = x + offset_of(a.src[0], element_of(a.src[0], id));
    device uchar *to = y + offset_of(a.y, element_of(a.y, id));

    if (a.p[0] == 4) {
        *(device uint *)to = *(device const uint *)from;
        return;
    }
    for (int i = 0; i < a.p[0]; i++)
        to[i] = from[i];
}

kernel void kernel_convert(constant firn_gpu_node_args &a [[buffer(0)]], device uchar *y [[buffer(1)]],
                           device const uchar *x [[buffer(2)]], uint id [[thread_position_in_grid]])
{
    if (id >= a.n)
        return;
    device const uchar *from = x + offset_of(a.src[0], element_of(a.src[0], id));
    device uchar *to = y + offset_of(a.y, element_of(a.y, id));
    float v;

    if (a.p[0] == 0)
        v = *(device const float *)from;
    else
        v = a.p[0] == 1 ? firn_half_to_float(*(device const firn_half *)from)
                        : firn_bf16_to_float(*(device const uint16_t *)from);
    if (a.p[1] == 0)
        *(device float *)to = v;
    else
        *(device uint16_t *)to = a.p[1] == 1 ? firn_float_to_half(v) : firn_float_to_bf16(v);
}

/* ---- rows of weights: threadgroup (units, row of y) ---- */

template <typename W>
static inline void decode_unit(constant firn_gpu_node_args &a, device const uchar *row, bool found, int u, long number,
                               device float *y)
{
    float w[16];

    if (found)
        W::read(row, u, w);
    for (int k = 0; k < W::unit; k++)
        y[number * a.y.ne[0] + u * W::unit + k] = found ? w[k] : 0.0f;
}

/* CAST of a packed type. */
template <typename W>
kernel void decode_rows(constant firn_gpu_node_args &a [[buffer(0)]], device float *y [[buffer(1)]],
                        device const uchar *x [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                        ushort index [[thread_index_in_threadgroup]], uint3 n_threads [[threads_per_threadgroup]])
{
    const int u = (int)(group.x * n_threads.x) + index;

    if (u < a.y.ne[0] / W::unit)
        decode_unit<W>(a, x + offset_of(a.src[0], row_of(a.y, group.y)), true, u, group.y, y);
}

/* GET_ROWS: zeros where the id names no row. */
template <typename W>
kernel void get_rows(constant firn_gpu_node_args &a [[buffer(0)]], device float *y [[buffer(1)]],
                     device const uchar *x [[buffer(2)]], device const uchar *ids [[buffer(3)]],
                     uint3 group [[threadgroup_position_in_grid]], ushort index [[thread_index_in_threadgroup]],
                     uint3 n_threads [[threads_per_threadgroup]])
{
    const int u = (int)(group.x * n_threads.x) + index;
    firn_element at = row_of(a.y, group.y);

    if (u >= a.y.ne[0] / W::unit)
        return;
    const int id = int_at(ids, at.i[1] * a.src[1].nb[0] + at.i[2] * a.src[1].nb[1] + at.i[3] * a.src[1].nb[2]);
    const bool found = id >= 0 && id < a.src[0].ne[1];
    at.i[1] = found ? id : 0;
    decode_unit<W>(a, x + offset_of(a.src[0], at), found, u, group.y, y);
}

typedef decltype(decode_rows<weight_f32>) decode_rows_t;
typedef decltype(get_rows<weight_f32>) get_rows_t;
#define FIRN_KERNELS(type)                                                                                             \
    template [[host_name("kernel_decode_rows_" #type)]] kernel decode_rows_t decode_rows<weight_##type>;               \
    template [[host_name("kernel_get_rows_" #type)]] kernel get_rows_t get_rows<weight_##type>;
FIRN_EACH_WEIGHT(FIRN_KERNELS)

/* ---- GET_ROWS_BACK, SET_ROWS ---- */

/* y is zeros; a thread has column c of (j, l) and adds the rows of dy in order: one writer per element. n: columns of
 * all (j, l). */
kernel void kernel_get_rows_back(constant firn_gpu_node_args &a [[buffer(0)]], device float *y [[buffer(1)]],
                                 device const uchar *dy [[buffer(2)]], device const uchar *ids [[buffer(3)]],
                                 uint id [[thread_position_in_grid]])
{
    if (id >= a.n)
        return;
    const int c = (int)(id % (uint)a.y.ne[0]), jl = (int)(id / (uint)a.y.ne[0]);
    firn_element at;
    at.i[0] = c;
    at.i[2] = jl % a.y.ne[2];
    at.i[3] = jl / a.y.ne[2];

    for (int i = 0; i < a.src[0].ne[1]; i++) {
        const int row = int_at(ids, i * a.src[1].nb[0] + at.i[2] * a.src[1].nb[1] + at.i[3] * a.src[1].nb[2]);
        at.i[1] = i;
        if (row >= 0 && row < a.y.ne[1])
            y[c + (row + (long)jl * a.y.ne[1]) * a.y.ne[0]] += float_at(dy, offset_of(a.src[0], at));
    }
}

/* SET_ROWS(dst, a, ids): y is dst; a thread for each element of a. p[0]: dst is F16. */
kernel void kernel_set_rows(constant firn_gpu_node_args &a [[buffer(0)]], device uchar *y [[buffer(1)]],
                            device const uchar *x [[buffer(2)]], device const uchar *ids [[buffer(3)]],
                            uint id [[thread_position_in_grid]])
{
    if (id >= a.n)
        return;
    firn_element at = element_of(a.src[1], id);
    const float v = float_at(x, offset_of(a.src[1], at));
    const int row = int_at(ids, at.i[1] * a.src[2].nb[0]);

    if (row < 0 || row >= a.y.ne[1])
        return;
    at.i[1] = row;
    if (a.p[0])
        *(device uint16_t *)(y + offset_of(a.y, at)) = firn_float_to_half(v);
    else
        *(device float *)(y + offset_of(a.y, at)) = v;
}
