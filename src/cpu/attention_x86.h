/* ATTENTION for any vector width; the contract and the formulas stand in op/attention.c, the backward in
 * attention_back_x86.h. The including file says FIRN_LANES, FIRN_SET (vector_x86.h), FIRN_FLOATS, the kernel set whose
 * packing of floats it takes, FIRN_STRIP, the rows of a product's register tile, and FIRN_EACH_STRIP(X), X of every
 * number up to it.
 *
 * Lanes are rows of q. The rows of a group, its heads of the first query, of the second, and so on, are cut into panels
 * of NR = 2 vectors, and all that belongs to a row lies in its lane: scores s [key, NR], running maxima and
 * denominators [NR], results [hv, NR].
 *
 *     S [keys, NR]  = K [keys, hd] Q' [hd, NR]
 *     O [hv, NR]   += V' [hv, keys] P [keys, NR],   P = exp(S - maximum)
 *
 * Softmax thus has no sums across lanes, causality and windows only shorten the run of keys (lanes that do not see a
 * key of it are blended to -infinity), no width needs a ragged right edge, and a row's bits depend on its panel's keys
 * alone. The broadcast operands are packed once for all panels into strips, element-major:
 *     key strips    [n_kv / STRIP][hd][STRIP]      K, for S
 *     value strips  [hv / width][n_kv][width]      V, for O; width <= STRIP divides hv evenly, nearly
 * Keys that no query sees become zeros there: whatever they held, 0 times it is 0. Blocks of keys are counted from the
 * first one that any query sees: where a key/value cache keeps it (model/cache.c) does not show in the bits.
 *
 * Few rows leave lanes empty: each then walks its keys and values where they lie. */
#ifndef FIRN_CPU_ATTENTION_X86_H
#define FIRN_CPU_ATTENTION_X86_H

#include "cpu/team.h"
#include "cpu/vector_x86.h"
#include "op/attention.h"

#include <math.h>
#include <stdatomic.h>

enum {
    NR = 2 * LANES,
    STRIP = FIRN_STRIP,
    BK = STRIP * (LANES == 16 ? 8 : 16), /* keys of a block */
    FEW = NR / 2,                        /* so many rows of a group run one by one */
    TOGETHER = 8,                        /* panels of an item of the forward at most */
};

_Static_assert(BK % LANES == 0 && BK % STRIP == 0, "blocks are whole strips and whole vectors");

/* ---- vectors ---- */

typedef int32_t vi __attribute__((vector_size(4 * FIRN_LANES)));

INLINE vf vf_of(float x)
{
    return vf_all(&x);
}

/* The larger; b where either is NaN. */
INLINE vf vf_max(vf a, vf b)
{
#if FIRN_LANES == 16
    return _mm512_max_ps(a, b);
#else
    return _mm256_max_ps(a, b);
#endif
}

INLINE vf vf_min(vf a, vf b)
{
#if FIRN_LANES == 16
    return _mm512_min_ps(a, b);
#else
    return _mm256_min_ps(a, b);
#endif
}

INLINE vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

INLINE vi vi_load(const int32_t *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* firn_expf (op/elementary.h) with fused multiply-adds. */
INLINE vf vf_exp(vf x)
{
    const vf magic = vf_of(12582912.0f);

    x = vf_min(vf_of(89.0f), vf_max(vf_of(-104.0f), x));
    const vf t = vf_fma(x, vf_of(1.44269504088896341f), magic), n = t - magic;
    const vf r = vf_fma(n, vf_of(2.12194440e-4f), vf_fma(n, vf_of(-0.693359375f), x));
    vf p = vf_of(1.9875691500e-4f);
    p = vf_fma(p, r, vf_of(1.3981999507e-3f));
    p = vf_fma(p, r, vf_of(8.3334519073e-3f));
    p = vf_fma(p, r, vf_of(4.1665795894e-2f));
    p = vf_fma(p, r, vf_of(1.6666665459e-1f));
    p = vf_fma(p, r, vf_of(5.0000001201e-1f));
    p = vf_fma(p, r * r, r + vf_of(1.0f));
#if FIRN_LANES == 16
    return _mm512_scalef_ps(p, n);
#else
    const vi e = (vi)t - (vi)magic, half = e >> 1;
    return p * (vf)((half + 127) << 23) * (vf)((e - half + 127) << 23);
#endif
}

INLINE vf vf_tanh(vf x)
{
    const vi sign = (vi)x & INT32_MIN;
    const vf a = (vf)((vi)x & INT32_MAX), z = x * x, one = vf_of(1.0f);
    vf p = vf_of(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_of(2.06390887954e-2f));
    p = vf_fma(p, z, vf_of(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_of(1.33314422036e-1f));
    p = vf_fma(p, z, vf_of(-3.33332819422e-1f));
    const vf small = vf_fma(x * z, p, x), large = one - vf_of(2.0f) / (vf_exp(a + a) + one);
    return vf_select((vi)(a < vf_of(0.625f)), small, (vf)((vi)large | sign));
}

/* ---- products ---- */

/* sum[i] += sum over p of a[i * ai + p * ap] b[p * NR ..]: height x 2 vectors in registers. Asks for a cache line from
 * `ahead` on at each step, if not NULL. */
INLINE void multiply(const int height, const int64_t ai, const int64_t ap, int64_t steps, const float *a,
                     const float *b, const float *ahead, vf sum[][2])
{
#pragma GCC unroll 4
    for (int64_t p = 0; p < steps; p++, a += ap, b += NR) {
        const vf low = vf_load(b), high = vf_load(b + LANES);
        if (ahead)
            __builtin_prefetch(ahead + p * 16);
#pragma GCC unroll 16
        for (int i = 0; i < height; i++) {
            const vf s = vf_all(a + i * ai);
            sum[i][0] = vf_fma(s, low, sum[i][0]);
            sum[i][1] = vf_fma(s, high, sum[i][1]);
        }
    }
}

INLINE void clear_sums(const int height, vf sum[][2])
{
#pragma GCC unroll 16
    for (int i = 0; i < height; i++)
        sum[i][0] = sum[i][1] = vf_zero();
}

/* Sums of a product are added to what stands there at its end: partial sums of one block each keep rounding low. */
INLINE void strip_of(const int height, int64_t steps, const float *strip, const float *b, float *c, bool add)
{
    vf sum[STRIP][2];

    clear_sums(height, sum);
    multiply(height, 1, height, steps, strip, b, NULL, sum);
#pragma GCC unroll 16
    for (int i = 0; i < height; i++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            float *at = c + i * NR + h * LANES;
            vf_store(at, add ? vf_add(vf_load(at), sum[i][h]) : sum[i][h]);
        }
}

#define STRIP_PRODUCT(height)                                                                                          \
    static void strip_product_##height(int64_t steps, const float *strip, const float *b, float *c, bool add)          \
    {                                                                                                                  \
        strip_of(height, steps, strip, b, c, add);                                                                     \
    }
FIRN_EACH_STRIP(STRIP_PRODUCT) /* heights as constants, so that the sums live in registers */
#undef STRIP_PRODUCT

/* C [height, NR] (+)= strip' b: strip [steps, height], b [steps, NR]. */
static void strip_product(int64_t height, int64_t steps, const float *strip, const float *b, float *c, bool add)
{
#define STRIP_PRODUCT(height) strip_product_##height,
    static void (*const products[])(int64_t, const float *, const float *, float *,
                                    bool) = {FIRN_EACH_STRIP(STRIP_PRODUCT)};
#undef STRIP_PRODUCT
    products[height - 1](steps, strip, b, c, add);
}

/* ---- what the team shares ---- */

/* Width of the strips that n columns are cut into. */
static int64_t strip_width(int64_t n)
{
    return blocks(n, firn_max_i64(blocks(n, STRIP), 1));
}

/* n columns in whole strips; the transposing of results reads eight at a time. */
static int64_t stripped(int64_t n)
{
    return blocks(n, STRIP) * strip_width(n) + 8;
}

typedef struct {
    shapes s;
    const firn_call *call;
    firn_team team;
    int64_t group, n_rows, n_panels, n_blocks; /* of a group: heads, rows, panels; blocks of keys */
    int phase;
    atomic_llong *counters;
    int32_t *first, *last; /* [n_panels * NR] each row's keys; a row that sees none: from INT32_MAX to 0 */
    int32_t *low, *high;   /* [n_panels] their union, empty: low >= high */
    float *zeros;          /* a row */
    float *scratch;        /* this thread's */
} team_state;

/* Hands out consecutive, aligned parts of the workspace. */
typedef struct {
    uintptr_t base;
    size_t used;
} part_cursor;

static void *part(part_cursor *c, int64_t n)
{
    void *p = (void *)(c->base + c->used);

    c->used += firn_bytes_up((size_t)n * sizeof(float));
    return p;
}

static team_state team_state_of(const firn_call *call, firn_team team, part_cursor *parts)
{
    team_state t = {.s = shapes_of(call), .call = call, .team = team};

    t.group = t.s.n_head / t.s.n_group;
    t.n_rows = t.group * t.s.n_q;
    t.n_panels = blocks(t.n_rows, NR);
    t.n_blocks = blocks(t.s.n_kv, BK);
    t.counters = part(parts, 3 * 64 / (int64_t)sizeof(float));
    t.first = part(parts, t.n_panels * NR);
    t.last = part(parts, t.n_panels * NR);
    t.low = part(parts, t.n_panels);
    t.high = part(parts, t.n_panels);
    t.zeros = part(parts, firn_max_i64(t.s.hd, t.s.hv));
    return t;
}

/* Deals items [0, n) out to the team, and waits for all. Three counters in turn: the next one is cleared while nobody
 * looks at it. */
INLINE void deal(team_state *t, int64_t n, void (*item)(const void *state, int64_t i), const void *state)
{
    enum { APART = 64 / sizeof *t->counters };
    int64_t i, end;

    if (t->team.ith == 0)
        atomic_store(&t->counters[(t->phase + 1) % 3 * APART], 0);
    while (firn_team_take(&t->counters[t->phase % 3 * APART], n, 1, &i, &end))
        item(state, i);
    firn_team_barrier(t->team);
    t->phase++;
}

static void panel_ranges(const team_state *t, int64_t panel)
{
    int32_t low = INT32_MAX, high = 0;

    for (int64_t i = panel * NR; i < (panel + 1) * NR; i++) {
        int64_t first = 0, last = 0;
        if (i < t->n_rows)
            range_at(t->call, &t->s, i / t->group, &first, &last);
        t->first[i] = first < last ? (int32_t)first : INT32_MAX;
        t->last[i] = first < last ? (int32_t)last : 0;
        low = t->first[i] < low ? t->first[i] : low;
        high = t->last[i] > high ? t->last[i] : high;
    }
    t->low[panel] = low;
    t->high[panel] = high;
}

/* Before anything is dealt. */
static void team_begin(const team_state *t)
{
    if (t->team.ith == 0) {
        memset(t->counters, 0, 3 * 64);
        memset(t->zeros, 0, (size_t)firn_max_i64(t->s.hd, t->s.hv) * sizeof(float));
    }
    for (int64_t panel = t->team.ith; panel < t->n_panels; panel += t->team.nth)
        panel_ranges(t, panel);
}

/* ---- packing ---- */

/* Which of the block's keys any query sees. */
static void seen_keys(const team_state *t, int64_t j0, bool seen[BK])
{
    int32_t change[BK + 1] = {0}, n = 0;

    for (int64_t i = 0; i < t->n_rows; i += t->group) {
        const int64_t from = firn_max_i64(t->first[i], j0), to = firn_min_i64(t->last[i], j0 + BK);
        if (from < to) {
            change[from - j0]++;
            change[to - j0]--;
        }
    }
    for (int64_t j = 0; j < BK; j++) {
        n += change[j];
        seen[j] = n > 0;
    }
}

/* Rows of the block's keys, of zeros for those that nobody sees. */
static void block_rows(const team_state *t, const bool seen[BK], const float *x, int64_t stride, const float *rows[BK])
{
    for (int64_t j = 0; j < BK; j++)
        rows[j] = seen[j] ? x + j * stride : t->zeros;
}

/* Floats of a key strip: packing may write FIRN_SLACK past its end. */
static int64_t key_strip(int64_t width)
{
    return width * STRIP + FIRN_SLACK;
}

static void pack_key_strips(const float *const rows[BK], int64_t width, float *to)
{
    for (int64_t j = 0; j < BK; j += STRIP, to += key_strip(width))
        FIRN_FLOATS.strip_from_rows(rows + j, 0, STRIP, width, to);
}

/* `to` is where the block begins in the first strip; strips are n_keys rows long. */
static void pack_value_strips(const float *const rows[BK], int64_t width, int64_t n_keys, float *to)
{
    const int64_t w = strip_width(width);

    for (int64_t j = 0; j < BK; j++)
        for (int64_t s = 0, at = 0; at < width; s++, at += w) {
            float *out = to + s * n_keys * w + j * w;
            const vf v = vf_load_part(rows[j] + at, width - at);
            if ((BK - j) * w >= LANES) /* what is too much is overwritten by the keys that follow */
                vf_store(out, v);
            else
                vf_store_part(out, w, v);
        }
}

/* ---- panels ---- */

typedef struct {
    int64_t r0, n;            /* first row, how many */
    int64_t low, high;        /* keys that any of them sees */
    int64_t all_from, all_to; /* keys that all lanes see */
    const int32_t *first, *last;
} panel_range;

static panel_range panel_at(const team_state *t, int64_t panel)
{
    panel_range r = {.r0 = panel * NR, .low = t->low[panel], .high = t->high[panel], .all_to = INT32_MAX};

    r.n = firn_min_i64(NR, t->n_rows - r.r0);
    r.first = t->first + r.r0;
    r.last = t->last + r.r0;
    for (int l = 0; l < NR; l++) {
        r.all_from = firn_max_i64(r.all_from, r.first[l]);
        r.all_to = firn_min_i64(r.all_to, r.last[l]);
    }
    return r;
}

/* Lanes of half h that see key j. */
INLINE vi sees(const panel_range *r, int64_t j, int h)
{
    const vi key = (vi){0} + (int32_t)j;

    return (vi)(key >= vi_load(r->first + h * LANES)) & (vi)(key < vi_load(r->last + h * LANES));
}

INLINE bool all_see(const panel_range *r, int64_t j)
{
    return j >= r->all_from && j < r->all_to;
}

/* Where each lane's row lies, heads and queries those strides apart. */
static void lane_offsets(const team_state *t, int64_t g, const panel_range *r, int64_t head, int64_t query,
                         int64_t at[NR])
{
    for (int64_t l = 0; l < r->n; l++)
        at[l] = (g * t->group + (r->r0 + l) % t->group) * head + (r->r0 + l) / t->group * query;
}

/* out [width, NR] = the rows at those offsets as lanes, times `by`; zeros in the other lanes. */
static void pack_panel(const float *x, const int64_t at[NR], int64_t n, int64_t width, float by, float *out)
{
    const __m256 factor = _mm256_set1_ps(by);

    for (int64_t d = 0; d < width; d += 8)
        for (int64_t l = 0; l < NR; l += 8) {
            __m256 r[8];
            for (int64_t i = 0; i < 8; i++)
                r[i] = l + i < n ? cells_along(x + at[l + i] + d, width - d) : _mm256_setzero_ps();
            transpose8(r);
            for (int64_t i = 0; i < 8 && d + i < width; i++)
                _mm256_storeu_ps(out + (d + i) * NR + l, _mm256_mul_ps(r[i], factor));
        }
}

/* The reverse: rows of `width` floats from n lanes, each times its factor; a factor of 0 gives 0, whatever is there.
 * `from` has eight more rows than `width`, of anything. */
static void unpack_panel(const float *from, int64_t n, int64_t width, const float factors[NR], float *x,
                         const int64_t at[NR])
{
    const __m256 zero = _mm256_setzero_ps();

    for (int64_t l = 0; l < n; l += 8) {
        const __m256 by = _mm256_loadu_ps(factors + l), used = _mm256_cmp_ps(by, zero, _CMP_NEQ_UQ);
        for (int64_t d = 0; d < width; d += 8) {
            __m256 r[8];
            for (int64_t i = 0; i < 8; i++)
                r[i] = _mm256_and_ps(_mm256_mul_ps(_mm256_loadu_ps(from + (d + i) * NR + l), by), used);
            transpose8(r);
            for (int64_t i = 0; i < 8 && l + i < n; i++) {
                float *to = x + at[l + i] + d;
                if (d + 8 <= width)
                    _mm256_storeu_ps(to, r[i]);
                else
                    memcpy(to, &r[i], (size_t)(width - d) * sizeof *to);
            }
        }
    }
}

/* ---- forward ---- */

typedef struct {
    team_state t;
    int64_t panels;                           /* of an item */
    int64_t origin;                           /* the key with which blocks begin */
    int64_t k_floats, v_floats, panel_floats; /* of a group's strips; of a panel in scratch */
    float *k, *v;                             /* strips */
} forward_state;

/* As many panels as leave enough items for sixteen threads: they use a block of keys one after the other. */
static int64_t panels_together(int64_t n_group, int64_t n_panels)
{
    int64_t n = TOGETHER;

    while (n > 1 && n_group * blocks(n_panels, n) < 128)
        n /= 2;
    return n;
}

static forward_state forward_state_of(const firn_call *call, firn_team team, part_cursor *parts)
{
    forward_state f = {.t = team_state_of(call, team, parts)};
    const shapes *s = &f.t.s;
    const int64_t n_keys = f.t.n_rows <= FEW ? 0 : f.t.n_blocks * BK;

    f.panels = panels_together(s->n_group, f.t.n_panels);
    f.k_floats = n_keys / STRIP * key_strip(s->hd);
    f.v_floats = n_keys * stripped(s->hv);
    f.panel_floats = (s->hd + stripped(s->hv) + 2) * NR; /* Q', O, maxima, denominators */
    const int64_t floats = BK * NR + (f.t.n_rows <= FEW ? 0 : f.panels * f.panel_floats);
    f.k = part(parts, s->n_group * f.k_floats);
    f.v = part(parts, s->n_group * f.v_floats);
    for (int i = 0; i < team.nth; i++) {
        float *mine = part(parts, floats);
        if (i == team.ith)
            f.t.scratch = mine;
    }
    return f;
}

/* The blocks from the first key that a query sees to the last. */
static void place_blocks(forward_state *f)
{
    int64_t low = f->t.s.n_kv, high = 0;

    for (int64_t panel = 0; panel < f->t.n_panels; panel++) {
        low = firn_min_i64(low, f->t.low[panel]);
        high = firn_max_i64(high, f->t.high[panel]);
    }
    f->origin = low;
    f->t.n_blocks = low < high ? blocks(high - low, BK) : 0;
}

static void pack_keys(const void *state, int64_t item)
{
    const forward_state *f = state;
    const shapes *s = &f->t.s;
    const int64_t g = item / f->t.n_blocks, at = item % f->t.n_blocks * BK, j0 = f->origin + at;
    const float *rows[BK];
    bool seen[BK];

    seen_keys(&f->t, j0, seen);
    block_rows(&f->t, seen, s->k + g * s->k1 + j0 * s->k2, s->k2, rows);
    pack_key_strips(rows, s->hd, f->k + g * f->k_floats + at / STRIP * key_strip(s->hd));
    block_rows(&f->t, seen, s->v + g * s->v1 + j0 * s->v2, s->v2, rows);
    pack_value_strips(rows, s->hv, f->t.n_blocks * BK, f->v + g * f->v_floats + at * strip_width(s->hv));
}

/* Scores [from, to) of the panel become exp(score - maximum): the running maxima rise, denominators and results of the
 * blocks before shrink with them. */
static void soften(const shapes *s, const panel_range *r, int64_t from, int64_t to, float *scores, float *top,
                   float *below, float *o)
{
    vf next[2], shift[2], sum[2], shrink[2];
    vi changed = {0};

#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
        next[h] = vf_load(top + h * LANES);
    for (int64_t j = from; j < to; j++) {
        float *row = scores + (j - from) * NR;
        const bool whole = all_see(r, j);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            vf x = vf_load(row + h * LANES);
            if (s->cap > 0)
                x = vf_of(s->cap) * vf_tanh(x);
            if (!whole)
                x = vf_select(sees(r, j, h), x, vf_of(-INFINITY));
            if (s->cap > 0 || !whole)
                vf_store(row + h * LANES, x);
            next[h] = vf_max(x, next[h]);
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        const vf before = vf_load(top + h * LANES);
        shift[h] = vf_select((vi)(next[h] == vf_of(-INFINITY)), vf_zero(), next[h]); /* nothing seen yet */
        shrink[h] = vf_exp(before - shift[h]);
        changed |= (vi)(next[h] != before);
        vf_store(top + h * LANES, next[h]);
        sum[h] = vf_zero();
    }
    for (int64_t j = from; j < to; j++) {
        float *row = scores + (j - from) * NR;
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const vf p = vf_exp(vf_load(row + h * LANES) - shift[h]);
            vf_store(row + h * LANES, p);
            sum[h] += p;
        }
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
        vf_store(below + h * LANES, vf_fma(vf_load(below + h * LANES), shrink[h], sum[h]));
    int32_t any = 0;
    for (int l = 0; l < LANES; l++)
        any |= changed[l];
    for (int64_t d = 0; d < s->hv && any && o; d++)
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++)
            vf_store(o + d * NR + h * LANES, vf_load(o + d * NR + h * LANES) * shrink[h]);
}

/* One block of keys for one panel. */
static void panel_block(const forward_state *f, int64_t g, const panel_range *r, int64_t j0, float *panel)
{
    const shapes *s = &f->t.s;
    const int64_t from = firn_max_i64(r->low, j0), to = firn_min_i64(r->high, j0 + BK), w = strip_width(s->hv);
    const float *k = f->k + g * f->k_floats, *v = f->v + g * f->v_floats;
    const bool begun = r->low < j0;
    float *scores = f->t.scratch, *o = panel + s->hd * NR, *top = o + stripped(s->hv) * NR, *below = top + NR;

    for (int64_t j = from - (from - j0) % STRIP; j < to; j += STRIP)
        strip_product(STRIP, s->hd, k + (j - f->origin) / STRIP * key_strip(s->hd), panel, scores + (j - j0) * NR,
                      false);
    scores += (from - j0) * NR;
    soften(s, r, from, to, scores, top, below, begun ? o : NULL);
    for (int64_t d = 0; d < s->hv; d += w)
        strip_product(w, to - from, v + d * f->t.n_blocks * BK + (from - f->origin) * w, scores, o + d * NR, begun);
}

static void finish_panel(const forward_state *f, int64_t g, const panel_range *r, const float *panel)
{
    const shapes *s = &f->t.s;
    const float *o = panel + s->hd * NR, *top = o + stripped(s->hv) * NR, *below = top + NR;
    float *y = f->t.call->dst, *lse = y + s->hv * s->n_head * s->n_q, factors[NR] = {0};
    int64_t at[NR];

    lane_offsets(&f->t, g, r, 1, s->n_head, at);
    for (int64_t l = 0; l < r->n; l++) {
        const bool any = r->first[l] < r->last[l];
        factors[l] = any ? 1.0f / below[l] : 0.0f;
        lse[at[l]] = any ? top[l] + logf(below[l]) : 0.0f;
    }
    lane_offsets(&f->t, g, r, s->hv, s->n_head * s->hv, at);
    unpack_panel(o, r->n, s->hv, factors, y, at);
    for (int64_t l = 0; l < r->n; l++)
        firn_attention_mend_row(f->t.call, s, g * f->t.group + (r->r0 + l) % f->t.group, (r->r0 + l) / f->t.group);
}

/* The later panels first: under a causal mask they are the longer ones. */
static void forward_item(const void *state, int64_t item)
{
    const forward_state *f = state;
    const shapes *s = &f->t.s;
    const int64_t g = item % s->n_group, p0 = (blocks(f->t.n_panels, f->panels) - 1 - item / s->n_group) * f->panels;
    const int64_t n = firn_min_i64(f->panels, f->t.n_panels - p0);
    const float *sinks = f->t.call->src[SINKS];
    const float by = s->cap > 0 ? s->scale / s->cap : s->scale;
    float *panels = f->t.scratch + BK * NR;
    int64_t low = s->n_kv, high = 0, at[NR];
    panel_range r[TOGETHER];

    for (int64_t i = 0; i < n; i++) {
        float *panel = panels + i * f->panel_floats, *top = panel + (s->hd + stripped(s->hv)) * NR, *below = top + NR;
        r[i] = panel_at(&f->t, p0 + i);
        lane_offsets(&f->t, g, &r[i], s->q1, s->q2, at);
        pack_panel(s->q, at, r[i].n, s->hd, by, panel);
        for (int64_t l = 0; l < NR; l++) {
            top[l] = sinks ? sinks[g * f->t.group + (r[i].r0 + l) % f->t.group] : -INFINITY;
            below[l] = sinks ? 1.0f : 0.0f;
        }
        low = firn_min_i64(low, r[i].low);
        high = firn_max_i64(high, r[i].high);
    }
    for (int64_t j0 = low - (low - f->origin) % BK; j0 < high; j0 += BK)
        for (int64_t i = 0; i < n; i++)
            if (r[i].low < j0 + BK && r[i].high > j0)
                panel_block(f, g, &r[i], j0, panels + i * f->panel_floats);
    for (int64_t i = 0; i < n; i++)
        finish_panel(f, g, &r[i], panels + i * f->panel_floats);
}

/* ---- few rows: one at a time, keys and values where they lie ---- */

INLINE float dot_of(const float *a, const float *b, int64_t n)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;

    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int u = 0; u < 4; u++)
            sum[u] = vf_fma(vf_load(a + i + u * LANES), vf_load(b + i + u * LANES), sum[u]);
    for (; i < n; i += LANES)
        sum[0] = vf_fma(vf_load_part(a + i, n - i), vf_load_part(b + i, n - i), sum[0]);
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* y += sum over n keys of p v. */
static void add_values(const shapes *s, const float *v, int64_t n, const float *p, float *y)
{
    for (int64_t d = 0; d < s->hv; d += 4 * LANES) {
        const int64_t left = s->hv - d;
        vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int64_t j = 0; j < n; j++)
            for (int u = 0; u < 4 && u * LANES < left; u++)
                sum[u] = vf_fma(vf_all(p + j), vf_load_part(v + j * s->v2 + d + u * LANES, left - u * LANES), sum[u]);
        for (int u = 0; u < 4 && u * LANES < left; u++) {
            float *at = y + d + u * LANES;
            vf_store_part(at, left - u * LANES, vf_load_part(at, left - u * LANES) + sum[u]);
        }
    }
}

static void scale_row(float *y, int64_t n, float by)
{
    for (int64_t d = 0; d < n; d++)
        y[d] *= by;
}

/* One row of q against up to BK keys that it sees; y, the maximum and the denominator run on. */
static void row_block(const shapes *s, const float *q, const float *k, const float *v, int64_t n, float *p, float *y,
                      float *top, float *below)
{
    static const int32_t lanes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf highest = vf_of(*top), sum = vf_zero();
    float next = -INFINITY;

    for (int64_t j = 0; j < n; j++)
        p[j] = dot_of(q, k + j * s->k2, s->hd);
    for (int64_t j = 0; j < n; j += LANES) {
        vf x = vf_load(p + j);
        if (s->cap > 0)
            x = vf_of(s->cap) * vf_tanh(x * vf_of(s->scale / s->cap));
        else
            x = x * vf_of(s->scale);
        x = vf_select((vi)(vi_load(lanes) < (int32_t)(n - j)), x, vf_of(-INFINITY));
        vf_store(p + j, x);
        highest = vf_max(x, highest);
    }
    for (int l = 0; l < LANES; l++)
        next = highest[l] > next ? highest[l] : next;
    const float shift = next == -INFINITY ? 0 : next;
    const vf shrink = vf_exp(vf_of(*top - shift));
    for (int64_t j = 0; j < n; j += LANES) {
        const vf e = vf_exp(vf_load(p + j) - vf_of(shift));
        vf_store(p + j, e);
        sum += e;
    }
    if (next != *top)
        scale_row(y, s->hv, shrink[0]);
    *below = *below * shrink[0] + vf_sum(sum);
    *top = next;
    add_values(s, v, n, p, y);
}

/* All queries of a head; each block of keys is read once. */
static void head_item(const void *state, int64_t head)
{
    const forward_state *f = state;
    const shapes *s = &f->t.s;
    const int64_t g = head / f->t.group, group = f->t.group;
    const float *sinks = f->t.call->src[SINKS];
    float *y = (float *)f->t.call->dst + head * s->hv, *lse = (float *)f->t.call->dst + s->hv * s->n_head * s->n_q;
    float top[FEW], below[FEW];
    int64_t low = s->n_kv, high = 0;

    for (int64_t t = 0; t < s->n_q; t++) {
        top[t] = sinks ? sinks[head] : -INFINITY;
        below[t] = sinks ? 1.0f : 0.0f;
        memset(y + t * s->n_head * s->hv, 0, (size_t)s->hv * sizeof *y);
        low = firn_min_i64(low, f->t.first[t * group]);
        high = firn_max_i64(high, f->t.last[t * group]);
    }
    for (int64_t j0 = low; j0 < high; j0 += BK)
        for (int64_t t = 0; t < s->n_q; t++) {
            const int64_t from = firn_max_i64(f->t.first[t * group], j0),
                          to = firn_min_i64(f->t.last[t * group], j0 + BK);
            if (from < to)
                row_block(s, s->q + t * s->q2 + head * s->q1, s->k + g * s->k1 + from * s->k2,
                          s->v + g * s->v1 + from * s->v2, to - from, f->t.scratch, y + t * s->n_head * s->hv, &top[t],
                          &below[t]);
        }
    for (int64_t t = 0; t < s->n_q; t++) {
        const bool any = f->t.first[t * group] < f->t.last[t * group];
        if (any)
            scale_row(y + t * s->n_head * s->hv, s->hv, 1.0f / below[t]);
        lse[head + t * s->n_head] = any ? top[t] + logf(below[t]) : 0.0f;
    }
}

static void attention_forward(const firn_call *call, firn_team team)
{
    part_cursor parts = {.base = (uintptr_t)call->work};
    forward_state f = forward_state_of(call, team, &parts);

    team_begin(&f.t);
    firn_team_barrier(team);
    if (f.t.n_rows <= FEW) {
        deal(&f.t, f.t.s.n_head, head_item, &f);
        return;
    }
    place_blocks(&f);
    deal(&f.t, f.t.s.n_group * f.t.n_blocks, pack_keys, &f);
    deal(&f.t, f.t.s.n_group * blocks(f.t.n_panels, f.panels), forward_item, &f);
}

static size_t forward_work(const firn_tensor *node, int n_threads)
{
    const firn_call call = {.node = node};
    part_cursor parts = {0};

    forward_state_of(&call, (firn_team){.nth = n_threads}, &parts);
    return parts.used;
}

#endif
