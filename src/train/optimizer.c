/* The optimizer's graph and its step; see optimizer.h. */
#include "train/optimizer.h"

#include "core/sized.h"
#include "model/model.h"
#include "op/clip.h"
#include "train/named.h"

#include <math.h>
#include <string.h>

/* Numbers of a step: a kind's hyper, whose last one CLIP_NORM writes, with the norm behind it. */
enum { N_STATE = FIRN_OPTIMIZER_HYPER + FIRN_CLIP_RESULTS - 1 };

struct firn_optimizer {
    firn_parameters *store;
    firn_optimizer_params params;
    const firn_optimizer_rule *rule;
    int64_t steps;
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    firn_buffer *state, *factors, *arena, *work;
    float *host; /* [2 * N_STATE] staging: what goes there, and what comes back */
};

#define OPTIMIZER(id, name) extern const firn_optimizer_rule firn_optimizer_##id;
#include "train/optimizers.def"
#undef OPTIMIZER

static const firn_optimizer_rule *const rules[] = {
#define OPTIMIZER(id, name) &firn_optimizer_##id,
#include "train/optimizers.def"
#undef OPTIMIZER
};
enum { N_RULES = sizeof rules / sizeof *rules };

#define OPTIMIZER(id, name) name
const char *const firn_optimizer_names = &(
#include "train/optimizers.def"
    )[1];
#undef OPTIMIZER

firn_status firn_optimizer_kind_from_name(firn_context *ctx, const char *name, firn_optimizer_kind *kind)
{
    const int i = firn_name_index(name, firn_optimizer_names);

    if (i < 0)
        return firn_not_named(ctx, "optimizer", name, firn_optimizer_names);
    *kind = (firn_optimizer_kind)i;
    return FIRN_OK;
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
    return firn_parameters_bytes(n, rules[kind]->n_parts);
}

uint64_t firn_optimizer_work_bytes(firn_optimizer_kind kind, const firn_adapter *adapter)
{
    return rules[kind]->work ? rules[kind]->work(adapter) : 0;
}

/* ---- the graph ---- */

firn_tensor *firn_optimizer_part(const firn_optimizer_build *b, firn_parameters_part part)
{
    const int64_t ne[] = {b->stretch.n}, nb[] = {sizeof(float)};

    if (b->stretch.n == b->store->n)
        return b->part[part];
    return firn_view(b->graph, b->part[part], 1, ne, nb, b->stretch.first * (int64_t)sizeof(float));
}

/* The slots of all parts, bound to the store's when there is an exec. */
static firn_status each_part(firn_optimizer *o, firn_optimizer_build *b, bool bind)
{
    static const char *const names[] = {"values", "gradients", "m", "v"};
    firn_parameters_part list[4] = {FIRN_PARAMETERS_VALUES, FIRN_PARAMETERS_GRADIENTS};

    memcpy(list + 2, o->rule->part, sizeof o->rule->part);
    for (int i = 0; i < 2 + o->rule->n_parts; i++) {
        const firn_parameters_part part = list[i];
        if (bind) {
            FIRN_TRY(firn_exec_bind(o->exec, b->part[part], o->store->part[part], 0));
            continue;
        }
        FIRN_TRY(firn_parameters_add(o->store, part));
        b->part[part] = firn_slot(o->graph, FIRN_F32, 1, &o->store->n, "%s", names[part]);
    }
    return FIRN_OK;
}

/* A slot of numbers that multiply the hyper of each stretch: its factor on the rate, ones on the rest. NULL: every
 * factor is 1. */
static firn_status add_factors(firn_optimizer *o, const firn_rate_stretch *list, int n, int64_t n_state,
                               firn_tensor **factors)
{
    const size_t count = (size_t)n * (size_t)n_state, bytes = count * sizeof(float);
    bool all_one = true;

    *factors = NULL;
    for (int i = 0; i < n; i++)
        all_one &= list[i].factor == 1;
    if (all_one)
        return FIRN_OK;
    float *host = firn_alloc(o->store->ctx, bytes);
    if (!host)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < count; i++)
        host[i] = i % (size_t)n_state == 0 ? list[i / (size_t)n_state].factor : 1;
    *factors = firn_slot(o->graph, FIRN_F32, 2, (int64_t[]){n_state, n}, "factors");
    firn_status s = firn_buffer_create(o->store->device, bytes, &o->factors);
    if (s == FIRN_OK)
        s = firn_buffer_write(o->factors, 0, host, bytes);
    firn_free(o->store->ctx, host);
    return s;
}

static firn_status build(firn_optimizer *o, const firn_rate_stretch *list, int n)
{
    firn_parameters *st = o->store;
    const int64_t n_state = o->rule->n_hyper + FIRN_CLIP_RESULTS - 1;
    firn_tensor *factors;

    FIRN_TRY(firn_graph_create(st->ctx, &o->graph));
    firn_graph *g = o->graph;
    firn_optimizer_build b = {.graph = g, .store = st, .params = &o->params};
    FIRN_TRY(each_part(o, &b, false));
    FIRN_TRY(add_factors(o, list, n, n_state, &factors));
    firn_tensor *state = firn_slot(g, FIRN_F32, 1, &n_state, "hyper");
    firn_tensor *hyper = firn_named(
        firn_clip_norm(g, state, b.part[FIRN_PARAMETERS_GRADIENTS], o->rule->n_hyper - 1, o->params.clip), "clip");
    for (int i = 0; i < n; i++) {
        b.stretch = list[i];
        b.hyper = hyper;
        if (factors && list[i].factor != 1)
            b.hyper = firn_mul(
                g, hyper,
                firn_view(g, factors, 1, &n_state, (int64_t[]){sizeof(float)}, i * n_state * (int64_t)sizeof(float)));
        o->rule->add(&b);
    }
    FIRN_TRY(firn_plan_create(st->device, g, &o->plan));
    FIRN_TRY(firn_exec_create(o->plan, &o->exec));
    FIRN_TRY(firn_buffer_create(st->device, N_STATE * sizeof(float), &o->state));
    if (firn_plan_arena_bytes(o->plan))
        FIRN_TRY(firn_buffer_create(st->device, firn_plan_arena_bytes(o->plan), &o->arena));
    if (firn_plan_work_bytes(o->plan))
        FIRN_TRY(firn_buffer_create(st->device, firn_plan_work_bytes(o->plan), &o->work));
    FIRN_TRY(firn_exec_memory(o->exec, o->arena, 0, o->work, 0));
    FIRN_TRY(each_part(o, &b, true));
    FIRN_TRY(firn_exec_bind(o->exec, state, o->state, 0));
    if (factors)
        FIRN_TRY(firn_exec_bind(o->exec, factors, o->factors, 0));
    void *host;
    FIRN_TRY(firn_staging_create(st->device, 2 * N_STATE * sizeof(float), &host));
    o->host = host;
    return FIRN_OK;
}

firn_status firn_optimizer_create_on(firn_parameters *store, const firn_optimizer_params *params,
                                     const firn_rate_stretch *stretches, int n_stretches, firn_optimizer **optimizer)
{
    const firn_rate_stretch all = {0, store->n, 1};

    *optimizer = NULL;
    FIRN_EXPECT(store->ctx, store->n >= 1, "an optimizer needs values, not %lld of them", (long long)store->n);
    FIRN_EXPECT(store->ctx, (int)params->kind >= 0 && (int)params->kind < N_RULES, "%d is no optimizer",
                (int)params->kind);
    FIRN_EXPECT(store->ctx, store->part[FIRN_PARAMETERS_GRADIENTS], "an optimizer needs a session made with train");
    firn_optimizer *o = firn_alloc_zeroed(store->ctx, 1, sizeof *o);
    if (!o)
        return FIRN_ERR_MEMORY;
    o->store = firn_parameters_keep(store);
    o->params = *params;
    o->rule = rules[params->kind];
    const firn_status s = build(o, stretches ? stretches : &all, stretches ? n_stretches : 1);
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
    return firn_optimizer_create_on(store, &ours, NULL, 0, optimizer);
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
    firn_buffer_destroy(o->factors);
    firn_buffer_destroy(o->arena);
    firn_buffer_destroy(o->work);
    firn_staging_destroy(store->device, o->host);
    firn_free(store->ctx, o);
    firn_parameters_drop(store);
}

/* ---- the step ---- */

firn_status firn_optimizer_step(firn_optimizer *o, float learning_rate, double *norm)
{
    FIRN_GIVEN(NULL, o);
    FIRN_GIVEN(o->store->ctx, norm);
    firn_device *device = o->store->device;
    const int n_hyper = o->rule->n_hyper;
    float *back = o->host + N_STATE;
    const size_t bytes = (size_t)(n_hyper + FIRN_CLIP_RESULTS - 1) * sizeof(float);

    o->rule->fill(&o->params, (double)(o->steps + 1), learning_rate, o->host);
    FIRN_TRY(firn_queue_upload(FIRN_QUEUE_COMPUTE, o->state, 0, o->host, (size_t)(n_hyper - 1) * sizeof(float)));
    FIRN_TRY(firn_exec_run(o->exec, 0, 0));
    FIRN_TRY(firn_queue_download(FIRN_QUEUE_COMPUTE, o->state, 0, back, bytes));
    FIRN_TRY(firn_device_wait(device));
    *norm = (double)back[n_hyper - 1 + FIRN_CLIP_NORM] + (double)back[n_hyper - 1 + FIRN_CLIP_NORM_LOW];
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
