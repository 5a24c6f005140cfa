/* Cases of norms, softmax, rotary embedding, attention, gated units, losses and optimizers. */
#include "refs.h"

#include <math.h>
#include <string.h>

const int row_widths[N_ROW_WIDTHS] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257};

static firn_tensor *rows4(world *w, const test_case *c, fill kind)
{
    return dense4(w, c, kind, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), arg(c, "n3"));
}

void row_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_ROW_WIDTHS; i++) {
        add_case(l, f, FIRN_F32, "n n1 layout", row_widths[i], 3, 0);
        add_case(l, f, FIRN_F32, "n n1 n2 n3 layout", row_widths[i], 2, 3, 2, 1);
    }
    add_case(l, f, FIRN_F32, "n n1", 33, 0);
    add_case(l, f, FIRN_F32, "n n1", 2048, 5);
    add_case(l, f, FIRN_F32, "n n1", 100, 70);
}

void row_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1", 2048, 512);
}

/* ---- norms ---- */

float eps_of(const test_case *c)
{
    return (float)arg_or(c, "eps", 1e-6);
}

static firn_tensor *weight(world *w, const test_case *c)
{
    return arg_or(c, "w", 0) > 0 ? slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), 1, 1, 1) : NULL;
}

static firn_tensor *build_rms_norm(world *w, const test_case *c)
{
    firn_tensor *x = rows4(w, c, UNIFORM);

    return firn_rms_norm(w->g, x, weight(w, c), eps_of(c));
}

static firn_tensor *build_rms_norm_back(world *w, const test_case *c)
{
    firn_tensor *x = rows4(w, c, UNIFORM), *dy = rows4(w, c, UNIFORM);

    return firn_rms_norm_back(w->g, x, weight(w, c), dy, eps_of(c));
}

static firn_tensor *build_norm(world *w, const test_case *c)
{
    return firn_norm(w->g, rows4(w, c, UNIFORM), eps_of(c));
}

static firn_tensor *build_l2_norm(world *w, const test_case *c)
{
    return firn_l2_norm(w->g, rows4(w, c, AWAY), eps_of(c));
}

static void rms_norm_cases(case_list *l, const family *f)
{
    row_cases(l, f);
    for (int i = 0; i < N_ROW_WIDTHS; i++) {
        add_case(l, f, FIRN_F32, "n n1 w layout", row_widths[i], 5, 1, i % 2);
        add_case(l, f, FIRN_F32, "n n1 w eps", row_widths[i], 2, i % 2, 1);
    }
}

void norm_cases(case_list *l, const family *f)
{
    for (int i = 1; i < N_ROW_WIDTHS; i++) { /* a row of one value has no variance, and its slope no digits */
        add_case(l, f, FIRN_F32, "n n1 layout", row_widths[i], 3, i % 2);
        add_case(l, f, FIRN_F32, "n n1 n2 n3 eps layout", row_widths[i], 2, 3, 2, 1, 1);
    }
    add_case(l, f, FIRN_F32, "n n1", 33, 0);
    add_case(l, f, FIRN_F32, "n n1", 2048, 5);
}

void l2_norm_cases(case_list *l, const family *f)
{
    for (int i = 1; i < N_ROW_WIDTHS; i++) { /* a row of one value has length 1, whatever the value is */
        add_case(l, f, FIRN_F32, "n n1 layout", row_widths[i], 3, 0);
        add_case(l, f, FIRN_F32, "n n1 n2 n3 layout", row_widths[i], 2, 3, 2, 1);
    }
    add_case(l, f, FIRN_F32, "n n1 eps", 5, 3, 100); /* shorter than eps */
}

/* ---- softmax ---- */

static firn_tensor *build_soft_max(world *w, const test_case *c)
{
    firn_tensor *x = rows4(w, c, UNIFORM), *mask = NULL, *sinks = NULL;
    const int kind = (int)arg_or(c, "mask", 0); /* 1: per row, 2: per row and head, 3: hides some, and a whole row */

    if (kind > 0) {
        mask = slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), kind == 2 ? arg(c, "n2") : 1, 1);
        keep_fixed(w);
        float *m = last_bytes(w);
        for (int64_t i = 0; kind == 3 && mask && i < firn_n_elements(mask); i++)
            m[i] = i % 3 == 1 || i < arg(c, "n") ? -INFINITY : 0;
    }
    if (arg_or(c, "sinks", 0) > 0)
        sinks = slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n2"), 1, 1, 1);
    return firn_soft_max(w->g, x, mask, sinks, (float)arg_or(c, "scale", 1));
}

static void soft_max_cases(case_list *l, const family *f)
{
    row_cases(l, f);
    for (int i = 0; i < N_ROW_WIDTHS; i++)
        for (int mask = 0; mask < 4; mask++)
            add_case(l, f, FIRN_F32, "n n1 n2 n3 mask sinks scale layout", row_widths[i], 3, 4, 2, mask, (i + mask) % 2,
                     1 + i % 3, i % 2);
}

/* ---- rotary embedding ---- */

static firn_tensor *rope_with(world *w, const test_case *c,
                              firn_tensor *(*make)(firn_graph *, firn_tensor *, firn_tensor *, firn_tensor *,
                                                   const firn_rope_params *))
{
    const bool yarn = arg_or(c, "yarn", 0) > 0;
    firn_tensor *x = dense4(w, c, UNIFORM, arg(c, "head"), arg(c, "n_head"), arg(c, "n_tokens"), 1);
    firn_tensor *pos = slot4(w, FIRN_I32, IDS, arg_or(c, "far", 5000), arg(c, "n_tokens"), 1, 1, 1), *factors = NULL;

    if (arg_or(c, "factors", 0) > 0) {
        factors = slot4(w, FIRN_F32, POSITIVE, 0, arg(c, "n_rot") / 2, 1, 1, 1);
        keep_fixed(w);
    }
    const firn_rope_params p = {
        .n_rot = (int)arg(c, "n_rot"),
        .neox = arg_or(c, "neox", 0) > 0,
        .freq_base = 10000,
        .freq_scale = yarn ? 0.25f : (float)arg_or(c, "freq_scale", 1),
        .ext_factor = (float)arg_or(c, "yarn", 0) / (arg_or(c, "half", 0) > 0 ? 2.0f : 1.0f),
        .attn_factor = 1.1f,
        .beta_fast = 32,
        .beta_slow = 1,
        .n_ctx_orig = 4096,
    };
    return make(w->g, x, pos, factors, &p);
}

static firn_tensor *build_rope(world *w, const test_case *c)
{
    return rope_with(w, c, firn_rope);
}

static firn_tensor *build_rope_back(world *w, const test_case *c)
{
    return rope_with(w, c, firn_rope_back);
}

static void rope_cases(case_list *l, const family *f)
{
    static const int heads[][2] = {{2, 2}, {8, 8}, {64, 64}, {80, 32}, {128, 128}, {24, 0}};

    for (int h = 0; h < 6; h++)
        for (int i = 0; i < 8; i++)
            add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens neox yarn factors layout", heads[h][0], heads[h][1],
                     1 + i % 3, (int[]){1, 7, 16, 17}[i % 4], i % 2, i / 2 % 2 && heads[h][1], i / 4 && heads[h][1],
                     (h + i) % 2);
    add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens freq_scale", 16, 16, 2, 33, 2);
    for (int neox = 0; neox < 2; neox++) {
        add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens neox far", 64, 64, 2, 9, neox, 1000000);
        add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens neox yarn half factors", 64, 48, 3, 9, neox, 1, 1, neox);
    }
    add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens", 16, 16, 2, 0);
}

static void rope_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "head n_rot n_head n_tokens neox", 128, 128, 32, 512, 1);
}

/* ---- attention ---- */

enum { CAUSAL, DOCUMENTS, WINDOW, CACHE, RAGGED }; /* `ranges` */

firn_tensor *build_attention(world *w, const test_case *c)
{
    const int64_t hd = arg(c, "hd"), n_kv = arg(c, "n_kv"), n_q = arg(c, "n_q"), heads = arg(c, "heads");
    const int64_t groups = arg(c, "groups"), hv = (int64_t)arg_or(c, "hv", (double)hd);
    firn_tensor *q = dense4(w, c, UNIFORM, hd, heads, n_q, 1), *k = dense4(w, c, UNIFORM, hd, groups, n_kv, 1);
    firn_tensor *v = dense4(w, c, UNIFORM, hv, groups, n_kv, 1), *sinks = NULL;
    firn_tensor *range = slot4(w, FIRN_I32, IDS, 1, 2, n_q, 1, 1);
    int32_t *r = last_bytes(w);

    for (int64_t t = 0; range && t < n_q; t++) {
        const int32_t now = (int32_t)firn_min_i64(t + 1, n_kv), document = 13;
        const int kind = (int)arg_or(c, "ranges", 0);
        r[2 * t] = 0;
        r[2 * t + 1] = now;
        if (kind == DOCUMENTS)
            r[2 * t] = (now - 1) / document * document;
        else if (kind == WINDOW)
            r[2 * t] = now > 9 ? now - 9 : 0;
        else if (kind == CACHE) /* the queries are the last ones of the keys */
            r[2 * t + 1] = (int32_t)(n_kv - n_q + t + 1);
        else if (kind == RAGGED) { /* anything, empty ranges among it */
            r[2 * t] = (int32_t)(t * 7 % (n_kv + 1));
            r[2 * t + 1] = (int32_t)firn_min_i64(n_kv, r[2 * t] + t * 5 % 80);
        }
    }
    if (arg_or(c, "sinks", 0) > 0)
        sinks = slot4(w, FIRN_F32, UNIFORM, 0, heads, 1, 1, 1);
    return firn_attention(w->g, q, k, v, range, sinks, (float)arg_or(c, "scale", 1), (float)arg_or(c, "cap", 0));
}

#define ATTENTION "hd heads groups n_q n_kv ranges sinks cap layout"

void attention_cases(case_list *l, const family *f)
{
    static const int shapes[][3] = {{8, 2, 2}, {16, 4, 2}, {64, 3, 1}, {20, 4, 1}, {1, 1, 1}, {128, 2, 1}};
    static const int lengths[] = {1, 2, 31, 32, 33, 63, 64, 65, 100};

    /* One key and no sink: p = 1, whatever q is, and its slope is rounding. So the first length has a sink. */
    for (int s = 0; s < 6; s++)
        for (int i = 0; i < 9; i++)
            add_case(l, f, FIRN_F32, ATTENTION, shapes[s][0], shapes[s][1], shapes[s][2], lengths[i], lengths[i],
                     (s + i) % 3, i % 2 || i == 0, s % 3 == 1 ? 2 : 0, (i / 2) % 2);
    for (int i = 0; i < 9; i++) {
        add_case(l, f, FIRN_F32, ATTENTION, 16, 4, 2, 1, lengths[i], CACHE, i % 2 || i == 0, 0, 0);
        add_case(l, f, FIRN_F32, ATTENTION, 24, 4, 4, lengths[i], 130, RAGGED, i % 2, i % 3, 1);
        add_case(l, f, FIRN_F32, ATTENTION " hv", 24, 4, 2, lengths[i], 70, RAGGED, 1 - i % 2, 0, 0, 8 + i);
    }
    for (int ranges = CAUSAL; ranges <= RAGGED; ranges++)
        for (int i = 0; i < 4; i++) /* every kind of range with and without sinks and cap, heads of two sizes */
            add_case(l, f, FIRN_F32, ATTENTION " hv scale", 24, 4, 2, 37, ranges == CACHE ? 90 : 37, ranges, i % 2,
                     i / 2 ? 3 : 0, i % 2, 16 + 8 * (i % 3), 1 + i % 2);
    for (int i = 0; i < 4; i++) { /* heads as wide as latent attention has them */
        static const int wide[][2] = {{192, 128}, {136, 184}, {320, 576}, {72, 192}};
        add_case(l, f, FIRN_F32, ATTENTION " hv scale", wide[i][0], 4, 2, 19, 37, i % 2 ? RAGGED : CACHE, i % 2, 0, 0,
                 wide[i][1], 1);
    }
    add_case(l, f, FIRN_F32, ATTENTION " scale", 32, 2, 1, 70, 70, CAUSAL, 0, 0, 0, 3);
    add_case(l, f, FIRN_F32, ATTENTION, 8, 2, 1, 0, 5, CAUSAL, 0, 0, 0);
    add_case(l, f, FIRN_F32, ATTENTION, 8, 2, 1, 40, 200, CACHE, 1, 0, 0);
    for (int i = 0; i < 2; i++) { /* more keys than a kernel keeps scores of at a time */
        add_case(l, f, FIRN_F32, ATTENTION, 8, 2, 1, 40, 1200, CACHE, i, 0, 0);
        add_case(l, f, FIRN_F32, ATTENTION, 16, 4, 2 + 2 * i, 180, 1250, RAGGED, 1 - i, 2 * i, i);
    }
}

void attention_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, ATTENTION, 64, 9, 3, 512, 512, CAUSAL, 0, 0, 0);
    add_case(l, f, FIRN_F32, ATTENTION, 128, 32, 4, 512, 512, CAUSAL, 0, 0, 0);
    add_case(l, f, FIRN_F32, ATTENTION, 128, 32, 4, 4096, 4096, CAUSAL, 0, 0, 0);
}

/* ---- gated units ---- */

#define BUILD_GATED(name, call)                                                                                        \
    static firn_tensor *build_##name(world *w, const test_case *c)                                                     \
    {                                                                                                                  \
        firn_tensor *gate = rows4(w, c, GRID), *up = rows4(w, c, GRID);                                                \
        return call;                                                                                                   \
    }
BUILD_GATED(swiglu, firn_swiglu(w->g, gate, up))
BUILD_GATED(geglu, firn_geglu(w->g, gate, up))
BUILD_GATED(reglu, firn_reglu(w->g, gate, up))
BUILD_GATED(swiglu_oai, firn_swiglu_oai(w->g, gate, up, oai_alpha(c), oai_limit(c)))

float oai_alpha(const test_case *c)
{
    return (float)(arg_or(c, "alpha", 1702) / 1000);
}

float oai_limit(const test_case *c)
{
    return (float)(arg_or(c, "limit", 700) / 1000);
}

static void swiglu_oai_cases(case_list *l, const family *f)
{
    row_cases(l, f);
    add_case(l, f, FIRN_F32, "n n1 alpha limit", 64, 9, 1000, 400);
    add_case(l, f, FIRN_F32, "n n1 alpha limit", 64, 9, 1702, 7000); /* gpt-oss: nothing is cut here */
}

/* ---- losses and optimizers ---- */

firn_tensor *build_cross_entropy(world *w, const test_case *c)
{
    firn_tensor *x = dense4(w, c, UNIFORM, arg(c, "vocab"), arg(c, "n"), 1, 1);
    firn_tensor *targets = slot4(w, FIRN_I32, IDS, (double)arg(c, "vocab"), arg(c, "n"), 1, 1, 1);
    int32_t *t = last_bytes(w);

    for (int64_t i = 0; targets && i < arg(c, "n"); i += 3)
        if (i % 2)
            t[i] = -1 - (int32_t)i;
    if (arg_or(c, "mask", 0) == 0 && arg_or(c, "ignore", -1) < 0)
        return firn_cross_entropy(w->g, x, targets);
    firn_tensor *mask = NULL;
    if (arg_or(c, "mask", 0) > 0) {
        mask = slot4(w, FIRN_F32, POSITIVE, 0, arg(c, "n"), 1, 1, 1);
        keep_fixed(w);
        float *m = last_bytes(w);
        for (int64_t i = 0; mask && i < arg(c, "n"); i += 4)
            m[i] = 0;
    }
    return firn_cross_entropy_masked(w->g, x, targets, mask, (int32_t)arg_or(c, "ignore", -1));
}

void cross_entropy_cases(case_list *l, const family *f)
{
    for (int i = 1; i < N_ROW_WIDTHS; i++) /* with one word the loss is 0, and its error relative to nothing */
        for (int n = 1; n < 20; n += 6)
            add_case(l, f, FIRN_F32, "vocab n layout", row_widths[i], n, (i + n) % 2);
    for (int mask = 0; mask < 2; mask++)
        for (int i = 0; i < 3; i++)
            add_case(l, f, FIRN_F32, "vocab n mask ignore layout", 5 + 13 * i, 21, mask, i == 2 ? 1000000 : 3, i % 2);
    add_case(l, f, FIRN_F32, "vocab n mask", 64, 9, 1);
    add_case(l, f, FIRN_F32, "vocab n", 5000, 3);
    add_case(l, f, FIRN_F32, "vocab n", 100, 0);
}

void cross_entropy_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "vocab n", 49152, 64);
}

/* Weights of the tokens, some of them 0 (weights 1), or all (2). */
static firn_tensor *token_weights(world *w, const test_case *c)
{
    const int kind = (int)arg_or(c, "weights", 0);

    if (kind == 0)
        return NULL;
    firn_tensor *weights = slot4(w, FIRN_F32, POSITIVE, 0, arg(c, "n"), 1, 1, 1);
    keep_fixed(w);
    float *v = last_bytes(w);
    for (int64_t i = 0; weights && i < arg(c, "n"); i += kind == 1 ? 3 : 1)
        v[i] = 0;
    return weights;
}

firn_tensor *build_router_balance(world *w, const test_case *c)
{
    const int64_t n_expert = arg(c, "n_expert");
    firn_tensor *probs = dense4(w, c, POSITIVE, n_expert, arg(c, "n"), 1, 1);
    firn_tensor *ids = laid_out(w, c, FIRN_I32, IDS, (double)n_expert, arg(c, "n_used"), arg(c, "n"), 1, 1);

    return firn_router_balance(w->g, probs, ids, token_weights(w, c));
}

firn_tensor *build_router_z(world *w, const test_case *c)
{
    firn_tensor *logits = dense4(w, c, UNIFORM, arg(c, "n_expert"), arg(c, "n"), 1, 1);

    return firn_router_z(w->g, logits, token_weights(w, c));
}

void router_cases(case_list *l, const family *f)
{
    static const int n_tokens[] = {1, 2, 17, 255, 256, 257};

    for (int i = 0; i < N_ROW_WIDTHS; i++)
        for (int weights = 0; weights < 2; weights++)
            add_case(l, f, FIRN_F32, "n_expert n_used n weights layout", 1 + row_widths[i], 1 + i % 4, 1 + 7 * (i % 3),
                     weights && i % 3, i % 3);
    for (int i = 0; i < 6; i++)
        add_case(l, f, FIRN_F32, "n_expert n_used n weights layout", 8, 2, n_tokens[i], i > 1, i % 3);
    add_case(l, f, FIRN_F32, "n_expert n_used n weights", 8, 2, 9, 2);
    add_case(l, f, FIRN_F32, "n_expert n_used n", 8, 2, 0);
}

void router_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n_expert n_used n", 128, 8, 4096);
}

static firn_tensor *values(world *w, const test_case *c)
{
    return slot4(w, FIRN_F32, UNIFORM, 0, arg(c, "n"), arg(c, "n1"), 1, 1);
}

static firn_tensor *build_adamw(world *w, const test_case *c)
{
    firn_tensor *p = values(w, c), *grad = values(w, c), *m = values(w, c);
    firn_tensor *v = slot4(w, FIRN_F32, POSITIVE, 0, arg(c, "n"), arg(c, "n1"), 1, 1);
    firn_tensor *hyper = slot4(w, FIRN_F32, UNIFORM, 0, 8, 1, 1, 1);
    const float h[] = {0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 1 / (1 - 0.729f), 1 / (1 - 0.970299f), 0.75f};

    if (hyper)
        memcpy(last_bytes(w), h, sizeof h);
    return firn_opt_step_adamw(w->g, p, grad, m, v, hyper);
}

static firn_tensor *build_sgd(world *w, const test_case *c)
{
    firn_tensor *p = values(w, c), *grad = values(w, c), *hyper = slot4(w, FIRN_F32, UNIFORM, 0, 3, 1, 1, 1);
    const float h[] = {0.05f, 0.1f, 0.75f};

    if (hyper)
        memcpy(last_bytes(w), h, sizeof h);
    return firn_opt_step_sgd(w->g, p, grad, hyper);
}

static firn_tensor *build_clip_norm(world *w, const test_case *c)
{
    firn_tensor *state = slot4(w, FIRN_F32, UNIFORM, 0, 7, 1, 1, 1), *x = values(w, c);

    return firn_clip_norm(w->g, state, x, (int)arg(c, "at"), (float)arg(c, "clip100") / 100);
}

/* A norm above its limit, without one, and below it. */
static void clip_norm_cases(case_list *l, const family *f)
{
    for (int i = 0; i < N_ROW_WIDTHS; i++)
        for (int k = 0; k < 3; k++)
            add_case(l, f, FIRN_F32, "n n1 at clip100", row_widths[i], 1 + i % 3, i % 5,
                     k == 0   ? 25
                     : k == 1 ? 0
                              : 99999999);
    add_case(l, f, FIRN_F32, "n n1 at clip100", 16384, 4, 4, 50);
    add_case(l, f, FIRN_F32, "n n1 at clip100", 16385, 3, 0, 50);
    add_case(l, f, FIRN_F32, "n n1 at clip100", 0, 1, 2, 50);
}

static void clip_norm_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1 at clip100", 4096, 1024, 0, 100);
}

static void step_cases(case_list *l, const family *f)
{
    const bool adamw = strcmp(f->op, "OPT_STEP_ADAMW") == 0;

    for (int i = 0; i < N_ROW_WIDTHS; i++)
        for (int look = 0; look < (adamw ? 3 : 1); look++)
            add_case(l, f, FIRN_F32, "n n1 look", row_widths[i], 1 + i % 3, look ? look + 1 : 0);
    add_case(l, f, FIRN_F32, "n n1 look", 4097, 3, adamw ? 2 : 0);
    add_case(l, f, FIRN_F32, "n n1 look", 0, 1, 0);
}

static void step_perf(case_list *l, const family *f)
{
    add_case(l, f, FIRN_F32, "n n1", 4096, 1024);
}

const family model_families[] = {
    {"RMS_NORM", build_rms_norm, ref_rms_norm, rms_norm_cases, row_perf, 1e-12, false, false},
    {"RMS_NORM_BACK", build_rms_norm_back, ref_rms_norm_back, rms_norm_cases, row_perf, 1e-12, false, false},
    {"NORM", build_norm, ref_norm, norm_cases, row_perf, 1e-12, false, false},
    {"L2_NORM", build_l2_norm, ref_l2_norm, l2_norm_cases, row_perf, 1e-12, false, false},
    {"SOFT_MAX", build_soft_max, ref_soft_max, soft_max_cases, row_perf, 1e-12, false, false},
    {"ROPE", build_rope, ref_rope, rope_cases, rope_perf, 1e-12, false, true},
    {"ROPE_BACK", build_rope_back, ref_rope_back, rope_cases, rope_perf, 1e-12, false, true},
    {"ATTENTION", build_attention, ref_attention, attention_cases, attention_perf, 1e-11, false, false},
    {"SWIGLU", build_swiglu, ref_gated, row_cases, row_perf, 1e-12, false, false},
    {"GEGLU", build_geglu, ref_gated, row_cases, row_perf, 1e-12, false, false},
    {"REGLU", build_reglu, ref_gated, row_cases, row_perf, 1e-12, false, false},
    {"SWIGLU_OAI", build_swiglu_oai, ref_gated, swiglu_oai_cases, row_perf, 1e-12, false, false},
    {"CROSS_ENTROPY", build_cross_entropy, ref_cross_entropy, cross_entropy_cases, cross_entropy_perf, 1e-12, false,
     false},
    {"ROUTER_BALANCE", build_router_balance, ref_router_balance, router_cases, router_perf, 1e-12, false, true},
    {"ROUTER_Z", build_router_z, ref_router_z, router_cases, router_perf, 1e-12, false, false},
    {"CLIP_NORM", build_clip_norm, ref_clip_norm, clip_norm_cases, clip_norm_perf, 1e-12, false, false},
    {"OPT_STEP_ADAMW", build_adamw, ref_adamw, step_cases, step_perf, 1e-12, false, false},
    {"OPT_STEP_SGD", build_sgd, ref_sgd, step_cases, step_perf, 1e-12, false, false},
    {0},
};
