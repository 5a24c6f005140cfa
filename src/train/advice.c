/* What to change where a run does not fit: see advice.h. Each way is planned as the run would be, so that what is
 * proposed fits. */
#include "train/advice.h"

#include "core/machine.h"
#include "model/model.h"
#include "train/low_rank.h"

enum { LEAST_RANK = 2, LEAST_CONTEXT = 64 };

/* Bytes that the run takes at least with these options; 0 where they make none. */
static uint64_t least_bytes(const firn_run *run, const firn_train_options *options)
{
    firn_run trial = *run;
    firn_adapter *adapter = NULL;
    firn_session_memory memory = {.size = sizeof memory};
    uint64_t bytes = 0;

    const firn_weights_place place = run->ctx->weights;
    const uint64_t ring = run->ctx->ring_bytes;

    trial.record.options = *options;
    if (!options->adapter && !run->evaluates) {
        const firn_adapter_spec spec = firn_train_adapter_spec(options);
        if (firn_adapter_describe(run->ctx, run->model, &spec, &adapter) != FIRN_OK)
            return 0;
        trial.adapter = adapter;
    }
    const firn_session_params params = {.n_tokens = options->batch * options->context,
                                        .train = !run->evaluates,
                                        .router_losses = !run->evaluates && firn_router_losses_wanted(options)};
    if ((!options->weights || firn_context_set_weights_text(run->ctx, options->weights) == FIRN_OK) &&
        firn_session_plan(run->ctx, run->device, run->model, trial.adapter, &params, &memory) == FIRN_OK)
        bytes = (run->evaluates ? 0 : firn_run_outside_bytes(&trial)) + memory.least;
    firn_context_set_weights(run->ctx, place, ring);
    firn_adapter_destroy(adapter);
    return bytes;
}

static bool fits(const firn_run *run, const firn_train_options *options)
{
    const uint64_t bytes = least_bytes(run, options);

    return bytes > 0 && bytes <= run->memory_limit;
}

/* The ways to less memory, one at a time. Each makes one step down; false where it is at its end. */
static bool fewer_windows(firn_train_options *o)
{
    if (o->batch <= 1)
        return false;
    o->accumulate *= o->batch; /* the step stays as it is */
    o->batch = 1;
    return true;
}

static bool lower_rank(firn_train_options *o)
{
    if (o->adapter || o->rank / 2 < LEAST_RANK)
        return false;
    o->rank /= 2;
    o->alpha /= 2;
    o->expert_rank = o->expert_rank == FIRN_UNSET ? o->expert_rank : firn_max_i64(1, o->expert_rank / 2);
    return true;
}

static bool shorter_windows(firn_train_options *o)
{
    if (o->context / 2 < LEAST_CONTEXT)
        return false;
    o->context /= 2;
    return true;
}

static bool attention_alone(firn_train_options *o)
{
    if (o->adapter || (o->targets && strcmp(o->targets, "attention") == 0))
        return false;
    o->targets = "attention";
    return true;
}

static bool weights_in_the_file(firn_train_options *o)
{
    if (!o->weights || strcmp(o->weights, "mapped") == 0)
        return false;
    o->weights = "mapped";
    return true;
}

static bool weights_block_by_block(firn_train_options *o)
{
    if (!o->weights || strcmp(o->weights, "resident") != 0)
        return false;
    o->weights = "streamed";
    return true;
}

static const struct {
    bool (*step)(firn_train_options *);
    bool trains; /* it changes what is trained */
} ways[] = {{fewer_windows, false},  {lower_rank, true},           {shorter_windows, false},
            {attention_alone, true}, {weights_in_the_file, false}, {weights_block_by_block, false}};
enum { N_WAYS = sizeof ways / sizeof *ways };

static bool step(const firn_run *run, int way, firn_train_options *o)
{
    return !(ways[way].trains && run->evaluates) && ways[way].step(o);
}

/* What differs, as options. */
static void say_options(firn_text *t, const firn_run *run, const firn_train_options *is)
{
    const firn_train_options *was = &run->record.options;
    const char *blank = "";

    if (is->batch != was->batch) {
        firn_text_printf(t, "--batch %lld", (long long)is->batch);
        if (!run->evaluates)
            firn_text_printf(t, " --accumulate %lld", (long long)is->accumulate);
        blank = " ";
    }
    if (is->weights != was->weights) {
        firn_text_printf(t, "%s--weights %s", blank, is->weights);
        blank = " ";
    }
    if (is->targets != was->targets) {
        firn_text_printf(t, "%s--targets %s", blank, is->targets);
        blank = " ";
    }
    if (is->rank != was->rank) {
        firn_text_printf(t, "%s--rank %lld", blank, (long long)is->rank);
        if (is->expert_rank != FIRN_UNSET && is->expert_rank != firn_rank_of_experts(run->model, is->rank))
            firn_text_printf(t, " --expert-rank %lld", (long long)is->expert_rank);
        blank = " ";
    }
    if (is->context != was->context)
        firn_text_printf(t, "%s--context %lld", blank, (long long)is->context);
}

/* Each way alone, as far as it takes; where none is enough, all of them together, and how much that would take. Behind
 * them, what each saves. */
static void propose(const firn_run *run, uint64_t needed, firn_text *t)
{
    const firn_train_options *was = &run->record.options;
    firn_train_options all = *was;
    uint64_t saved[N_WAYS];
    int n = 0;

    for (int w = 0; w < N_WAYS; w++) {
        firn_train_options o = *was;
        while (step(run, w, &o)) {
            if (!fits(run, &o))
                continue;
            firn_text_puts(t, n ? " or " : "; try ");
            say_options(t, run, &o);
            saved[n++] = needed - least_bytes(run, &o);
            break;
        }
    }
    for (int i = 0; i < n; i++) {
        firn_text_puts(t, i ? ", " : n == 1 ? " (saves " : " (they save ");
        firn_text_bytes(t, saved[i]);
    }
    if (n) {
        firn_text_puts(t, ")");
        return;
    }
    bool found = false;
    for (bool more = true; more && !(found = fits(run, &all));) {
        more = false;
        for (int w = 0; w < N_WAYS; w++)
            more |= step(run, w, &all);
    }
    const uint64_t then = least_bytes(run, &all);
    if (then == 0 || then >= needed)
        return;
    firn_text_puts(t, found ? "; try " : "; even ");
    say_options(t, run, &all);
    firn_text_puts(t, found ? " (saves " : " needs ");
    firn_text_bytes(t, found ? needed - then : then);
    firn_text_puts(t, found ? ")" : "");
}

firn_status firn_run_too_large(firn_run *run)
{
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    const uint64_t needed = least_bytes(run, &run->record.options);
    firn_text_puts(&t, run->evaluates ? "the evaluation needs " : "training needs ");
    firn_text_bytes(&t, needed);
    firn_text_puts(&t, run->record.options.memory_limit ? " at least, and the memory limit is "
                                                        : " at least, and what the machine has free is ");
    firn_text_bytes(&t, run->memory_limit);
    propose(run, needed, &t);
    const firn_status s =
        t.status == FIRN_OK ? firn_fail(run->ctx, FIRN_ERR_MEMORY, "%s", firn_text_cstr(&t)) : t.status;
    firn_text_free(&t);
    return s;
}
