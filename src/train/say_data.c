/* What the plan of a run says about its data: what was found, what was passed over, how long the samples are and which
 * context would keep them whole. */
#include "core/machine.h"
#include "model/model.h"
#include "train/run.h"

#include <stdio.h>
#include <string.h>

enum { NOTES = 20, FILES = 8, CONTEXT_STEP = 64 };

/* The first notes, a line each. */
static void say_notes(const firn_run *run, const firn_data *data)
{
    const char *at = firn_text_cstr(&data->notes);
    int n = 0, more = 0;

    for (size_t length; *at; at += length + (at[length] != 0)) {
        length = strcspn(at, "\n");
        if (n++ < NOTES)
            firn_run_say(run, "         %.*s", (int)length, at);
        else
            more++;
    }
    if (more)
        firn_run_say(run, "         ... and %d more like these (firn data check lists all)", more);
}

static firn_status say_files(const firn_run *run)
{
    const firn_data *data = run->data;
    firn_text t;

    if (data->n_files == 1 && data->files[0].weight == 1)
        return FIRN_OK;
    firn_text_init(&t, run->ctx, 0);
    firn_text_printf(&t, "         from %d file%s:", data->n_files, data->n_files == 1 ? "" : "s");
    for (int i = 0; i < data->n_files && i < FILES; i++) {
        firn_text_printf(&t, "%s %s", i ? "," : "", data->files[i].name);
        if (data->files[i].weight != 1)
            firn_text_printf(&t, " %g times an epoch", data->files[i].weight);
    }
    if (data->n_files > FILES)
        firn_text_printf(&t, " and %d more", data->n_files - FILES);
    return firn_run_say_text(run, &t);
}

/* What a window of so many tokens would take; 0 where that cannot be told. */
static uint64_t bytes_with(const firn_run *run, int64_t context)
{
    const firn_train_options *o = &run->record.options;
    const firn_session_params params = {
        .n_tokens = o->batch * context, .train = true, .router_losses = firn_router_losses_wanted(o)};
    firn_session_memory memory = {.size = sizeof memory};

    if (firn_session_plan(run->ctx, run->device, run->model, run->adapter, &params, &memory) != FIRN_OK)
        return 0;
    return memory.total + firn_run_outside_bytes(run);
}

/* The context that keeps 95 % of the samples whole, as far as the model goes, and what it costs. */
static firn_status say_better_context(const firn_run *run, firn_text *t)
{
    const firn_train_options *o = &run->record.options;
    const int64_t most = firn_model_get_info(run->model)->n_ctx_train;
    int64_t better = firn_lengths_quantile(run->data->counts.lengths, 0.95);

    better = (better + CONTEXT_STEP - 1) / CONTEXT_STEP * CONTEXT_STEP;
    better = most > 0 && better > most ? most : better;
    if (better <= o->context)
        return t->status;
    const uint64_t now = bytes_with(run, o->context), then = bytes_with(run, better);
    firn_text_printf(t, "; --context %lld keeps 95 %% of them whole", (long long)better);
    if (now && then) {
        firn_text_puts(t, " and takes ");
        firn_text_bytes(t, then);
        firn_text_puts(t, " of memory instead of ");
        firn_text_bytes(t, now);
    }
    return t->status;
}

static firn_status say_lengths(const firn_run *run)
{
    const firn_data_counts *c = &run->data->counts;
    const int64_t n = firn_lengths_count(c->lengths);
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_printf(&t, "lengths  half have at most %lld tokens, 95 %% at most %lld, the longest about %lld",
                     (long long)firn_lengths_quantile(c->lengths, 0.5),
                     (long long)firn_lengths_quantile(c->lengths, 0.95),
                     (long long)firn_lengths_quantile(c->lengths, 1));
    FIRN_TRY(firn_run_say_text(run, &t));
    if (!c->cut)
        return FIRN_OK;
    firn_text_init(&t, run->ctx, 0);
    firn_text_printf(&t, "warning  %lld of %lld samples (%.0f %%) are cut at %lld tokens", (long long)c->cut,
                     (long long)n, 100.0 * (double)c->cut / (double)n, (long long)run->record.options.context);
    FIRN_TRY(say_better_context(run, &t));
    FIRN_TRY(firn_run_say_text(run, &t));
    firn_text_init(&t, run->ctx, 0);
    firn_lengths_draw(c->lengths, &t);
    const firn_status s = t.status;
    for (char *line = t.data, *end; line && (end = strchr(line, '\n')); line = end + 1)
        firn_run_say(run, "       %.*s", (int)(end - line), line);
    firn_text_free(&t);
    return s;
}

static void say_held(const firn_run *run)
{
    const firn_data *eval = run->eval_data ? run->eval_data : run->data;
    int64_t targets = 0;

    for (size_t i = 0; i < run->held.n; i++)
        targets += eval->samples[run->held.items[i]].n_targets;
    if (run->held.n)
        firn_run_say(run, "         %zu sample%s with %lld trained tokens %s held back for evaluation%s%s", run->held.n,
                     firn_plural((int64_t)run->held.n), (long long)targets, run->held.n == 1 ? "is" : "are",
                     run->eval_data ? ", from " : "", run->eval_data ? run->record.options.eval_data : "");
    else
        firn_run_say(run, "         nothing is held back for evaluation");
}

firn_status firn_run_say_data(const firn_run *run)
{
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "data     ");
    firn_data_describe(run->data, &t);
    FIRN_TRY(firn_run_say_text(run, &t));
    FIRN_TRY(say_files(run));
    say_notes(run, run->data);
    if (run->eval_data)
        say_notes(run, run->eval_data);
    say_held(run);
    return say_lengths(run);
}
