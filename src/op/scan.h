/* What GATED_DELTA, SSM_SCAN and their gradients are given, for the reference (scan.c) and its fast siblings. */
#ifndef FIRN_OP_SCAN_H
#define FIRN_OP_SCAN_H

#include "op/op.h"

enum { FIRN_SCAN_Q, FIRN_SCAN_K, FIRN_SCAN_V, FIRN_SCAN_G, FIRN_SCAN_BETA, FIRN_SCAN_FIRST, FIRN_SCAN_STATE };
enum { FIRN_SCAN_DO = 6 /* in the gradients, which have no state */ };

/* Strides in floats; names as in scan.c. */
typedef struct {
    const firn_call *call;
    const float *q, *k, *v, *g, *beta;
    const float *state; /* NULL in the gradients */
    const int32_t *first;
    int64_t s, dv, n_head, n_group, n, q1, q2, k1, k2, v1, v2;
    bool tiled, channels, delta;
} firn_scan;

firn_scan firn_scan_of(const firn_call *call, bool delta, bool back);
/* Tokens whose document begins behind them are a fault. */
void firn_scan_check(const firn_scan *c);

/* Where the gradients lie in the flat result. */
typedef struct {
    int64_t dq, dk, dv, dg, dbeta, end;
} firn_scan_gradients;

firn_scan_gradients firn_scan_gradients_of(const firn_tensor *y);

static inline int64_t firn_scan_group(const firn_scan *c, int64_t h)
{
    return c->tiled ? h % c->n_group : h / (c->n_head / c->n_group);
}

/* Whether the state is 0 before token t. */
static inline bool firn_scan_begins(const firn_scan *c, int64_t t)
{
    return c->first[t] >= t || (t == 0 && !c->state);
}

#endif
