/* The matrix products of firn/kernels.h: looks at everything an engine hands us, then gives it to the driver that the
 * graph's operations use (cpu/gemm.h). Nothing is computed here and nothing allocated. */
#include "firn/kernels.h"

#include "core/sized.h"
#include "cpu/cpu.h"
#include "cpu/gemm.h"
#include "format/format.h"

#include <stdio.h>
#include <string.h>

#define LL(n) ((long long)(n))

enum { W, X, DY, IDS, TABLE, OUT, N_OPERANDS };
/* Past this many elements nothing fits into an address space; below it, no size computed here passes 64 bits. */
static const int64_t MOST_ELEMENTS = (int64_t)1 << 46;

static const struct {
    const char *name;
    bool takes[N_OPERANDS];
} kinds[] = {
    [FIRN_PRODUCT_MUL_MAT] = {"MUL_MAT", {[W] = true, [X] = true, [OUT] = true}},
    [FIRN_PRODUCT_OUT_PROD] = {"OUT_PROD", {[W] = true, [X] = true, [OUT] = true}},
    [FIRN_PRODUCT_MUL_MAT_ID] = {"MUL_MAT_ID", {[W] = true, [X] = true, [IDS] = true, [TABLE] = true, [OUT] = true}},
    [FIRN_PRODUCT_MUL_MAT_ID_BACK] = {"MUL_MAT_ID_BACK", {[W] = true, [DY] = true, [IDS] = true, [OUT] = true}},
    [FIRN_PRODUCT_OUT_PROD_ID] = {"OUT_PROD_ID", {[X] = true, [DY] = true, [IDS] = true, [OUT] = true}},
};
static const char *const operand_names[N_OPERANDS] = {"w", "x", "dy", "ids", "table", "out"};

/* A product that was looked at. */
typedef struct {
    const firn_product *product;
    const firn_array *arrays[N_OPERANDS];
    bool given[N_OPERANDS];
    int64_t bytes[N_OPERANDS]; /* from the first to past the last */
    firn_gemm gemm;
    int n_threads;
    bool empty; /* out has no elements */
} call;

firn_array firn_array_dense(firn_type type, void *data, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3)
{
    firn_array a = {.data = data, .type = type, .ne = {ne0, ne1, ne2, ne3}};
    const int64_t block = firn_type_block(type);

    a.nb[0] = (int64_t)firn_type_size(type);
    for (int i = 1; i < FIRN_MAX_DIMS; i++) {
        const int64_t n = i == 1 && block > 0 ? ne0 / block : a.ne[i - 1];
        if (a.nb[i - 1] < 0 || n < 0 || __builtin_mul_overflow(a.nb[i - 1], n, &a.nb[i]))
            a.nb[i] = -1;
    }
    return a;
}

/* ---- one array ---- */

typedef struct {
    char text[96];
} shape_text;

static shape_text shape_of(const int64_t ne[])
{
    shape_text s;

    snprintf(s.text, sizeof s.text, "[%lld, %lld, %lld, %lld]", LL(ne[0]), LL(ne[1]), LL(ne[2]), LL(ne[3]));
    return s;
}

static int64_t n_elements(const firn_array *a)
{
    return a->ne[0] * a->ne[1] * a->ne[2] * a->ne[3]; /* of a checked array */
}

static firn_status check_type(firn_context *ctx, const char *name, const firn_array *a, int operand)
{
    const firn_type wanted = operand == IDS ? FIRN_I32 : operand == TABLE ? FIRN_I64 : FIRN_F32;

    if (operand != W) {
        FIRN_EXPECT(ctx, a->type == wanted, "%s: %s must be %s, not type %d", name, operand_names[operand],
                    firn_type_name(wanted), (int)a->type);
        return FIRN_OK;
    }
    if (!firn_gemm_reads(a->type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s: w cannot be of type %d: it has no decoder", name,
                         (int)a->type);
    return FIRN_OK;
}

/* Sizes, strides and the bytes that they span; none of it may pass 64 bits. */
static firn_status check_extent(firn_context *ctx, const char *name, const firn_array *a, int operand, int64_t *bytes)
{
    const char *what = operand_names[operand];
    const int64_t block = firn_type_block(a->type), size = (int64_t)firn_type_size(a->type);
    int64_t elements = 1, last = size;
    bool fits = true;

    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        FIRN_EXPECT(ctx, a->ne[i] >= 0, "%s: %s of %s has a negative size", name, what, shape_of(a->ne).text);
        FIRN_EXPECT(ctx, a->nb[i] >= 0 && a->nb[i] % (int64_t)firn_type_align(a->type) == 0,
                    "%s: the strides of %s must be multiples of %zu and not negative; nb[%d] is %lld", name, what,
                    firn_type_align(a->type), i, LL(a->nb[i]));
    }
    FIRN_EXPECT(ctx, a->ne[0] % block == 0, "%s: rows of %s have %lld values, no multiple of the %lld of a block of %s",
                name, what, LL(a->ne[0]), LL(block), firn_type_name(a->type));
    *bytes = 0;
    for (int i = 0; i < FIRN_MAX_DIMS; i++) /* in any order of sizes: an empty dimension hides no absurd one */
        fits = fits && (a->ne[i] == 0 || !__builtin_mul_overflow(elements, a->ne[i], &elements));
    FIRN_EXPECT(ctx, fits && elements <= MOST_ELEMENTS, "%s: %s of %s is more than memory can hold", name, what,
                shape_of(a->ne).text);
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        const int64_t n = i == 0 ? a->ne[0] / block : a->ne[i];
        int64_t way = 0;
        if (n == 0)
            return FIRN_OK;
        fits = fits && !__builtin_mul_overflow(n - 1, a->nb[i], &way) && !__builtin_add_overflow(last, way, &last);
    }
    FIRN_EXPECT(ctx, fits, "%s: the strides of %s reach further than 64 bits", name, what);
    *bytes = last;
    return FIRN_OK;
}

static firn_status check_dense_rows(firn_context *ctx, const char *name, const firn_array *a, int operand)
{
    FIRN_EXPECT(ctx, a->nb[0] == (int64_t)firn_type_size(a->type),
                "%s: rows of %s have no gaps: nb[0] must be %zu, not %lld", name, operand_names[operand],
                firn_type_size(a->type), LL(a->nb[0]));
    return FIRN_OK;
}

/* No two elements of out share bytes: by rising stride, each steps over all that the ones before it span. */
static firn_status check_apart(firn_context *ctx, const char *name, const firn_array *out)
{
    int order[FIRN_MAX_DIMS] = {0, 1, 2, 3};
    int64_t span = 0;

    for (int i = 1; i < FIRN_MAX_DIMS; i++)
        for (int j = i; j > 0 && out->nb[order[j]] < out->nb[order[j - 1]]; j--) {
            const int swap = order[j];
            order[j] = order[j - 1];
            order[j - 1] = swap;
        }
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        const int d = order[i];
        if (out->ne[d] <= 1)
            continue;
        FIRN_EXPECT(ctx, out->nb[d] >= span && out->nb[d] > 0,
                    "%s: elements of out lie on each other: nb[%d] is %lld, and what is inside spans %lld bytes", name,
                    d, LL(out->nb[d]), LL(span));
        span = (out->ne[d] - 1) * out->nb[d] + (span ? span : (int64_t)sizeof(float));
    }
    return FIRN_OK;
}

static firn_status check_arrays(firn_context *ctx, call *c, const char *name)
{
    const firn_product *p = c->product;
    const firn_array *arrays[N_OPERANDS] = {&p->w, &p->x, &p->dy, &p->ids, &p->table, &p->out};
    const bool *takes = kinds[p->kind].takes;

    for (int i = 0; i < N_OPERANDS; i++) {
        const firn_array *a = c->arrays[i] = arrays[i];
        const bool blank = !a->data && a->ne[0] == 0 && a->ne[1] == 0;
        if (i == TABLE && !blank && p->kind == FIRN_PRODUCT_MUL_MAT_ID_BACK)
            return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                             "MUL_MAT_ID_BACK takes no table: experts that are not resident have no bytes to read");
        FIRN_EXPECT(ctx, takes[i] || blank, "%s takes no %s", name, operand_names[i]);
        c->given[i] = takes[i] && !(blank && i == TABLE);
        if (!c->given[i])
            continue;
        FIRN_TRY(check_type(ctx, name, a, i));
        FIRN_TRY(check_extent(ctx, name, a, i, &c->bytes[i]));
        if (i == W || i == TABLE || i == OUT)
            FIRN_TRY(check_dense_rows(ctx, name, a, i));
    }
    return c->bytes[OUT] ? check_apart(ctx, name, &p->out) : FIRN_OK;
}

/* ---- shapes ---- */

static firn_status expect_shape(firn_context *ctx, const call *c, int operand, int64_t ne0, int64_t ne1, int64_t ne2,
                                int64_t ne3)
{
    const int64_t wanted[] = {ne0, ne1, ne2, ne3}, *ne = c->arrays[operand]->ne;

    FIRN_EXPECT(ctx, memcmp(ne, wanted, sizeof wanted) == 0, "%s: %s must be %s, not %s", kinds[c->product->kind].name,
                operand_names[operand], shape_of(wanted).text, shape_of(ne).text);
    return FIRN_OK;
}

static firn_gemm_view view_of(const firn_array *a)
{
    firn_gemm_view v = {.data = a->data};

    memcpy(v.nb, a->nb, sizeof v.nb);
    return v;
}

/* MUL_MAT and OUT_PROD. */
static firn_status describe_dense(firn_context *ctx, call *c)
{
    const firn_product *p = c->product;
    const firn_array *w = &p->w, *x = &p->x;
    const bool forward = p->kind == FIRN_PRODUCT_MUL_MAT;
    firn_gemm *g = &c->gemm;

    FIRN_EXPECT(ctx, w->ne[2] > 0 && w->ne[3] > 0 && x->ne[2] % w->ne[2] == 0 && x->ne[3] % w->ne[3] == 0,
                "%s: w of %s cannot be repeated over x of %s", kinds[p->kind].name, shape_of(w->ne).text,
                shape_of(x->ne).text);
    if (forward)
        FIRN_TRY(expect_shape(ctx, c, X, w->ne[0], x->ne[1], x->ne[2], x->ne[3]));
    else
        FIRN_TRY(expect_shape(ctx, c, X, x->ne[0], w->ne[1], x->ne[2], x->ne[3]));
    FIRN_TRY(forward ? expect_shape(ctx, c, OUT, w->ne[1], x->ne[1], x->ne[2], x->ne[3])
                     : expect_shape(ctx, c, OUT, w->ne[0], x->ne[0], x->ne[2], x->ne[3]));
    g->kind = forward ? FIRN_GEMM_FORWARD : FIRN_GEMM_BACK;
    g->k = w->ne[0];
    g->m = w->ne[1];
    g->w = view_of(w);
    g->in1 = view_of(x);
    if (!forward) { /* the rows of the product run along p */
        g->in1.nb[0] = x->nb[1];
        g->in1.nb[1] = x->nb[0];
    }
    g->n = p->out.ne[1];
    g->n2 = p->out.ne[2];
    g->n3 = p->out.ne[3];
    g->w_n2 = w->ne[2];
    g->w_n3 = w->ne[3];
    return FIRN_OK;
}

static firn_status expect_slots(firn_context *ctx, const call *c, int64_t m)
{
    return expect_shape(ctx, c, DY, m, c->gemm.n_used, c->gemm.n_tokens, 1);
}

/* x [k, s', n_tokens] */
static firn_status expect_shared(firn_context *ctx, const call *c, int64_t k)
{
    const firn_gemm *g = &c->gemm;
    const int64_t shared = c->product->x.ne[1];

    FIRN_TRY(expect_shape(ctx, c, X, k, shared, g->n_tokens, 1));
    FIRN_EXPECT(ctx, shared > 0 && g->n_used % shared == 0, "%s: %lld slots of a token cannot share %lld rows of x",
                kinds[c->product->kind].name, LL(g->n_used), LL(shared));
    return FIRN_OK;
}

static firn_status describe_routed(firn_context *ctx, call *c)
{
    const firn_product *p = c->product;
    const firn_array *w = &p->w, *ids = &p->ids;
    const bool outer = p->kind == FIRN_PRODUCT_OUT_PROD_ID, forward = p->kind == FIRN_PRODUCT_MUL_MAT_ID;
    const int64_t n_used = ids->ne[0], n_tokens = ids->ne[1];
    firn_gemm *g = &c->gemm;

    FIRN_TRY(expect_shape(ctx, c, IDS, n_used, n_tokens, 1, 1));
    FIRN_EXPECT(ctx, n_used > 0, "%s: a token must have slots; ids is %s", kinds[p->kind].name, shape_of(ids->ne).text);
    static const int32_t some; /* the driver tells routed from dense by the pointer, when asked for memory too */
    g->ids = ids->data ? ids->data : &some;
    g->ids_nb[0] = ids->nb[0];
    g->ids_nb[1] = ids->nb[1];
    g->n_used = n_used;
    g->n_tokens = n_tokens;
    if (outer) {
        g->kind = FIRN_GEMM_OUTER;
        g->k = p->out.ne[0];
        g->m = p->out.ne[1];
        g->n_expert = p->out.ne[2];
        g->in1 = view_of(&p->x);
        g->in2 = view_of(&p->dy);
        g->x_slots = p->x.ne[1];
        FIRN_TRY(expect_shared(ctx, c, g->k));
        FIRN_TRY(expect_slots(ctx, c, g->m));
        return expect_shape(ctx, c, OUT, g->k, g->m, g->n_expert, 1);
    }
    FIRN_TRY(expect_shape(ctx, c, W, w->ne[0], w->ne[1], w->ne[2], 1));
    g->k = w->ne[0];
    g->m = w->ne[1];
    g->w = view_of(w);
    g->n_expert = w->ne[2];
    if (!forward) {
        g->kind = FIRN_GEMM_BACK;
        g->in1 = view_of(&p->dy);
        FIRN_TRY(expect_slots(ctx, c, g->m));
        return expect_shape(ctx, c, OUT, g->k, n_used, n_tokens, 1);
    }
    g->kind = FIRN_GEMM_FORWARD;
    g->in1 = view_of(&p->x);
    g->x_slots = p->x.ne[1];
    if (c->given[TABLE]) {
        g->table = p->table.data;
        g->table_bytes = c->bytes[W];
        g->n_expert = p->table.ne[0];
        FIRN_TRY(expect_shape(ctx, c, TABLE, g->n_expert, 1, 1, 1));
    }
    FIRN_TRY(expect_shared(ctx, c, g->k));
    return expect_shape(ctx, c, OUT, g->m, n_used, n_tokens, 1);
}

/* All that can be said without addresses. */
static firn_status describe(firn_context *ctx, const firn_product *p, call *c)
{
    FIRN_EXPECT(ctx, (unsigned)p->kind <= FIRN_PRODUCT_OUT_PROD_ID, "%d is no kind of product", (int)p->kind);
    const char *name = kinds[p->kind].name;
    const bool dense = p->kind == FIRN_PRODUCT_MUL_MAT || p->kind == FIRN_PRODUCT_OUT_PROD;

    *c = (call){.product = p};
    FIRN_TRY(firn_context_team(ctx, p->n_threads, &c->n_threads));
    FIRN_TRY(check_arrays(ctx, c, name));
    FIRN_TRY(dense ? describe_dense(ctx, c) : describe_routed(ctx, c));
    firn_gemm *g = &c->gemm;
    FIRN_EXPECT(ctx, g->k > 0 && g->m > 0 && (dense || g->n_expert > 0), "%s: %s must not be empty: it is %s", name,
                operand_names[c->given[W] ? W : OUT], shape_of(c->given[W] ? p->w.ne : p->out.ne).text);
    FIRN_TRY(firn_cpu_choose_set(ctx, p->precision, &g->set));
    g->type = p->w.type;
    g->out = p->out.data;
    g->accumulate = p->accumulate;
    memcpy(g->out_nb, p->out.nb, sizeof g->out_nb);
    c->empty = n_elements(&p->out) == 0;
    return FIRN_OK;
}

/* The caller's product, as it is known here. */
static firn_status take(firn_context *ctx, const firn_product *given, firn_product *product)
{
    if (!ctx)
        return FIRN_ERR_ARGUMENT;
    FIRN_EXPECT(ctx, given, "the product must not be null");
    return FIRN_TAKE(ctx, firn_product, out, given, product);
}

firn_status firn_product_work_bytes(firn_context *ctx, const firn_product *given, size_t *bytes)
{
    firn_product product;
    call c;

    FIRN_TRY(take(ctx, given, &product));
    FIRN_TRY(describe(ctx, &product, &c));
    FIRN_EXPECT(ctx, bytes, "the place for the workspace's size must not be null");
    *bytes = c.empty ? 0 : firn_gemm_work_bytes(&c.gemm, c.n_threads);
    return FIRN_OK;
}

/* ---- addresses ---- */

static bool overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return a_bytes && b_bytes && (uintptr_t)a < (uintptr_t)b + b_bytes && (uintptr_t)b < (uintptr_t)a + a_bytes;
}

static firn_status check_addresses(firn_context *ctx, const call *c, const void *work, size_t work_bytes)
{
    const char *name = kinds[c->product->kind].name;
    const void *out = c->product->out.data;
    const size_t needed = firn_gemm_work_bytes(&c->gemm, c->n_threads);

    for (int i = 0; i < N_OPERANDS; i++) {
        const firn_array *a = c->arrays[i];
        if (!c->given[i] || c->bytes[i] == 0)
            continue;
        FIRN_EXPECT(ctx, a->data, "%s: %s must not be null", name, operand_names[i]);
        FIRN_EXPECT(ctx, (uintptr_t)a->data % firn_type_align(a->type) == 0, "%s: %s must be aligned to %zu bytes",
                    name, operand_names[i], firn_type_align(a->type));
        FIRN_EXPECT(ctx, (uint64_t)c->bytes[i] <= UINTPTR_MAX - (uintptr_t)a->data,
                    "%s: %s passes the end of the address space", name, operand_names[i]);
    }
    FIRN_EXPECT(ctx, work, "%s: the workspace must not be null", name);
    FIRN_EXPECT(ctx, (uintptr_t)work % 64 == 0, "%s: the workspace must be aligned to 64 bytes", name);
    FIRN_EXPECT(ctx, work_bytes >= needed, "%s: the workspace has %zu bytes, and %zu are needed on %d threads", name,
                work_bytes, needed, c->n_threads);
    FIRN_EXPECT(ctx, needed <= UINTPTR_MAX - (uintptr_t)work, "%s: the workspace passes the end of the address space",
                name);
    for (int i = 0; i < N_OPERANDS; i++) {
        if (!c->given[i])
            continue;
        FIRN_EXPECT(ctx, i == OUT || !overlap(out, (uint64_t)c->bytes[OUT], c->arrays[i]->data, (uint64_t)c->bytes[i]),
                    "%s: out lies on %s", name, operand_names[i]);
        FIRN_EXPECT(ctx, !overlap(work, needed, c->arrays[i]->data, (uint64_t)c->bytes[i]),
                    "%s: the workspace lies on %s", name, operand_names[i]);
    }
    return FIRN_OK;
}

typedef struct {
    const firn_gemm *gemm;
    void *work;
    firn_gemm_fault fault;
} launch;

static void run(void *argument, firn_team team)
{
    launch *l = argument;

    firn_gemm_run(l->gemm, l->work, team, &l->fault);
}

firn_status firn_product_run(firn_context *ctx, const firn_product *given, void *work, size_t work_bytes)
{
    firn_product product;
    call c;

    FIRN_TRY(take(ctx, given, &product));
    FIRN_TRY(describe(ctx, &product, &c));
    if (c.empty)
        return FIRN_OK;
    FIRN_TRY(check_addresses(ctx, &c, work, work_bytes));
    const firn_gemm *g = &c.gemm;
    launch l = {.gemm = g, .work = work};
    FIRN_TRY(firn_context_run(ctx, c.n_threads, run, &l));
    if (!l.fault.found)
        return FIRN_OK;
    const char *name = kinds[product.kind].name;
    const long long slot = LL(l.fault.slot % g->n_used), token = LL(l.fault.slot / g->n_used);
    if (l.fault.outside)
        return firn_fail(
            ctx, FIRN_ERR_DEVICE,
            "%s: slot %lld of token %lld wants expert %d, which the table puts at byte %lld of the %lld of w", name,
            slot, token, l.fault.id, LL(g->table[l.fault.id]), LL(g->table_bytes));
    return firn_fail(ctx, FIRN_ERR_DEVICE, "%s: slot %lld of token %lld names expert %d of %lld", name, slot, token,
                     l.fault.id, LL(g->n_expert));
}
