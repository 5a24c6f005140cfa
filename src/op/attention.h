/* What every implementation of ATTENTION and ATTENTION_BACK knows of a node: sources, shapes, ranges, and where the
 * parts of the results lie. The contract and the formulas stand in op/attention.c. */
#ifndef FIRN_OP_ATTENTION_H
#define FIRN_OP_ATTENTION_H

#include "op/util.h"

enum { Q, K, V, RANGE, SINKS };
enum { BY = 4, BDY, BSINKS };

/* What both directions know of their tensors; strides in floats. */
typedef struct {
    const float *q, *k, *v;
    const firn_tensor *range;
    void *range_first;
    int64_t hd, hv, n_head, n_group, n_q, n_kv; /* n_group: G */
    int64_t q1, q2, k1, k2, v1, v2;
    float scale, cap;
} shapes;

static inline shapes shapes_of(const firn_call *call)
{
    const firn_tensor *y = call->node, *q = y->src[Q], *k = y->src[K], *v = y->src[V];
    const int64_t size = sizeof(float);

    return (shapes){
        .q = call->src[Q],
        .k = call->src[K],
        .v = call->src[V],
        .range = y->src[RANGE],
        .range_first = call->src[RANGE],
        .hd = q->ne[0],
        .hv = v->ne[0],
        .n_head = q->ne[1],
        .n_group = k->ne[1],
        .n_q = q->ne[2],
        .n_kv = k->ne[2],
        .q1 = q->nb[1] / size,
        .q2 = q->nb[2] / size,
        .k1 = k->nb[1] / size,
        .k2 = k->nb[2] / size,
        .v1 = v->nb[1] / size,
        .v2 = v->nb[2] / size,
        .scale = y->params.f[0],
        .cap = y->params.f[1],
    };
}

static inline int64_t blocks(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* Keys of query t, inside [0, n_kv]. */
static inline void range_at(const firn_call *call, const shapes *s, int64_t t, int64_t *first, int64_t *last)
{
    const int32_t a = *(const int32_t *)firn_at(s->range, s->range_first, 0, t, 0, 0);
    const int32_t b = *(const int32_t *)firn_at(s->range, s->range_first, 1, t, 0, 0);

    if (a < 0 || a > s->n_kv)
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, 2 * t, a, s->n_kv + 1);
    if (b < 0 || b > s->n_kv)
        firn_fault_set(call->fault, FIRN_FAULT_ID_RANGE, call->node, 2 * t + 1, b, s->n_kv + 1);
    *first = firn_max_i64(a, 0);
    *last = firn_min_i64(b, s->n_kv);
}

static inline int64_t y_values(const firn_tensor *q, const firn_tensor *v)
{
    return v->ne[0] * q->ne[1] * q->ne[2];
}

/* Where the four gradients begin in the flat result. */
typedef struct {
    int64_t dq, dk, dv, dsinks, end;
} layout;

static inline layout layout_of(const firn_tensor *q, const firn_tensor *k, const firn_tensor *v,
                               const firn_tensor *sinks)
{
    layout l = {0};

    l.dk = firn_n_elements(q);
    l.dv = l.dk + firn_n_elements(k);
    l.dsinks = l.dv + firn_n_elements(v);
    l.end = l.dsinks + (sinks ? sinks->ne[0] : 0);
    return l;
}

/* Each of these leaves a row that is finite as it is, and computes another anew from what it sees alone
 * (attention_wild.c): query t of head h, its y and lse; the same one's dq; key j of group g, its dk and dv. */
void firn_attention_mend_row(const firn_call *call, const shapes *s, int64_t h, int64_t t);
void firn_attention_mend_query(const firn_call *call, const shapes *s, int64_t h, int64_t t);
void firn_attention_mend_key(const firn_call *call, const shapes *s, int64_t g, int64_t j);

#endif
