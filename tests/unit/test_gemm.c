/* The tiled product against plain loops in double precision: every kernel set that this machine runs, every format,
 * product and awkward shape. Outputs start as NaN between canaries; one thread and another number (2, 3, 5 in turn; for
 * the large shapes all of them and 16, since many threads on few processors mostly wait) must give the same bits.
 * Inputs have exactly their size, so that the address sanitizer sees any read past them.
 *
 * Sets of bf16 are compared with operands rounded to bf16, within the bounds of F32, since only their sums may differ,
 * and with the operands as they were, within what rounding two factors to 8 bits can do. */
#include "core/random.h"
#include "cpu/gemm.h"
#include "format/format.h"
#include "unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, TEAMS = 5 };
static const int teams[TEAMS] = {1, 2, 3, 5, 16};
static const float CANARY = 12345.0f;

static firn_context *contexts[TEAMS];
static uint64_t drawn; /* random numbers so far */
static int cases;      /* so far */
static bool all_teams; /* every number of threads, not two of them */

static void *need(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);

    assert_non_null(p);
    return p;
}

static float uniform(void) /* -1 .. 1 */
{
    return 2 * firn_random_unit(12345, 0, drawn++) - 1;
}

static int64_t below(int64_t n)
{
    return (int64_t)firn_random_below(12345, 0, drawn++, (uint64_t)n);
}

static float *noise(int64_t n)
{
    float *p = need((size_t)n * sizeof *p);

    for (int64_t i = 0; i < n; i++)
        p[i] = uniform();
    return p;
}

/* ---- formats ---- */

static const struct {
    firn_type type;
    int half[2]; /* offsets of the halves of a block; -1: none */
} formats[] = {
    {FIRN_F32, {-1, -1}},   {FIRN_F16, {-1, -1}},   {FIRN_BF16, {-1, -1}},  {FIRN_Q4_0, {0, -1}},
    {FIRN_Q4_1, {0, 2}},    {FIRN_Q5_0, {0, -1}},   {FIRN_Q5_1, {0, 2}},    {FIRN_Q8_0, {0, -1}},
    {FIRN_Q2_K, {80, 82}},  {FIRN_Q3_K, {108, -1}}, {FIRN_Q4_K, {0, 2}},    {FIRN_Q5_K, {0, 2}},
    {FIRN_Q6_K, {208, -1}}, {FIRN_IQ4_NL, {0, -1}}, {FIRN_IQ4_XS, {0, -1}}, {FIRN_MXFP4, {-1, -1}},
    {FIRN_NVFP4, {-1, -1}},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* A half in 2^-7 .. 2^-5 of either sign. */
static uint16_t small_half(void)
{
    return (uint16_t)((uint16_t)below(2) << 15 | (uint16_t)(8 + below(2)) << 10 | (uint16_t)below(1024));
}

static void random_row(int format, int64_t k, uint8_t *row)
{
    const firn_type type = formats[format].type;
    const int64_t size = (int64_t)firn_type_size(type), n = k / firn_type_block(type);

    for (int64_t b = 0; b < n; b++, row += size) {
        for (int64_t i = 0; i < size; i++)
            row[i] = (uint8_t)below(256);
        for (int h = 0; h < 2; h++)
            if (formats[format].half[h] >= 0) {
                const uint16_t half = small_half();
                memcpy(row + formats[format].half[h], &half, 2);
            }
        const float f = uniform();
        uint32_t bits;
        memcpy(&bits, &f, 4);
        const uint16_t half = small_half(), brain = (uint16_t)(bits >> 16);
        if (type == FIRN_F32)
            memcpy(row, &f, 4);
        else if (type == FIRN_F16)
            memcpy(row, &half, 2);
        else if (type == FIRN_BF16)
            memcpy(row, &brain, 2);
        else if (type == FIRN_MXFP4)
            row[0] = (uint8_t)(118 + below(6));
        else if (type == FIRN_NVFP4)
            for (int i = 0; i < 4; i++)
                row[i] = (uint8_t)(0x28 + below(16));
    }
}

/* ---- one case ---- */

typedef struct {
    int64_t k, m;
    int64_t n_expert, n_used, n_tokens, x_slots; /* routed; n_expert 0: dense */
    int64_t n, n2, n3, w_n2, w_n3;
    bool one_expert, accumulate, transposed, table, bad_id;
    bool spread;     /* rows of x that are far apart in size, and an element far from its row */
    int64_t row_pad; /* bytes between rows of w, and floats between rows of all else */
} shape;

/* Memory of one matrix operand: floats with strides in bytes. */
typedef struct {
    float *data;
    int64_t n_floats, nb[4];
} operand;

/* [length, d1, d2, d3] with row_pad floats behind each row; transposed: the first two dimensions change places. */
static operand make_operand(int64_t length, int64_t d1, int64_t d2, int64_t d3, int64_t pad, bool transposed)
{
    const int64_t inner = transposed ? d1 : length, outer = transposed ? length : d1, row = inner + pad;
    operand o = {.n_floats = row * outer * d2 * d3 - pad, .nb = {4, 4 * row, 4 * row * outer, 4 * row * outer * d2}};

    if (transposed) {
        o.nb[0] = 4 * row;
        o.nb[1] = 4;
    }
    return o;
}

static float *at(const operand *o, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (float *)((char *)o->data + i0 * o->nb[0] + i1 * o->nb[1] + i2 * o->nb[2] + i3 * o->nb[3]);
}

typedef struct {
    firn_gemm g;
    int64_t slots;
    operand in1, in2, out;
    uint8_t *w;
    float *w_floats; /* decoded, [k, m, groups of w] */
    int32_t *ids;    /* [n_used, n_tokens], every second one of an array */
    int64_t *table;
    float *before; /* out's contents before accumulating */
} problem;

static int32_t expert_of(const problem *p, int64_t slot)
{
    return p->ids[2 * slot];
}

static void make_weights(problem *p, const shape *s, int format, int64_t n_groups)
{
    firn_gemm *g = &p->g;
    const firn_type type = formats[format].type;
    const int64_t row = (int64_t)firn_row_bytes(type, s->k), row_bytes = row + s->row_pad;
    const int64_t expert = row_bytes * s->m, n_bytes = expert * n_groups - s->row_pad;

    p->w = need((size_t)n_bytes);
    memset(p->w, 0xff, (size_t)n_bytes); /* NaN between the rows */
    p->w_floats = need((size_t)(s->k * s->m * n_groups) * sizeof(float));
    p->table = need((size_t)n_groups * sizeof *p->table);
    for (int64_t e = 0; e < n_groups; e++) {
        p->table[e] = (n_groups - 1 - e) * expert;
        const uint8_t *from = p->w + (s->table ? p->table[e] : e * expert);
        for (int64_t r = 0; r < s->m; r++) {
            random_row(format, s->k, (uint8_t *)from + r * row_bytes);
            firn_decode_row(type, from + r * row_bytes, s->k, p->w_floats + (e * s->m + r) * s->k);
        }
    }
    g->type = type;
    g->w = (firn_gemm_view){p->w, {0, row_bytes, expert, expert * s->w_n2}};
    g->table = s->table ? p->table : NULL;
    g->table_bytes = n_bytes;
}

static void fill(operand *o)
{
    o->data = noise(o->n_floats);
}

static problem make_problem(firn_gemm_kind kind, const shape *s, int format)
{
    problem p = {.slots = s->n_used * s->n_tokens};
    firn_gemm *g = &p.g;
    const bool routed = s->n_expert > 0, outer = kind == FIRN_GEMM_OUTER, forward = kind == FIRN_GEMM_FORWARD;
    const int64_t in_length = kind == FIRN_GEMM_BACK ? s->m : s->k, out_length = forward ? s->m : s->k;

    *g = (firn_gemm){.kind = kind, .k = s->k, .m = s->m, .accumulate = s->accumulate};
    if (!outer)
        make_weights(&p, s, format, routed ? s->n_expert : s->w_n2 * s->w_n3);
    if (routed) {
        const int64_t in_slots = kind == FIRN_GEMM_BACK ? s->n_used : s->x_slots;
        p.in1 = make_operand(in_length, in_slots, s->n_tokens, 1, s->row_pad, s->transposed);
        p.in2 = make_operand(s->m, s->n_used, s->n_tokens, 1, s->row_pad, s->transposed);
        p.out = outer ? make_operand(s->k, s->m, s->n_expert, 1, s->row_pad, false)
                      : make_operand(out_length, s->n_used, s->n_tokens, 1, s->row_pad, false);
        p.ids = need((size_t)(2 * p.slots) * sizeof *p.ids);
        for (int64_t i = 0; i < 2 * p.slots; i++)
            p.ids[i] = i % 2 ? INT32_MIN : s->one_expert ? (int32_t)s->n_expert - 1 : (int32_t)below(s->n_expert);
        if (s->bad_id) {
            p.ids[2 * (p.slots - 1)] = -1;
            p.ids[2 * (p.slots / 2)] = (int32_t)s->n_expert;
        }
        g->ids = p.ids;
        g->ids_nb[0] = 8;
        g->ids_nb[1] = 8 * s->n_used;
        g->n_expert = s->n_expert;
        g->n_used = s->n_used;
        g->n_tokens = s->n_tokens;
        g->x_slots = s->x_slots;
    } else {
        p.in1 = make_operand(in_length, s->n, s->n2, s->n3, s->row_pad, s->transposed);
        p.out = make_operand(out_length, s->n, s->n2, s->n3, s->row_pad, false);
        g->n = s->n;
        g->n2 = s->n2;
        g->n3 = s->n3;
        g->w_n2 = s->w_n2;
        g->w_n3 = s->w_n3;
    }
    fill(&p.in1);
    for (int64_t i = 0; s->spread && i < s->n; i++) {
        static const float sizes[] = {1, 0x1p-112f, 0, 0x1p85f, 0x1p-70f, 0x1p60f};
        for (int64_t c = 0; c < in_length; c++)
            *at(&p.in1, c, i, 0, 0) *= sizes[i % 6];
        *at(&p.in1, in_length / 2, i, 0, 0) *= 1e6f;
    }
    g->in1.data = p.in1.data;
    memcpy(g->in1.nb, p.in1.nb, sizeof g->in1.nb);
    if (outer) {
        fill(&p.in2);
        g->in2.data = p.in2.data;
        memcpy(g->in2.nb, p.in2.nb, sizeof g->in2.nb);
    }
    memcpy(g->out_nb, p.out.nb, sizeof g->out_nb);
    p.before = noise(p.out.n_floats);
    return p;
}

static void free_problem(problem *p)
{
    free(p->in1.data);
    free(p->in2.data);
    free(p->w);
    free(p->w_floats);
    free(p->ids);
    free(p->table);
    free(p->before);
}

/* ---- the reference ---- */

typedef struct {
    double *value, *size,
        *mask; /* laid out as out; size: sum of what the terms could be; mask: 1 where out is written */
    double w_max;
    bool rounded;
} reference;

/* To nearest, ties to even. */
static double bf16_of(double v)
{
    int exponent;
    const double mantissa = frexp(v, &exponent);

    return ldexp(nearbyint(ldexp(mantissa, 8)), exponent - 8);
}

static void add_term(reference *r, const problem *p, const float *out, double a, double b)
{
    const int64_t i = out - p->out.data;

    if (r->rounded) {
        a = bf16_of(a);
        b = bf16_of(b);
    }
    r->value[i] += a * b;
    r->size[i] += (fabs(a) + r->w_max) * fabs(b);
}

static void mark(reference *r, const problem *p, const float *out)
{
    const int64_t i = out - p->out.data;

    r->mask[i] = 1;
    if (p->g.accumulate) {
        r->value[i] = p->before[i];
        r->size[i] = fabs(p->before[i]);
    }
}

/* One row of FORWARD or BACK through w [k, m]. */
static void add_row(reference *r, const problem *p, const float *w, int64_t a1, int64_t a2, int64_t a3, int64_t o1,
                    int64_t o2, int64_t o3)
{
    const firn_gemm *g = &p->g;

    for (int64_t row = 0; row < g->m; row++)
        for (int64_t c = 0; c < g->k; c++) {
            const bool forward = g->kind == FIRN_GEMM_FORWARD;
            add_term(r, p, at(&p->out, forward ? row : c, o1, o2, o3), w[row * g->k + c],
                     *at(&p->in1, forward ? c : row, a1, a2, a3));
        }
}

static reference make_reference(const problem *p, bool rounded)
{
    const firn_gemm *g = &p->g;
    const int64_t n = p->out.n_floats, columns = g->kind == FIRN_GEMM_FORWARD ? g->m : g->k;
    reference r = {calloc((size_t)n, 8), calloc((size_t)n, 8), calloc((size_t)n, 8), 0, rounded};

    assert_true(r.value && r.size && r.mask);
    if (!g->ids) {
        for (int64_t i = 0; i < g->k * g->m * g->w_n2 * g->w_n3; i++)
            r.w_max = fmax(r.w_max, fabs(p->w_floats[i]));
        for (int64_t i3 = 0; i3 < g->n3; i3++)
            for (int64_t i2 = 0; i2 < g->n2; i2++)
                for (int64_t i = 0; i < g->n; i++) {
                    const int64_t e = i2 % g->w_n2 + g->w_n2 * (i3 % g->w_n3);
                    for (int64_t c = 0; c < columns; c++)
                        mark(&r, p, at(&p->out, c, i, i2, i3));
                    add_row(&r, p, p->w_floats + e * g->k * g->m, i, i2, i3, i, i2, i3);
                }
        return r;
    }
    if (g->kind == FIRN_GEMM_OUTER)
        for (int64_t e = 0; e < g->n_expert; e++)
            for (int64_t row = 0; row < g->m; row++)
                for (int64_t c = 0; c < g->k; c++)
                    mark(&r, p, at(&p->out, c, row, e, 0));
    else
        for (int64_t i = 0; i < g->k * g->m * g->n_expert; i++)
            r.w_max = fmax(r.w_max, fabs(p->w_floats[i]));
    for (int64_t slot = 0; slot < p->slots; slot++) {
        const int64_t s = slot % g->n_used, t = slot / g->n_used, e = expert_of(p, slot);
        const int64_t row = g->kind == FIRN_GEMM_BACK ? s : s % g->x_slots;
        for (int64_t c = 0; g->kind != FIRN_GEMM_OUTER && c < columns; c++)
            mark(&r, p, at(&p->out, c, s, t, 0));
        if (e < 0 || e >= g->n_expert)
            continue;
        if (g->kind != FIRN_GEMM_OUTER) {
            add_row(&r, p, p->w_floats + e * g->k * g->m, row, t, 0, s, t, 0);
            continue;
        }
        for (int64_t j = 0; j < g->m; j++)
            for (int64_t c = 0; c < g->k; c++)
                add_term(&r, p, at(&p->out, c, j, e, 0), *at(&p->in1, c, row, t, 0), *at(&p->in2, j, s, t, 0));
    }
    return r;
}

static void free_reference(reference *r)
{
    free(r->value);
    free(r->size);
    free(r->mask);
}

/* ---- the comparison ---- */

typedef struct {
    const firn_gemm *g;
    void *work;
    firn_gemm_fault fault;
} launch;

static void run_on_team(void *argument, firn_team team)
{
    launch *l = argument;

    firn_gemm_run(l->g, l->work, team, &l->fault);
}

static firn_gemm_fault run(const firn_gemm *g, int which)
{
    const size_t bytes = firn_gemm_work_bytes(g, teams[which]);
    launch l = {.g = g, .work = aligned_alloc(64, (bytes + 63) / 64 * 64)};

    assert_non_null(l.work);
    memset(l.work, 0xff, bytes); /* nothing in it may be taken for granted */
    firn_pool_run(firn_context_pool(contexts[which]), run_on_team, &l);
    free(l.work);
    return l.fault;
}

/* Normalized mean square of the values that the reference marks; 0 for so few that all of them may be nearly nothing.
 */
static double error_of(const float *out, const reference *r, int64_t n)
{
    double error = 0, norm = 0;
    int marked = 0;

    for (int64_t i = 0; i < n; i++)
        if (r->mask[i] != 0) {
            marked++;
            error += ((double)out[i] - r->value[i]) * ((double)out[i] - r->value[i]);
            norm += r->value[i] * r->value[i];
        }
    return marked < 16 ? 0 : norm > 0 ? error / norm : error;
}

static void check(const firn_kernel_set *set, firn_gemm_kind kind, const shape *s, int format)
{
    const bool rounded = set->precision == FIRN_PRECISION_BF16;
    problem p = make_problem(kind, s, format);
    const int64_t n = p.out.n_floats;
    float *first = NULL;
    reference r;

    p.g.set = set;
    p.out.data = need((size_t)n * sizeof(float)); /* only for addresses, in the reference */
    r = make_reference(&p, rounded);
    float *const nowhere = p.out.data;
    cases++;
    for (int t = 0; t < TEAMS; t++) {
        if (!all_teams && t != 0 && t != 1 + cases % 3)
            continue;
        float *const memory = need((size_t)(n + 2 * GUARD) * sizeof(float)), *out = memory + GUARD;
        for (int64_t i = 0; i < n + 2 * GUARD; i++)
            memory[i] = i < GUARD || i >= n + GUARD ? CANARY : NAN;
        for (int64_t i = 0; i < n; i++)
            if (r.mask[i] == 0)
                out[i] = CANARY;
            else if (s->accumulate)
                out[i] = p.before[i];
        p.g.out = out;
        const firn_gemm_fault fault = run(&p.g, t);
        assert_int_equal(fault.found, s->bad_id);
        if (s->bad_id) {
            assert_int_equal(fault.slot, p.slots / 2);
            assert_int_equal(fault.id, expert_of(&p, p.slots / 2));
        }
        for (int64_t i = 0; i < n + 2 * GUARD; i++) {
            const bool inside = i >= GUARD && i < n + GUARD && r.mask[i - GUARD] != 0;
            if (!inside) {
                if (memory[i] != CANARY)
                    fail_msg("%s wrote outside, at %lld", set->name, (long long)i - GUARD);
                continue;
            }
            const double want = r.value[i - GUARD], difference = (double)memory[i] - want;
            if (!(fabs(difference) <= 2e-6 * r.size[i - GUARD]))
                fail_msg("%s kind %d %s k=%lld m=%lld experts=%lld rows=%lld: element %lld is %g, not %g", set->name,
                         kind, firn_type_name(formats[format].type), (long long)s->k, (long long)s->m,
                         (long long)s->n_expert, (long long)(s->n_expert ? p.slots : s->n), (long long)i - GUARD,
                         memory[i], want);
        }
        const double error = error_of(out, &r, n);
        if (!(error <= 1e-11))
            fail_msg("%s kind %d %s: error %g", set->name, kind, firn_type_name(formats[format].type), error);
        if (first && memcmp(first, memory, (size_t)(n + 2 * GUARD) * sizeof(float)) != 0)
            fail_msg("%s kind %d: %d threads give other bits", set->name, kind, teams[t]);
        if (first)
            free(memory);
        else
            first = memory;
    }
    if (rounded) { /* each factor is within 2^-9 of itself, evenly spread */
        p.out.data = nowhere;
        reference exact = make_reference(&p, false);
        const double error = error_of(first + GUARD, &exact, n);
        if (!(error <= 4e-5))
            fail_msg("%s kind %d %s: bf16 error %g", set->name, kind, firn_type_name(formats[format].type), error);
        free_reference(&exact);
    }
    free(first);
    free(nowhere);
    free_reference(&r);
    free_problem(&p);
}

#if defined(__x86_64__)
extern const firn_kernel_set firn_kernel_set_amx_stand_in;
#endif

static char **chosen_sets; /* names, NULL-terminated; none: every set */

static bool chosen(const firn_kernel_set *set)
{
    bool found = !chosen_sets || !*chosen_sets;

    for (char **name = chosen_sets; name && *name; name++)
        found |= strcmp(*name, set->name) == 0;
    return found && set->usable();
}

/* Every set that runs here. */
static void check_sets(firn_gemm_kind kind, const shape *s, int format)
{
    for (int i = 0; firn_kernel_sets[i]; i++)
        if (chosen(firn_kernel_sets[i]))
            check(firn_kernel_sets[i], kind, s, format);
#if defined(__x86_64__)
    if (chosen(&firn_kernel_set_amx_stand_in))
        check(&firn_kernel_set_amx_stand_in, kind, s, format);
#endif
}

static void check_kinds(const shape *s, int format)
{
    check_sets(FIRN_GEMM_FORWARD, s, format);
    if (!s->table)
        check_sets(FIRN_GEMM_BACK, s, format);
    if (s->n_expert && format == 0 && !s->table)
        check_sets(FIRN_GEMM_OUTER, s, format);
}

/* ---- tests ---- */

/* The thread sanitizer is ten times slower, and neither formats nor sizes differ in what threads share. */
#if defined(__SANITIZE_THREAD__)
enum { EVERY = 6 };
static const firn_type large_formats[] = {FIRN_F32, FIRN_Q4_1};
#else
enum { EVERY = 1 };
static const firn_type large_formats[] = {FIRN_F32, FIRN_F16, FIRN_Q4_1, FIRN_Q4_K, FIRN_Q6_K, FIRN_IQ4_NL, FIRN_Q3_K};
#endif

static void routed_shapes(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f += EVERY) {
        const int64_t b = firn_type_block(formats[f].type);
        /* spans that are not whole, where a format allows it */
        const int64_t wide = b == 256 ? 512 : b == 1 ? 333 : 352 / b * b;
        const shape shapes[] = {
            {.k = b, .m = 1, .n_expert = 1, .n_used = 1, .n_tokens = 1, .x_slots = 1},
            {.k = b, .m = 17, .n_expert = 3, .n_used = 2, .n_tokens = 5, .x_slots = 1},
            {.k = wide, .m = 15, .n_expert = 5, .n_used = 3, .n_tokens = 7, .x_slots = 3, .row_pad = 4},
            {.k = wide, .m = 16, .n_expert = 4, .n_used = 2, .n_tokens = 9, .x_slots = 1, .accumulate = true},
            {.k = wide, .m = 33, .n_expert = 2, .n_used = 4, .n_tokens = 20, .x_slots = 2, .bad_id = true},
            {.k = wide, .m = 70, .n_expert = 3, .n_used = 2, .n_tokens = 11, .x_slots = 1, .one_expert = true},
            {.k = wide,
             .m = 24,
             .n_expert = 2,
             .n_used = 2,
             .n_tokens = 2,
             .x_slots = 2,
             .transposed = true,
             .accumulate = true},
            {.k = wide,
             .m = 9,
             .n_expert = 6,
             .n_used = 2,
             .n_tokens = 24,
             .x_slots = 2,
             .transposed = true,
             .row_pad = 4},
            {.k = wide, .m = 20, .n_expert = 7, .n_used = 2, .n_tokens = 30, .x_slots = 1, .table = true},
        };
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_kinds(&shapes[i], f);
    }
}

static void large_shapes(void **state)
{
    static const shape shapes[] = {
        {.k = 768, .m = 517, .n_expert = 2, .n_used = 2, .n_tokens = 13, .x_slots = 1},
        {.k = 256, .m = 40, .n_expert = 2, .n_used = 2, .n_tokens = 300, .x_slots = 1, .one_expert = true},
        {.k = 4096, .m = 18, .n_expert = 3, .n_used = 2, .n_tokens = 9, .x_slots = 2},
    };

    (void)state;
    all_teams = EVERY == 1;
    for (int f = 0; f < N_FORMATS; f++)
        for (size_t c = 0; c < sizeof large_formats / sizeof *large_formats; c++)
            for (size_t i = 0; large_formats[c] == formats[f].type && i < sizeof shapes / sizeof *shapes; i++)
                check_kinds(&shapes[i], f);
    all_teams = false;
}

/* Every height and width around the tile, and adapters' thin matrices. */
static void tile_edges(void **state)
{
    static const int64_t sizes[] = {1, 2, 5, 6, 7, 8, 13, 15, 16, 17, 31, 32, 33};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i += EVERY)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            const shape dense = {.k = sizes[i],
                                 .m = sizes[(i + j) % 13],
                                 .n = sizes[j],
                                 .n2 = 1,
                                 .n3 = 1,
                                 .w_n2 = 1,
                                 .w_n3 = 1,
                                 .transposed = j % 2 == 1};
            check_kinds(&dense, 0);
            const shape routed = {
                .k = sizes[j], .m = sizes[i], .n_expert = 2, .n_used = 1, .n_tokens = 19, .x_slots = 1};
            check_sets(FIRN_GEMM_OUTER, &routed, 0);
        }
}

static void thin_shapes(void **state)
{
    static const shape shapes[] = {
        {.k = 2048, .m = 16, .n = 32, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1},
        {.k = 16, .m = 768, .n = 32, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1},
        {.k = 16, .m = 300, .n = 128, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1, .transposed = true, .accumulate = true},
        {.k = 576, .m = 16, .n = 270, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1, .transposed = true},
        {.k = 576, .m = 16, .n_expert = 3, .n_used = 2, .n_tokens = 40, .x_slots = 1},
        {.k = 16, .m = 768, .n_expert = 3, .n_used = 2, .n_tokens = 40, .x_slots = 2},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_kinds(&shapes[i], 0);
}

static void dense_batches(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f += EVERY) {
        const int64_t b = firn_type_block(formats[f].type), k = b == 1 ? 37 : b == 256 ? 256 : 3 * b;
        const shape shapes[] = {
            {.k = k, .m = 21, .n = 3, .n2 = 4, .n3 = 3, .w_n2 = 2, .w_n3 = 1, .row_pad = 4},
            {.k = k, .m = 19, .n = 9, .n2 = 2, .n3 = 4, .w_n2 = 1, .w_n3 = 2, .transposed = true},
            {.k = b == 1 ? 288 : k, .m = 21, .n = 3, .n2 = 2, .n3 = 1, .w_n2 = 1, .w_n3 = 1},
            {.k = b == 1 ? 64 : k, .m = 40, .n = 30, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1},
            {.k = k, .m = 40, .n = 4, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1, .accumulate = true},
        };
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            check_kinds(&shapes[i], f);
    }
}

/* Few rows, which a kernel set may turn into integers: rows large, small and zero, one by one and together. */
static void rows_far_apart(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMATS; f += EVERY) {
        const int64_t b = firn_type_block(formats[f].type), k = b == 256 ? 512 : 288;
        for (int64_t n = 1; n <= 8; n++)
            check_sets(
                FIRN_GEMM_FORWARD,
                &(shape){.k = k - k % b, .m = 13, .n = n, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1, .spread = true}, f);
    }
}

/* What is not a number stays so, and touches its own row alone. */
static void rows_not_finite(void **state)
{
    enum { M = 13, N = 6 };

    (void)state;
    for (int f = 0; f < N_FORMATS; f += EVERY)
        for (int i = 0; firn_kernel_sets[i]; i++) {
            const firn_kernel_set *set = firn_kernel_sets[i];
            const shape s = {.k = 512, .m = M, .n = N, .n2 = 1, .n3 = 1, .w_n2 = 1, .w_n3 = 1};
            if (!chosen(set))
                continue;
            problem p = make_problem(FIRN_GEMM_FORWARD, &s, f);
            float *out = p.out.data = need((size_t)p.out.n_floats * sizeof *out);
            *at(&p.in1, 300, 1, 0, 0) = NAN;
            *at(&p.in1, 40, 4, 0, 0) = INFINITY;
            p.g.set = set;
            p.g.out = out;
            run(&p.g, 0);
            for (int64_t r = 0; r < N; r++)
                for (int64_t c = 0; c < M; c++) {
                    const float y = *at(&p.out, c, r, 0, 0);
                    if (r == 1 ? !isnan(y) : r == 4 ? isfinite(y) && p.w_floats[c * s.k + 40] != 0 : !isfinite(y))
                        fail_msg("%s %s: element %lld of row %lld is %g", set->name, firn_type_name(formats[f].type),
                                 (long long)c, (long long)r, y);
                }
            free(out);
            free_problem(&p);
        }
}

/* No tokens at all: OUTER writes exact zeros, the others nothing. */
static void no_rows(void **state)
{
    const shape s = {.k = 20, .m = 7, .n_expert = 3, .n_used = 2, .n_tokens = 0, .x_slots = 1};

    (void)state;
    check_sets(FIRN_GEMM_OUTER, &s, 0);
}

static void sets_by_name(void **state)
{
    (void)state;
    assert_ptr_equal(firn_kernel_set_named("scalar"), &firn_kernel_set_scalar);
    assert_ptr_equal(firn_kernel_set_named("vector"), &firn_kernel_set_vector);
    assert_null(firn_kernel_set_named("abacus"));
    assert_non_null(firn_kernel_set_default(FIRN_PRECISION_F32));
    for (int p = 0; p < 2; p++) {
        const firn_kernel_set *set = firn_kernel_set_default((firn_precision)p);
        assert_ptr_equal(set, firn_kernel_set_default((firn_precision)p));
        assert_true(!set || (int)set->precision == p);
    }
}

static int start(void **state)
{
    (void)state;
    for (int n = 0; n < TEAMS; n++) {
        contexts[n] = firn_context_create(&(firn_context_params){.n_threads = teams[n]});
        if (!contexts[n] || !firn_context_pool(contexts[n]))
            return -1;
    }
    return 0;
}

static int finish(void **state)
{
    (void)state;
    for (int n = 0; n < TEAMS; n++)
        firn_context_destroy(contexts[n]);
    return 0;
}

/* test_gemm [SET..] */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_by_name),   cmocka_unit_test(routed_shapes),   cmocka_unit_test(large_shapes),
        cmocka_unit_test(tile_edges),     cmocka_unit_test(thin_shapes),     cmocka_unit_test(dense_batches),
        cmocka_unit_test(rows_far_apart), cmocka_unit_test(rows_not_finite), cmocka_unit_test(no_rows),
    };

    chosen_sets = argc > 1 ? argv + 1 : NULL;
    return cmocka_run_group_tests(tests, start, finish);
}
