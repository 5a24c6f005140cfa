/* A kernel set: what gemm.c (the frame) needs from one instruction set. One file or family of files and one row each in
 * kernel_set.c; which runs is chosen at start by the processor's features and the precision, or by FIRN_CPU=<name>.
 *
 * Two packed operands meet in the micro-kernel. Both are arrays of cells of 32 bits: one float, or with
 * FIRN_PRECISION_BF16 two bf16 that follow each other along the depth, the first in the low half.
 *   panel  cells [16, steps]         the vector operand, 64-byte aligned
 *   strip  cells [height, steps]     the broadcast operand; a set may order it otherwise
 * Where depth leaves a cell half full, its other half is zero. A packed row is walked in units of 32 elements: what one
 * load of code bytes yields, two runs of 16 columns. */
#ifndef FIRN_CPU_KERNEL_SET_H
#define FIRN_CPU_KERNEL_SET_H

#include "firn/firn.h"

enum {
    FIRN_STRIP_MAX = 32, /* the highest strip of any set */
    FIRN_PANEL = 16,
    FIRN_UNIT = 32,
    FIRN_SPAN = 256,  /* columns whose scales are decoded together */
    FIRN_DEPTH = 256, /* depth of a panel */
    FIRN_FEW_MAX = 8, /* the most rows that any set streams packed bytes for, without panels */
    FIRN_PACE = 32,
    FIRN_SLACK = 16, /* cells that packing a strip may write past its end */
};

/* A cursor over the packed bytes that come next: `rows` pieces of `bytes` bytes, `stride` apart. The micro-kernel asks
 * for `lines` cache lines every FIRN_PACE steps, into the L2. They must be spread out: a core has about two dozen
 * miss buffers, and a longer volley of prefetches blocks the loads behind it for a whole memory latency. */
typedef struct {
    const uint8_t *at;
    int64_t offset, bytes, stride, rows;
    int lines;
} firn_ahead;

static inline void firn_look_ahead(firn_ahead *a)
{
    for (int i = 0; i < a->lines && a->rows > 0; i++) {
        __builtin_prefetch(a->at + a->offset, 0, 2);
        a->offset += 64;
        if (a->offset >= a->bytes) {
            a->offset = 0;
            a->at += a->stride;
            a->rows--;
        }
    }
}

/* Where a tile of C goes: rows c[0..height); of each, the n_columns[i] <= 16 of panel i from column[i] on. */
typedef struct {
    float *const *c;
    int64_t column[2];
    int n_columns[2]; /* n_columns[1] is 0 where there is one panel */
    bool add;         /* C += tile */
} firn_tile_out;

/* Scales of up to 8 units of many rows, scale-major. */
typedef struct {
    float scale[16][FIRN_DEPTH], shift[16][FIRN_DEPTH];
} firn_scale_table;

/* Kernels of one packed format: w = scale * code + shift, decoded while packing. `unit` counts units of 32 elements
 * from the row's beginning; first_unit is a multiple of 8 where the format's block has 256 elements. */
typedef struct {
    /* Scales of units [first_unit, first_unit + units), units <= 8, of n_rows <= FIRN_DEPTH rows. */
    void (*scales)(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int units,
                   firn_scale_table *table);
    /* Depth along W's rows: the panels of the two runs of unit first_unit + j. */
    void (*straight)(const uint8_t *w, int64_t row_bytes, int64_t n_rows, int64_t first_unit, int j,
                     const firn_scale_table *table, float *first, float *second);
    /* Depth along W's columns, lanes along n_rows <= 16 rows; fills the table itself. */
    void (*transposed)(const uint8_t *w, int64_t row_bytes, int n_rows, int64_t first_unit, int units,
                       firn_scale_table *table, float *panel);
    /* Columns where the two runs of a unit begin, counted from the first unit's. */
    void (*columns)(int j, int column[2]);
} firn_packed_kernels;

/* Up to `rows` rows forward, `rows_back` back; x and dy contiguous. forward: y[i][r] (+)= W[:,r]' x[i], r in [from,
 * to), after prepare has made of x what forward wants to find in scratch, firn_few_scratch(k, n) cells, 64-byte
 * aligned. back: dx[i][c] (+)= sum over m rows of W[c,r] dy[i][r], c in [from, to); from is a multiple of 32, or of 256
 * where the format's block has 256 elements. */
typedef struct {
    int rows, rows_back;
    void (*prepare)(int64_t k, int n, const float *const *x, float *scratch);
    void (*forward)(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t from, int64_t to, int n,
                    const float *const *x, const float *scratch, float *const *y, bool add);
    void (*back)(const uint8_t *w, int64_t row_bytes, int64_t k, int64_t m, int64_t from, int64_t to, int n,
                 const float *const *dy, float *const *dx, bool add);
} firn_few_kernels;

static inline int64_t firn_few_scratch(int64_t k, int64_t n)
{
    return FIRN_PANEL + n * ((k + FIRN_SPAN - 1) / FIRN_SPAN * FIRN_SPAN);
}

typedef struct firn_kernel_set {
    const char *name;
    bool (*usable)(void);
    void (*enter)(void), (*leave)(void); /* each thread, before its first and after its last kernel; or NULL */
    bool by_name;                        /* never chosen otherwise */
    firn_precision precision;

    int strip;        /* rows of a strip at most */
    int strip_direct; /* the same for tile_rows */
    int strip_whole;  /* heights are multiples of it, but for the last strip's */
    int panels;       /* that the micro-kernel takes at once, 1 or 2 */
    int step_whole;   /* steps are a multiple of it: the frame clears what packing panels leaves */

    /* C (+)= sum over p, in order: strip[p*height + i] * panel[.][p*16 + j]. */
    void (*tile)(int height, int64_t steps, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead);
    /* The same with the broadcast operand where it lies: rows[i][at + p]. Bit-equal to tile. Or NULL. */
    void (*tile_rows)(int height, int64_t depth, const float *const *rows, int64_t at, const float *const panel[2],
                      const firn_tile_out *out);

    /* strip[p*height + i] = rows[i][at + p]. The frame asks for steps [0, depth) of a strip, strip_from_columns also
     * for 16 steps at a time, `strip` then lying round_up(height, strip_whole) cells further for each step before. */
    void (*strip_from_rows)(const float *const *rows, int64_t at, int height, int64_t depth, float *strip);
    /* strip[p*height + i] = columns[p][at + i]; columns[p] has `end` floats. Both may write FIRN_SLACK cells past the
     * strip's end. */
    void (*strip_from_columns)(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                               float *strip);
    /* first[p*16 + c] = rows[p][at + c], second[p*16 + c] = rows[p][at + 16 + c]; columns past n_columns <= 32 become
     * zero; second is not written when n_columns <= 16. */
    void (*panel_straight)(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                           float *second);
    /* panel[p*16 + i] = rows[i][at + p]; rows past n_rows repeat the last. */
    void (*panel_transposed)(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel);
    /* n elements, whole blocks. */
    void (*decode)(firn_type type, const void *packed, int64_t n, float *out);

    const struct firn_team_kernels *attention, *scan; /* team.h; NULL: the reference */

    /* For k a multiple of 32, as it is in blocks (few: any k for F32). */
    const firn_packed_kernels *packed[FIRN_TYPE_LIMIT]; /* NULL: through decode and F32 panels */
    const firn_few_kernels *few[FIRN_TYPE_LIMIT];       /* NULL: through panels */
} firn_kernel_set;

/* Elements of depth in a cell. */
static inline int64_t firn_cell(const firn_kernel_set *set)
{
    return set->precision == FIRN_PRECISION_BF16 ? 2 : 1;
}

/* What FIRN_CPU says, or NULL; nobody else reads it. */
const char *firn_kernel_set_asked(void);
/* The best this processor has for a precision, or what FIRN_CPU names if it is usable here and has it; NULL when there
 * is none. There is one for F32 everywhere. */
const firn_kernel_set *firn_kernel_set_default(firn_precision precision);
/* All that were compiled, best first, NULL-terminated. */
extern const firn_kernel_set *const firn_kernel_sets[];
/* NULL when there is none of that name, or this processor cannot run it. */
const firn_kernel_set *firn_kernel_set_named(const char *name);

extern const firn_kernel_set firn_kernel_set_scalar, firn_kernel_set_vector, firn_kernel_set_scalar_bf16;
#if defined(__x86_64__)
extern const firn_kernel_set firn_kernel_set_avx2, firn_kernel_set_avx512, firn_kernel_set_avx512vnni,
    firn_kernel_set_avx512bf16, firn_kernel_set_amx;
#elif defined(__aarch64__)
extern const firn_kernel_set firn_kernel_set_neon;
#endif

/* Plain C, for the sets that have nothing faster. */
void firn_scalar_strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip);
void firn_scalar_strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                                    float *strip);
void firn_scalar_panel_straight(const float *const *rows, int64_t at, int n_columns, int64_t depth, float *first,
                                float *second);
void firn_scalar_panel_transposed(const float *const *rows, int64_t at, int n_rows, int64_t depth, float *panel);
void firn_scalar_decode(firn_type type, const void *packed, int64_t n, float *out);
#define FIRN_SCALAR_PACKERS                                                                                            \
    .strip_from_rows = firn_scalar_strip_from_rows, .strip_from_columns = firn_scalar_strip_from_columns,              \
    .panel_straight = firn_scalar_panel_straight, .panel_transposed = firn_scalar_panel_transposed,                    \
    .decode = firn_scalar_decode

#endif
