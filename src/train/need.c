/* What training a model would take: the plan of a run (setup.c) before there is data. Called by firn info. */
#include "core/machine.h"
#include "model/model.h"
#include "train/advice.h"
#include "train/low_rank.h"
#include "train/run.h"

static firn_status plan(firn_run *run, firn_session_memory *memory)
{
    firn_train_options *o = &run->record.options;
    firn_context *ctx = run->ctx;

    FIRN_TRY(firn_train_options_check(ctx, o));
    firn_train_options_defaults(o);
    FIRN_TRY(firn_train_device_open(ctx, o, &run->device));
    FIRN_TRY(firn_model_open(ctx, o->model, &run->model));
    FIRN_TRY(firn_run_context(run));
    FIRN_TRY(firn_train_language_create(ctx, o, firn_model_gguf(run->model), &run->language));
    run->present = firn_memory_anonymous();
    if (o->expert_rank == FIRN_UNSET)
        o->expert_rank = firn_rank_of_experts(run->model, o->rank);
    const firn_adapter_spec spec = firn_train_adapter_spec(o);
    FIRN_TRY(firn_adapter_describe(ctx, run->model, &spec, &run->adapter));
    firn_session_params params = {.n_tokens = o->batch * o->context, .train = true};
    if (!o->memory_limit)
        return firn_session_plan(ctx, run->device, run->model, run->adapter, &params, memory);
    const uint64_t outside = firn_run_outside_bytes(run);
    FIRN_TRY(firn_parse_bytes(ctx, o->memory_limit, &run->memory_limit));
    params.memory_limit = run->memory_limit > outside ? run->memory_limit - outside : 1;
    const firn_status s = firn_session_plan(ctx, run->device, run->model, run->adapter, &params, memory);
    return s == FIRN_ERR_MEMORY ? firn_run_too_large(run) : s;
}

firn_status firn_training_need_of(firn_context *ctx, const firn_train_options *options, firn_training_need *need)
{
    firn_run run = {.ctx = ctx, .record.options = *options, .metrics.fd = -1, .events.fd = -1};
    firn_session_memory memory = {.size = sizeof memory};

    *need = (firn_training_need){0};
    firn_arena_init(&run.arena, ctx, 0);
    const firn_status s = plan(&run, &memory);
    if (s == FIRN_OK) {
        const firn_train_options *o = &run.record.options;
        const uint64_t outside = firn_run_outside_bytes(&run);
        need->context = o->context;
        need->batch = o->batch;
        need->rank = o->rank;
        need->expert_rank = o->expert_rank;
        need->n_values = run.adapter->n_values;
        int tensors[FIRN_CLASS_COUNT];
        firn_adapter_count(run.adapter, need->values, tensors);
        need->total = outside + memory.total;
        need->least = outside + memory.least;
        need->mapped = memory.mapped;
        need->session = memory;
    }
    firn_run_close(&run);
    return s;
}
