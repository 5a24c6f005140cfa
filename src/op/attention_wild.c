/* Rows of ATTENTION and ATTENTION_BACK that are not finite, anew and one at a time. Tiles multiply what a row does not
 * see by zero, and 0 times NaN is NaN: keys, values, queries and gradients that are not finite would reach rows of
 * other documents that share a tile with them. So tiles first compute as if all were finite, and each of their rows
 * that then is not finite is computed here from nothing but what it sees. A row that does see NaN ends at the first
 * one. */
#include "op/attention.h"
#include "op/mathf.h"

static float score(const shapes *s, const float *q, const float *k)
{
    const float dot = (float)firn_dot(q, k, s->hd);

    return s->cap > 0 ? s->cap * firn_tanhf(dot * (s->scale / s->cap)) : dot * s->scale;
}

static void fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

static void add(float *sum, float by, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += by * x[i];
}

void firn_attention_mend_row(const firn_call *call, const shapes *s, int64_t h, int64_t t)
{
    const float *sinks = call->src[SINKS], *q = s->q + t * s->q2 + h * s->q1;
    const int64_t g = h / (s->n_head / s->n_group), at = t * s->n_head + h;
    float *y = (float *)call->dst + at * s->hv, *lse = (float *)call->dst + s->hv * s->n_head * s->n_q + at;
    const float *k = s->k + g * s->k1, *v = s->v + g * s->v1;
    float top = sinks ? sinks[h] : -INFINITY, below = sinks ? 1.0f : 0.0f;
    int64_t first, last;

    if (firn_all_finite(y, s->hv) && isfinite(*lse))
        return;
    range_at(call, s, t, &first, &last);
    fill(y, s->hv, 0);
    for (int64_t j = first; j < last; j++) {
        const float x = score(s, q, k + j * s->k2);
        if (isnan(x)) {
            fill(y, s->hv, NAN);
            *lse = NAN;
            return;
        }
        if (x > top) {
            const float shrink = firn_expf(top - x);
            below *= shrink;
            for (int64_t d = 0; d < s->hv; d++)
                y[d] *= shrink;
            top = x;
        }
        const float p = firn_expf(x - top);
        below += p;
        add(y, p, v + j * s->v2, s->hv);
    }
    for (int64_t d = 0; d < s->hv && first < last; d++)
        y[d] /= below;
    *lse = first < last ? top + logf(below) : 0;
}

/* ---- backward ---- */

typedef struct {
    const float *lse, *y, *dy;
    float *dq, *dk, *dv;
} gradients;

static gradients gradients_of(const firn_call *call)
{
    const firn_tensor *node = call->node;
    const layout l = layout_of(node->src[Q], node->src[K], node->src[V], node->src[BSINKS]);
    const float *y = call->src[BY];
    float *out = call->dst;

    return (gradients){.lse = y + y_values(node->src[Q], node->src[V]),
                       .y = y,
                       .dy = call->src[BDY],
                       .dq = out + l.dq,
                       .dk = out + l.dk,
                       .dv = out + l.dv};
}

/* p and dS of query t of head h and key j; NaN where the query's lse is. */
static float slope(const shapes *s, const gradients *b, int64_t h, int64_t t, int64_t j, float along, float *ds)
{
    const int64_t g = h / (s->n_head / s->n_group), at = t * s->n_head + h;
    const float x = score(s, s->q + t * s->q2 + h * s->q1, s->k + j * s->k2 + g * s->k1);
    const float p = firn_expf(x - b->lse[at]), u = s->cap > 0 ? x / s->cap : 0;

    *ds = 0;
    if (p != 0)
        *ds = p * ((float)firn_dot(b->dy + at * s->hv, s->v + j * s->v2 + g * s->v1, s->hv) - along) * s->scale *
              (1 - u * u);
    return p;
}

static float along_of(const shapes *s, const gradients *b, int64_t h, int64_t t)
{
    const int64_t at = (t * s->n_head + h) * s->hv;

    return (float)firn_dot(b->y + at, b->dy + at, s->hv);
}

void firn_attention_mend_query(const firn_call *call, const shapes *s, int64_t h, int64_t t)
{
    const gradients b = gradients_of(call);
    const int64_t g = h / (s->n_head / s->n_group), at = t * s->n_head + h;
    float *dq = b.dq + at * s->hd, ds;
    int64_t first, last;

    if (firn_all_finite(dq, s->hd))
        return;
    range_at(call, s, t, &first, &last);
    fill(dq, s->hd, 0);
    const float along = first < last ? along_of(s, &b, h, t) : 0;
    for (int64_t j = first; j < last; j++) {
        slope(s, &b, h, t, j, along, &ds);
        if (isnan(ds)) {
            fill(dq, s->hd, NAN);
            return;
        }
        add(dq, ds, s->k + j * s->k2 + g * s->k1, s->hd);
    }
}

void firn_attention_mend_key(const firn_call *call, const shapes *s, int64_t g, int64_t j)
{
    const gradients b = gradients_of(call);
    const int64_t heads = s->n_head / s->n_group, at = j * s->n_group + g;
    float *dk = b.dk + at * s->hd, *dv = b.dv + at * s->hv, ds;
    int64_t first, last;

    if (firn_all_finite(dk, s->hd) && firn_all_finite(dv, s->hv))
        return;
    fill(dk, s->hd, 0);
    fill(dv, s->hv, 0);
    for (int64_t t = 0; t < s->n_q; t++) {
        range_at(call, s, t, &first, &last);
        for (int64_t h = g * heads; h < (g + 1) * heads && first <= j && j < last; h++) {
            const float p = slope(s, &b, h, t, j, along_of(s, &b, h, t), &ds);
            add(dk, ds, s->q + t * s->q2 + h * s->q1, s->hd);
            add(dv, p, b.dy + (t * s->n_head + h) * s->hv, s->hv);
            if (isnan(ds) && isnan(p))
                return; /* all of both is NaN */
        }
    }
}
