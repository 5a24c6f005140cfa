/* A backend in a shared object, as small as one can be: memory of its own, one operation, three devices of which the
 * last never opens. With OLD defined it says that it is of another version. */
#include "core/backend.h"
#include "op/op.h"

#include <stdio.h>
#include <string.h>

static firn_status buffer_create(firn_device *device, size_t size, firn_buffer *b)
{
    b->memory = firn_alloc(device->ctx, size);
    return b->memory ? FIRN_OK : FIRN_ERR_MEMORY;
}

static void buffer_destroy(firn_buffer *b)
{
    firn_free(b->device->ctx, b->memory);
}

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
    (void)device, (void)queue, (void)event;
    return FIRN_OK;
}

static firn_status finish(firn_device *device, firn_event event)
{
    (void)device, (void)event;
    return FIRN_OK;
}

static firn_status plan(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    (void)launch;
    if (node->op == &firn_op_add)
        return FIRN_OK;
    return firn_fail(device->ctx, FIRN_ERR_UNSUPPORTED, "the tests' device adds, and nothing else");
}

static const float *at(const firn_exec *exec, const firn_tensor *t)
{
    const firn_place p = firn_exec_place(exec, t);

    return (const float *)((char *)p.buffer->memory + p.offset);
}

static firn_status run(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    (void)device, (void)queue;
    for (int i = 0; i < sub->n; i++) {
        const firn_tensor *y = sub->launches[i].node;
        for (int64_t k = 0; k < y->ne[0]; k++)
            ((float *)at(sub->exec, y))[k] = at(sub->exec, y->src[0])[k] + at(sub->exec, y->src[1])[k];
    }
    return FIRN_OK;
}

static firn_status status_of(firn_device *device, firn_fault *fault)
{
    (void)device, (void)fault;
    return FIRN_OK;
}

static void info(firn_device *device, firn_device_info *info)
{
    (void)device;
    info->memory_total = 1 << 20;
}

static void close_device(firn_device *device)
{
    firn_free(device->ctx, device);
}

static const firn_backend tiny = {
    .name = "Tiny",
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
    .run = run,
    .status = status_of,
    .info = info,
    .close = close_device,
};

static int count(void)
{
    return 3;
}

static firn_status open_device(firn_context *ctx, int number, firn_device **device)
{
    if (number == 2)
        return firn_fail(ctx, FIRN_ERR_DEVICE, "TINY2 is never there");
    firn_device *d = *device = firn_alloc_zeroed(ctx, 1, sizeof *d);
    if (!d)
        return FIRN_ERR_MEMORY;
    d->ctx = ctx;
    d->backend = &tiny;
    snprintf(d->name, sizeof d->name, "TINY%d", number);
    snprintf(d->about, sizeof d->about, "the tests' device %d", number);
    return FIRN_OK;
}

#ifdef OLD
#undef FIRN_VERSION
#define FIRN_VERSION "0.0.1"
#endif
FIRN_PLUGIN("Tiny", "TINY", count, open_device);
