/* The matrix products and what surrounds them, in double. */
#include "refs.h"

#include <math.h>
#include <string.h>

bool bf16_references;

bool is_product(const family *f)
{
    return f->reference == ref_mul_mat || f->reference == ref_out_prod || f->reference == ref_mul_mat_id ||
           f->reference == ref_mul_mat_id_back || f->reference == ref_out_prod_id;
}

/* A weight or activation as a product takes it. */
static double factor(double v)
{
    return bf16_references ? round_to(FIRN_BF16, v) : v;
}

void ref_mul_mat(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *w = &src[0], *x = &src[1];

    (void)c, (void)node;
    dshape(y, w->ne[1], x->ne[1], x->ne[2], x->ne[3]);
    FOR_EACH(y, j, n, i2, i3)
    {
        const double *a = dat(w, 0, j, i2 % w->ne[2], i3 % w->ne[3]), *b = dat(x, 0, n, i2, i3);
        double sum = 0;
        for (int64_t i = 0; i < w->ne[0]; i++)
            sum += factor(a[i]) * factor(b[i]);
        *dat(y, j, n, i2, i3) = sum;
    }
}

void ref_out_prod(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0], *b = &src[1];

    (void)c, (void)node;
    dshape(y, a->ne[0], b->ne[0], b->ne[2], b->ne[3]);
    for (int64_t i3 = 0; i3 < b->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < b->ne[2]; i2++)
            for (int64_t r = 0; r < b->ne[1]; r++)
                for (int64_t p = 0; p < b->ne[0]; p++) {
                    const double *row = dat(a, 0, r, i2 % a->ne[2], i3 % a->ne[3]), f = factor(*dat(b, p, r, i2, i3));
                    double *out = dat(y, 0, p, i2, i3);
                    for (int64_t i = 0; i < a->ne[0]; i++)
                        out[i] += factor(row[i]) * f;
                }
}

/* Calls visit for every slot: expert, slot, token. */
#define FOR_SLOTS(ids, e, s, t)                                                                                        \
    for (int64_t t = 0; t < (ids)->ne[1]; t++)                                                                         \
        for (int64_t s = 0; s < (ids)->ne[0]; s++)                                                                     \
            for (int64_t e = (int64_t)*dat(ids, s, t, 0, 0), once = 1; once; once = 0)

void ref_mul_mat_id(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *w = &src[0], *x = &src[1], *ids = &src[2], *table = &src[3];

    (void)c;
    dshape(y, w->ne[1], ids->ne[0], ids->ne[1], 1);
    FOR_SLOTS(ids, e, s, t)
    {
        /* A table of byte offsets names experts in another order. */
        const int64_t at = table->v ? (int64_t)table->v[e] / node->src[0]->nb[2] : e;
        for (int64_t j = 0; j < w->ne[1]; j++)
            for (int64_t i = 0; i < w->ne[0]; i++)
                *dat(y, j, s, t, 0) += factor(*dat(w, i, j, at, 0)) * factor(*dat(x, i, s % x->ne[1], t, 0));
    }
}

void ref_mul_mat_id_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *w = &src[0], *dy = &src[1], *ids = &src[2];

    (void)c, (void)node;
    dshape(dx, w->ne[0], ids->ne[0], ids->ne[1], 1);
    FOR_SLOTS(ids, e, s, t)
    {
        for (int64_t j = 0; j < w->ne[1]; j++)
            for (int64_t i = 0; i < w->ne[0]; i++)
                *dat(dx, i, s, t, 0) += factor(*dat(w, i, j, e, 0)) * factor(*dat(dy, j, s, t, 0));
    }
}

void ref_out_prod_id(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dw)
{
    const dtensor *x = &src[0], *dy = &src[1], *ids = &src[2];

    (void)node;
    dshape(dw, x->ne[0], dy->ne[0], arg(c, "n_expert"), 1);
    FOR_SLOTS(ids, e, s, t)
    {
        for (int64_t j = 0; j < dy->ne[0]; j++)
            for (int64_t i = 0; i < x->ne[0]; i++)
                *dat(dw, i, j, e, 0) += factor(*dat(x, i, s % x->ne[1], t, 0)) * factor(*dat(dy, j, s, t, 0));
    }
}

void ref_sum_slots(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0];

    (void)node;
    dshape(y, x->ne[0], arg(c, "shared"), x->ne[2], 1);
    FOR_EACH(x, i, s, t, l) * dat(y, i, s % y->ne[1], t, l) += *dat(x, i, s, t, l);
}

void ref_mix_slots(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *x = &src[0], *w = &src[1];

    (void)c, (void)node;
    dshape(y, x->ne[0], x->ne[2], 1, 1);
    FOR_EACH(x, i, s, t, l) * dat(y, i, t, 0, l) += *dat(x, i, s, t, l) * *dat(w, s, t, 0, 0);
}

void ref_add_id(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0], *b = &src[1], *ids = &src[2];

    (void)c, (void)node;
    dshape(y, a->ne[0], a->ne[1], a->ne[2], 1);
    FOR_SLOTS(ids, e, s, t)
    for (int64_t i = 0; i < a->ne[0]; i++)
        *dat(y, i, s, t, 0) = *dat(a, i, s, t, 0) + *dat(b, i, e, 0, 0);
}

void ref_get_rows(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0], *ids = &src[1];

    (void)c, (void)node;
    dshape(y, a->ne[0], ids->ne[0], ids->ne[1], ids->ne[2]);
    FOR_EACH(y, i, r, j, l) * dat(y, i, r, j, l) = *dat(a, i, (int64_t)*dat(ids, r, j, l, 0), j, l);
}

void ref_get_rows_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *da)
{
    const dtensor *dy = &src[0], *ids = &src[1];

    (void)node;
    dshape(da, dy->ne[0], arg(c, "rows"), dy->ne[2], dy->ne[3]);
    FOR_EACH(dy, i, r, j, l) * dat(da, i, (int64_t)*dat(ids, r, j, l, 0), j, l) += *dat(dy, i, r, j, l);
}

void ref_set_rows(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *dst = &src[0], *a = &src[1], *ids = &src[2];

    (void)c;
    dshape(y, dst->ne[0], dst->ne[1], dst->ne[2], dst->ne[3]);
    memcpy(y->v, dst->v, (size_t)dcount(dst) * sizeof *dst->v);
    FOR_EACH(a, i, r, j, l)
    *dat(y, i, (int64_t)ids->v[r], j, l) = round_to(node->type, *dat(a, i, r, j, l));
}
