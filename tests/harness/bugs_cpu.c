/* Defects inside the CPU's matrix products: the device's kernel set is replaced by a copy with one function spoiled, so
 * that the frame (cpu/gemm.c) runs as it does, and nothing of it is in the library. */
#include "harness.h"

#include "cpu/cpu.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

static const firn_kernel_set *right; /* the set whose place the spoiled one takes */
static firn_kernel_set wrong;
static firn_packed_kernels wrong_packed;
static firn_few_kernels wrong_few;
static pthread_t first_thread;

#define TILE(name)                                                                                                     \
    static void name(int height, int64_t steps, const float *strip, const float *const panel[2],                       \
                     const firn_tile_out *out, firn_ahead *ahead)

TILE(ragged_edge)
{
    firn_tile_out narrow = *out;

    if (narrow.n_columns[0] > 1 && narrow.n_columns[0] < FIRN_PANEL)
        narrow.n_columns[0]--;
    right->tile(height, steps, strip, panel, &narrow, ahead);
}

TILE(depth_overwrites)
{
    firn_tile_out over = *out;

    over.add = false;
    right->tile(height, steps, strip, panel, &over, ahead);
}

TILE(last_step)
{
    right->tile(height, steps > 1 ? steps - 1 : steps, strip, panel, out, ahead);
}

TILE(half_sums)
{
    right->tile(height, steps, strip, panel, out, ahead);
    for (int i = 0; i < height; i++)
        out->c[i][out->column[0]] = roundf(out->c[i][out->column[0]] * 256) / 256;
}

TILE(thread_dependent)
{
    right->tile(height, steps, strip, panel, out, ahead);
    if (!pthread_equal(pthread_self(), first_thread))
        out->c[0][out->column[0]] = nextafterf(out->c[0][out->column[0]], INFINITY);
}

/* The last element of each row is what the workspace held. */
static void stale_strip(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    right->strip_from_rows(rows, at, height, depth - 1, strip);
}

static void slot_twice(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    const float *twice[FIRN_STRIP_MAX];

    memcpy(twice, rows, (size_t)height * sizeof *twice);
    twice[height - 1] = rows[0];
    right->strip_from_rows(twice, at, height, depth, strip);
}

static void stale_scales(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int units,
                         firn_scale_table *table)
{
    if (units > 1)
        right->packed[FIRN_Q8_0]->scales(w, row_bytes, n_rows, first_unit, units - 1, table);
    else
        right->packed[FIRN_Q8_0]->scales(w, row_bytes, n_rows, first_unit, units, table);
    memset(table->scale[units - 1], 0, sizeof table->scale[0]);
}

static void unit_before(const uint8_t *w, int64_t row_bytes, int n_rows, int64_t first_unit, int units,
                        firn_scale_table *table, float *panel)
{
    right->packed[FIRN_Q4_0]->transposed(w, row_bytes, n_rows, first_unit > 0 ? first_unit - 1 : 0, units, table,
                                         panel);
}

static void few_unit_short(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to, int n,
                           const float *const *x, const float *scratch, float *const *y, bool add)
{
    right->few[FIRN_Q4_0]->forward(w, row_bytes, k > FIRN_UNIT ? k - FIRN_UNIT : k, from, to, n, x, scratch, y, add);
}

static void few_row_short(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t m, int64_t from, int64_t to, int n,
                          const float *const *dy, float *const *dx, bool add)
{
    right->few[FIRN_Q4_0]->back(w, row_bytes, k, m > 1 ? m - 1 : m, from, to, n, dy, dx, add);
}

/* ---- the list ---- */

static const struct {
    const char *name, *op;
    /* What is spoiled. */
    void (*tile)(int, int64_t, const float *, const float *const[2], const firn_tile_out *, firn_ahead *);
    void (*strip_from_rows)(const float *const *, int64_t, int, int64_t, float *);
    firn_type type; /* of the kernels below */
    firn_packed_kernels packed;
    firn_few_kernels few;
} defects[] = {
    {.name = "kernel: a ragged edge one column short", .op = "MUL_MAT", .tile = ragged_edge},
    {.name = "kernel: a block of depth overwrites the one before", .op = "MUL_MAT", .tile = depth_overwrites},
    {.name = "kernel: the last step of depth left out", .op = "OUT_PROD_ID", .tile = last_step},
    {.name = "kernel: half-precision sums", .op = "MUL_MAT_ID", .tile = half_sums},
    {.name = "kernel: bits that depend on the thread", .op = "MUL_MAT", .tile = thread_dependent},
    {.name = "kernel: a strip with stale workspace", .op = "MUL_MAT_ID", .strip_from_rows = stale_strip},
    {.name = "kernel: a slot twice, another dropped", .op = "MUL_MAT_ID_BACK", .strip_from_rows = slot_twice},
    {.name = "kernel: the last unit's scales stale",
     .op = "OUT_PROD",
     .type = FIRN_Q8_0,
     .packed.scales = stale_scales},
    {.name = "kernel: a panel one unit behind", .op = "MUL_MAT", .type = FIRN_Q4_0, .packed.transposed = unit_before},
    {.name = "kernel: a few rows, one unit short",
     .op = "MUL_MAT_ID",
     .type = FIRN_Q4_0,
     .few.forward = few_unit_short},
    {.name = "kernel: a few rows, one row of W short",
     .op = "MUL_MAT_ID_BACK",
     .type = FIRN_Q4_0,
     .few.back = few_row_short},
};

int cpu_bug_count(void)
{
    return (int)(sizeof defects / sizeof *defects);
}

static void use(const target *t, const firn_kernel_set *set)
{
    firn_cpu_use_set(t->device, set);
    if (t->device1)
        firn_cpu_use_set(t->device1, set);
}

const char *cpu_bug_plant(const target *t, int i, const char **op)
{
    if (right)
        use(t, right);
    right = NULL;
    if (i < 0)
        return NULL;
    right = firn_cpu_set(t->device);
    first_thread = pthread_self();
    wrong = *right;
    *op = defects[i].op;
    if (defects[i].tile)
        wrong.tile = defects[i].tile;
    if (defects[i].strip_from_rows)
        wrong.strip_from_rows = defects[i].strip_from_rows;
    if (defects[i].tile || defects[i].strip_from_rows)
        wrong.tile_rows = NULL; /* strips always */
    const firn_type type = defects[i].type;
    if (right->packed[type]) {
        wrong_packed = *right->packed[type];
        if (defects[i].packed.scales)
            wrong_packed.scales = defects[i].packed.scales;
        if (defects[i].packed.transposed)
            wrong_packed.transposed = defects[i].packed.transposed;
        wrong.packed[type] = &wrong_packed;
    }
    if (right->few[type]) {
        wrong_few = *right->few[type];
        if (defects[i].few.forward)
            wrong_few.forward = defects[i].few.forward;
        if (defects[i].few.back)
            wrong_few.back = defects[i].few.back;
        wrong.few[type] = &wrong_few;
    }
    use(t, &wrong);
    const bool there = (!defects[i].packed.scales && !defects[i].packed.transposed) || right->packed[type];
    return there && ((!defects[i].few.forward && !defects[i].few.back) || right->few[type]) ? defects[i].name : NULL;
}
