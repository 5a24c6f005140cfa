/* The gradient graph, from the rule in each operation's file.
 *
 * Reverse mode over nodes in build order: a tensor's gradient is complete when the walk reaches it, since everything
 * that reads it was built later. Only tensors on a path from a wanted one to y get a gradient. */
#include "core/graph.h"
#include "op/op.h"

static bool is_float(const firn_tensor *t)
{
    return firn_type_is_weight(t->type);
}

/* mark = 1: depends on a wanted tensor. */
static void mark_dependents(firn_graph *g, int last, firn_tensor *const *wanted, int n)
{
    for (int i = 0; i <= last; i++) {
        g->tensors[i]->mark = 0;
        g->tensors[i]->grad = NULL;
    }
    for (int i = 0; i < n; i++)
        wanted[i]->mark = 1;
    for (int i = 0; i <= last; i++) {
        firn_tensor *t = g->tensors[i];
        for (int s = 0; s < FIRN_MAX_SRC && !t->mark; s++)
            if (t->src[s] && t->src[s]->mark && is_float(t))
                t->mark = 1;
    }
}

/* What to call a tensor in a sentence. */
static const char *title(const firn_tensor *t)
{
    return t->name[0] ? t->name : t->op ? t->op->name : "a slot";
}

static firn_status expect_member(const firn_graph *g, const firn_tensor *t, const char *what)
{
    FIRN_EXPECT(g->ctx, firn_graph_has(g, t), "%s, %s, is of another graph", what, title(t));
    return FIRN_OK;
}

static void through(firn_graph *g, firn_tensor *t)
{
    const firn_op *op = t->op;

    if (!op->gradient) {
        for (int s = 0; s < FIRN_MAX_SRC; s++) {
            if (t->src[s] && t->src[s]->mark) {
                firn_graph_fail(g, FIRN_ERR_UNSUPPORTED,
                                "%s (node %s) has no gradient, and %s needs one through it: %s", op->name, title(t),
                                title(t->src[s]), op->no_gradient ? op->no_gradient : "it has no rule");
                return;
            }
        }
        return;
    }
    for (int s = 0; s < FIRN_MAX_SRC && g->status == FIRN_OK; s++) {
        firn_tensor *x = t->src[s];
        if (!x || !x->mark || !is_float(x))
            continue;
        firn_tensor *dx = op->gradient(g, t, t->grad, s);
        if (!dx || g->status != FIRN_OK)
            continue; /* none by nature, or a failure that the graph keeps */
        if (!firn_same_shape(dx, x)) {
            firn_graph_fail(
                g, FIRN_ERR_ARGUMENT,
                "the gradient rule of %s gave [%lld, %lld, %lld, %lld] for source %d of [%lld, %lld, %lld, %lld]",
                op->name, (long long)dx->ne[0], (long long)dx->ne[1], (long long)dx->ne[2], (long long)dx->ne[3], s,
                (long long)x->ne[0], (long long)x->ne[1], (long long)x->ne[2], (long long)x->ne[3]);
            return;
        }
        x->grad = x->grad ? firn_add(g, x->grad, dx) : dx;
    }
}

/* Checks y and dy; dy NULL becomes a 1. */
static firn_status seed_of(firn_graph *g, const firn_tensor *y, firn_tensor **dy)
{
    FIRN_EXPECT(g->ctx, y, "the gradient of which tensor? y is NULL");
    FIRN_TRY(expect_member(g, y, "y"));
    FIRN_EXPECT(g->ctx, is_float(y), "y, %s, holds integers, which have no gradient", title(y));
    if (!*dy) {
        FIRN_EXPECT(g->ctx, firn_n_elements(y) == 1, "without dy, y must be one number, not %lld",
                    (long long)firn_n_elements(y));
        *dy = firn_fill(g, y->ne, 1.0f);
    }
    if (!*dy)
        return firn_graph_status(g);
    FIRN_TRY(expect_member(g, *dy, "dy"));
    FIRN_EXPECT(g->ctx, firn_same_shape(y, *dy), "dy must have y's shape");
    FIRN_EXPECT(g->ctx, is_float(*dy), "dy holds integers, which are no gradient");
    return FIRN_OK;
}

firn_status firn_graph_grad_all(firn_graph *g, firn_tensor *const *y, firn_tensor *const *dy, int n_y,
                                firn_tensor *const *wanted, int n, firn_tensor **grads)
{
    enum { MOST = 8 };
    firn_tensor *seed[MOST];
    int last = -1;

    FIRN_GIVEN(g ? g->ctx : NULL, g, y, dy, wanted, grads);
    for (int i = 0; i < n; i++)
        grads[i] = NULL;
    FIRN_TRY(firn_graph_status(g));
    FIRN_EXPECT(g->ctx, n_y >= 1 && n_y <= MOST, "gradients of 1 to %d results at once, not of %d", MOST, n_y);
    for (int i = 0; i < n; i++) {
        FIRN_EXPECT(g->ctx, wanted[i], "wanted tensor %d is NULL", i);
        FIRN_TRY(expect_member(g, wanted[i], "a wanted tensor"));
        FIRN_EXPECT(g->ctx, is_float(wanted[i]), "%s holds integers, which have no gradient", title(wanted[i]));
    }
    for (int i = 0; i < n_y; i++) {
        seed[i] = dy[i];
        FIRN_TRY(seed_of(g, y[i], &seed[i]));
        last = y[i]->index > last ? y[i]->index : last;
    }
    mark_dependents(g, last, wanted, n);
    for (int i = 0; i < n_y; i++)
        if (y[i]->mark)
            y[i]->grad = y[i]->grad ? firn_add(g, y[i]->grad, seed[i]) : seed[i];
    for (int i = last; i >= 0 && g->status == FIRN_OK; i--) {
        firn_tensor *t = g->tensors[i];
        if (t->op && t->grad && t->mark)
            through(g, t);
    }
    for (int i = 0; i < n; i++) /* one that was built after every y has none, and was not looked at */
        grads[i] = wanted[i]->index <= last ? wanted[i]->grad : NULL;
    for (int i = 0; i <= last; i++)
        g->tensors[i]->grad = NULL;
    return firn_graph_status(g);
}

firn_status firn_graph_grad(firn_graph *g, firn_tensor *y, firn_tensor *dy, firn_tensor *const *wanted, int n,
                            firn_tensor **grads)
{
    return firn_graph_grad_all(g, &y, &dy, 1, wanted, n, grads);
}
