/* GATED_DELTA and SSM_SCAN (op/scan.c has the formulas and the names), one token after the other, for AVX2 and AVX-512:
 * on a CPU the recurrence takes fewer operations than its chunked form, and as good as all of them are multiply-adds on
 * a block of the state that stays in the first-level cache. What is beside them is spared:
 *
 * rows      of one head lie pages apart. CHUNK tokens' are brought together, and all blocks of columns work on them.
 * forward   columns are lanes. One sweep over the state [s][columns] adds k u^T of a token, reads o, decays it for the
 * next token and begins that one's S'^T k: one load and one store a vector for four multiply-adds. backward  the states
 * before every chunk are kept by such sweeps, those between rebuilt from there. Keys are lanes: the sums over columns
 * (dq, dk, dg) stay in registers, those over keys (du) are added up once a column.
 *
 * Sums over keys go in order, or in lanes; their bits depend on the shape and the vector's width alone, not on how
 * tokens are fed. The including file defines what vector_x86.h needs, and FIRN_SCAN_VECTORS   vectors of columns of a
 * forward block FIRN_SCAN_TILE      vectors of keys that the backward's second pass takes at once, at most 2 */
#include "cpu/team.h"
#include "cpu/vector_x86.h"
#include "op/elementary.h"
#include "op/scan.h"
#include "op/util.h"

enum {
    WIDE = FIRN_SCAN_VECTORS * LANES, /* columns of a forward block */
    BACK = 32,                        /* columns of a backward block */
    CHUNK = 32,                       /* tokens */
};

static int64_t up_to(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* A thread's workspace, taken piece by piece; with memory NULL it is only counted. */
typedef struct {
    char *memory;
    size_t used;
} room;

static float *take(room *r, int64_t n)
{
    float *p = r->memory ? (float *)(r->memory + r->used) : NULL;

    r->used += firn_bytes_up((size_t)n * sizeof(float));
    return p;
}

/* ---- a head's tokens, a chunk at a time ---- */

typedef struct {
    const firn_scan *c;
    int64_t h, keys;        /* keys: s, padded to whole vectors */
    int64_t from, n_values; /* columns [from, from + n_values) */
    int64_t columns;        /* padded to whole blocks */
    int64_t t0, t1;         /* the chunk */
    float *e;               /* decays of the head, [n], or [n][keys] where each channel has its own */
    float *q, *k;           /* [CHUNK][keys] */
    float *v, *dy;          /* [CHUNK][columns] */
} head;

static void take_head(head *a, room *r, bool back)
{
    const firn_scan *c = a->c;

    a->e = take(r, c->channels ? c->n * a->keys : c->n);
    a->q = take(r, CHUNK * a->keys);
    a->k = take(r, CHUNK * a->keys);
    a->v = take(r, CHUNK * a->columns);
    a->dy = take(r, back ? CHUNK * a->columns : 0);
}

static void decays_of_head(const head *a)
{
    const firn_scan *c = a->c;
    float *restrict e = a->e;

    if (!c->channels) {
        for (int64_t t = 0; t < c->n; t++)
            e[t] = c->g[a->h + c->n_head * t];
        for (int64_t t = 0; t < c->n; t++)
            e[t] = firn_expf(e[t]);
        return;
    }
    for (int64_t t = 0; t < c->n; t++, e += a->keys) {
        const float *restrict g = c->g + c->s * (a->h + c->n_head * t);
        for (int64_t i = 0; i < c->s; i++)
            e[i] = firn_expf(g[i]);
        for (int64_t i = c->s; i < a->keys; i++)
            e[i] = 0;
    }
}

INLINE const float *decay_of(const head *a, int64_t t, const bool channels)
{
    return channels ? a->e + a->keys * t : a->e + t;
}

/* Rows of n floats, zeros behind them. */
static void gather(const float *from, int64_t stride, int64_t rows, int64_t n, float *to, int64_t padded)
{
    for (int64_t t = 0; t < rows; t++, from += stride, to += padded) {
        int64_t i = 0;
        for (; i < n; i += LANES)
            vf_store(to + i, vf_load_part(from + i, n - i));
        for (; i < padded; i += LANES)
            vf_store(to + i, vf_zero());
    }
}

/* Nobody but us fetches the rows of the next chunk: they lie pages apart. A token's, while this one's are worked on. */
INLINE void ask_for(const float *row, int64_t n, const bool write)
{
    for (int64_t i = 0; i < n; i += 16) {
        if (write)
            __builtin_prefetch(row + i, 1);
        else
            __builtin_prefetch(row + i, 0);
    }
}

static void gather_keys(head *a)
{
    const firn_scan *c = a->c;

    gather(c->k + firn_scan_group(c, a->h) * c->k1 + a->t0 * c->k2, c->k2, a->t1 - a->t0, c->s, a->k, a->keys);
}

static void gather_queries(head *a)
{
    const firn_scan *c = a->c;

    gather(c->q + firn_scan_group(c, a->h) * c->q1 + a->t0 * c->q2, c->q2, a->t1 - a->t0, c->s, a->q, a->keys);
}

static void gather_values(head *a)
{
    const firn_scan *c = a->c;

    gather(c->v + a->h * c->v1 + a->t0 * c->v2 + a->from, c->v2, a->t1 - a->t0, a->n_values, a->v, a->columns);
}

/* ---- along the tokens: columns are lanes ---- */

/* A block of columns. */
typedef struct {
    const head *a;
    int64_t at;       /* first column, among the head's */
    float *S;         /* [s][columns of the block] */
    float *u, *error; /* for the backward, of token t0, rows a->columns apart; else NULL */
    float *o;         /* of token t0, rows of the result apart; or NULL */
} block;

/* S = e S; seen = S'^T k. Where the token begins a document both are 0. */
INLINE void decay_state(const block *b, int64_t t, const int vectors, const bool channels, vf *seen)
{
    const head *a = b->a;
    const float *k = a->k + (t - a->t0) * a->keys, *e = decay_of(a, t, channels);
    const bool fresh = firn_scan_begins(a->c, t);
    const int64_t s = a->c->s;
    float *row = b->S;

    for (int x = 0; x < vectors; x++)
        seen[x] = vf_zero();
    for (int64_t i = 0; i < s; i++, row += vectors * LANES) {
        const vf ki = vf_all(k + i), ei = vf_all(e + (channels ? i : 0));
        for (int x = 0; x < vectors; x++) {
            const vf state = fresh ? vf_zero() : vf_mul(vf_load(row + x * LANES), ei);
            vf_store(row + x * LANES, state);
            seen[x] = vf_fma(ki, state, seen[x]);
        }
    }
}

/* The token's own k u^T comes in, o comes out; `on`: and what decay_state does for the next token, whose state is not
 * 0. */
INLINE void update(const block *b, int64_t t, const int vectors, const bool channels, const bool on, const bool out,
                   const vf *u, vf *seen, vf *o)
{
    const head *a = b->a;
    const float *k = a->k + (t - a->t0) * a->keys, *q = a->q + (t - a->t0) * a->keys, *next = on ? k + a->keys : k;
    const float *e = on ? decay_of(a, t + 1, channels) : a->e;
    const int64_t s = a->c->s;
    const vf all = vf_all(e);
    float *row = b->S;

    for (int x = 0; x < vectors; x++)
        seen[x] = o[x] = vf_zero();
    for (int64_t i = 0; i < s; i++, row += vectors * LANES) {
        const vf ki = vf_all(k + i), qi = out ? vf_all(q + i) : ki, ni = vf_all(next + i);
        const vf ei = channels && on ? vf_all(e + i) : all;
        for (int x = 0; x < vectors; x++) {
            vf state = vf_fma(ki, u[x], vf_load(row + x * LANES));
            if (out)
                o[x] = vf_fma(qi, state, o[x]);
            if (on) {
                state = vf_mul(state, ei);
                seen[x] = vf_fma(ni, state, seen[x]);
            }
            vf_store(row + x * LANES, state);
        }
    }
}

/* SSM_SCAN: decay, k u^T and o in one sweep. */
INLINE void update_plain(const block *b, int64_t t, const int vectors, const bool channels, const bool out, const vf *u,
                         vf *o)
{
    const head *a = b->a;
    const float *k = a->k + (t - a->t0) * a->keys, *q = a->q + (t - a->t0) * a->keys, *e = decay_of(a, t, channels);
    const bool fresh = firn_scan_begins(a->c, t);
    const int64_t s = a->c->s;
    float *row = b->S;

    for (int x = 0; x < vectors; x++)
        o[x] = vf_zero();
    for (int64_t i = 0; i < s; i++, row += vectors * LANES) {
        const vf ki = vf_all(k + i), qi = out ? vf_all(q + i) : ki, ei = vf_all(e + (channels ? i : 0));
        for (int x = 0; x < vectors; x++) {
            const vf before = fresh ? vf_zero() : vf_mul(vf_load(row + x * LANES), ei);
            const vf state = vf_fma(ki, u[x], before);
            if (out)
                o[x] = vf_fma(qi, state, o[x]);
            vf_store(row + x * LANES, state);
        }
    }
}

/* The chunk's tokens: S is the state before it and becomes that behind it. */
INLINE void along(const block *b, const int vectors, const bool delta, const bool channels, const bool back)
{
    const head *a = b->a;
    const firn_scan *c = a->c;
    bool begun = false; /* S is decayed for this token, and seen is what it sees */
    vf seen[FIRN_SCAN_VECTORS], u[FIRN_SCAN_VECTORS], o[FIRN_SCAN_VECTORS];

    for (int64_t t = a->t0; t < a->t1; t++) {
        const int64_t at = t - a->t0;
        const float *v = a->v + at * a->columns + b->at;
        const vf beta = vf_all(c->beta + a->h + c->n_head * t);
        if (b->at == 0 && t + CHUNK < c->n) {
            const int64_t group = firn_scan_group(c, a->h), next = t + CHUNK;
            ask_for(c->k + group * c->k1 + next * c->k2, c->s, false);
            ask_for(c->v + a->h * c->v1 + next * c->v2 + a->from, a->n_values, false);
            if (!back) {
                ask_for(c->q + group * c->q1 + next * c->q2, c->s, false);
                ask_for(b->o + (next - a->t0) * c->dv * c->n_head, a->n_values, true);
            }
        }
        if (delta && !begun)
            decay_state(b, t, vectors, channels, seen);
        for (int x = 0; x < vectors; x++) {
            const vf value = vf_load(v + x * LANES), error = delta ? vf_sub(value, seen[x]) : value;
            u[x] = vf_mul(beta, error);
            if (back) {
                vf_store(b->error + at * a->columns + x * LANES, error);
                vf_store(b->u + at * a->columns + x * LANES, u[x]);
            }
        }
        begun = delta && t + 1 < a->t1 && !firn_scan_begins(c, t + 1);
        if (!delta)
            update_plain(b, t, vectors, channels, !back, u, o);
        else if (begun)
            update(b, t, vectors, channels, true, !back, u, seen, o);
        else
            update(b, t, vectors, channels, false, !back, u, seen, o);
        for (int x = 0; !back && x < vectors; x++)
            vf_store_part(b->o + at * c->dv * c->n_head + x * LANES, a->n_values - b->at - x * LANES, o[x]);
    }
}

INLINE void along_of(const block *b, const int vectors, const bool back)
{
    const firn_scan *c = b->a->c;

    if (c->delta && c->channels)
        along(b, vectors, true, true, back);
    else if (c->delta)
        along(b, vectors, true, false, back);
    else if (c->channels)
        along(b, vectors, false, true, back);
    else
        along(b, vectors, false, false, back);
}

/* ---- forward ---- */

/* Columns of an item: a head's, or a part of them in whole blocks where there are more threads than heads. */
static int64_t columns_of_item(const firn_scan *c, int n_threads)
{
    const int64_t blocks = (c->dv + WIDE - 1) / WIDE, parts = smaller(blocks, (n_threads + c->n_head - 1) / c->n_head);

    return (blocks + parts - 1) / parts * WIDE;
}

static size_t forward_room(head *a, room *r, float **S)
{
    take_head(a, r, false);
    *S = take(r, a->c->s * a->columns);
    return r->used;
}

static bool is_delta(const firn_tensor *node)
{
    return node->op == &firn_op_gated_delta || node->op == &firn_op_gated_delta_back;
}

/* Shapes alone. */
static firn_scan shape_of(const firn_tensor *node)
{
    const firn_call call = {.node = node};

    return firn_scan_of(&call, is_delta(node), false);
}

static size_t work(const firn_tensor *node, int n_threads)
{
    const firn_scan c = shape_of(node);
    head a = {.c = &c, .keys = up_to(c.s, LANES), .columns = columns_of_item(&c, n_threads)};
    room r = {0};
    float *S;

    return forward_room(&a, &r, &S) * (size_t)n_threads;
}

/* The narrowest block that holds what is left of the columns. */
static int64_t width_of(int64_t left)
{
    return left > 2 * LANES ? WIDE : left > LANES ? 2 * LANES : LANES;
}

static void forward_chunk(head *a, float *S, float *o)
{
    const firn_scan *c = a->c;

    gather_keys(a);
    gather_queries(a);
    gather_values(a);
    for (int64_t at = 0; at < a->n_values; at += WIDE) {
        const int64_t width = width_of(a->n_values - at);
        const block b = {.a = a, .at = at, .S = S + c->s * at, .o = o + a->t0 * c->dv * c->n_head + at};
        if (width == LANES)
            along_of(&b, 1, false);
        else if (width == 2 * LANES)
            along_of(&b, 2, false);
        else
            along_of(&b, FIRN_SCAN_VECTORS, false);
    }
}

/* The states of a head's columns, block by block as along has them, from what is fed or to what is given back. */
static void move_states(const head *a, float *S, const float *from, float *to)
{
    const int64_t s = a->c->s;

    for (int64_t at = 0; at < a->n_values; at += WIDE) {
        const int64_t width = width_of(a->n_values - at);
        for (int64_t j = 0; j < width; j++)
            for (int64_t i = 0; i < s; i++) {
                float *state = S + s * at + i * width + j;
                const bool there = at + j < a->n_values;
                if (to && there)
                    to[i + s * (a->from + at + j)] = *state;
                else if (!to)
                    *state = from && there ? from[i + s * (a->from + at + j)] : 0;
            }
    }
}

static void forward(const firn_call *call, firn_team team)
{
    const firn_scan c = firn_scan_of(call, is_delta(call->node), false);
    const int64_t columns = columns_of_item(&c, team.nth), parts = (c.dv + columns - 1) / columns;
    const int64_t items = c.n_head * parts, n_results = c.dv * c.n_head * c.n;
    head a = {.c = &c, .h = -1, .keys = up_to(c.s, LANES), .columns = columns};
    room r = {0};
    float *S;

    r.memory = (char *)call->work + forward_room(&a, &r, &S) * (size_t)team.ith;
    r.used = 0;
    forward_room(&a, &r, &S);
    if (team.ith == 0)
        firn_scan_check(&c);
    for (int64_t item = items * team.ith / team.nth; item < items * (team.ith + 1) / team.nth; item++) {
        const int64_t h = item / parts, states = h * c.s * c.dv;
        a.from = item % parts * columns;
        a.n_values = smaller(columns, c.dv - a.from);
        if (a.h != h) {
            a.h = h;
            decays_of_head(&a);
        }
        move_states(&a, S, c.state ? c.state + states : NULL, NULL);
        for (a.t0 = 0; a.t0 < c.n; a.t0 = a.t1) {
            a.t1 = smaller(a.t0 + CHUNK, c.n);
            forward_chunk(&a, S, (float *)call->dst + h * c.dv + a.from);
        }
        move_states(&a, S, NULL, (float *)call->dst + n_results + states);
    }
}

/* ---- backward: keys are lanes ---- */

typedef struct {
    head a;
    float *S;            /* [blocks][s][BACK] along the tokens */
    float *kept;         /* [chunks][blocks][BACK][keys] states before each chunk */
    float *u, *error;    /* [n][columns] */
    float *lam;          /* [blocks][BACK][keys] gradients of the state from later tokens */
    float *within;       /* [CHUNK][BACK][keys] states of a block before each token of a chunk */
    float *du, *de;      /* [BACK][LANES], [BACK] of a token */
    float *dq, *dk, *dg; /* [CHUNK][keys]; dg where each channel has its own */
    float *dv;           /* [CHUNK][columns] */
    float dg1[CHUNK], dbeta[CHUNK];
    const firn_scan_gradients *at;
    float *out;
} gradients;

static size_t back_room(gradients *g, room *r)
{
    const firn_scan *c = g->a.c;
    const int64_t keys = g->a.keys, columns = g->a.columns;

    take_head(&g->a, r, true);
    g->S = take(r, c->s * columns);
    g->kept = take(r, (c->n + CHUNK - 1) / CHUNK * columns * keys);
    g->u = take(r, c->n * columns);
    g->error = take(r, c->n * columns);
    g->lam = take(r, columns * keys);
    g->within = take(r, CHUNK * BACK * keys);
    g->du = take(r, BACK * LANES);
    g->de = take(r, BACK);
    g->dq = take(r, CHUNK * keys);
    g->dk = take(r, CHUNK * keys);
    g->dg = take(r, c->channels ? CHUNK * keys : 0);
    g->dv = take(r, CHUNK * columns);
    return r->used;
}

static size_t back_work(const firn_tensor *node, int n_threads)
{
    const firn_scan c = shape_of(node);
    gradients g = {.a = {.c = &c, .keys = up_to(c.s, LANES), .columns = up_to(c.dv, BACK)}};
    room r = {0};

    return back_room(&g, &r) * (size_t)n_threads;
}

static float *kept_of(const gradients *g, int64_t t, int64_t at)
{
    return g->kept + (t / CHUNK * g->a.columns + at) * g->a.keys;
}

/* u and errors of all tokens, and the states before each chunk, value by value. */
static void remember(gradients *g)
{
    head *a = &g->a;
    const int64_t s = a->c->s;

    memset(g->S, 0, (size_t)(s * a->columns) * sizeof(float));
    for (a->t0 = 0; a->t0 < a->c->n; a->t0 = a->t1) {
        a->t1 = smaller(a->t0 + CHUNK, a->c->n);
        gather_keys(a);
        gather_values(a);
        for (int64_t at = 0; at < a->columns; at += BACK) {
            const int64_t row = a->t0 * a->columns + at;
            const block b = {.a = a, .at = at, .S = g->S + s * at, .u = g->u + row, .error = g->error + row};
            float *kept = kept_of(g, a->t0, at);
            for (int64_t j = 0; j < BACK; j++, kept += a->keys) {
                for (int64_t i = 0; i < s; i++)
                    kept[i] = b.S[i * BACK + j];
                for (int64_t i = s; i < a->keys; i++)
                    kept[i] = 0;
            }
            along_of(&b, BACK / LANES, true);
        }
    }
}

/* The states before the tokens of the chunk, from the one that was kept. */
static void rebuild(const gradients *g, int64_t at)
{
    const head *a = &g->a;
    const int64_t keys = a->keys, state = keys * BACK;

    memcpy(g->within, kept_of(g, a->t0, at), (size_t)state * sizeof(float));
    for (int64_t t = a->t0; t + 1 < a->t1; t++) {
        const float *k = a->k + (t - a->t0) * keys, *e = decay_of(a, t, a->c->channels);
        const float *u = g->u + t * a->columns + at, *before = g->within + (t - a->t0) * state;
        float *after = g->within + (t + 1 - a->t0) * state;
        const bool fresh = firn_scan_begins(a->c, t);
        for (int64_t i = 0; i < keys; i += LANES) {
            const vf ki = vf_load(k + i), ei = a->c->channels ? vf_load(e + i) : vf_all(e);
#pragma GCC unroll 4
            for (int64_t j = 0; j < BACK; j++) {
                const vf old = fresh ? vf_zero() : vf_mul(ei, vf_load(before + j * keys + i));
                vf_store(after + j * keys + i, vf_fma(ki, vf_all(u + j), old));
            }
        }
    }
}

/* A token of a block in the backward. */
typedef struct {
    int64_t t;
    const float *q, *k, *e, *u, *dy, *S; /* S: [BACK][keys] before it */
    float *lam;
    float udo; /* the sum of u do */
} token;

/* lam += q do^T, and du = lam^T k in lanes, for `tile` vectors of keys from i on. */
INLINE void take_in(const gradients *g, const token *n, int64_t i, const int tile, const bool first)
{
    const int64_t keys = g->a.keys;
    vf q[4], k[4];

    for (int x = 0; x < tile; x++) {
        q[x] = vf_load(n->q + i + x * LANES);
        k[x] = vf_load(n->k + i + x * LANES);
    }
    float *lam = n->lam + i, *to = g->du;
    const float *do_ = n->dy;
#pragma GCC unroll 2
    for (int64_t j = 0; j < BACK; j++, lam += keys, to += LANES) {
        const vf dy = vf_all(do_ + j);
        vf du = first ? vf_zero() : vf_load(to);
        for (int x = 0; x < tile; x++) {
            const vf l = vf_fma(q[x], dy, vf_load(lam + x * LANES));
            vf_store(lam + x * LANES, l);
            du = vf_fma(l, k[x], du);
        }
        vf_store(to, du);
    }
}

/* dq, dk, dg of `tile` vectors of keys from i on, and lam of the token before; returns the sum of dg in lanes. */
INLINE vf hand_back(const gradients *g, const token *n, int64_t i, const int tile, const bool delta,
                    const bool channels, const bool fresh)
{
    const int64_t keys = g->a.keys, row = (n->t - g->a.t0) * keys + i;
    const float *S = n->S + i, *u = n->u, *do_ = n->dy, *errors = g->de;
    float *lam = n->lam + i;
    vf k[2], decay[2], dq[2], dk[2], dk2[2], dg[2], sum = vf_zero();

    for (int x = 0; x < tile; x++) {
        k[x] = vf_load(n->k + i + x * LANES);
        decay[x] = channels ? vf_load(n->e + i + x * LANES) : vf_all(n->e);
        dq[x] = dk[x] = dk2[x] = dg[x] = vf_zero();
    }
    for (int64_t j = 0; j < BACK; j++, lam += keys, S += keys) {
        const vf uj = vf_all(u + j), dy = vf_all(do_ + j), de = vf_all(errors + j);
        for (int x = 0; x < tile; x++) {
            const vf l = vf_load(lam + x * LANES);
            dk[x] = vf_fma(l, uj, dk[x]);
            if (fresh) { /* S' is 0, and nothing goes on to the token before */
                vf_store(lam + x * LANES, vf_zero());
                continue;
            }
            const vf decayed = vf_mul(decay[x], vf_load(S + x * LANES));
            dq[x] = vf_fma(decayed, dy, dq[x]);
            vf d = l;
            if (delta) {
                dk2[x] = vf_fma(decayed, de, dk2[x]);
                d = vf_sub(l, vf_mul(k[x], de));
            }
            dg[x] = vf_fma(decayed, d, dg[x]);
            vf_store(lam + x * LANES, vf_mul(decay[x], d));
        }
    }
    for (int x = 0; x < tile; x++) {
        float *to_q = g->dq + row + x * LANES, *to_k = g->dk + row + x * LANES;
        vf_store(to_q, vf_add(vf_load(to_q), vf_fma(k[x], vf_all(&n->udo), dq[x])));
        vf_store(to_k, vf_add(vf_load(to_k), vf_sub(dk[x], dk2[x])));
        if (channels) {
            float *to_g = g->dg + row + x * LANES;
            vf_store(to_g, vf_add(vf_load(to_g), dg[x]));
        }
        sum = vf_add(sum, dg[x]);
    }
    return sum;
}

/* Rows that the chunk before takes and that this one gives. */
INLINE void ask_for_rows(const gradients *g, int64_t t)
{
    const head *a = &g->a;
    const firn_scan *c = a->c;
    const int64_t group = firn_scan_group(c, a->h), before = t - CHUNK;
    const int64_t row = c->s * (group + c->n_group * t), at = a->h + c->n_head * t;

    ask_for(g->out + g->at->dq + row, c->s, true);
    ask_for(g->out + g->at->dk + row, c->s, true);
    ask_for(g->out + g->at->dv + c->dv * at, c->dv, true);
    if (before < 0)
        return;
    ask_for(c->q + group * c->q1 + before * c->q2, c->s, false);
    ask_for(c->k + group * c->k1 + before * c->k2, c->s, false);
    ask_for((const float *)c->call->src[FIRN_SCAN_DO] + c->dv * (at - c->n_head * CHUNK), c->dv, false);
}

INLINE void token_back(gradients *g, int64_t t, int64_t at, const bool delta, const bool channels)
{
    const head *a = &g->a;
    const firn_scan *c = a->c;
    const int64_t keys = a->keys, in = t - a->t0;
    const float *error = g->error + t * a->columns + at;
    const bool fresh = firn_scan_begins(c, t);
    const float beta = c->beta[a->h + c->n_head * t];
    token n = {.t = t,
               .q = a->q + in * keys,
               .k = a->k + in * keys,
               .e = decay_of(a, t, channels),
               .u = g->u + t * a->columns + at,
               .dy = a->dy + in * a->columns + at,
               .S = g->within + in * keys * BACK,
               .lam = g->lam + at * keys};
    int64_t i = 0;
    if (at == 0)
        ask_for_rows(g, t);
    vf dg = vf_zero(), dbeta = vf_zero(), udo = vf_zero();

    for (; i + 4 * LANES <= keys; i += 4 * LANES)
        take_in(g, &n, i, 4, i == 0);
    for (; i < keys; i += LANES)
        take_in(g, &n, i, 1, i == 0);
    for (int64_t j = 0; j < BACK; j += LANES) {
        vf lanes[LANES];
        for (int x = 0; x < LANES; x++)
            lanes[x] = vf_load(g->du + (j + x) * LANES);
        const vf du = vf_sums(lanes);
        vf_store(g->de + j, vf_mul(vf_all(&beta), du));
        dbeta = vf_fma(du, vf_load(error + j), dbeta); /* 0 in columns that are not there, as their do is */
        udo = vf_fma(vf_load(n.u + j), vf_load(n.dy + j), udo);
    }
    n.udo = vf_sum(udo);
    memcpy(g->dv + in * a->columns + at, g->de, BACK * sizeof(float));
    g->dbeta[in] += vf_sum(dbeta);
    for (i = 0; i + FIRN_SCAN_TILE * LANES <= keys; i += FIRN_SCAN_TILE * LANES)
        dg = vf_add(dg, fresh ? hand_back(g, &n, i, FIRN_SCAN_TILE, delta, channels, true)
                              : hand_back(g, &n, i, FIRN_SCAN_TILE, delta, channels, false));
    for (; i < keys; i += LANES)
        dg = vf_add(dg, hand_back(g, &n, i, 1, delta, channels, fresh));
    g->dg1[in] += vf_sum(dg);
}

/* rows of n floats, added to what lies there or put there */
static void scatter(const float *from, int64_t padded, int64_t rows, int64_t n, float *to, int64_t stride, bool put)
{
    for (int64_t t = 0; t < rows; t++, from += padded, to += stride)
        for (int64_t i = 0; i < n; i += LANES) {
            const vf x = vf_load(from + i);
            vf_store_part(to + i, n - i, put ? x : vf_add(x, vf_load_part(to + i, n - i)));
        }
}

/* put: the first head of its group; the others are added. */
static void chunk_done(const gradients *g, bool put)
{
    const head *a = &g->a;
    const firn_scan *c = a->c;
    const int64_t rows = a->t1 - a->t0, at = a->h + c->n_head * a->t0;
    const int64_t row = c->s * (firn_scan_group(c, a->h) + c->n_group * a->t0);

    scatter(g->dq, a->keys, rows, c->s, g->out + g->at->dq + row, c->s * c->n_group, put);
    scatter(g->dk, a->keys, rows, c->s, g->out + g->at->dk + row, c->s * c->n_group, put);
    scatter(g->dv, a->columns, rows, c->dv, g->out + g->at->dv + c->dv * at, c->dv * c->n_head, true);
    if (c->channels)
        scatter(g->dg, a->keys, rows, c->s, g->out + g->at->dg + c->s * at, c->s * c->n_head, true);
    for (int64_t i = 0; i < rows; i++) {
        g->out[g->at->dbeta + at + c->n_head * i] = g->dbeta[i];
        if (!c->channels)
            g->out[g->at->dg + at + c->n_head * i] = g->dg1[i];
    }
}

INLINE void head_back(gradients *g, bool put, const bool delta, const bool channels)
{
    head *a = &g->a;
    const firn_scan *c = a->c;

    decays_of_head(a);
    remember(g);
    memset(g->lam, 0, (size_t)(a->keys * a->columns) * sizeof(float));
    for (a->t1 = c->n; a->t1 > 0; a->t1 = a->t0) {
        a->t0 = (a->t1 - 1) / CHUNK * CHUNK;
        gather_keys(a);
        gather_queries(a);
        gather((const float *)c->call->src[FIRN_SCAN_DO] + c->dv * (a->h + c->n_head * a->t0), c->dv * c->n_head,
               a->t1 - a->t0, c->dv, a->dy, a->columns);
        memset(g->dq, 0, (size_t)(CHUNK * a->keys) * sizeof(float));
        memset(g->dk, 0, (size_t)(CHUNK * a->keys) * sizeof(float));
        if (channels)
            memset(g->dg, 0, (size_t)(CHUNK * a->keys) * sizeof(float));
        memset(g->dg1, 0, sizeof g->dg1);
        memset(g->dbeta, 0, sizeof g->dbeta);
        for (int64_t at = 0; at < a->columns; at += BACK) {
            rebuild(g, at);
            for (int64_t t = a->t1 - 1; t >= a->t0; t--)
                token_back(g, t, at, delta, channels);
        }
        chunk_done(g, put);
    }
}

/* An item is a key head with all heads that read it: their sums go in order. */
static void back(const firn_call *call, firn_team team)
{
    const firn_scan c = firn_scan_of(call, is_delta(call->node), true);
    const firn_scan_gradients at = firn_scan_gradients_of(call->node);
    gradients g = {.a = {.c = &c, .keys = up_to(c.s, LANES), .n_values = c.dv, .columns = up_to(c.dv, BACK)},
                   .at = &at,
                   .out = call->dst};
    room r = {0};

    r.memory = (char *)call->work + back_room(&g, &r) * (size_t)team.ith;
    r.used = 0;
    back_room(&g, &r);
    if (team.ith == 0)
        firn_scan_check(&c);
    for (int64_t group = c.n_group * team.ith / team.nth; group < c.n_group * (team.ith + 1) / team.nth; group++) {
        bool put = true;
        for (g.a.h = 0; g.a.h < c.n_head; g.a.h++) {
            if (firn_scan_group(&c, g.a.h) != group)
                continue;
            if (c.delta && c.channels)
                head_back(&g, put, true, true);
            else if (c.delta)
                head_back(&g, put, true, false);
            else if (c.channels)
                head_back(&g, put, false, true);
            else
                head_back(&g, put, false, false);
            put = false;
        }
    }
}

const firn_team_kernels FIRN_SET(scan) = {.work = work, .forward = forward, .back_work = back_work, .back = back};
