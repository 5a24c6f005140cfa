/* Gradient operations, in double: from the definition of the forward operation by the chain rule over its whole
 * Jacobian, or by differences where it is a function of one value; never by the formula that the kernel uses. */
#include "refs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* f at a value, the rest of what it depends on being held. */
typedef struct {
    const test_case *c;
    const char *op;
    double gate, up;
} held;

/* df/dx by the five-point central difference, which is off by some 1e-12. */
static double slope(double (*f)(const held *, double), const held *at, double x)
{
    const double h = 1e-3;

    return (8 * (f(at, x + h) - f(at, x - h)) - (f(at, x + 2 * h) - f(at, x - 2 * h))) / (12 * h);
}

static double of_one(const held *at, double x)
{
    return function_of_one(at->op, x);
}

static double of_gate(const held *at, double x)
{
    return gated_unit(at->op, at->c, x, at->up);
}

static double of_up(const held *at, double x)
{
    return gated_unit(at->op, at->c, at->gate, x);
}

static void like(dtensor *y, const dtensor *x)
{
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
}

void ref_unary_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const held at = {.op = back_kinds[(int)arg_or(c, "kind", 0)]};

    (void)node;
    like(dx, &src[0]);
    for (int64_t i = 0; i < dcount(dx); i++)
        dx->v[i] = src[1].v[i] * slope(of_one, &at, src[0].v[i]);
}

/* dgate, then dup along the outermost dimension. */
void ref_glu_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    static const char *const ops[] = {"SWIGLU", "GEGLU", "REGLU", "SWIGLU_OAI"};
    const dtensor *gate = &src[0], *up = &src[1], *dy = &src[2];
    const int64_t n = dcount(gate);

    (void)node;
    dshape(dx, gate->ne[0], gate->ne[1], gate->ne[2], 2 * gate->ne[3]);
    for (int64_t i = 0; i < n; i++) {
        const held at = {c, ops[(int)arg_or(c, "kind", 0)], gate->v[i], up->v[i]};
        dx->v[i] = dy->v[i] * slope(of_gate, &at, gate->v[i]);
        dx->v[n + i] = dy->v[i] * slope(of_up, &at, up->v[i]);
    }
}

/* dx_i = sum over j of dy_j dy_j/dx_i, one row at a time. */
typedef void jacobian(const test_case *c, const double *x, const double *dy, int64_t n, double *dx);

static void by_rows(const test_case *c, const dtensor *src, dtensor *dx, jacobian *f)
{
    const dtensor *x = &src[0], *dy = &src[1];

    like(dx, x);
    for (int64_t r = 0; x->ne[0] > 0 && r < dcount(x) / x->ne[0]; r++)
        f(c, x->v + r * x->ne[0], dy->v + r * x->ne[0], x->ne[0], dx->v + r * x->ne[0]);
}

/* y_j = (x_j - m) v^(-1/2), v = mean((x - m)^2) + eps:  dy_j/dx_i = (j == i - 1/n) v^(-1/2) - (x_j - m) v^(-3/2) (x_i -
 * m) / n */
static void norm_row(const test_case *c, const double *x, const double *dy, int64_t n, double *dx)
{
    double m = 0, v = (double)(float)arg_or(c, "eps", 1e-6);

    for (int64_t i = 0; i < n; i++)
        m += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        v += (x[i] - m) * (x[i] - m) / (double)n;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            dx[i] += dy[j] *
                     (((i == j) - 1 / (double)n) * pow(v, -0.5) - (x[j] - m) * pow(v, -1.5) * (x[i] - m) / (double)n);
}

/* y_j = x_j / |x|:  dy_j/dx_i = (j == i) / |x| - x_j x_i / |x|^3;  x_j / eps where |x| is less */
static void l2_norm_row(const test_case *c, const double *x, const double *dy, int64_t n, double *dx)
{
    const double eps = (double)(float)arg_or(c, "eps", 1e-6);
    double square = 0;

    for (int64_t i = 0; i < n; i++)
        square += x[i] * x[i];
    const double length = sqrt(square);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            dx[i] += length < eps ? dy[j] * (i == j) / eps : dy[j] * ((i == j) / length - x[j] * x[i] / pow(length, 3));
}

/* With y the result: dy_j/dx_i = scale y_j ((j == i) - y_i) */
static void soft_max_row(const test_case *c, const double *y, const double *dy, int64_t n, double *dx)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++)
            dx[i] += (double)arg(c, "scale") * dy[j] * y[j] * ((i == j) - y[i]);
}

void ref_norm_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    (void)node;
    by_rows(c, src, dx, norm_row);
}

void ref_l2_norm_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    (void)node;
    by_rows(c, src, dx, l2_norm_row);
}

void ref_soft_max_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    (void)node;
    by_rows(c, src, dx, soft_max_row);
}

/* ---- attention ---- */

/* dq | dk | dv | dsinks, flat. With s_j the score before the cap, z_j = cap tanh(s_j / cap), p_j = e^z_j / (sum +
 * e^sink): y_i = sum_j p_j v_ij, so dy/dz_j = p_j (v_j - y) and dy/dsink = -p_sink y. */
void ref_attention_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *all)
{
    const dtensor *q = &src[0], *k = &src[1], *v = &src[2], *range = &src[3], *dy = &src[5], *sinks = &src[6];
    const double scale = (double)(float)arg_or(c, "scale", 1), cap = arg_or(c, "cap", 0);
    const int64_t share = q->ne[1] / k->ne[1];

    (void)node;
    dshape(all, dcount(q) + dcount(k) + dcount(v) + (sinks->v ? q->ne[1] : 0), 1, 1, 1);
    double *dq = all->v, *dk = dq + dcount(q), *dv = dk + dcount(k), *dsinks = dv + dcount(v);
    double *p = calloc((size_t)(2 * k->ne[2]) + 1, sizeof *p), *bend = p + k->ne[2];
    double *y = calloc((size_t)v->ne[0] + 1, sizeof *y);
    for (int64_t t = 0; t < q->ne[2]; t++)
        for (int64_t head = 0; head < q->ne[1]; head++) {
            const int64_t g = head / share;
            const int64_t first = (int64_t)*dat(range, 0, t, 0, 0), last = (int64_t)*dat(range, 1, t, 0, 0);
            const double *qs = dat(q, 0, head, t, 0), *dys = dat(dy, 0, head, t, 0);
            double sum = sinks->v ? exp(sinks->v[head]) : 0, along = 0;
            for (int64_t j = first; j < last; j++) {
                double s = 0;
                for (int64_t i = 0; i < q->ne[0]; i++)
                    s += scale * qs[i] * *dat(k, i, g, j, 0);
                bend[j] = cap > 0 ? 1 / pow(cosh(s / cap), 2) : 1; /* dz/ds */
                sum += p[j] = exp(cap > 0 ? cap * tanh(s / cap) : s);
            }
            memset(y, 0, (size_t)v->ne[0] * sizeof *y);
            for (int64_t j = first; j < last; j++) {
                p[j] /= sum;
                for (int64_t i = 0; i < v->ne[0]; i++) {
                    y[i] += p[j] * *dat(v, i, g, j, 0);
                    dv[i + v->ne[0] * (g + v->ne[1] * j)] += p[j] * dys[i];
                }
            }
            for (int64_t j = first; j < last; j++) {
                double dz = 0;
                for (int64_t i = 0; i < v->ne[0]; i++)
                    dz += dys[i] * p[j] * (*dat(v, i, g, j, 0) - y[i]);
                for (int64_t i = 0; i < q->ne[0]; i++) {
                    dq[i + q->ne[0] * (head + q->ne[1] * t)] += dz * bend[j] * scale * *dat(k, i, g, j, 0);
                    dk[i + k->ne[0] * (g + k->ne[1] * j)] += dz * bend[j] * scale * qs[i];
                }
            }
            for (int64_t i = 0; i < v->ne[0]; i++)
                along += dys[i] * y[i];
            if (sinks->v && first < last)
                dsinks[head] -= exp(sinks->v[head]) / sum * along;
        }
    free(p);
    free(y);
}

/* ---- losses ---- */

void ref_cross_entropy_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *x = &src[0], *targets = &src[1], *dy = &src[2], *mask = &src[3];

    (void)node;
    like(dx, x);
    for (int64_t t = 0; t < x->ne[1]; t++) {
        double sum = 0;
        for (int64_t i = 0; i < x->ne[0]; i++)
            sum += exp(*dat(x, i, t, 0, 0));
        for (int64_t i = 0; targets->v[t] >= 0 && targets->v[t] != arg_or(c, "ignore", -1) && i < x->ne[0]; i++)
            *dat(dx, i, t, 0, 0) = dy->v[t] * (mask->v ? mask->v[t] : 1) *
                                   (exp(*dat(x, i, t, 0, 0)) / sum - (i == (int64_t)targets->v[t]));
    }
}

/* L = E sum_e f_e P_e is linear in each probability: dL/dprobs[e,t] is L of a single one there. */
void ref_router_balance_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *ids = &src[0], *dl = &src[1], *w = &src[2];
    const double n_expert = (double)arg(c, "n_expert");
    double total = 0;

    (void)node;
    dshape(dx, arg(c, "n_expert"), ids->ne[1], 1, 1);
    for (int64_t t = 0; t < ids->ne[1]; t++)
        total += w->v ? w->v[t] : 1;
    FOR_EACH(dx, e, t, k, l)
    {
        double f = 0;
        for (int64_t i = 0; i < ids->ne[0] * ids->ne[1]; i++)
            f += (int64_t)ids->v[i] == e ? (w->v ? w->v[i / ids->ne[0]] : 1) / (total * (double)ids->ne[0]) : 0;
        *dat(dx, e, t, k, l) = total > 0 ? dl->v[0] * n_expert * f * (w->v ? w->v[t] : 1) / total : 0;
    }
}

void ref_router_z_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *x = &src[0], *dl = &src[1], *w = &src[2];
    double total = 0;

    (void)c, (void)node;
    like(dx, x);
    for (int64_t t = 0; t < x->ne[1]; t++)
        total += w->v ? w->v[t] : 1;
    for (int64_t t = 0; t < x->ne[1] && total > 0; t++) {
        double sum = 0;
        for (int64_t e = 0; e < x->ne[0]; e++)
            sum += exp(*dat(x, e, t, 0, 0));
        for (int64_t e = 0; e < x->ne[0]; e++)
            *dat(dx, e, t, 0, 0) =
                dl->v[0] * (w->v ? w->v[t] : 1) / total * 2 * log(sum) * exp(*dat(x, e, t, 0, 0)) / sum;
    }
}

/* ---- slots ---- */

void ref_mix_slots_back_x(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *w = &src[0], *dy = &src[1];

    (void)c, (void)node;
    dshape(dx, dy->ne[0], w->ne[0], w->ne[1], 1);
    FOR_EACH(dx, i, s, t, l) * dat(dx, i, s, t, l) = *dat(w, s, t, 0, 0) * *dat(dy, i, t, 0, 0);
}

void ref_mix_slots_back_w(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dw)
{
    const dtensor *x = &src[0], *dy = &src[1];

    (void)c, (void)node;
    dshape(dw, x->ne[1], x->ne[2], 1, 1);
    FOR_EACH(x, i, s, t, l) * dat(dw, s, t, 0, 0) += *dat(x, i, s, t, l) * *dat(dy, i, t, 0, 0);
}
