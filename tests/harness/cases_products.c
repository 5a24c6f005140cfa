/* Cases of the matrix products, gathers and slots: every format, and the shapes that bite. */
#include "refs.h"

#include <stdlib.h>
#include <string.h>

/* A row length that the type's blocks divide: `wanted` where it can be. */
static int row_length(firn_type type, int wanted)
{
    const int block = (int)firn_type_block(type);

    return (wanted + block - 1) / block * block;
}

/* Tiles of the fast kernels are 16 or 32 wide, 6, 8, 14 or 32 high and 256 deep, and up to 4 or 8 rows have kernels of
 * their own; one less, equal and one more of each. */
static const int bites[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 14, 15, 16, 17, 31, 32, 33, 48, 64, 65};
enum { N_BITES = sizeof bites / sizeof *bites };

/* ---- MUL_MAT, OUT_PROD ---- */

/* With w_layout 1 the rows lie further apart than they are long, and so do the planes. */
static firn_tensor *weight4(world *w, const test_case *c, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return (arg_or(c, "w_layout", 0) > 0 ? strided4 : slot4)(w, c->type, UNIFORM, 0, n0, n1, n2, n3);
}

static firn_tensor *build_mul_mat(world *w, const test_case *c)
{
    firn_tensor *a = weight4(w, c, arg(c, "k"), arg(c, "m"), arg(c, "b0"), arg(c, "c0"));
    firn_tensor *x = laid_out(w, c, FIRN_F32, UNIFORM, 0, arg(c, "k"), arg(c, "n"), arg(c, "b0") * arg(c, "br"),
                              arg(c, "c0") * arg(c, "cr"));

    return firn_mul_mat(w->g, a, x);
}

static firn_tensor *build_out_prod(world *w, const test_case *c)
{
    firn_tensor *a = weight4(w, c, arg(c, "k"), arg(c, "r"), arg(c, "b0"), arg(c, "c0"));
    firn_tensor *b = laid_out(w, c, FIRN_F32, UNIFORM, 0, arg(c, "p"), arg(c, "r"), arg(c, "b0") * arg(c, "br"),
                              arg(c, "c0") * arg(c, "cr"));

    return firn_out_prod(w->g, a, b);
}

/* Three numbers a product: k, outer dimension of the weight, outer dimension of the other. */
static void dense_cases(case_list *l, const family *f, const char *names, const char *broadcast, const char *strided)
{
    for (int t = 0; t < n_promised_types; t++) {
        const firn_type type = promised_types[t];
        for (int i = 0; i < N_BITES; i++) {
            add_case(l, f, type, names, row_length(type, 256), bites[i], 3, 0);
            add_case(l, f, type, names, row_length(type, 256), 5, bites[i], i % 3);
        }
        add_case(l, f, type, names, row_length(type, 768), 33, 35, 0);
        add_case(l, f, type, names, row_length(type, 768), 33, 35, 2);
        add_case(l, f, type, names, row_length(type, 256), 9, 0, 0);
        add_case(l, f, type, broadcast, row_length(type, 32), 3, 4, 2, 3, 1, 2, 0);
        add_case(l, f, type, broadcast, row_length(type, 32), 5, 2, 1, 2, 2, 1, 1);
        for (int i = 0; i < 2; i++)
            add_case(l, f, type, strided, row_length(type, 256), 17, i ? 3 : 33, 2, 2, 1);
    }
    for (int t = 0; t < n_decoded_types; t++)
        add_case(l, f, decoded_types[t], names, row_length(decoded_types[t], 256), 7, 19, t % 2);
    for (int i = 0; i < N_BITES; i++) {
        add_case(l, f, FIRN_F32, names, bites[i], 17, 15, 0);
        add_case(l, f, FIRN_F32, names, bites[i], bites[N_BITES - 1 - i], 33, 1);
        add_case(l, f, FIRN_F32, names, bites[i], 7, bites[i], 2);
    }
    for (int i = 0; i < 3; i++)
        add_case(l, f, FIRN_F32, names, i != 0 ? 16 : 0, i != 1 ? 5 : 0, i != 2 ? 3 : 0, 0);
    add_case(l, f, FIRN_F32, names, 4096, 7, 9, 0);
    add_case(l, f, FIRN_F32, names, 130, 259, 131, 0);
}

static void mul_mat_cases(case_list *l, const family *f)
{
    dense_cases(l, f, "k m n layout", "k m n b0 br c0 cr layout", "k m n b0 br w_layout");
}

static void out_prod_cases(case_list *l, const family *f)
{
    dense_cases(l, f, "k r p layout", "k r p b0 br c0 cr layout", "k r p b0 br w_layout");
    add_case(l, f, FIRN_F32, "k r p", 16, 4096, 5);
}

static void mul_mat_perf(case_list *l, const family *f)
{
    for (int t = 0; t < n_promised_types; t++)
        add_case(l, f, promised_types[t], "k m n", 2048, 2048, 512);
    add_case(l, f, FIRN_F32, "k m n", 2048, 16, 128);
    add_case(l, f, FIRN_F32, "k m n", 2048, 16, 32);
}

static void out_prod_perf(case_list *l, const family *f)
{
    for (int t = 0; t < n_promised_types; t++)
        add_case(l, f, promised_types[t], "k r p", 2048, 2048, 512);
}

/* ---- the routed product ---- */

enum { SPREAD, ONE_EXPERT, TWICE }; /* `route` */

/* ids [n_used, n_tokens]: layout 1 and 2 are views as a top-k of a sort gives them. */
static firn_tensor *routes(world *w, const test_case *c)
{
    const int64_t n_used = arg(c, "n_used"), n_tokens = arg(c, "n_tokens"), n_expert = arg(c, "n_expert");
    const int route = (int)arg_or(c, "route", SPREAD);
    firn_tensor *ids = laid_out(w, c, FIRN_I32, IDS, (double)n_expert, n_used, n_tokens, 1, 1);

    if (!ids)
        return NULL;
    int32_t *values = last_bytes(w);
    const size_t n = w->inputs[w->n - 1].size / sizeof *values;
    for (size_t i = 0; i < n && route != SPREAD; i++)
        values[i] = route == ONE_EXPERT ? (int32_t)(n_expert - 1) : (int32_t)((int64_t)(i / 2) % n_expert);
    return ids;
}

/* Rows of x or dy; x_layout 1 has them further apart. */
static firn_tensor *rows(world *w, const test_case *c, int64_t k, int64_t slots)
{
    return (arg_or(c, "x_layout", 0) > 0 ? strided4 : slot4)(w, FIRN_F32, UNIFORM, 0, k, slots, arg(c, "n_tokens"), 1);
}

static firn_tensor *experts(world *w, const test_case *c)
{
    return weight4(w, c, arg(c, "k"), arg(c, "m"), arg(c, "n_expert"), 1);
}

static firn_tensor *build_mul_mat_id(world *w, const test_case *c)
{
    firn_tensor *a = experts(w, c), *x = rows(w, c, arg(c, "k"), arg(c, "shared")), *ids = routes(w, c), *table = NULL;

    if (arg_or(c, "table", 0) > 0 && a) {
        table = slot4(w, FIRN_I64, IDS, 1, arg(c, "n_expert"), 1, 1, 1);
        int64_t *offsets = last_bytes(w);
        for (int64_t e = 0; table && e < arg(c, "n_expert"); e++) /* 1: identity, 2: reversed */
            offsets[e] = (arg_or(c, "table", 0) > 1 ? arg(c, "n_expert") - 1 - e : e) * a->nb[2];
    }
    return firn_mul_mat_id(w->g, a, x, ids, table);
}

static firn_tensor *build_mul_mat_id_back(world *w, const test_case *c)
{
    firn_tensor *a = experts(w, c), *dy = rows(w, c, arg(c, "m"), arg(c, "n_used"));

    return firn_mul_mat_id_back(w->g, a, dy, routes(w, c));
}

static firn_tensor *build_out_prod_id(world *w, const test_case *c)
{
    firn_tensor *x = rows(w, c, arg(c, "k"), arg(c, "shared")), *dy = rows(w, c, arg(c, "m"), arg(c, "n_used"));

    return firn_out_prod_id(w->g, x, dy, routes(w, c), arg(c, "n_expert"));
}

static const struct {
    int n_expert, n_used, shared, route;
} routings[] = {
    {4, 2, 1, SPREAD}, {4, 2, 2, SPREAD},     {5, 4, 2, SPREAD}, {8, 6, 3, SPREAD},     {8, 6, 2, TWICE},
    {1, 1, 1, SPREAD}, {6, 2, 1, ONE_EXPERT}, {3, 4, 4, TWICE},  {9, 3, 3, ONE_EXPERT},
};
enum { N_ROUTINGS = sizeof routings / sizeof *routings };

#define ROUTED "k m n_expert n_used shared n_tokens route layout"

/* `weights`: the operation reads experts, in every format. */
static void routed_cases(case_list *l, const family *f, bool weights)
{
    static const int tokens[] = {1, 3, 17};

    for (int t = 0; t < (weights ? n_promised_types : 1); t++) {
        const firn_type type = promised_types[t];
        const int k = row_length(type, t % 2 ? 256 : 32);
        for (int r = 0; r < N_ROUTINGS; r++)
            for (int n = 0; n < 3; n++)
                for (int layout = 0; layout < 2; layout++)
                    add_case(l, f, type, ROUTED, k, 5 + r, routings[r].n_expert, routings[r].n_used, routings[r].shared,
                             tokens[n], routings[r].route, layout);
        for (int i = 0; i < 6; i++)
            add_case(l, f, type, ROUTED, k, bites[4 + 2 * i], 3, 2, 1 + i % 2, 7, SPREAD, 2);
        add_case(l, f, type, ROUTED, row_length(type, 512), 19, 4, 2, 1, 65, SPREAD, 1);
        add_case(l, f, type, ROUTED " x_layout", k, 9, 4, 2, 2, 5, SPREAD, 1, 1);
        for (int i = 0; i < (weights ? 2 : 0); i++)
            add_case(l, f, type, ROUTED " w_layout", row_length(type, 256), 17, 3, 2, 1 + i, i ? 40 : 3, SPREAD, i, 1);
        add_case(l, f, type, ROUTED, k, 7, 4, 2, 1, 0, SPREAD, 0);
    }
    for (int t = 0; t < (weights ? n_decoded_types : 0); t++)
        add_case(l, f, decoded_types[t], ROUTED, row_length(decoded_types[t], 256), 6, 3, 2, 1, 11, SPREAD, t % 2);
    for (int i = 0; i < N_BITES; i++) {
        add_case(l, f, FIRN_F32, ROUTED, bites[i], 17, 4, 2, 1, 9, SPREAD, 0);
        add_case(l, f, FIRN_F32, ROUTED, 33, bites[i], 4, 2, 2, 9, SPREAD, 1);
        add_case(l, f, FIRN_F32, ROUTED, 24, 15, 2, 1, 1, bites[i], SPREAD, 0);
    }
    add_case(l, f, FIRN_F32, ROUTED, 0, 15, 3, 2, 1, 4, SPREAD, 0);
    add_case(l, f, FIRN_F32, ROUTED, 24, 0, 3, 2, 1, 4, SPREAD, 0);
    add_case(l, f, FIRN_F32, ROUTED, 2048, 16, 4, 2, 1, 33, SPREAD, 1);
    add_case(l, f, FIRN_F32, ROUTED, 16, 130, 40, 8, 8, 12, SPREAD, 1);
}

static void mul_mat_id_back_cases(case_list *l, const family *f)
{
    routed_cases(l, f, true);
}

/* With a gather table as well; run_grad wants those refused. */
static void mul_mat_id_cases(case_list *l, const family *f)
{
    routed_cases(l, f, true);
    for (int t = 0; t < n_promised_types; t++)
        for (int table = 1; table <= 2; table++)
            add_case(l, f, promised_types[t], "k m n_expert n_used shared n_tokens layout table",
                     row_length(promised_types[t], 32), 7, 5, 2, 1, 6, 1, table);
}

static void out_prod_id_cases(case_list *l, const family *f)
{
    routed_cases(l, f, false);
    for (int i = 0; i < 3; i++) /* several tiles of rows, of columns and of slots */
        add_case(l, f, FIRN_F32, ROUTED, 64 + 36 * i, 32 + 19 * i, 3, 2, 1 + i % 2, 48 + 11 * i, i % 3, i);
    add_case(l, f, FIRN_F32, ROUTED, 32, 5, 7, 4, 4, 201, TWICE, 1); /* many slots */
}

#define LAYER "k m n_expert n_used shared n_tokens"

/* Qwen3-30B-A3B's up in every format at 32 rows per expert, and from half a row to 128; OLMoE and Mixtral at 64 and
 * 128. One token alone would find its few experts in the cache, run after run: bench-gemm measures that. */
static void routed_perf(case_list *l, const family *f)
{
    static const int tokens[] = {8, 32, 64, 192, 2048};

    for (int t = 0; t < n_promised_types; t++)
        add_case(l, f, promised_types[t], LAYER, 2048, 768, 128, 8, 1, 512);
    for (int i = 0; i < 5; i++)
        add_case(l, f, FIRN_Q4_K, LAYER, 2048, 768, 128, 8, 1, tokens[i]);
    add_case(l, f, FIRN_Q4_K, LAYER, 768, 2048, 128, 8, 8, 512);
    add_case(l, f, FIRN_Q4_K, LAYER, 2048, 1024, 64, 8, 1, 512);
    add_case(l, f, FIRN_Q4_K, LAYER, 4096, 14336, 8, 2, 1, 512);
}

/* An adapter's factors; whole experts. */
static void outer_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, LAYER, 2048, 16, 128, 8, 1, 512);
    add_case(l, f, FIRN_F32, LAYER, 16, 768, 128, 8, 8, 512);
    add_case(l, f, FIRN_F32, LAYER, 2048, 768, 128, 8, 1, 512);
    add_case(l, f, FIRN_F32, LAYER, 2048, 1024, 64, 8, 1, 512);
    add_case(l, f, FIRN_F32, LAYER, 2048, 768, 16, 8, 1, 256);
}

/* ---- slots ---- */

static firn_tensor *build_sum_slots(world *w, const test_case *c)
{
    return firn_sum_slots(w->g, rows(w, c, arg(c, "m"), arg(c, "n_used")), arg(c, "shared"));
}

static firn_tensor *build_mix_slots(world *w, const test_case *c)
{
    firn_tensor *x = rows(w, c, arg(c, "m"), arg(c, "n_used"));

    return firn_mix_slots(w->g, x, laid_out(w, c, FIRN_F32, UNIFORM, 0, arg(c, "n_used"), arg(c, "n_tokens"), 1, 1));
}

static firn_tensor *build_add_id(world *w, const test_case *c)
{
    firn_tensor *a = rows(w, c, arg(c, "m"), arg(c, "n_used"));
    firn_tensor *b = slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "m"), arg(c, "n_expert"), 1, 1);

    return firn_add_id(w->g, a, b, routes(w, c));
}

void slot_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_BITES; i++)
        for (int s = 0; s < 4; s++)
            add_case(l, f, FIRN_F32, "m n_expert n_used shared n_tokens layout x_layout", bites[i], 5,
                     (int[]){1, 2, 6, 8}[s], (int[]){1, 2, 3, 1}[s], 1 + 4 * s, s % 3, s / 2);
    add_case(l, f, FIRN_F32, "m n_expert n_used shared n_tokens", 512, 8, 4, 2, 64);
}

void slot_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "m n_expert n_used shared n_tokens", 2048, 128, 8, 1, 512);
}

/* ---- gathers ---- */

static firn_tensor *build_get_rows(world *w, const test_case *c)
{
    firn_tensor *a = slot4(w, c->type, UNIFORM, 0, arg(c, "n"), arg(c, "rows"), arg(c, "b"), arg(c, "c"));
    firn_tensor *ids = laid_out(w, c, FIRN_I32, IDS, (double)arg(c, "rows"), arg(c, "r"), arg(c, "b"), arg(c, "c"), 1);

    return firn_get_rows(w->g, a, ids);
}

static firn_tensor *build_get_rows_back(world *w, const test_case *c)
{
    firn_tensor *dy = (arg_or(c, "layout", 0) > 0 ? strided4 : slot4)(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "r"),
                                                                      arg(c, "b"), arg(c, "c"));
    firn_tensor *ids = laid_out(w, c, FIRN_I32, IDS, (double)arg(c, "rows"), arg(c, "r"), arg(c, "b"), arg(c, "c"), 1);

    return firn_get_rows_back(w->g, dy, ids, arg(c, "rows"));
}

static void gather_cases(case_list *l, const family *f, bool every_format)
{
    for (int t = 0; t < (every_format ? n_promised_types : 1); t++) {
        const int n = row_length(promised_types[t], 64);
        for (int layout = 0; layout < 3; layout++) {
            add_case(l, f, promised_types[t], "n rows r b c layout", n, 5, 9, 1, 1, layout);
            add_case(l, f, promised_types[t], "n rows r b c layout", 3 * n, 4, 3, 3, 2, layout);
        }
        add_case(l, f, promised_types[t], "n rows r b c", n, 1, 1, 1, 1);
        add_case(l, f, promised_types[t], "n rows r b c", n, 7, 0, 1, 1);
    }
    for (int t = 0; t < (every_format ? n_decoded_types : 0); t++)
        add_case(l, f, decoded_types[t], "n rows r", row_length(decoded_types[t], 512), 4, 6);
    for (int layout = 0; layout < 3; layout++) { /* the router's weights: rows of one value */
        add_case(l, f, FIRN_F32, "n rows r b layout", 1, 8, 2, 5, layout);
        add_case(l, f, FIRN_F32, "n rows r b layout", 1, 128, 8, 33, layout);
    }
    for (int i = 0; i < N_BITES; i++)
        add_case(l, f, FIRN_F32, "n rows r", bites[i], 3, 11);
    add_case(l, f, FIRN_F32, "n rows r", 1100, 6, 40);
}

static void get_rows_cases(case_list *l, const family *f)
{
    gather_cases(l, f, true);
}

static void get_rows_back_cases(case_list *l, const family *f)
{
    gather_cases(l, f, false);
}

static void gather_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_Q4_K, "n rows r", 2048, 49152, 512); /* an embedding */
    add_case(l, f, FIRN_F32, "n rows r b", 1, 128, 8, 4096); /* a router's weights */
}

static void gather_back_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n rows r b", 1, 128, 8, 4096);
}

static firn_tensor *build_set_rows(world *w, const test_case *c)
{
    firn_tensor *dst = slot4(w, c->type, UNIFORM, 0, arg(c, "n"), arg(c, "rows"), arg(c, "b"), 1);
    firn_tensor *a = laid_out(w, c, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "r"), arg(c, "b"), 1);
    firn_tensor *ids = slot4(w, FIRN_I32, IDS, 1, arg(c, "r"), 1, 1, 1);
    int32_t *values = last_bytes(w);

    for (int64_t i = 0; ids && i < arg(c, "r"); i++) /* each row once, in a mixed order */
        values[i] = (int32_t)((i * 5 + 2) % arg(c, "rows"));
    return firn_set_rows(w->g, dst, a, ids);
}

static void set_rows_cases(case_list *l, const family *f)
{
    for (int layout = 0; layout < 3; layout++)
        for (int t = 0; t < 2; t++) {
            add_case(l, f, promised_types[t], "n rows r b layout", 33, 11, 4, 1, layout);
            add_case(l, f, promised_types[t], "n rows r b layout", 8, 7, 7, 3, layout);
        }
}

static void set_rows_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F16, "n rows r", 1024, 4096, 512); /* a pass joins the cache */
}

const family product_families[] = {
    {"MUL_MAT", build_mul_mat, ref_mul_mat, mul_mat_cases, mul_mat_perf, 1e-11, true, true},
    {"OUT_PROD", build_out_prod, ref_out_prod, out_prod_cases, out_prod_perf, 1e-11, true, true},
    {"MUL_MAT_ID", build_mul_mat_id, ref_mul_mat_id, mul_mat_id_cases, routed_perf, 1e-11, true, true},
    {"MUL_MAT_ID_BACK", build_mul_mat_id_back, ref_mul_mat_id_back, mul_mat_id_back_cases, routed_perf, 1e-11, true,
     true},
    {"OUT_PROD_ID", build_out_prod_id, ref_out_prod_id, out_prod_id_cases, outer_perf, 1e-11, false, true},
    {"SUM_SLOTS", build_sum_slots, ref_sum_slots, slot_cases, slot_perf, 1e-12, false, true},
    {"MIX_SLOTS", build_mix_slots, ref_mix_slots, slot_cases, slot_perf, 1e-12, false, true},
    {"ADD_ID", build_add_id, ref_add_id, slot_cases, slot_perf, 1e-12, false, false},
    {"GET_ROWS", build_get_rows, ref_get_rows, get_rows_cases, gather_perf, 1e-14, true, true},
    {"GET_ROWS_BACK", build_get_rows_back, ref_get_rows_back, get_rows_back_cases, gather_back_perf, 1e-12, false,
     true},
    {"SET_ROWS", build_set_rows, ref_set_rows, set_rows_cases, set_rows_perf, 0, false, false},
    {0},
};
