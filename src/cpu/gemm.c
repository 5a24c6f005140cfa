/* The frame of the tiled product: who computes what, in which order; the arithmetic is in a kernel set.
 *
 * Rows are grouped (by expert, with a counting sort of the slots; or by batch); every group's rows become blocks, and
 * blocks times column cuts are items, which threads take from a counter. Inside an item, for each block of depth:
 *     pack the broadcast operand into strips of a few rows     (L2)
 *     for each 16 columns: decode W into a panel               (L1)
 *         for each strip: micro-kernel, then a few prefetches of packed bytes that the next panels will decode
 *
 *               rows of C       columns of C   depth      strips from         panels from
 *     FORWARD   slots or n      m              k          x                   W, transposed
 *     BACK      slots or n      k              m          dy                  W, straight
 *     OUTER     m               k              slots      dy                  x, straight
 *
 * The order of a sum: depth blocks in order, inside a block one register. Neither the cut into items nor the height of
 * a strip shows in it. Groups of a few rows stream the packed bytes instead (firn_few_kernels). Operands are packed as
 * cells (kernel_set.h), of which a block of depth has `steps`. */
#include "cpu/gemm.h"
#include "format/format.h"
#include "format/gather.h"

#include <string.h>

enum {
    ROWS_MAX = 256, /* rows of one item: its strips of a block of depth stay in the L2 */
    ROWS_MIN = 24,
    ITEMS_PER_THREAD = 24, /* aim; the idle time at the end is then about 2 % */
    ITEMS_LEAST = 6,       /* fewer per thread than that, and items become smaller than is good for packing */
    WIDE = 256,            /* columns over which packing strips costs little */
    NARROW = 64,
    STREAM = 1024,  /* back, few rows: longer pieces of W's rows suit memory better */
    DIRECT = 32,    /* up to so many columns, packing strips costs more than reading rows where they lie */
    SHALLOW = 32,   /* up to so much depth, the panels of a whole span fit where two deep ones do */
    PANEL_PAD = 16, /* cells between two panels, against aliasing in the L1 */
    LOWEST = 4,     /* the least rows of a strip when there are several */
    ALIGN = 64,
};

typedef struct {
    int64_t group, first, n_rows; /* order[first..) when routed, rows of the batch or of C otherwise */
    int n_strips, low, n_tall;    /* see strip_height */
    bool few;
} block;

typedef struct {
    atomic_llong next;
    int64_t n_blocks, n_cuts, width;
} schedule;

enum {
    /* A strip may be written beyond its end, and the last one's height may be filled up to strip_whole. */
    STRIPS_CELLS = (ROWS_MAX + FIRN_STRIP_MAX) * FIRN_DEPTH + FIRN_SLACK * (ROWS_MAX / LOWEST + 1),
    /* Two deep panels, or shallow ones for a whole span. */
    PANELS_DEEP = 2 * (FIRN_PANEL * FIRN_DEPTH + PANEL_PAD),
    PANELS_SHALLOW = FIRN_SPAN / FIRN_PANEL * (FIRN_PANEL * SHALLOW + PANEL_PAD),
    PANELS_CELLS = PANELS_DEEP > PANELS_SHALLOW ? PANELS_DEEP : PANELS_SHALLOW,
};

/* A thread's own memory. */
typedef struct {
    float *strips, *panels, *scratch; /* scratch: [256, 256], weights that have no packed kernels; or NULL */
    float *gather;                    /* rows or columns of a strip whose elements do not follow each other; or NULL */
    firn_scale_table *table;
    float *prepared, *few_in; /* a few rows of x as forward wants them, and the rows themselves if strided */
    const float *prepared_of[FIRN_FEW_MAX]; /* the rows that are prepared, NULL past them */
} workspace;

typedef struct {
    const firn_gemm *g;
    const firn_kernel_set *set;
    const firn_packed_kernels *packed;
    const firn_few_kernels *few;
    int64_t n2, n3, w_n2, w_n3; /* with 0 read as 1 */
    int64_t n_groups, n_slots, columns, grain;
    schedule *schedule;
    int64_t *order; /* slots by expert */
    int64_t *start; /* [n_expert + 1] into order */
    block *blocks;
    char *workspaces;
    size_t workspace_bytes;
} job;

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t round_up(int64_t a, int64_t b)
{
    return divide_up(a, b) * b;
}

static bool routed(const firn_gemm *g)
{
    return g->ids != NULL;
}

/* ---- memory ---- */

static void *carve(char *base, size_t *used, size_t bytes)
{
    void *p = base ? base + *used : NULL;

    *used += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static bool needs_scratch(const job *j)
{
    return j->g->kind == FIRN_GEMM_OUTER ? j->g->in1.nb[0] != 4 : !j->packed && j->g->type != FIRN_F32;
}

/* At most so many rows stream packed bytes through registers, without panels. */
static int few_rows(const job *j)
{
    return !j->few ? 0 : j->g->kind == FIRN_GEMM_FORWARD ? j->few->rows : j->few->rows_back;
}

static workspace carve_workspace(const job *j, char *base, size_t *used)
{
    const firn_gemm *g = j->g;
    const int64_t in_length = g->kind == FIRN_GEMM_FORWARD ? g->k : g->m, few = few_rows(j);
    workspace b = {0};

    b.strips = carve(base, used, STRIPS_CELLS * sizeof(float));
    b.panels = carve(base, used, PANELS_CELLS * sizeof(float));
    if (g->in1.nb[0] != 4 || (g->kind == FIRN_GEMM_OUTER && g->in2.nb[0] != 4))
        b.gather = carve(base, used, FIRN_STRIP_MAX * FIRN_DEPTH * sizeof(float));
    if (needs_scratch(j))
        b.scratch = carve(base, used, FIRN_DEPTH * FIRN_SPAN * sizeof(float));
    if (j->packed)
        b.table = carve(base, used, sizeof *b.table);
    if (j->few)
        b.prepared = carve(base, used, (size_t)firn_few_scratch(g->k, few) * sizeof(float));
    if (j->few && g->in1.nb[0] != 4)
        b.few_in = carve(base, used, (size_t)(few * in_length) * sizeof(float));
    return b;
}

/* Fills in what follows from g alone, and with `work` the addresses. Returns the bytes of the workspace. */
static size_t lay_out(const firn_gemm *g, int n_threads, char *work, job *j)
{
    size_t used = 0, workspace_bytes = 0;
    int64_t n_blocks;

    *j = (job){.g = g, .set = g->set ? g->set : firn_kernel_set_default(FIRN_PRECISION_F32)};
    j->n2 = g->n2 ? g->n2 : 1;
    j->n3 = g->n3 ? g->n3 : 1;
    j->w_n2 = g->w_n2 ? g->w_n2 : 1;
    j->w_n3 = g->w_n3 ? g->w_n3 : 1;
    j->n_groups = routed(g) ? g->n_expert : j->n2 * j->n3;
    j->n_slots = routed(g) ? g->n_used * g->n_tokens : 0;
    j->columns = g->kind == FIRN_GEMM_FORWARD ? g->m : g->k;
    j->grain = FIRN_UNIT;
    if (g->kind != FIRN_GEMM_OUTER) {
        const bool units = g->k % FIRN_UNIT == 0; /* only scalar types can have a rest */
        j->packed = units ? j->set->packed[g->type] : NULL;
        j->few = units || g->type == FIRN_F32 ? j->set->few[g->type] : NULL;
        if (g->kind == FIRN_GEMM_BACK)
            j->grain = firn_max_i64(FIRN_UNIT, firn_type_block(g->type));
    }
    if (g->kind == FIRN_GEMM_OUTER)
        n_blocks = g->n_expert * divide_up(g->m, ROWS_MIN);
    else if (routed(g))
        n_blocks = j->n_slots / ROWS_MIN + firn_min_i64(g->n_expert, j->n_slots);
    else
        n_blocks = j->n_groups * divide_up(g->n, ROWS_MIN);

    j->schedule = carve(work, &used, sizeof *j->schedule);
    j->order = carve(work, &used, (size_t)j->n_slots * sizeof *j->order);
    j->start = carve(work, &used, (size_t)(routed(g) ? g->n_expert + 1 : 0) * sizeof *j->start);
    j->blocks = carve(work, &used, (size_t)n_blocks * sizeof *j->blocks);
    carve_workspace(j, NULL, &workspace_bytes);
    j->workspace_bytes = workspace_bytes;
    j->workspaces = carve(work, &used, workspace_bytes * (size_t)n_threads);
    return used;
}

bool firn_gemm_reads(firn_type type)
{
    return firn_format_can_decode(type);
}

size_t firn_gemm_work_bytes(const firn_gemm *g, int n_threads)
{
    job j;

    return lay_out(g, n_threads, NULL, &j);
}

/* ---- where things lie ---- */

static const uint8_t *weights(const job *j, int64_t group)
{
    const firn_gemm *g = j->g;
    const uint8_t *data = g->w.data;

    if (g->table)
        return data + g->table[group];
    if (routed(g))
        return data + group * g->w.nb[2];
    return data + group % j->n2 % j->w_n2 * g->w.nb[2] + group / j->n2 % j->w_n3 * g->w.nb[3];
}

/* Offset of a row of x, dy or out: `row` is a slot when routed. */
static int64_t row_offset(const job *j, const int64_t nb[], int64_t row_slots, int64_t group, int64_t row)
{
    const firn_gemm *g = j->g;

    if (routed(g))
        return row % g->n_used % row_slots * nb[1] + row / g->n_used * nb[2];
    return row * nb[1] + group % j->n2 * nb[2] + group / j->n2 * nb[3];
}

static const float *row_of(const job *j, const firn_gemm_view *v, int64_t row_slots, int64_t group, int64_t row)
{
    return (const float *)((const char *)v->data + row_offset(j, v->nb, row_slots, group, row));
}

static int64_t in1_slots(const firn_gemm *g)
{
    return g->kind == FIRN_GEMM_BACK ? g->n_used : g->x_slots;
}

/* The rows of C of a block, and (FORWARD, BACK) its rows of in1. */
static void block_rows(const job *j, const block *b, const float **in, float **c)
{
    const firn_gemm *g = j->g;

    if (g->kind == FIRN_GEMM_OUTER) {
        for (int64_t i = 0; i < b->n_rows; i++)
            c[i] = (float *)((char *)g->out + (b->first + i) * g->out_nb[1] + b->group * g->out_nb[2]);
        return;
    }
    for (int64_t i = 0; i < b->n_rows; i++) {
        if (i > 0 && !routed(g)) {
            in[i] = (const float *)((const char *)in[i - 1] + g->in1.nb[1]);
            c[i] = (float *)((char *)c[i - 1] + g->out_nb[1]);
            continue;
        }
        const int64_t row = routed(g) ? j->order[b->first + i] : b->first;
        in[i] = row_of(j, &g->in1, in1_slots(g), b->group, row);
        c[i] = (float *)((char *)g->out + row_offset(j, g->out_nb, g->n_used, b->group, row));
    }
}

/* ---- strips ---- */

static float at_step(const float *p, int64_t i, int64_t step)
{
    return *(const float *)((const char *)p + i * step);
}

/* The broadcast operand of a block of depth: its strips, or rows where they lie. */
typedef struct {
    const float *const *rows; /* NULL: the workspace's strips */
    int64_t from, depth, steps;
} left;

static left left_of(const job *j, const float *const *rows, int64_t from, int64_t depth)
{
    return (left){rows, from, depth, round_up(divide_up(depth, firn_cell(j->set)), j->set->step_whole)};
}

/* Strips of equal height: 32 rows are 6+6+5+5+5+5, never five 6s and a lone 2, whose few sums could not hide the
 * latency of an addition. Where heights must be multiples of strip_whole, the last strip has what is left. */
static void cut_strips(const job *j, block *b, int height)
{
    const int whole = j->set->strip_whole;

    b->n_strips = (int)divide_up(b->n_rows, height);
    b->low = whole > 1 ? height : (int)(b->n_rows / b->n_strips);
    b->n_tall = whole > 1 ? 0 : (int)(b->n_rows % b->n_strips);
}

static int strip_height(const block *b, int strip, int64_t first)
{
    return (int)firn_min_i64(b->low + (strip < b->n_tall), b->n_rows - first);
}

static float *strip_at(const workspace *w, int strip, int64_t first, int64_t steps)
{
    return w->strips + first * steps + FIRN_SLACK * strip;
}

/* Strips of columns[p][at + i], i < b->n_rows, p < depth. Sixteen steps at a time over all strips: a column's
 * cache line serves several strips, and columns a power of two apart share few sets of the L1. */
static void pack_columns(const job *j, workspace *w, const block *b, const left *l, const float *const *columns,
                         int64_t at, int64_t end)
{
    const int64_t cell = firn_cell(j->set), run = 16 * cell;

    for (int64_t p = 0; p < l->depth; p += run)
        for (int s = 0, first = 0, height; s < b->n_strips; s++, first += height) {
            height = strip_height(b, s, first);
            for (int64_t q = p + run; q < firn_min_i64(p + 2 * run, l->depth); q++) /* the next ones, maybe cold */
                __builtin_prefetch(columns[q] + at + first, 0, 2);
            j->set->strip_from_columns(columns + p, at + first, end, height, firn_min_i64(run, l->depth - p),
                                       strip_at(w, s, first, l->steps) +
                                           round_up(height, j->set->strip_whole) * (p / cell));
        }
}

/* FORWARD and BACK: strips of rows[i][l->from + p], p < l->depth, elements `step` bytes apart. */
static void pack_rows(const job *j, workspace *w, const block *b, const left *l, const float *const *rows)
{
    const firn_gemm *g = j->g;
    const int64_t step = g->in1.nb[0];

    if (step != 4 && !routed(g) && g->in1.nb[1] == 4) { /* a transposed operand: rows lie side by side */
        const float *columns[FIRN_DEPTH];
        for (int64_t p = 0; p < l->depth; p++)
            columns[p] = (const float *)((const char *)rows[0] + (l->from + p) * step);
        pack_columns(j, w, b, l, columns, 0, g->n - b->first);
        return;
    }
    for (int s = 0, first = 0, height; s < b->n_strips; s++, first += height) {
        height = strip_height(b, s, first);
        float *strip = strip_at(w, s, first, l->steps);
        const float *gathered[FIRN_STRIP_MAX];
        for (int i = 0; step != 4 && i < height; i++) {
            float *to = w->gather + i * FIRN_DEPTH;
            for (int64_t p = 0; p < l->depth; p++)
                to[p] = at_step(rows[first + i], l->from + p, step);
            gathered[i] = to;
        }
        if (step == 4)
            j->set->strip_from_rows(rows + first, l->from, height, l->depth, strip);
        else
            j->set->strip_from_rows(gathered, 0, height, l->depth, strip);
    }
}

/* OUTER: strips of dy[p][b->first + i], p < depth. */
static void pack_slots(const job *j, workspace *w, const block *b, const left *l, const float *const *dy)
{
    const int64_t step = j->g->in2.nb[0];

    if (step == 4) {
        pack_columns(j, w, b, l, dy, b->first, j->g->m);
        return;
    }
    for (int s = 0, first = 0, height; s < b->n_strips; s++, first += height) {
        const float *gathered[FIRN_STRIP_MAX];
        height = strip_height(b, s, first);
        for (int i = 0; i < height; i++) {
            float *to = w->gather + i * FIRN_DEPTH;
            for (int64_t p = 0; p < l->depth; p++)
                to[p] = at_step(dy[p], b->first + first + i, step);
            gathered[i] = to;
        }
        j->set->strip_from_rows(gathered, 0, height, l->depth, strip_at(w, s, first, l->steps));
    }
}

/* ---- one item ---- */

/* `rows` pieces of packed bytes, to be asked for during `calls` micro-kernels of `steps` steps. */
static firn_ahead look_at(const uint8_t *at, int64_t bytes, int64_t stride, int64_t rows, int64_t calls, int64_t steps)
{
    const int64_t lines = divide_up(rows * divide_up(bytes, 64), calls * divide_up(steps, FIRN_PACE));

    return (firn_ahead){.at = at, .bytes = bytes, .stride = stride, .rows = rows, .lines = (int)lines};
}

static float *panel_at(const workspace *w, const left *l, int64_t panel)
{
    return w->panels + panel * (FIRN_PANEL * l->steps + PANEL_PAD);
}

/* What packing `depth` of l's steps left of a panel is cleared, where steps are rounded up. */
static void clear_rest(const job *j, const left *l, float *panel)
{
    const int64_t packed = divide_up(l->depth, firn_cell(j->set));

    if (packed < l->steps)
        memset(panel + FIRN_PANEL * packed, 0, (size_t)(FIRN_PANEL * (l->steps - packed)) * sizeof(float));
}

/* C: all strips against one or two panels. */
static void multiply_panels(const job *j, const workspace *w, const block *b, const left *l,
                            const float *const panel[2], firn_tile_out out, float *const *c, firn_ahead *ahead)
{
    for (int s = 0, first = 0, height; s < b->n_strips; s++, first += height) {
        height = strip_height(b, s, first);
        out.c = c + first;
        if (l->rows)
            j->set->tile_rows(height, l->depth, l->rows + first, l->from, panel, &out);
        else
            j->set->tile(height, l->steps, strip_at(w, s, first, l->steps), panel, &out, ahead);
    }
}

/* Two panels, for columns[0] and columns[1] on; n[1] may be 0. */
static void multiply_two(const job *j, const workspace *w, const block *b, const left *l, const int64_t column[2],
                         const int64_t n[2], float *const *c, bool add, firn_ahead *ahead)
{
    const float *const panel[2] = {panel_at(w, l, 0), panel_at(w, l, 1)};

    if (j->set->panels == 2) {
        multiply_panels(j, w, b, l, panel, (firn_tile_out){NULL, {column[0], column[1]}, {(int)n[0], (int)n[1]}, add},
                        c, ahead);
        return;
    }
    for (int i = 0; i < 2 && n[i] > 0; i++)
        multiply_panels(j, w, b, l, panel + i, (firn_tile_out){NULL, {column[i], 0}, {(int)n[i], 0}, add}, c, ahead);
}

/* n columns of C from `column` on: panels of consecutive columns, strip by strip, so that C is written along its rows.
 */
static void multiply(const job *j, const workspace *w, const block *b, const left *l, float *const *c, int64_t column,
                     int64_t n, bool add, firn_ahead *ahead)
{
    for (int s = 0, first = 0, height; s < b->n_strips; s++, first += height) {
        height = strip_height(b, s, first);
        for (int64_t at = 0; at < n; at += FIRN_PANEL * j->set->panels) {
            const float *const panel[2] = {panel_at(w, l, at / FIRN_PANEL), panel_at(w, l, at / FIRN_PANEL + 1)};
            const int64_t rest = j->set->panels == 2 ? firn_max_i64(n - at - FIRN_PANEL, 0) : 0;
            const firn_tile_out out = {
                c + first,
                {column + at, column + at + FIRN_PANEL},
                {(int)firn_min_i64(FIRN_PANEL, n - at), (int)firn_min_i64(FIRN_PANEL, rest)},
                add,
            };
            if (l->rows)
                j->set->tile_rows(height, l->depth, l->rows + first, l->from, panel, &out);
            else
                j->set->tile(height, l->steps, strip_at(w, s, first, l->steps), panel, &out, ahead);
        }
    }
}

/* 16 rows of W from `row` on, columns [from, from + depth), as a panel along the depth. */
static void panel_transposed(const job *j, workspace *w, const uint8_t *row, int n_rows, int64_t from, int64_t depth,
                             float *panel)
{
    const firn_gemm *g = j->g;
    const int64_t row_bytes = g->w.nb[1];
    const float *rows[FIRN_PANEL];

    if (j->packed) { /* the row's offset is in its units */
        j->packed->transposed(row, row_bytes, n_rows, from / FIRN_UNIT, (int)(depth / FIRN_UNIT), w->table, panel);
        return;
    }
    row += firn_row_bytes(g->type, from);
    for (int i = 0; i < n_rows; i++) {
        const uint8_t *at = row + i * row_bytes;
        rows[i] = (const float *)at;
        if (w->scratch) {
            j->set->decode(g->type, at, depth, w->scratch + i * FIRN_SPAN);
            rows[i] = w->scratch + i * FIRN_SPAN;
        }
    }
    j->set->panel_transposed(rows, 0, n_rows, depth, panel);
}

/* Packing strips pays when they are used for many columns. */
static bool direct(const job *j)
{
    return j->schedule->width <= DIRECT && j->set->tile_rows && j->g->in1.nb[0] == 4 && j->g->kind != FIRN_GEMM_OUTER;
}

static void forward_item(const job *j, const block *b, int64_t begin, int64_t end, workspace *w)
{
    const firn_gemm *g = j->g;
    const uint8_t *expert = weights(j, b->group);
    const int64_t row_bytes = g->w.nb[1];
    /* Shallow: the panels of a whole span fit in the L1, and then C is written along its rows. */
    const int64_t step = g->k <= SHALLOW ? FIRN_SPAN : FIRN_PANEL * j->set->panels;
    const float *x[ROWS_MAX];
    float *c[ROWS_MAX];

    block_rows(j, b, x, c);
    for (int64_t from = 0; from < g->k; from += FIRN_DEPTH) {
        const int64_t depth = firn_min_i64(FIRN_DEPTH, g->k - from);
        const left l = left_of(j, direct(j) ? x : NULL, from, depth);
        if (!l.rows)
            pack_rows(j, w, b, &l, x);
        for (int64_t column = begin; column < end; column += step) {
            const int64_t n = firn_min_i64(step, end - column), n_next = firn_min_i64(step, end - column - n);
            const int64_t calls = b->n_strips * divide_up(n, FIRN_PANEL * j->set->panels);
            firn_ahead ahead = {0};
            if (n_next > 0) /* the next rows of W, or the next block of depth */
                ahead = look_at(expert + (column + n) * row_bytes + firn_row_bytes(g->type, from),
                                (int64_t)firn_row_bytes(g->type, depth), row_bytes, n_next, calls, l.steps);
            else if (from + depth < g->k)
                ahead = look_at(expert + begin * row_bytes + firn_row_bytes(g->type, from + depth),
                                (int64_t)firn_row_bytes(g->type, firn_min_i64(FIRN_DEPTH, g->k - from - depth)),
                                row_bytes, firn_min_i64(step, end - begin), calls, l.steps);
            for (int64_t at = 0; at < n; at += FIRN_PANEL) {
                float *panel = panel_at(w, &l, at / FIRN_PANEL);
                panel_transposed(j, w, expert + (column + at) * row_bytes, (int)firn_min_i64(FIRN_PANEL, n - at), from,
                                 depth, panel);
                clear_rest(j, &l, panel);
            }
            multiply(j, w, b, &l, c, column, n, from > 0 || g->accumulate, &ahead);
        }
    }
}

/* What the panels of BACK and OUTER are made from: `depth` rows, as packed bytes or as floats. */
typedef struct {
    const uint8_t *packed;         /* row 0 of this block of depth; NULL for OUTER */
    const uint8_t *next;           /* row 0 of the next block, or NULL */
    const float *rows[FIRN_DEPTH]; /* OUTER, and BACK through F32 */
} depth_rows;

/* Columns [column, column + n) of the depth rows into scratch, 256 floats a row. */
static void fill_scratch(const job *j, workspace *w, const depth_rows *d, int64_t column, int64_t n, int64_t depth)
{
    const firn_gemm *g = j->g;

    for (int64_t p = 0; p < depth; p++) {
        float *to = w->scratch + p * FIRN_SPAN;
        if (g->kind == FIRN_GEMM_OUTER) {
            for (int64_t i = 0; i < n; i++)
                to[i] = at_step(d->rows[p], column + i, g->in1.nb[0]);
        } else {
            j->set->decode(g->type, d->packed + p * g->w.nb[1] + firn_row_bytes(g->type, column), n, to);
        }
    }
}

/* The packed bytes of columns [column, column + n) of an item [begin, end) are in use: what comes after them. */
static firn_ahead look_after(const job *j, const depth_rows *d, int64_t begin, int64_t end, int64_t column, int64_t n,
                             int64_t calls, int64_t depth, int64_t steps)
{
    const firn_type type = j->g->type;
    const uint8_t *row = column + n < end ? d->packed : d->next;
    const int64_t from = column + n < end ? column + n : begin;

    if (!d->packed || !row)
        return (firn_ahead){0};
    return look_at(row + firn_row_bytes(type, from), (int64_t)firn_row_bytes(type, firn_min_i64(n, end - from)),
                   j->g->w.nb[1], depth, calls, steps);
}

/* One span, columns [column, column + n) of C, from packed bytes. */
static void packed_span(const job *j, workspace *w, const block *b, const left *l, const depth_rows *d, int64_t column,
                        int64_t n, float *const *c, bool add, firn_ahead *ahead)
{
    const int64_t first_unit = column / FIRN_UNIT, row_bytes = j->g->w.nb[1];
    const bool shallow = l->depth <= SHALLOW;
    const int units = (int)(n / FIRN_UNIT);

    j->packed->scales(d->packed, row_bytes, l->depth, first_unit, units, w->table);
    for (int unit = 0; unit < units; unit++) {
        int at[2];
        j->packed->columns(unit, at);
        float *first = panel_at(w, l, shallow ? at[0] / FIRN_PANEL : 0);
        float *second = panel_at(w, l, shallow ? at[1] / FIRN_PANEL : 1);
        j->packed->straight(d->packed, row_bytes, l->depth, first_unit, unit, w->table, first, second);
        clear_rest(j, l, first);
        clear_rest(j, l, second);
        if (!shallow)
            multiply_two(j, w, b, l, (const int64_t[]){column + at[0], column + at[1]},
                         (const int64_t[]){FIRN_PANEL, FIRN_PANEL}, c, add, ahead);
    }
    if (shallow)
        multiply(j, w, b, l, c, column, n, add, ahead);
}

/* The same from rows of floats; `base` is where the span begins in them. */
static void float_span(const job *j, workspace *w, const block *b, const left *l, const depth_rows *d,
                       const float *const *rows, int64_t base, int64_t begin, int64_t end, int64_t column, int64_t n,
                       float *const *c, bool add)
{
    const bool shallow = l->depth <= SHALLOW;
    firn_ahead ahead = {0};

    for (int64_t at = 0; at < n; at += FIRN_UNIT) {
        const int64_t width = firn_min_i64(FIRN_UNIT, n - at), narrow = firn_min_i64(FIRN_PANEL, width);
        float *first = panel_at(w, l, shallow ? at / FIRN_PANEL : 0);
        float *second = panel_at(w, l, shallow ? at / FIRN_PANEL + 1 : 1);
        j->set->panel_straight(rows, base + at, (int)width, l->depth, first, second);
        clear_rest(j, l, first);
        if (width > narrow)
            clear_rest(j, l, second);
        if (shallow)
            continue;
        /* Rows of floats 8 KiB apart share few sets of the L2: look one unit ahead, not eight. */
        if (!w->scratch)
            ahead =
                look_after(j, d, begin, end, column + at, width, 2 / j->set->panels * b->n_strips, l->depth, l->steps);
        multiply_two(j, w, b, l, (const int64_t[]){column + at, column + at + FIRN_PANEL},
                     (const int64_t[]){narrow, width - narrow}, c, add, &ahead);
    }
    if (shallow)
        multiply(j, w, b, l, c, column, n, add, &ahead);
}

/* All columns of an item for one block of depth. */
static void straight_depth(const job *j, workspace *w, const block *b, const left *l, const depth_rows *d,
                           int64_t begin, int64_t end, float *const *c, bool add)
{
    const float *scratch_rows[FIRN_DEPTH];

    for (int64_t p = 0; w->scratch && p < l->depth; p++)
        scratch_rows[p] = w->scratch + p * FIRN_SPAN;
    for (int64_t column = begin; column < end; column += FIRN_SPAN) {
        const int64_t n = firn_min_i64(FIRN_SPAN, end - column);
        if (j->packed) {
            const int64_t calls = b->n_strips * (n / (FIRN_PANEL * j->set->panels));
            firn_ahead ahead = look_after(j, d, begin, end, column, n, calls, l->depth, l->steps);
            packed_span(j, w, b, l, d, column, n, c, add, &ahead);
        } else if (w->scratch) {
            fill_scratch(j, w, d, column, n, l->depth);
            float_span(j, w, b, l, d, scratch_rows, 0, begin, end, column, n, c, add);
        } else {
            float_span(j, w, b, l, d, d->rows, column, begin, end, column, n, c, add);
        }
    }
}

static void straight_item(const job *j, const block *b, int64_t begin, int64_t end, workspace *w)
{
    const firn_gemm *g = j->g;
    const bool outer = g->kind == FIRN_GEMM_OUTER;
    const uint8_t *expert = outer ? NULL : weights(j, b->group);
    const int64_t *slots = outer ? j->order + j->start[b->group] : NULL;
    const int64_t total = outer ? j->start[b->group + 1] - j->start[b->group] : g->m;
    const int64_t n_depths = divide_up(total, FIRN_DEPTH);
    /* Equal blocks, a multiple of 8. */
    const int64_t whole = firn_max_i64(8, firn_cell(j->set) * j->set->step_whole);
    const int64_t step = n_depths ? round_up(divide_up(total, n_depths), whole) : 1;
    const float *in[ROWS_MAX], *dy[FIRN_DEPTH];
    float *c[ROWS_MAX];
    depth_rows d = {0};

    block_rows(j, b, in, c);
    if (total == 0 && !g->accumulate)
        for (int64_t i = 0; i < b->n_rows; i++)
            memset(c[i] + begin, 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t from = 0; from < total; from += step) {
        const left l = left_of(j, direct(j) ? in : NULL, from, firn_min_i64(step, total - from));
        for (int64_t p = 0; outer && p < l.depth; p++) {
            d.rows[p] = row_of(j, &g->in1, g->x_slots, b->group, slots[from + p]);
            dy[p] = row_of(j, &g->in2, g->n_used, b->group, slots[from + p]);
        }
        if (!outer) {
            d.packed = expert + from * g->w.nb[1];
            d.next = from + step < total ? d.packed + step * g->w.nb[1] : NULL;
            for (int64_t p = 0; p < l.depth; p++)
                d.rows[p] = (const float *)(d.packed + p * g->w.nb[1]);
        }
        if (outer)
            pack_slots(j, w, b, &l, dy);
        else if (!l.rows)
            pack_rows(j, w, b, &l, in);
        straight_depth(j, w, b, &l, &d, begin, end, c, from > 0 || g->accumulate);
    }
}

static void few_item(const job *j, const block *b, int64_t begin, int64_t end, workspace *w)
{
    const firn_gemm *g = j->g;
    const uint8_t *expert = weights(j, b->group);
    const int64_t length = g->kind == FIRN_GEMM_FORWARD ? g->k : g->m;
    const int n = (int)b->n_rows;
    const float *in[FIRN_FEW_MAX] = {0};
    float *c[FIRN_FEW_MAX];

    block_rows(j, b, in, c);
    if (w->few_in)
        for (int64_t i = 0; i < b->n_rows; i++) {
            for (int64_t p = 0; p < length; p++)
                w->few_in[i * length + p] = at_step(in[i], p, g->in1.nb[0]);
            in[i] = w->few_in + i * length;
        }
    if (g->kind != FIRN_GEMM_FORWARD) {
        j->few->back(expert, g->w.nb[1], g->k, g->m, begin, end, n, in, c, g->accumulate);
        return;
    }
    /* The item before often had the same rows: another cut, or another expert of the same token. */
    if (w->few_in || memcmp(in, w->prepared_of, sizeof in) != 0) {
        j->few->prepare(g->k, n, in, w->prepared);
        memcpy(w->prepared_of, in, sizeof in);
    }
    j->few->forward(expert, g->w.nb[1], g->k, begin, end, n, in, w->prepared, c, g->accumulate);
}

/* ---- schedule ---- */

static int32_t id_of(const firn_gemm *g, int64_t slot)
{
    return *(const int32_t *)((const char *)g->ids + slot % g->n_used * g->ids_nb[0] + slot / g->n_used * g->ids_nb[1]);
}

static bool id_in_range(const firn_gemm *g, int32_t id)
{
    return id >= 0 && id < g->n_expert;
}

static bool id_is_good(const firn_gemm *g, int32_t id)
{
    if (!id_in_range(g, id) || !g->table)
        return id_in_range(g, id);
    const int64_t bytes = (g->m - 1) * g->w.nb[1] + (int64_t)firn_row_bytes(g->type, g->k);
    return firn_expert_lies_within(g->table[id], bytes, g->table_bytes, (int64_t)firn_type_align(g->type));
}

/* Counting sort, stable. Bad ids are reported, their rows cleared, and then they are no longer there. */
static void sort_slots(job *j, firn_gemm_fault *fault)
{
    const firn_gemm *g = j->g;
    bool found = false;

    memset(j->start, 0, (size_t)(g->n_expert + 1) * sizeof *j->start);
    for (int64_t slot = 0; slot < j->n_slots; slot++) {
        const int32_t id = id_of(g, slot);
        if (id_is_good(g, id)) {
            j->start[id + 1]++;
            continue;
        }
        if (!found && fault)
            *fault = (firn_gemm_fault){true, slot, id, id_in_range(g, id)};
        found = true;
        if (g->kind != FIRN_GEMM_OUTER && !g->accumulate)
            memset((char *)g->out + row_offset(j, g->out_nb, g->n_used, 0, slot), 0,
                   (size_t)j->columns * sizeof(float));
    }
    for (int64_t e = 0; e < g->n_expert; e++)
        j->start[e + 1] += j->start[e];
    const int64_t n_good = j->start[g->n_expert];
    /* Filling from the back moves start[e + 1] down to where e begins; then start is shifted by one. */
    for (int64_t slot = j->n_slots; slot-- > 0;) {
        const int32_t id = id_of(g, slot);
        if (id_is_good(g, id))
            j->order[--j->start[id + 1]] = slot;
    }
    memmove(j->start, j->start + 1, (size_t)g->n_expert * sizeof *j->start);
    j->start[g->n_expert] = n_good;
}

static int64_t group_rows(const job *j, int64_t group)
{
    const firn_gemm *g = j->g;

    if (g->kind == FIRN_GEMM_OUTER)
        return g->m;
    return routed(g) ? j->start[group + 1] - j->start[group] : g->n;
}

static int64_t count_blocks(const job *j, int64_t rows_max)
{
    int64_t n = 0;

    for (int64_t e = 0; e < j->n_groups; e++)
        n += divide_up(group_rows(j, e), rows_max);
    return n;
}

/* Chooses how rows and columns are cut: about ITEMS_PER_THREAD items, as wide as that allows, and at least ITEMS_LEAST
 * by narrower, then lower ones. The number of threads shows here, but not in the results. */
static void make_schedule(job *j, int n_threads)
{
    schedule *s = j->schedule;
    const firn_gemm *g = j->g;
    const int64_t least = ITEMS_LEAST * n_threads, wide = firn_max_i64(WIDE, j->grain);
    const int64_t tall = ROWS_MAX / j->set->strip * j->set->strip; /* whole strips */
    const int height = j->set->strip;
    int64_t rows_max = tall, n_blocks = count_blocks(j, rows_max), n_few = 0, cuts;

    s->n_blocks = 0;
    s->n_cuts = 1;
    s->width = firn_max_i64(j->columns, 1);
    if (n_blocks == 0 || j->columns == 0)
        return;
    for (int64_t e = 0; j->few && e < j->n_groups; e++)
        n_few += group_rows(j, e) > 0 && group_rows(j, e) <= few_rows(j);
    cuts = firn_min_i64(divide_up(ITEMS_PER_THREAD * n_threads, n_blocks), firn_max_i64(j->columns / wide, 1));
    if (g->kind == FIRN_GEMM_BACK && 2 * n_few > n_blocks)
        cuts = firn_min_i64(cuts, divide_up(j->columns, STREAM));
    if (n_blocks * cuts < least)
        cuts = firn_min_i64(divide_up(least, n_blocks), divide_up(j->columns, firn_max_i64(NARROW, j->grain)));
    if (n_blocks * cuts < least && n_few == 0) {
        int64_t tallest = 0;
        for (int64_t e = 0; e < j->n_groups; e++)
            tallest = firn_max_i64(tallest, group_rows(j, e));
        rows_max = divide_up(firn_min_i64(tallest, tall), divide_up(2 * n_threads, n_blocks * cuts));
        rows_max = firn_max_i64(round_up(rows_max, height), ROWS_MIN);
        rows_max = firn_min_i64(rows_max, tall);
    }
    s->width = round_up(divide_up(j->columns, cuts), j->grain);
    s->n_cuts = divide_up(j->columns, s->width);
    for (int64_t e = 0; e < j->n_groups; e++) {
        const int64_t n_rows = group_rows(j, e), n = divide_up(n_rows, rows_max);
        const int64_t base = routed(g) && g->kind != FIRN_GEMM_OUTER ? j->start[e] : 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t from = n_rows * i / n, to = n_rows * (i + 1) / n;
            block *b = &j->blocks[s->n_blocks++];
            *b = (block){.group = e, .first = base + from, .n_rows = to - from};
            b->few = n_rows <= few_rows(j);
            cut_strips(j, b, direct(j) ? j->set->strip_direct : height);
        }
    }
}

/* A weight of no rows or columns: sums of nothing. */
static void empty_item(const job *j, const block *b, int64_t begin, int64_t end)
{
    const float *in[ROWS_MAX];
    float *c[ROWS_MAX];

    block_rows(j, b, in, c);
    for (int64_t i = 0; i < b->n_rows && !j->g->accumulate; i++)
        memset(c[i] + begin, 0, (size_t)(end - begin) * sizeof(float));
}

static void run_item(const job *j, int64_t item, workspace *w)
{
    const schedule *s = j->schedule;
    const block *b = &j->blocks[item / s->n_cuts];
    const int64_t begin = item % s->n_cuts * s->width, end = firn_min_i64(begin + s->width, j->columns);

    if (j->g->kind != FIRN_GEMM_OUTER && (j->g->k == 0 || j->g->m == 0))
        empty_item(j, b, begin, end);
    else if (b->few)
        few_item(j, b, begin, end, w);
    else if (j->g->kind == FIRN_GEMM_FORWARD)
        forward_item(j, b, begin, end, w);
    else
        straight_item(j, b, begin, end, w);
}

void firn_gemm_run(const firn_gemm *g, void *work, firn_team team, firn_gemm_fault *fault)
{
    job j;
    size_t used = 0;
    int64_t begin, end;

    lay_out(g, team.nth, work, &j);
    if (team.ith == 0) {
        if (routed(g))
            sort_slots(&j, fault);
        make_schedule(&j, team.nth);
        atomic_store_explicit(&j.schedule->next, 0, memory_order_relaxed);
    }
    firn_team_barrier(team);
    workspace w = carve_workspace(&j, j.workspaces + (size_t)team.ith * j.workspace_bytes, &used);
    if (j.set->enter)
        j.set->enter();
    while (firn_team_take(&j.schedule->next, j.schedule->n_blocks * j.schedule->n_cuts, 1, &begin, &end))
        run_item(&j, begin, &w);
    if (j.set->leave)
        j.set->leave();
    firn_team_barrier(team);
}
