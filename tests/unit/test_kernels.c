/* firn/kernels.h as an engine meets it: every product and format against its definition in double precision, with
 * strided, padded and transposed operands; outputs between canaries, a workspace of exactly the bytes asked for, no
 * allocation, the same bits on 1, 2 and 3 threads; and everything that must be refused. */
#include "core/random.h"
#include "firn/kernels.h"
#include "unit/countdown.h"
#include "unit/unit.h"

#include <math.h>
#include <string.h>

enum { THREADS = 3, GUARD = 16 };
static const float CANARY = 12345.0f;

static countdown memory = {.left = 1L << 60};
static firn_context *ctx;
static uint64_t drawn;

static float uniform(void)
{
    return 2 * firn_random_unit(99, 0, drawn++) - 1;
}

static int64_t below(int64_t n)
{
    return (int64_t)firn_random_below(99, 1, drawn++, (uint64_t)n);
}

static void *need(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);

    assert_non_null(p);
    return p;
}

/* ---- arrays ---- */

static char *place(const firn_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (char *)a->data + i0 * a->nb[0] + i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3];
}

static float *number(const firn_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
    return (float *)place(a, i0, i1, i2, i3);
}

static int64_t elements(const firn_array *a)
{
    return a->ne[0] * a->ne[1] * a->ne[2] * a->ne[3];
}

/* Dense but for `pad` elements behind each row; bytes in *bytes. */
static firn_array padded(firn_type type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int64_t pad, size_t *bytes)
{
    firn_array a = firn_array_dense(type, NULL, ne0, ne1, ne2, ne3);

    a.nb[1] += pad * (int64_t)firn_type_align(type);
    a.nb[2] = a.nb[1] * ne1;
    a.nb[3] = a.nb[2] * ne2;
    *bytes = (size_t)(a.nb[3] * ne3);
    return a;
}

/* Random floats; `swapped`: the first two dimensions lie the other way round. */
static firn_array floats(int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int64_t pad, bool swapped)
{
    size_t bytes;
    firn_array a =
        swapped ? padded(FIRN_F32, ne1, ne0, ne2, ne3, pad, &bytes) : padded(FIRN_F32, ne0, ne1, ne2, ne3, pad, &bytes);

    a.data = need(bytes);
    for (size_t i = 0; i < bytes / 4; i++)
        ((float *)a.data)[i] = uniform();
    if (swapped) {
        const int64_t n = a.ne[0], step = a.nb[0];
        a.ne[0] = a.ne[1];
        a.nb[0] = a.nb[1];
        a.ne[1] = n;
        a.nb[1] = step;
    }
    return a;
}

/* A block of random bits that stands for moderate weights. */
static void random_block(firn_type type, uint8_t *block)
{
    float values[256];
    bool fine = false;

    while (!fine) {
        for (size_t i = 0; i < firn_type_size(type); i++)
            block[i] = (uint8_t)below(256);
        assert_int_equal(firn_decode_rows(ctx, type, block, firn_type_size(type), firn_type_block(type), 1, values,
                                          sizeof values, 1),
                         FIRN_OK);
        fine = true;
        for (int64_t i = 0; i < firn_type_block(type); i++)
            fine = fine && fabsf(values[i]) < 2;
    }
}

/* Weights [k, m, n2, n3] of a type, and what they stand for, dense. NaN bits lie between the rows. */
static firn_array weights(firn_type type, int64_t k, int64_t m, int64_t n2, int64_t n3, int64_t pad,
                          firn_array *decoded)
{
    const int64_t blocks = k / firn_type_block(type);
    const size_t size = firn_type_size(type);
    size_t bytes;
    firn_array w = padded(type, k, m, n2, n3, pad, &bytes);

    w.data = need(bytes);
    memset(w.data, 0xff, bytes);
    *decoded = floats(k, m, n2, n3, 0, false);
    for (int64_t r = 0; r < m * n2 * n3; r++) {
        uint8_t *row = (uint8_t *)w.data + r * w.nb[1];
        float *to = (float *)decoded->data + r * k;
        for (int64_t b = 0; b < blocks && !firn_type_can_encode(type); b++)
            random_block(type, row + (size_t)b * size);
        if (firn_type_can_encode(type))
            assert_int_equal(firn_encode_rows(ctx, type, to, (size_t)k * 4, k, 1, NULL, row, (size_t)w.nb[1], 1),
                             FIRN_OK);
        assert_int_equal(firn_decode_rows(ctx, type, row, (size_t)w.nb[1], k, 1, to, (size_t)k * 4, 1), FIRN_OK);
    }
    return w;
}

enum { IDS_DENSE, IDS_OF_A_SORT, IDS_TRANSPOSED, N_IDS };

static firn_array make_ids(int layout, int64_t n_used, int64_t n_tokens, int64_t n_expert)
{
    const int64_t width = layout == IDS_OF_A_SORT ? n_used + 5 : n_used;
    firn_array ids = firn_array_dense(FIRN_I32, need((size_t)(width * n_tokens * 4)), n_used, n_tokens, 1, 1);

    ids.nb[1] = width * 4;
    for (int64_t i = 0; i < width * n_tokens; i++)
        ((int32_t *)ids.data)[i] = INT32_MAX;
    if (layout == IDS_TRANSPOSED) {
        ids.nb[0] = 4 * n_tokens;
        ids.nb[1] = 4;
    }
    for (int64_t t = 0; t < n_tokens; t++)
        for (int64_t s = 0; s < n_used; s++)
            *(int32_t *)place(&ids, s, t, 0, 0) = (int32_t)below(n_expert - 1); /* the last has no rows */
    return ids;
}

/* ---- a case ---- */

typedef struct {
    firn_product p;
    firn_array decoded; /* of p.w */
    float *out;         /* where p.out's memory begins, guards before and behind */
    int64_t out_floats; /* with guards */
    float *before;      /* what was there */
    bool *written;      /* which of it the product writes */
} test_case;

/* out with `pad` floats behind each row; NaN where the product writes (a value where it adds), canaries elsewhere. */
static void make_out(test_case *c, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3, int64_t pad, bool accumulate)
{
    size_t bytes;
    firn_array *out = &c->p.out;

    *out = padded(FIRN_F32, ne0, ne1, ne2, ne3, pad, &bytes);
    c->p.accumulate = accumulate;
    c->out_floats = (int64_t)bytes / 4 + 2 * GUARD;
    c->out = need((size_t)c->out_floats * 4);
    c->before = need((size_t)c->out_floats * 4);
    c->written = need((size_t)c->out_floats * sizeof(bool));
    memset(c->written, 0, (size_t)c->out_floats * sizeof(bool));
    for (int64_t i = 0; i < c->out_floats; i++)
        c->before[i] = CANARY;
    out->data = c->before + GUARD;
    for (int64_t r = 0; r < ne1 * ne2 * ne3; r++)
        for (int64_t i = 0; i < ne0; i++) {
            float *at = number(out, i, r % ne1, r / ne1 % ne2, r / ne1 / ne2);
            *at = accumulate ? uniform() : NAN;
            c->written[at - c->before] = true;
        }
    out->data = c->out + GUARD;
}

static void free_case(test_case *c)
{
    free(c->p.w.data);
    free(c->decoded.data);
    free(c->p.x.data);
    free(c->p.dy.data);
    free(c->p.ids.data);
    free(c->p.table.data);
    free(c->out);
    free(c->before);
    free(c->written);
}

static firn_status run(const test_case *c, int n_threads)
{
    firn_product p = c->p;
    size_t bytes = 0;

    p.n_threads = n_threads;
    memcpy(c->out, c->before, (size_t)c->out_floats * 4);
    assert_int_equal(firn_product_work_bytes(ctx, &p, &bytes), FIRN_OK);
    uint8_t *work = need(bytes + GUARD);
    memset(work, 0xff, bytes + GUARD); /* nothing in it may be taken for granted */
    const long left = memory.left;
    const firn_status s = firn_product_run(ctx, &p, work, bytes);
    assert_int_equal(left, memory.left); /* no allocation */
    for (size_t i = bytes; i < bytes + GUARD; i++)
        assert_int_equal(work[i], 0xff);
    free(work);
    return s;
}

/* The definition: sum over the inner dimension at one element of out, and the size that errors are measured by. */
typedef struct {
    double sum, size;
} term;

static void add(term *t, double a, double b, double largest)
{
    t->sum += a * b;
    t->size += (fabs(a) + largest) * fabs(b);
}

static int32_t expert(const firn_product *p, int64_t s, int64_t t)
{
    return *(const int32_t *)place(&p->ids, s, t, 0, 0);
}

static bool bad(const test_case *c, int32_t e)
{
    return e < 0 || e >= (c->p.kind == FIRN_PRODUCT_OUT_PROD_ID ? c->p.out.ne[2] : c->decoded.ne[2]);
}

static term define(const test_case *c, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double largest)
{
    const firn_product *p = &c->p;
    const firn_array *w = &c->decoded, *x = &p->x, *dy = &p->dy;
    term t = {0, 0};

    switch (p->kind) {
    case FIRN_PRODUCT_MUL_MAT:
        for (int64_t i = 0; i < w->ne[0]; i++)
            add(&t, *number(w, i, i0, i2 % w->ne[2], i3 % w->ne[3]), *number(x, i, i1, i2, i3), largest);
        break;
    case FIRN_PRODUCT_OUT_PROD:
        for (int64_t r = 0; r < w->ne[1]; r++)
            add(&t, *number(w, i0, r, i2 % w->ne[2], i3 % w->ne[3]), *number(x, i1, r, i2, i3), largest);
        break;
    case FIRN_PRODUCT_MUL_MAT_ID:
        for (int64_t i = 0; i < w->ne[0] && !bad(c, expert(p, i1, i2)); i++)
            add(&t, *number(w, i, i0, expert(p, i1, i2), 0), *number(x, i, i1 % x->ne[1], i2, 0), largest);
        break;
    case FIRN_PRODUCT_MUL_MAT_ID_BACK:
        for (int64_t j = 0; j < w->ne[1] && !bad(c, expert(p, i1, i2)); j++)
            add(&t, *number(w, i0, j, expert(p, i1, i2), 0), *number(dy, j, i1, i2, 0), largest);
        break;
    case FIRN_PRODUCT_OUT_PROD_ID:
        for (int64_t n = 0; n < p->ids.ne[1]; n++)
            for (int64_t s = 0; s < p->ids.ne[0]; s++)
                if (expert(p, s, n) == i2)
                    add(&t, *number(x, i0, s % x->ne[1], n, 0), *number(dy, i1, s, n, 0), 0);
        break;
    }
    return t;
}

/* Compares c->out with the definition, and what is between and around it with what was there. */
static void compare(const test_case *c, const char *what)
{
    const firn_array *out = &c->p.out;
    double largest = 0, error = 0, norm = 0;

    for (int64_t i = 0; c->decoded.data && i < elements(&c->decoded); i++)
        largest = fmax(largest, fabs((double)((const float *)c->decoded.data)[i]));
    for (int64_t i = 0; i < c->out_floats; i++)
        if (!c->written[i] && c->out[i] != CANARY)
            fail_msg("%s: float %lld of out was written", what, (long long)i - GUARD);
    for (int64_t r = 0; r < out->ne[1] * out->ne[2] * out->ne[3]; r++)
        for (int64_t i = 0; i < out->ne[0]; i++) {
            const int64_t i1 = r % out->ne[1], i2 = r / out->ne[1] % out->ne[2], i3 = r / out->ne[1] / out->ne[2];
            const float *at = number(out, i, i1, i2, i3);
            term want = define(c, i, i1, i2, i3, largest);
            if (c->p.accumulate) {
                want.sum += (double)c->before[at - c->out];
                want.size += fabs((double)c->before[at - c->out]);
            }
            const double off = (double)*at - want.sum;
            error += off * off;
            norm += want.sum * want.sum;
            if (!(fabs(off) <= 2e-6 * want.size))
                fail_msg("%s: [%lld, %lld, %lld, %lld] is %g, not %g", what, (long long)i, (long long)i1, (long long)i2,
                         (long long)i3, (double)*at, want.sum);
        }
    if (!(error <= 1e-11 * norm))
        fail_msg("%s: error %g", what, error / norm);
}

/* Runs on every number of threads; the first result is compared with the definition, the others with the first. */
static void check(test_case *c, const char *what)
{
    const size_t bytes = (size_t)c->out_floats * 4;
    float *first = need(bytes);

    for (int n = 1; n <= THREADS; n++) {
        assert_int_equal(run(c, n), FIRN_OK);
        if (n == 1) {
            compare(c, what);
            memcpy(first, c->out, bytes);
        } else if (memcmp(first, c->out, bytes) != 0) {
            fail_msg("%s: %d threads give other bits", what, n);
        }
    }
    free(first);
}

/* A routed case in full; MUL_MAT_ID_BACK and OUT_PROD_ID take the operands that they have. */
static test_case routed(firn_product_kind kind, firn_type type, int layout, int64_t shared, bool accumulate)
{
    enum { N_EXPERT = 5, N_USED = 4 };
    static const int64_t token_counts[] = {7, 3, 40};
    const int64_t block = firn_type_block(type), k = block == 1 ? 75 : block == 256 ? 256 : 3 * block, m = 19;
    const int64_t n_tokens = token_counts[layout];
    const bool back = kind == FIRN_PRODUCT_MUL_MAT_ID_BACK, outer = kind == FIRN_PRODUCT_OUT_PROD_ID;
    test_case c = {.p.kind = kind};

    c.p.ids = make_ids(layout, N_USED, n_tokens, N_EXPERT);
    if (!outer)
        c.p.w = weights(type, k, m, N_EXPERT, 1, accumulate ? 2 : 0, &c.decoded);
    if (!back)
        c.p.x = floats(k, shared, n_tokens, 1, layout, layout == IDS_TRANSPOSED);
    if (back || outer)
        c.p.dy = floats(m, N_USED, n_tokens, 1, 2, layout == IDS_OF_A_SORT);
    if (outer)
        make_out(&c, k, m, N_EXPERT, 1, 3, accumulate);
    else
        make_out(&c, back ? k : m, N_USED, n_tokens, 1, layout, accumulate);
    return c;
}

/* ---- results ---- */

static void routed_products(void **state)
{
    (void)state;
    for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
        if (!firn_type_can_decode((firn_type)type))
            continue;
        for (int kind = FIRN_PRODUCT_MUL_MAT_ID; kind <= FIRN_PRODUCT_OUT_PROD_ID; kind++)
            for (int layout = 0; layout < N_IDS; layout++) {
                const int64_t shared = 1 << (layout + type) % 3;
                char what[64];
                if (kind == FIRN_PRODUCT_OUT_PROD_ID && type != FIRN_F32)
                    continue;
                snprintf(what, sizeof what, "kind %d, %s, ids %d, s' %d", kind, firn_type_name((firn_type)type), layout,
                         (int)shared);
                test_case c = routed((firn_product_kind)kind, (firn_type)type, layout, shared, (layout + type) % 2);
                check(&c, what);
                free_case(&c);
            }
    }
}

static void dense_products(void **state)
{
    (void)state;
    for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
        const int64_t block = firn_type_block((firn_type)type), k = block == 1 ? 75 : block == 256 ? 256 : 3 * block;
        if (!firn_type_can_decode((firn_type)type))
            continue;
        for (int i = 0; i < 4; i++) {
            const bool swapped = i & 1, forward = i < 2;
            const int64_t m = 21, n = swapped ? 9 : 3;
            test_case c = {.p.kind = forward ? FIRN_PRODUCT_MUL_MAT : FIRN_PRODUCT_OUT_PROD};
            char what[64];
            snprintf(what, sizeof what, "%s, %s", forward ? "MUL_MAT" : "OUT_PROD", firn_type_name((firn_type)type));
            c.p.w = weights((firn_type)type, k, m, 2, 1, i, &c.decoded);
            c.p.x = floats(forward ? k : n, forward ? n : m, 4, 3, i, swapped);
            make_out(&c, forward ? m : k, n, 4, 3, i, swapped);
            check(&c, what);
            free_case(&c);
        }
    }
}

/* The identity gives the bits of none; a shuffled one finds its experts, with more entries than w has slots. */
static void gather_table(void **state)
{
    (void)state;
    for (int type = 0; type < FIRN_TYPE_LIMIT; type++) {
        if (!firn_type_can_decode((firn_type)type))
            continue;
        test_case c = routed(FIRN_PRODUCT_MUL_MAT_ID, (firn_type)type, IDS_OF_A_SORT, 2, false);
        int64_t *table = need(8 * sizeof *table);
        const int64_t n_expert = c.p.w.ne[2], step = c.p.w.nb[2];
        check(&c, "without a table");
        float *plain = need((size_t)c.out_floats * 4);
        memcpy(plain, c.out, (size_t)c.out_floats * 4);
        for (int64_t e = 0; e < 8; e++)
            table[e] = e < n_expert ? e * step : -1; /* not resident */
        c.p.table = firn_array_dense(FIRN_I64, table, 8, 1, 1, 1);
        check(&c, "with the identity");
        assert_memory_equal(plain, c.out, (size_t)c.out_floats * 4);
        for (int64_t t = 0; t < c.p.ids.ne[1]; t++) /* expert e is now called e + 3, and lies where it lay */
            for (int64_t s = 0; s < c.p.ids.ne[0]; s++)
                *(int32_t *)place(&c.p.ids, s, t, 0, 0) += 3;
        for (int64_t e = 0; e < 8; e++)
            table[e] = e >= 3 ? (e - 3) * step : INT64_MAX;
        assert_int_equal(run(&c, 2), FIRN_OK);
        assert_memory_equal(plain, c.out, (size_t)c.out_floats * 4);
        free(plain);
        free_case(&c);
    }
}

#define REFUSED(call, status, sentence)                                                                                \
    do {                                                                                                               \
        assert_int_equal(call, status);                                                                                \
        assert_string_equal(firn_error(ctx), sentence);                                                                \
    } while (0)

/* Ids that name no expert: said, the slot's row zero or as it was, all other rows right. */
static void bad_ids(void **state)
{
    (void)state;
    for (int kind = FIRN_PRODUCT_MUL_MAT_ID; kind <= FIRN_PRODUCT_OUT_PROD_ID; kind++)
        for (int i = 0; i < 2; i++) {
            static const char *const names[] = {"MUL_MAT_ID", "MUL_MAT_ID_BACK", "OUT_PROD_ID"};
            test_case c = routed((firn_product_kind)kind, FIRN_Q4_0, IDS_TRANSPOSED, 4, i);
            char sentence[128];
            *(int32_t *)place(&c.p.ids, 3, 1, 0, 0) = i ? -7 : 5;
            *(int32_t *)place(&c.p.ids, 0, 2, 0, 0) = INT32_MAX;
            snprintf(sentence, sizeof sentence, "%s: slot 3 of token 1 names expert %d of 5", names[kind - 2],
                     i ? -7 : 5);
            for (int n = 1; n <= THREADS; n++) {
                REFUSED(run(&c, n), FIRN_ERR_DEVICE, sentence);
                compare(&c, "bad ids");
            }
            free_case(&c);
        }
    test_case c = routed(FIRN_PRODUCT_MUL_MAT_ID, FIRN_Q4_0, IDS_DENSE, 1, false);
    int64_t table[5] = {0, 0, 0, 0, 0};
    const int64_t last = c.p.w.nb[2] * 4;
    c.p.table = firn_array_dense(FIRN_I64, table, 5, 1, 1, 1);
    for (int64_t t = 0; t < c.p.ids.ne[1]; t++)
        for (int64_t s = 0; s < c.p.ids.ne[0]; s++)
            *(int32_t *)place(&c.p.ids, s, t, 0, 0) = t == 2 && s == 1 ? 3 : 0;
    static const int64_t wrong[] = {2, -2, INT64_MIN, INT64_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char sentence[160];
        table[3] = i == 0 ? last + 2 : wrong[i];
        snprintf(sentence, sizeof sentence,
                 "MUL_MAT_ID: slot 1 of token 2 wants expert 3, which the table puts at byte %lld of the %lld of w",
                 (long long)table[3], (long long)c.p.w.nb[2] * 5);
        REFUSED(run(&c, 1), FIRN_ERR_DEVICE, sentence);
    }
    table[3] = last;
    assert_int_equal(run(&c, 1), FIRN_OK);
    c.p.table.data = NULL;
    free_case(&c);
}

/* Rounded operands, on the kernel set that every processor has: coarser than F32, but not by more. */
static void bf16_operands(void **state)
{
    test_case c = routed(FIRN_PRODUCT_MUL_MAT_ID, FIRN_Q8_0, IDS_DENSE, 1, false);
    double error = 0, norm = 0;
    size_t bytes;

    (void)state;
    assert_int_equal(run(&c, 1), FIRN_OK);
    float *exact = need((size_t)c.out_floats * 4);
    memcpy(exact, c.out, (size_t)c.out_floats * 4);
    c.p.precision = FIRN_PRECISION_BF16;
    setenv("FIRN_CPU", "scalar-bf16", 1);
    assert_int_equal(run(&c, 2), FIRN_OK);
    c.p.precision = FIRN_PRECISION_F32;
    assert_int_equal(firn_product_work_bytes(ctx, &c.p, &bytes), FIRN_ERR_UNSUPPORTED); /* not what FIRN_CPU says */
    unsetenv("FIRN_CPU");
    for (int64_t i = 0; i < c.out_floats; i++) {
        const double off = (double)c.out[i] - (double)exact[i];
        error += c.written[i] ? off * off : 0;
        norm += c.written[i] ? (double)exact[i] * (double)exact[i] : 0;
    }
    assert_true(error > 1e-9 * norm && error < 1e-4 * norm);
    free(exact);
    free_case(&c);
}

/* No tokens: OUT_PROD_ID gives zeros, the others have nothing to write. */
static void no_tokens(void **state)
{
    float out[2 * 3 * 4];
    size_t bytes;

    (void)state;
    firn_product p = {.kind = FIRN_PRODUCT_OUT_PROD_ID,
                      .x = firn_array_dense(FIRN_F32, NULL, 2, 1, 0, 1),
                      .dy = firn_array_dense(FIRN_F32, NULL, 3, 2, 0, 1),
                      .ids = firn_array_dense(FIRN_I32, NULL, 2, 0, 1, 1),
                      .out = firn_array_dense(FIRN_F32, out, 2, 3, 4, 1)};
    memset(out, 0xff, sizeof out);
    assert_int_equal(firn_product_work_bytes(ctx, &p, &bytes), FIRN_OK);
    void *work = need(bytes);
    assert_int_equal(firn_product_run(ctx, &p, work, bytes), FIRN_OK);
    for (int i = 0; i < 24; i++)
        assert_true(out[i] == 0);
    free(work);
    p = (firn_product){.kind = FIRN_PRODUCT_MUL_MAT,
                       .w = firn_array_dense(FIRN_F32, out, 2, 3, 1, 1),
                       .x = firn_array_dense(FIRN_F32, NULL, 2, 0, 1, 1),
                       .out = firn_array_dense(FIRN_F32, NULL, 3, 0, 1, 1)};
    assert_int_equal(firn_product_work_bytes(ctx, &p, &bytes), FIRN_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(firn_product_run(ctx, &p, NULL, 0), FIRN_OK);
}

/* ---- refusals ---- */

static const int64_t HUGE_SIZE = (int64_t)1 << 40;

static void make_k_huge(firn_product *p)
{
    p->w.ne[0] = p->x.ne[0] = HUGE_SIZE;
    p->w.ne[1] = p->out.ne[0] = HUGE_SIZE;
}

/* One change each to a MUL_MAT_ID that is right: w [64, 3, 5] q4_0, x [64, 1, 2], ids [2, 2], out [3, 2, 2]. */
#define CHANGES(X)                                                                                                     \
    X(p->kind = (firn_product_kind)5, "5 is no kind of product")                                                       \
    X(p->kind = (firn_product_kind)-1, "-1 is no kind of product")                                                     \
    X(p->precision = (firn_precision)2, "2 is no precision")                                                           \
    X(p->n_threads = 4, "4 threads were asked for; the context has 3")                                                 \
    X(p->n_threads = -1, "-1 threads were asked for; the context has 3")                                               \
    X(p->w.type = (firn_type)99, "MUL_MAT_ID: w cannot be of type 99: it has no decoder")                              \
    X(p->w.type = FIRN_I32, "MUL_MAT_ID: w cannot be of type 26: it has no decoder")                                   \
    X(p->x.type = FIRN_F16, "MUL_MAT_ID: x must be f32, not type 1")                                                   \
    X(p->ids.type = FIRN_I64, "MUL_MAT_ID: ids must be i32, not type 27")                                              \
    X(p->out.type = FIRN_BF16, "MUL_MAT_ID: out must be f32, not type 30")                                             \
    X(p->w.ne[0] = 65, "MUL_MAT_ID: rows of w have 65 values, no multiple of the 32 of a block of q4_0")               \
    X(p->w.ne[3] = 2, "MUL_MAT_ID: w must be [64, 3, 5, 1], not [64, 3, 5, 2]")                                        \
    X(p->w.ne[2] = 0, "MUL_MAT_ID: w must not be empty: it is [64, 3, 0, 1]")                                          \
    X(p->w.ne[0] = 0; p->x.ne[0] = 0, "MUL_MAT_ID: w must not be empty: it is [0, 3, 5, 1]")                           \
    X(p->x.ne[0] = 32, "MUL_MAT_ID: x must be [64, 1, 2, 1], not [32, 1, 2, 1]")                                       \
    X(p->x.ne[1] = 3, "MUL_MAT_ID: 2 slots of a token cannot share 3 rows of x")                                       \
    X(p->x.ne[1] = 0, "MUL_MAT_ID: 2 slots of a token cannot share 0 rows of x")                                       \
    X(p->x.ne[2] = 3, "MUL_MAT_ID: x must be [64, 1, 2, 1], not [64, 1, 3, 1]")                                        \
    X(p->x.ne[1] = -1, "MUL_MAT_ID: x of [64, -1, 2, 1] has a negative size")                                          \
    X(p->ids.ne[2] = 2, "MUL_MAT_ID: ids must be [2, 2, 1, 1], not [2, 2, 2, 1]")                                      \
    X(p->ids.ne[0] = 0, "MUL_MAT_ID: a token must have slots; ids is [0, 2, 1, 1]")                                    \
    X(p->out.ne[0] = 4,                                                                                                \
      "MUL_MAT_ID: elements of out lie on each other: nb[1] is 12, and what is inside spans 16 bytes")                 \
    X(p->out.ne[1] = 1, "MUL_MAT_ID: out must be [3, 2, 2, 1], not [3, 1, 2, 1]")                                      \
    X(p->out.nb[1] = 8,                                                                                                \
      "MUL_MAT_ID: elements of out lie on each other: nb[1] is 8, and what is inside spans 12 bytes")                  \
    X(p->out.nb[2] = 0, "MUL_MAT_ID: elements of out lie on each other: nb[2] is 0, and what is inside spans 0 bytes") \
    X(p->out.nb[0] = 8, "MUL_MAT_ID: rows of out have no gaps: nb[0] must be 4, not 8")                                \
    X(p->w.nb[0] = 36, "MUL_MAT_ID: rows of w have no gaps: nb[0] must be 18, not 36")                                 \
    X(p->w.nb[1] = 37, "MUL_MAT_ID: the strides of w must be multiples of 2 and not negative; nb[1] is 37")            \
    X(p->x.nb[2] = -256, "MUL_MAT_ID: the strides of x must be multiples of 4 and not negative; nb[2] is -256")        \
    X(p->ids.nb[0] = 6, "MUL_MAT_ID: the strides of ids must be multiples of 4 and not negative; nb[0] is 6")          \
    X(p->w.nb[2] = INT64_MAX - 1, "MUL_MAT_ID: the strides of w reach further than 64 bits")                           \
    X(p->x.nb[0] = INT64_MAX - 3, "MUL_MAT_ID: the strides of x reach further than 64 bits")                           \
    X(make_k_huge(p), "MUL_MAT_ID: w of [1099511627776, 1099511627776, 5, 1] is more than memory can hold")            \
    X(p->ids.ne[1] = INT64_MAX, "MUL_MAT_ID: ids of [2, 9223372036854775807, 1, 1] is more than memory can hold")      \
    X(p->dy = p->x, "MUL_MAT_ID takes no dy")                                                                          \
    X(p->table = p->ids, "MUL_MAT_ID: table must be i64, not type 26")                                                 \
    X(p->kind = FIRN_PRODUCT_MUL_MAT, "MUL_MAT takes no ids")

#define X(statement, sentence) {sentence, #statement},
static const struct {
    const char *sentence, *change;
} changes[] = {CHANGES(X)};
#undef X

static void apply(firn_product *p, size_t change)
{
    size_t i = 0;

#define X(statement, sentence)                                                                                         \
    if (i++ == change) {                                                                                               \
        statement;                                                                                                     \
    }
    CHANGES(X)
#undef X
}

static test_case small_case(void)
{
    test_case c = {.p.kind = FIRN_PRODUCT_MUL_MAT_ID};

    c.p.w = weights(FIRN_Q4_0, 64, 3, 5, 1, 0, &c.decoded);
    c.p.x = floats(64, 1, 2, 1, 0, false);
    c.p.ids = make_ids(IDS_DENSE, 2, 2, 5);
    make_out(&c, 3, 2, 2, 1, 0, false);
    return c;
}

static void wrong_shapes(void **state)
{
    test_case c = small_case();
    size_t bytes, enough = 0;

    (void)state;
    assert_int_equal(firn_product_work_bytes(ctx, &c.p, &enough), FIRN_OK);
    void *work = need(enough);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        firn_product p = c.p;
        apply(&p, i);
        memcpy(c.out, c.before, (size_t)c.out_floats * 4);
        if (firn_product_work_bytes(ctx, &p, &bytes) == FIRN_OK || strcmp(firn_error(ctx), changes[i].sentence) != 0)
            fail_msg("%s: '%s'", changes[i].change, firn_error(ctx));
        assert_int_not_equal(firn_product_run(ctx, &p, work, enough), FIRN_OK);
        assert_string_equal(firn_error(ctx), changes[i].sentence);
        assert_memory_equal(c.out, c.before, (size_t)c.out_floats * 4);
    }
    firn_product back = {.kind = FIRN_PRODUCT_MUL_MAT_ID_BACK, .w = c.p.w, .ids = c.p.ids, .table = c.p.ids};
    REFUSED(firn_product_work_bytes(ctx, &back, &bytes), FIRN_ERR_UNSUPPORTED,
            "MUL_MAT_ID_BACK takes no table: experts that are not resident have no bytes to read");
    firn_product dense = {.kind = FIRN_PRODUCT_OUT_PROD, .w = c.p.w, .x = c.p.x, .out = c.p.out};
    REFUSED(firn_product_work_bytes(ctx, &dense, &bytes), FIRN_ERR_ARGUMENT,
            "OUT_PROD: w of [64, 3, 5, 1] cannot be repeated over x of [64, 1, 2, 1]");
    free(work);
    free_case(&c);
}

static void wrong_addresses(void **state)
{
    test_case c = small_case();
    firn_product *p = &c.p, q;
    size_t bytes = 0;

    (void)state;
    p->n_threads = 2;
    assert_int_equal(firn_product_work_bytes(ctx, p, &bytes), FIRN_OK);
    char *work = need(bytes + 64);
#define WRONG_AT(change, sentence)                                                                                     \
    do {                                                                                                               \
        q = *p;                                                                                                        \
        change;                                                                                                        \
        REFUSED(firn_product_run(ctx, &q, work, bytes), FIRN_ERR_ARGUMENT, sentence);                                  \
    } while (0)
    memcpy(c.out, c.before, (size_t)c.out_floats * 4);
    WRONG_AT(q.w.data = NULL, "MUL_MAT_ID: w must not be null");
    WRONG_AT(q.x.data = NULL, "MUL_MAT_ID: x must not be null");
    WRONG_AT(q.ids.data = NULL, "MUL_MAT_ID: ids must not be null");
    WRONG_AT(q.out.data = NULL, "MUL_MAT_ID: out must not be null");
    WRONG_AT(q.table = firn_array_dense(FIRN_I64, NULL, 5, 1, 1, 1), "MUL_MAT_ID: table must not be null");
    WRONG_AT(q.w.data = (char *)q.w.data + 1, "MUL_MAT_ID: w must be aligned to 2 bytes");
    WRONG_AT(q.x.data = (char *)q.x.data + 2, "MUL_MAT_ID: x must be aligned to 4 bytes");
    WRONG_AT(q.out.data = (char *)q.out.data + 3, "MUL_MAT_ID: out must be aligned to 4 bytes");
    WRONG_AT(q.x.data = (void *)(UINTPTR_MAX - 7), "MUL_MAT_ID: x passes the end of the address space");
    WRONG_AT(q.out.data = q.x.data, "MUL_MAT_ID: out lies on x");
    WRONG_AT(q.out.data = (char *)q.w.data + 4, "MUL_MAT_ID: out lies on w");
    WRONG_AT(q.out.data = work, "MUL_MAT_ID: the workspace lies on out");
    WRONG_AT(q.x.data = work, "MUL_MAT_ID: the workspace lies on x");
#undef WRONG_AT
    char sentence[128];
    snprintf(sentence, sizeof sentence, "MUL_MAT_ID: the workspace has %zu bytes, and %zu are needed on 2 threads",
             bytes - 1, bytes);
    REFUSED(firn_product_run(ctx, p, work, bytes - 1), FIRN_ERR_ARGUMENT, sentence);
    REFUSED(firn_product_run(ctx, p, work + 32, bytes), FIRN_ERR_ARGUMENT,
            "MUL_MAT_ID: the workspace must be aligned to 64 bytes");
    REFUSED(firn_product_run(ctx, p, NULL, bytes), FIRN_ERR_ARGUMENT, "MUL_MAT_ID: the workspace must not be null");
    REFUSED(firn_product_run(ctx, NULL, work, bytes), FIRN_ERR_ARGUMENT, "the product must not be null");
    REFUSED(firn_product_work_bytes(ctx, p, NULL), FIRN_ERR_ARGUMENT,
            "the place for the workspace's size must not be null");
    assert_int_equal(firn_product_run(NULL, p, work, bytes), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_product_work_bytes(NULL, p, &bytes), FIRN_ERR_ARGUMENT);
    assert_memory_equal(c.out, c.before, (size_t)c.out_floats * 4);
    free(work);
    free_case(&c);
}

/* Random numbers in random places of a right product: a size or a sentence, never an overflow (the undefined-behaviour
 * sanitizer looks). */
static void random_numbers(void **state)
{
    static const int64_t numbers[] = {0,         1,         2,         3,         4,         32,        INT64_MAX,
                                      INT64_MIN, 1LL << 20, 1LL << 31, 1LL << 32, 1LL << 46, 1LL << 62, -1,
                                      64,        1LL << 45, 2LL << 50, 36,        256,       5,         INT64_MAX - 3};
    test_case c = small_case();
    int taken = 0;

    (void)state;
    for (int i = 0; i < 200000; i++) {
        firn_product p = c.p;
        firn_array *arrays[] = {&p.w, &p.x, &p.dy, &p.ids, &p.table, &p.out};
        size_t bytes = 0;
        p.kind = (firn_product_kind)below(5);
        for (int64_t changes_left = 1 + below(6); changes_left > 0; changes_left--) {
            firn_array *a = arrays[below(6)];
            (below(2) ? a->ne : a->nb)[below(4)] = numbers[below(sizeof numbers / sizeof *numbers)];
        }
        if (p.kind == FIRN_PRODUCT_OUT_PROD_ID) {
            p.dy = p.out;
            p.w = (firn_array){0};
        }
        taken += firn_product_work_bytes(ctx, &p, &bytes) == FIRN_OK;
    }
    assert_true(taken > 500);
    free_case(&c);
}

static int start(void **state)
{
    (void)state;
    ctx = firn_context_create(
        &(firn_context_params){.n_threads = THREADS, .allocator = {count_alloc, count_realloc, count_free, &memory}});
    return ctx && firn_context_start(ctx) == FIRN_OK ? 0 : -1;
}

static int finish(void **state)
{
    (void)state;
    firn_context_destroy(ctx);
    return memory.live == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routed_products), cmocka_unit_test(dense_products),  cmocka_unit_test(gather_table),
        cmocka_unit_test(bf16_operands),   cmocka_unit_test(bad_ids),         cmocka_unit_test(no_tokens),
        cmocka_unit_test(wrong_shapes),    cmocka_unit_test(wrong_addresses), cmocka_unit_test(random_numbers),
    };

    return cmocka_run_group_tests(tests, start, finish);
}
