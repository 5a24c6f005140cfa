/* AdamW and SGD; see optimizer.h. */
#include "train/optimizer.h"

#include "core/sized.h"
#include "firn/ops.h"
#include "model/model.h"
#include "op/clip.h"

#include <math.h>
#include <string.h>

/* Numbers of a step: hyper as OPT_STEP_ADAMW and _SGD have it, whose last one CLIP_NORM writes, with the norm behind
 * it. */
enum { N_HYPER = 8, N_STATE = N_HYPER + FIRN_CLIP_RESULTS - 1 };

struct firn_optimizer {
    firn_parameters *store;
    firn_optimizer_params params;
    int64_t steps;
    int n_hyper; /* of this kind */
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *state, *work;
    float *host; /* [2 * N_STATE] staging: what goes there, and what comes back */
};

static const char *const names[] = {[FIRN_OPTIMIZER_ADAMW] = "adamw", [FIRN_OPTIMIZER_SGD] = "sgd"};

firn_status firn_optimizer_kind_from_name(firn_context *ctx, const char *name, firn_optimizer_kind *kind)
{
    for (int i = 0; i < 2; i++)
        if (strcmp(name, names[i]) == 0) {
            *kind = (firn_optimizer_kind)i;
            return FIRN_OK;
        }
    return firn_fail(ctx, FIRN_ERR_ARGUMENT, "there is no optimizer '%.40s': expected adamw or sgd", name);
}

void firn_optimizer_params_init_sized(firn_optimizer_params *params, size_t size)
{
    const firn_optimizer_params ours = {.size = sizeof ours, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

    if (!params)
        return;
    params->size = size;
    firn_sized_give(params, &ours);
}

uint64_t firn_optimizer_bytes(firn_optimizer_kind kind, int64_t n)
{
    return kind == FIRN_OPTIMIZER_ADAMW ? firn_parameters_bytes(n, 2) : 0;
}

static firn_status build(firn_optimizer *o)
{
    static const char *const part_names[] = {"values", "gradients", "m", "v"};
    firn_parameters *st = o->store;
    firn_context *ctx = st->ctx;
    const bool adamw = o->params.kind == FIRN_OPTIMIZER_ADAMW;
    const int n_parts = adamw ? FIRN_PARAMETERS_PARTS : FIRN_PARAMETERS_GRADIENTS + 1;
    firn_tensor *part[FIRN_PARAMETERS_PARTS];

    for (int i = 0; i < n_parts; i++)
        FIRN_TRY(firn_parameters_add(st, (firn_parameters_part)i));
    FIRN_TRY(firn_graph_create(ctx, &o->graph));
    firn_graph *g = o->graph;
    for (int i = 0; i < n_parts; i++)
        part[i] = firn_slot(g, FIRN_F32, 1, &st->n, "%s", part_names[i]);
    const int64_t n_state = o->n_hyper + FIRN_CLIP_RESULTS - 1;
    firn_tensor *state = firn_slot(g, FIRN_F32, 1, &n_state, "hyper");
    firn_tensor *hyper =
        firn_named(firn_clip_norm(g, state, part[FIRN_PARAMETERS_GRADIENTS], o->n_hyper - 1, o->params.clip), "clip");
    if (adamw)
        firn_named(firn_opt_step_adamw(g, part[0], part[1], part[2], part[3], hyper), "adamw");
    else
        firn_named(firn_opt_step_sgd(g, part[0], part[1], hyper), "sgd");
    FIRN_TRY(firn_plan_create(st->device, g, &o->plan));
    FIRN_TRY(firn_exec_create(o->plan, &o->exec));
    FIRN_TRY(firn_buffer_create(st->device, N_STATE * sizeof(float), &o->state));
    if (firn_plan_work_bytes(o->plan))
        FIRN_TRY(firn_buffer_create(st->device, firn_plan_work_bytes(o->plan), &o->work));
    FIRN_TRY(firn_exec_memory(o->exec, NULL, 0, o->work, 0));
    for (int i = 0; i < n_parts; i++)
        FIRN_TRY(firn_exec_bind(o->exec, part[i], st->part[i], 0));
    FIRN_TRY(firn_exec_bind(o->exec, state, o->state, 0));
    void *host;
    FIRN_TRY(firn_staging_create(st->device, 2 * N_STATE * sizeof(float), &host));
    o->host = host;
    return FIRN_OK;
}

firn_status firn_optimizer_create_on(firn_parameters *store, const firn_optimizer_params *params,
                                     firn_optimizer **optimizer)
{
    *optimizer = NULL;
    FIRN_EXPECT(store->ctx, store->n >= 1, "an optimizer needs values, not %lld of them", (long long)store->n);
    FIRN_EXPECT(store->ctx, params->kind == FIRN_OPTIMIZER_ADAMW || params->kind == FIRN_OPTIMIZER_SGD,
                "%d is no optimizer", (int)params->kind);
    FIRN_EXPECT(store->ctx, store->part[FIRN_PARAMETERS_GRADIENTS], "an optimizer needs a session made with train");
    firn_optimizer *o = firn_alloc_zeroed(store->ctx, 1, sizeof *o);
    if (!o)
        return FIRN_ERR_MEMORY;
    o->store = firn_parameters_keep(store);
    o->params = *params;
    o->n_hyper = params->kind == FIRN_OPTIMIZER_ADAMW ? N_HYPER : 3;
    const firn_status s = build(o);
    if (s != FIRN_OK) {
        firn_optimizer_destroy(o);
        return s;
    }
    *optimizer = o;
    return FIRN_OK;
}

firn_status firn_optimizer_create(firn_session *session, const firn_optimizer_params *params,
                                  firn_optimizer **optimizer)
{
    FIRN_GIVEN(NULL, session);
    firn_parameters *store = firn_session_parameters(session);
    firn_context *ctx = firn_session_context(session);
    firn_optimizer_params ours;

    FIRN_GIVEN(ctx, optimizer);
    *optimizer = NULL;
    firn_optimizer_params_init(&ours);
    if (params)
        FIRN_TRY(FIRN_TAKE(ctx, firn_optimizer_params, clip, params, &ours));
    FIRN_EXPECT(ctx, store, "an optimizer needs a session with an adapter");
    return firn_optimizer_create_on(store, &ours, optimizer);
}

void firn_optimizer_destroy(firn_optimizer *o)
{
    if (!o)
        return;
    firn_parameters *store = o->store;
    firn_exec_destroy(o->exec);
    firn_plan_destroy(o->plan);
    firn_graph_destroy(o->graph);
    firn_buffer_destroy(o->state);
    firn_buffer_destroy(o->work);
    firn_staging_destroy(store->device, o->host);
    firn_free(store->ctx, o);
    firn_parameters_drop(store);
}

/* The bias corrections in double: 1 - beta^t has few digits left in float at the first steps. */
static void fill_hyper(const firn_optimizer *o, float learning_rate, float *hyper)
{
    const firn_optimizer_params *p = &o->params;
    const double t = (double)(o->steps + 1);

    if (p->kind == FIRN_OPTIMIZER_SGD) {
        memcpy(hyper, (float[]){learning_rate, p->weight_decay}, 2 * sizeof *hyper);
        return;
    }
    const float all[N_HYPER - 1] = {learning_rate,
                                    p->beta1,
                                    p->beta2,
                                    p->eps,
                                    p->weight_decay,
                                    (float)(1 / (1 - pow((double)p->beta1, t))),
                                    (float)(1 / (1 - pow((double)p->beta2, t)))};
    memcpy(hyper, all, sizeof all);
}

firn_status firn_optimizer_step(firn_optimizer *o, float learning_rate, double *norm)
{
    FIRN_GIVEN(NULL, o);
    FIRN_GIVEN(o->store->ctx, norm);
    firn_device *device = o->store->device;
    float *back = o->host + N_STATE;
    const size_t bytes = (size_t)(o->n_hyper + FIRN_CLIP_RESULTS - 1) * sizeof(float);

    fill_hyper(o, learning_rate, o->host);
    FIRN_TRY(firn_queue_upload(FIRN_QUEUE_COMPUTE, o->state, 0, o->host, (size_t)(o->n_hyper - 1) * sizeof(float)));
    FIRN_TRY(firn_exec_run(o->exec, 0, 0));
    FIRN_TRY(firn_queue_download(FIRN_QUEUE_COMPUTE, o->state, 0, back, bytes));
    FIRN_TRY(firn_device_wait(device));
    *norm = (double)back[o->n_hyper - 1 + FIRN_CLIP_NORM] + (double)back[o->n_hyper - 1 + FIRN_CLIP_NORM_LOW];
    if (!isfinite(*norm))
        return firn_fail(o->store->ctx, FIRN_ERR_DEVICE,
                         "the norm of the gradient is not finite, and no step is taken");
    o->steps++;
    return FIRN_OK;
}

int64_t *firn_optimizer_steps(firn_optimizer *o)
{
    return &o->steps;
}
