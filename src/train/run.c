/* The story of a run: open, plan, look at the model before, train, look at it after.
 *
 * What makes it survive: run.json is written whole before the first step; a checkpoint is written whole or not at all
 * and knows how long metrics.jsonl was; everything drawn is a function of (seed, epoch). So a run that goes on from its
 * newest checkpoint computes what it would have computed. */
#include "train/run.h"

#include "core/file.h"
#include "core/machine.h"
#include "core/sized.h"
#include "gguf/gguf.h"
#include "train/course.h"
#include "train/leave.h"
#include "train/proof.h"
#include "train/ranks.h"
#include "train/report.h"
#include "train/witness.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- metrics and progress ---- */

firn_status firn_run_forgive(firn_run *run, firn_status s)
{
    if (s != FIRN_ERR_IO)
        return s;
    if (!run->metrics_failed)
        firn_run_say(run, "warning: %s; the run goes on, and its report will lack lines", firn_error(run->ctx));
    run->metrics_failed = true;
    return FIRN_OK;
}

/* How many times through the data the run has been, with its part of the epoch that it is in. */
static double epochs_done(const firn_run *run)
{
    const bool known = run->packed == run->at.epoch && run->packing.n_windows > 0;

    return (double)run->at.epoch + (known ? (double)run->at.window / (double)run->packing.n_windows : 0);
}

static firn_status write_events(firn_run *run, const firn_step_result *step, double eval_loss, uint64_t memory)
{
    const firn_scalar scalars[] = {
        {"loss/train", step ? step->loss : NAN},
        {"loss/eval", eval_loss},
        {"step/learning_rate", step ? step->learning_rate : NAN},
        {"step/grad_norm", step ? step->grad_norm : NAN},
        {"step/epoch", step ? epochs_done(run) : NAN},
        {"router/aux_loss", step ? step->router[0] : NAN},
        {"router/z_loss", step ? step->router[1] : NAN},
        {"machine/tokens_per_second", step ? (double)step->tokens / step->seconds : NAN},
        {"machine/memory", memory ? (double)memory : NAN},
    };

    return firn_events_add(&run->events, run->at.step, scalars, sizeof scalars / sizeof *scalars);
}

static firn_status write_metrics(firn_run *run, const firn_step_result *step, double eval_loss)
{
    const uint64_t memory = firn_memory_anonymous();
    firn_text line;

    if (!firn_run_first(run))
        return FIRN_OK;
    firn_text_init(&line, run->ctx, 0);
    firn_text_printf(&line, "{\"step\": %lld", (long long)run->at.step);
    if (step)
        firn_text_printf(&line,
                         ", \"loss\": %.17g, \"learning_rate\": %.17g, \"grad_norm\": %.17g, \"tokens\": %lld, "
                         "\"target_tokens\": %lld, \"epoch\": %.4f",
                         step->loss, step->learning_rate, step->grad_norm, (long long)step->tokens,
                         (long long)step->target_tokens, epochs_done(run));
    if (step && !isnan(step->router[0]))
        firn_text_printf(&line, ", \"router_aux_loss\": %.17g, \"router_z_loss\": %.17g", step->router[0],
                         step->router[1]);
    if (!isnan(eval_loss))
        firn_text_printf(&line, ", \"eval_loss\": %.17g", eval_loss);
    if (step)
        firn_text_printf(&line, ", \"tokens_per_second\": %.2f, \"seconds\": %.4f",
                         (double)step->tokens / step->seconds, step->seconds);
    if (memory)
        firn_text_printf(&line, ", \"memory\": %llu", (unsigned long long)memory);
    firn_text_puts(&line, "}\n");
    const firn_status s = firn_metrics_line(&run->metrics, &line);
    firn_text_free(&line);
    FIRN_TRY(firn_run_forgive(run, s));
    return firn_run_forgive(run, write_events(run, step, eval_loss, memory));
}

static void show_progress(firn_run *run, const firn_step_result *step, double seconds_left)
{
    if (!run->watch.progress)
        return;
    const firn_progress p = {.size = sizeof p,
                             .step = run->at.step,
                             .steps = run->record.steps,
                             .tokens = step->tokens,
                             .loss = step->loss,
                             .eval_loss = run->at.eval_loss,
                             .router_aux_loss = step->router[0],
                             .router_z_loss = step->router[1],
                             .learning_rate = step->learning_rate,
                             .grad_norm = step->grad_norm,
                             .tokens_per_second = (double)step->tokens / step->seconds,
                             .seconds = run->at.seconds,
                             .seconds_left = seconds_left,
                             .memory = firn_memory_anonymous()};
    run->watch.progress(run->watch.user, &p);
}

/* Between these the run may be stopped in the middle of a pass: nothing that a resumed run needs is lost with it. */
static void stoppable(firn_run *run, bool on)
{
    run->ctx->stop = on ? run->watch.stop : NULL;
    run->ctx->stop_user = run->watch.user;
}

/* ---- training ---- */

static firn_status prove(firn_run *run)
{
    const char factor = run->at.step == 1 ? 'b' : 'a';
    const int64_t *load = firn_session_expert_load(run->session);
    firn_parameters *store = firn_session_parameters(run->session);
    float *gradients = firn_alloc(run->ctx, (size_t)store->n * sizeof *gradients);
    firn_status s =
        gradients ? firn_parameters_read(store, FIRN_PARAMETERS_GRADIENTS, 0, store->n, gradients) : FIRN_ERR_MEMORY;
    firn_text found;

    firn_text_init(&found, run->ctx, 0);
    if (s != FIRN_OK) {
        firn_free(run->ctx, gradients);
        return s;
    }
    firn_proof(run->model, run->adapter, gradients, load, factor, run->at.step, &found);
    if (run->at.step == 1 && run->record.options.adapter) /* its B is not zero, so A must move at once */
        firn_proof(run->model, run->adapter, gradients, load, 'a', 1, &found);
    firn_free(run->ctx, gradients);
    for (char *line = found.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        firn_run_say(run, "%s", line);
    }
    s = found.status;
    firn_text_free(&found);
    return s;
}

/* The weights must be those that the run began with: what was computed from others is not kept. */
static firn_status expect_still(firn_run *run)
{
    const firn_status s = firn_gguf_unchanged(run->ctx, firn_model_gguf(run->model));

    return s == FIRN_OK ? s : firn_fail_in(run->ctx, s, "step %lld", (long long)run->at.step);
}

/* For firn watch: as before.json, of the newest evaluation; answers only when the run is done. */
static firn_status write_latest(firn_run *run, const firn_witness *now)
{
    char path[FIRN_PATH_BYTES];

    FIRN_TRY(firn_run_path(run->ctx, run->folder, "latest.json", path));
    return firn_json_write(run->ctx, path, firn_witness_to_json(now));
}

/* What can be looked at while the run goes on: the page, and the experts' load of the evaluation that was just done. */
static firn_status show_state(firn_run *run, const firn_witness *before, bool evaluated)
{
    const firn_model_info *info = firn_model_get_info(run->model);
    firn_witness now = {.ctx = run->ctx, .n_layer = info->n_layer, .n_expert = info->n_expert};

    now.load = evaluated ? firn_session_expert_load(run->session) : NULL; /* borrowed */
    if (!now.load)
        now.n_layer = now.n_expert = 0;
    FIRN_TRY(firn_run_forgive(run, write_latest(run, &now)));
    return firn_run_forgive(run, firn_report_update(run, before, &now));
}

static firn_status one_step(firn_run *run, const firn_witness *before, double begin, int64_t done_before)
{
    const firn_train_options *o = &run->record.options;
    const bool last = run->at.step + 1 == run->record.steps, proof = run->at.step < 2;
    bool shown, saved;
    const firn_model_info *info = firn_model_get_info(run->model);
    int64_t *load = firn_session_expert_load(run->session);
    firn_step_result step;
    double eval_loss = NAN;

    if (proof && load)
        memset(load, 0, (size_t)(info->n_layer * info->n_expert) * sizeof *load);
    stoppable(run, true);
    firn_status s = firn_run_step(run, &step);
    stoppable(run, false); /* what is learned is evaluated and written down, or it would be missing */
    if (s != FIRN_OK)
        return firn_run_diverged(run, s);
    FIRN_TRY(firn_run_agree(run, expect_still(run)));
    run->at.seconds += step.seconds;
    run->last_loss = step.loss;
    if (proof) {
        FIRN_TRY(firn_run_sum_load(run));
        FIRN_TRY(firn_run_agree(run, firn_run_first(run) ? prove(run) : FIRN_OK));
    }
    const firn_status follows = firn_run_follow(run, step.loss);
    if (follows != FIRN_OK) {
        FIRN_TRY(write_metrics(run, &step, NAN));
        return firn_run_diverged(run, follows);
    }
    FIRN_TRY(firn_run_due(run, o->eval_every, &run->evaluated, &shown));
    shown |= last;
    if (shown) {
        FIRN_TRY(firn_run_evaluate(run, &eval_loss));
        FIRN_TRY(firn_run_sum_load(run));
        run->at.eval_loss = eval_loss;
    }
    if (shown && (last || o->eval_every > 0))
        FIRN_TRY(firn_run_choose(run, eval_loss));
    FIRN_TRY(write_metrics(run, &step, eval_loss));
    const double passed = firn_seconds() - begin;
    show_progress(run, &step,
                  passed / (double)(run->at.step - done_before) * (double)(run->record.steps - run->at.step));
    FIRN_TRY(firn_run_due(run, o->save_every, &run->saved, &saved));
    if (last || (saved && firn_run_may_save(run)) || firn_run_had_enough(run))
        FIRN_TRY(firn_run_save(run));
    s = shown && !last && firn_run_first(run) ? show_state(run, before, !isnan(eval_loss)) : FIRN_OK;
    return firn_run_agree(run, s);
}

static firn_status train(firn_run *run, const firn_witness *before, bool *stopped)
{
    const double begin = firn_seconds();
    const int64_t done_before = run->at.step;

    firn_status s = FIRN_OK;

    run->saved = run->evaluated = begin;
    while (s == FIRN_OK && run->at.step < run->record.steps && !firn_run_had_enough(run)) {
        s = firn_run_agree(run, firn_run_stop_wanted(run) ? FIRN_ERR_CANCELLED : FIRN_OK);
        if (s == FIRN_OK)
            s = one_step(run, before, begin, done_before);
    }
    *stopped = s == FIRN_ERR_CANCELLED;
    if (*stopped)
        s = run->at.step > 0 ? firn_run_save(run) : FIRN_OK;
    return s;
}

/* ---- before ---- */

static firn_status write_before(firn_run *run, const firn_witness *before)
{
    char path[FIRN_PATH_BYTES];

    FIRN_TRY(firn_run_path(run->ctx, run->folder, "before.json", path));
    return firn_json_write(run->ctx, path, firn_witness_to_json(before));
}

/* A run whose before.json is lost still trains; its report then shows only what came after. */
static firn_status read_before(firn_run *run, firn_witness *before)
{
    char path[FIRN_PATH_BYTES];
    json_t *json = NULL;
    firn_status s = firn_run_path(run->ctx, run->folder, "before.json", path);

    if (s == FIRN_OK)
        s = firn_json_read(run->ctx, path, &json);
    if (s == FIRN_OK)
        s = firn_witness_from_json(run->ctx, json, before);
    if (s != FIRN_OK)
        firn_witness_clear(before);
    json_decref(json);
    return s == FIRN_ERR_MEMORY ? s : FIRN_OK;
}

static firn_status look_before(firn_run *run, firn_witness *before)
{
    double loss;

    firn_run_say(run, "before   evaluating the model as it is");
    stoppable(run, true);
    const firn_status s = firn_witness_evaluate(run, before, false, &loss);
    stoppable(run, false);
    FIRN_TRY(s);
    run->at.eval_loss_before = run->at.eval_loss = loss;
    if (!isnan(loss))
        firn_run_say(run, "evaluation loss before training: %.4f", loss);
    if (!firn_run_first(run))
        return FIRN_OK;
    FIRN_TRY(write_before(run, before));
    return write_metrics(run, NULL, loss);
}

/* ---- after ---- */

/* Saved, loaded again, and compared bit by bit (B as the file has it): what lies on the disk is what was trained. */
static firn_status save_adapter(firn_run *run)
{
    char path[FIRN_PATH_BYTES];
    firn_adapter *again;

    FIRN_TRY(firn_lock_keep(run->lock, run->folder));
    FIRN_TRY(firn_run_path(run->ctx, run->folder, "adapter.gguf", path));
    FIRN_TRY(firn_adapter_save(run->ctx, run->adapter, NULL, path));
    FIRN_TRY(firn_adapter_load(run->ctx, run->model, path, &again));
    const bool same = firn_adapter_is_saved_as(run->adapter, again);
    firn_adapter_destroy(again);
    if (!same)
        return firn_fail(run->ctx, FIRN_ERR_IO,
                         "%s does not hold what was written to it: the disk or the memory is bad", path);
    return FIRN_OK;
}

static firn_status say_profile(firn_run *run)
{
    const firn_profile_row *rows;
    double total = 0;
    int n;

    FIRN_TRY(firn_device_profile_rows(run->device, &rows, &n));
    for (int i = 0; i < n; i++)
        total += rows[i].seconds;
    firn_run_say(run, "%-20s %10s %10s %6s %10s %9s", "operation", "calls", "seconds", "%", "GFLOP/s", "GB/s");
    for (int i = 0; i < n; i++) {
        const firn_profile_row *r = &rows[i];
        firn_run_say(run, "%-20s %10llu %10.3f %6.1f %10.2f %9.2f", r->op, (unsigned long long)r->calls, r->seconds,
                     total > 0 ? 100 * r->seconds / total : 0, r->seconds > 0 ? 1e-9 * r->flops / r->seconds : 0,
                     r->seconds > 0 ? 1e-9 * r->bytes / r->seconds : 0);
    }
    return FIRN_OK;
}

/* The answers of the trained model, its adapter and the report: what lies in the folder in the end. */
static firn_status write_results(firn_run *run, const firn_witness *before, firn_witness *after)
{
    FIRN_TRY(firn_witness_talk(run, after, true));
    if (firn_run_stop_wanted(run)) /* some answers are missing: a resumed run asks again */
        return FIRN_ERR_CANCELLED;
    FIRN_TRY(save_adapter(run));
    FIRN_TRY(firn_run_leave(run));
    FIRN_TRY(firn_report_write(run, before, after));
    FIRN_TRY(expect_still(run));
    FIRN_TRY(firn_run_forgive(run, write_latest(run, after)));
    run->record.finished = true;
    run->record.last_step = run->at.step;
    run->record.adapter_step = run->adapter_step;
    return firn_run_record_write(run->ctx, run->folder, &run->record);
}

static firn_status finish(firn_run *run, const firn_witness *before)
{
    firn_witness after = {0};
    double loss;

    if (firn_run_had_enough(run))
        firn_run_say(run, "enough   after step %lld: %.0f evaluations in a row were no better than that of step %.0f",
                     (long long)run->at.step, run->at.course.stale, run->at.course.best_step);
    FIRN_TRY(firn_run_take_best(run));
    firn_run_say(run, "after    evaluating the trained model");
    stoppable(run, true);
    firn_status s = firn_witness_evaluate(run, &after, true, &loss);
    stoppable(run, false);
    if (s == FIRN_OK)
        s = firn_session_pull(run->session);
    firn_optimizer_destroy(run->optimizer);
    run->optimizer = NULL;
    firn_reduction_destroy(run->reduction);
    run->reduction = NULL;
    firn_session_destroy(run->session); /* their memory makes room for the key/value cache */
    run->session = NULL;
    if (s == FIRN_OK && firn_run_first(run))
        s = write_results(run, before, &after);
    if (s == FIRN_ERR_DEVICE) /* nobody would learn it later: no step follows */
        s = firn_fail_in(run->ctx, s, "the adapter after step %lld is not saved", (long long)run->adapter_step);
    firn_witness_clear(&after);
    return firn_run_agree(run, s);
}

/* ---- the story ---- */

static void fill_result(firn_run *run, bool finished, firn_train_result *result)
{
    result->finished = finished;
    result->rank = run->group ? run->group->rank : 0;
    result->step = run->at.step;
    result->adapter_step = run->adapter_step;
    result->loss = run->last_loss;
    result->eval_loss_before = run->at.eval_loss_before;
    result->eval_loss = run->at.eval_loss;
    if (finished) {
        (void)firn_run_path(run->ctx, run->folder, "adapter.gguf", result->adapter);
        (void)firn_run_path(run->ctx, run->folder, "report.html", result->report);
    }
}

static firn_status train_and_finish(firn_run *run, firn_witness *before, firn_train_result *result)
{
    bool stopped = false;
    firn_status s = FIRN_OK;

    if (run->at.step > run->record.steps)
        return firn_fail(run->ctx, FIRN_ERR_ARGUMENT, "the run has done %lld steps already, more than the %lld wanted",
                         (long long)run->at.step, (long long)run->record.steps);
    if (firn_run_first(run)) {
        FIRN_TRY(firn_run_forgive(
            run, firn_metrics_open(run->ctx, run->folder, (uint64_t)run->at.metrics_bytes, &run->metrics)));
        FIRN_TRY(firn_run_forgive(run, firn_events_open(run->ctx, run->folder, run->at.step, &run->events)));
    }
    if (run->metrics.note[0])
        firn_run_say(run, "warning: %s", run->metrics.note);
    if (run->at.step == 0)
        s = firn_run_agree(run, look_before(run, before));
    if (run->flags & FIRN_TRAIN_PROFILE)
        firn_device_profile(run->device, true);
    if (s == FIRN_OK)
        s = train(run, before, &stopped);
    if (s == FIRN_OK && (run->flags & FIRN_TRAIN_PROFILE)) {
        FIRN_TRY(say_profile(run));
        firn_device_profile(run->device, false);
    }
    if (s == FIRN_OK && !stopped)
        s = finish(run, before);
    if (s == FIRN_ERR_CANCELLED) {
        stopped = true;
        s = FIRN_OK;
    }
    fill_result(run, s == FIRN_OK && !stopped, result);
    return s;
}

/* What killed runs left in the folder. */
static firn_status sweep(firn_run *run)
{
    static const char *const names[] = {"run.json",    "before.json", "adapter.gguf",        "report.html",
                                        "latest.json", "Modelfile",   "chat_template.jinja", "README.md"};
    char path[FIRN_PATH_BYTES];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        FIRN_TRY(firn_run_path(run->ctx, run->folder, names[i], path));
        FIRN_TRY(firn_out_sweep(run->ctx, path));
    }
    FIRN_TRY(firn_run_path(run->ctx, run->folder, "checkpoints", path));
    firn_checkpoint_sweep(path);
    return FIRN_OK;
}

/* What the first rank looks at before anything is on the device. *newest: the newest checkpoint; -1: none. */
static firn_status look_around(firn_run *run, bool resumed, firn_witness *before, int64_t *newest)
{
    char folder[FIRN_PATH_BYTES];

    FIRN_TRY(sweep(run));
    FIRN_TRY(firn_run_path(run->ctx, run->folder, "checkpoints", folder));
    if (resumed)
        FIRN_TRY(firn_checkpoint_newest(run->ctx, folder, INT64_MAX, newest));
    return *newest < 0 ? firn_witness_talk(run, before, false) : FIRN_OK;
}

/* From decided options and an opened run to its end. */
static firn_status tell(firn_run *run, bool resumed, firn_train_result *result)
{
    firn_witness before = {0};
    int64_t newest = -1;
    firn_status s = firn_run_first(run) ? look_around(run, resumed, &before, &newest) : FIRN_OK;

    s = firn_run_agree(run, s);
    if (s == FIRN_OK)
        s = firn_run_agree(run, firn_run_prepare(run));
    if (s == FIRN_OK && resumed)
        s = firn_run_load_newest(run);
    if (s == FIRN_OK && newest >= 0)
        s = read_before(run, &before);
    if (s == FIRN_OK)
        s = train_and_finish(run, &before, result);
    firn_witness_clear(&before);
    return s;
}

static firn_train_result no_result(void)
{
    return (firn_train_result){
        .size = sizeof(firn_train_result), .loss = NAN, .eval_loss_before = NAN, .eval_loss = NAN};
}

static firn_status begin(firn_run *run, firn_context *ctx, int flags, const firn_watch *watch,
                         const firn_train_result *result)
{
    *run = (firn_run){.ctx = ctx, .flags = flags, .packed = -1, .metrics.fd = -1, .events.fd = -1};
    firn_arena_init(&run->arena, ctx, 0);
    run->last_loss = run->at.eval_loss_before = run->at.eval_loss = NAN;
    FIRN_TRY(FIRN_ROOM(ctx, firn_train_result, report, result));
    return firn_run_watched_by(run, watch);
}

/* ---- a new run ---- */

static firn_status check_new(firn_context *ctx, const firn_train_options *o)
{
    FIRN_EXPECT(ctx, o->model && o->data.n && o->output, "a run needs a model, data and an output folder");
    FIRN_TRY(firn_train_options_check(ctx, o));
    for (int i = 0; o->adapter && i < firn_n_train_options; i++) {
        const firn_train_option *option = &firn_train_option_table[i];
        FIRN_EXPECT(ctx, !firn_train_shapes_adapter(option->name) || !firn_train_option_is_set(o, option),
                    "rank, alpha and targets are those of the adapter %s, and cannot be given beside it", o->adapter);
    }
    FIRN_EXPECT(ctx, !o->eval_data || isnan(o->eval_split) || o->eval_split == 0,
                "evaluation data takes the place of an evaluation split: expected one of the two");
    return FIRN_OK;
}

/* Makes the folder and looks that it can be written before anything takes long. */
static firn_status make_folder(firn_run *run)
{
    char path[FIRN_PATH_BYTES];
    uint64_t space;

    FIRN_TRY(firn_make_folder(run->ctx, run->record.options.output, &run->made));
    FIRN_TRY(firn_lock_folder(run->ctx, run->record.options.output, &run->lock));
    FIRN_TRY(firn_full_path(run->ctx, run->record.options.output, run->folder));
    FIRN_TRY(firn_run_path(run->ctx, run->folder, "run.json", path));
    if (access(path, F_OK) == 0)
        return firn_fail(run->ctx, FIRN_ERR_ARGUMENT,
                         "%s holds a run already: go on with it (firn finetune --resume %s), or take another folder",
                         run->record.options.output, run->record.options.output);
    FIRN_TRY(firn_file_space(run->ctx, run->folder, &space));
    if (space == 0)
        return firn_fail(run->ctx, FIRN_ERR_IO, "the file system of %s is full", run->record.options.output);
    return FIRN_OK;
}

static firn_status check_space(firn_run *run)
{
    const uint64_t needed = firn_run_disk_bytes(run);
    uint64_t space;
    firn_text t;

    FIRN_TRY(firn_file_space(run->ctx, run->folder, &space));
    if (space >= needed)
        return FIRN_OK;
    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "adapter and checkpoints take ");
    firn_text_bytes(&t, needed);
    firn_text_puts(&t, ", and the file system has ");
    firn_text_bytes(&t, space);
    if (run->record.options.keep > 1)
        firn_text_puts(&t, "; try --keep 1, or a lower --rank");
    else
        firn_text_puts(&t, "; try a lower --rank, or --targets attention");
    firn_fail(run->ctx, FIRN_ERR_IO, "%s is too full for the run: %s", run->folder, firn_text_cstr(&t));
    firn_text_free(&t);
    return FIRN_ERR_IO;
}

/* Paths in run.json are absolute: the run may be resumed from anywhere. */
static firn_status absolute(firn_run *run, const char **path)
{
    char full[FIRN_PATH_BYTES];

    if (!*path)
        return FIRN_OK;
    FIRN_TRY(firn_full_path(run->ctx, *path, full));
    *path = firn_arena_text(&run->arena, full, strlen(full));
    return *path ? FIRN_OK : FIRN_ERR_MEMORY;
}

static firn_status absolute_source(firn_run *run, const char **source)
{
    char full[FIRN_PATH_BYTES];

    FIRN_TRY(firn_source_absolute(run->ctx, *source, full, sizeof full));
    *source = firn_arena_text(&run->arena, full, strlen(full));
    return *source ? FIRN_OK : FIRN_ERR_MEMORY;
}

static firn_status absolute_sources(firn_run *run, firn_strings *sources)
{
    const char **items = firn_arena_alloc(&run->arena, (size_t)sources->n * sizeof *items);

    if (!items)
        return FIRN_ERR_MEMORY;
    for (int i = 0; i < sources->n; i++) {
        items[i] = sources->items[i];
        FIRN_TRY(absolute_source(run, &items[i]));
    }
    sources->items = items;
    return FIRN_OK;
}

/* Model, data and adapter on every rank. The first goes first: it fills the cache of tokens, from which the others
 * read. */
static firn_status open_together(firn_run *run)
{
    if (firn_group_size(run->group) == 1)
        return firn_run_open(run);
    if (firn_run_first(run)) {
        FIRN_TRY(firn_run_agree(run, firn_run_open(run)));
        FIRN_TRY(firn_run_agree(run, FIRN_OK));
    } else {
        FIRN_TRY(firn_run_agree(run, FIRN_OK));
        FIRN_TRY(firn_run_agree(run, firn_run_open(run)));
    }
    return firn_run_compare(run);
}

/* What only the first rank does before the first step of a new run. */
static firn_status begin_folder(firn_run *run)
{
    FIRN_TRY(check_space(run));
    return firn_run_record_write(run->ctx, run->folder, &run->record);
}

static firn_status make_absolute(firn_run *run)
{
    firn_train_options *o = &run->record.options;

    FIRN_TRY(absolute(run, &o->model));
    FIRN_TRY(absolute_sources(run, &o->data));
    if (o->eval_data)
        FIRN_TRY(absolute_source(run, &o->eval_data));
    return absolute(run, &o->adapter);
}

static firn_status new_run(firn_run *run, firn_train_result *result)
{
    firn_train_options *o = &run->record.options;
    firn_status s = check_new(run->ctx, o);
    run->fresh = true;

    firn_train_options_defaults(o);
    if (s == FIRN_OK && !(run->flags & FIRN_TRAIN_DRY_RUN) && firn_run_first(run)) {
        s = make_folder(run);
        o->output = run->folder;
    }
    if (s == FIRN_OK)
        s = make_absolute(run);
    FIRN_TRY(firn_run_agree(run, s));
    FIRN_TRY(open_together(run));
    s = firn_run_decide(run);
    FIRN_TRY(firn_run_agree(run, s == FIRN_OK ? firn_run_plan(run) : s));
    if (run->flags & FIRN_TRAIN_DRY_RUN)
        return FIRN_OK;
    FIRN_TRY(firn_run_agree(run, firn_run_first(run) ? begin_folder(run) : FIRN_OK));
    return tell(run, false, result);
}

firn_status firn_train(firn_context *ctx, const firn_train_options *options, int flags, const firn_watch *watch,
                       firn_train_result *result)
{
    FIRN_GIVEN(ctx, ctx, options, result);
    firn_train_result r = no_result();
    firn_run run;

    FIRN_TRY(begin(&run, ctx, flags, watch, result));
    firn_status s = firn_train_options_take(ctx, options, &run.record.options);
    const char *output = run.record.options.output;
    if (s == FIRN_OK)
        s = firn_run_join(&run);
    if (s == FIRN_OK)
        s = firn_group_end(run.group, new_run(&run, &r));
    firn_run_close(&run);
    if (s != FIRN_OK) /* a refused run leaves no empty folder */
        firn_unmake_folder(output, run.made);
    firn_sized_give(result, &r);
    return s;
}

/* ---- going on ---- */

/* What a resumed run may change, over what it was started with. */
static firn_status merge(firn_run *run, const firn_train_options *changed)
{
    firn_train_options *o = &run->record.options;

    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *option = &firn_train_option_table[i];
        FIRN_EXPECT(run->ctx, option->resumable || !firn_train_option_is_set(changed, option),
                    "a resumed run cannot change %s", option->name);
    }
    FIRN_TRY(firn_train_options_check(run->ctx, changed));
    for (int i = 0; i < firn_n_train_options; i++)
        if (firn_train_option_is_set(changed, &firn_train_option_table[i]))
            firn_train_option_copy(o, changed, &firn_train_option_table[i]);
    if (!isnan(changed->epochs) && changed->steps == FIRN_UNSET)
        o->steps = 0;
    return FIRN_OK;
}

/* Everything that decides the result must be what it was. */
static firn_status expect_same(firn_run *run, const firn_run_record *was)
{
    const firn_run_record *is = &run->record;

    FIRN_TRY(firn_print_expect(run->ctx, "the model", &was->model, &is->model));
    FIRN_TRY(firn_print_expect(run->ctx, "the data set", &was->data, &is->data));
    FIRN_TRY(firn_print_expect(run->ctx, "the evaluation data", &was->eval_data, &is->eval_data));
    FIRN_TRY(firn_print_expect(run->ctx, "the adapter", &was->adapter, &is->adapter));
    if (was->n_values != is->n_values)
        return firn_fail(run->ctx, FIRN_ERR_FORMAT, "the run trained %lld values, and its options now give %lld",
                         (long long)was->n_values, (long long)is->n_values);
    if (strcmp(was->kernels, is->kernels) != 0)
        firn_run_say(
            run,
            "warning: the run was started with the kernels %s, these are %s: results will differ in their last "
            "bits from those of a run that was never interrupted",
            was->kernels, is->kernels);
    return FIRN_OK;
}

/* The record of the run as it was, with what is changed now. */
static firn_status read_run(firn_run *run, const char *folder, const firn_train_options *options, firn_run_record *was)
{
    const bool locks = !(run->flags & FIRN_TRAIN_DRY_RUN) && firn_run_first(run);

    /* The lock comes first: one who writes the folder may not have written run.json yet, or may be about to. Only where
     * the folder cannot be written or is none does it come second, so that a folder without a run is told as that. */
    if (locks && access(folder, W_OK | X_OK) == 0)
        FIRN_TRY(firn_lock_folder(run->ctx, folder, &run->lock));
    FIRN_TRY(firn_run_record_read(&run->arena, folder, was));
    FIRN_TRY(firn_full_path(run->ctx, folder, run->folder));
    if (locks && !run->lock)
        FIRN_TRY(firn_lock_folder(run->ctx, folder, &run->lock));
    run->record.options = was->options;
    FIRN_TRY(merge(run, options));
    run->record.options.output = run->folder;
    return FIRN_OK;
}

static firn_status resume_run(firn_run *run, const char *folder, const firn_train_options *options,
                              firn_train_result *result)
{
    firn_run_record was;

    FIRN_TRY(firn_run_agree(run, read_run(run, folder, options, &was)));
    FIRN_TRY(open_together(run));
    FIRN_TRY(firn_run_agree(run, expect_same(run, &was)));
    FIRN_TRY(firn_run_agree(run, firn_run_decide(run)));
    run->steps_before = was.steps;
    if (was.finished && run->record.steps == was.steps) {
        run->adapter_step = was.adapter_step ? was.adapter_step : was.steps;
        run->at.step = was.last_step ? was.last_step : was.steps;
        result->was_finished = true;
        fill_result(run, true, result);
        return FIRN_OK;
    }
    FIRN_TRY(firn_run_agree(run, firn_run_plan(run)));
    if (run->flags & FIRN_TRAIN_DRY_RUN)
        return FIRN_OK;
    const firn_status s = firn_run_first(run) ? firn_run_record_write(run->ctx, run->folder, &run->record) : FIRN_OK;
    FIRN_TRY(firn_run_agree(run, s));
    return tell(run, true, result);
}

firn_status firn_train_resume(firn_context *ctx, const char *folder, const firn_train_options *options, int flags,
                              const firn_watch *watch, firn_train_result *result)
{
    FIRN_GIVEN(ctx, ctx, folder, options, result);
    firn_train_result r = no_result();
    firn_train_options changed;
    firn_run run;

    FIRN_TRY(begin(&run, ctx, flags, watch, result));
    firn_status s = firn_train_options_take(ctx, options, &changed);
    if (s == FIRN_OK)
        s = firn_run_join(&run);
    if (s == FIRN_OK)
        s = firn_group_end(run.group, resume_run(&run, folder, &changed, &r));
    firn_run_close(&run);
    firn_sized_give(result, &r);
    return s;
}
