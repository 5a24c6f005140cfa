/* What to change where a run does not fit: see advice.h. Each way is planned as the run would be, so that what is
 * proposed fits. */
#include "train/advice.h"

#include "core/machine.h"
#include "model/model.h"

enum { LEAST_RANK = 2, LEAST_CONTEXT = 64 };

/* Bytes that the run takes at least with these options; 0 where they make none. */
static uint64_t least_bytes(const firn_run *run, const firn_train_options *options)
{
    firn_run trial = *run;
    firn_adapter *adapter = NULL;
    firn_session_memory memory = {.size = sizeof memory};
    uint64_t bytes = 0;

    trial.record.options = *options;
    if (!options->adapter) {
        if (firn_adapter_describe(run->ctx, run->model, options->targets, options->unserved, options->rank,
                                  (float)options->alpha, &adapter) != FIRN_OK)
            return 0;
        trial.adapter = adapter;
    }
    const firn_session_params params = {.n_tokens = options->batch * options->context,
                                        .train = true,
                                        .router_losses = firn_router_losses_wanted(options)};
    if (firn_session_plan(run->ctx, run->device, run->model, trial.adapter, &params, &memory) == FIRN_OK)
        bytes = firn_run_outside_bytes(&trial) + memory.least;
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

static bool (*const ways[])(firn_train_options *) = {fewer_windows, lower_rank, shorter_windows, attention_alone};
enum { N_WAYS = sizeof ways / sizeof *ways };

/* What differs, as options. */
static void say_options(firn_text *t, const firn_train_options *was, const firn_train_options *is)
{
    const char *blank = "";

    if (is->batch != was->batch) {
        firn_text_printf(t, "--batch %lld --accumulate %lld", (long long)is->batch, (long long)is->accumulate);
        blank = " ";
    }
    if (is->targets != was->targets) {
        firn_text_printf(t, "%s--targets %s", blank, is->targets);
        blank = " ";
    }
    if (is->rank != was->rank) {
        firn_text_printf(t, "%s--rank %lld", blank, (long long)is->rank);
        blank = " ";
    }
    if (is->context != was->context)
        firn_text_printf(t, "%s--context %lld", blank, (long long)is->context);
}

/* Each way alone, as far as it takes; where none is enough, all of them together, and how much that would take. */
static void propose(const firn_run *run, firn_text *t)
{
    const firn_train_options *was = &run->record.options;
    firn_train_options all = *was;
    int found = 0;

    for (int w = 0; w < N_WAYS; w++) {
        firn_train_options o = *was;
        while (ways[w](&o)) {
            if (!fits(run, &o))
                continue;
            firn_text_puts(t, found++ ? " or " : "; try ");
            say_options(t, was, &o);
            break;
        }
    }
    for (bool more = !found; more && !(found = fits(run, &all));) {
        more = false;
        for (int w = 0; w < N_WAYS; w++)
            more |= ways[w](&all);
    }
    if (all.rank == was->rank && all.context == was->context && all.batch == was->batch && all.targets == was->targets)
        return;
    firn_text_puts(t, found ? "; try " : "; even ");
    say_options(t, was, &all);
    if (!found) {
        firn_text_puts(t, " needs ");
        firn_text_bytes(t, least_bytes(run, &all));
    }
}

firn_status firn_run_too_large(firn_run *run)
{
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "training needs ");
    firn_text_bytes(&t, least_bytes(run, &run->record.options));
    firn_text_puts(&t, run->record.options.memory_limit ? " at least, and the memory limit is "
                                                        : " at least, and what the machine has free is ");
    firn_text_bytes(&t, run->memory_limit);
    propose(run, &t);
    const firn_status s =
        t.status == FIRN_OK ? firn_fail(run->ctx, FIRN_ERR_MEMORY, "%s", firn_text_cstr(&t)) : t.status;
    firn_text_free(&t);
    return s;
}
