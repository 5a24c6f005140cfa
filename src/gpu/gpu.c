/* The device of every GPU backend: plans from plan_*.c, work encoded in order. The GPU's own interface is behind
 * runtime.h.
 *
 * A plan holds its dispatches with all their arguments; a run looks up where buffers lie, encodes and commits; faults
 * and errors come from the wait. Checked runs and profiles wait after every node. Where there is a watchdog, batches of
 * work are cut by what they compute, so that none comes near it. */
#include "gpu/gpu.h"

#include "gpu/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DISPATCHES = 256 /* in one batch of work */ };

double firn_gpu_max_flops = 2e11;

typedef struct {
    firn_device base;
    const firn_gpu_interface *own;
    firn_gpu_runtime *runtime;
    bool bf16;    /* the precision */
    void *faults; /* a firn_gpu_fault in the device's memory */
    bool *loaded; /* [pipelines] compiled */
    int n_open;   /* dispatches since the last commit */
    double flops;
    char error[FIRN_GPU_ERROR_BYTES]; /* of work that nobody has waited for yet: the next wait gives it */
} gpu_device;

/* A buffer's handles: windows of `size` bytes, `stride` apart, over whole pages of which `skip` bytes belong to others.
 * One window, unless what is wrapped is larger than a buffer may be: then they overlap, so that each tensor lies in
 * one. */
typedef struct {
    size_t skip, stride, size;
    char *host; /* what is wrapped; NULL: the device's own memory */
    int n;
    void *window[];
} gpu_buffer;

static firn_status device_failed(gpu_device *d, const char *what, const char *error)
{
    return !error[0] ? FIRN_ERR_MEMORY
                     : firn_fail(d->base.ctx, FIRN_ERR_DEVICE, "%s: %s: %s", d->base.name, what, error);
}

/* Waits for all work; what went wrong is kept for the next wait of the caller's. */
static void finish(gpu_device *d, double *seconds)
{
    char error[FIRN_GPU_ERROR_BYTES] = "";

    d->n_open = 0;
    d->flops = 0;
    if (!d->own->wait(d->runtime, seconds, error) && !d->error[0])
        snprintf(d->error, sizeof d->error, "%s", error);
}

/* What is kept comes out once. */
static firn_status take_error(gpu_device *d)
{
    if (!d->error[0])
        return FIRN_OK;
    const firn_status s = device_failed(d, "running", d->error);
    d->error[0] = 0;
    return s;
}

static firn_status settle(gpu_device *d, double *seconds)
{
    finish(d, seconds);
    return take_error(d);
}

/* ---- buffers ---- */

static firn_status expect_room(gpu_device *d, size_t size)
{
    const uint64_t all = d->own->working_set(d->runtime), used = d->own->allocated(d->runtime);

    if (used + size > all)
        return firn_fail(d->base.ctx, FIRN_ERR_MEMORY,
                         "%s works on %llu bytes at most; %llu are taken and %zu more wanted", d->base.name,
                         (unsigned long long)all, (unsigned long long)used, size);
    return FIRN_OK;
}

static void release(gpu_device *d, gpu_buffer *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->window[i])
            d->own->buffer_release(d->runtime, m->window[i]);
    firn_free(d->base.ctx, m);
}

firn_status firn_gpu_buffer_create(firn_device *device, size_t size, firn_buffer *b)
{
    gpu_device *d = (gpu_device *)device;
    const uint64_t largest = d->own->max_buffer(d->runtime);

    if (size > largest)
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s takes buffers of %llu bytes at most, not %zu", device->name,
                         (unsigned long long)largest, size);
    FIRN_TRY(expect_room(d, size));
    gpu_buffer *m = firn_alloc_zeroed(device->ctx, 1, sizeof *m + sizeof *m->window);
    if (!m)
        return FIRN_ERR_MEMORY;
    m->n = 1;
    m->window[0] = d->own->buffer_create(d->runtime, size ? size : 1);
    if (!m->window[0]) {
        release(d, m);
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s has no memory left for a buffer of %zu bytes", device->name,
                         size);
    }
    b->owned = true;
    b->memory = m;
    return FIRN_OK;
}

/* Whole pages: those that the memory touches are all there. In place or not at all: what one side writes, the other
 * reads. */
firn_status firn_gpu_buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer *b)
{
    gpu_device *d = (gpu_device *)device;
    const size_t page = d->own->page;
    const size_t largest = (size_t)d->own->max_buffer(d->runtime) / page * page, skip = (uintptr_t)memory % page;
    const size_t whole = (skip + size + page - 1) / page * page, stride = largest / page * 7 / 8 * page;
    const int n = whole <= largest ? 1 : 1 + (int)((whole - largest + stride - 1) / stride);

    if (!d->own->buffer_wrap)
        return firn_fail(device->ctx, FIRN_ERR_UNSUPPORTED, "%s does not read the host's memory in place",
                         device->name);
    if (size == 0)
        return firn_gpu_buffer_create(device, 0, b);
    FIRN_TRY(expect_room(d, whole + (size_t)(n - 1) * (largest - stride)));
    gpu_buffer *m = firn_alloc_zeroed(device->ctx, 1, sizeof *m + (size_t)n * sizeof *m->window);
    if (!m)
        return FIRN_ERR_MEMORY;
    *m = (gpu_buffer){.skip = skip, .stride = stride, .size = largest, .host = (char *)memory, .n = n};
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)i * stride, rest = whole - at;
        m->window[i] = d->own->buffer_wrap(d->runtime, (char *)memory - skip + at, rest < largest ? rest : largest);
        if (m->window[i])
            continue;
        release(d, m);
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s cannot use these %zu bytes of the host's memory in place",
                         device->name, size);
    }
    b->memory = m;
    return FIRN_OK;
}

void firn_gpu_buffer_destroy(firn_buffer *b)
{
    gpu_device *d = (gpu_device *)b->device;

    if (!b->owned)
        finish(d, NULL); /* the host's memory may go away next */
    release(d, b->memory);
}

/* ---- queues; wrapped memory is the host's, which waits for the device and does it itself ---- */

static gpu_buffer *handles(const firn_buffer *b)
{
    return b->memory;
}

firn_status firn_gpu_upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    gpu_device *d = (gpu_device *)b->device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!handles(b)->host)
        return d->own->upload(d->runtime, (int)queue, handles(b)->window[0], offset, data, size, error)
                   ? FIRN_OK
                   : device_failed(d, "running", error);
    FIRN_TRY(settle(d, NULL));
    memcpy(handles(b)->host + offset, data, size);
    return FIRN_OK;
}

firn_status firn_gpu_download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size)
{
    gpu_device *d = (gpu_device *)b->device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!handles(b)->host)
        return d->own->download(d->runtime, (int)queue, handles(b)->window[0], offset, data, size, error)
                   ? FIRN_OK
                   : device_failed(d, "running", error);
    FIRN_TRY(settle(d, NULL));
    memcpy(data, handles(b)->host + offset, size);
    return FIRN_OK;
}

firn_status firn_gpu_copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size)
{
    gpu_device *d = (gpu_device *)to->device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (handles(from)->host)
        return firn_gpu_upload(queue, to, at, handles(from)->host + offset, size);
    if (handles(to)->host)
        return firn_gpu_download(queue, from, offset, handles(to)->host + at, size);
    return d->own->copy(d->runtime, (int)queue, handles(to)->window[0], at, handles(from)->window[0], offset, size,
                        error)
               ? FIRN_OK
               : device_failed(d, "running", error);
}

firn_status firn_gpu_clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size)
{
    gpu_device *d = (gpu_device *)b->device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!handles(b)->host)
        return d->own->clear(d->runtime, (int)queue, handles(b)->window[0], offset, size, error)
                   ? FIRN_OK
                   : device_failed(d, "running", error);
    FIRN_TRY(settle(d, NULL));
    memset(handles(b)->host + offset, 0, size);
    return FIRN_OK;
}

/* Without events of its own a device has one for all: finishing it is waiting for everything. */
firn_event firn_gpu_event(firn_device *device, firn_queue queue)
{
    gpu_device *d = (gpu_device *)device;

    return (firn_event){queue, d->own->event ? d->own->event(d->runtime, (int)queue) : 1};
}

firn_status firn_gpu_after(firn_device *device, firn_queue queue, firn_event event)
{
    gpu_device *d = (gpu_device *)device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!d->own->after || d->own->after(d->runtime, (int)queue, (int)event.queue, event.number, error))
        return FIRN_OK;
    return device_failed(d, "ordering work", error);
}

firn_status firn_gpu_finish(firn_device *device, firn_event event)
{
    gpu_device *d = (gpu_device *)device;
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!d->own->finish)
        return settle(d, NULL);
    if (!d->own->finish(d->runtime, (int)event.queue, event.number, error) && !d->error[0])
        return device_failed(d, "running", error);
    return take_error(d);
}

firn_status firn_gpu_staging_create(firn_device *device, size_t size, void **memory)
{
    gpu_device *d = (gpu_device *)device;

    if (!d->own->staging_create) {
        *memory = firn_alloc(device->ctx, size);
        return *memory ? FIRN_OK : FIRN_ERR_MEMORY;
    }
    *memory = d->own->staging_create(d->runtime, size);
    return *memory ? FIRN_OK
                   : firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s has no memory left for transfers of %zu bytes",
                               device->name, size);
}

void firn_gpu_staging_destroy(firn_device *device, void *memory)
{
    gpu_device *d = (gpu_device *)device;

    if (d->own->staging_create)
        d->own->staging_destroy(d->runtime, memory);
    else
        firn_free(device->ctx, memory);
}

/* ---- plan ---- */

static int pipeline_number(const firn_gpu_dispatch *k)
{
    return (int)k->kernel * firn_gpu_n_weights + k->weight;
}

static firn_status load(gpu_device *d, const firn_gpu_dispatch *k)
{
    const int number = pipeline_number(k);
    char name[96], error[FIRN_GPU_ERROR_BYTES];

    if (d->loaded[number])
        return FIRN_OK;
    const firn_gpu_library library = firn_gpu_kernel_name(k->kernel, k->weight, name, sizeof name);
    const bool products = library == FIRN_GPU_LIBRARY_mul_mat || library == FIRN_GPU_LIBRARY_out_prod;

    if (!d->own->pipeline(d->runtime, (int)library, d->bf16 && products, number, name, error))
        return device_failed(d, name, error);
    d->loaded[number] = true;
    d->base.n_compiled++;
    return FIRN_OK;
}

/* What runs keep of a plan. */
typedef struct {
    int n, capacity;
    firn_gpu_dispatch d[];
} prepared;

/* Room for n dispatches: what the launch has, or what takes its place. */
static prepared *prepared_room(firn_context *ctx, firn_launch *launch, int n)
{
    prepared *k = launch->memory;

    if (k && k->capacity >= n)
        return k;
    k = firn_alloc(ctx, sizeof *k + (size_t)n * sizeof *k->d);
    if (!k)
        return NULL;
    k->capacity = n;
    firn_free(ctx, launch->memory);
    launch->memory = k;
    return k;
}

firn_status firn_gpu_plan_launch(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    firn_gpu_plan p = {.ctx = device->ctx,
                       .node = node,
                       .id = firn_gpu_node_id(launch->plan, node),
                       .tile = ((gpu_device *)device)->own->tile};

    FIRN_TRY(firn_gpu_prepare(&p));
    for (int i = 0; i < p.n; i++)
        FIRN_TRY(load((gpu_device *)device, &p.d[i]));
    prepared *k = prepared_room(device->ctx, launch, p.n);
    if (!k)
        return FIRN_ERR_MEMORY;
    k->n = p.n;
    memcpy(k->d, p.d, (size_t)p.n * sizeof *k->d);
    launch->kernel = k;
    launch->work = p.work;
    return FIRN_OK;
}

/* ---- run ---- */

/* Binds argument j of a dispatch. What is absent is something that nobody reads. */
static firn_status bind(gpu_device *d, const firn_submission *sub, const firn_tensor *node, const firn_gpu_dispatch *k,
                        int j, firn_gpu_work *w)
{
    const int what = k->refs[j].what;
    const firn_tensor *t = what == FIRN_GPU_DST ? node : what < FIRN_MAX_SRC ? node->src[what] : NULL;
    const firn_place place = what == FIRN_GPU_WORK          ? firn_exec_work(sub->exec)
                             : t && firn_n_elements(t) != 0 ? firn_exec_place(sub->exec, t)
                                                            : (firn_place){0};

    w->buffers[j] = d->faults;
    w->offsets[j] = 0;
    if (!place.buffer)
        return FIRN_OK;
    const gpu_buffer *m = place.buffer->memory;
    const size_t at = m->skip + place.offset + k->refs[j].offset;
    const int i = m->n == 1 ? 0 : (int)(at / m->stride < (size_t)m->n ? at / m->stride : (size_t)m->n - 1);
    w->buffers[j] = m->window[i];
    w->offsets[j] = at - (size_t)i * m->stride;
    if (m->n > 1 && t && w->offsets[j] + firn_n_bytes(t) > m->size)
        return firn_fail(d->base.ctx, FIRN_ERR_UNSUPPORTED,
                         "%s takes tensors of %zu bytes at most where a file is larger than its buffers; %s has %zu",
                         d->base.name, m->size - m->stride, t->name[0] ? t->name : "one", firn_n_bytes(t));
    return FIRN_OK;
}

static void commit(gpu_device *d)
{
    d->own->commit(d->runtime);
    d->n_open = 0;
    d->flops = 0;
}

/* A dispatch, in command buffers of its own where it would be too long for one. */
static firn_status encode_pieces(gpu_device *d, const firn_tensor *node, const firn_gpu_dispatch *k, firn_gpu_work *w)
{
    const double pieces = k->cut && d->own->has_watchdog ? ceil(k->flops / firn_gpu_max_flops) : 1;
    const uint32_t n = k->grid[k->axis], size = pieces <= 1 ? n : (uint32_t)fmax(1, ceil((double)n / pieces));
    unsigned char args[FIRN_GPU_MAX_ARG_BYTES];
    char error[FIRN_GPU_ERROR_BYTES];

    w->args = k->args;
    if (size < n)
        w->args = memcpy(args, k->args, k->n_args);
    for (uint32_t at = 0; at < n; at += w->grid[k->axis]) {
        w->grid[k->axis] = size < n - at ? size : n - at;
        if (size < n)
            memcpy(args + k->cut, &at, sizeof at);
        if (!d->own->encode(d->runtime, w, error))
            return device_failed(d, node->op->name, error);
        d->n_open++;
        if (size < n)
            commit(d);
    }
    w->args = k->args;
    return FIRN_OK;
}

static firn_status encode(gpu_device *d, const firn_submission *sub, const firn_tensor *node,
                          const firn_gpu_dispatch *dispatches, int n)
{
    for (int i = 0; i < n; i++) {
        const firn_gpu_dispatch *k = &dispatches[i];
        firn_gpu_work w = {.pipeline = pipeline_number(k),
                           .n_args = k->n_args,
                           .n_buffers = k->n_refs,
                           .shared = k->shared,
                           .grid = {k->grid[0], k->grid[1], k->grid[2]},
                           .threads = k->threads};
        for (int j = 0; j < k->n_refs; j++)
            FIRN_TRY(bind(d, sub, node, k, j, &w));
        FIRN_TRY(encode_pieces(d, node, k, &w));
    }
    return FIRN_OK;
}

/* The fault that kernels have found, if any. */
static firn_status read_fault(gpu_device *d, firn_gpu_fault *f)
{
    char error[FIRN_GPU_ERROR_BYTES] = "";

    if (!d->own->download(d->runtime, FIRN_QUEUE_COMPUTE, d->faults, 0, f, sizeof *f, error))
        return device_failed(d, "reading faults", error);
    return settle(d, NULL);
}

static firn_status clear_fault(gpu_device *d)
{
    char error[FIRN_GPU_ERROR_BYTES] = "";

    return d->own->clear(d->runtime, FIRN_QUEUE_COMPUTE, d->faults, 0, sizeof(firn_gpu_fault), error)
               ? FIRN_OK
               : device_failed(d, "clearing faults", error);
}

/* The result's first value that is not finite becomes a fault. */
static firn_status check_finite(gpu_device *d, const firn_submission *sub, const firn_launch *launch)
{
    const firn_tensor *node = launch->node;
    firn_gpu_plan p = {.ctx = d->base.ctx, .node = node};
    firn_gpu_check_args a = {
        .node = firn_gpu_node_id(launch->plan, node), .node_index = node->index, .kind = FIRN_FAULT_NOT_FINITE};

    if (node->type != FIRN_F32 || firn_n_elements(node) == 0)
        return FIRN_OK;
    FIRN_TRY(firn_gpu_view_of(p.ctx, node, &a.ids));
    firn_gpu_dispatch *k =
        firn_gpu_add(&p, FIRN_GPU_check_finite, 0, &a, sizeof a, (const int[]){FIRN_GPU_DST, FIRN_GPU_FAULT, -1});
    firn_gpu_grid(k, 1, 1, 1, 256);
    FIRN_TRY(load(d, k));
    FIRN_TRY(encode(d, sub, node, p.d, p.n));
    return settle(d, NULL);
}

firn_status firn_gpu_run(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    (void)queue; /* work is encoded on the compute queue alone */
    gpu_device *d = (gpu_device *)device;

    for (int i = 0; i < sub->n; i++) {
        const firn_tensor *node = sub->launches[i].node;
        const prepared *k = sub->launches[i].kernel;
        if (device->profile)
            FIRN_TRY(settle(d, NULL));
        FIRN_TRY(encode(d, sub, node, k->d, k->n));
        d->flops += firn_op_cost(node).flops;
        if (device->profile) {
            double seconds;
            FIRN_TRY(settle(d, &seconds));
            firn_profile_add(device, node, seconds);
        }
        if (sub->flags & FIRN_RUN_CHECK) {
            FIRN_TRY(check_finite(d, sub, &sub->launches[i]));
            firn_gpu_fault f;
            FIRN_TRY(read_fault(d, &f));
            if (f.kind != FIRN_FAULT_NONE)
                return FIRN_OK; /* the wait says what it is */
        }
        if ((d->own->has_watchdog && d->flops > firn_gpu_max_flops) || d->n_open > MAX_DISPATCHES)
            commit(d);
    }
    d->own->commit(d->runtime);
    return FIRN_OK;
}

firn_status firn_gpu_status(firn_device *device, firn_fault *fault)
{
    gpu_device *d = (gpu_device *)device;
    firn_gpu_fault f;

    FIRN_TRY(read_fault(d, &f));
    fault->kind = (firn_fault_kind)f.kind;
    fault->plan = (uint32_t)((uint64_t)f.node >> 32);
    fault->node = (int32_t)f.node;
    fault->index = f.index;
    fault->value = f.value;
    fault->limit = f.limit;
    return f.kind == FIRN_FAULT_NONE ? FIRN_OK : clear_fault(d);
}

uint64_t firn_gpu_batches(const firn_device *device)
{
    const gpu_device *d = (const gpu_device *)device;

    return d->own->n_committed(d->runtime);
}

void firn_gpu_info(firn_device *device, firn_device_info *info)
{
    gpu_device *d = (gpu_device *)device;
    const uint64_t all = d->own->working_set(d->runtime), used = d->own->allocated(d->runtime);

    info->memory_total = all;
    info->memory_free = used < all ? all - used : 0;
    info->host_memory = d->own->buffer_wrap != NULL;
    info->precisions = 1u << FIRN_PRECISION_F32;
    if (d->own->has_bf16(d->runtime))
        info->precisions |= 1u << FIRN_PRECISION_BF16;
    info->units = d->own->units(d->runtime);
}

/* ---- opening ---- */

void firn_gpu_close(firn_device *device)
{
    gpu_device *d = (gpu_device *)device;

    if (d->faults)
        d->own->buffer_release(d->runtime, d->faults);
    d->own->stop(d->runtime);
    firn_free(device->ctx, d->loaded);
    firn_free(device->ctx, d);
}

/* The products' kernels do not compile where there is no bfloat. */
static firn_status expect_bf16(gpu_device *d)
{
    const firn_gpu_dispatch k = {.kernel = FIRN_GPU_mul_mat};

    const firn_status s = load(d, &k);
    if (s == FIRN_OK || s == FIRN_ERR_MEMORY)
        return s;
    char why[FIRN_GPU_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", firn_error(d->base.ctx));
    return firn_fail(d->base.ctx, FIRN_ERR_UNSUPPORTED, "%s has no kernels of precision bf16: %s", d->base.name, why);
}

firn_status firn_gpu_open(firn_context *ctx, const firn_backend *backend, const firn_gpu_interface *interface,
                          const char *prefix, int number, firn_device **device)
{
    char error[FIRN_GPU_ERROR_BYTES], what[120];
    gpu_device *d;

    d = firn_alloc_zeroed(ctx, 1, sizeof *d);
    if (!d)
        return FIRN_ERR_MEMORY;
    d->base.ctx = ctx;
    d->base.backend = backend;
    d->own = interface;
    d->bf16 = ctx->precision == FIRN_PRECISION_BF16;
    snprintf(d->base.name, sizeof d->base.name, "%s%d", prefix, number);
    const int n_pipelines = FIRN_GPU_N_KERNELS * firn_gpu_n_weights;
    d->loaded = firn_alloc_zeroed(ctx, (size_t)n_pipelines, sizeof *d->loaded);
    if (!d->loaded) {
        firn_free(ctx, d);
        return FIRN_ERR_MEMORY;
    }
    d->runtime = interface->start(ctx, number, FIRN_GPU_N_LIBRARIES, n_pipelines, error);
    if (d->runtime)
        d->faults = interface->buffer_create(d->runtime, sizeof(firn_gpu_fault));
    if (!d->runtime || !d->faults) {
        const firn_status s = device_failed(d, "opening", d->runtime ? "there is no memory for a buffer" : error);
        firn_gpu_close(&d->base);
        return s;
    }
    firn_status s = clear_fault(d);
    if (s == FIRN_OK && d->bf16)
        s = expect_bf16(d);
    if (s != FIRN_OK) {
        firn_gpu_close(&d->base);
        return s;
    }
    interface->describe(d->runtime, what, sizeof what);
    snprintf(d->base.about, sizeof d->base.about, "%s%s", what, d->bf16 ? ", precision bf16" : "");
    *device = &d->base;
    return FIRN_OK;
}
