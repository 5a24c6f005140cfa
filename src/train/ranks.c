/* Several ranks in one run; see ranks.h. */
#include "train/ranks.h"

#include "core/machine.h"
#include "core/pool.h"
#include "train/reduce.h"

#include <sched.h>
#include <stdio.h>

enum { PIECE = 1 << 20 }; /* values that are sent at once */

/* ---- joining ---- */

static bool stop_wanted(void *user)
{
    return firn_run_stop_wanted(user);
}

/* The processors that this rank may use, among those of this host that may use the same: bound by the launcher, each
 * has its own. */
static firn_status divide_threads(firn_run *run)
{
    typedef struct {
        char host[FIRN_GROUP_HOST_BYTES];
        uint8_t processors[128];
    } seat;
    firn_group *g = run->group;
    seat mine = {{0}, {0}};
    int sharing = 0;

#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        memcpy(mine.processors, &set, sizeof set < sizeof mine.processors ? sizeof set : sizeof mine.processors);
#endif
    memcpy(mine.host, g->host, sizeof mine.host);
    seat *all = firn_alloc(run->ctx, (size_t)g->size * sizeof *all);
    if (!all)
        return FIRN_ERR_MEMORY;
    const firn_status s = firn_group_gather(g, &mine, sizeof mine, all);
    for (int i = 0; s == FIRN_OK && i < g->size; i++)
        sharing += memcmp(&all[i], &mine, sizeof mine) == 0;
    firn_free(run->ctx, all);
    if (s == FIRN_OK && sharing > 1 && run->ctx->n_threads >= firn_cpu_count())
        run->ctx->n_threads = (int)firn_max_i64(1, run->ctx->n_threads / sharing);
    return s;
}

firn_status firn_run_join(firn_run *run)
{
    FIRN_TRY(firn_group_open(run->ctx, &run->group));
    if (run->group->size == 1)
        return FIRN_OK;
    run->group->stop = stop_wanted;
    run->group->stop_user = run;
    if (!firn_run_first(run)) {
        run->watch.say = NULL;
        run->watch.progress = NULL;
    }
    return divide_threads(run);
}

firn_status firn_run_agree(firn_run *run, firn_status mine)
{
    return firn_group_agree(run->group, mine);
}

/* ---- the same run ---- */

firn_status firn_run_compare(firn_run *run)
{
    const firn_run_record *r = &run->record;
    firn_group *g = run->group;
    firn_text settings;

    if (firn_group_size(g) == 1)
        return FIRN_OK;
    FIRN_TRY(firn_group_expect_same(g, "the firn", FIRN_VERSION, strlen(FIRN_VERSION)));
    FIRN_TRY(firn_group_expect_same(g, "the model", r->model.sha256, strlen(r->model.sha256)));
    FIRN_TRY(firn_group_expect_same(g, "the data set", r->data.sha256, strlen(r->data.sha256)));
    FIRN_TRY(firn_group_expect_same(g, "the evaluation data", r->eval_data.sha256, strlen(r->eval_data.sha256)));
    FIRN_TRY(firn_group_expect_same(g, "the adapter to begin with", r->adapter.sha256, strlen(r->adapter.sha256)));
    /* Bits of one step would differ from rank to rank, and with them the parameters, more and more. */
    FIRN_TRY(firn_group_expect_same(g, "the set of kernels (FIRN_CPU chooses one)", r->kernels, strlen(r->kernels)));
    firn_train_options_settings(run->ctx, &r->options, &settings);
    firn_status s = settings.status;
    if (s == FIRN_OK)
        s = firn_group_expect_same(g, "what is asked for", firn_text_cstr(&settings),
                                   strlen(firn_text_cstr(&settings)));
    firn_text_free(&settings);
    return s;
}

firn_status firn_run_say_ranks(const firn_run *run)
{
    const firn_group *g = run->group;
    const int64_t passes = run->record.options.accumulate;
    firn_text t;

    if (firn_group_size(g) == 1)
        return FIRN_OK;
    firn_text_init(&t, run->ctx, 0);
    firn_text_printf(&t,
                     "ranks    %d over %s, %d on this host, %d thread%s each; %lld pass%s a step, up to %lld a rank; ",
                     g->size, g->kind->about, g->local_size, run->ctx->n_threads, firn_plural(run->ctx->n_threads),
                     (long long)passes, passes == 1 ? "" : "es", (long long)((passes + g->size - 1) / g->size));
    firn_text_bytes(&t, firn_parameters_bytes(run->adapter->n_values, 1));
    firn_text_puts(&t, " of gradients are added among them");
    FIRN_TRY(firn_run_say_text(run, &t));
    if (passes < g->size)
        firn_run_say(run,
                     "warning  a step has %lld pass%s: %lld of the %d ranks will have nothing to do; --accumulate %d "
                     "gives each one",
                     (long long)passes, passes == 1 ? "" : "es", (long long)g->size - passes, g->size, g->size);
    return FIRN_OK;
}

/* ---- sharing ---- */

static firn_status share_part(firn_run *run, firn_parameters *store, firn_parameters_part part, float *piece)
{
    for (int64_t i = 0, n; i < store->n; i += n) {
        n = firn_min_i64(PIECE, store->n - i);
        if (firn_run_first(run))
            FIRN_TRY(firn_parameters_read(store, part, i, n, piece));
        FIRN_TRY(firn_group_broadcast(run->group, 0, piece, (size_t)n * sizeof *piece));
        if (!firn_run_first(run))
            FIRN_TRY(firn_parameters_write(store, part, i, n, piece));
    }
    return FIRN_OK;
}

firn_status firn_run_share_position(firn_run *run)
{
    static const firn_parameters_part parts[] = {FIRN_PARAMETERS_VALUES, FIRN_PARAMETERS_M, FIRN_PARAMETERS_V};
    firn_parameters *store = firn_session_parameters(run->session);

    if (firn_group_size(run->group) == 1)
        return FIRN_OK;
    FIRN_TRY(firn_group_broadcast(run->group, 0, &run->at, sizeof run->at));
    if (run->at.step == 0)
        return FIRN_OK;
    *firn_optimizer_steps(run->optimizer) = run->at.step;
    float *piece = firn_alloc(run->ctx, PIECE * sizeof *piece);
    firn_status s = piece ? FIRN_OK : FIRN_ERR_MEMORY;
    for (size_t i = 0; s == FIRN_OK && i < sizeof parts / sizeof *parts; i++)
        if (store->part[parts[i]])
            s = share_part(run, store, parts[i], piece);
    firn_free(run->ctx, piece);
    return s;
}

firn_status firn_run_sum_load(firn_run *run)
{
    const firn_model_info *info = firn_model_get_info(run->model);
    int64_t *load = firn_session_expert_load(run->session);
    const size_t n = (size_t)(info->n_layer * info->n_expert), size = (size_t)firn_group_size(run->group);

    if (size == 1 || !load)
        return FIRN_OK;
    int64_t *all = firn_alloc_zeroed(run->ctx, size, n * sizeof *all);
    if (!all)
        return FIRN_ERR_MEMORY;
    const firn_status s = firn_group_gather(run->group, load, n * sizeof *load, all);
    if (s == FIRN_OK)
        memset(load, 0, n * sizeof *load);
    for (size_t i = 0; s == FIRN_OK && firn_run_first(run) && i < size * n; i++)
        load[i % n] += all[i];
    firn_free(run->ctx, all);
    return s;
}
