/* AdamW; see optimizer.h. */
#include "train/optimizer.h"

#include "core/context.h"
#include "firn/ops.h"

#include <math.h>

enum { ALIGN = 64 };

struct firn_optimizer {
    firn_context *ctx;
    firn_device *device;
    firn_adamw_params params;
    int64_t n, steps;
    void *memory; /* m, then v, behind alignment */
    float *m, *v;
    float hyper[8];
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    firn_tensor *slot[5]; /* p, gradient, m, v, hyper */
    firn_buffer *m_buffer, *v_buffer, *hyper_buffer, *work;
};

static size_t moment_bytes(int64_t n)
{
    return ((size_t)n * sizeof(float) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

uint64_t firn_optimizer_bytes(int64_t n)
{
    return 2 * (uint64_t)moment_bytes(n) + ALIGN;
}

static firn_status build(firn_optimizer *o)
{
    static const char *const names[] = {"values", "gradients", "m", "v", "hyper"};
    const int64_t eight = 8;

    FIRN_TRY(firn_graph_create(o->ctx, &o->graph));
    for (int i = 0; i < 5; i++)
        o->slot[i] = firn_slot(o->graph, FIRN_F32, 1, i == 4 ? &eight : &o->n, "%s", names[i]);
    firn_named(firn_opt_step_adamw(o->graph, o->slot[0], o->slot[1], o->slot[2], o->slot[3], o->slot[4]), "adamw");
    FIRN_TRY(firn_plan_create(o->device, o->graph, &o->plan));
    FIRN_TRY(firn_exec_create(o->plan, &o->exec));
    FIRN_TRY(firn_buffer_wrap(o->device, o->m, moment_bytes(o->n), &o->m_buffer));
    FIRN_TRY(firn_buffer_wrap(o->device, o->v, moment_bytes(o->n), &o->v_buffer));
    FIRN_TRY(firn_buffer_create(o->device, sizeof o->hyper, &o->hyper_buffer));
    if (firn_plan_work_bytes(o->plan))
        FIRN_TRY(firn_buffer_create(o->device, firn_plan_work_bytes(o->plan), &o->work));
    FIRN_TRY(firn_exec_memory(o->exec, NULL, 0, o->work, 0));
    FIRN_TRY(firn_exec_bind(o->exec, o->slot[2], o->m_buffer, 0));
    FIRN_TRY(firn_exec_bind(o->exec, o->slot[3], o->v_buffer, 0));
    return firn_exec_bind(o->exec, o->slot[4], o->hyper_buffer, 0);
}

firn_status firn_optimizer_create(firn_context *ctx, firn_device *device, int64_t n, const firn_adamw_params *params,
                                  firn_optimizer **optimizer)
{
    *optimizer = NULL;
    FIRN_EXPECT(ctx, n >= 1, "an optimizer needs values, not %lld of them", (long long)n);
    firn_optimizer *o = firn_alloc_zeroed(ctx, 1, sizeof *o);
    if (!o)
        return FIRN_ERR_MEMORY;
    o->ctx = ctx;
    o->device = device;
    o->params = params ? *params : FIRN_ADAMW_DEFAULTS;
    o->n = n;
    o->memory = firn_alloc_zeroed(ctx, 1, (size_t)firn_optimizer_bytes(n));
    firn_status s = FIRN_ERR_MEMORY;
    if (o->memory) {
        o->m = (float *)(((uintptr_t)o->memory + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
        o->v = o->m + moment_bytes(n) / sizeof(float);
        s = build(o);
    }
    if (s != FIRN_OK) {
        firn_optimizer_destroy(o);
        return s;
    }
    *optimizer = o;
    return FIRN_OK;
}

void firn_optimizer_destroy(firn_optimizer *o)
{
    if (!o)
        return;
    firn_exec_destroy(o->exec);
    firn_plan_destroy(o->plan);
    firn_graph_destroy(o->graph);
    firn_buffer_destroy(o->m_buffer);
    firn_buffer_destroy(o->v_buffer);
    firn_buffer_destroy(o->hyper_buffer);
    firn_buffer_destroy(o->work);
    firn_free(o->ctx, o->memory);
    firn_free(o->ctx, o);
}

firn_status firn_optimizer_step(firn_optimizer *o, float *values, const float *gradients, float learning_rate,
                                float scale)
{
    const size_t bytes = (size_t)o->n * sizeof(float);
    firn_buffer *p = NULL, *g = NULL;

    o->steps++;
    /* The bias corrections in double: 1 - beta^t has few digits left in float at the first steps. */
    const float hyper[8] = {learning_rate,
                            o->params.beta1,
                            o->params.beta2,
                            o->params.eps,
                            o->params.weight_decay,
                            (float)(1 / (1 - pow((double)o->params.beta1, (double)o->steps))),
                            (float)(1 / (1 - pow((double)o->params.beta2, (double)o->steps))),
                            scale};
    firn_status s = firn_buffer_write(o->hyper_buffer, 0, hyper, sizeof hyper);
    if (s == FIRN_OK)
        s = firn_buffer_wrap(o->device, values, bytes, &p);
    if (s == FIRN_OK)
        s = firn_buffer_wrap(o->device, gradients, bytes, &g);
    if (s == FIRN_OK)
        s = firn_exec_bind(o->exec, o->slot[0], p, 0);
    if (s == FIRN_OK)
        s = firn_exec_bind(o->exec, o->slot[1], g, 0);
    if (s == FIRN_OK)
        s = firn_exec_run(o->exec, 0, 0);
    if (s == FIRN_OK)
        s = firn_device_wait(o->device);
    firn_buffer_destroy(p);
    firn_buffer_destroy(g);
    return s;
}

float *firn_optimizer_m(firn_optimizer *o)
{
    return o->m;
}

float *firn_optimizer_v(firn_optimizer *o)
{
    return o->v;
}

int64_t *firn_optimizer_steps(firn_optimizer *o)
{
    return &o->steps;
}

double firn_norm_of(const float *x, int64_t n)
{
    /* Four sums, so that the additions overlap; the order is the same on every machine. */
    double sum[4] = {0, 0, 0, 0};

    for (int64_t i = 0; i < n; i++)
        sum[i & 3] += (double)x[i] * (double)x[i];
    return sqrt((sum[0] + sum[1]) + (sum[2] + sum[3]));
}
