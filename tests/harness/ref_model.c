/* Norms, softmax, rotary embedding, attention, losses and optimizers, in double. */
#include "refs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

/* ---- norms ---- */

void ref_rms_norm(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0], *w = &src[1];

    (void)node;
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    FOR_EACH(x, i, j, k, l)
    {
        double sum = 0;
        for (int64_t p = 0; p < x->ne[0]; p++)
            sum += pow(*dat(x, p, j, k, l), 2);
        *dat(y, i, j, k, l) = *dat(x, i, j, k, l) /
                              sqrt(sum / (double)x->ne[0] + (double)(float)arg_or(c, "eps", 1e-6)) *
                              (w->v ? w->v[i] : 1);
    }
}

/* By the chain rule over the row's norm, from y = x u(x), u = (mean(x^2) + eps)^(-1/2). */
void ref_rms_norm_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *x = &src[0], *dy = &src[1], *w = &src[2];
    const double n = (double)x->ne[0];

    (void)node;
    dshape(dx, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    FOR_EACH(x, i, j, k, l)
    {
        double sum = 0, along = 0;
        for (int64_t p = 0; p < x->ne[0]; p++) {
            sum += pow(*dat(x, p, j, k, l), 2);
            along += *dat(dy, p, j, k, l) * (w->v ? w->v[p] : 1) * *dat(x, p, j, k, l);
        }
        const double square = sum / n + (double)(float)arg_or(c, "eps", 1e-6), u = pow(square, -0.5);
        const double du = -0.5 * pow(square, -1.5) * 2 * *dat(x, i, j, k, l) / n; /* du / dx_i */
        *dat(dx, i, j, k, l) = u * *dat(dy, i, j, k, l) * (w->v ? w->v[i] : 1) + du * along;
    }
}

void ref_norm(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0];

    (void)node;
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    FOR_EACH(x, i, j, k, l)
    {
        double mean = 0, var = 0;
        for (int64_t p = 0; p < x->ne[0]; p++)
            mean += *dat(x, p, j, k, l) / (double)x->ne[0];
        for (int64_t p = 0; p < x->ne[0]; p++)
            var += pow(*dat(x, p, j, k, l) - mean, 2) / (double)x->ne[0];
        *dat(y, i, j, k, l) = (*dat(x, i, j, k, l) - mean) / sqrt(var + (double)(float)arg_or(c, "eps", 1e-6));
    }
}

void ref_l2_norm(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0];

    (void)node;
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    FOR_EACH(x, i, j, k, l)
    {
        double sum = 0;
        for (int64_t p = 0; p < x->ne[0]; p++)
            sum += pow(*dat(x, p, j, k, l), 2);
        *dat(y, i, j, k, l) = *dat(x, i, j, k, l) / fmax(sqrt(sum), (double)(float)arg_or(c, "eps", 1e-6));
    }
}

/* ---- softmax ---- */

void ref_soft_max(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0], *mask = &src[1], *sinks = &src[2];
    const double scale = (double)(float)arg_or(c, "scale", 1);

    (void)node;
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
    for (int64_t l = 0; l < x->ne[3]; l++)
        for (int64_t k = 0; k < x->ne[2]; k++)
            for (int64_t j = 0; j < x->ne[1]; j++) {
                double sum = sinks->v ? exp(sinks->v[k]) : 0;
                for (int64_t i = 0; i < x->ne[0]; i++) {
                    const double s = scale * *dat(x, i, j, k, l) + (mask->v ? drep(mask, i, j, k, l) : 0);
                    sum += *dat(y, i, j, k, l) = exp(s);
                }
                for (int64_t i = 0; i < x->ne[0]; i++)
                    *dat(y, i, j, k, l) = sum > 0 ? *dat(y, i, j, k, l) / sum : 0;
            }
}

/* ---- rotary embedding ---- */

static double yarn_dimension(double beta, double n_rot, double n_ctx, double base)
{
    return n_rot * log(n_ctx / (beta * 2 * pi)) / (2 * log(base));
}

static void rotate(const test_case *c, const dtensor *src, dtensor *y, double sign)
{
    const dtensor *x = &src[0], *pos = &src[1], *factors = &src[2];
    const int64_t n_rot = arg(c, "n_rot"), half = n_rot / 2;
    const bool neox = arg_or(c, "neox", 0) > 0, yarn = arg_or(c, "yarn", 0) > 0;
    const double base = 10000, stretch = yarn ? 0.25 : (double)(float)arg_or(c, "freq_scale", 1);
    const double n_ctx = 4096, attn = (double)1.1f;

    dshape(y, x->ne[0], x->ne[1], x->ne[2], 1);
    FOR_EACH(x, i, h, t, l)
    {
        *dat(y, i, h, t, l) = *dat(x, i, h, t, l);
    }
    for (int64_t t = 0; t < x->ne[2]; t++)
        for (int64_t i = 0; i < half; i++) {
            double extra = pos->v[t] * pow(base, -2.0 * (double)i / (double)n_rot), m = attn;
            if (factors->v)
                extra /= factors->v[i];
            double theta = stretch * extra;
            if (yarn) {
                const double low = fmax(0, floor(yarn_dimension(32, (double)n_rot, n_ctx, base)));
                const double high = fmin((double)n_rot - 1, ceil(yarn_dimension(1, (double)n_rot, n_ctx, base)));
                double ramp = ((double)i - low) / fmax(0.001, high - low);
                ramp = (1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp)) / (arg_or(c, "half", 0) > 0 ? 2 : 1);
                theta = theta * (1 - ramp) + extra * ramp;
                m *= 1 - 0.1 * log(stretch);
            }
            for (int64_t h = 0; h < x->ne[1]; h++) {
                const int64_t a = neox ? i : 2 * i, b = neox ? i + half : 2 * i + 1;
                const double xa = *dat(x, a, h, t, 0), xb = *dat(x, b, h, t, 0);
                *dat(y, a, h, t, 0) = m * (xa * cos(theta) - sign * xb * sin(theta));
                *dat(y, b, h, t, 0) = m * (sign * xa * sin(theta) + xb * cos(theta));
            }
        }
}

void ref_rope(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    rotate(c, src, y, 1);
}

void ref_rope_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    rotate(c, src, y, -1);
}

/* ---- attention ---- */

void ref_attention(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *q = &src[0], *k = &src[1], *v = &src[2], *range = &src[3], *sinks = &src[4];
    const double scale = (double)(float)arg_or(c, "scale", 1), cap = arg_or(c, "cap", 0);
    const int64_t share = q->ne[1] / k->ne[1];
    double *s = calloc((size_t)k->ne[2] + 1, sizeof *s);

    (void)node;
    dshape(y, v->ne[0], q->ne[1], q->ne[2], 1);
    for (int64_t t = 0; t < q->ne[2]; t++)
        for (int64_t h = 0; h < q->ne[1]; h++) {
            const int64_t first = (int64_t)*dat(range, 0, t, 0, 0), last = (int64_t)*dat(range, 1, t, 0, 0);
            double sum = sinks->v ? exp(sinks->v[h]) : 0;
            for (int64_t j = first; j < last; j++) {
                double dot = 0;
                for (int64_t i = 0; i < q->ne[0]; i++)
                    dot += *dat(q, i, h, t, 0) * *dat(k, i, h / share, j, 0);
                s[j] = exp(cap > 0 ? cap * tanh(scale * dot / cap) : scale * dot);
                sum += s[j];
            }
            for (int64_t j = first; j < last; j++)
                for (int64_t i = 0; i < v->ne[0]; i++)
                    *dat(y, i, h, t, 0) += s[j] / sum * *dat(v, i, h / share, j, 0);
        }
    free(s);
}

/* ---- losses and optimizers ---- */

void ref_cross_entropy(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0], *targets = &src[1], *mask = &src[2];

    (void)node;
    dshape(y, x->ne[1], 1, 1, 1);
    for (int64_t t = 0; t < x->ne[1]; t++) {
        double sum = 0;
        for (int64_t i = 0; i < x->ne[0]; i++)
            sum += exp(*dat(x, i, t, 0, 0));
        if (targets->v[t] >= 0 && targets->v[t] != arg_or(c, "ignore", -1))
            y->v[t] = (mask->v ? mask->v[t] : 1) * (log(sum) - *dat(x, (int64_t)targets->v[t], t, 0, 0));
    }
}

/* E times the mean over tokens of the mean over slots of P at the slot's expert. */
void ref_router_balance(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *probs = &src[0], *ids = &src[1], *w = &src[2];
    double total = 0;

    (void)c, (void)node;
    dshape(y, 1, 1, 1, 1);
    for (int64_t t = 0; t < ids->ne[1]; t++)
        total += w->v ? w->v[t] : 1;
    FOR_EACH(ids, s, t, k, l)
    {
        double mean = 0;
        for (int64_t u = 0; u < probs->ne[1]; u++)
            mean += (w->v ? w->v[u] : 1) / total * *dat(probs, (int64_t)*dat(ids, s, t, k, l), u, 0, 0);
        if (total > 0)
            y->v[0] += (double)probs->ne[0] / (double)ids->ne[0] * (w->v ? w->v[t] : 1) / total * mean;
    }
}

void ref_router_z(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0], *w = &src[1];
    double total = 0;

    (void)c, (void)node;
    dshape(y, 1, 1, 1, 1);
    for (int64_t t = 0; t < x->ne[1]; t++) {
        double sum = 0;
        for (int64_t e = 0; e < x->ne[0]; e++)
            sum += exp(*dat(x, e, t, 0, 0));
        y->v[0] += (w->v ? w->v[t] : 1) * pow(log(sum), 2);
        total += w->v ? w->v[t] : 1;
    }
    y->v[0] = total > 0 ? y->v[0] / total : 0;
}

void ref_adamw(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *p = &src[0], *grad = &src[1], *m = &src[2], *v = &src[3];
    const double *h = src[4].v;
    const int look = (int)arg_or(c, "look", 0);

    (void)node;
    dshape(y, p->ne[0], p->ne[1], p->ne[2], p->ne[3]);
    for (int64_t i = 0; i < dcount(p); i++) {
        const double g = h[7] * grad->v[i], m1 = h[1] * m->v[i] + (1 - h[1]) * g;
        const double v1 = h[2] * v->v[i] + (1 - h[2]) * g * g;
        const double p1 = p->v[i] - h[0] * (m1 * h[5] / (sqrt(v1 * h[6]) + h[3]) + h[4] * p->v[i]);
        y->v[i] = look == 2 ? m1 : look == 3 ? v1 : p1;
    }
}

void ref_sgd(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *p = &src[0], *grad = &src[1];
    const double *h = src[2].v;

    (void)c, (void)node;
    dshape(y, p->ne[0], p->ne[1], p->ne[2], p->ne[3]);
    for (int64_t i = 0; i < dcount(p); i++)
        y->v[i] = p->v[i] - h[0] * (h[2] * grad->v[i] + h[1] * p->v[i]);
}

void ref_clip_norm(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const int64_t at = arg(c, "at");
    const double clip = (double)arg(c, "clip100") / 100;
    double sum = 0;

    (void)node;
    dshape(y, src[0].ne[0], 1, 1, 1);
    memcpy(y->v, src[0].v, (size_t)src[0].ne[0] * sizeof *y->v);
    for (int64_t i = 0; i < dcount(&src[1]); i++)
        sum += src[1].v[i] * src[1].v[i];
    const double norm = sqrt(sum);
    y->v[at] = clip > 0 && norm > clip ? clip / norm : 1;
    y->v[at + 1] = (double)(float)norm;
    y->v[at + 2] = norm - (double)(float)norm;
}

/* ---- gated units ---- */

double gated_unit(const char *op, const test_case *c, double a, double b)
{
    if (strcmp(op, "SWIGLU_OAI") == 0) {
        const double alpha = (double)oai_alpha(c), limit = (double)oai_limit(c);
        a = fmin(a, limit);
        return a / (1 + exp(-alpha * a)) * (fmin(fmax(b, -limit), limit) + 1);
    }
    return function_of_one(strcmp(op, "SWIGLU") == 0 ? "SILU" : strcmp(op, "GEGLU") == 0 ? "GELU" : "RELU", a) * b;
}

void ref_gated(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *gate = &src[0], *up = &src[1];

    (void)node;
    dshape(y, gate->ne[0], gate->ne[1], gate->ne[2], gate->ne[3]);
    for (int64_t i = 0; i < dcount(gate); i++)
        y->v[i] = gated_unit(c->family->op, c, gate->v[i], up->v[i]);
}
