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
        c->node->op->reference(&call, 0, firn_op_items(c->node));
        d->n_run++;
    }
    d->n_queued = 0;
}

static firn_status deferred_write(firn_buffer *b, size_t offset, const void *data, size_t size)
{
    deferred_flush((deferred_device *)b->device);
    memcpy(deferred_open((firn_place){b, offset}), data, size);
    return FIRN_OK;
}

static firn_status deferred_wrap(firn_device *device, const void *memory, size_t size, firn_buffer *b)
{
    const firn_status s = deferred_create(device, size, b);
    return s == FIRN_OK ? deferred_write(b, 0, memory, size) : s;
}

static void deferred_destroy(firn_buffer *b)
{
    free(deferred_open((firn_place){b, 0}));
}

static firn_status deferred_read(firn_buffer *b, size_t offset, void *data, size_t size)
{
    deferred_flush((deferred_device *)b->device);
    memcpy(data, deferred_open((firn_place){b, offset}), size);
    return FIRN_OK;
}

static firn_status deferred_clear(firn_buffer *b, size_t offset, size_t size)
{
    deferred_flush((deferred_device *)b->device);
    memset(deferred_open((firn_place){b, offset}), 0, size);
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

static firn_status deferred_run(firn_device *device, const firn_submission *sub)
{
    deferred_device *d = (deferred_device *)device;
    for (int i = 0; i < sub->n; i++) {
        deferred_command *c = &d->queue[d->n_queued++];
        *c = (deferred_command){.node = sub->launches[i].node, .work = firn_exec_work(sub->exec)};
        c->dst = firn_exec_place(sub->exec, c->node);
        for (int s = 0; s < FIRN_MAX_SRC; s++)
            if (c->node->src[s])
                c->src[s] = firn_exec_place(sub->exec, c->node->src[s]);
    }
    return FIRN_OK;
}

static firn_status deferred_wait(firn_device *device, firn_fault *fault)
{
    deferred_device *d = (deferred_device *)device;
    deferred_flush(d);
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
    .buffer_wrap = deferred_wrap,
    .buffer_destroy = deferred_destroy,
    .buffer_write = deferred_write,
    .buffer_read = deferred_read,
    .buffer_clear = deferred_clear,
    .plan = deferred_plan,
    .run = deferred_run,
    .wait = deferred_wait,
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
