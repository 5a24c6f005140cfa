/* What carries a state along the tokens, in double: the plain recurrences and their adjoints. */
#include "refs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- CONV_CAUSAL ---- */

/* The sum of the taps of channel c at token t. */
static double taps_of(const test_case *c, const dtensor *src, const dtensor *bias, int64_t channel, int64_t t)
{
    const dtensor *x = &src[0], *w = &src[1], *first = &src[2];
    const int64_t history = (int64_t)arg_or(c, "history", 0), taps = w->ne[0];
    double sum = bias->v ? bias->v[channel] : 0;

    for (int64_t j = 0; j < taps; j++) {
        const int64_t at = t - (taps - 1 - j); /* counted as first counts */
        if (at >= -history && at >= (int64_t)first->v[t])
            sum += *dat(w, j, channel, 0, 0) * *dat(x, channel, history + at, 0, 0);
    }
    return sum;
}

void ref_conv_causal(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const bool silu = arg_or(c, "silu", 0) > 0;

    (void)node;
    dshape(y, src[0].ne[0], src[2].ne[0], 1, 1);
    FOR_EACH(y, channel, t, i2, i3)
    {
        const double s = taps_of(c, src, &src[3], channel, t);
        *dat(y, channel, t, i2, i3) = silu ? s / (1 + exp(-s)) : s;
    }
}

void ref_conv_causal_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *w = &src[1], *first = &src[2], *dy = &src[3];
    const int64_t history = (int64_t)arg_or(c, "history", 0), taps = w->ne[0];

    (void)node;
    dshape(dx, src[0].ne[0], src[0].ne[1], 1, 1);
    FOR_EACH(dy, channel, t, i2, i3)
    {
        double d = *dat(dy, channel, t, i2, i3);
        if (arg_or(c, "silu", 0) > 0) {
            const double s = taps_of(c, src, &src[4], channel, t), sigmoid = 1 / (1 + exp(-s));
            d *= sigmoid + s * sigmoid * (1 - sigmoid);
        }
        for (int64_t j = 0; j < taps; j++) {
            const int64_t at = t - (taps - 1 - j);
            if (at >= -history && at >= (int64_t)first->v[t])
                *dat(dx, channel, history + at, 0, 0) += d * *dat(w, j, channel, 0, 0);
        }
    }
}

/* ---- GATED_DELTA, SSM_SCAN ---- */

static bool is_delta(const test_case *c)
{
    return strncmp(c->family->op, "GATED", 5) == 0;
}

static int64_t key_head(const test_case *c, const dtensor *src, int64_t h)
{
    const int64_t G = src[0].ne[1], H = src[2].ne[1];

    return arg_or(c, "tiled", 0) > 0 ? h % G : h / (H / G);
}

static double decay(const dtensor *g, int64_t i, int64_t h, int64_t t)
{
    return exp(drep(g, i, h, t, 0));
}

/* Token t of head h: `after` [s, dv] from `before` (NULL: zeros); decayed, u and error on the way. */
static void token(const test_case *c, const dtensor *src, int64_t h, int64_t t, const double *before, double *decayed,
                  double *u, double *error, double *after)
{
    const int64_t s = src[0].ne[0], dv = src[2].ne[0], k = key_head(c, src, h);

    for (int64_t j = 0; j < dv; j++) {
        double r = 0;
        for (int64_t i = 0; i < s; i++) {
            decayed[i + s * j] = before ? decay(&src[3], i, h, t) * before[i + s * j] : 0;
            r += decayed[i + s * j] * *dat(&src[1], i, k, t, 0);
        }
        error[j] = *dat(&src[2], j, h, t, 0) - (is_delta(c) ? r : 0);
        u[j] = *dat(&src[4], 0, h, t, 0) * error[j];
        for (int64_t i = 0; i < s; i++)
            after[i + s * j] = decayed[i + s * j] + *dat(&src[1], i, k, t, 0) * u[j];
    }
}

static bool fresh(const dtensor *src, const dtensor *state, int64_t t)
{
    return (int64_t)src[5].v[t] == t || (t == 0 && !(state && state->v));
}

void ref_scan(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const int64_t s = src[0].ne[0], n = src[0].ne[2], dv = src[2].ne[0], H = src[2].ne[1];
    const dtensor *state = &src[6];
    double *S = calloc((size_t)(2 * s * dv + 2 * dv) + 1, sizeof *S), *decayed = S + s * dv, *u = decayed + s * dv;
    const bool last = arg_or(c, "last", 0) > 0;

    (void)node;
    if (last)
        dshape(y, s, dv, H, 1);
    else
        dshape(y, dv, H, n, 1);
    for (int64_t h = 0; h < H; h++) {
        if (state->v)
            memcpy(S, dat(state, 0, 0, h, 0), (size_t)(s * dv) * sizeof *S);
        for (int64_t t = 0; t < n; t++) {
            token(c, src, h, t, fresh(src, state, t) ? NULL : S, decayed, u, u + dv, S);
            for (int64_t j = 0; !last && j < dv; j++)
                for (int64_t i = 0; i < s; i++)
                    *dat(y, j, h, t, 0) += S[i + s * j] * *dat(&src[0], i, key_head(c, src, h), t, 0);
        }
        if (last)
            memcpy(dat(y, 0, 0, h, 0), S, (size_t)(s * dv) * sizeof *S);
    }
    free(S);
}

/* dq | dk | dv | dg | dbeta, flat: every state is kept, and the adjoint runs back through them. */
void ref_scan_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *all)
{
    const dtensor *q = &src[0], *k = &src[1], *v = &src[2], *g = &src[3], *beta = &src[4], *dy = &src[6];
    const int64_t s = q->ne[0], n = q->ne[2], dv = v->ne[0], H = v->ne[1], size = s * dv;

    (void)node;
    dshape(all, dcount(q) + dcount(k) + dcount(v) + dcount(g) + dcount(beta), 1, 1, 1);
    double *dq = all->v, *dk = dq + dcount(q), *dvs = dk + dcount(k), *dg = dvs + dcount(v), *dbeta = dg + dcount(g);
    double *states = calloc((size_t)((n + 1) * size) + 1, sizeof *states);
    double *lam = calloc((size_t)(3 * size + 2 * dv) + 1, sizeof *lam), *decayed = lam + size, *now = decayed + size,
           *u = now + size, *error = u + dv;
    for (int64_t h = 0; h < H; h++) {
        const int64_t head = key_head(c, src, h);
        for (int64_t t = 0; t < n; t++)
            token(c, src, h, t, fresh(src, NULL, t) ? NULL : states + t * size, decayed, u, error,
                  states + (t + 1) * size);
        memset(lam, 0, (size_t)size * sizeof *lam);
        for (int64_t t = n - 1; t >= 0; t--) {
            const bool begins = fresh(src, NULL, t);
            const int64_t row = s * (head + q->ne[1] * t), at = h + H * t;
            token(c, src, h, t, begins ? NULL : states + t * size, decayed, u, error, now);
            for (int64_t j = 0; j < dv; j++) {
                const double dyj = *dat(dy, j, h, t, 0);
                double du = 0;
                for (int64_t i = 0; i < s; i++) {
                    lam[i + s * j] += *dat(q, i, head, t, 0) * dyj;
                    dq[row + i] += now[i + s * j] * dyj;
                    du += lam[i + s * j] * *dat(k, i, head, t, 0);
                }
                const double de = *dat(beta, 0, h, t, 0) * du;
                dbeta[at] += du * error[j];
                dvs[j + dv * at] += de;
                for (int64_t i = 0; i < s; i++) {
                    const double ds = lam[i + s * j] - (is_delta(c) ? *dat(k, i, head, t, 0) * de : 0);
                    dk[row + i] += lam[i + s * j] * u[j] - (is_delta(c) ? decayed[i + s * j] * de : 0);
                    dg[(g->ne[0] > 1 ? i : 0) + g->ne[0] * at] += decayed[i + s * j] * ds;
                    lam[i + s * j] = begins ? 0 : decay(g, i, h, t) * ds;
                }
            }
        }
    }
    free(states);
    free(lam);
}
