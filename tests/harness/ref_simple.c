/* Elementwise operations, shapes, sums and sorts, in double. */
#include "refs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool smooth_references;

double round_to(firn_type type, double v)
{
    int exponent;

    if (smooth_references)
        return v;
    if (type == FIRN_F32 || v == 0 || !isfinite(v))
        return (double)(float)v;
    const int digits = type == FIRN_F16 ? 11 : 8, lowest = type == FIRN_F16 ? -13 : -125;
    frexp(v, &exponent); /* |v| in [2^(exponent-1), 2^exponent) */
    const int unit = (exponent < lowest ? lowest : exponent) - digits;
    const double rounded = ldexp(nearbyint(ldexp(v, -unit)), unit);
    return type == FIRN_F16 && fabs(rounded) > 65504 ? copysign(INFINITY, v) : rounded;
}

static void like(dtensor *y, const dtensor *x)
{
    dshape(y, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);
}

void ref_arithmetic(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    like(y, &src[0]);
    FOR_EACH(y, i, j, k, l)
    {
        const double a = *dat(&src[0], i, j, k, l), b = drep(&src[1], i, j, k, l);
        const char *op = c->family->op;
        *dat(y, i, j, k, l) = *op == 'A' ? a + b : *op == 'S' ? a - b : *op == 'M' ? a * b : a / b;
    }
}

double function_of_one(const char *op, double x)
{
    const double pi = 3.14159265358979323846;

    if (strcmp(op, "SCALE") == 0)
        return (double)-1.7f * x;
    if (strcmp(op, "CLAMP") == 0)
        return fmin(fmax(x, (double)-0.5f), (double)0.6f);
    if (strcmp(op, "SQR") == 0)
        return x * x;
    if (strcmp(op, "SQRT") == 0)
        return sqrt(x);
    if (strcmp(op, "EXP") == 0)
        return exp(x);
    if (strcmp(op, "LOG") == 0)
        return log(x);
    if (strcmp(op, "SILU") == 0)
        return x / (1 + exp(-x));
    if (strcmp(op, "GELU") == 0)
        return 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    if (strcmp(op, "GELU_QUICK") == 0)
        return x / (1 + exp(-1.702 * x));
    if (strcmp(op, "GELU_ERF") == 0)
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    if (strcmp(op, "RELU") == 0)
        return fmax(x, 0);
    if (strcmp(op, "SIGMOID") == 0)
        return 1 / (1 + exp(-x));
    if (strcmp(op, "TANH") == 0)
        return tanh(x);
    return log1p(exp(x)); /* SOFTPLUS */
}

void ref_unary(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    like(y, &src[0]);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] = function_of_one(c->family->op, src[0].v[i]);
}

/* CONT, RESHAPE: the same elements in the same order. */
void ref_copy(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    if (strcmp(c->family->op, "RESHAPE") == 0)
        dshape(y, src[0].ne[0] * src[0].ne[1], src[0].ne[2], src[0].ne[3], 1);
    else
        like(y, &src[0]);
    memcpy(y->v, src[0].v, (size_t)dcount(y) * sizeof *y->v);
}

void ref_cast(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    like(y, &src[0]);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] = round_to((firn_type)arg_or(c, "to", FIRN_F32), src[0].v[i]);
}

void ref_cpy(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)c;
    like(y, &src[0]);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] = round_to(node->type, src[1].v[i]);
}

/* The view that cases_simple.c makes: every second row from row 1, from column 2, of all planes but the first. */
void ref_view(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0];

    (void)c, (void)node;
    dshape(y, a->ne[0] - 3, a->ne[1] / 2, a->ne[2] - 1, 1);
    FOR_EACH(y, i, j, k, l) * dat(y, i, j, k, l) = *dat(a, i + 2, 2 * j + 1, k + 1, l);
}

void ref_view_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    (void)node;
    dshape(dx, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), 1);
    FOR_EACH(&src[0], i, j, k, l) * dat(dx, i + 2, 2 * j + 1, k + 1, l) = *dat(&src[0], i, j, k, l);
}

void ref_permute(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0];
    int64_t ne[FIRN_MAX_DIMS];
    const bool turn = strcmp(c->family->op, "TRANSPOSE") == 0;
    const int axes[] = {turn ? 1 : (int)arg_or(c, "a0", 0), turn ? 0 : (int)arg_or(c, "a1", 1),
                        turn ? 2 : (int)arg_or(c, "a2", 2), turn ? 3 : (int)arg_or(c, "a3", 3)};

    (void)node;
    for (int i = 0; i < FIRN_MAX_DIMS; i++)
        ne[axes[i]] = a->ne[i];
    dshape(y, ne[0], ne[1], ne[2], ne[3]);
    FOR_EACH(a, i, j, k, l)
    {
        const int64_t from[] = {i, j, k, l};
        int64_t to[FIRN_MAX_DIMS];
        for (int d = 0; d < FIRN_MAX_DIMS; d++)
            to[axes[d]] = from[d];
        *dat(y, to[0], to[1], to[2], to[3]) = *dat(a, i, j, k, l);
    }
}

void ref_repeat(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const dtensor *a = &src[0];

    (void)node;
    dshape(y, a->ne[0] * arg(c, "r0"), a->ne[1] * arg(c, "r1"), a->ne[2] * arg(c, "r2"), a->ne[3] * arg(c, "r3"));
    FOR_EACH(y, i, j, k, l) * dat(y, i, j, k, l) = drep(a, i, j, k, l);
}

void ref_repeat_back(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *dx)
{
    const dtensor *dy = &src[0];

    (void)node;
    dshape(dx, dy->ne[0] / arg(c, "r0"), dy->ne[1] / arg(c, "r1"), dy->ne[2] / arg(c, "r2"), dy->ne[3] / arg(c, "r3"));
    FOR_EACH(dy, i, j, k, l)
    *dat(dx, i % dx->ne[0], j % dx->ne[1], k % dx->ne[2], l % dx->ne[3]) += *dat(dy, i, j, k, l);
}

void ref_concat(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    const int axis = (int)arg_or(c, "axis", 0);
    int64_t ne[FIRN_MAX_DIMS];

    (void)node;
    memcpy(ne, src[0].ne, sizeof ne);
    ne[axis] += src[1].ne[axis];
    dshape(y, ne[0], ne[1], ne[2], ne[3]);
    for (int s = 0; s < 2; s++)
        FOR_EACH(&src[s], i, j, k, l)
        {
            int64_t at[] = {i, j, k, l};
            at[axis] += s ? src[0].ne[axis] : 0;
            *dat(y, at[0], at[1], at[2], at[3]) = *dat(&src[s], i, j, k, l);
        }
}

void ref_fill(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node, (void)src;
    dshape(y, arg(c, "n"), arg(c, "n1"), arg(c, "n2"), 1);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] = 2.5;
}

void ref_add_into(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)c, (void)node;
    like(y, &src[0]);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] = src[0].v[i] + src[1].v[i];
}

/* ---- sums ---- */

void ref_sum(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)c, (void)node;
    dshape(y, 1, 1, 1, 1);
    for (int64_t i = 0; i < dcount(&src[0]); i++)
        y->v[0] += src[0].v[i];
}

void ref_sum_rows(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)c, (void)node;
    dshape(y, 1, src[0].ne[1], src[0].ne[2], src[0].ne[3]);
    FOR_EACH(&src[0], i, j, k, l) * dat(y, 0, j, k, l) += *dat(&src[0], i, j, k, l);
}

void ref_mean(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    ref_sum_rows(c, node, src, y);
    for (int64_t i = 0; i < dcount(y); i++)
        y->v[i] /= (double)src[0].ne[0];
}

/* ---- sorts: each place's rank by counting ---- */

static bool stands_before(const double *row, int64_t i, int64_t j, bool falling)
{
    const double a = row[i], b = row[j];

    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? i < j : isnan(b);
    return a == b ? i < j : falling ? a > b : a < b;
}

static void sorted(const dtensor *a, dtensor *y, int64_t k, bool falling)
{
    dshape(y, k, a->ne[1], a->ne[2], a->ne[3]);
    FOR_EACH(a, i, j, m, l)
    {
        const double *row = dat(a, 0, j, m, l);
        int64_t rank = 0;
        for (int64_t o = 0; o < a->ne[0]; o++)
            rank += o != i && stands_before(row, o, i, falling);
        if (rank < k)
            *dat(y, rank, j, m, l) = (double)i;
    }
}

void ref_argsort(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    sorted(&src[0], y, src[0].ne[0], arg_or(c, "falling", 0) > 0);
}

void ref_top_k(const test_case *c, const firn_tensor *node, const dtensor *src, dtensor *y)
{
    (void)node;
    sorted(&src[0], y, arg(c, "k"), true);
}
