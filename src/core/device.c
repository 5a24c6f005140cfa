/* Devices, buffers and faults: what is alike for every backend. */
#include "core/backend.h"
#include "core/sized.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Row number i, plug-ins behind those that are built in; *broken is set instead for one that cannot be used. NULL and
 * *broken NULL: past the last. */
static const firn_backend_row *backend_row(int i, const firn_plugin_entry **broken)
{
    int n;

    *broken = NULL;
    for (const firn_backend_row *const *row = firn_built_in_backends; *row; row++)
        if (i-- == 0)
            return *row;
    const firn_plugin_entry *e = firn_plugins(&n);
    if (i >= n)
        return NULL;
    e += i;
    if (!e->row)
        *broken = e;
    return e->row;
}

/* "MTL1"; the one CPU has no number. */
static const char *device_title(const firn_backend_row *row, int number, char *text, size_t size)
{
    if (row == firn_built_in_backends[0])
        snprintf(text, size, "%s", row->prefix);
    else
        snprintf(text, size, "%s%d", row->prefix, number);
    return text;
}

/* The number of the device of that name; -1: it is not this backend's. "CPU0" will do for "CPU". */
static int device_number(const firn_backend_row *row, const char *name, int count)
{
    char title[32];

    for (int i = 0; i < count; i++)
        if (strcasecmp(name, device_title(row, i, title, sizeof title)) == 0)
            return i;
    return row == firn_built_in_backends[0] && strcasecmp(name, "CPU0") == 0 ? 0 : -1;
}

/* Adds to a list, which is cut when it gets long. */
static void add(char *text, size_t size, const char *between, const char *item)
{
    const size_t n = strlen(text);

    snprintf(text + n, size - n, "%s%s", between, item);
}

firn_status firn_device_open(firn_context *ctx, const char *name, firn_device **device)
{
    FIRN_GIVEN(ctx, ctx, name, device);
    const firn_plugin_entry *broken;
    const firn_backend_row *row;
    char there[256] = "", not [1024] = "", title[32];

    *device = NULL;
    for (int i = 0; (row = backend_row(i, &broken)) || broken; i++) {
        if (broken) {
            add(not, sizeof not, "; ", broken->error);
            continue;
        }
        const int count = row->count(), number = device_number(row, name, count);
        if (number >= 0)
            return row->open(ctx, number, device);
        for (int k = 0; k < count; k++)
            add(there, sizeof there, there[0] ? ", " : "", device_title(row, k, title, sizeof title));
    }
    return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "there is no device '%s' here; there is: %s%s", name, there, not );
}

/* ---- what devices there are ---- */

int firn_device_count(void)
{
    const firn_plugin_entry *broken;
    const firn_backend_row *row;
    int n = 0;

    for (int i = 0; (row = backend_row(i, &broken)) || broken; i++)
        n += broken ? 1 : row->count();
    return n;
}

/* Of an open device, as we have it. */
static void fill(firn_device *device, firn_device_info *info)
{
    snprintf(info->name, sizeof info->name, "%s", device->name);
    snprintf(info->about, sizeof info->about, "%s", device->about);
    snprintf(info->backend, sizeof info->backend, "%s", device->backend->name);
    if (device->backend->info)
        device->backend->info(device, info);
}

/* A device by its row, opened to see that it can be. */
static firn_status describe(firn_context *ctx, const firn_backend_row *row, int number, firn_device_info *info)
{
    firn_device *device;

    snprintf(info->backend, sizeof info->backend, "%s", row->name);
    device_title(row, number, info->name, sizeof info->name);
    const firn_status s = row->open(ctx, number, &device);
    if (s == FIRN_OK) {
        fill(device, info);
        firn_device_close(device);
    } else if (s != FIRN_ERR_MEMORY) {
        snprintf(info->error, sizeof info->error, "%s", firn_error(ctx));
    }
    return s == FIRN_ERR_MEMORY ? s : FIRN_OK;
}

firn_status firn_device_describe(firn_context *ctx, int index, firn_device_info *info)
{
    FIRN_GIVEN(ctx, ctx, info);
    FIRN_TRY(FIRN_ROOM(ctx, firn_device_info, error, info));
    firn_device_info ours = {.size = sizeof ours};
    const firn_plugin_entry *broken;
    const firn_backend_row *row;
    int left = index, i = 0;

    for (; (row = backend_row(i, &broken)) || broken; i++) {
        const int count = broken ? 1 : row->count();
        if (left >= 0 && left < count)
            break;
        left -= count;
    }
    FIRN_EXPECT(ctx, row || broken, "devices are numbered 0 to %d, not %d", firn_device_count() - 1, index);
    if (row) {
        FIRN_TRY(describe(ctx, row, left, &ours));
    } else {
        snprintf(ours.name, sizeof ours.name, "%s", broken->name);
        snprintf(ours.backend, sizeof ours.backend, "%s", broken->name);
        snprintf(ours.error, sizeof ours.error, "%s", broken->error);
    }
    firn_sized_give(info, &ours);
    return FIRN_OK;
}

firn_status firn_device_get_info(firn_device *device, firn_device_info *info)
{
    FIRN_GIVEN(device ? device->ctx : NULL, device, info);
    FIRN_TRY(FIRN_ROOM(device->ctx, firn_device_info, error, info));
    firn_device_info ours = {.size = sizeof ours};

    fill(device, &ours);
    firn_sized_give(info, &ours);
    return FIRN_OK;
}

firn_status firn_expect_device(firn_context *ctx, const firn_device *device)
{
    FIRN_EXPECT(ctx, device->ctx == ctx, "the device %s was opened on another context", device->name);
    return FIRN_OK;
}

void firn_device_hold(firn_device *device)
{
    device->holders++;
}

static void let_go(firn_device *device)
{
    if (device->holders || !device->closed)
        return;
    firn_free(device->ctx, device->rows);
    device->backend->close(device);
}

void firn_device_release(firn_device *device)
{
    device->holders--;
    let_go(device);
}

void firn_device_close(firn_device *device)
{
    if (!device)
        return;
    device->closed = true;
    let_go(device);
}

const char *firn_device_name(const firn_device *device)
{
    return device ? device->name : "";
}

const char *firn_device_about(const firn_device *device)
{
    return device ? device->about : "";
}

/* ---- buffers ---- */

static firn_status make(firn_device *device, const void *memory, size_t size, bool wrap, firn_buffer **result)
{
    const firn_backend *backend = device->backend;
    firn_buffer *b = *result = firn_alloc_zeroed(device->ctx, 1, sizeof *b);

    if (!b)
        return FIRN_ERR_MEMORY;
    b->device = device;
    b->size = size;
    b->skew = (uintptr_t)memory % 64;
    firn_status s;
    if (!wrap)
        s = backend->buffer_create(device, size, b);
    else if (backend->buffer_wrap)
        s = backend->buffer_wrap(device, memory, size, b);
    else
        s = firn_fail(device->ctx, FIRN_ERR_UNSUPPORTED, "%s cannot use the host's memory in place", device->name);
    if (s != FIRN_OK) {
        firn_free(device->ctx, b);
        *result = NULL;
        return s;
    }
    firn_device_hold(device);
    return FIRN_OK;
}

firn_status firn_buffer_create(firn_device *device, size_t size, firn_buffer **buffer)
{
    FIRN_GIVEN(device ? device->ctx : NULL, device, buffer);
    return make(device, NULL, size, false, buffer);
}

firn_status firn_buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer **buffer)
{
    FIRN_GIVEN(device ? device->ctx : NULL, device, memory, buffer);
    return make(device, memory, size, true, buffer);
}

firn_status firn_buffer_of(firn_device *device, const void *memory, size_t size, firn_buffer **buffer, bool *wrapped)
{
    firn_status s = firn_buffer_wrap(device, memory, size, buffer);

    *wrapped = s == FIRN_OK;
    if (s != FIRN_ERR_UNSUPPORTED)
        return s;
    FIRN_TRY(firn_buffer_create(device, size, buffer));
    s = firn_buffer_write(*buffer, 0, memory, size);
    if (s != FIRN_OK) {
        firn_buffer_destroy(*buffer);
        *buffer = NULL;
    }
    return s;
}

void firn_buffer_destroy(firn_buffer *buffer)
{
    if (!buffer)
        return;
    firn_device *device = buffer->device;
    device->backend->buffer_destroy(buffer);
    firn_free(device->ctx, buffer);
    firn_device_release(device);
}

size_t firn_buffer_size(const firn_buffer *buffer)
{
    return buffer ? buffer->size : 0;
}

static firn_status check_range(const firn_buffer *b, size_t offset, size_t size)
{
    FIRN_GIVEN(NULL, b);
    FIRN_EXPECT(b->device->ctx, offset <= b->size && size <= b->size - offset,
                "%zu bytes at offset %zu are not inside a buffer of %zu", size, offset, b->size);
    return FIRN_OK;
}

/* ---- transfers and events ---- */

firn_status firn_queue_upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    FIRN_TRY(check_range(b, offset, size));
    return size ? b->device->backend->upload(queue, b, offset, data, size) : FIRN_OK;
}

firn_status firn_queue_download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size)
{
    FIRN_TRY(check_range(b, offset, size));
    return size ? b->device->backend->download(queue, b, offset, data, size) : FIRN_OK;
}

firn_status firn_queue_clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size)
{
    FIRN_TRY(check_range(b, offset, size));
    return size ? b->device->backend->clear(queue, b, offset, size) : FIRN_OK;
}

firn_status firn_queue_copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size)
{
    FIRN_TRY(check_range(to, at, size));
    FIRN_TRY(check_range(from, offset, size));
    FIRN_EXPECT(to->device->ctx, to->device == from->device, "a copy stays on one device, not from %s to %s",
                from->device->name, to->device->name);
    const firn_backend *backend = to->device->backend;
    /* Rows that move over each other move in pieces of the distance, the first ones first. */
    const bool over = to == from && offset > at && offset - at < size;
    FIRN_EXPECT(to->device->ctx, to != from || over || offset >= at + size || at >= offset + size,
                "rows of one buffer move towards its front, not from %zu to %zu", offset, at);
    const size_t piece = over ? offset - at : size;
    for (size_t done = 0; done < size; done += piece)
        FIRN_TRY(backend->copy(queue, to, at + done, from, offset + done, piece < size - done ? piece : size - done));
    return FIRN_OK;
}

firn_event firn_queue_event(firn_device *device, firn_queue queue)
{
    return device->backend->event(device, queue);
}

firn_status firn_queue_after(firn_device *device, firn_queue queue, firn_event event)
{
    return event.number ? device->backend->after(device, queue, event) : FIRN_OK;
}

firn_status firn_event_finish(firn_device *device, firn_event event)
{
    return event.number ? device->backend->finish(device, event) : FIRN_OK;
}

static firn_status finish_queue(firn_device *device, firn_queue queue)
{
    return firn_event_finish(device, firn_queue_event(device, queue));
}

firn_status firn_staging_create(firn_device *device, size_t size, void **memory)
{
    if (device->backend->staging_create)
        return device->backend->staging_create(device, size, memory);
    *memory = firn_alloc(device->ctx, size);
    return *memory ? FIRN_OK : FIRN_ERR_MEMORY;
}

void firn_staging_destroy(firn_device *device, void *memory)
{
    if (memory && device->backend->staging_destroy)
        device->backend->staging_destroy(device, memory);
    else
        firn_free(device->ctx, memory);
}

firn_status firn_buffer_write(firn_buffer *buffer, size_t offset, const void *data, size_t size)
{
    FIRN_TRY(check_range(buffer, offset, size));
    FIRN_EXPECT(buffer->device->ctx, data || size == 0, "firn_buffer_write: data must not be null");
    FIRN_TRY(firn_queue_upload(FIRN_QUEUE_COMPUTE, buffer, offset, data, size));
    return finish_queue(buffer->device, FIRN_QUEUE_COMPUTE);
}

firn_status firn_buffer_read(firn_buffer *buffer, size_t offset, void *data, size_t size)
{
    FIRN_TRY(check_range(buffer, offset, size));
    FIRN_EXPECT(buffer->device->ctx, data || size == 0, "firn_buffer_read: data must not be null");
    FIRN_TRY(firn_queue_download(FIRN_QUEUE_COMPUTE, buffer, offset, data, size));
    return finish_queue(buffer->device, FIRN_QUEUE_COMPUTE);
}

firn_status firn_buffer_clear(firn_buffer *buffer, size_t offset, size_t size)
{
    FIRN_TRY(check_range(buffer, offset, size));
    return firn_queue_clear(FIRN_QUEUE_COMPUTE, buffer, offset, size);
}

/* ---- faults ---- */

void firn_fault_set(firn_fault *f, firn_fault_kind kind, const firn_tensor *node, int64_t index, int64_t value,
                    int64_t limit)
{
    while (__atomic_exchange_n(&f->lock, 1, __ATOMIC_ACQUIRE))
        ;
    if (f->kind == FIRN_FAULT_NONE ||
        (f->plan == f->running && (node->index < f->node || (node->index == f->node && index < f->index)))) {
        f->kind = kind;
        f->plan = f->running;
        f->node = node->index;
        f->index = index;
        f->value = value;
        f->limit = limit;
    }
    __atomic_store_n(&f->lock, 0, __ATOMIC_RELEASE);
}

void firn_device_settle(firn_device *device)
{
    for (int q = 0; q < FIRN_N_QUEUES; q++) {
        const firn_status s = finish_queue(device, (firn_queue)q);
        if (s == FIRN_OK || device->late != FIRN_OK)
            continue;
        device->late = s;
        snprintf(device->why_late, sizeof device->why_late, "%s", firn_error(device->ctx));
    }
}

firn_status firn_device_wait(firn_device *device)
{
    FIRN_GIVEN(NULL, device);
    firn_fault fault = {0};

    const firn_status computed = finish_queue(device, FIRN_QUEUE_COMPUTE);
    const firn_status moved = finish_queue(device, FIRN_QUEUE_TRANSFER);
    const firn_status read = device->backend->status(device, &fault);
    FIRN_TRY(computed);
    FIRN_TRY(moved);
    if (device->late != FIRN_OK) {
        const firn_status late = device->late;
        device->late = FIRN_OK;
        return firn_fail(device->ctx, late, "%s", device->why_late);
    }
    FIRN_TRY(read);
    if (fault.kind == FIRN_FAULT_NONE)
        return FIRN_OK;
    const firn_tensor *t = firn_plan_tensor(device, fault.plan, fault.node);
    if (!t)
        return firn_fail(device->ctx, FIRN_ERR_DEVICE, "node %d of a plan that is gone: %s", fault.node,
                         fault.kind == FIRN_FAULT_ID_RANGE ? "an id is out of range" : "a value is not finite");
    const char *gap = t->name[0] ? " " : "";
    if (fault.kind == FIRN_FAULT_ID_RANGE)
        return firn_fail(device->ctx, FIRN_ERR_DEVICE, "%s%s%s: id number %lld is %lld, outside 0 to %lld", t->op->name,
                         gap, t->name, (long long)fault.index, (long long)fault.value, (long long)fault.limit - 1);
    if (fault.kind == FIRN_FAULT_TABLE)
        return firn_fail(device->ctx, FIRN_ERR_DEVICE,
                         "%s%s%s: id number %lld is an expert that the table puts at byte %lld: a whole one must lie "
                         "inside the weight's %lld bytes, at a multiple of %zu",
                         t->op->name, gap, t->name, (long long)fault.index, (long long)fault.value,
                         (long long)fault.limit, firn_type_align(t->src[0]->type));
    /* Where in the result, innermost first: the last number is a token's, in most tensors of a model. */
    char where[96] = "";
    int64_t rest = fault.index;
    int dims = FIRN_MAX_DIMS;
    while (dims > 1 && t->ne[dims - 1] == 1)
        dims--;
    for (int i = 0, at = 0; i < dims; rest /= t->ne[i++])
        at += snprintf(where + at, sizeof where - (size_t)at, "%s%lld", i ? ", " : "", (long long)(rest % t->ne[i]));
    return firn_fail(device->ctx, FIRN_ERR_DEVICE, "%s%s%s: value [%s] is not finite", t->op->name, gap, t->name,
                     where);
}

/* ---- profile ---- */

static int n_ops(void)
{
    int n = 0;

    while (firn_ops[n])
        n++;
    return n;
}

void firn_device_profile(firn_device *device, bool on)
{
    if (!device)
        return;
    if (on && !device->rows)
        device->rows = firn_alloc_zeroed(device->ctx, (size_t)n_ops() + 1, sizeof *device->rows);
    device->profile = on && device->rows;
}

void firn_profile_add(firn_device *device, const firn_tensor *node, double seconds)
{
    const firn_cost c = firn_op_cost(node);

    for (firn_profile_row *r = device->rows; r < device->rows + n_ops(); r++) {
        if (r->op && r->op != node->op->name)
            continue;
        r->op = node->op->name;
        r->calls++;
        r->seconds += seconds;
        r->flops += c.flops;
        r->bytes += c.bytes_read + c.bytes_written;
        return;
    }
}

static int by_time(const void *a, const void *b)
{
    const firn_profile_row *p = a, *q = b;

    return p->seconds < q->seconds ? 1 : p->seconds > q->seconds ? -1 : 0;
}

firn_status firn_device_profile_rows(firn_device *device, const firn_profile_row **rows, int *n)
{
    FIRN_GIVEN(device ? device->ctx : NULL, device, rows, n);
    *rows = device->rows;
    *n = 0;
    if (!device->rows)
        return FIRN_OK;
    while (*n < n_ops() && device->rows[*n].op)
        ++*n;
    qsort(device->rows, (size_t)*n, sizeof *device->rows, by_time);
    return FIRN_OK;
}
