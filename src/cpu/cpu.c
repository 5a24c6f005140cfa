/* The CPU backend: the reference for all others, always there.
 *
 * A part runs as one piece of work of the pool: every thread walks the launches, with a barrier between them. A node
 * runs by a team kernel (kernels.c) where one takes it, else by its operation's reference, whose items are spread over
 * threads. */
#include "cpu/cpu.h"
#include "core/machine.h"
#include "cpu/kernel_set.h"
#include "op/util.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    ALIGN = 64,
    SMALL = 32 * 1024, /* bytes moved and operations: less is left to one thread, sharing costs more than it saves */
    GRAINS = 8,        /* pieces per thread */
};

typedef struct {
    firn_device base;
    const firn_kernel_set *set;
    firn_fault fault;
} cpu_device;

/* ---- buffers: host memory ---- */

static firn_status buffer_create(firn_device *device, size_t size, firn_buffer *b)
{
    size_t padded;

    if (!firn_add_size(size, ALIGN + sizeof(void *), &padded))
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "out of memory: %zu bytes pass the address space", size);
    char *raw = firn_alloc(device->ctx, padded);
    if (!raw)
        return FIRN_ERR_MEMORY;
    char *aligned = (char *)(((uintptr_t)raw + sizeof(void *) + ALIGN - 1) & ~(uintptr_t)(ALIGN - 1));
    memcpy(aligned - sizeof raw, &raw, sizeof raw);
    b->memory = aligned;
    b->owned = true;
    return FIRN_OK;
}

static firn_status buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer *b)
{
    (void)device;
    (void)size;
    b->memory = (void *)memory;
    return FIRN_OK;
}

static void buffer_destroy(firn_buffer *b)
{
    if (!b->owned)
        return;
    char *raw;
    memcpy(&raw, (char *)b->memory - sizeof raw, sizeof raw);
    firn_free(b->device->ctx, raw);
}

/* ---- queues: everything is done at once, in the caller's thread ---- */

static firn_status upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    (void)queue;
    memcpy((char *)b->memory + offset, data, size);
    return FIRN_OK;
}

static firn_status download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size)
{
    (void)queue;
    memcpy(data, (char *)b->memory + offset, size);
    return FIRN_OK;
}

static firn_status copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size)
{
    (void)queue;
    memcpy((char *)to->memory + at, (const char *)from->memory + offset, size);
    return FIRN_OK;
}

static firn_status clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size)
{
    (void)queue;
    memset((char *)b->memory + offset, 0, size);
    return FIRN_OK;
}

static firn_event event_of(firn_device *device, firn_queue queue)
{
    (void)device;
    return (firn_event){queue, 0};
}

static firn_status after(firn_device *device, firn_queue queue, firn_event event)
{
    (void)device;
    (void)queue;
    (void)event;
    return FIRN_OK;
}

static firn_status finish(firn_device *device, firn_event event)
{
    (void)device;
    (void)event;
    return FIRN_OK;
}

/* ---- plan ---- */

static firn_status plan(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    const firn_kernel_set *set = ((const cpu_device *)device)->set;
    const int n_threads = device->ctx->n_threads;

    for (const firn_cpu_kernel *k = firn_cpu_kernels; k->op; k++) {
        if (k->op == node->op && k->takes(node, set)) {
            launch->kernel = k;
            launch->work = k->work ? k->work(node, set, n_threads) : 0;
            return FIRN_OK;
        }
    }
    if (!node->op->reference)
        return firn_fail(device->ctx, FIRN_ERR_UNSUPPORTED, "it has no kernel");
    if (node->op->work)
        launch->work = firn_bytes_up(node->op->work(node)) * (size_t)(node->op->gather ? 1 : n_threads);
    return FIRN_OK;
}

/* ---- run ---- */

typedef struct {
    cpu_device *device;
    const firn_launch *launches;
    int n, flags;
    firn_cpu_addresses addresses;
    const void *user;
    atomic_llong counters[2]; /* items taken; the two alternate so that one can be reset while the other is in use */
    atomic_bool stop;
    double started;
} run_state;

static double seconds_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *address(const firn_place p)
{
    return p.buffer ? (char *)p.buffer->memory + p.offset : NULL;
}

static bool worth_sharing(const firn_tensor *node)
{
    const firn_cost c = firn_op_cost(node);

    return c.bytes_read + c.bytes_written + c.flops >= SMALL;
}

static void run_reference(const firn_launch *l, firn_call *call, firn_team team, atomic_llong *counter)
{
    const firn_tensor *node = l->node;
    const firn_op *op = node->op;
    const int64_t n = firn_op_items(node);

    if (firn_n_elements(node) == 0) /* however many rows of nothing */
        return;
    if (op->work && !op->gather)
        call->work = (char *)call->work + (l->work / (size_t)team.nth) * (size_t)team.ith;
    const bool alone = !worth_sharing(node) || (n <= 1 && !op->gather);
    if (alone) {
        if (team.ith == 0 && n > 0)
            op->reference(call, 0, n);
        return;
    }
    if (op->gather) {
        const int64_t parts = op->parts(node);
        op->gather(call, parts * team.ith / team.nth, parts * (team.ith + 1) / team.nth);
        firn_team_barrier(team);
    }
    const int64_t grain = firn_max_i64(1, n / ((int64_t)team.nth * GRAINS));
    for (int64_t begin, end; firn_team_take(counter, n, grain, &begin, &end);)
        (op->gather ? op->finish : op->reference)(call, begin, end);
}

/* The first value of a float result that is not finite. */
static bool check_finite(const firn_call *call)
{
    const firn_tensor *t = call->node;

    if (t->type != FIRN_F32)
        return true;
    for (int64_t r = 0; r < firn_n_rows(t); r++) {
        const char *row = firn_row_at(t, call->dst, r);
        for (int64_t i = 0; i < t->ne[0]; i++) {
            if (!isfinite(*(const float *)(row + i * t->nb[0]))) {
                firn_fault_set(call->fault, FIRN_FAULT_NOT_FINITE, t, r * t->ne[0] + i, 0, 0);
                return false;
            }
        }
    }
    return true;
}

static void run_part(void *argument, firn_team team)
{
    run_state *state = argument;
    firn_device *device = &state->device->base;

    for (int i = 0; i < state->n && !atomic_load_explicit(&state->stop, memory_order_relaxed); i++) {
        const firn_launch *l = &state->launches[i];
        firn_call call = {.node = l->node, .fault = &state->device->fault};
        state->addresses(state->user, i, &call);
        if (l->kernel)
            ((const firn_cpu_kernel *)l->kernel)->run(&call, state->device->set, team);
        else
            run_reference(l, &call, team, &state->counters[i % 2]);
        firn_team_barrier(team);
        if (team.ith != 0 && !(state->flags & FIRN_RUN_CHECK))
            continue;
        if (team.ith == 0) {
            atomic_store_explicit(&state->counters[i % 2], 0, memory_order_relaxed);
            if (device->profile) {
                const double now = seconds_now();
                firn_profile_add(device, l->node, now - state->started);
                state->started = now;
            }
            if (state->flags & FIRN_RUN_CHECK && !check_finite(&call))
                atomic_store(&state->stop, true);
        }
        if (state->flags & FIRN_RUN_CHECK)
            firn_team_barrier(team); /* everyone sees the same `stop` */
    }
}

firn_status firn_cpu_run(firn_device *device, const firn_launch *launches, int n, int flags,
                         firn_cpu_addresses addresses, const void *user)
{
    cpu_device *d = (cpu_device *)device;
    run_state state = {.device = d,
                       .launches = launches,
                       .n = n,
                       .flags = flags,
                       .addresses = addresses,
                       .user = user,
                       .started = seconds_now()};
    firn_pool *pool = firn_context_pool(device->ctx);

    if (!pool)
        return FIRN_ERR_MEMORY;
    d->fault.running = launches->plan;
    firn_pool_run(pool, run_part, &state);
    return FIRN_OK;
}

static void addresses_of(const void *user, int i, firn_call *call)
{
    const firn_submission *sub = user;
    const firn_tensor *node = sub->launches[i].node;

    call->dst = address(firn_exec_place(sub->exec, node));
    call->work = address(firn_exec_work(sub->exec));
    for (int s = 0; s < FIRN_MAX_SRC; s++)
        if (node->src[s])
            call->src[s] = address(firn_exec_place(sub->exec, node->src[s]));
}

static firn_status run(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    (void)queue;
    return firn_cpu_run(device, sub->launches, sub->n, sub->flags, addresses_of, sub);
}

static firn_status status_of(firn_device *device, firn_fault *fault)
{
    cpu_device *d = (cpu_device *)device;

    *fault = d->fault;
    d->fault = (firn_fault){0};
    return FIRN_OK;
}

static void close_device(firn_device *device)
{
    firn_free(device->ctx, device);
}

static void info(firn_device *device, firn_device_info *info)
{
    const firn_kernel_set *set;
    char kept[FIRN_ERROR_BYTES]; /* asking leaves no sentence */

    info->memory_total = firn_memory_total();
    info->memory_free = firn_memory_available();
    info->host_memory = true;
    snprintf(info->kernels, sizeof info->kernels, "%s", ((cpu_device *)device)->set->name);
    info->units = device->ctx->n_threads;
    memcpy(kept, device->ctx->error, sizeof kept);
    for (int p = 0; firn_precision_name((firn_precision)p); p++)
        if (firn_cpu_choose_set(device->ctx, (firn_precision)p, &set) == FIRN_OK)
            info->precisions |= 1u << p;
    memcpy(device->ctx->error, kept, sizeof kept);
}

static const firn_backend cpu_backend = {
    .name = "CPU",
    .host_buffers = true,
    .buffer_create = buffer_create,
    .buffer_wrap = buffer_wrap,
    .buffer_destroy = buffer_destroy,
    .upload = upload,
    .download = download,
    .copy = copy,
    .clear = clear,
    .event = event_of,
    .after = after,
    .finish = finish,
    .plan = plan,
    .replans = true,
    .run = run,
    .status = status_of,
    .info = info,
    .close = close_device,
};

/* "model name" of /proc/cpuinfo where there is one. */
static void processor_name(char *name, size_t size)
{
    char line[256];

    snprintf(name, size, "processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (colon && strncmp(line, "model name", 10) == 0) {
            colon[strcspn(colon, "\n")] = 0;
            snprintf(name, size, "%s", colon + 2);
            break;
        }
    }
    if (f)
        fclose(f);
}

/* One asked for by name is one that runs here and has that precision: falling back in silence would measure something
 * else. */
firn_status firn_cpu_choose_set(firn_context *ctx, firn_precision wanted, const firn_kernel_set **set)
{
    const char *wish = firn_kernel_set_asked(), *precision = firn_precision_name(wanted);

    FIRN_EXPECT(ctx, precision, "%d is no precision", (int)wanted);
    const firn_kernel_set *named = wish ? firn_kernel_set_named(wish) : NULL;
    char names[128] = "";

    *set = wish ? named : firn_kernel_set_default(wanted);
    if (!wish && !*set)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "this processor has no kernels of precision %s: they need AMX or AVX-512 with bf16",
                         precision);
    if (!wish || (named && named->precision == wanted))
        return FIRN_OK;
    for (int i = 0; firn_kernel_sets[i]; i++)
        if (firn_kernel_sets[i]->usable() && firn_kernel_sets[i]->precision == wanted)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? ", " : "",
                     firn_kernel_sets[i]->name);
    return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                     "FIRN_CPU names the kernel set '%s'; with precision %s this machine runs: %s", wish, precision,
                     names);
}

const firn_kernel_set *firn_cpu_set(const firn_device *device)
{
    return ((const cpu_device *)device)->set;
}

void firn_cpu_use_set(firn_device *device, const firn_kernel_set *set)
{
    ((cpu_device *)device)->set = set;
}

static firn_status open_device(firn_context *ctx, int number, firn_device **device)
{
    cpu_device *d = firn_alloc_zeroed(ctx, 1, sizeof *d);
    char processor[96];

    (void)number;
    if (!d)
        return FIRN_ERR_MEMORY;
    const firn_status s = firn_cpu_choose_set(ctx, ctx->precision, &d->set);
    if (s != FIRN_OK) {
        firn_free(ctx, d);
        return s;
    }
    d->base.ctx = ctx;
    d->base.backend = &cpu_backend;
    processor_name(processor, sizeof processor);
    snprintf(d->base.name, sizeof d->base.name, "CPU");
    snprintf(d->base.about, sizeof d->base.about, "%s, %d thread%s, precision %s, kernels %s", processor,
             ctx->n_threads, ctx->n_threads == 1 ? "" : "s", firn_precision_name(ctx->precision), d->set->name);
    *device = &d->base;
    return FIRN_OK;
}

static int count(void)
{
    return 1;
}

const firn_backend_row firn_backend_cpu = {"CPU", "CPU", count, open_device};
