/* What carries a state along the tokens instead of keys: GATED_DELTA (gated delta nets, Yang et al. 2024, with a decay
 * per head or, as in Kimi Linear, per key channel) and SSM_SCAN (Mamba 2, Dao and Gu 2024).
 *
 *   q, k   [s, G, n]       F32, rows dense      SSM_SCAN: C and B
 *   v      [dv, H, n]      F32, rows dense      SSM_SCAN: x, not yet times its step
 *   g      [1 or s, H, n]  F32, contiguous      the logarithm of the decay, at most 0
 *   beta   [1, H, n]       F32, contiguous      SSM_SCAN: the step
 *   first  [n]             I32, at most the token's own number: where its document begins. At a document's first token
 *                          the state is 0; negative: the document began before this pass
 *   state  [s, dv, H]      F32, contiguous, optional: what token 0 finds where first[0] is negative; else that is 0
 *
 * Head h reads key head h / (H/G), or h mod G where params.i[0]. Its state S is [s, dv]:
 *     S' = diag(e^g) S;  u = beta (v - S'^T k), SSM_SCAN: u = beta v;  S = S' + k u^T;  o = S^T q
 * The result is flat: o [dv, H, n], then the last S [s, dv, H].
 *
 * The backward, given do: lam = dL/dS from later tokens, e = v - S'^T k, and backwards
 *     Lam = lam + q do^T;  dq = S do;  du = Lam^T k;  de = beta du;  dbeta = du . e;  dv = de;  dk = Lam u - S' de;
 *     dS' = Lam - k de^T;  dg = sum over values (and channels, where it is one per head) of S' dS';  lam = e^g dS'
 * SSM_SCAN: e = v, no S' de in dk, dS' = Lam. Its flat result is dq | dk | dv | dg | dbeta. No division by a decay and
 * no exponential of anything above 0, so that decays near 0 and 1 are both fine. The state has no gradient: it is for
 * generating.
 *
 * Columns of a state do not mix, so that VALUES of them at a time run along all tokens from fast memory, one token
 * after the other: the bits do not depend on how tokens are fed. The backward keeps the state before every CHUNK-th
 * token and builds those between again. */
#include "op/scan.h"
#include "op/mathf.h"
#include "op/util.h"

enum {
    SQ = FIRN_SCAN_Q,
    SK = FIRN_SCAN_K,
    SV = FIRN_SCAN_V,
    SG = FIRN_SCAN_G,
    SBETA = FIRN_SCAN_BETA,
    SFIRST = FIRN_SCAN_FIRST,
    SSTATE = FIRN_SCAN_STATE,
    SDO = FIRN_SCAN_DO
};
enum { VALUES = 32, CHUNK = 32, MOST_KEYS = 1024 };

firn_scan firn_scan_of(const firn_call *call, bool delta, bool back)
{
    const firn_tensor *y = call->node, *q = y->src[SQ], *k = y->src[SK], *v = y->src[SV];
    const int64_t size = sizeof(float);

    return (firn_scan){
        .call = call,
        .q = call->src[SQ],
        .k = call->src[SK],
        .v = call->src[SV],
        .g = call->src[SG],
        .beta = call->src[SBETA],
        .state = back ? NULL : call->src[SSTATE],
        .first = call->src[SFIRST],
        .s = q->ne[0],
        .dv = v->ne[0],
        .n_head = v->ne[1],
        .n_group = q->ne[1],
        .n = q->ne[2],
        .q1 = q->nb[1] / size,
        .q2 = q->nb[2] / size,
        .k1 = k->nb[1] / size,
        .k2 = k->nb[2] / size,
        .v1 = v->nb[1] / size,
        .v2 = v->nb[2] / size,
        .tiled = y->params.i[0],
        .channels = y->src[SG]->ne[0] > 1,
        .delta = delta,
    };
}

static firn_status expect_inputs(firn_context *ctx, const firn_tensor *y)
{
    const firn_tensor *q = y->src[SQ], *k = y->src[SK], *v = y->src[SV], *g = y->src[SG], *beta = y->src[SBETA],
                      *first = y->src[SFIRST];
    static const char *const names[] = {"q", "k", "v", "g", "beta"};

    for (int i = 0; i < 5; i++) {
        FIRN_TRY(firn_expect_type(ctx, y->src[i], FIRN_F32, names[i]));
        FIRN_TRY(firn_expect_rows(ctx, y->src[i], names[i]));
    }
    FIRN_TRY(firn_expect_type(ctx, first, FIRN_I32, "first"));
    const int64_t n = q->ne[2], H = v->ne[1];
    FIRN_EXPECT(ctx, q->ne[3] == 1 && v->ne[3] == 1 && memcmp(q->ne, k->ne, sizeof q->ne) == 0 && v->ne[2] == n,
                "q of %s, k of %s and v of %s do not fit", firn_shape_text(q), firn_shape_text(k), firn_shape_text(v));
    FIRN_EXPECT(ctx, q->ne[0] >= 1 && q->ne[0] <= MOST_KEYS && v->ne[0] >= 1 && q->ne[1] >= 1 && H % q->ne[1] == 0,
                "keys of %lld values (1 to %d) in %lld heads, values of %lld in %lld are not possible", LL(q->ne[0]),
                MOST_KEYS, LL(q->ne[1]), LL(v->ne[0]), LL(H));
    FIRN_EXPECT(ctx,
                firn_is_contiguous(g) && (g->ne[0] == 1 || g->ne[0] == q->ne[0]) && g->ne[1] == H && g->ne[2] == n &&
                    g->ne[3] == 1,
                "g must be [1 or %lld, %lld, %lld], contiguous, not %s", LL(q->ne[0]), LL(H), LL(n),
                firn_shape_text(g));
    FIRN_EXPECT(
        ctx, firn_is_contiguous(beta) && beta->ne[0] == 1 && beta->ne[1] == H && beta->ne[2] == n && beta->ne[3] == 1,
        "beta must be [1, %lld, %lld], contiguous, not %s", LL(H), LL(n), firn_shape_text(beta));
    FIRN_EXPECT(ctx, firn_is_contiguous(first) && first->ne[0] == n && firn_n_rows(first) <= 1,
                "first must be [%lld], not %s", LL(n), firn_shape_text(first));
    return FIRN_OK;
}

void firn_scan_check(const firn_scan *c)
{
    for (int64_t t = 0; t < c->n; t++)
        if (c->first[t] > t)
            firn_fault_set(c->call->fault, FIRN_FAULT_ID_RANGE, c->call->node, t, c->first[t], t + 1);
}

/* e^g of head h at token t, for each of s channels. */
FIRN_INLINE void decays(const firn_scan *c, int64_t h, int64_t t, float *restrict e)
{
    const float *g = c->g + (c->channels ? c->s : 1) * (h + c->n_head * t);

    if (c->channels) {
        for (int64_t i = 0; i < c->s; i++)
            e[i] = firn_expf(g[i]);
        return;
    }
    const float one = firn_expf(g[0]);
    for (int64_t i = 0; i < c->s; i++)
        e[i] = one;
}

/* ---- forward ---- */

/* One token of nv <= VALUES columns: S [s][VALUES] becomes its S. u and the v - S'^T k that it comes from; o NULL: not
 * wanted. */
FIRN_INLINE void step(const firn_scan *c, int64_t h, int64_t t, int64_t v0, int64_t nv, bool fresh,
                      const float *restrict e, float *restrict S, float *restrict u, float *restrict error,
                      float *restrict o)
{
    const int64_t group = firn_scan_group(c, h);
    const float *restrict q = c->q + group * c->q1 + t * c->q2, *restrict k = c->k + group * c->k1 + t * c->k2;
    const float *restrict v = c->v + h * c->v1 + t * c->v2 + v0;
    const float beta = c->beta[h + c->n_head * t];
    float r[VALUES] = {0}, sum[VALUES] = {0};

    if (fresh) {
        memset(S, 0, (size_t)(c->s * VALUES) * sizeof *S);
    } else if (c->delta) {
        for (int64_t i = 0; i < c->s; i++)
            for (int j = 0; j < VALUES; j++) {
                S[i * VALUES + j] *= e[i];
                r[j] += k[i] * S[i * VALUES + j];
            }
    } else {
        for (int64_t i = 0; i < c->s; i++)
            for (int j = 0; j < VALUES; j++)
                S[i * VALUES + j] *= e[i];
    }
    for (int j = 0; j < VALUES; j++) {
        error[j] = j < nv ? v[j] - r[j] : 0;
        u[j] = beta * error[j];
    }
    for (int64_t i = 0; i < c->s; i++)
        for (int j = 0; j < VALUES; j++) {
            S[i * VALUES + j] += k[i] * u[j];
            sum[j] += q[i] * S[i * VALUES + j];
        }
    if (o)
        memcpy(o, sum, (size_t)nv * sizeof *o);
}

static int64_t value_blocks(int64_t dv)
{
    return (dv + VALUES - 1) / VALUES;
}

static int64_t items(const firn_tensor *y)
{
    const firn_tensor *v = y->src[SV];

    return v->ne[1] * value_blocks(v->ne[0]);
}

/* S [s][VALUES], decays [s], u, error. */
static size_t work(const firn_tensor *y)
{
    return (size_t)(y->src[SQ]->ne[0] * (VALUES + 1) + 2 * VALUES) * sizeof(float);
}

FIRN_INLINE void forward(const firn_call *call, int64_t begin, int64_t end, bool delta)
{
    const firn_scan c = firn_scan_of(call, delta, false);
    const int64_t n_blocks = value_blocks(c.dv), n_values = c.dv * c.n_head * c.n;
    float *S = call->work, *e = S + c.s * VALUES, *u = e + c.s, *error = u + VALUES;

    for (int64_t item = begin; item < end; item++) {
        const int64_t h = item / n_blocks, v0 = item % n_blocks * VALUES, nv = firn_min_i64(VALUES, c.dv - v0);
        float *o = (float *)call->dst + h * c.dv + v0, *last = (float *)call->dst + n_values + h * c.s * c.dv;
        if (item == 0)
            firn_scan_check(&c);
        memset(S, 0, (size_t)(c.s * VALUES) * sizeof *S);
        for (int64_t i = 0; c.state && i < c.s; i++)
            for (int64_t j = 0; j < nv; j++)
                S[i * VALUES + j] = c.state[i + c.s * (v0 + j + c.dv * h)];
        for (int64_t t = 0; t < c.n; t++) {
            decays(&c, h, t, e);
            step(&c, h, t, v0, nv, firn_scan_begins(&c, t), e, S, u, error, o + t * c.dv * c.n_head);
        }
        for (int64_t i = 0; i < c.s; i++)
            for (int64_t j = 0; j < nv; j++)
                last[i + c.s * (v0 + j)] = S[i * VALUES + j];
    }
}

FIRN_WIDE static void gated_delta_reference(const firn_call *call, int64_t begin, int64_t end)
{
    forward(call, begin, end, true);
}

FIRN_WIDE static void ssm_scan_reference(const firn_call *call, int64_t begin, int64_t end)
{
    forward(call, begin, end, false);
}

static firn_status shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *q = y->src[SQ], *v = y->src[SV], *state = y->src[SSTATE];

    FIRN_TRY(expect_inputs(ctx, y));
    if (state) {
        FIRN_TRY(firn_expect_type(ctx, state, FIRN_F32, "state"));
        FIRN_EXPECT(ctx,
                    firn_is_contiguous(state) && state->ne[0] == q->ne[0] && state->ne[1] == v->ne[0] &&
                        state->ne[2] == v->ne[1] && state->ne[3] == 1,
                    "state must be [%lld, %lld, %lld], contiguous, not %s", LL(q->ne[0]), LL(v->ne[0]), LL(v->ne[1]),
                    firn_shape_text(state));
    }
    return firn_shape_set(ctx, y, FIRN_F32, 1, firn_n_elements(v) + q->ne[0] * v->ne[0] * v->ne[1]);
}

/* Operations on one state per token, each a multiplication or addition of its elements. */
static firn_cost cost_of(const firn_tensor *y, double per_element)
{
    const firn_tensor *q = y->src[SQ], *v = y->src[SV];
    double bytes = 0;

    for (int i = 0; i < FIRN_MAX_SRC && y->src[i]; i++)
        bytes += (double)firn_n_bytes(y->src[i]);
    return (firn_cost){
        .flops = per_element * (double)q->ne[0] * (double)firn_n_elements(v),
        .bytes_read = bytes,
        .bytes_written = (double)firn_n_bytes(y),
    };
}

static firn_cost gated_delta_cost(const firn_tensor *y)
{
    return cost_of(y, 7);
}

static firn_cost ssm_scan_cost(const firn_tensor *y)
{
    return cost_of(y, 5);
}

/* ---- backward ---- */

firn_scan_gradients firn_scan_gradients_of(const firn_tensor *y)
{
    firn_scan_gradients l = {0};

    l.dk = firn_n_elements(y->src[SQ]);
    l.dv = l.dk + firn_n_elements(y->src[SK]);
    l.dg = l.dv + firn_n_elements(y->src[SV]);
    l.dbeta = l.dg + firn_n_elements(y->src[SG]);
    l.end = l.dbeta + firn_n_elements(y->src[SBETA]);
    return l;
}

static firn_status back_shape(firn_context *ctx, firn_tensor *y)
{
    const firn_tensor *v = y->src[SV], *dy = y->src[SDO];

    FIRN_TRY(expect_inputs(ctx, y));
    FIRN_TRY(firn_expect_type(ctx, dy, FIRN_F32, "do"));
    FIRN_EXPECT(ctx, firn_is_contiguous(dy) && firn_n_elements(dy) >= firn_n_elements(v),
                "do of %s does not fit v of %s", firn_shape_text(dy), firn_shape_text(v));
    return firn_shape_set(ctx, y, FIRN_F32, 1, firn_scan_gradients_of(y).end);
}

static int64_t back_items(const firn_tensor *y)
{
    return y->src[SQ]->ne[1];
}

/* Where a thread's scratch of the backward has what. States lie value by value here, [VALUES][s]. */
typedef struct {
    float *S, *lam, *e, *du; /* S [s][VALUES] of the forward; lam; decays; dk and dg of a token, [s] each, dq too */
    float *kept;             /* [chunks][VALUES][s] states before each chunk */
    float *within;           /* [CHUNK][VALUES][s] states before each token of one */
    float *u, *error;        /* [n][VALUES] */
} scratch;

static size_t back_work(const firn_tensor *y)
{
    const int64_t s = y->src[SQ]->ne[0], n = y->src[SQ]->ne[2], state = s * VALUES;

    return (size_t)(2 * state + 4 * s + ((n + CHUNK - 1) / CHUNK + CHUNK) * state + 2 * n * VALUES) * sizeof(float);
}

static scratch scratch_of(const firn_scan *c, void *memory)
{
    const int64_t state = c->s * VALUES;
    scratch w = {.S = memory};

    w.lam = w.S + state;
    w.e = w.lam + state;
    w.du = w.e + c->s;
    w.kept = w.du + 3 * c->s;
    w.within = w.kept + (c->n + CHUNK - 1) / CHUNK * state;
    w.u = w.within + CHUNK * state;
    w.error = w.u + c->n * VALUES;
    return w;
}

/* The states before each chunk, and u and errors of all tokens. */
FIRN_INLINE void remember(const firn_scan *c, const scratch *w, int64_t h, int64_t v0, int64_t nv)
{
    memset(w->S, 0, (size_t)(c->s * VALUES) * sizeof(float));
    for (int64_t t = 0; t < c->n; t++) {
        if (t % CHUNK == 0)
            for (int64_t j = 0; j < VALUES; j++)
                for (int64_t i = 0; i < c->s; i++)
                    w->kept[(t / CHUNK * VALUES + j) * c->s + i] = w->S[i * VALUES + j];
        decays(c, h, t, w->e);
        step(c, h, t, v0, nv, firn_scan_begins(c, t), w->e, w->S, w->u + t * VALUES, w->error + t * VALUES, NULL);
    }
}

/* The sum of a b over i < n, in lanes of a fixed number. */
FIRN_INLINE float product_of(const float *restrict a, const float *restrict b, int64_t n)
{
    enum { LANES = 16 };
    float lanes[LANES] = {0};
    const int64_t whole = n - n % LANES;

    for (int64_t i = 0; i < whole; i += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] += a[i + l] * b[i + l];
    for (int64_t i = whole; i < n; i++)
        lanes[i % LANES] += a[i] * b[i];
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++)
            lanes[l] += lanes[l + step];
    return lanes[0];
}

/* The states before tokens [t0, t1) of a chunk, from the one before it. */
FIRN_INLINE void rebuild(const firn_scan *c, const scratch *w, int64_t h, int64_t t0, int64_t t1)
{
    const int64_t state = c->s * VALUES, group = firn_scan_group(c, h);

    memcpy(w->within, w->kept + t0 / CHUNK * state, (size_t)state * sizeof(float));
    for (int64_t t = t0; t + 1 < t1; t++) {
        const float *restrict k = c->k + group * c->k1 + t * c->k2, *restrict u = w->u + t * VALUES;
        const float *restrict before = w->within + (t - t0) * state;
        float *restrict after = w->within + (t + 1 - t0) * state;
        const bool fresh = firn_scan_begins(c, t);
        decays(c, h, t, w->e);
        for (int64_t j = 0; j < VALUES; j++)
            for (int64_t i = 0; i < c->s; i++)
                after[j * c->s + i] = (fresh ? 0 : w->e[i] * before[j * c->s + i]) + k[i] * u[j];
    }
}

/* Token t of nv columns: adds to dq, dk [s], dg [s] and dbeta, gives dv [nv], and brings lam to the token before. */
FIRN_INLINE void step_back(const firn_scan *c, const scratch *w, int64_t h, int64_t t, int64_t nv, const float *before,
                           const float *restrict dy, float *restrict dv, float *dbeta)
{
    const int64_t group = firn_scan_group(c, h), s = c->s;
    const float *restrict q = c->q + group * c->q1 + t * c->q2, *restrict k = c->k + group * c->k1 + t * c->k2;
    const float *u = w->u + t * VALUES, *error = w->error + t * VALUES, *restrict e = w->e;
    float *restrict dq = w->du, *restrict dk = dq + s, *restrict dg = dk + s;
    const float beta = c->beta[h + c->n_head * t];
    const bool fresh = firn_scan_begins(c, t);

    for (int64_t j = 0; j < nv; j++) {
        float *restrict lam = w->lam + j * s;
        const float *restrict S = before + j * s;
        for (int64_t i = 0; i < s; i++)
            lam[i] += q[i] * dy[j];
        const float du = product_of(lam, k, s), de = beta * du, uj = u[j], dyj = dy[j];
        *dbeta += du * error[j];
        dv[j] = de;
        if (fresh) { /* S' is 0, and nothing goes on to the token before */
            for (int64_t i = 0; i < s; i++) {
                dq[i] += k[i] * uj * dyj;
                dk[i] += lam[i] * uj;
                lam[i] = 0;
            }
        } else if (c->delta) {
            for (int64_t i = 0; i < s; i++) {
                const float decayed = e[i] * S[i], d = lam[i] - k[i] * de;
                dq[i] += (decayed + k[i] * uj) * dyj;
                dk[i] += lam[i] * uj - decayed * de;
                dg[i] += decayed * d;
                lam[i] = e[i] * d;
            }
        } else {
            for (int64_t i = 0; i < s; i++) {
                const float decayed = e[i] * S[i];
                dq[i] += (decayed + k[i] * uj) * dyj;
                dk[i] += lam[i] * uj;
                dg[i] += decayed * lam[i];
                lam[i] *= e[i];
            }
        }
    }
}

FIRN_INLINE void add_to(float *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* VALUES columns of head h, whose gradients of q, k, g, beta are added to what is there. */
FIRN_INLINE void columns_back(const firn_scan *c, const scratch *w, const firn_scan_gradients *l, int64_t h, int64_t v0,
                              float *out)
{
    const int64_t nv = firn_min_i64(VALUES, c->dv - v0), group = firn_scan_group(c, h), s = c->s;
    const float *dy = (const float *)c->call->src[SDO] + h * c->dv + v0;

    remember(c, w, h, v0, nv);
    memset(w->lam, 0, (size_t)(s * VALUES) * sizeof(float));
    for (int64_t t1 = c->n; t1 > 0;) {
        const int64_t t0 = (t1 - 1) / CHUNK * CHUNK;
        rebuild(c, w, h, t0, t1);
        for (int64_t t = t1 - 1; t >= t0; t--) {
            const int64_t at = h + c->n_head * t, row = group + c->n_group * t;
            memset(w->du, 0, (size_t)(3 * s) * sizeof(float));
            decays(c, h, t, w->e);
            step_back(c, w, h, t, nv, w->within + (t - t0) * s * VALUES, dy + t * c->dv * c->n_head,
                      out + l->dv + c->dv * at + v0, out + l->dbeta + at);
            add_to(out + l->dq + s * row, w->du, s);
            add_to(out + l->dk + s * row, w->du + s, s);
            if (c->channels)
                add_to(out + l->dg + s * at, w->du + 2 * s, s);
            else
                out[l->dg + at] += (float)firn_sum_of(w->du + 2 * s, s);
        }
        t1 = t0;
    }
}

/* An item is a key head with all heads that read it. */
FIRN_INLINE void backward(const firn_call *call, int64_t begin, int64_t end, bool delta)
{
    const firn_scan c = firn_scan_of(call, delta, true);
    const scratch w = scratch_of(&c, call->work);
    const firn_scan_gradients l = firn_scan_gradients_of(call->node);
    const int64_t width = c.channels ? c.s : 1;
    float *out = call->dst;

    for (int64_t group = begin; group < end; group++) {
        if (group == 0)
            firn_scan_check(&c);
        for (int64_t t = 0; t < c.n; t++) {
            memset(out + l.dq + c.s * (group + c.n_group * t), 0, (size_t)c.s * sizeof *out);
            memset(out + l.dk + c.s * (group + c.n_group * t), 0, (size_t)c.s * sizeof *out);
        }
        for (int64_t h = 0; h < c.n_head; h++) {
            if (firn_scan_group(&c, h) != group)
                continue;
            for (int64_t t = 0; t < c.n; t++) {
                memset(out + l.dg + width * (h + c.n_head * t), 0, (size_t)width * sizeof *out);
                out[l.dbeta + h + c.n_head * t] = 0;
            }
            for (int64_t v0 = 0; v0 < c.dv; v0 += VALUES)
                columns_back(&c, &w, &l, h, v0, out);
        }
    }
}

FIRN_WIDE static void gated_delta_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    backward(call, begin, end, true);
}

FIRN_WIDE static void ssm_scan_back_reference(const firn_call *call, int64_t begin, int64_t end)
{
    backward(call, begin, end, false);
}

static firn_cost gated_delta_back_cost(const firn_tensor *y)
{
    return cost_of(y, 22);
}

static firn_cost ssm_scan_back_cost(const firn_tensor *y)
{
    return cost_of(y, 18);
}

/* dy of the part o, contiguous; see attention.c. */
static firn_tensor *dy_of(firn_graph *g, const firn_tensor *node, firn_tensor *dy)
{
    if (dy->op == &firn_op_view_back && firn_n_elements(dy->src[0]) == firn_n_elements(node->src[SV]))
        dy = dy->src[0];
    return firn_is_contiguous(dy) ? dy : firn_node_once(g, &firn_op_cont, &dy, 1, NULL);
}

static firn_tensor *gradient_by(firn_graph *g, const firn_op *back, firn_tensor *y, firn_tensor *dy, int of)
{
    if (of == SFIRST || of == SSTATE)
        return NULL;
    if (y->src[SSTATE])
        return firn_graph_fail(g, FIRN_ERR_UNSUPPORTED,
                               "%s with a state from before has no gradient: it is for generating", y->op->name);
    firn_tensor *src[] = {y->src[SQ],    y->src[SK],     y->src[SV],     y->src[SG],
                          y->src[SBETA], y->src[SFIRST], dy_of(g, y, dy)};
    firn_tensor *all = firn_node_once(g, back, src, 7, &y->params);
    const firn_scan_gradients l = firn_scan_gradients_of(y);
    const int64_t at[] = {l.dq, l.dk, l.dv, l.dg, l.dbeta};
    return firn_slice(g, all, at[of], y->src[of]->ne);
}

static firn_tensor *gated_delta_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return gradient_by(g, &firn_op_gated_delta_back, y, dy, of);
}

static firn_tensor *ssm_scan_gradient(firn_graph *g, firn_tensor *y, firn_tensor *dy, int of)
{
    return gradient_by(g, &firn_op_ssm_scan_back, y, dy, of);
}

#define OPERATION(NAME, name_)                                                                                         \
    const firn_op firn_op_##name_ = {                                                                                  \
        .name = NAME,                                                                                                  \
        .n_src = 6,                                                                                                    \
        .n_optional = 1,                                                                                               \
        .shape = shape,                                                                                                \
        .gradient = name_##_gradient,                                                                                  \
        .cost = name_##_cost,                                                                                          \
        .items = items,                                                                                                \
        .work = work,                                                                                                  \
        .reference = name_##_reference,                                                                                \
    };                                                                                                                 \
    const firn_op firn_op_##name_##_back = {                                                                           \
        .name = NAME "_BACK",                                                                                          \
        .n_src = 7,                                                                                                    \
        .shape = back_shape,                                                                                           \
        .no_gradient = "a gradient is not differentiated again",                                                       \
        .cost = name_##_back_cost,                                                                                     \
        .items = back_items,                                                                                           \
        .work = back_work,                                                                                             \
        .reference = name_##_back_reference,                                                                           \
    };

OPERATION("GATED_DELTA", gated_delta)
OPERATION("SSM_SCAN", ssm_scan)

static firn_tensor *scanned(firn_graph *g, const firn_op *op, firn_tensor *const *src, bool tiled,
                            firn_tensor **last_state)
{
    firn_tensor *flat = firn_node(g, op, src, 7, &(firn_params){.i = {tiled}});

    if (last_state)
        *last_state = NULL;
    if (!flat)
        return NULL;
    const firn_tensor *q = src[SQ], *v = src[SV];
    if (last_state)
        *last_state = firn_slice(g, flat, firn_n_elements(v), (int64_t[]){q->ne[0], v->ne[0], v->ne[1], 1});
    return firn_slice(g, flat, 0, v->ne);
}

firn_tensor *firn_gated_delta(firn_graph *g, firn_tensor *q, firn_tensor *k, firn_tensor *v, firn_tensor *decay,
                              firn_tensor *beta, firn_tensor *first, firn_tensor *state, bool tiled,
                              firn_tensor **last_state)
{
    return scanned(g, &firn_op_gated_delta, (firn_tensor *[]){q, k, v, decay, beta, first, state}, tiled, last_state);
}

firn_tensor *firn_ssm_scan(firn_graph *g, firn_tensor *c, firn_tensor *b, firn_tensor *x, firn_tensor *decay,
                           firn_tensor *step, firn_tensor *first, firn_tensor *state, bool tiled,
                           firn_tensor **last_state)
{
    return scanned(g, &firn_op_ssm_scan, (firn_tensor *[]){c, b, x, decay, step, first, state}, tiled, last_state);
}
