/* Cases of the gradient operations, tried by themselves: grad sees them only through the sum of a forward and a
 * backward pass. Most are made by the rule of the operation whose gradient they are. */
#include "refs.h"

#include <math.h>
#include <string.h>

static firn_tensor *rows4(world *w, const test_case *c, fill kind)
{
    return dense4(w, c, kind, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));
}

/* The node that y's rule makes for source `of`; where the rule hands out a view of it, what it is a view of. */
static firn_tensor *rule_of(world *w, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *dx = y && dy ? y->op->gradient(w->g, y, dy, of) : NULL;

    return dx && dx->op->view ? dx->src[0] : dx;
}

/* ---- functions of one value, gated units ---- */

const char *const back_kinds[] = {"CLAMP", "SILU",    "GELU", "GELU_QUICK", "GELU_ERF",
                                  "RELU",  "SIGMOID", "TANH", "SOFTPLUS"};
enum { N_BACK_KINDS = sizeof back_kinds / sizeof *back_kinds };

static firn_tensor *build_unary_back(world *w, const test_case *c)
{
    static firn_tensor *(*const make[])(firn_graph *, firn_tensor *) = {
        NULL, firn_silu, firn_gelu, firn_gelu_quick, firn_gelu_erf, firn_relu, firn_sigmoid, firn_tanh, firn_softplus,
    };
    const int kind = (int)arg_or(c, "kind", 0);
    firn_tensor *x = laid_out(w, c, FIRN_F32, GRID, 0, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));
    firn_tensor *dy = laid_out(w, c, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));

    if (!x || kind < 0 || kind >= N_BACK_KINDS)
        return NULL;
    return rule_of(w, kind == 0 ? firn_clamp(w->g, x, -0.5f, 0.6f) : make[kind](w->g, x), dy, 0);
}

static void unary_back_cases(case_list *l, const family *f)
{
    for (int kind = 0; kind < N_BACK_KINDS; kind++) {
        for (int i = 0; i < N_ROW_WIDTHS; i++)
            add_case(l, f, FIRN_F32, "kind n n1 n2 n3 layout", kind, row_widths[i], 3, 1 + i % 3, 1 + i % 2,
                     (i + kind) % 3);
        add_case(l, f, FIRN_F32, "kind n n1", kind, 33, 0);
        add_case(l, f, FIRN_F32, "kind n n1", kind, 700, 30);
    }
}

static void unary_back_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "kind n n1", 1, 2048, 2048);
}

static firn_tensor *build_glu_back(world *w, const test_case *c)
{
    firn_tensor *gate = rows4(w, c, GRID), *up = rows4(w, c, GRID), *dy = rows4(w, c, UNIFORM);

    switch ((int)arg_or(c, "kind", 0)) {
    case 0:
        return rule_of(w, firn_swiglu(w->g, gate, up), dy, 0);
    case 1:
        return rule_of(w, firn_geglu(w->g, gate, up), dy, 0);
    case 2:
        return rule_of(w, firn_reglu(w->g, gate, up), dy, 0);
    default:
        return rule_of(w, firn_swiglu_oai(w->g, gate, up, oai_alpha(c), oai_limit(c)), dy, 0);
    }
}

static void glu_back_cases(case_list *l, const family *f)
{
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < N_ROW_WIDTHS; i++)
            add_case(l, f, FIRN_F32, "kind n n1 n2 n3 layout", kind, row_widths[i], 3, 1 + i % 3, 1 + i % 2, i % 2);
        add_case(l, f, FIRN_F32, "kind n n1", kind, 33, 0);
        add_case(l, f, FIRN_F32, "kind n n1", kind, 768, 33);
    }
    add_case(l, f, FIRN_F32, "kind n n1 alpha limit", 3, 64, 9, 1000, 400);
}

static void glu_back_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "kind n n1", 0, 768, 4096);
}

/* ---- norms, softmax ---- */

static firn_tensor *build_norm_back(world *w, const test_case *c)
{
    firn_tensor *x = rows4(w, c, UNIFORM), *dy = rows4(w, c, UNIFORM);

    return rule_of(w, firn_norm(w->g, x, eps_of(c)), dy, 0);
}

static firn_tensor *build_l2_norm_back(world *w, const test_case *c)
{
    firn_tensor *x = rows4(w, c, AWAY), *dy = rows4(w, c, UNIFORM);

    return rule_of(w, firn_l2_norm(w->g, x, eps_of(c)), dy, 0);
}

/* SOFT_MAX_BACK takes the result, y: rows of probabilities. */
static firn_tensor *build_soft_max_back(world *w, const test_case *c)
{
    firn_tensor *y = rows4(w, c, POSITIVE);
    float *values = last_bytes(w);

    if (!y)
        return NULL;
    for (size_t i = 0; i < w->inputs[w->n - 1].size / sizeof *values; i++)
        values[i] /= 1.25f * (float)y->ne[0];
    firn_tensor *src[] = {y, rows4(w, c, UNIFORM)};
    return firn_node(w->g, &firn_op_soft_max_back, src, 2, &(firn_params){.f = {(float)arg(c, "scale")}});
}

static void soft_max_back_cases(case_list *l, const family *f)
{
    row_cases(l, f);
    for (int i = 0; i < N_ROW_WIDTHS; i++)
        add_case(l, f, FIRN_F32, "n n1 n2 n3 scale layout", row_widths[i], 3, 4, 2, 1 + i % 3, i % 2);
}

/* ---- attention ---- */

static firn_tensor *build_attention_back(world *w, const test_case *c)
{
    firn_tensor *y = build_attention(w, c); /* the view of the node's first part */

    if (!y)
        return NULL;
    return rule_of(w, y->src[0], slot4(w, FIRN_F32, UNIFORM, 0, y->ne[0], y->ne[1], y->ne[2], 1), 0);
}

/* ---- losses ---- */

static firn_tensor *build_cross_entropy_back(world *w, const test_case *c)
{
    firn_tensor *y = build_cross_entropy(w, c);

    return rule_of(w, y, slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), 1, 1, 1), 0);
}

static firn_tensor *build_router_balance_back(world *w, const test_case *c)
{
    firn_tensor *y = build_router_balance(w, c);

    return rule_of(w, y, slot4(w, FIRN_F32, AWAY, 0, 1, 1, 1, 1), 0);
}

static firn_tensor *build_router_z_back(world *w, const test_case *c)
{
    firn_tensor *y = build_router_z(w, c);

    return rule_of(w, y, slot4(w, FIRN_F32, AWAY, 0, 1, 1, 1, 1), 0);
}

/* ---- slots ---- */

static firn_tensor *build_mix_slots_back(world *w, const test_case *c)
{
    const bool of_x = strcmp(c->family->op, "MIX_SLOTS_BACK_X") == 0;
    const int64_t m = arg(c, "m"), used = arg(c, "n_used"), n = arg(c, "n_tokens");
    firn_tensor *x = (arg_or(c, "x_layout", 0) > 0 ? strided4 : slot4)(w, FIRN_F32, UNIFORM, 0, m, used, n, 1);
    firn_tensor *weights = laid_out(w, c, FIRN_F32, UNIFORM, 0, used, n, 1, 1);
    firn_tensor *dy = dense4(w, c, UNIFORM, m, n, 1, 1);

    return rule_of(w, firn_mix_slots(w->g, x, weights), dy, of_x ? 0 : 1);
}

const family back_families[] = {
    {"UNARY_BACK", build_unary_back, ref_unary_back, unary_back_cases, unary_back_perf, 1e-12, false, false},
    {"GLU_BACK", build_glu_back, ref_glu_back, glu_back_cases, glu_back_perf, 1e-12, false, false},
    {"NORM_BACK", build_norm_back, ref_norm_back, norm_cases, row_perf, 1e-12, false, false},
    {"L2_NORM_BACK", build_l2_norm_back, ref_l2_norm_back, l2_norm_cases, row_perf, 1e-12, false, false},
    {"SOFT_MAX_BACK", build_soft_max_back, ref_soft_max_back, soft_max_back_cases, row_perf, 1e-12, false, false},
    {"ATTENTION_BACK", build_attention_back, ref_attention_back, attention_cases, attention_perf, 1e-11, false, false},
    {"CROSS_ENTROPY_BACK", build_cross_entropy_back, ref_cross_entropy_back, cross_entropy_cases, cross_entropy_perf,
     1e-12, false, false},
    {"ROUTER_BALANCE_BACK", build_router_balance_back, ref_router_balance_back, router_cases, router_perf, 1e-12, false,
     false},
    {"ROUTER_Z_BACK", build_router_z_back, ref_router_z_back, router_cases, router_perf, 1e-12, false, false},
    {"MIX_SLOTS_BACK_X", build_mix_slots_back, ref_mix_slots_back_x, slot_cases, slot_perf, 1e-13, false, false},
    {"MIX_SLOTS_BACK_W", build_mix_slots_back, ref_mix_slots_back_w, slot_cases, slot_perf, 1e-12, false, false},
    {0},
};
