/* Plans and execs: see firn/graph.h.
 *
 * Memory: every node that has storage of its own lives from its launch to the last launch that reads it or a view of
 * it, across parts. A node may take the memory of a source that dies with it (op.in_place). The resulting pieces are
 * laid out largest first, each at the lowest address that no piece alive at the same time covers. */
#include "core/backend.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

typedef struct {
    int first, last; /* launches, by tensor index */
    size_t size, offset;
    int shares; /* tensor whose piece this one lies in, or -1 */
    bool alive; /* the node is needed */
} piece;

struct firn_plan {
    firn_context *ctx;
    firn_device *device;
    firn_graph *graph;
    firn_plan *next; /* of the device's plans */
    uint32_t number; /* of the device's plans: its faults carry it */
    int n_tensors, n_parts, n_launches;
    firn_launch *launches;
    int *part_start; /* [n_parts + 1] into launches */
    size_t *offset;  /* [n_tensors] into the arena */
    bool *in_arena;  /* [n_tensors] */
    size_t arena, work;
    size_t execs;   /* that are there */
    bool destroyed; /* by its owner: the last exec lets it go */
};

struct firn_exec {
    firn_plan *plan;
    firn_place *bound; /* [n_tensors] */
    firn_place arena, work;
};

/* ---- planning ---- */

/* From outputs and writes into slots back to what they need. */
static void mark_alive(const firn_graph *g, piece *pieces)
{
    for (int i = (int)g->n - 1; i >= 0; i--) {
        const firn_tensor *t = g->tensors[i];
        if (t->op && (t->output || (t->op->into && !t->root->op)))
            pieces[i].alive = true;
        if (!pieces[i].alive)
            continue;
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (t->src[s])
                pieces[t->src[s]->index].alive = true;
        pieces[t->root->index].alive = true;
    }
}

static void find_lifetimes(const firn_graph *g, piece *pieces)
{
    for (int i = 0; i < (int)g->n; i++) {
        const firn_tensor *t = g->tensors[i];
        pieces[i].first = pieces[i].last = i;
        pieces[i].shares = -1;
        if (!pieces[i].alive)
            continue;
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (t->src[s])
                pieces[t->src[s]->root->index].last = i;
        pieces[t->root->index].last = i;
    }
}

static bool wants_memory(const firn_tensor *t, const piece *p)
{
    return p->alive && t->op && t->root == t && !t->output;
}

/* Lets a node take over the memory of a source that nobody reads after it. */
static void share_in_place(const firn_graph *g, piece *pieces)
{
    for (int i = 0; i < (int)g->n; i++) {
        firn_tensor *t = g->tensors[i];
        if (!wants_memory(t, &pieces[i]))
            continue;
        for (int s = 0; s < FIRN_MAX_SRC; s++) {
            if (!(t->op->in_place >> s & 1) || !t->src[s])
                continue;
            const firn_tensor *x = t->src[s];
            piece *p = &pieces[x->index];
            bool again = false; /* the same tensor as another source that may not be overwritten */
            for (int o = 0; o < FIRN_MAX_SRC; o++)
                again |= o != s && t->src[o] && t->src[o]->root == x->root;
            if (again || x->root != x || !wants_memory(x, p) || p->last != i || !firn_is_contiguous(x) ||
                firn_n_bytes(x) != firn_n_bytes(t))
                continue;
            pieces[i].shares = x->index;
            break;
        }
    }
    /* A chain of sharers is one piece, that of its head, alive from the head's launch to the last reader of the tail.
     */
    for (int i = 0; i < (int)g->n; i++) {
        if (pieces[i].shares < 0)
            continue;
        int head = pieces[i].shares;
        while (pieces[head].shares >= 0)
            head = pieces[head].shares;
        pieces[i].shares = head;
        if (pieces[i].last > pieces[head].last)
            pieces[head].last = pieces[i].last;
    }
}

static _Thread_local const piece *sorting; /* qsort has no argument for it */

static int by_size(const void *a, const void *b)
{
    const piece *p = &sorting[*(const int *)a], *q = &sorting[*(const int *)b];

    if (p->size != q->size)
        return p->size < q->size ? 1 : -1;
    return *(const int *)a - *(const int *)b;
}

static int by_offset(const void *a, const void *b)
{
    const piece *p = &sorting[*(const int *)a], *q = &sorting[*(const int *)b];

    return p->offset < q->offset ? -1 : p->offset > q->offset;
}

static firn_status lay_out(firn_context *ctx, const firn_graph *g, piece *pieces, size_t *arena)
{
    int *order = firn_alloc(ctx, (g->n + 1) * sizeof *order), *near = firn_alloc(ctx, (g->n + 1) * sizeof *near);
    int n = 0;
    firn_status s = FIRN_OK;

    if (!order || !near)
        s = FIRN_ERR_MEMORY;
    for (int i = 0; s == FIRN_OK && i < (int)g->n; i++) {
        if (!wants_memory(g->tensors[i], &pieces[i]) || pieces[i].shares >= 0)
            continue;
        pieces[i].size = (firn_n_bytes(g->tensors[i]) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
        order[n++] = i;
    }
    *arena = 0;
    sorting = pieces;
    if (s == FIRN_OK)
        qsort(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; s == FIRN_OK && i < n; i++) {
        piece *p = &pieces[order[i]];
        int m = 0;
        for (int j = 0; j < i; j++) {
            const piece *q = &pieces[order[j]];
            if (q->first <= p->last && p->first <= q->last)
                near[m++] = order[j];
        }
        qsort(near, (size_t)m, sizeof *near, by_offset);
        p->offset = 0;
        for (int j = 0; j < m; j++) {
            const piece *q = &pieces[near[j]];
            if (q->offset >= p->offset + p->size)
                break;
            if (q->offset + q->size > p->offset)
                p->offset = q->offset + q->size;
        }
        if (p->offset + p->size > *arena)
            *arena = p->offset + p->size;
        if (*arena > SIZE_MAX / 4) /* what is added to it next is at most 2^48 */
            s = firn_fail(ctx, FIRN_ERR_ARGUMENT, "the tensors of the graph are more than memory can hold");
    }
    firn_free(ctx, order);
    firn_free(ctx, near);
    return s;
}

static firn_status prepare_launches(firn_plan *plan, const piece *pieces)
{
    const firn_graph *g = plan->graph;

    for (int i = 0, part = 0; i < (int)g->n; i++) {
        const firn_tensor *t = g->tensors[i];
        for (; part < t->part; part++)
            plan->part_start[part + 1] = plan->n_launches;
        plan->in_arena[i] = wants_memory(t, &pieces[i]);
        plan->offset[i] = pieces[pieces[i].shares >= 0 ? pieces[i].shares : i].offset;
        if (!pieces[i].alive || !t->op || t->op->view)
            continue;
        firn_launch *l = &plan->launches[plan->n_launches];
        *l = (firn_launch){.node = t, .plan = plan->number};
        const firn_status s = plan->device->backend->plan(plan->device, t, l);
        if (s != FIRN_OK)
            return firn_fail_in(plan->ctx, s, "%s cannot run %s%s%s", plan->device->name, t->op->name,
                                t->name[0] ? " " : "", t->name);
        if (l->work > plan->work)
            plan->work = l->work;
        plan->n_launches++;
    }
    for (int part = g->n ? g->tensors[g->n - 1]->part : 0; part < plan->n_parts; part++)
        plan->part_start[part + 1] = plan->n_launches;
    return FIRN_OK;
}

firn_status firn_plan_create(firn_device *device, firn_graph *graph, firn_plan **result)
{
    FIRN_GIVEN(device ? device->ctx : NULL, device, graph);
    FIRN_EXPECT(device->ctx, result, "firn_plan_create: plan must not be null");
    firn_context *ctx = device->ctx;

    *result = NULL;
    FIRN_EXPECT(ctx, graph->ctx == ctx, "the graph was made with another context than the device %s", device->name);
    FIRN_TRY(firn_graph_status(graph));
    firn_plan *plan = firn_alloc_zeroed(ctx, 1, sizeof *plan);
    if (!plan)
        return FIRN_ERR_MEMORY;
    plan->ctx = ctx;
    plan->device = device;
    plan->graph = graph;
    plan->number = ++device->n_plans;
    plan->next = device->plans;
    device->plans = plan;
    firn_device_hold(device);
    graph->plans++;
    plan->n_tensors = (int)graph->n;
    plan->n_parts = graph->part + 1;
    plan->launches = firn_alloc_zeroed(ctx, graph->n + 1, sizeof *plan->launches);
    plan->part_start = firn_alloc_zeroed(ctx, (size_t)plan->n_parts + 1, sizeof *plan->part_start);
    plan->offset = firn_alloc_zeroed(ctx, graph->n + 1, sizeof *plan->offset);
    plan->in_arena = firn_alloc_zeroed(ctx, graph->n + 1, sizeof *plan->in_arena);
    piece *pieces = firn_alloc_zeroed(ctx, graph->n + 1, sizeof *pieces);
    firn_status s = FIRN_ERR_MEMORY;
    if (plan->launches && plan->part_start && plan->offset && plan->in_arena && pieces) {
        mark_alive(graph, pieces);
        find_lifetimes(graph, pieces);
        share_in_place(graph, pieces);
        s = lay_out(ctx, graph, pieces, &plan->arena);
        if (s == FIRN_OK)
            s = prepare_launches(plan, pieces);
    }
    firn_free(ctx, pieces);
    if (s != FIRN_OK) {
        firn_plan_destroy(plan);
        return s;
    }
    *result = plan;
    return FIRN_OK;
}

static void let_go(firn_plan *plan)
{
    firn_device *device = plan->device;

    if (plan->execs || !plan->destroyed)
        return;
    firn_device_settle(device); /* queued work reads launches and nodes */
    for (firn_plan **p = &device->plans; *p; p = &(*p)->next)
        if (*p == plan) {
            *p = plan->next;
            break;
        }
    for (int i = 0; plan->launches && i < plan->n_tensors; i++)
        firn_free(plan->ctx, plan->launches[i].memory);
    firn_free(plan->ctx, plan->launches);
    firn_free(plan->ctx, plan->part_start);
    firn_free(plan->ctx, plan->offset);
    firn_free(plan->ctx, plan->in_arena);
    firn_graph_release(plan->graph);
    firn_free(plan->ctx, plan);
    firn_device_release(device);
}

firn_graph *firn_plan_graph(const firn_plan *plan)
{
    return plan->graph;
}

bool firn_plan_replans(const firn_plan *plan)
{
    return plan->device->backend->replans;
}

void firn_plan_settle(const firn_plan *plan)
{
    firn_device_settle(plan->device);
}

firn_status firn_plan_replan(firn_plan *plan)
{
    for (int i = 0; i < plan->n_launches; i++) {
        firn_launch *l = &plan->launches[i];
        firn_launch again = {.node = l->node, .plan = l->plan, .memory = l->memory};
        const firn_status s = plan->device->backend->plan(plan->device, l->node, &again);
        l->memory = again.memory;
        if (s != FIRN_OK)
            return s;
        if (again.work > plan->work)
            return firn_fail(plan->ctx, FIRN_ERR_MEMORY, "%s wants %zu bytes of workspace, and the plan has %zu",
                             l->node->op->name, again.work, plan->work);
        *l = again;
    }
    return FIRN_OK;
}

void firn_plan_destroy(firn_plan *plan)
{
    if (!plan)
        return;
    plan->destroyed = true;
    let_go(plan);
}

const firn_tensor *firn_plan_tensor(const firn_device *device, uint32_t plan, int32_t index)
{
    for (const firn_plan *p = device->plans; p; p = p->next)
        if (p->number == plan)
            return index >= 0 && index < p->n_tensors ? p->graph->tensors[index] : NULL;
    return NULL;
}

size_t firn_plan_arena_bytes(const firn_plan *plan)
{
    return plan ? plan->arena : 0;
}

size_t firn_plan_work_bytes(const firn_plan *plan)
{
    return plan ? plan->work : 0;
}

int firn_plan_n_parts(const firn_plan *plan)
{
    return plan ? plan->n_parts : 0;
}

int firn_plan_n_nodes(const firn_plan *plan)
{
    return plan ? plan->n_launches : 0;
}

double firn_plan_flops(const firn_plan *plan, int part)
{
    double flops = 0;

    if (plan && part >= 0 && part < plan->n_parts)
        for (int i = plan->part_start[part]; i < plan->part_start[part + 1]; i++)
            flops += firn_op_cost(plan->launches[i].node).flops;
    return flops;
}

/* ---- running ---- */

firn_status firn_exec_create(firn_plan *plan, firn_exec **result)
{
    FIRN_GIVEN(NULL, plan);
    FIRN_EXPECT(plan->ctx, result, "firn_exec_create: exec must not be null");
    firn_exec *exec = *result = firn_alloc_zeroed(plan->ctx, 1, sizeof *exec);

    if (!exec)
        return FIRN_ERR_MEMORY;
    exec->plan = plan;
    plan->execs++;
    exec->bound = firn_alloc_zeroed(plan->ctx, (size_t)plan->n_tensors + 1, sizeof *exec->bound);
    if (!exec->bound) {
        firn_exec_destroy(exec);
        *result = NULL;
        return FIRN_ERR_MEMORY;
    }
    return FIRN_OK;
}

void firn_exec_destroy(firn_exec *exec)
{
    if (!exec)
        return;
    firn_plan *plan = exec->plan;
    firn_free(plan->ctx, exec->bound);
    firn_free(plan->ctx, exec);
    plan->execs--;
    let_go(plan);
}

/* That [offset, offset + size) lies in the buffer at a multiple of `align`, and the buffer on the plan's device. */
static firn_status check_place(const firn_exec *exec, const firn_buffer *buffer, size_t offset, size_t size,
                               size_t align, const char *what)
{
    firn_context *ctx = exec->plan->ctx;

    FIRN_EXPECT(ctx, buffer, "%s needs a buffer, not NULL", what);
    FIRN_EXPECT(ctx, buffer->device == exec->plan->device, "%s lies on %s, the plan on %s", what, buffer->device->name,
                exec->plan->device->name);
    FIRN_EXPECT(ctx, offset <= buffer->size && size <= buffer->size - offset,
                "%s needs %zu bytes at offset %zu, the buffer has %zu", what, size, offset, buffer->size);
    FIRN_EXPECT(ctx, (buffer->skew + offset) % align == 0,
                "%s needs an address that is a multiple of %zu: offset %zu of a buffer%s is not", what, align, offset,
                buffer->skew ? " that begins beside one" : "");
    return FIRN_OK;
}

firn_status firn_exec_bind(firn_exec *exec, const firn_tensor *tensor, firn_buffer *buffer, size_t offset)
{
    FIRN_GIVEN(exec ? exec->plan->ctx : NULL, exec, tensor, buffer);
    firn_context *ctx = exec->plan->ctx;

    FIRN_EXPECT(ctx, firn_graph_has(exec->plan->graph, tensor), "the tensor to bind is not in the plan's graph");
    const char *name = tensor->name[0] ? tensor->name : tensor->op ? tensor->op->name : "a slot";
    FIRN_EXPECT(ctx, tensor->index < exec->plan->n_tensors, "%s was added to the graph after the plan was made", name);
    FIRN_EXPECT(ctx, (!tensor->op || tensor->output) && !exec->plan->in_arena[tensor->index],
                "%s is computed inside the plan and cannot be bound", name);
    FIRN_TRY(check_place(exec, buffer, offset, firn_n_bytes(tensor), firn_type_align(tensor->type), name));
    exec->bound[tensor->index] = (firn_place){buffer, offset};
    return FIRN_OK;
}

firn_status firn_exec_memory(firn_exec *exec, firn_buffer *arena, size_t arena_offset, firn_buffer *work,
                             size_t work_offset)
{
    FIRN_GIVEN(NULL, exec);
    if (exec->plan->arena)
        FIRN_TRY(check_place(exec, arena, arena_offset, exec->plan->arena, ALIGN, "the arena"));
    if (exec->plan->work)
        FIRN_TRY(check_place(exec, work, work_offset, exec->plan->work, ALIGN, "the workspace"));
    exec->arena = (firn_place){arena, arena_offset};
    exec->work = (firn_place){work, work_offset};
    return FIRN_OK;
}

firn_place firn_exec_place(const firn_exec *exec, const firn_tensor *t)
{
    const int root = t->root->index;
    firn_place p = exec->bound[root];

    if (exec->plan->in_arena[root]) {
        p = exec->arena;
        p.offset += exec->plan->offset[root];
    }
    p.offset += (size_t)t->offset;
    return p;
}

firn_place firn_exec_work(const firn_exec *exec)
{
    return exec->work;
}

static firn_status check_bound(const firn_exec *exec, const firn_tensor *t)
{
    FIRN_EXPECT(exec->plan->ctx, firn_exec_place(exec, t).buffer, "%s%s has no memory: it was not bound before the run",
                t->root->name[0] ? t->root->name : "a tensor", t->root->op ? " (an output)" : " (a slot)");
    return FIRN_OK;
}

firn_status firn_exec_run_on(firn_exec *exec, firn_queue queue, int part, int flags)
{
    FIRN_GIVEN(NULL, exec);
    const firn_plan *plan = exec->plan;

    FIRN_EXPECT(plan->ctx, (flags & ~FIRN_RUN_CHECK) == 0, "a run has no flags %#x", (unsigned)flags);
    FIRN_EXPECT(plan->ctx, part >= 0 && part < plan->n_parts, "the plan has parts 0 to %d, not %d", plan->n_parts - 1,
                part);
    const firn_launch *first = plan->launches + plan->part_start[part];
    const int n = plan->part_start[part + 1] - plan->part_start[part];
    for (int i = 0; i < n; i++) {
        FIRN_TRY(check_bound(exec, first[i].node));
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (first[i].node->src[s])
                FIRN_TRY(check_bound(exec, first[i].node->src[s]));
    }
    if (n == 0)
        return FIRN_OK;
    FIRN_EXPECT(plan->ctx, !plan->work || exec->work.buffer, "the plan needs a workspace: call firn_exec_memory first");
    return plan->device->backend->run(plan->device, queue,
                                      &(firn_submission){.launches = first, .n = n, .exec = exec, .flags = flags});
}

firn_status firn_exec_run(firn_exec *exec, int part, int flags)
{
    return firn_exec_run_on(exec, FIRN_QUEUE_COMPUTE, part, flags);
}
