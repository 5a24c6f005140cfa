/* A run is put together: model, data, adapter, what follows from them, and the plan of its memory. */
#include "core/file.h"
#include "core/machine.h"
#include "core/plain.h"
#include "core/sized.h"
#include "core/utf8.h"
#include "model/model.h"
#include "model/noise.h"
#include "model/place.h"
#include "train/advice.h"
#include "train/low_rank.h"
#include "train/origin.h"
#include "train/ranks.h"
#include "train/rates.h"

#include "firn/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEFAULT_CONTEXT = 512 };

firn_status firn_run_watched_by(firn_run *run, const firn_watch *watch)
{
    return watch ? FIRN_TAKE(run->ctx, firn_watch, stop, watch, &run->watch) : FIRN_OK;
}

void firn_run_say(const firn_run *run, const char *format, ...)
{
    char line[2048];
    va_list args;

    if (!run->watch.say)
        return;
    va_start(args, format);
    firn_vsnprintf(line, sizeof line, format, args);
    va_end(args);
    line[firn_tame(line, strlen(line))] = 0; /* it may quote a file */
    run->watch.say(run->watch.user, line);
}

firn_status firn_run_say_text(const firn_run *run, firn_text *text)
{
    const firn_status s = text->status;

    if (s == FIRN_OK)
        firn_run_say(run, "%s", firn_text_cstr(text));
    firn_text_free(text);
    return s;
}

bool firn_run_stop_wanted(const firn_run *run)
{
    return run->watch.stop && run->watch.stop(run->watch.user);
}

/* ---- open ---- */

static firn_status load_data(firn_run *run, firn_strings sources, firn_data **data, firn_print *print)
{
    firn_data_spec spec;
    firn_text names;

    FIRN_TRY(firn_train_data_spec(run->ctx, &run->record.options, sources, &spec));
    FIRN_TRY(firn_data_load(run->ctx, &spec, firn_language_encoder(run->language), run->record.options.context, data));
    firn_text_init(&names, run->ctx, 0);
    *print = (firn_print){{0}, {0}, 0};
    firn_data_print(*data, print->sha256, &print->bytes, &names);
    snprintf(print->path, sizeof print->path, "%s", firn_text_cstr(&names));
    const firn_status s = names.status;
    firn_text_free(&names);
    return s;
}

static firn_status open_data(firn_run *run)
{
    const firn_train_options *o = &run->record.options;
    firn_context *ctx = run->ctx;

    FIRN_TRY(load_data(run, o->data, &run->data, &run->record.data));
    if (o->eval_data) {
        firn_sample_list none;
        FIRN_TRY(load_data(run, (firn_strings){&o->eval_data, 1}, &run->eval_data, &run->record.eval_data));
        FIRN_TRY(firn_data_all(run->eval_data, &run->held));
        FIRN_TRY(firn_data_split(run->data, 0, 0, &run->train, &none));
        firn_sample_list_free(ctx, &none);
    } else {
        FIRN_TRY(firn_data_split(run->data, o->eval_split, (uint64_t)o->seed, &run->train, &run->held));
    }
    return firn_pack(run->eval_data ? run->eval_data : run->data, &run->held, o->context, false, 0, 0,
                     &run->held_packing);
}

/* Vocabulary and data, measured where the system says it. */
static uint64_t present_bytes(const firn_run *run)
{
    const uint64_t now = firn_memory_anonymous();

    return now ? now : firn_data_bytes(run->data);
}

/* An adapter to go on from may come from elsewhere. */
static firn_status check_served(const firn_run *run, const char *path)
{
    for (int i = 0; !run->record.options.unserved && i < run->adapter->n_entries; i++)
        if (!firn_model_serves(run->model, run->adapter->entries[i].tensor))
            return firn_fail(run->ctx, FIRN_ERR_UNSUPPORTED,
                             "%s changes %s, to which llama.cpp would not apply it (--unserved trains it all the same)",
                             path, run->adapter->entries[i].tensor);
    return FIRN_OK;
}

static firn_status open_adapter(firn_run *run)
{
    firn_train_options *o = &run->record.options;

    if (!o->adapter) {
        if (run->fresh && o->expert_rank == FIRN_UNSET)
            o->expert_rank = firn_rank_of_experts(run->model, o->rank);
        const firn_adapter_spec spec = firn_train_adapter_spec(o);
        FIRN_TRY(firn_adapter_describe(run->ctx, run->model, &spec, &run->adapter));
        FIRN_TRY(firn_adapter_start(run->adapter, (uint64_t)o->seed));
    } else {
        FIRN_TRY(firn_print_file(run->ctx, o->adapter, &run->record.adapter));
        FIRN_TRY(
            (o->force ? firn_adapter_load_forced : firn_adapter_load)(run->ctx, run->model, o->adapter, &run->adapter));
        FIRN_TRY(check_served(run, o->adapter));
        FIRN_TRY(firn_origin_set(run->ctx, run->model, run->adapter));
        o->alpha = (double)run->adapter->alpha;
        if (run->adapter->n_entries > 0)
            o->rank = run->adapter->entries[0].rank;
    }
    snprintf(run->adapter->origin.data, sizeof run->adapter->origin.data, "%s", run->record.data.sha256);
    run->record.n_values = run->adapter->n_values;
    if (run->adapter->n_values == 0)
        return firn_fail(run->ctx, FIRN_ERR_ARGUMENT, "nothing is left to train: the adapter has no tensor");
    return FIRN_OK;
}

firn_status firn_run_context(firn_run *run)
{
    const firn_model_info *info = firn_model_get_info(run->model);
    firn_train_options *o = &run->record.options;
    firn_context *ctx = run->ctx;

    if (o->context == FIRN_UNSET)
        o->context = firn_min_i64(DEFAULT_CONTEXT, info->n_ctx_train);
    if (o->context > info->n_ctx_train)
        return firn_fail(ctx, FIRN_ERR_ARGUMENT, "a context of %lld tokens is longer than the model's %lld",
                         (long long)o->context, (long long)info->n_ctx_train);
    FIRN_EXPECT(ctx, o->batch <= INT32_MAX / o->context, "%lld windows of %lld tokens are too many for one pass",
                (long long)o->batch, (long long)o->context);
    return FIRN_OK;
}

/* Several ranks of a host each take a device of it, where a kind alone is named: CUDA is CUDA1 for the second. */
static firn_status open_device(firn_run *run)
{
    firn_train_options o = run->record.options;
    char name[32];
    const size_t n = strlen(o.device);

    if (firn_group_size(run->group) > 1 && strcmp(o.device, "CPU") != 0 && n > 0 && n < sizeof name - 12 &&
        !(o.device[n - 1] >= '0' && o.device[n - 1] <= '9')) {
        snprintf(name, sizeof name, "%s%d", o.device, run->group->local_rank);
        o.device = name;
    }
    return firn_train_device_open(run->ctx, &o, &run->device);
}

firn_status firn_run_open(firn_run *run)
{
    firn_train_options *o = &run->record.options;
    firn_context *ctx = run->ctx;

    FIRN_TRY(open_device(run));
    FIRN_TRY(firn_model_open(ctx, o->model, &run->model));
    const firn_model_info *info = firn_model_get_info(run->model);
    const firn_gguf *gguf = firn_model_gguf(run->model);
    firn_device_info device = {.size = sizeof device};
    FIRN_TRY(firn_device_get_info(run->device, &device));
    snprintf(run->record.kernels, sizeof run->record.kernels, "%s", device.kernels);
    snprintf(run->record.arch, sizeof run->record.arch, "%s", info->arch);
    FIRN_TRY(firn_print_gguf(ctx, o->model, gguf, &run->record.model));

    FIRN_EXPECT(ctx, info->n_expert || !firn_router_losses_wanted(o),
                "%s has no experts, and so no router whose losses could join the loss", o->model);
    FIRN_TRY(firn_run_context(run));
    FIRN_TRY(firn_train_language_create(ctx, o, gguf, &run->language));
    run->packed = -1;
    FIRN_TRY(open_data(run));
    run->present = present_bytes(run);
    return open_adapter(run);
}

void firn_run_close(firn_run *run)
{
    firn_metrics_close(&run->metrics);
    firn_events_close(&run->events);
    firn_lock_drop(run->lock);
    firn_optimizer_destroy(run->optimizer);
    firn_reduction_destroy(run->reduction);
    firn_run_list_destroy(run);
    firn_session_destroy(run->session);
    firn_pass_destroy(&run->pass);
    if (run->packing.ctx)
        firn_packing_clear(&run->packing);
    if (run->held_packing.ctx)
        firn_packing_clear(&run->held_packing);
    firn_sample_list_free(run->ctx, &run->train);
    firn_sample_list_free(run->ctx, &run->held);
    firn_data_destroy(run->data);
    firn_data_destroy(run->eval_data);
    firn_adapter_destroy(run->adapter);
    firn_language_destroy(run->language);
    firn_model_close(run->model);
    firn_device_close(run->device);
    firn_arena_clear(&run->arena);
    firn_group_close(run->group);
}

/* ---- what follows from options, model and data ---- */

/* Windows of `epochs` times through the data. */
static firn_status count_windows(firn_run *run, double epochs, double *windows)
{
    *windows = 0;
    for (int64_t e = 0; (double)e < epochs; e++) {
        const double part = fmin(1, epochs - (double)e);
        FIRN_TRY(firn_run_pack(run, e));
        *windows += part * (double)run->packing.n_windows;
    }
    return FIRN_OK;
}

firn_status firn_run_decide(firn_run *run)
{
    firn_train_options *o = &run->record.options;
    int64_t steps = o->steps;

    if (steps <= 0) {
        double windows;
        FIRN_TRY(count_windows(run, o->epochs, &windows));
        steps = (int64_t)ceil(windows / (double)(o->batch * o->accumulate));
    }
    run->record.steps = firn_max_i64(steps, 1);
    if (o->warmup == FIRN_UNSET)
        o->warmup = firn_min_i64(run->record.steps / 20, 100);
    if (o->save_every == FIRN_UNSET)
        o->save_every = firn_min_i64(firn_max_i64(run->record.steps / 10, 1), 50);
    if (o->eval_every == FIRN_UNSET)
        o->eval_every = firn_max_i64(run->record.steps / 10, 1);
    /* A run of a firn that did not have them says nothing of them. */
    o->final = o->final ? o->final : "best";
    o->on_divergence = o->on_divergence ? o->on_divergence : "stop";
    FIRN_EXPECT(run->ctx, o->patience < 1 || (o->eval_every > 0 && run->held_packing.n_windows > 0),
                "patience counts evaluations that come by steps: expected %s",
                run->held_packing.n_windows ? "an eval_every of at least one step" : "data to evaluate on");
    run->schedule = (firn_schedule){.learning_rate = o->learning_rate, .warmup = o->warmup, .steps = run->record.steps};
    return firn_schedule_from_name(run->ctx, o->schedule, &run->schedule.rule);
}

/* ---- memory ---- */

static uint64_t pass_bytes(const firn_run *run)
{
    return (uint64_t)(run->record.options.batch * run->record.options.context) * 5 * sizeof(int32_t);
}

static firn_session_params session_params(const firn_run *run, uint64_t limit)
{
    const firn_train_options *o = &run->record.options;

    return (firn_session_params){.n_tokens = o->batch * o->context,
                                 .train = true,
                                 .router_losses = firn_router_losses_wanted(o),
                                 .memory_limit = limit};
}

static firn_status plan_session(firn_run *run, uint64_t outside, firn_session_memory *memory)
{
    firn_session_params params = session_params(run, 0);
    const bool given = run->record.options.memory_limit != NULL;

    if (!given) {
        /* Half of what is free at least, and all but a tenth where the mapped weights leave room for it. */
        FIRN_TRY(firn_session_plan(run->ctx, run->device, run->model, run->adapter, &params, memory));
        const double free_bytes = (double)firn_memory_available();
        run->memory_limit =
            (uint64_t)fmax(free_bytes / 2, 0.9 * free_bytes - (double)memory->mapped) + (free_bytes > 0 ? outside : 0);
        if (run->memory_limit == 0 || memory->total + outside <= run->memory_limit)
            return FIRN_OK;
    }
    if (run->memory_limit <= outside)
        return firn_run_too_large(run);
    run->session_limit = params.memory_limit = run->memory_limit - outside;
    const firn_status s = firn_session_plan(run->ctx, run->device, run->model, run->adapter, &params, memory);
    return s == FIRN_ERR_MEMORY ? firn_run_too_large(run) : s;
}

/* A run of a version that knew only one says nothing. */
static firn_optimizer_kind optimizer_kind(const firn_run *run)
{
    firn_optimizer_kind kind = FIRN_OPTIMIZER_ADAMW;

    if (run->record.options.optimizer)
        (void)firn_optimizer_kind_from_name(run->ctx, run->record.options.optimizer, &kind); /* checked */
    return kind;
}

/* The output layer's gradient comes a chunk of rows at a time; see firn_reduction_create. */
static bool gradients_come_whole(const firn_run *run)
{
    for (int i = 0; i < run->adapter->n_entries; i++)
        if (run->adapter->entries[i].layer < 0)
            return false;
    return true;
}

static uint64_t reduction_bytes(const firn_run *run)
{
    return firn_reduction_bytes(run->adapter->n_values, run->group, run->record.options.accumulate,
                                gradients_come_whole(run), run->device->backend->host_buffers);
}

static uint64_t noise_bytes(const firn_run *run)
{
    const firn_train_options *o = &run->record.options;

    return o->neftune > 0 ? firn_noise_bytes(firn_model_get_info(run->model)->n_embd, o->batch * o->context) : 0;
}

static uint64_t optimizer_total(const firn_run *run)
{
    const firn_optimizer_kind kind = optimizer_kind(run);

    return firn_optimizer_bytes(kind, run->adapter->n_values) + firn_optimizer_work_bytes(kind, run->adapter);
}

uint64_t firn_run_outside_bytes(const firn_run *run)
{
    return run->present + optimizer_total(run) + noise_bytes(run) + reduction_bytes(run) + pass_bytes(run);
}

static firn_status say_memory(const firn_run *run, uint64_t outside, const firn_session_memory *m)
{
    const uint64_t sums = reduction_bytes(run);
    const struct {
        const char *what;
        uint64_t bytes;
    } parts[] = {
        {"activations", m->arenas},
        {"workspace", m->work},
        {"copies of weights", m->weights},
        {"gathered experts", m->gathered},
        {"block inputs", m->inputs},
        {"head", m->head},
        {"adapter", m->adapter},
        {"gradients", m->gradients},
        {"optimizer", optimizer_total(run)},
        {"sums of passes", sums},
        {"vocabulary and data", outside - sums - optimizer_total(run)},
    };
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "memory   ");
    firn_text_bytes(&t, outside + m->total);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!parts[i].bytes)
            continue;
        firn_text_puts(&t, i ? ", " : " (");
        firn_text_printf(&t, "%s ", parts[i].what);
        firn_text_bytes(&t, parts[i].bytes);
    }
    firn_text_puts(&t, "); weights ");
    firn_weight_plan_text(m, &t);
    firn_text_printf(&t, "; activations of %d of %d blocks are kept", m->blocks_kept, m->blocks);
    return firn_run_say_text(run, &t);
}

static bool trains(const firn_adapter *ad, const char *tensor)
{
    for (int i = 0; i < ad->n_entries; i++)
        if (strcmp(ad->entries[i].tensor, tensor) == 0)
            return true;
    return false;
}

/* The tensors of `ad` that llama.cpp does not serve and that `without` (NULL: nothing) does not train: how many, and
 * what they are called, each once for all blocks. */
static int list_unserved(const firn_run *run, const firn_adapter *ad, const firn_adapter *without, firn_text *names)
{
    bool listed[FIRN_T_COUNT + 1] = {false}; /* the last: the output */
    int count = 0;

    for (int i = 0; i < ad->n_entries; i++) {
        const char *tensor = ad->entries[i].tensor;
        int layer;
        firn_tensor_id id;
        bool bias;
        if (firn_model_serves(run->model, tensor) || (without && trains(without, tensor)))
            continue;
        firn_model_find(run->model, tensor, &layer, &id, &bias);
        if (!listed[id])
            firn_text_printf(names, "%s%s", count ? ", " : "",
                             id < FIRN_T_COUNT ? firn_tensor_rows[id].base : "output");
        listed[id] = true;
        count++;
    }
    return count;
}

/* What llama.cpp does not serve of what is trained, and what was left out of the targets for that reason: what the same
 * targets include where that does not matter. */
static firn_status say_unserved(const firn_run *run)
{
    const firn_train_options *o = &run->record.options;
    firn_adapter *asked = NULL;
    firn_text names;
    firn_status s = FIRN_OK;

    firn_text_init(&names, run->ctx, 0);
    const int trained = list_unserved(run, run->adapter, NULL, &names);
    if (trained)
        firn_run_say(run, "warning  llama.cpp will not apply %d of the adapter's tensors: %s", trained,
                     firn_text_cstr(&names));
    s = names.status;
    firn_text_free(&names);
    firn_adapter_spec spec = firn_train_adapter_spec(o);
    spec.unserved = true;
    if (s == FIRN_OK && !o->adapter)
        s = firn_adapter_describe(run->ctx, run->model, &spec, &asked);
    if (s == FIRN_OK && asked && list_unserved(run, asked, run->adapter, &names))
        firn_run_say(
            run, "         left out, because llama.cpp does not apply adapters on them (--unserved trains them): %s",
            firn_text_cstr(&names));
    firn_adapter_destroy(asked);
    if (s == FIRN_OK)
        s = names.status;
    firn_text_free(&names);
    return s;
}

/* "rank 16", "ranks 4 to 16" */
static void say_ranks(const firn_adapter *ad, firn_text *t)
{
    int64_t least = ad->entries[0].rank, most = least;

    for (int i = 1; i < ad->n_entries; i++) {
        least = firn_min_i64(least, ad->entries[i].rank);
        most = firn_max_i64(most, ad->entries[i].rank);
    }
    if (least == most)
        firn_text_printf(t, "rank %lld", (long long)most);
    else
        firn_text_printf(t, "ranks %lld to %lld", (long long)least, (long long)most);
}

static firn_status say_trained(const firn_run *run)
{
    int64_t values[FIRN_CLASS_COUNT];
    int tensors[FIRN_CLASS_COUNT];
    firn_text t;

    firn_adapter_count(run->adapter, values, tensors);
    firn_text_init(&t, run->ctx, 0);
    firn_text_printf(&t, "trains   %.3g M values (", (double)run->adapter->n_values / 1e6);
    firn_text_bytes(&t, firn_parameters_bytes(run->adapter->n_values, 1));
    firn_text_puts(&t, ") of ");
    say_ranks(run->adapter, &t);
    firn_text_printf(&t, ", alpha %g%s:", run->record.options.alpha, run->record.options.rslora ? ", rslora" : "");
    for (int c = 0, n = 0; c < FIRN_CLASS_COUNT; c++)
        if (tensors[c])
            firn_text_printf(&t, "%s %s %.3g M in %d tensor%s", n++ ? "," : "", firn_class_name((firn_class)c),
                             (double)values[c] / 1e6, tensors[c], firn_plural(tensors[c]));
    FIRN_TRY(firn_run_say_text(run, &t));
    for (int i = 0; firn_model_warning(run->model, i); i++)
        firn_run_say(run, "warning  %s", firn_model_warning(run->model, i));
    return say_unserved(run);
}

/* Floating-point operations a second that a plain product reaches here. */
static firn_status measure_rate(firn_run *run, double *rate)
{
    enum { N = 512, RUNS = 8 };
    const int64_t ne[] = {N, N};
    const size_t bytes = (size_t)N * N * sizeof(float);
    firn_graph *g;
    firn_plan *plan = NULL;
    firn_exec *exec = NULL;
    firn_buffer *b[5] = {NULL};

    FIRN_TRY(firn_graph_create(run->ctx, &g));
    firn_tensor *w = firn_slot(g, FIRN_F32, 2, ne, "w"), *x = firn_slot(g, FIRN_F32, 2, ne, "x");
    firn_tensor *y = firn_output(g, firn_mul_mat(g, w, x));
    firn_status s = firn_graph_status(g);
    if (s == FIRN_OK)
        s = firn_plan_create(run->device, g, &plan);
    if (s == FIRN_OK)
        s = firn_exec_create(plan, &exec);
    const size_t sizes[5] = {bytes, bytes, bytes, plan ? firn_plan_arena_bytes(plan) + 64 : 0,
                             plan ? firn_plan_work_bytes(plan) + 64 : 0};
    for (int i = 0; s == FIRN_OK && i < 5; i++) {
        s = firn_buffer_create(run->device, sizes[i], &b[i]);
        s = s == FIRN_OK ? firn_buffer_clear(b[i], 0, sizes[i]) : s;
    }
    firn_tensor *const tensors[3] = {w, x, y};
    for (int i = 0; s == FIRN_OK && i < 3; i++)
        s = firn_exec_bind(exec, tensors[i], b[i], 0);
    s = s == FIRN_OK ? firn_exec_memory(exec, b[3], 0, b[4], 0) : s;
    double best = INFINITY;
    for (int i = 0; s == FIRN_OK && i < RUNS; i++) {
        const double begin = firn_seconds();
        s = firn_exec_run(exec, 0, 0);
        s = s == FIRN_OK ? firn_device_wait(run->device) : s;
        best = fmin(best, firn_seconds() - begin);
    }
    *rate = 2.0 * N * N * N / best;
    firn_exec_destroy(exec);
    firn_plan_destroy(plan);
    firn_graph_destroy(g);
    for (int i = 0; i < 5; i++)
        firn_buffer_destroy(b[i]);
    return s;
}

static firn_status say_time(firn_run *run, const firn_session_memory *memory)
{
    const firn_train_options *o = &run->record.options;
    const double tokens = (double)run->record.steps * (double)(o->batch * o->accumulate * o->context);
    double rate, epoch = 0;
    firn_text t;

    FIRN_TRY(measure_rate(run, &rate));
    for (size_t i = 0; i < run->train.n; i++)
        epoch += (double)run->data->samples[run->train.items[i]].n;
    const double speed = rate / memory->flops_per_token; /* tokens a second, at the rate of a plain product */
    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "time     about ");
    firn_text_duration(&t, tokens / speed);
    firn_text_printf(&t, " or more (%.*f tokens/s at best); an epoch ", speed < 10, speed);
    firn_text_duration(&t, epoch / speed);
    return firn_run_say_text(run, &t);
}

/* What the optimizer keeps, which checkpoints hold too. */
static uint64_t state_bytes(const firn_run *run)
{
    return firn_optimizer_bytes(optimizer_kind(run), run->adapter->n_values);
}

/* Best adapters that may lie there at once: an older one goes when a checkpoint knows the newer. */
static uint64_t bests(const firn_run *run)
{
    return run->held_packing.n_windows > 0 && strcmp(run->record.options.final, "last") != 0 ? 2 : 0;
}

uint64_t firn_run_disk_bytes(const firn_run *run)
{
    const uint64_t values = (uint64_t)run->adapter->n_values * sizeof(float), state = state_bytes(run);

    return values * (1 + bests(run)) + (values + state) * ((uint64_t)run->record.options.keep + 1);
}

static firn_status say_disk(const firn_run *run)
{
    const uint64_t values = (uint64_t)run->adapter->n_values * sizeof(float);
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_text_puts(&t, "disk     ");
    firn_text_bytes(&t, firn_run_disk_bytes(run));
    firn_text_puts(&t, ": the adapter ");
    firn_text_bytes(&t, values);
    firn_text_printf(&t, ", %lld checkpoints of ", (long long)run->record.options.keep + 1);
    firn_text_bytes(&t, values + state_bytes(run));
    if (bests(run)) {
        firn_text_puts(&t, ", the best so far twice ");
        firn_text_bytes(&t, values);
    }
    return firn_run_say_text(run, &t);
}

static firn_status rates(const firn_run *run, firn_rate_stretch **stretches, int *n)
{
    const firn_train_options *o = &run->record.options;
    const firn_rates asked = {.rate_of = o->learning_rate_of.items,
                              .n_rate_of = o->learning_rate_of.n,
                              .learning_rate = o->learning_rate,
                              .loraplus = isnan(o->loraplus) ? 1 : o->loraplus};

    return firn_rates_of(run->ctx, run->adapter, &asked, stretches, n);
}

firn_status firn_run_plan(firn_run *run)
{
    const firn_train_options *o = &run->record.options;
    const firn_model_info *info = firn_model_get_info(run->model);
    firn_session_memory memory = {.size = sizeof memory};

    if (o->memory_limit)
        FIRN_TRY(firn_parse_bytes(run->ctx, o->memory_limit, &run->memory_limit));
    if (info->n_expert)
        firn_run_say(run, "model    %s, %s: %lld blocks of %lld, %lld experts, %lld used", o->model, info->arch,
                     (long long)info->n_layer, (long long)info->n_embd, (long long)info->n_expert,
                     (long long)info->n_expert_used);
    else
        firn_run_say(run, "model    %s, %s: %lld blocks of %lld, dense", o->model, info->arch, (long long)info->n_layer,
                     (long long)info->n_embd);
    FIRN_TRY(firn_run_say_data(run));
    FIRN_TRY(say_trained(run));
    firn_run_say(run, "steps    %lld, each of %lld x %lld windows of up to %lld tokens; learning rate %g, %s",
                 (long long)run->record.steps, (long long)o->accumulate, (long long)o->batch, (long long)o->context,
                 o->learning_rate, o->schedule);
    firn_run_say(run, "device   %s", firn_device_about(run->device));
    FIRN_TRY(firn_run_say_ranks(run));
    firn_rate_stretch *stretches; /* what is wrong with them is said before anything is made */
    int n;
    FIRN_TRY(rates(run, &stretches, &n));
    firn_free(run->ctx, stretches);
    const uint64_t outside = firn_run_outside_bytes(run);
    FIRN_TRY(plan_session(run, outside, &memory));
    FIRN_TRY(say_memory(run, outside, &memory));
    FIRN_TRY(say_disk(run));
    return run->flags & FIRN_TRAIN_DRY_RUN ? say_time(run, &memory) : FIRN_OK;
}

firn_status firn_run_prepare(firn_run *run)
{
    const firn_train_options *o = &run->record.options;
    firn_optimizer_params optimizer;
    const firn_session_params params = session_params(run, run->session_limit);

    firn_optimizer_params_init(&optimizer);
    optimizer.kind = optimizer_kind(run);
    optimizer.weight_decay = (float)o->weight_decay;
    optimizer.clip = (float)o->clip;
    FIRN_TRY(firn_pass_create(run->ctx, params.n_tokens, &run->pass));
    FIRN_TRY(firn_run_list_create(run));
    FIRN_TRY(firn_session_create(run->ctx, run->device, run->model, run->adapter, &params, &run->session));
    if (o->neftune > 0)
        FIRN_TRY(firn_session_noise_create(run->session));
    FIRN_TRY(firn_reduction_create(firn_session_parameters(run->session), run->group, o->accumulate,
                                   gradients_come_whole(run), &run->reduction));
    firn_rate_stretch *stretches;
    int n;
    FIRN_TRY(rates(run, &stretches, &n));
    const firn_status s =
        firn_optimizer_create_on(firn_session_parameters(run->session), &optimizer, stretches, n, &run->optimizer);
    firn_free(run->ctx, stretches);
    return s;
}
