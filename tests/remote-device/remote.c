/* REMOTE0: a device with memory of its own, in software. It computes with the CPU's kernels, so that its bits are the
 * CPU's, and behaves otherwise as a GPU far away does:
 *
 *   - it refuses the host's memory (buffer_wrap is NULL)
 *   - what a buffer shows the host is an address without access: whoever reads or writes there dies at once
 *   - each queue has a thread of its own, which takes its time: random pauses, from FIRN_REMOTE_SEED. A transfer reads
 *     or writes the host's memory then and not when it is enqueued, and queues pass each other where no event holds
 * them
 *   - device memory begins as NaNs
 *
 * Built into the preset `remote-device` alone, as a row of devices.def. The kernels run on a CPU device on a context of
 * its own, which only the compute thread uses; see cpu/cpu.h, firn_cpu_run. */
#include "core/random.h"
#include "cpu/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PAUSE = 100000 /* ns */ };

typedef struct remote_device remote_device;

/* What lies in the one page before the address that a buffer shows. */
typedef struct {
    char *memory; /* the device's: known to its threads alone */
    size_t size;  /* mapped at both places */
} remote_memory;

typedef enum { UPLOAD, DOWNLOAD, COPY, CLEAR, AFTER, RUN } command_kind;

typedef struct command {
    struct command *next;
    command_kind kind;
    char *to;
    const char *from;
    size_t size;
    firn_event event; /* AFTER */
    const firn_launch *launches;
    int n, flags;
    bool profile;
    firn_call calls[]; /* RUN: [n] addresses */
} command;

typedef struct {
    remote_device *device;
    firn_queue which;
    pthread_t thread;
    command *first, **end;
    uint64_t enqueued, done;
    uint64_t draws;
} queue;

struct remote_device {
    firn_device base;
    firn_context *inner_ctx; /* the compute thread's */
    firn_device *inner;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    queue queues[FIRN_N_QUEUES];
    bool closing;
    uint64_t seed;
    firn_status failed; /* of a run; its sentence is in inner_ctx */
};

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* ---- the threads ---- */

static void pause_a_while(queue *q)
{
    const uint64_t r = firn_random(q->device->seed, (uint64_t)q->which, q->draws++);
    const struct timespec t = {0, (long)(r / 4 % MAX_PAUSE)};

    if (r % 4 == 0)
        nanosleep(&t, NULL);
}

static void addresses_of(const void *user, int i, firn_call *call)
{
    const firn_call *from = &((const command *)user)->calls[i];

    call->dst = from->dst;
    call->work = from->work;
    memcpy(call->src, from->src, sizeof call->src);
}

static void run_command(remote_device *d, const command *c)
{
    d->inner->profile = c->profile;
    d->inner->rows = d->base.rows;
    const firn_status s = firn_cpu_run(d->inner, c->launches, c->n, c->flags, addresses_of, c);
    d->inner->rows = NULL;
    if (s != FIRN_OK && d->failed == FIRN_OK)
        d->failed = s;
}

static void *work(void *argument)
{
    queue *q = argument;
    remote_device *d = q->device;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!q->first && !d->closing)
            pthread_cond_wait(&d->changed, &d->lock);
        command *c = q->first;
        if (!c)
            break;
        while (c->kind == AFTER && d->queues[c->event.queue].done < c->event.number)
            pthread_cond_wait(&d->changed, &d->lock);
        pthread_mutex_unlock(&d->lock);
        pause_a_while(q);
        if (c->kind == RUN)
            run_command(d, c);
        else if (c->kind == CLEAR)
            memset(c->to, 0, c->size);
        else if (c->kind != AFTER)
            memcpy(c->to, c->from, c->size);
        pthread_mutex_lock(&d->lock);
        q->first = c->next;
        if (!q->first)
            q->end = &q->first;
        q->done++;
        free(c);
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static command *new_command(firn_device *device, command_kind kind, size_t n_calls)
{
    command *c = calloc(1, sizeof *c + n_calls * sizeof *c->calls);

    if (!c)
        firn_fail(device->ctx, FIRN_ERR_MEMORY, "out of memory for the commands of %s", device->name);
    else
        c->kind = kind;
    return c;
}

static firn_status enqueue(firn_device *device, firn_queue which, command *c)
{
    remote_device *d = (remote_device *)device;
    queue *q = &d->queues[which];

    pthread_mutex_lock(&d->lock);
    *q->end = c;
    q->end = &c->next;
    q->enqueued++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return FIRN_OK;
}

/* ---- memory ---- */

static remote_memory *memory_of(const firn_buffer *b)
{
    return (remote_memory *)(void *)((char *)b->memory - page());
}

/* The device's address; its threads alone use it. */
static char *address(const firn_buffer *b, size_t offset)
{
    return b ? memory_of(b)->memory + offset : NULL;
}

static firn_status buffer_create(firn_device *device, size_t size, firn_buffer *b)
{
    const size_t whole = (size / page() + 1) * page();
    char *face = mmap(NULL, page() + whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (face == MAP_FAILED || memory == MAP_FAILED || mprotect(face, page(), PROT_READ | PROT_WRITE) != 0) {
        if (face != MAP_FAILED)
            munmap(face, page() + whole);
        if (memory != MAP_FAILED)
            munmap(memory, whole);
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s has no %zu bytes", device->name, size);
    }
    memset(memory, 0xFF, size);
    *(remote_memory *)(void *)face = (remote_memory){memory, whole};
    b->memory = face + page();
    b->owned = true;
    return FIRN_OK;
}

static firn_event event_of(firn_device *device, firn_queue which)
{
    remote_device *d = (remote_device *)device;

    pthread_mutex_lock(&d->lock);
    const firn_event e = {which, d->queues[which].enqueued};
    pthread_mutex_unlock(&d->lock);
    return e;
}

static void reach(remote_device *d, firn_event e)
{
    pthread_mutex_lock(&d->lock);
    while (d->queues[e.queue].done < e.number)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void buffer_destroy(firn_buffer *b)
{
    remote_memory *m = memory_of(b);

    for (int q = 0; q < FIRN_N_QUEUES; q++)
        reach((remote_device *)b->device, event_of(b->device, (firn_queue)q));
    const remote_memory kept = *m;
    munmap(kept.memory, kept.size);
    munmap(m, page() + kept.size);
}

/* ---- queues ---- */

static firn_status transfer(firn_queue which, firn_device *device, command_kind kind, char *to, const char *from,
                            size_t size)
{
    command *c = new_command(device, kind, 0);

    if (!c)
        return FIRN_ERR_MEMORY;
    c->to = to;
    c->from = from;
    c->size = size;
    return enqueue(device, which, c);
}

static firn_status upload(firn_queue which, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    return transfer(which, b->device, UPLOAD, address(b, offset), data, size);
}

static firn_status download(firn_queue which, firn_buffer *b, size_t offset, void *data, size_t size)
{
    return transfer(which, b->device, DOWNLOAD, data, address(b, offset), size);
}

static firn_status copy(firn_queue which, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size)
{
    return transfer(which, to->device, COPY, address(to, at), address(from, offset), size);
}

static firn_status clear(firn_queue which, firn_buffer *b, size_t offset, size_t size)
{
    return transfer(which, b->device, CLEAR, address(b, offset), NULL, size);
}

static firn_status after(firn_device *device, firn_queue which, firn_event event)
{
    command *c = new_command(device, AFTER, 0);

    if (!c)
        return FIRN_ERR_MEMORY;
    c->event = event;
    return enqueue(device, which, c);
}

static firn_status finish(firn_device *device, firn_event event)
{
    remote_device *d = (remote_device *)device;

    reach(d, event);
    pthread_mutex_lock(&d->lock);
    const firn_status s = d->failed;
    d->failed = FIRN_OK;
    pthread_mutex_unlock(&d->lock);
    return s == FIRN_OK ? s : firn_fail(device->ctx, s, "%s", firn_error(d->inner_ctx));
}

/* ---- programs ---- */

static firn_status plan(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    remote_device *d = (remote_device *)device;
    const firn_status s = d->inner->backend->plan(d->inner, node, launch);

    return s == FIRN_OK ? s : firn_fail(device->ctx, s, "%s", firn_error(d->inner_ctx));
}

static char *place(firn_place p)
{
    return p.buffer ? address(p.buffer, p.offset) : NULL;
}

static firn_status run(firn_device *device, firn_queue which, const firn_submission *sub)
{
    command *c = new_command(device, RUN, (size_t)sub->n);

    if (!c)
        return FIRN_ERR_MEMORY;
    c->launches = sub->launches;
    c->n = sub->n;
    c->flags = sub->flags;
    c->profile = device->profile;
    for (int i = 0; i < sub->n; i++) {
        const firn_tensor *node = sub->launches[i].node;
        c->calls[i].dst = place(firn_exec_place(sub->exec, node));
        c->calls[i].work = place(firn_exec_work(sub->exec));
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (node->src[s])
                c->calls[i].src[s] = place(firn_exec_place(sub->exec, node->src[s]));
    }
    return enqueue(device, which, c);
}

static firn_status status_of(firn_device *device, firn_fault *fault)
{
    remote_device *d = (remote_device *)device;

    return d->inner->backend->status(d->inner, fault);
}

static void info(firn_device *device, firn_device_info *info)
{
    remote_device *d = (remote_device *)device;

    d->inner->backend->info(d->inner, info);
    info->host_memory = false;
}

/* ---- opening ---- */

static void close_device(firn_device *device)
{
    remote_device *d = (remote_device *)device;

    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int q = 0; q < FIRN_N_QUEUES; q++)
        pthread_join(d->queues[q].thread, NULL);
    firn_device_close(d->inner);
    firn_context_destroy(d->inner_ctx);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static const firn_backend remote_backend = {
    .name = "Remote",
    .buffer_create = buffer_create,
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

static int count(void)
{
    return 1;
}

static firn_status open_device(firn_context *ctx, int number, firn_device **device)
{
    const char *seed = getenv("FIRN_REMOTE_SEED");
    remote_device *d = calloc(1, sizeof *d);

    if (!d)
        return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a device");
    d->inner_ctx = firn_context_create(&(firn_context_params){.n_threads = firn_context_threads(ctx)});
    firn_status s = FIRN_ERR_MEMORY;
    if (d->inner_ctx) {
        firn_context_set_precision(d->inner_ctx, firn_context_precision(ctx));
        s = firn_device_open(d->inner_ctx, "CPU", &d->inner);
    }
    if (s != FIRN_OK) {
        firn_fail(ctx, s, "%s", d->inner_ctx ? firn_error(d->inner_ctx) : "out of memory for a context");
        firn_context_destroy(d->inner_ctx);
        free(d);
        return s;
    }
    d->base.ctx = ctx;
    d->base.backend = &remote_backend;
    d->seed = seed ? strtoull(seed, NULL, 10) : 1;
    snprintf(d->base.name, sizeof d->base.name, "REMOTE%d", number);
    snprintf(d->base.about, sizeof d->base.about, "software device, on %s", firn_device_about(d->inner));
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    for (int q = 0; q < FIRN_N_QUEUES; q++) {
        d->queues[q] = (queue){.device = d, .which = (firn_queue)q};
        d->queues[q].end = &d->queues[q].first;
    }
    for (int q = 0; q < FIRN_N_QUEUES; q++)
        if (pthread_create(&d->queues[q].thread, NULL, work, &d->queues[q]) != 0)
            abort(); /* a test's device: there is nothing to save */
    *device = &d->base;
    return FIRN_OK;
}

const firn_backend_row firn_backend_remote = {"Remote", "REMOTE", count, open_device};
