/* The AMX kernel set of FIRN_PRECISION_BF16: tdpbf16ps multiplies a tile of 16 rows of 32 bf16 by one of 16 pairs of
 * depth and 16 columns, 16384 multiply-adds in 16 cycles. Panels, and rows too few for them, are avx512bf16's: a panel
 * [16, steps] is a column of tiles as it lies.
 *
 *     C [32, 32] = 2 x 2 tiles, two of A (a strip), two of B (two panels): four products for four loads
 *
 * A strip's cells are ordered as tiles: [16 cells, 16 rows, groups of 16 rows, blocks of 16 steps]; rows past its
 * height are whatever the workspace holds, and touch only rows of C that are not stored. Steps are whole blocks. */
#if defined(__AVX512BF16__)
#define FIRN_LANES      16
#define FIRN_BF16_CELLS 1
#define FIRN_SET(name)  firn_avx512bf16_##name
#include "cpu/decode_x86.h"
#include "cpu/floats_x86.h"

enum {
    ROWS = 16, /* of a tile, of 16 cells each */
    TILE = ROWS * FIRN_PANEL,
    STRIDE = FIRN_PANEL * 4, /* bytes */
};

/* The tiles' numbers, as the intrinsics want them: written out. */
#define C00 0
#define C01 1
#define C10 2
#define C11 3
#define A0  4
#define A1  5
#define B0  6
#define B1  7

/* Palette 1: what ldtilecfg reads. Constant, since compilers know only of its first bytes that they are read. */
typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;
_Static_assert(sizeof(tile_config) == 64, "as the instruction reads it");

#if defined(FIRN_AMX_STAND_IN) /* tests/unit/amx_stand_in.c */
#define SET_NAME "amx-stand-in"
#define SET      firn_kernel_set_amx_stand_in
#else
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define SET_NAME          "amx"
#define SET               firn_kernel_set_amx
#define tile_configure(c) _tile_loadconfig(c)
#define tile_forget()     _tile_release()
#define tile_clear(t)     _tile_zero(t)
#define tile_read(t, p)   _tile_loadd(t, p, STRIDE)
#define tile_write(t, p)  _tile_stored(t, p, STRIDE)
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)

/* The tiles' registers are given to a process that asks; once is enough for all its threads. */
static bool usable(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    static int known;                          /* racing threads find the same */
    int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
    unsigned a, b, c, d;

    if (!answer) {
        const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) && (d >> 24 & 1);
        answer = has && firn_kernel_set_avx512bf16.usable() && syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0 ? 2 : 1;
        __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
    }
    return answer == 2;
}
#endif

static const tile_config config = {
    .palette = 1,
    .bytes = {STRIDE, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE, STRIDE},
    .rows = {ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS, ROWS},
};

static void enter(void)
{
    tile_configure(&config);
}

static void leave(void)
{
    tile_forget();
}

/* ---- the micro-kernel ---- */

/* Rows [0, n) of a tile of results into C. */
INLINE void put_tile(const float *sum, int n, float *const *c, int64_t column, int n_columns, bool add)
{
    for (int i = 0; i < n; i++) {
        float *to = c[i] + column;
        vf v = vf_load(sum + FIRN_PANEL * i);
        if (add)
            v = vf_add(vf_load_part(to, n_columns), v);
        vf_store_part(to, n_columns, v);
    }
}

INLINE void tile_of(const int groups, const int panels, int height, int64_t steps, const float *strip,
                    const float *const panel[2], const firn_tile_out *out, firn_ahead *ahead)
{
    const int64_t rows = FIRN_PACE * height / steps + 1; /* of C, asked for at each pause */
    _Alignas(64) float sum[4][TILE];
    int64_t asked = 0;

    tile_clear(C00);
    if (panels == 2)
        tile_clear(C01);
    if (groups == 2)
        tile_clear(C10);
    if (groups == 2 && panels == 2)
        tile_clear(C11);
    for (int64_t p = 0; p < steps; p += ROWS) {
        const float *a = strip + FIRN_PANEL * groups * p;
        if (p % FIRN_PACE == 0) {
            const int64_t ask = smaller(asked + rows, height);
            firn_look_ahead(ahead);
            ask_for_c(asked, ask, panels, out);
            asked = ask;
        }
        tile_read(B0, panel[0] + FIRN_PANEL * p);
        tile_read(A0, a);
        tile_dot(C00, A0, B0);
        if (panels == 2) {
            tile_read(B1, panel[1] + FIRN_PANEL * p);
            tile_dot(C01, A0, B1);
        }
        if (groups == 2) {
            tile_read(A1, a + TILE);
            tile_dot(C10, A1, B0);
        }
        if (groups == 2 && panels == 2)
            tile_dot(C11, A1, B1);
    }
    tile_write(C00, sum[0]);
    if (panels == 2)
        tile_write(C01, sum[1]);
    if (groups == 2)
        tile_write(C10, sum[2]);
    if (groups == 2 && panels == 2)
        tile_write(C11, sum[3]);
    for (int g = 0; g < groups; g++)
        for (int h = 0; h < panels; h++)
            put_tile(sum[2 * g + h], (int)smaller(height - ROWS * g, ROWS), out->c + ROWS * g, out->column[h],
                     out->n_columns[h], out->add);
}

static void tile(int height, int64_t steps, const float *strip, const float *const panel[2], const firn_tile_out *out,
                 firn_ahead *ahead)
{
    if (height > ROWS && out->n_columns[1] > 0)
        tile_of(2, 2, height, steps, strip, panel, out, ahead);
    else if (height > ROWS)
        tile_of(2, 1, height, steps, strip, panel, out, ahead);
    else if (out->n_columns[1] > 0)
        tile_of(1, 2, height, steps, strip, panel, out, ahead);
    else
        tile_of(1, 1, height, steps, strip, panel, out, ahead);
}

/* ---- strips ---- */

/* Where row i's 16 cells of block p/32 of a strip's depth lie. */
INLINE float *cells_of(float *strip, int height, int64_t p, int i)
{
    const int groups = (height + ROWS - 1) / ROWS;

    return strip + TILE * (groups * (p / 32) + i / ROWS) + FIRN_PANEL * (i % ROWS);
}

static void strip_from_rows(const float *const *rows, int64_t at, int height, int64_t depth, float *strip)
{
    for (int i = 0; i < height; i++)
        for (int64_t p = 0; p < depth; p += 32) {
            const float *from = rows[i] + at + p;
            const vf low = vf_load_part(from, depth - p), high = vf_load_part(from + 16, depth - p - 16);
            vf_store(cells_of(strip, height, p, i), (vf)_mm512_cvtne2ps_pbh(high, low));
        }
}

/* Sixteen rows of one block at a time: made with the rows as lanes, then turned. */
static void strip_from_columns(const float *const *columns, int64_t at, int64_t end, int height, int64_t depth,
                               float *strip)
{
    for (int64_t p = 0; p < depth; p += 32)
        for (int i = 0; i < height; i += ROWS) {
            _Alignas(64) float steps[ROWS][FIRN_PANEL];
            for (int64_t s = 0; s < ROWS; s++) {
                const int64_t q = p + 2 * s, n = end - at - i;
                const vf even = q < depth ? vf_load_part(columns[q] + at + i, n) : vf_zero();
                const vf odd = q + 1 < depth ? vf_load_part(columns[q + 1] + at + i, n) : vf_zero();
                vf_store(steps[s], cell_join(even, odd));
            }
            for (int s = 0; s < ROWS; s += 8)
                for (int h = 0; h < ROWS; h += 8) {
                    __m256 r[8];
                    for (int t = 0; t < 8; t++)
                        r[t] = _mm256_load_ps(&steps[s + t][h]);
                    transpose8(r);
                    for (int t = 0; t < 8; t++)
                        _mm256_storeu_ps(cells_of(strip, height, p, i) + FIRN_PANEL * (h + t) + s, r[t]);
                }
        }
}

const firn_kernel_set SET = {
    .name = SET_NAME,
    .usable = usable,
    .enter = enter,
    .leave = leave,
    .precision = FIRN_PRECISION_BF16,
    .strip = 2 * ROWS,
    .strip_whole = ROWS,
    .panels = 2,
    .step_whole = ROWS,
    FIRN_X86_KERNELS,
    .few = {FIRN_EACH_PACKED(FIRN_FEW_OF)},
};
#endif
