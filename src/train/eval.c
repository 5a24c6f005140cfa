/* The loss of a data set under a model and an adapter. A whole run without training: windows, passes,
 * firn_session_loss. */
#include "core/sized.h"
#include "train/advice.h"
#include "train/run.h"

#include <math.h>

static firn_status open_model(firn_run *run)
{
    firn_train_options *o = &run->record.options;
    firn_context *ctx = run->ctx;

    FIRN_EXPECT(ctx, o->model && o->data.n, "an evaluation needs a model and data");
    FIRN_TRY(firn_train_options_check(ctx, o));
    firn_train_options_defaults(o);
    FIRN_TRY(firn_train_device_open(ctx, o, &run->device));
    FIRN_TRY(firn_model_open(ctx, o->model, &run->model));
    FIRN_TRY(firn_run_context(run));
    FIRN_TRY(firn_train_language_create(ctx, o, firn_model_gguf(run->model), &run->language));
    firn_data_spec spec;
    FIRN_TRY(firn_train_data_spec(ctx, o, o->data, &spec));
    FIRN_TRY(firn_data_load(ctx, &spec, firn_language_encoder(run->language), o->context, &run->data));
    if (o->adapter)
        FIRN_TRY((o->force ? firn_adapter_load_forced : firn_adapter_load)(ctx, run->model, o->adapter, &run->adapter));
    return FIRN_OK;
}

static firn_status evaluate(firn_run *run, firn_eval_result *result)
{
    const firn_train_options *o = &run->record.options;
    firn_session_params params = {.n_tokens = o->batch * o->context};
    firn_loss_sum sum;
    firn_text text;

    firn_text_init(&text, run->ctx, 0);
    firn_data_describe(run->data, &text);
    FIRN_TRY(firn_run_say_text(run, &text));
    if (o->memory_limit)
        FIRN_TRY(firn_parse_bytes(run->ctx, o->memory_limit, &run->memory_limit));
    params.memory_limit = run->memory_limit;
    FIRN_TRY(firn_data_all(run->data, &run->held));
    FIRN_TRY(firn_pack(run->data, &run->held, o->context, false, 0, 0, &run->held_packing));
    FIRN_TRY(firn_pass_create(run->ctx, params.n_tokens, &run->pass));
    const firn_status s = firn_session_create(run->ctx, run->device, run->model, run->adapter, &params, &run->session);
    if (s == FIRN_ERR_MEMORY && params.memory_limit)
        return firn_run_too_large(run);
    FIRN_TRY(s);
    FIRN_TRY(firn_packing_loss(run->session, run->group, run->data, &run->held_packing, o->batch, &run->pass, &sum));
    *result =
        (firn_eval_result){.size = sizeof *result,
                           .samples = run->data->counts.lines - run->data->counts.empty - run->data->counts.untrained,
                           .tokens = sum.tokens,
                           .target_tokens = sum.target_tokens,
                           .loss = sum.loss / (double)sum.target_tokens};
    result->perplexity = exp(result->loss);
    return FIRN_OK;
}

firn_status firn_eval(firn_context *ctx, const firn_train_options *options, const firn_watch *watch,
                      firn_eval_result *result)
{
    FIRN_GIVEN(ctx, ctx, options, result);
    firn_run run = {.ctx = ctx, .metrics.fd = -1, .events.fd = -1, .evaluates = true};
    firn_eval_result r;

    FIRN_TRY(FIRN_ROOM(ctx, firn_eval_result, perplexity, result));
    FIRN_TRY(firn_run_watched_by(&run, watch));
    FIRN_TRY(firn_train_options_take(ctx, options, &run.record.options));
    firn_arena_init(&run.arena, ctx, 0);
    firn_status s = open_model(&run);
    if (s == FIRN_OK)
        s = evaluate(&run, &r);
    firn_run_close(&run);
    if (s == FIRN_OK)
        firn_sized_give(result, &r);
    return s;
}
