/* Cases of what carries a state along the tokens: CONV_CAUSAL, GATED_DELTA, SSM_SCAN, and their gradients. */
#include "refs.h"

#include <math.h>
#include <string.h>

/* `documents`: where tokens' documents begin. */
enum { ONE, SEVERAL, BEFORE, ALONE };

/* Documents of 1, 2, 3, 31, 32, 33 tokens and so on; or all one, of which some tokens came before; or each token its
 * own. */
static firn_tensor *first_tokens(world *w, const test_case *c, int64_t n)
{
    static const int lengths[] = {1, 2, 3, 31, 32, 33, 64, 7};
    firn_tensor *t = slot4(w, FIRN_I32, IDS, 1, n, 1, 1, 1);
    int32_t *first = last_bytes(w);
    const int kind = (int)arg_or(c, "documents", ONE);
    int32_t begin = 0, which = 0;

    for (int32_t i = 0; t && i < n; i++) {
        if (kind == SEVERAL && i - begin == lengths[which % 8]) {
            begin = i;
            which++;
        }
        first[i] = kind == ONE ? 0 : kind == BEFORE ? -1000 : kind == ALONE ? i : begin;
    }
    return t;
}

static firn_tensor *rule_of(world *w, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *dx = y && dy ? y->op->gradient(w->g, y, dy, of) : NULL;

    return dx && dx->op->view ? dx->src[0] : dx;
}

/* ---- CONV_CAUSAL ---- */

static firn_tensor *build_conv(world *w, const test_case *c)
{
    const int64_t C = arg(c, "c"), n = arg(c, "n"), taps = arg(c, "taps"), history = (int64_t)arg_or(c, "history", 0);
    firn_tensor *x = dense4(w, c, UNIFORM, C, history + n, 1, 1);
    firn_tensor *filters = slot4(w, FIRN_F32, UNIFORM, 0, taps, C, 1, 1), *bias = NULL;

    keep_fixed(w);
    firn_tensor *first = first_tokens(w, c, n);
    if (arg_or(c, "bias", 0) > 0) {
        bias = slot4(w, FIRN_F32, UNIFORM, 0, C, 1, 1, 1);
        keep_fixed(w);
    }
    return firn_conv_causal(w->g, x, filters, first, bias, history, arg_or(c, "silu", 0) > 0);
}

static firn_tensor *build_conv_back(world *w, const test_case *c)
{
    firn_tensor *y = build_conv(w, c);

    return rule_of(w, y, slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "c"), arg(c, "n"), 1, 1), 0);
}

static void conv_cases(case_list *l, const family *f)
{
    static const int lengths[] = {1, 2, 3, 31, 32, 33, 100};

    for (int taps = 1; taps <= 8; taps++)
        for (int i = 0; i < 7; i++)
            add_case(l, f, FIRN_F32, "c n taps history documents bias silu layout", 5 + 16 * (i % 3), lengths[i], taps,
                     (taps + i) % 3 ? 0 : taps - 1, (taps + i) % 4, i % 2, (taps + i / 2) % 2, taps % 2);
    add_case(l, f, FIRN_F32, "c n taps", 8, 0, 4);
    add_case(l, f, FIRN_F32, "c n taps history documents silu", 12, 40, 4, 3, BEFORE, 1);
    add_case(l, f, FIRN_F32, "c n taps history documents silu", 12, 40, 4, 1, BEFORE, 1);
}

static void conv_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "c n taps silu", 8192, 4096, 4, 1);
}

/* ---- GATED_DELTA, SSM_SCAN ---- */

enum { ORDINARY, SLOW, FAST }; /* `decay` */

/* n floats times f; keys and queries get about length 1, as their norm leaves them. */
static void times(world *w, float f)
{
    float *values = last_bytes(w);

    for (size_t i = 0; w->n && i < w->inputs[w->n - 1].size / sizeof *values; i++)
        values[i] *= f;
}

static firn_tensor *build_scan(world *w, const test_case *c)
{
    const int64_t s = arg(c, "s"), dv = (int64_t)arg_or(c, "dv", (double)s), G = arg(c, "groups"), H = arg(c, "heads"),
                  n = arg(c, "n");
    const bool delta = strncmp(c->family->op, "GATED", 5) == 0, last = arg_or(c, "last", 0) > 0;
    const int kind = (int)arg_or(c, "decay", ORDINARY);
    firn_tensor *q = dense4(w, c, UNIFORM, s, G, n, 1), *last_state, *state = NULL;
    times(w, 1.7f / sqrtf((float)s));
    firn_tensor *k = dense4(w, c, UNIFORM, s, G, n, 1);
    times(w, 1.7f / sqrtf((float)s));
    firn_tensor *v = dense4(w, c, UNIFORM, dv, H, n, 1);
    firn_tensor *g = slot4(w, FIRN_F32, POSITIVE, 0, arg_or(c, "channels", 0) > 0 ? s : 1, H, n, 1);
    times(w, kind == SLOW ? -1e-4f : kind == FAST ? -20 : -0.2f);
    if (kind == FAST && g) /* among those that forget all, some that forget nothing */
        for (size_t i = 0; i < w->inputs[w->n - 1].size / sizeof(float); i += 3)
            ((float *)last_bytes(w))[i] = -1e-3f;
    firn_tensor *beta = slot4(w, FIRN_F32, POSITIVE, 0, 1, H, n, 1);
    times(w, 0.5f);
    firn_tensor *first = first_tokens(w, c, n);
    if (arg_or(c, "state", 0) > 0) {
        state = slot4(w, FIRN_F32, UNIFORM, 0, s, dv, H, 1);
        keep_fixed(w);
    }
    for (int i = 0; (last || state) && i < w->n; i++)
        w->inputs[i].fixed = true; /* there is a gradient of o, where no state came from before */
    firn_tensor *y = (delta ? firn_gated_delta : firn_ssm_scan)(w->g, q, k, v, g, beta, first, state,
                                                                arg_or(c, "tiled", 0) > 0, &last_state);
    return last ? last_state : y;
}

static firn_tensor *build_scan_back(world *w, const test_case *c)
{
    firn_tensor *y = build_scan(w, c); /* the view of the node's first part */

    if (!y)
        return NULL;
    return rule_of(w, y->src[0], slot4(w, FIRN_F32, UNIFORM, 0, y->ne[0], y->ne[1], y->ne[2], 1), 0);
}

#define SCAN "s dv groups heads n decay channels tiled documents layout"

static void both_cases(case_list *l, const family *f)
{
    static const int sizes[][4] = {{8, 8, 1, 1}, {16, 16, 2, 4}, {20, 33, 1, 3}, {32, 40, 2, 2}, {1, 1, 1, 2}};
    static const int lengths[] = {1, 2, 31, 32, 33, 65, 100};

    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 7; j++)
            add_case(l, f, FIRN_F32, SCAN, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3], lengths[j], (i + j) % 3,
                     (i + j) % 2, (i + j / 2) % 2, j % 4 == BEFORE ? ONE : j % 4, j % 2);
    add_case(l, f, FIRN_F32, SCAN, 8, 8, 1, 1, 0, 0, 0, 0, 0, 0);
    for (int decay = ORDINARY; decay <= FAST; decay++)
        add_case(l, f, FIRN_F32, SCAN, 16, 8, 1, 1, 1000, decay, decay == FAST, 0, ONE, 0);
}

static void back_cases(case_list *l, const family *f)
{
    both_cases(l, f);
    for (int decay = ORDINARY; decay <= FAST; decay++)
        add_case(l, f, FIRN_F32, SCAN, 8, 8, 1, 1, 8192, decay, 0, 0, decay == SLOW ? ONE : SEVERAL, 0);
}

static void scan_cases(case_list *l, const family *f)
{
    back_cases(l, f);
    for (int i = 0; i < 8; i++) /* a state from before, and the one that is left */
        add_case(l, f, FIRN_F32, SCAN " state last", 16, 40, 2, 4, 1 + 5 * i, i % 3, i % 2, i % 2,
                 i % 4 == ONE ? BEFORE : i % 4, 0, 1, i % 2);
}

static void scan_perf(case_list *l, const family *f)
{
    const bool delta = strncmp(f->op, "GATED", 5) == 0;

    if (delta) /* a block of Qwen3.5-35B-A3B */
        add_case(l, f, FIRN_F32, SCAN, 128, 128, 16, 32, 4096, ORDINARY, 0, 1, ONE, 0);
    else /* of Nemotron 3 Nano */
        add_case(l, f, FIRN_F32, SCAN, 128, 64, 8, 64, 4096, ORDINARY, 0, 0, ONE, 0);
}

const family scan_families[] = {
    {"CONV_CAUSAL", build_conv, ref_conv_causal, conv_cases, conv_perf, 1e-12, false, false},
    {"CONV_CAUSAL_BACK", build_conv_back, ref_conv_causal_back, conv_cases, conv_perf, 1e-12, false, false},
    {"GATED_DELTA", build_scan, ref_scan, scan_cases, scan_perf, 1e-12, false, false},
    {"GATED_DELTA_BACK", build_scan_back, ref_scan_back, back_cases, scan_perf, 1e-11, false, false},
    /* A sum over thousands of tokens in float, where hardly anything is forgotten. */
    {"SSM_SCAN", build_scan, ref_scan, scan_cases, scan_perf, 1e-11, false, false},
    {"SSM_SCAN_BACK", build_scan_back, ref_scan_back, back_cases, scan_perf, 1e-11, false, false},
    {0},
};
