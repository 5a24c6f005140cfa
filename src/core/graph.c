/* Graphs: tensors in build order, sticky errors. See firn/graph.h. */
#include "core/graph.h"

#include "core/plain.h"

#include "core/op.h"

#include <stdio.h>
#include <string.h>

/* Of one tensor: past what processors address, and so far below 64 bits that sums of sizes stay inside. */
static const size_t MOST_BYTES = (size_t)1 << 48;

firn_status firn_graph_create(firn_context *ctx, firn_graph **graph)
{
    FIRN_GIVEN(ctx, ctx, graph);
    firn_graph *g = *graph = firn_alloc_zeroed(ctx, 1, sizeof *g);

    if (!g)
        return FIRN_ERR_MEMORY;
    g->ctx = ctx;
    firn_arena_init(&g->arena, ctx, 0);
    return FIRN_OK;
}

static void let_go(firn_graph *g)
{
    if (g->plans || !g->destroyed)
        return;
    firn_arena_clear(&g->arena);
    firn_free(g->ctx, g->tensors);
    firn_free(g->ctx, g);
}

void firn_graph_destroy(firn_graph *g)
{
    if (!g)
        return;
    g->destroyed = true;
    let_go(g);
}

void firn_graph_release(firn_graph *g)
{
    g->plans--;
    let_go(g);
}

firn_context *firn_graph_context(const firn_graph *g)
{
    return g->ctx;
}

/* Keeps what the context says now as the graph's first failure. */
static void keep_failure(firn_graph *g, firn_status status)
{
    if (g->status != FIRN_OK)
        return;
    g->status = status;
    memcpy(g->error, firn_error(g->ctx), sizeof g->error);
}

firn_tensor *firn_graph_fail(firn_graph *g, firn_status status, const char *format, ...)
{
    if (!g)
        return NULL;
    va_list args;

    va_start(args, format);
    firn_failv(g->ctx, status, format, args);
    va_end(args);
    keep_failure(g, status);
    return NULL;
}

firn_status firn_graph_status(firn_graph *g)
{
    FIRN_GIVEN(NULL, g);
    return g->status == FIRN_OK ? FIRN_OK : firn_fail(g->ctx, g->status, "%s", g->error);
}

int firn_graph_n_tensors(const firn_graph *g)
{
    return g ? (int)g->n : 0;
}

firn_tensor *firn_graph_tensor(const firn_graph *g, int index)
{
    return g && index >= 0 && (size_t)index < g->n ? g->tensors[index] : NULL;
}

void firn_graph_cut(firn_graph *g)
{
    if (g)
        g->part++;
}

static firn_tensor *append(firn_graph *g, const firn_op *op)
{
    if (!g || g->status != FIRN_OK)
        return NULL;
    firn_tensor *t = firn_arena_zeroed(&g->arena, 1, sizeof *t);
    if (!t || firn_grow(g->ctx, (void **)&g->tensors, g->n, &g->capacity, sizeof *g->tensors) != FIRN_OK) {
        keep_failure(g, FIRN_ERR_MEMORY);
        return NULL;
    }
    t->op = op;
    t->root = t;
    t->part = g->part;
    t->index = (int)g->n;
    return t;
}

firn_status firn_shape_like(firn_context *ctx, firn_tensor *y, firn_type type, const int64_t ne[FIRN_MAX_DIMS])
{
    const int64_t block = firn_type_block(type);
    size_t stride = firn_type_size(type);

    FIRN_EXPECT(ctx, block > 0, "there is no tensor type %d", (int)type);
    FIRN_EXPECT(ctx, ne[0] % block == 0, "rows of %s have a multiple of %lld values, not %lld", firn_type_name(type),
                (long long)block, (long long)ne[0]);
    y->type = type;
    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        FIRN_EXPECT(ctx, ne[i] >= 0, "a dimension cannot have %lld elements", (long long)ne[i]);
        y->ne[i] = ne[i];
        y->nb[i] = (int64_t)stride;
        const size_t count = (size_t)(i == 0 ? ne[0] / block : ne[i]);
        if (!firn_mul_size(stride, count ? count : 1, &stride) || stride > MOST_BYTES)
            return firn_fail(ctx, FIRN_ERR_ARGUMENT, "[%lld, %lld, %lld, %lld] of %s is more than memory can hold",
                             (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3],
                             firn_type_name(type));
    }
    return FIRN_OK;
}

firn_status firn_shape_set(firn_context *ctx, firn_tensor *y, firn_type type, int n_dims, ...)
{
    int64_t ne[FIRN_MAX_DIMS] = {1, 1, 1, 1};
    va_list args;

    va_start(args, n_dims);
    for (int i = 0; i < n_dims; i++)
        ne[i] = va_arg(args, int64_t);
    va_end(args);
    return firn_shape_like(ctx, y, type, ne);
}

firn_tensor *firn_slot(firn_graph *g, firn_type type, int n_dims, const int64_t *ne, const char *name, ...)
{
    int64_t full[FIRN_MAX_DIMS] = {1, 1, 1, 1};
    va_list args;

    firn_tensor *t = append(g, NULL);
    if (!t)
        return NULL;
    if (n_dims < 1 || n_dims > FIRN_MAX_DIMS)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "a tensor has 1 to 4 dimensions, not %d", n_dims);
    if (!ne || !name)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "a slot needs a shape and a name");
    memcpy(full, ne, (size_t)n_dims * sizeof *ne);
    const firn_status s = firn_shape_like(g->ctx, t, type, full);
    if (s != FIRN_OK) {
        keep_failure(g, s);
        return NULL;
    }
    va_start(args, name);
    firn_vsnprintf(t->name, sizeof t->name, name, args);
    va_end(args);
    g->tensors[g->n++] = t;
    return t;
}

firn_tensor *firn_named(firn_tensor *t, const char *name, ...)
{
    va_list args;

    if (!t || !name)
        return t;
    va_start(args, name);
    firn_vsnprintf(t->name, sizeof t->name, name, args);
    va_end(args);
    return t;
}

bool firn_graph_has(const firn_graph *g, const firn_tensor *t)
{
    return firn_graph_tensor(g, t->index) == t;
}

/* Whether the tensor is one of this graph; else the graph fails. */
static bool is_member(firn_graph *g, const firn_tensor *t)
{
    if (firn_graph_has(g, t))
        return true;
    firn_graph_fail(g, FIRN_ERR_ARGUMENT, "a tensor%s%s is of another graph", t->name[0] ? " " : "", t->name);
    return false;
}

firn_tensor *firn_node(firn_graph *g, const firn_op *op, firn_tensor *const *src, int n, const firn_params *params)
{
    firn_tensor *t = append(g, op);

    if (!t)
        return NULL;
    for (int i = 0; i < n; i++) {
        if (!src[i] && i < op->n_src)
            return g->status == FIRN_OK
                       ? firn_graph_fail(g, FIRN_ERR_ARGUMENT, "%s needs a tensor as source %d, not NULL", op->name, i)
                       : NULL;
        if (src[i] && !is_member(g, src[i]))
            return NULL;
        t->src[i] = src[i];
    }
    if (params)
        t->params = *params;
    const firn_status s = op->shape(g->ctx, t);
    if (s != FIRN_OK) {
        firn_fail_in(g->ctx, s, "%s", op->name);
        keep_failure(g, s);
        return NULL;
    }
    if (op->view || op->into) {
        t->root = t->src[0]->root;
        t->offset += t->src[0]->offset;
    }
    g->tensors[g->n++] = t;
    return t;
}

firn_tensor *firn_output(firn_graph *g, firn_tensor *t)
{
    if (!t || !is_member(g, t))
        return NULL;
    if (!t->op || t->root != t)
        return firn_graph_fail(g, FIRN_ERR_ARGUMENT, "%s lies in another tensor's memory and cannot be an output",
                               t->name);
    t->output = true;
    return t;
}

int64_t firn_n_elements(const firn_tensor *t)
{
    return t ? t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3] : 0;
}

int64_t firn_n_rows(const firn_tensor *t)
{
    return t ? t->ne[1] * t->ne[2] * t->ne[3] : 0;
}

size_t firn_n_bytes(const firn_tensor *t)
{
    if (firn_n_elements(t) == 0)
        return 0;
    const int64_t blocks = t->ne[0] / firn_type_block(t->type);
    return (size_t)((blocks - 1) * t->nb[0] + (t->ne[1] - 1) * t->nb[1] + (t->ne[2] - 1) * t->nb[2] +
                    (t->ne[3] - 1) * t->nb[3]) +
           firn_type_size(t->type);
}

bool firn_is_contiguous(const firn_tensor *t)
{
    if (!t)
        return false;
    int64_t stride = (int64_t)firn_type_size(t->type);

    for (int i = 0; i < FIRN_MAX_DIMS; i++) {
        const int64_t count = i == 0 ? t->ne[0] / firn_type_block(t->type) : t->ne[i];
        if (count != 1 && t->nb[i] != stride)
            return false;
        stride *= count;
    }
    return true;
}

bool firn_same_shape(const firn_tensor *a, const firn_tensor *b)
{
    return a && b && memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

int64_t firn_op_items(const firn_tensor *y)
{
    return y->op->items ? y->op->items(y) : firn_n_rows(y);
}

firn_cost firn_op_cost(const firn_tensor *y)
{
    if (y->op->cost)
        return y->op->cost(y);
    firn_cost c = {.flops = y->op->view ? 0 : (double)firn_n_elements(y) * (y->op->flops ? y->op->flops : 1)};
    if (y->op->view)
        return c;
    for (int i = 0; i < FIRN_MAX_SRC; i++)
        if (y->src[i])
            c.bytes_read += (double)firn_n_bytes(y->src[i]);
    c.bytes_written = (double)firn_n_bytes(y);
    return c;
}
