/* Checkpoints, the best one, and going back; see course.h. */
#include "train/course.h"

#include "core/machine.h"
#include "train/ranks.h"

#include <math.h>
#include <string.h>

enum { MOST_REWINDS = 5, FIRST_SURE_STEP = 20 };

static firn_status checkpoints_of(const firn_run *run, char *path)
{
    return firn_run_path(run->ctx, run->folder, "checkpoints", path);
}

static bool wants_best(const firn_run *run)
{
    return strcmp(run->record.options.final, "last") != 0;
}

/* ---- writing ---- */

/* A checkpoint, or the best adapter. */
static firn_status write(firn_run *run, bool best)
{
    firn_course *c = &run->at.course;
    firn_parameters *store = firn_session_parameters(run->session);
    char folder[FIRN_PATH_BYTES];
    firn_text settings;

    FIRN_TRY(firn_lock_keep(run->lock, run->folder));
    FIRN_TRY(checkpoints_of(run, folder));
    firn_train_options_settings(run->ctx, &run->record.options, &settings);
    firn_status s = settings.status;
    if (s == FIRN_OK)
        s = best ? firn_checkpoint_write_best(run->ctx, folder, store, &run->at, firn_text_cstr(&settings),
                                              run->best_kept)
                 : firn_checkpoint_write(run->ctx, folder, store, &run->at, firn_text_cstr(&settings),
                                         run->record.options.keep);
    firn_text_free(&settings);
    if (s == FIRN_OK && !best) { /* an older best is of no checkpoint now that could be gone on from */
        run->best_kept = (int64_t)c->best_step;
        firn_checkpoint_keep_best(folder, run->best_kept);
    }
    return s;
}

static firn_status write_checkpoint(firn_run *run)
{
    FIRN_TRY(firn_run_forgive(run, firn_metrics_sync(&run->metrics)));
    run->at.metrics_bytes = (int64_t)run->metrics.bytes;
    return write(run, false);
}

/* All ranks know the same; the first writes it down. */
firn_status firn_run_save(firn_run *run)
{
    return firn_run_agree(run, firn_run_first(run) ? write_checkpoint(run) : FIRN_OK);
}

/* ---- reading ---- */

/* Another number of steps is another schedule for the steps that are left. */
static void say_schedule(const firn_run *run)
{
    const int64_t next = run->at.step + 1;
    firn_schedule before = run->schedule;

    before.steps = run->steps_before;
    if (before.steps == 0 || before.steps == run->record.steps)
        return;
    if (before.steps < next) {
        firn_run_say(
            run, "schedule %lld steps in place of %lld: the learning rate was %.2g at step %lld and goes on with %.2g",
            (long long)run->record.steps, (long long)before.steps, firn_schedule_rate(&before, next - 1),
            (long long)next - 1, firn_schedule_rate(&run->schedule, next));
        return;
    }
    const double was = firn_schedule_rate(&before, next), is = firn_schedule_rate(&run->schedule, next);
    if (was != is)
        firn_run_say(run,
                     "schedule %lld steps in place of %lld change the learning rate: step %lld has %.2g, it would have "
                     "had %.2g",
                     (long long)run->record.steps, (long long)before.steps, (long long)next, is, was);
}

static firn_status read_checkpoint(firn_run *run, const char *folder, int64_t step)
{
    firn_text settings;

    firn_train_options_settings(run->ctx, &run->record.options, &settings);
    firn_status s = settings.status;
    if (s == FIRN_OK)
        s = firn_checkpoint_read(run->ctx, folder, step, firn_session_parameters(run->session), &run->at,
                                 firn_text_cstr(&settings));
    firn_text_free(&settings);
    return s;
}

static firn_status read_newest(firn_run *run)
{
    char folder[FIRN_PATH_BYTES];
    int64_t step, below = INT64_MAX;

    FIRN_TRY(checkpoints_of(run, folder));
    for (;;) {
        FIRN_TRY(firn_checkpoint_newest(run->ctx, folder, below, &step));
        if (step < 0) {
            if (below != INT64_MAX)
                return FIRN_ERR_FORMAT; /* there were some, none of them readable: the last sentence stands */
            firn_run_say(run, "there is no checkpoint yet: starting from step 0");
            return FIRN_OK;
        }
        const firn_status s = read_checkpoint(run, folder, step);
        if (s == FIRN_OK)
            break;
        if (s == FIRN_ERR_MEMORY || s == FIRN_ERR_ARGUMENT) /* it is fine, then */
            return s;
        firn_run_say(run, "warning: the checkpoint of step %lld cannot be used: %s", (long long)step,
                     firn_error(run->ctx));
        below = step;
    }
    *firn_optimizer_steps(run->optimizer) = run->at.step;
    run->best_kept = (int64_t)run->at.course.best_step;
    firn_checkpoint_keep_best(folder, run->best_kept); /* a killed run may not have come to it */
    /* It was the last step's; where that is the last of all still, it is not needed. */
    if (wants_best(run) && run->best_kept == run->at.step && run->best_kept > 0 && run->at.step < run->record.steps)
        FIRN_TRY(write(run, true));
    firn_run_say(run, "going on after step %lld", (long long)run->at.step);
    say_schedule(run);
    return FIRN_OK;
}

firn_status firn_run_load_newest(firn_run *run)
{
    FIRN_TRY(firn_run_agree(run, firn_run_first(run) ? read_newest(run) : FIRN_OK));
    return firn_run_share_position(run);
}

/* ---- when ---- */

firn_status firn_run_due(firn_run *run, int64_t every, double *since, bool *due)
{
    *due = every > 0 && run->at.step % every == 0;
    if (every >= 0)
        return FIRN_OK;
    const double now = firn_seconds();
    uint8_t is = now - *since >= (double)-every;
    FIRN_TRY(firn_group_broadcast(run->group, 0, &is, sizeof is));
    *due = is;
    if (is)
        *since = now;
    return FIRN_OK;
}

/* ---- the best ---- */

firn_status firn_run_choose(firn_run *run, double eval_loss)
{
    firn_course *c = &run->at.course;

    if (isnan(eval_loss))
        return FIRN_OK;
    if (c->best_step > 0 && eval_loss >= c->best_loss) {
        c->stale++;
        return FIRN_OK;
    }
    c->best_step = (double)run->at.step;
    c->best_loss = eval_loss;
    c->stale = 0;
    const bool writes = wants_best(run) && run->at.step < run->record.steps && firn_run_first(run);
    return firn_run_agree(run, writes ? write(run, true) : FIRN_OK);
}

bool firn_run_had_enough(const firn_run *run)
{
    const int64_t patience = run->record.options.patience;

    return patience > 0 && run->at.course.stale >= (double)patience;
}

static firn_status read_best(firn_run *run)
{
    firn_course *c = &run->at.course;
    char folder[FIRN_PATH_BYTES];

    FIRN_TRY(checkpoints_of(run, folder));
    const firn_status s =
        firn_checkpoint_read_best(run->ctx, folder, (int64_t)c->best_step, firn_session_parameters(run->session));
    if (s == FIRN_OK || s == FIRN_ERR_MEMORY)
        return s;
    firn_run_say(run, "warning: the best adapter, of step %.0f, is lost: %s; the last step's takes its place",
                 c->best_step, firn_error(run->ctx));
    c->best_step = (double)run->at.step;
    return FIRN_OK;
}

firn_status firn_run_take_best(firn_run *run)
{
    const firn_course *c = &run->at.course;
    const double last = run->at.eval_loss;

    run->adapter_step = run->at.step;
    if (!wants_best(run) || c->best_step == 0 || (int64_t)c->best_step == run->at.step)
        return FIRN_OK;
    FIRN_TRY(firn_run_agree(run, firn_run_first(run) ? read_best(run) : FIRN_OK));
    FIRN_TRY(firn_run_share_position(run));
    run->adapter_step = (int64_t)c->best_step;
    if (run->adapter_step == run->at.step)
        return FIRN_OK;
    run->at.eval_loss = c->best_loss;
    firn_run_say(run, "best     the adapter of step %lld (evaluation loss %.4f), not that of step %lld (%.4f)",
                 (long long)run->adapter_step, c->best_loss, (long long)run->at.step, last);
    return FIRN_OK;
}

/* ---- divergence ---- */

static bool goes_back(const firn_run *run)
{
    return strcmp(run->record.options.on_divergence, "rewind") == 0;
}

static double limit_of(const firn_course *c)
{
    return 1.5 * c->least_mean + 1;
}

static bool is_calm(const firn_course *c)
{
    return c->mean <= (limit_of(c) + c->least_mean) / 2;
}

bool firn_run_may_save(const firn_run *run)
{
    return !goes_back(run) || is_calm(&run->at.course);
}

firn_status firn_run_follow(firn_run *run, double loss)
{
    firn_course *c = &run->at.course;

    c->mean = c->mean == 0 ? loss : 0.9 * c->mean + 0.1 * loss;
    c->least_mean = c->least_mean == 0 ? c->mean : fmin(c->least_mean, c->mean);
    if (run->at.step <= FIRST_SURE_STEP || c->mean <= limit_of(c))
        return FIRN_OK;
    return firn_fail(run->ctx, FIRN_ERR_DEVICE,
                     "step %lld: the run diverges: the mean loss of its steps was %.3g and is %.3g (a lower "
                     "--learning-rate may help, or --on-divergence rewind)",
                     (long long)run->at.step, c->least_mean, c->mean);
}

/* The newest checkpoint in which nothing had begun to diverge. *found: it was read into the run. */
static firn_status read_calm(firn_run *run, const char *folder, bool *found)
{
    int64_t step = run->at.step + 1;

    for (*found = false; !*found;) {
        FIRN_TRY(firn_checkpoint_newest(run->ctx, folder, step, &step));
        if (step < 0)
            return FIRN_OK;
        const firn_status s = read_checkpoint(run, folder, step);
        if (s == FIRN_ERR_MEMORY)
            return s;
        *found = s == FIRN_OK && is_calm(&run->at.course);
    }
    return FIRN_OK;
}

/* Back to the checkpoint, and on with the window that comes next. *went: it did. */
static firn_status go_back(firn_run *run, bool *went)
{
    const firn_position ahead = run->ahead;
    const double rewinds = run->at.course.rewinds;
    char folder[FIRN_PATH_BYTES];

    FIRN_TRY(checkpoints_of(run, folder));
    FIRN_TRY(read_calm(run, folder, went));
    if (!*went)
        return FIRN_OK;
    run->at.course.rewinds = rewinds + 1;
    run->at.epoch = ahead.epoch;
    run->at.window = ahead.window;
    firn_metrics_close(&run->metrics);
    FIRN_TRY(firn_run_forgive(
        run, firn_metrics_open(run->ctx, run->folder, (uint64_t)run->at.metrics_bytes, &run->metrics)));
    firn_events_close(&run->events);
    FIRN_TRY(firn_run_forgive(run, firn_events_open(run->ctx, run->folder, run->at.step, &run->events)));
    /* In this order: a run that is killed between the two comes to the same place again. */
    FIRN_TRY(firn_checkpoint_drop_behind(run->ctx, folder, run->at.step));
    return write(run, false);
}

firn_status firn_run_diverged(firn_run *run, firn_status failed)
{
    const int64_t from = run->at.step;
    char why[512];
    uint8_t went = 0;
    bool did = false;

    if (failed != FIRN_ERR_DEVICE || !goes_back(run))
        return failed;
    snprintf(why, sizeof why, "%s", firn_error(run->ctx));
    if (run->at.course.rewinds >= MOST_REWINDS)
        return firn_fail(run->ctx, failed, "%s; the run went back %d times already", why, MOST_REWINDS);
    const firn_status s = firn_run_first(run) ? go_back(run, &did) : FIRN_OK;
    FIRN_TRY(firn_run_agree(run, s));
    went = did;
    FIRN_TRY(firn_group_broadcast(run->group, 0, &went, sizeof went));
    if (!went)
        return firn_fail(run->ctx, failed, "%s; there is no checkpoint from before to go back to", why);
    FIRN_TRY(firn_run_share_position(run));
    *firn_optimizer_steps(run->optimizer) = run->at.step;
    firn_run_say(run, "rewind   %s", why);
    firn_run_say(run, "         back from step %lld to step %lld, past the data since, at 1/%.0f of the learning rate",
                 (long long)from, (long long)run->at.step, ldexp(1, (int)run->at.course.rewinds));
    return FIRN_OK;
}
