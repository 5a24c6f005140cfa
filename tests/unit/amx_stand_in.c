/* The AMX kernels on tiles in plain C, so that their packing and indexing are tried where there are no tiles. What the
 * instructions do: Intel's manual, tdpbf16ps and its like. Shapes are honoured: a tile that was not configured, or a
 * row past its own, traps. */
#if defined(__AVX512BF16__)
#include "cpu/kernel_set.h"

#include <string.h>

extern const firn_kernel_set firn_kernel_set_amx_stand_in;

typedef struct {
    uint8_t rows[8], configured;
    uint16_t bytes[8];
    uint8_t data[8][16][64];
} tile_state;

static _Thread_local tile_state state;

static void tile_configure(const void *config)
{
    const uint8_t *c = config;

    memset(&state, 0, sizeof state);
    if (c[0] != 1)
        __builtin_trap();
    for (int t = 0; t < 8; t++) {
        memcpy(&state.bytes[t], c + 16 + 2 * t, 2);
        state.rows[t] = c[48 + t];
        if (state.rows[t] > 16 || state.bytes[t] > 64)
            __builtin_trap();
    }
    state.configured = 1;
}

static void tile_forget(void)
{
    memset(&state, 0, sizeof state);
}

static void need(int t)
{
    if (!state.configured || !state.rows[t] || !state.bytes[t])
        __builtin_trap();
}

static void tile_clear(int t)
{
    need(t);
    memset(state.data[t], 0, sizeof state.data[t]);
}

static void tile_read_rows(int t, const void *from, int stride)
{
    need(t);
    memset(state.data[t], 0, sizeof state.data[t]);
    for (int i = 0; i < state.rows[t]; i++)
        memcpy(state.data[t][i], (const char *)from + i * stride, state.bytes[t]);
}

static void tile_write_rows(int t, void *to, int stride)
{
    need(t);
    for (int i = 0; i < state.rows[t]; i++)
        memcpy((char *)to + i * stride, state.data[t][i], state.bytes[t]);
}

static float bf16_at(int t, int row, int i)
{
    uint16_t half;
    memcpy(&half, state.data[t][row] + 2 * i, 2);
    const uint32_t bits = (uint32_t)half << 16;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static void tile_dot(int c, int a, int b)
{
    need(c), need(a), need(b);
    for (int m = 0; m < state.rows[c]; m++)
        for (int k = 0; k < state.bytes[a] / 4; k++)
            for (int n = 0; n < state.bytes[c] / 4; n++) {
                float sum;
                memcpy(&sum, state.data[c][m] + 4 * n, 4);
                sum += bf16_at(a, m, 2 * k) * bf16_at(b, k, 2 * n);
                sum += bf16_at(a, m, 2 * k + 1) * bf16_at(b, k, 2 * n + 1);
                memcpy(state.data[c][m] + 4 * n, &sum, 4);
            }
}

static bool usable(void)
{
    return firn_kernel_set_avx512bf16.usable();
}

#define tile_read(t, p)  tile_read_rows(t, p, STRIDE)
#define tile_write(t, p) tile_write_rows(t, p, STRIDE)
#define FIRN_AMX_STAND_IN
#include "cpu/kernel_amx.c"
#endif
