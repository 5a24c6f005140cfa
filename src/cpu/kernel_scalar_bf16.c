/* Plain C for FIRN_PRECISION_BF16: operands rounded to bf16, products summed in F32. The specification of the sets that
 * have instructions for it; chosen by name only, since on a processor without them F32 is faster. */
#include "cpu/kernel_set.h"
#include "format/common.h"
#include "format/format.h"

static bool usable(void)
{
    return true;
}

/* Halves of cells: element p of lane i of a packed operand of `lanes` lanes. */
static uint16_t *half_at(float *cells, int lanes, int64_t p, int i)
{
    return (uint16_t *)(void *)cells + 2 * (p / 2 * lanes + i) + p % 2;
}

static void tile(int height, int64_t steps, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
    const uint16_t *a = (const uint16_t *)(const void *)strip, *b = (const uint16_t *)(const void *)panel[0];

    (void)ahead;
    for (int i = 0; i < height; i++) {
        float sum[FIRN_PANEL] = {0}, *c = out->c[i] + out->column[0];
        for (int64_t p = 0; p < steps; p++)
            for (int j = 0; j < FIRN_PANEL; j++)
                for (int h = 0; h < 2; h++)
                    sum[j] += firn_bf16_to_float(a[2 * (p * height + i) + h]) *
                              firn_bf16_to_float(b[2 * (p * FIRN_PANEL + j) + h]);
        for (int j = 0; j < out->n_columns[0]; j++)
            c[j] = out->add ? c[j] + sum[j] : sum[j];
    }
}

static void clear_odd(float *cells, int lanes, int64_t depth)
{
    for (int i = 0; depth % 2 && i < lanes; i++)
        *half_at(cells, lanes, depth, i) = 0;
}

static void strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < height; i++)
            *half_at(strip, height, p, i) = firn_float_to_bf16(rows[i][at + p]);
    clear_odd(strip, height, depth);
}

static void strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                               float *strip)
{
    (void)end;
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < height; i++)
            *half_at(strip, height, p, i) = firn_float_to_bf16(columns[p][at + i]);
    clear_odd(strip, height, depth);
}

static void panel_straight(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                           float *second)
{
    float *const panel[2] = {first, second};

    for (int h = 0; h < 2 && (h == 0 || n_columns > FIRN_PANEL); h++) {
        for (int64_t p = 0; p < depth; p++)
            for (int j = 0; j < FIRN_PANEL; j++) {
                const int column = FIRN_PANEL * h + j;
                *half_at(panel[h], FIRN_PANEL, p, j) =
                    column < n_columns ? firn_float_to_bf16(rows[p][at + column]) : 0;
            }
        clear_odd(panel[h], FIRN_PANEL, depth);
    }
}

static void panel_transposed(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel)
{
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < FIRN_PANEL; i++)
            *half_at(panel, FIRN_PANEL, p, i) = firn_float_to_bf16(rows[i < n_rows ? i : n_rows - 1][at + p]);
    clear_odd(panel, FIRN_PANEL, depth);
}

const firn_kernel_set firn_kernel_set_scalar_bf16 = {
    .name = "scalar-bf16",
    .usable = usable,
    .by_name = true,
    .precision = FIRN_PRECISION_BF16,
    .strip = 6,
    .strip_whole = 1,
    .panels = 1,
    .step_whole = 1,
    .tile = tile,
    .strip_from_rows = strip_from_rows,
    .strip_from_columns = strip_from_columns,
    .panel_straight = panel_straight,
    .panel_transposed = panel_transposed,
    .decode = firn_scalar_decode,
};
