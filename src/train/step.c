/* One optimizer step, and the loss of a data set.
 *
 *     loss = sum over the targets of batch x accumulate windows / their number     (tokens count alike, windows do not)
 *     g    = its gradient, scaled to the clipping norm; AdamW with the learning rate of the step
 *
 * With --router-aux-loss or --router-z-loss the gradient is that of
 *
 *     loss + sum over passes of tokens of the pass / tokens of the step x sum over expert blocks of
 *            (router_aux_loss x ROUTER_BALANCE + router_z_loss x ROUTER_Z)                          (op/router_loss.c)
 *
 * while the loss that is reported stays the language's; the router's are reported beside it.
 *
 * Gradients of passes are added in a tree (train/reduce.h), on one rank or several; losses in the order of passes.
 *
 * Windows are taken in order, epoch after epoch; a step that meets the end of an epoch goes on with the next. */
#include "core/machine.h"
#include "train/neftune.h"
#include "train/ranks.h"

#include <math.h>

firn_status firn_run_pack(firn_run *run, int64_t epoch)
{
    const firn_train_options *o = &run->record.options;

    if (run->packed == epoch)
        return FIRN_OK;
    firn_packing_clear(&run->packing);
    run->packed = -1;
    firn_sample_list list;
    bool drawn;
    FIRN_TRY(firn_data_weigh(run->data, &run->train, (uint64_t)o->seed, epoch, &list, &drawn));
    const firn_status s = firn_pack(run->data, &list, o->context, true, (uint64_t)o->seed, epoch, &run->packing);
    if (drawn)
        firn_sample_list_free(run->ctx, &list);
    FIRN_TRY(s);
    run->packed = epoch;
    return FIRN_OK;
}

/* The window at the cursor, which moves on. */
static firn_status next_window(firn_run *run, firn_position *cursor, int64_t *window)
{
    FIRN_TRY(firn_run_pack(run, cursor->epoch));
    if (cursor->window >= run->packing.n_windows) {
        cursor->epoch++;
        cursor->window = 0;
        FIRN_TRY(firn_run_pack(run, cursor->epoch));
    }
    *window = cursor->window++;
    return FIRN_OK;
}

/* ---- the passes of a step ---- */

firn_status firn_run_list_create(firn_run *run)
{
    const firn_train_options *o = &run->record.options;
    const size_t passes = (size_t)o->accumulate, ranks = (size_t)firn_group_size(run->group);
    const size_t samples = (size_t)(o->batch * o->context); /* of a pass, at most: none is empty */
    firn_step_list *l = &run->listed;

    l->samples = firn_alloc_zeroed(run->ctx, passes, samples * sizeof *l->samples);
    l->begin = firn_alloc_zeroed(run->ctx, passes + 1, sizeof *l->begin);
    l->tokens = firn_alloc_zeroed(run->ctx, passes, sizeof *l->tokens);
    l->results = firn_alloc_zeroed(run->ctx, passes, sizeof *l->results);
    l->gathered = firn_alloc_zeroed(run->ctx, (ranks + 1) * ((passes + ranks - 1) / ranks), sizeof *l->gathered);
    return l->samples && l->begin && l->tokens && l->results && l->gathered ? FIRN_OK : FIRN_ERR_MEMORY;
}

void firn_run_list_destroy(firn_run *run)
{
    firn_step_list *l = &run->listed;

    firn_free(run->ctx, l->samples);
    firn_free(run->ctx, l->begin);
    firn_free(run->ctx, l->tokens);
    firn_free(run->ctx, l->results);
    firn_free(run->ctx, l->gathered);
    *l = (firn_step_list){0};
}

/* Samples, tokens and targets of the step, before anything is computed: the gradient's weight is one over the targets.
 * The cursor moves behind it. */
static firn_status list_step(firn_run *run, firn_position *cursor, firn_step_result *result)
{
    const firn_train_options *o = &run->record.options;
    firn_step_list *l = &run->listed;
    int64_t w, n = 0;

    result->tokens = result->target_tokens = 0;
    for (int64_t i = 0; i < o->accumulate; i++) {
        l->tokens[i] = 0;
        for (int64_t j = 0; j < o->batch; j++) {
            FIRN_TRY(next_window(run, cursor, &w));
            for (int64_t k = run->packing.window[w]; k < run->packing.window[w + 1]; k++) {
                const firn_sample *s = &run->data->samples[run->packing.order[k]];
                l->samples[n++] = run->packing.order[k];
                l->tokens[i] += s->n;
                result->target_tokens += s->n_targets;
            }
        }
        l->begin[i + 1] = n;
        result->tokens += l->tokens[i];
    }
    return FIRN_OK;
}

static firn_status fill_pass(firn_run *run, int64_t i)
{
    firn_pass_clear(&run->pass);
    for (int64_t k = run->listed.begin[i]; k < run->listed.begin[i + 1]; k++)
        FIRN_TRY(firn_pass_add(&run->pass, run->data, run->listed.samples[k]));
    return FIRN_OK;
}

/* ---- what is not finite ---- */

/* What the router's losses count in a pass of that share of the step's tokens. */
static void weigh_router(const firn_run *run, double share, firn_batch *batch)
{
    const firn_train_options *o = &run->record.options;

    batch->router_weight[0] = (float)(fmax(o->router_aux_loss, 0) * share);
    batch->router_weight[1] = (float)(fmax(o->router_z_loss, 0) * share);
}

/* Runs the samples of the pass one by one until one fails. The session names block and tensor; this names the sample.
 */
static firn_status blame_sample(firn_run *run, firn_status failed)
{
    const firn_pass *pass = &run->pass;
    const long long step = (long long)run->at.step + 1;
    firn_pass one;
    double loss;
    int64_t n;

    if (firn_pass_create(run->ctx, run->record.options.context, &one) != FIRN_OK)
        return failed;
    firn_status s = FIRN_OK;
    int32_t guilty = -1;
    for (int64_t i = 0; s == FIRN_OK && guilty < 0 && i < pass->n; i += run->data->samples[pass->sample[i]].n) {
        firn_pass_clear(&one);
        s = firn_pass_add(&one, run->data, pass->sample[i]);
        if (s != FIRN_OK)
            break;
        const firn_batch batch = firn_pass_batch(&one);
        const firn_status done = firn_session_loss(run->session, &batch, &loss, &n);
        if (done != FIRN_OK || !isfinite(loss))
            guilty = pass->sample[i];
        if (done == FIRN_OK && guilty >= 0)
            firn_fail(run->ctx, FIRN_ERR_DEVICE, "the loss is %g", loss);
    }
    firn_pass_destroy(&one);
    if (guilty < 0)
        return firn_fail_in(run->ctx, failed, "step %lld, in the backward pass", step);
    return firn_fail_in(run->ctx, FIRN_ERR_DEVICE, "step %lld, sample at %s:%lld", step,
                        run->data->files[run->data->samples[guilty].file].name,
                        (long long)run->data->samples[guilty].line);
}

/* Runs the passes of the step again, each from zero gradients: one of them, or one of its samples, is named where it is
 * possible. */
static firn_status blame_pass(firn_run *run, const firn_step_result *step)
{
    for (int64_t i = 0; i < run->record.options.accumulate; i++) {
        FIRN_TRY(fill_pass(run, i));
        firn_batch batch = firn_pass_batch(&run->pass);
        weigh_router(run, (double)batch.n_tokens / (double)step->tokens, &batch);
        firn_session_zero_gradients(run->session);
        const firn_status s = firn_session_examine(run->session, &batch, 1 / (float)step->target_tokens);
        if (s == FIRN_ERR_DEVICE)
            return blame_sample(run, s);
        FIRN_TRY(s);
    }
    return FIRN_OK;
}

static firn_status blame_gradient(firn_run *run, const firn_step_result *step)
{
    const float *gradients = firn_session_gradients(run->session); /* as the passes left them */

    const firn_adapter *a = run->adapter;

    FIRN_TRY(blame_pass(run, step));
    for (int i = 0; i < a->n_entries; i++) {
        const firn_adapter_entry *e = &a->entries[i];
        const int64_t sizes[] = {e->n_in * e->rank * e->n_expert, e->rank * e->n_out * e->n_expert};
        for (int f = 0; f < 2; f++) {
            const float *g = gradients ? gradients + (f ? e->b : e->a) : NULL;
            for (int64_t k = 0; g && k < sizes[f]; k++)
                if (!isfinite(g[k]))
                    return firn_fail(run->ctx, FIRN_ERR_DEVICE,
                                     "step %lld: the gradient of %s.lora_%c is not finite (value %lld is %g)",
                                     (long long)run->at.step + 1, e->tensor, f ? 'b' : 'a', (long long)k, (double)g[k]);
        }
    }
    return firn_fail(run->ctx, FIRN_ERR_DEVICE, "step %lld: the norm of the gradient is not finite",
                     (long long)run->at.step + 1);
}

/* ---- the step ---- */

/* NEFTune's, where it is asked for, on what is run next. */
static void add_noise(firn_run *run, int64_t number, bool on)
{
    const firn_train_options *o = &run->record.options;
    float *noise = firn_session_noise(run->session, on);

    if (on && noise)
        firn_neftune_fill(&run->pass, o->neftune, (uint64_t)o->seed, run->at.step + 1, number,
                          firn_model_get_info(run->model)->n_embd, o->batch * o->context, noise);
}

/* One pass: its gradient is added to the session's. */
static firn_status run_pass(firn_run *run, const firn_step_result *step, int64_t number, firn_pass_result *result)
{
    firn_batch batch = firn_pass_batch(&run->pass);
    const double share = (double)batch.n_tokens / (double)step->tokens;
    double losses[2];
    int64_t n;

    weigh_router(run, share, &batch);
    add_noise(run, number, true);
    const firn_status s =
        firn_session_gradient(run->session, &batch, 1 / (float)step->target_tokens, &result->loss, &n);
    add_noise(run, number, false);
    if (s == FIRN_ERR_DEVICE || (s == FIRN_OK && !isfinite(result->loss))) {
        if (s == FIRN_OK)
            firn_fail(run->ctx, FIRN_ERR_DEVICE, "the loss is %g", result->loss);
        return blame_sample(run, FIRN_ERR_DEVICE);
    }
    FIRN_TRY(s);
    firn_session_router_losses(run->session, losses, &n);
    for (int i = 0; i < 2; i++)
        result->router[i] = n ? share * losses[i] / (double)n : NAN;
    return FIRN_OK;
}

static firn_status run_passes(firn_run *run, const firn_step_result *step)
{
    int64_t n;
    const int64_t *passes = firn_reduction_passes(run->reduction, &n);

    FIRN_TRY(firn_reduction_begin(run->reduction));
    for (int64_t k = 0; k < n; k++) {
        FIRN_TRY(fill_pass(run, passes[k]));
        FIRN_TRY(run_pass(run, step, passes[k], &run->listed.results[passes[k]]));
        FIRN_TRY(firn_reduction_passed(run->reduction));
    }
    return FIRN_OK;
}

/* Results of all passes, on every rank. */
static firn_status gather_results(firn_run *run)
{
    const int ranks = firn_group_size(run->group);
    const int64_t most = (run->record.options.accumulate + ranks - 1) / ranks;
    firn_pass_result *all = run->listed.gathered, *mine = all + ranks * most;
    int64_t n;

    if (ranks == 1)
        return FIRN_OK;
    const int64_t *passes = firn_reduction_passes(run->reduction, &n);
    for (int64_t k = 0; k < n; k++)
        mine[k] = run->listed.results[passes[k]];
    FIRN_TRY(firn_group_gather(run->group, mine, (size_t)most * sizeof *mine, all));
    for (int r = 0; r < ranks; r++) {
        passes = firn_reduction_passes_of(run->reduction, r, &n);
        for (int64_t k = 0; k < n; k++)
            run->listed.results[passes[k]] = all[r * most + k];
    }
    return FIRN_OK;
}

firn_status firn_run_step(firn_run *run, firn_step_result *result)
{
    const double begin = firn_seconds();
    firn_position cursor = run->at;
    double sum = 0;

    const firn_status listed = list_step(run, &cursor, result);
    run->ahead = cursor;
    FIRN_TRY(firn_run_agree(run, listed));
    FIRN_TRY(firn_run_agree(run, run_passes(run, result)));
    FIRN_TRY(gather_results(run));
    FIRN_TRY(firn_reduction_finish(run->reduction));
    result->router[0] = result->router[1] = result->grad_norm = 0;
    for (int64_t i = 0; i < run->record.options.accumulate; i++) {
        sum += run->listed.results[i].loss;
        for (int k = 0; k < 2; k++)
            result->router[k] += run->listed.results[i].router[k];
    }
    result->loss = sum / (double)result->target_tokens;
    /* Half of it for each time that the run went back. */
    result->learning_rate = ldexp(firn_schedule_rate(&run->schedule, run->at.step + 1), -(int)run->at.course.rewinds);
    const firn_status s = firn_optimizer_step(run->optimizer, (float)result->learning_rate, &result->grad_norm);
    if (s == FIRN_ERR_DEVICE && !isfinite(result->grad_norm))
        return blame_gradient(run, result);
    FIRN_TRY(s);
    run->at.step++;
    run->at.epoch = cursor.epoch;
    run->at.window = cursor.window;
    result->seconds = firn_seconds() - begin;
    return FIRN_OK;
}

/* ---- evaluation ---- */

/* The passes of this rank; each one's sum into sums, those of others stay as they are. */
static firn_status add_losses(firn_session *session, firn_group *group, const firn_data *data,
                              const firn_packing *packing, int64_t batch, firn_pass *pass, firn_loss_sum *sums)
{
    const int64_t ranks = firn_group_size(group), rank = group ? group->rank : 0;

    for (int64_t w = 0, i = 0; w < packing->n_windows; i++) {
        const int64_t end = firn_min_i64(w + batch, packing->n_windows);
        firn_loss_sum *sum = ranks > 1 ? sums + i / ranks : sums;
        double loss;
        int64_t n;
        firn_pass_clear(pass);
        for (; w < end; w++)
            if (i % ranks == rank)
                FIRN_TRY(firn_pass_add_window(pass, data, packing, w));
        if (i % ranks != rank)
            continue;
        const firn_batch b = firn_pass_batch(pass);
        FIRN_TRY(firn_session_loss(session, &b, &loss, &n));
        sum->loss += loss;
        sum->tokens += pass->n;
        sum->target_tokens += n;
    }
    return FIRN_OK;
}

firn_status firn_packing_loss(firn_session *session, firn_group *group, const firn_data *data,
                              const firn_packing *packing, int64_t batch, firn_pass *pass, firn_loss_sum *sum)
{
    const int64_t ranks = firn_group_size(group), passes = (packing->n_windows + batch - 1) / batch;
    const int64_t most = (passes + ranks - 1) / ranks;

    *sum = (firn_loss_sum){0};
    if (ranks == 1)
        return add_losses(session, group, data, packing, batch, pass, sum);
    firn_loss_sum *all =
        firn_alloc_zeroed(group->ctx, (size_t)(ranks + 1) * (size_t)firn_max_i64(most, 1), sizeof *all);
    firn_loss_sum *mine = all ? all + ranks * most : NULL;
    firn_status s = all ? add_losses(session, group, data, packing, batch, pass, mine) : FIRN_ERR_MEMORY;
    s = firn_group_agree(group, s);
    if (s == FIRN_OK)
        s = firn_group_gather(group, mine, (size_t)most * sizeof *mine, all);
    for (int64_t i = 0; s == FIRN_OK && i < passes; i++) { /* in the order of passes, as one rank adds them */
        const firn_loss_sum *one = &all[i % ranks * most + i / ranks];
        sum->loss += one->loss;
        sum->tokens += one->tokens;
        sum->target_tokens += one->target_tokens;
    }
    firn_free(group->ctx, all);
    return s;
}

firn_status firn_run_evaluate(firn_run *run, double *loss)
{
    const firn_data *data = run->eval_data ? run->eval_data : run->data;
    firn_loss_sum sum;

    *loss = NAN;
    if (run->held_packing.n_windows == 0)
        return FIRN_OK;
    const firn_status s = firn_packing_loss(run->session, run->group, data, &run->held_packing,
                                            run->record.options.batch, &run->pass, &sum);
    if (s != FIRN_OK)
        return firn_fail_in(run->ctx, s, "evaluation after step %lld", (long long)run->at.step);
    *loss = sum.loss / (double)sum.target_tokens;
    if (!isfinite(*loss))
        return firn_fail(run->ctx, FIRN_ERR_DEVICE, "after step %lld the evaluation loss is %g",
                         (long long)run->at.step, *loss);
    return FIRN_OK;
}
