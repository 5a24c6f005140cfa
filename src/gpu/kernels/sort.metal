/* kernel_sort_slots: slots by expert, each expert's in order, and the tiles of rows that the routed products walk: a
 * counting sort by one threadgroup. A thread has a run of slots and counts those of each expert for itself: no atomics,
 * and the order is always the same. */
#include <metal_stdlib>
using namespace metal;

#include "gpu/kernels/products.h"

/* Number n_experts stands for ids that name none. */
static inline int key_of_slot(constant firn_gpu_product_args &a, device const uchar *ids, int slot)
{
    const int id = expert_of_slot(a, ids, slot);

    return id < 0 || id >= a.n_experts ? a.n_experts : id;
}

/* starts [n_keys]: where each key's slots begin; then the number of its first tile [n_keys]; then, for each key and
 * thread, how many slots of that key the thread has, and later where its next one goes [n_keys][n_threads]. */
kernel void kernel_sort_slots(constant firn_gpu_product_args &a [[buffer(0)]], device const uchar *ids [[buffer(1)]],
                              device int *sorted [[buffer(2)]], device int *starts [[buffer(3)]],
                              ushort index [[thread_index_in_threadgroup]],
                              ushort n_threads [[threads_per_threadgroup]])
{
    const int n_keys = a.n_experts + 1, run = (a.n_rows + n_threads - 1) / n_threads;
    const int first_slot = min(index * run, a.n_rows), last_slot = min(first_slot + run, a.n_rows);
    device firn_gpu_tile *tiles = (device firn_gpu_tile *)(sorted + a.n_rows);
    device int *first_tile = starts + n_keys, *own = first_tile + n_keys;

    for (int e = 0; e < n_keys; e++)
        own[e * n_threads + index] = 0;
    for (int slot = first_slot; slot < last_slot; slot++)
        own[key_of_slot(a, ids, slot) * n_threads + index]++;
    threadgroup_barrier(mem_flags::mem_device);
    for (int e = index; e < n_keys; e += n_threads) {
        int n = 0;
        for (int t = 0; t < n_threads; t++) {
            const int more = own[e * n_threads + t];
            own[e * n_threads + t] = n;
            n += more;
        }
        starts[e] = n;
    }
    threadgroup_barrier(mem_flags::mem_device);
    if (index == 0) {
        int first = 0, tile = 0;
        for (int e = 0; e < n_keys; e++) {
            const int n = starts[e];
            starts[e] = first;
            first_tile[e] = tile;
            first += n;
            tile += (n + TILE_ROWS - 1) / TILE_ROWS;
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (int e = index; e < n_keys; e += n_threads) {
        const int first = starts[e], n = (e + 1 < n_keys ? starts[e + 1] : a.n_rows) - first;
        int tile = first_tile[e];
        for (int i = 0; i < n; i += TILE_ROWS) {
            tiles[tile].expert = e;
            tiles[tile].first = first + i;
            tiles[tile++].n = min(n - i, (int)TILE_ROWS);
        }
        if (e == n_keys - 1)
            for (; tile < a.n_tiles; tile++)
                tiles[tile].n = 0;
    }
    for (int slot = first_slot; slot < last_slot; slot++) {
        const int e = key_of_slot(a, ids, slot);
        sorted[starts[e] + own[e * n_threads + index]++] = slot;
    }
}
