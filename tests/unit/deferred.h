/* A backend that does nothing until it is waited for: memory of its own behind handles that are no addresses, work that
 * is queued with its places resolved, faults that come out of the wait. It runs the operations' references, and proves
 * that plans, execs and buffers ask nothing that an asynchronous device could not give. */
#ifndef FIRN_TEST_DEFERRED_H
#define FIRN_TEST_DEFERRED_H

#include "core/backend.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const firn_tensor *node;
    uint32_t plan;
    firn_place dst, src[FIRN_MAX_SRC], work;
} deferred_command;

typedef struct {
    firn_device base;
    deferred_command queue[1024];
    int n_queued, n_run;
    firn_fault fault;
    const char *declines; /* an operation that this device says it cannot run */
} deferred_device;

static const uintptr_t deferred_secret = (uintptr_t)0xA5A5000000000000u;

static inline char *deferred_open(firn_place p)
{
    return p.buffer ? (char *)((uintptr_t)p.buffer->memory ^ deferred_secret) + p.offset : NULL;
}

static firn_status deferred_create(firn_device *device, size_t size, firn_buffer *b)
{
    void *p = malloc(size ? size : 1);
    if (!p)
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "out of memory");
    memset(p, 0xFF, size);
    b->memory = (void *)((uintptr_t)p ^ deferred_secret);
    return FIRN_OK;
}

static void deferred_flush(deferred_device *d)
{
    for (int i = 0; i < d->n_queued; i++) {
        const deferred_command *c = &d->queue[i];
        firn_call call = {
            .node = c->node, .dst = deferred_open(c->dst), .work = deferred_open(c->work), .fault = &d->fault};
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            call.src[s] = deferred_open(c->src[s]);
        d->fault.running = c->plan;
        c->node->op->reference(&call, 0, firn_op_items(c->node));
        d->n_run++;
    }
    d->n_queued = 0;
}

static firn_status deferred_upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    (void)queue;
    deferred_flush((deferred_device *)b->device);
    memcpy(deferred_open((firn_place){b, offset}), data, size);
    return FIRN_OK;
}

static void deferred_destroy(firn_buffer *b)
{
    deferred_flush((deferred_device *)b->device);
    free(deferred_open((firn_place){b, 0}));
}

static firn_status deferred_download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size)
{
    (void)queue;
    deferred_flush((deferred_device *)b->device);
    memcpy(data, deferred_open((firn_place){b, offset}), size);
    return FIRN_OK;
}

static firn_status deferred_copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset,
                                 size_t size)
{
    (void)queue;
    deferred_flush((deferred_device *)to->device);
    memcpy(deferred_open((firn_place){to, at}), deferred_open((firn_place){from, offset}), size);
    return FIRN_OK;
}

static firn_status deferred_clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size)
{
    (void)queue;
    deferred_flush((deferred_device *)b->device);
    memset(deferred_open((firn_place){b, offset}), 0, size);
    return FIRN_OK;
}

/* Events are numbers of commands; whichever is waited for, all are run. */
static firn_event deferred_event(firn_device *device, firn_queue queue)
{
    const deferred_device *d = (const deferred_device *)device;
    return (firn_event){queue, (uint64_t)(d->n_run + d->n_queued)};
}

static firn_status deferred_after(firn_device *device, firn_queue queue, firn_event event)
{
    (void)device;
    (void)queue;
    (void)event;
    return FIRN_OK;
}

static firn_status deferred_finish(firn_device *device, firn_event event)
{
    (void)event;
    deferred_flush((deferred_device *)device);
    return FIRN_OK;
}

static firn_status deferred_plan(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    const char *no = ((deferred_device *)device)->declines;
    if (no && strcmp(node->op->name, no) == 0)
        return firn_fail(device->ctx, FIRN_ERR_UNSUPPORTED, "this device has no kernel for it");
    launch->work = node->op->work ? node->op->work(node) : 0;
    return FIRN_OK;
}

static firn_status deferred_run(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    (void)queue;
    deferred_device *d = (deferred_device *)device;
    for (int i = 0; i < sub->n; i++) {
        deferred_command *c = &d->queue[d->n_queued++];
        *c = (deferred_command){
            .node = sub->launches[i].node, .plan = sub->launches[i].plan, .work = firn_exec_work(sub->exec)};
        c->dst = firn_exec_place(sub->exec, c->node);
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (c->node->src[s])
                c->src[s] = firn_exec_place(sub->exec, c->node->src[s]);
    }
    return FIRN_OK;
}

static firn_status deferred_status(firn_device *device, firn_fault *fault)
{
    deferred_device *d = (deferred_device *)device;
    *fault = d->fault;
    d->fault = (firn_fault){0};
    return FIRN_OK;
}

static void deferred_close(firn_device *device)
{
    free(device);
}

static const firn_backend deferred_backend = {
    .name = "Deferred",
    .buffer_create = deferred_create,
    .buffer_destroy = deferred_destroy,
    .upload = deferred_upload,
    .download = deferred_download,
    .copy = deferred_copy,
    .clear = deferred_clear,
    .event = deferred_event,
    .after = deferred_after,
    .finish = deferred_finish,
    .plan = deferred_plan,
    .run = deferred_run,
    .status = deferred_status,
    .close = deferred_close,
};

static inline firn_device *deferred_device_open(firn_context *ctx)
{
    deferred_device *d = calloc(1, sizeof *d);
    d->base.ctx = ctx;
    d->base.backend = &deferred_backend;
    strcpy(d->base.name, "DEF0");
    return &d->base;
}

#endif
