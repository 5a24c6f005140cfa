/* kernel_sort_slots: slots by expert, each expert's in order, and the tiles of rows that the routed products walk; one
 * threadgroup. A thread owns experts and reads all ids for each: no atomics, and the order is always the same. */
#include <metal_stdlib>
using namespace metal;

#include "metal/kernels/products.h"

/* counts [n_experts + 2]: of each expert, then where its slots begin. Number n_experts has those whose ids name none.
 */
kernel void kernel_sort_slots(constant firn_metal_product_args &a [[buffer(0)]], device const uchar *ids [[buffer(1)]],
                              device int *sorted [[buffer(2)]], device int *counts [[buffer(3)]],
                              ushort index [[thread_index_in_threadgroup]],
                              ushort n_threads [[threads_per_threadgroup]])
{
    device firn_metal_tile *tiles = (device firn_metal_tile *)(sorted + a.n_rows);

    for (int e = index; e <= a.n_experts; e += n_threads) {
        int n = 0;
        for (int slot = 0; slot < a.n_rows; slot++) {
            const int id = expert_of_slot(a, ids, slot);
            n += (id < 0 || id >= a.n_experts ? a.n_experts : id) == e;
        }
        counts[e] = n;
    }
    threadgroup_barrier(mem_flags::mem_device);
    if (index == 0) {
        int first = 0, tile = 0;
        for (int e = 0; e <= a.n_experts; e++) {
            const int n = counts[e];
            for (int i = 0; i < n; i += TILE_ROWS) {
                tiles[tile].expert = e;
                tiles[tile].first = first + i;
                tiles[tile++].n = min(n - i, (int)TILE_ROWS);
            }
            counts[e] = first;
            first += n;
        }
        for (; tile < a.n_tiles; tile++)
            tiles[tile].n = 0;
    }
    threadgroup_barrier(mem_flags::mem_device);
    for (int e = index; e <= a.n_experts; e += n_threads) {
        int at = counts[e];
        for (int slot = 0; slot < a.n_rows; slot++) {
            const int id = expert_of_slot(a, ids, slot);
            if ((id < 0 || id >= a.n_experts ? a.n_experts : id) == e)
                sorted[at++] = slot;
        }
    }
}
