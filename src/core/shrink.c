/* Plans on fewer rows; see shrink.h. */
#include "core/shrink.h"

#include <string.h>

/* One number that depends on a size: an int64_t, or where that is NULL an int32_t. */
typedef struct {
    int64_t *wide;
    int32_t *narrow;
    int64_t full, per[FIRN_SHRINK_SIZES]; /* full - sum of per less */
} number;

struct firn_shrink {
    firn_context *ctx;
    firn_plan *plan;
    number *numbers;
    size_t n, capacity;
    int64_t less[FIRN_SHRINK_SIZES]; /* as it is now */
};

static bool alike(const firn_tensor *a, const firn_tensor *b)
{
    bool same = a->type == b->type && a->op == b->op && a->part == b->part && a->output == b->output &&
                a->root->index == b->root->index;

    for (int s = 0; s < FIRN_MAX_SRC; s++)
        same &= (!a->src[s] && !b->src[s]) || (a->src[s] && b->src[s] && a->src[s]->index == b->src[s]->index);
    return same;
}

enum { N_WIDE = 2 * FIRN_MAX_DIMS + 1, N_NUMBERS = N_WIDE + FIRN_MAX_PARAMS };

/* Number i of a tensor. */
static int64_t *wide_of(firn_tensor *t, int i)
{
    return i < FIRN_MAX_DIMS       ? &t->ne[i]
           : i < 2 * FIRN_MAX_DIMS ? &t->nb[i - FIRN_MAX_DIMS]
           : i < N_WIDE            ? &t->offset
                                   : NULL;
}

static int64_t value_of(firn_tensor *t, int i)
{
    return i < N_WIDE ? *wide_of(t, i) : t->params.i[i - N_WIDE];
}

/* Takes in the numbers of one tensor; false where they are not affine. */
static firn_status learn(firn_shrink *s, firn_tensor *t, firn_graph *const smaller[FIRN_SHRINK_SIZES], firn_graph *also,
                         bool *affine)
{
    for (int i = 0; *affine && i < N_NUMBERS; i++) {
        number x = {.wide = wide_of(t, i), .full = value_of(t, i)};
        int64_t confirmed = x.full;
        bool depends = false;
        for (int k = 0; k < FIRN_SHRINK_SIZES; k++) {
            if (smaller[k])
                x.per[k] = x.full - value_of(smaller[k]->tensors[t->index], i);
            confirmed -= 2 * x.per[k];
            depends |= x.per[k] != 0;
        }
        *affine = value_of(also->tensors[t->index], i) == confirmed;
        if (!depends || !*affine)
            continue;
        if (!x.wide)
            x.narrow = &t->params.i[i - N_WIDE];
        FIRN_TRY(firn_grow(s->ctx, (void **)&s->numbers, s->n, &s->capacity, sizeof *s->numbers));
        s->numbers[s->n++] = x;
    }
    return FIRN_OK;
}

firn_status firn_shrink_create(firn_plan *plan, firn_graph *const smaller[FIRN_SHRINK_SIZES], firn_graph *also,
                               firn_shrink **result)
{
    firn_graph *g = firn_plan_graph(plan);
    bool affine = firn_plan_replans(plan) && also->n == g->n;
    firn_status status = FIRN_OK;

    *result = NULL;
    for (int k = 0; k < FIRN_SHRINK_SIZES; k++)
        affine = affine && (!smaller[k] || smaller[k]->n == g->n);
    if (!affine)
        return FIRN_OK;
    firn_shrink *s = firn_alloc_zeroed(g->ctx, 1, sizeof *s);
    if (!s)
        return FIRN_ERR_MEMORY;
    s->ctx = g->ctx;
    s->plan = plan;
    for (size_t i = 0; status == FIRN_OK && affine && i < g->n; i++) {
        firn_tensor *t = g->tensors[i];
        affine = alike(t, also->tensors[i]);
        for (int k = 0; k < FIRN_SHRINK_SIZES; k++)
            affine = affine && (!smaller[k] || alike(t, smaller[k]->tensors[i]));
        if (affine)
            status = learn(s, t, smaller, also, &affine);
    }
    if (status != FIRN_OK || !affine) {
        firn_shrink_destroy(s);
        return status;
    }
    *result = s;
    return FIRN_OK;
}

void firn_shrink_destroy(firn_shrink *s)
{
    if (!s)
        return;
    firn_free(s->ctx, s->numbers);
    firn_free(s->ctx, s);
}

static firn_status set(firn_shrink *s, const int64_t less[FIRN_SHRINK_SIZES])
{
    for (size_t i = 0; i < s->n; i++) {
        const number *x = &s->numbers[i];
        int64_t v = x->full;
        for (int k = 0; k < FIRN_SHRINK_SIZES; k++)
            v -= x->per[k] * less[k];
        if (x->wide)
            *x->wide = v;
        else
            *x->narrow = (int32_t)v;
    }
    memcpy(s->less, less, sizeof s->less);
    return firn_plan_replan(s->plan);
}

firn_status firn_shrink_to(firn_shrink *s, const int64_t less[FIRN_SHRINK_SIZES])
{
    static const int64_t none[FIRN_SHRINK_SIZES];

    if (memcmp(s->less, less, sizeof s->less) == 0)
        return FIRN_OK;
    firn_plan_settle(s->plan);
    const firn_status status = set(s, less);
    if (status != FIRN_OK)
        (void)set(s, none); /* as it was planned */
    return status;
}
