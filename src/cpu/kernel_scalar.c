/* The scalar kernel set: plain loops, right on every machine; and the plain packers that other sets borrow. */
#include "cpu/kernel_set.h"
#include "format/format.h"

static bool usable(void)
{
    return true;
}

static void put(const float sum[FIRN_PANEL], float *c, int n_columns, bool add)
{
    for (int j = 0; j < n_columns; j++)
        c[j] = add ? c[j] + sum[j] : sum[j];
}

static void tile(int height, int64_t depth, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
    (void)ahead;
    for (int i = 0; i < height; i++) {
        float sum[FIRN_PANEL] = {0};
        for (int64_t p = 0; p < depth; p++)
            for (int j = 0; j < FIRN_PANEL; j++)
                sum[j] += strip[p * height + i] * panel[0][p * FIRN_PANEL + j];
        put(sum, out->c[i] + out->column[0], out->n_columns[0], out->add);
    }
}

static void tile_rows(int height, int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],
                      const firn_tile_out *out)
{
    for (int i = 0; i < height; i++) {
        float sum[FIRN_PANEL] = {0};
        for (int64_t p = 0; p < depth; p++)
            for (int j = 0; j < FIRN_PANEL; j++)
                sum[j] += rows[i][at + p] * panel[0][p * FIRN_PANEL + j];
        put(sum, out->c[i] + out->column[0], out->n_columns[0], out->add);
    }
}

void firn_scalar_strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < height; i++)
            strip[p * height + i] = rows[i][at + p];
}

void firn_scalar_strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                                    float *strip)
{
    (void)end;
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < height; i++)
            strip[p * height + i] = columns[p][at + i];
}

void firn_scalar_panel_straight(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                                float *second)
{
    for (int64_t p = 0; p < depth; p++)
        for (int j = 0; j < FIRN_PANEL; j++) {
            first[p * FIRN_PANEL + j] = j < n_columns ? rows[p][at + j] : 0;
            if (n_columns > FIRN_PANEL)
                second[p * FIRN_PANEL + j] = FIRN_PANEL + j < n_columns ? rows[p][at + FIRN_PANEL + j] : 0;
        }
}

void firn_scalar_panel_transposed(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel)
{
    for (int64_t p = 0; p < depth; p++)
        for (int i = 0; i < FIRN_PANEL; i++)
            panel[p * FIRN_PANEL + i] = rows[i < n_rows ? i : n_rows - 1][at + p];
}

void firn_scalar_decode(firn_type type, const void *packed, int64_t n, float *out)
{
    firn_decode_row(type, packed, n, out);
}

const firn_kernel_set firn_kernel_set_scalar = {
    .name = "scalar",
    .usable = usable,
    .strip = 6,
    .strip_direct = 6,
    .strip_whole = 1,
    .panels = 1,
    .step_whole = 1,
    .tile = tile,
    .tile_rows = tile_rows,
    FIRN_SCALAR_PACKERS,
};
