/* What keeps a router from sending everything to a few experts, and its logits small. Each gives one number.
 *
 * ROUTER_BALANCE(probs, ids, weights) -> L = E sum over e of f_e P_e          (Fedus et al. 2021, equations 4 to 6)
 *     f_e = sum over the slots (s, t) with ids[s,t] = e of w_t, over n_used W    the part of the slots that e received
 *     P_e = sum over t of w_t probs[e,t], over W                                 its mean probability;  W = sum of w_t
 *     With n_used = 1 this is the Switch Transformer's loss; with more, f still sums to 1 (as in Megatron-LM), so that 1
 *     means even whatever n_used is. Hugging Face transformers lets f sum to n_used: n_used times this.
 * ROUTER_BALANCE_BACK(ids, dL, weights) -> dprobs; params: E [0, 2).
 *     dprobs[e,t] = dL E f_e w_t / W: f counts choices, which have no slope.
 *
 * ROUTER_Z(logits, weights) -> L = sum over t of w_t z_t^2, over W            (Zoph et al. 2022, equation 5)
 *     z_t = ln sum over e of e^logits[e,t]
 * ROUTER_Z_BACK(logits, dL, weights) -> dlogits
 *     dlogits[e,t] = dL 2 w_t z_t softmax_e,t / W
 *
 *   probs, logits  [E, n_tokens]       F32, rows dense
 *   ids            [n_used, n_tokens]  I32, any strides; one that names no expert is reported and counts for nobody
 *   weights        [n_tokens]          F32, any strides, optional: 0 for a token that does not count (padding)
 *   dL             [1]                 F32
 *
 * No token that counts: 0, and no gradient. Documents packed into one batch need no mask of their own, since a token's
 * route depends on nothing but the token. Sums in double. */
#include "op/mathf.h"
#include "op/util.h"

enum { PROBS, IDS, WEIGHTS };                          /* ROUTER_BALANCE */
enum { BIDS, DL, BWEIGHTS };                           /* ROUTER_BALANCE_BACK */
enum { LOGITS = 0, ZWEIGHTS = 1, ZDL = 1, ZBWEIGHTS }; /* ROUTER_Z, ROUTER_Z_BACK */
enum { PART = 64, TOKENS = 256 }; /* tokens of a part of the sums, and of an item of the gradients */

static firn_status expect_rows_of(firn_context *ctx, const firn_tensor *t, const char *what)
{
    FIRN_TRY(firn_expect_type(ctx, t, FIRN_F32, what));
    FIRN_TRY(firn_expect_rows(ctx, t, what));
    FIRN_EXPECT(ctx, t->ne[0] > 0 && t->ne[2] * t->ne[3] == 1, "%s must be [n_expert, n_tokens], not %s", what,
                firn_shape_text(t));
    return FIRN_OK;
}

static firn_status expect_ids(firn_context *ctx, const firn_tensor *ids)
{
    FIRN_TRY(firn_expect_type(ctx, ids, FIRN_I32, "ids"));
    FIRN_EXPECT(ctx, ids->ne[0] > 0 && ids->ne[2] * ids->ne[3] == 1, "ids must be [n_used, n_tokens], not %s",
                firn_shape_text(ids));
    return FIRN_OK;
}

static firn_status expect_weights(firn_context *ctx, const firn_tensor *w, int64_t n_tokens)
{
    if (!w)
        return FIRN_OK;
    FIRN_TRY(firn_expect_type(ctx, w, FIRN_F32, "the weights"));
    FIRN_EXPECT(ctx, w->ne[0] == n_tokens && firn_n_rows(w) == 1, "the weights must be [%lld], not %s", LL(n_tokens),
                firn_shape_text(w));
    return FIRN_OK;
}

static firn_status expect_slope(firn_context *ctx, const firn_tensor *dl)
{
    FIRN_TRY(firn_expect_type(ctx, dl, FIRN_F32, "dL"));
    FIRN_EXPECT(ctx, firn_n_elements(dl) == 1, "dL must be one number, not %s", firn_shape_text(dl));
    return FIRN_OK;
}

/* The weight of token t: source s, or 1 without one. */
static double weight_of(const firn_call *call, int s, int64_t t)
{
    const firn_tensor *w = call->node->src[s];

    return w ? (double)*(const float *)firn_at(w, call->src[s], t, 0, 0, 0) : 1;
}

static double weight_sum(const firn_call *call, int s, int64_t begin, int64_t end)
{
    double sum = 0;

    if (!call->node->src[s])
        return (double)(end - begin);
    for (int64_t t = begin; t < end; t++)
        sum += weight_of(call, s, t);
    return sum;
}

/* Weights of the slots of tokens [begin, end) by expert, not yet divided. */
static void count_slots(const firn_call *call, int s_ids, int s_weights, int64_t n_expert, int64_t begin, int64_t end,
                        double *f)
{
    const firn_tensor *ids = call->node->src[s_ids];

    memset(f, 0, (size_t)n_expert * sizeof *f);
    for (int64_t t = begin; t < end; t++) {
        const double w = weight_of(call, s_weights, t);
        for (int64_t s = 0; s < ids->ne[0]; s++) {
            const int32_t e = *(const int32_t *)firn_at(ids, call->src[s_ids], s, t, 0, 0);
            if (e >= 0 && e < n_expert)
                f[e] += w;
            else
                firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, s + t * ids->ne[0], e, n_expert);
        }
    }
}

/* The sum over parts of number i of `width` each. */
static double over_parts(const double *work, int64_t parts, int64_t width, int64_t i)
{
    double sum = 0;

    for (int64_t part = 0; part < parts; part++)
        sum += work[part * width + i];
    return sum;
}

static int64_t parts_of(int64_t n_tokens)
{
    return (n_tokens + PART - 1) / PART;
}

static int64_t blocks_of_tokens(const firn_tensor *y)
{
    return (y->ne[1] + TOKENS - 1) / TOKENS;
}

/* ---- ROUTER_BALANCE ---- */

static firn_status balance_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *probs = y->src[PROBS], *ids = y->src[IDS];

    FIRN_TRY(expect_rows_of(ctx, probs, "probs"));
    FIRN_TRY(expect_ids(ctx, ids));
    FIRN_EXPECT(ctx, ids->ne[1] == probs->ne[1], "ids of %s and probs of %s differ in tokens", firn_shape_text(ids),
                firn_shape_text(probs));
    FIRN_TRY(expect_weights(ctx, y->src[WEIGHTS], probs->ne[1]));
    return firn_shape_set(ctx, y, FIRN_F32, 1, (int64_t)1);
}

static int64_t balance_parts(const firn_tensor *y)
{
    return parts_of(y->src[PROBS]->ne[1]);
}

/* Of each part: W, then f [E] and P [E]. */
static size_t balance_work(const firn_tensor *y)
{
    return (size_t)balance_parts(y) * (1 + 2 * (size_t)y->src[PROBS]->ne[0]) * sizeof(double);
}

static firn_cost balance_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[PROBS]), slots = (double)firn_n_elements(y->src[IDS]);

    return (firn_cost){2 * n + slots, n * sizeof(float) + slots * sizeof(int32_t), sizeof(float)};
}

FIRN_WIDE static void balance_gather(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *probs = call->node->src[PROBS];
    const int64_t E = probs->ne[0];

    for (int64_t part = begin; part < end; part++) {
        const int64_t first = part * PART, last = firn_min_i64(first + PART, probs->ne[1]);
        double *sums = (double *)call->work + part * (1 + 2 * E), *restrict p = sums + 1 + E;
        sums[0] = weight_sum(call, WEIGHTS, first, last);
        count_slots(call, IDS, WEIGHTS, E, first, last, sums + 1);
        memset(p, 0, (size_t)E * sizeof *p);
        for (int64_t t = first; t < last; t++) {
            const float *restrict row = (const float *)firn_at(probs, call->src[PROBS], 0, t, 0, 0);
            const double w = weight_of(call, WEIGHTS, t);
            for (int64_t e = 0; w != 0 && e < E; e++)
                p[e] += w * (double)row[e];
        }
    }
}

static void balance_finish(const firn_call *call, int64_t begin, int64_t end)
{
    const int64_t E = call->node->src[PROBS]->ne[0], parts = balance_parts(call->node), width = 1 + 2 * E;
    double sum = 0;

    if (begin >= end)
        return;
    const double total = over_parts(call->work, parts, width, 0), used = (double)call->node->src[IDS]->ne[0];
    for (int64_t e = 0; e < E; e++)
        sum += over_parts(call->work, parts, width, 1 + e) * over_parts(call->work, parts, width, 1 + E + e);
    *(float *)call->dst = total > 0 ? (float)((double)E * sum / (used * total * total)) : 0.0f;
}

static void balance_reference(const firn_call *call, int64_t begin, int64_t end)
{
    balance_gather(call, 0, balance_parts(call->node));
    balance_finish(call, begin, end);
}

static firn_status balance_back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *ids = y->src[BIDS];
    const int64_t E = firn_param_get(&y->params, 0);

    FIRN_TRY(expect_ids(ctx, ids));
    FIRN_TRY(expect_slope(ctx, y->src[DL]));
    FIRN_TRY(expect_weights(ctx, y->src[BWEIGHTS], ids->ne[1]));
    FIRN_EXPECT(ctx, E > 0, "there must be experts, not %lld", LL(E));
    return firn_shape_set(ctx, y, FIRN_F32, 2, E, ids->ne[1]);
}

static firn_cost balance_back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y), slots = (double)firn_n_elements(y->src[BIDS]);

    return (firn_cost){n + slots, slots * sizeof(int32_t), n * sizeof(float)};
}

static int64_t balance_back_parts(const firn_tensor *y)
{
    return parts_of(y->ne[1]);
}

/* Of each part W and f [E], then f [E] of all parts for each item. */
static size_t balance_back_work(const firn_tensor *y)
{
    const size_t E = (size_t)y->ne[0];

    return ((size_t)balance_back_parts(y) * (1 + E) + (size_t)blocks_of_tokens(y) * E) * sizeof(double);
}

static void balance_back_gather(const firn_call *call, int64_t begin, int64_t end)
{
    const int64_t E = call->node->ne[0], n = call->node->ne[1];

    for (int64_t part = begin; part < end; part++) {
        const int64_t first = part * PART, last = firn_min_i64(first + PART, n);
        double *sums = (double *)call->work + part * (1 + E);
        sums[0] = weight_sum(call, BWEIGHTS, first, last);
        count_slots(call, BIDS, BWEIGHTS, E, first, last, sums + 1);
    }
}

FIRN_WIDE static void balance_back_finish(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node;
    const int64_t E = y->ne[0], n = y->ne[1], parts = balance_back_parts(y), width = 1 + E;
    const double total = over_parts(call->work, parts, width, 0), used = (double)y->src[BIDS]->ne[0];
    const double dl = (double)*(const float *)call->src[DL];

    for (int64_t item = begin; item < end; item++) {
        double *restrict f = (double *)call->work + parts * width + item * E;
        for (int64_t e = 0; e < E; e++)
            f[e] = over_parts(call->work, parts, width, 1 + e);
        for (int64_t t = item * TOKENS; t < firn_min_i64((item + 1) * TOKENS, n); t++) {
            float *restrict out = (float *)call->dst + t * E;
            const double w = weight_of(call, BWEIGHTS, t);
            const double factor = total > 0 ? dl * (double)E * w / (used * total * total) : 0;
            for (int64_t e = 0; e < E; e++)
                out[e] = (float)(factor * f[e]);
        }
    }
}

static void balance_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    balance_back_gather(call, 0, balance_back_parts(call->node));
    balance_back_finish(call, begin, end);
}

const firn_op firn_op_router_balance_back = {
    .name = "ROUTER_BALANCE_BACK",
    .n_src = 2,
    .n_optional = 1,
    .shape = balance_back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = balance_back_cost,
    .items = blocks_of_tokens,
    .work = balance_back_work,
    .reference = balance_back_reference,
    .parts = balance_back_parts,
    .gather = balance_back_gather,
    .finish = balance_back_finish,
};

static firn_tensor *balance_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *src[] = {y->src[IDS], dy, y->src[WEIGHTS]};
    firn_params p = {{0}};

    if (of != PROBS)
        return NULL;
    firn_param_put(&p, 0, y->src[PROBS]->ne[0]);
    return firn_node(g, &firn_op_router_balance_back, src, 3, &p);
}

const firn_op firn_op_router_balance = {
    .name = "ROUTER_BALANCE",
    .n_src = 2,
    .n_optional = 1,
    .shape = balance_shape,
    .gradient = balance_gradient,
    .cost = balance_cost,
    .work = balance_work,
    .reference = balance_reference,
    .parts = balance_parts,
    .gather = balance_gather,
    .finish = balance_finish,
};

firn_tensor *firn_router_balance(firn_graph *g, firn_tensor *probs, firn_tensor *ids, firn_tensor *weights)
{
    return firn_node(g, &firn_op_router_balance, (firn_tensor *[]){probs, ids, weights}, 3, NULL);
}

/* ---- ROUTER_Z ---- */

static firn_status z_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_rows_of(ctx, y->src[LOGITS], "logits"));
    FIRN_TRY(expect_weights(ctx, y->src[ZWEIGHTS], y->src[LOGITS]->ne[1]));
    return firn_shape_set(ctx, y, FIRN_F32, 1, (int64_t)1);
}

static firn_cost z_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y->src[LOGITS]);

    return (firn_cost){3 * n, n * sizeof(float), sizeof(float)};
}

/* z of a row, in double, since z may be near 0; `sum` becomes the sum of e^(x - top). */
FIRN_INLINE double log_sum_exp(const float *x, int64_t n, float *top, double *sum)
{
    *top = firn_max_of(x, n);
    *sum = firn_sum_exp_double(x, n, *top);
    return (double)*top + log(*sum);
}

static int64_t z_parts(const firn_tensor *y)
{
    return parts_of(y->src[LOGITS]->ne[1]);
}

/* Of each part: W, and the weighted sum of squares. */
static size_t z_work(const firn_tensor *y)
{
    return 2 * (size_t)z_parts(y) * sizeof(double);
}

FIRN_WIDE static void z_gather(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *logits = call->node->src[LOGITS];

    for (int64_t part = begin; part < end; part++) {
        const int64_t first = part * PART, last = firn_min_i64(first + PART, logits->ne[1]);
        double *sums = (double *)call->work + 2 * part, loss = 0, sum;
        float top;
        for (int64_t t = first; t < last; t++) {
            const double w = weight_of(call, ZWEIGHTS, t);
            if (w == 0)
                continue;
            const double z =
                log_sum_exp((const float *)firn_at(logits, call->src[LOGITS], 0, t, 0, 0), logits->ne[0], &top, &sum);
            loss += w * z * z;
        }
        sums[0] = weight_sum(call, ZWEIGHTS, first, last);
        sums[1] = loss;
    }
}

static void z_finish(const firn_call *call, int64_t begin, int64_t end)
{
    const int64_t parts = z_parts(call->node);

    if (begin >= end)
        return;
    const double total = over_parts(call->work, parts, 2, 0), loss = over_parts(call->work, parts, 2, 1);
    *(float *)call->dst = total > 0 ? (float)(loss / total) : 0.0f;
}

static void z_reference(const firn_call *call, int64_t begin, int64_t end)
{
    z_gather(call, 0, z_parts(call->node));
    z_finish(call, begin, end);
}

static firn_status z_back_shape(firn_context *ctx, firn_tensor *y)
{
    FIRN_TRY(expect_rows_of(ctx, y->src[LOGITS], "logits"));
    FIRN_TRY(expect_slope(ctx, y->src[ZDL]));
    FIRN_TRY(expect_weights(ctx, y->src[ZBWEIGHTS], y->src[LOGITS]->ne[1]));
    return firn_shape_like(ctx, y, FIRN_F32, y->src[LOGITS]->ne);
}

static firn_cost z_back_cost(const firn_tensor *y)
{
    const double n = (double)firn_n_elements(y);

    return (firn_cost){5 * n, n * sizeof(float), n * sizeof(float)};
}

FIRN_WIDE static void z_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    const firn_tensor *y = call->node, *logits = y->src[LOGITS];
    const int64_t E = y->ne[0], n = y->ne[1];

    if (begin >= end)
        return;
    const double total = weight_sum(call, ZBWEIGHTS, 0, n), dl = (double)*(const float *)call->src[ZDL];
    for (int64_t t = begin * TOKENS; t < firn_min_i64(end * TOKENS, n); t++) {
        const float *x = (const float *)firn_at(logits, call->src[LOGITS], 0, t, 0, 0);
        float *out = (float *)call->dst + t * E, top;
        const double w = weight_of(call, ZBWEIGHTS, t);
        double sum;
        if (w == 0 || !(total > 0)) {
            memset(out, 0, (size_t)E * sizeof *out);
            continue;
        }
        const double z = log_sum_exp(x, E, &top, &sum), factor = dl * 2 * w * z / (total * sum);
        for (int64_t e = 0; e < E; e++)
            out[e] = (float)(factor * (double)firn_expf(x[e] - top));
    }
}

const firn_op firn_op_router_z_back = {
    .name = "ROUTER_Z_BACK",
    .n_src = 2,
    .n_optional = 1,
    .shape = z_back_shape,
    .no_gradient = "a gradient is not differentiated again",
    .cost = z_back_cost,
    .items = blocks_of_tokens,
    .reference = z_back_reference,
};

static firn_tensor *z_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    firn_tensor *src[] = {y->src[LOGITS], dy, y->src[ZWEIGHTS]};

    return of == LOGITS ? firn_node(g, &firn_op_router_z_back, src, 3, NULL) : NULL;
}

const firn_op firn_op_router_z = {
    .name = "ROUTER_Z",
    .n_src = 1,
    .n_optional = 1,
    .shape = z_shape,
    .gradient = z_gradient,
    .cost = z_cost,
    .work = z_work,
    .reference = z_reference,
    .parts = z_parts,
    .gather = z_gather,
    .finish = z_finish,
};

firn_tensor *firn_router_z(firn_graph *g, firn_tensor *logits, firn_tensor *weights)
{
    return firn_node(g, &firn_op_router_z, (firn_tensor *[]){logits, weights}, 2, NULL);
}
