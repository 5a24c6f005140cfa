/* Cases of elementwise operations, shapes, sums and sorts. */
#include "refs.h"

#include <math.h>
#include <string.h>

static const int widths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 33, 100};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

static firn_tensor *any(world *w, const test_case *c, fill kind)
{
    return laid_out(w, c, FIRN_F32, kind, 0, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));
}

/* Any shape, any strides. */
static void plain_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        for (int layout = 0; layout < 3; layout++)
            add_case(l, f, FIRN_F32, "n n1 n2 n3 layout", widths[i], 3, 1 + i % 3, 1 + i % 2, layout);
    add_case(l, f, FIRN_F32, "n n1", 33, 0);
    add_case(l, f, FIRN_F32, "n n1", 700, 30);
}

static void plain_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1", 2048, 2048);
}

/* ---- elementwise ---- */

/* b's shape is a's with dimensions divided by d0..d3. */
static firn_tensor *build_arithmetic(world *w, const test_case *c)
{
    const char *op = c->family->op;
    firn_tensor *a = any(w, c, UNIFORM);
    firn_tensor *b = (arg_or(c, "b_layout", 0) > 1   ? turned4
                      : arg_or(c, "b_layout", 0) > 0 ? strided4
                                                     : slot4)(w, FIRN_F32, POSITIVE, 0, arg(c, "n") / arg(c, "d0"),
                                                              arg(c, "n1") / arg(c, "d1"), arg(c, "n2") / arg(c, "d2"),
                                                              arg(c, "n3") / arg(c, "d3"));

    return (*op == 'A' ? firn_add : *op == 'S' ? firn_sub : *op == 'M' ? firn_mul : firn_div)(w->g, a, b);
}

static void arithmetic_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        for (int layout = 0; layout < 3; layout++) {
            add_case(l, f, FIRN_F32, "n n1 n2 layout b_layout", widths[i], 3, 2, layout, i % 3);
            add_case(l, f, FIRN_F32, "n n1 d0 d1 b_layout", widths[i], 3, 1, 3, layout);
            add_case(l, f, FIRN_F32, "n n1 n2 n3 d0 d1 d2 layout", widths[i], 4, 6, 2, widths[i], 2, 3, layout);
        }
    for (int layout = 0; layout < 3; layout++) {
        add_case(l, f, FIRN_F32, "n n1 n2 n3 d0 d1 d2 d3 b_layout", 12, 4, 3, 6, 3, 2, 3, 2, layout);
        add_case(l, f, FIRN_F32, "n n1 n2 d2 b_layout", 16, 3, 5, 5, layout);
    }
    add_case(l, f, FIRN_F32, "n n1", 33, 0);
    add_case(l, f, FIRN_F32, "n n1", 700, 30);
}

static firn_tensor *build_unary(world *w, const test_case *c)
{
    static const struct {
        const char *op;
        firn_tensor *(*make)(firn_graph *, firn_tensor *);
    } list[] = {
        {"SQR", firn_sqr},   {"SQRT", firn_sqrt},         {"EXP", firn_exp},         {"LOG", firn_log},
        {"SILU", firn_silu}, {"GELU", firn_gelu},         {"RELU", firn_relu},       {"GELU_QUICK", firn_gelu_quick},
        {"TANH", firn_tanh}, {"GELU_ERF", firn_gelu_erf}, {"SIGMOID", firn_sigmoid}, {"SOFTPLUS", firn_softplus},
    };
    const char *op = c->family->op;
    firn_tensor *x = any(w, c, strcmp(op, "SQRT") == 0 || strcmp(op, "LOG") == 0 ? POSITIVE : GRID);
    float *values = last_bytes(w);

    /* Far out as well, where exponentials saturate; not for those that have no number there. */
    const bool far = strcmp(op, "EXP") != 0 && strcmp(op, "SQRT") != 0 && strcmp(op, "LOG") != 0;
    for (size_t i = 1; x && far && i < w->inputs[w->n - 1].size / sizeof *values; i += 5)
        values[i] *= 12.2f; /* not 12: 0.05 would land on a corner of CLAMP */
    if (strcmp(op, "SCALE") == 0)
        return firn_scale(w->g, x, -1.7f);
    if (strcmp(op, "CLAMP") == 0)
        return firn_clamp(w->g, x, -0.5f, 0.6f);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strcmp(op, list[i].op) == 0)
            return list[i].make(w->g, x);
    return NULL;
}

/* ---- shape ---- */

static firn_tensor *build_cont(world *w, const test_case *c)
{
    return firn_cont(w->g, laid_out(w, c, c->type, UNIFORM, 100, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), 1));
}

static void cont_cases(case_list *l, const family *f)
{
    static const firn_type types[] = {FIRN_F32, FIRN_F16, FIRN_BF16, FIRN_I32, FIRN_Q4_0, FIRN_Q6_K};

    for (int t = 0; t < 6; t++)
        for (int layout = 0; layout < (t < 4 ? 3 : 2); layout++)
            for (int i = 0; i < 3; i++) {
                const int n = t < 4 ? (int[]){1, 17, 64}[i] : 256 * (i + 1);
                add_case(l, f, types[t], "n n1 n2 layout", n, 3, 1 + i, layout);
            }
    add_case(l, f, FIRN_F32, "n n1", 33, 0);
}

static void cont_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 layout", 2048, 2048, 2);
    add_case(l, f, FIRN_F32, "n n1 layout", 2048, 2048, 1);
}

static firn_tensor *build_cast(world *w, const test_case *c)
{
    return firn_cast(w->g, laid_out(w, c, c->type, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), 1, 1),
                     (firn_type)arg_or(c, "to", FIRN_F32));
}

static void cast_cases(case_list *l, const family *f)
{
    static const firn_type floats[] = {FIRN_F32, FIRN_F16, FIRN_BF16};

    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int layout = 0; layout < 3; layout++) {
                add_case(l, f, floats[from], "n n1 to layout", 33, 5, floats[to], layout);
                add_case(l, f, floats[from], "n n1 to layout", 256, 3, floats[to], layout);
            }
    for (int t = 3; t < n_promised_types; t++)
        add_case(l, f, promised_types[t], "n n1 to layout", 512, 3, FIRN_F32, t % 2);
    for (int t = 0; t < n_decoded_types; t++)
        add_case(l, f, decoded_types[t], "n n1 to layout", 512, 3, FIRN_F32, t % 2);
}

static void cast_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 to", 2048, 2048, FIRN_F16);
    add_case(l, f, FIRN_Q4_K, "n n1 to", 2048, 2048, FIRN_F32);
}

/* CPY: dst [n, n1, n2] from a of the same elements in another shape when `flat` is set. */
static firn_tensor *build_cpy(world *w, const test_case *c)
{
    const int64_t n = arg(c, "n"), n1 = arg(c, "n1"), n2 = arg(c, "n2");
    firn_tensor *dst = (arg_or(c, "d_layout", 0) > 0 ? strided4 : slot4)(w, (firn_type)arg_or(c, "to", FIRN_F32),
                                                                         UNIFORM, 100, n, n1, n2, 1);
    keep_fixed(w);
    firn_tensor *a = arg_or(c, "flat", 0) > 0 ? laid_out(w, c, c->type, UNIFORM, 100, n1, n * n2, 1, 1)
                                              : laid_out(w, c, c->type, UNIFORM, 100, n, n1, n2, 1);

    return firn_cpy(w->g, a, dst);
}

static void cpy_cases(case_list *l, const family *f)
{
    static const firn_type types[] = {FIRN_F32, FIRN_F16, FIRN_BF16};

    for (int i = 0; i < 18; i++)
        add_case(l, f, types[i / 6], "n n1 n2 to d_layout flat layout", 7 + i, 3, 1 + i % 2, types[i % 3], i / 3 % 2,
                 i % 2, i % 3);
    add_case(l, f, FIRN_I32, "n n1 n2 to d_layout flat layout", 9, 4, 2, FIRN_I32, 1, 1, 1);
}

static void cpy_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 to d_layout", 2048, 2048, FIRN_F16, 1);
}

static firn_tensor *build_reshape(world *w, const test_case *c)
{
    const int64_t ne[] = {arg(c, "n") * arg(c, "n1"), arg(c, "n2"), arg(c, "n3")};

    return firn_reshape(w->g, slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3")), 3,
                        ne);
}

static void reshape_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        add_case(l, f, FIRN_F32, "n n1 n2 n3", widths[i], 3, 1 + i % 3, 1 + i % 2);
}

static firn_tensor *build_view(world *w, const test_case *c)
{
    firn_tensor *a = slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), 1);
    const int64_t ne[] = {arg(c, "n") - 3, arg(c, "n1") / 2, arg(c, "n2") - 1};

    if (!a)
        return NULL;
    const int64_t nb[] = {a->nb[0], 2 * a->nb[1], a->nb[2]};
    return firn_view(w->g, a, 3, ne, nb, 2 * a->nb[0] + a->nb[1] + a->nb[2]);
}

static firn_tensor *build_view_back(world *w, const test_case *c)
{
    const int64_t n = arg(c, "n"), n1 = arg(c, "n1"), n2 = arg(c, "n2"), ne[] = {n, n1, n2, 1};
    const int64_t nb[] = {4, 8 * n, 4 * n * n1, 4 * n * n1 * n2};
    firn_tensor *dy = laid_out(w, c, FIRN_F32, UNIFORM, 0, n - 3, n1 / 2, n2 - 1, 1);

    return firn_view_back(w->g, dy, ne, nb, 8 + 4 * n + 4 * n * n1);
}

static void view_cases(case_list *l, const family *f)
{
    for (int i = 0; i < 12; i++)
        add_case(l, f, FIRN_F32, "n n1 n2 layout", 4 + 3 * i, 2 + i % 5, 2 + i % 3, i % 3);
    add_case(l, f, FIRN_F32, "n n1 n2", 200, 60, 3);
}

static void view_back_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 n2", 2048, 64, 32);
}

static firn_tensor *build_permute(world *w, const test_case *c)
{
    firn_tensor *a = any(w, c, UNIFORM);

    if (strcmp(c->family->op, "TRANSPOSE") == 0)
        return firn_transpose(w->g, a);
    return firn_permute(w->g, a, (int)arg_or(c, "a0", 0), (int)arg_or(c, "a1", 1), (int)arg_or(c, "a2", 2),
                        (int)arg_or(c, "a3", 3));
}

static void permute_cases(case_list *l, const family *f)
{
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            for (int d = 0; d < 4; d++)
                if (a != b && a != d && b != d)
                    add_case(l, f, FIRN_F32, "n n1 n2 n3 a0 a1 a2 a3", 5, 4, 3, 2, a, b, d, 6 - a - b - d);
}

static firn_tensor *build_repeat(world *w, const test_case *c)
{
    const int64_t ne[] = {arg(c, "n") * arg(c, "r0"), arg(c, "n1") * arg(c, "r1"), arg(c, "n2") * arg(c, "r2"),
                          arg(c, "n3") * arg(c, "r3")};

    return firn_repeat(w->g, any(w, c, UNIFORM), ne);
}

static firn_tensor *build_repeat_back(world *w, const test_case *c)
{
    const int64_t ne[] = {arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3")};

    return firn_repeat_back(w->g,
                            laid_out(w, c, FIRN_F32, UNIFORM, 0, ne[0] * arg(c, "r0"), ne[1] * arg(c, "r1"),
                                     ne[2] * arg(c, "r2"), ne[3] * arg(c, "r3")),
                            ne);
}

static void repeat_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        for (int layout = 0; layout < 3; layout++)
            add_case(l, f, FIRN_F32, "n n1 n2 n3 r0 r1 r2 r3 layout", widths[i], 2, 3, 1 + i % 2, 1 + i % 3,
                     1 + (i + 1) % 3, 1 + (i + 2) % 2, 1 + i % 2, layout);
    add_case(l, f, FIRN_F32, "n r1", 65, 500);
}

static void repeat_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 r1", 2048, 256, 8);
}

static firn_tensor *build_concat(world *w, const test_case *c)
{
    const int axis = (int)arg_or(c, "axis", 0);
    int64_t ne[] = {arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3")};
    firn_tensor *a = any(w, c, UNIFORM);

    ne[axis] += 2;
    return firn_concat(w->g, a, laid_out(w, c, FIRN_F32, UNIFORM, 0, ne[0], ne[1], ne[2], ne[3]), axis);
}

static void concat_cases(case_list *l, const family *f)
{
    for (int axis = 0; axis < 4; axis++)
        for (int layout = 0; layout < 3; layout++)
            add_case(l, f, FIRN_F32, "n n1 n2 n3 axis layout", 7, 3, 2, 2, axis, layout);
    add_case(l, f, FIRN_F32, "n n1", 0, 3);
}

static void concat_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 axis", 2048, 1024, 0);
}

static firn_tensor *build_fill(world *w, const test_case *c)
{
    const int64_t ne[] = {arg(c, "n"), arg(c, "n1"), arg(c, "n2"), 1};

    return firn_fill(w->g, ne, 2.5f);
}

static firn_tensor *build_add_into(world *w, const test_case *c)
{
    firn_tensor *slot = (arg_or(c, "d_layout", 0) > 0 ? strided4 : slot4)(w, FIRN_F32, UNIFORM, 0, arg(c, "n"),
                                                                          arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));

    return firn_add_into(w->g, slot, any(w, c, UNIFORM));
}

static void add_into_cases(case_list *l, const family *f)
{
    plain_cases(l, f);
    for (int layout = 0; layout < 3; layout++)
        add_case(l, f, FIRN_F32, "n n1 n2 layout d_layout", 19, 4, 2, layout, 1);
}

/* ---- sums and sorts ---- */

static firn_tensor *build_reduction(world *w, const test_case *c)
{
    const char *op = c->family->op;

    return (strcmp(op, "SUM") == 0    ? firn_sum
            : strcmp(op, "MEAN") == 0 ? firn_mean
                                      : firn_sum_rows)(w->g, any(w, c, UNIFORM));
}

/* Rows with equal values, and with NaN. */
static firn_tensor *sortable(world *w, const test_case *c)
{
    firn_tensor *a = any(w, c, GRID);
    float *values = last_bytes(w);

    for (size_t i = 3; a && i < w->inputs[w->n - 1].size / sizeof *values; i += 11)
        values[i] = NAN;
    keep_fixed(w);
    return a;
}

static firn_tensor *build_argsort(world *w, const test_case *c)
{
    return firn_argsort(w->g, sortable(w, c), arg_or(c, "falling", 0) > 0);
}

static void argsort_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        for (int falling = 0; falling < 2; falling++)
            add_case(l, f, FIRN_F32, "n n1 n2 falling layout", widths[i], 3, 2, falling, i % 3);
    add_case(l, f, FIRN_F32, "n n1 falling", 1000, 8, 1);
}

static void argsort_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 falling", 128, 512, 1);
    add_case(l, f, FIRN_F32, "n n1 falling", 49152, 1, 1);
}

static firn_tensor *build_top_k(world *w, const test_case *c)
{
    return firn_top_k(w->g, sortable(w, c), (int)arg(c, "k"));
}

static void top_k_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_WIDTHS; i++)
        for (int k = 1; k <= widths[i]; k = k * 3 + 1)
            add_case(l, f, FIRN_F32, "n n1 n2 k layout", widths[i], 5, 2, k, i % 3);
    add_case(l, f, FIRN_F32, "n n1 k", 128, 64, 8);
}

static void top_k_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 k", 128, 512, 8);
}

#define UNARY(NAME, bound)                                                                                             \
    {                                                                                                                  \
        NAME, build_unary, ref_unary, plain_cases, plain_perf, bound, false, false                                     \
    }

const family simple_families[] = {
    {"ADD", build_arithmetic, ref_arithmetic, arithmetic_cases, plain_perf, 1e-13, false, false},
    {"SUB", build_arithmetic, ref_arithmetic, arithmetic_cases, plain_perf, 1e-13, false, false},
    {"MUL", build_arithmetic, ref_arithmetic, arithmetic_cases, plain_perf, 1e-13, false, true},
    {"DIV", build_arithmetic, ref_arithmetic, arithmetic_cases, plain_perf, 1e-13, false, false},
    UNARY("SCALE", 1e-13),
    UNARY("CLAMP", 1e-13),
    UNARY("SQR", 1e-13),
    UNARY("SQRT", 1e-13),
    UNARY("EXP", 1e-13),
    UNARY("LOG", 1e-13),
    UNARY("SILU", 1e-13),
    UNARY("GELU", 1e-13),
    UNARY("GELU_QUICK", 1e-13),
    UNARY("GELU_ERF", 1e-13),
    UNARY("RELU", 1e-13),
    UNARY("SIGMOID", 1e-13),
    UNARY("TANH", 1e-13),
    UNARY("SOFTPLUS", 1e-13),
    {"CONT", build_cont, ref_copy, cont_cases, cont_perf, 0, false, false},
    {"CAST", build_cast, ref_cast, cast_cases, cast_perf, 0, true, false},
    {"CPY", build_cpy, ref_cpy, cpy_cases, cpy_perf, 0, false, false},
    {"RESHAPE", build_reshape, ref_copy, reshape_cases, NULL, 0, false, true},
    {"VIEW", build_view, ref_view, view_cases, NULL, 0, false, true},
    {"VIEW_BACK", build_view_back, ref_view_back, view_cases, view_back_perf, 0, false, true},
    {"PERMUTE", build_permute, ref_permute, permute_cases, NULL, 0, false, true},
    {"TRANSPOSE", build_permute, ref_permute, plain_cases, NULL, 0, false, true},
    {"CONCAT", build_concat, ref_concat, concat_cases, concat_perf, 0, false, false},
    {"REPEAT", build_repeat, ref_repeat, repeat_cases, repeat_perf, 0, false, true},
    {"REPEAT_BACK", build_repeat_back, ref_repeat_back, repeat_cases, repeat_perf, 1e-13, false, true},
    {"FILL", build_fill, ref_fill, reshape_cases, plain_perf, 0, false, false},
    {"ADD_INTO", build_add_into, ref_add_into, add_into_cases, plain_perf, 1e-13, false, false},
    {"SUM", build_reduction, ref_sum, plain_cases, plain_perf, 1e-12, false, true},
    {"SUM_ROWS", build_reduction, ref_sum_rows, plain_cases, plain_perf, 1e-12, false, true},
    {"MEAN", build_reduction, ref_mean, plain_cases, plain_perf, 1e-12, false, true},
    {"ARGSORT", build_argsort, ref_argsort, argsort_cases, argsort_perf, 0, false, false},
    {"TOP_K", build_top_k, ref_top_k, top_k_cases, top_k_perf, 0, false, false},
    {0},
};
