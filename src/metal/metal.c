/* The Metal backend: shared buffers, plans from plan_*.c, work encoded in order. Objective-C is behind runtime.h.
 *
 * A plan holds its dispatches with all their arguments; a run looks up where buffers lie, encodes and commits; faults
 * and errors come from the wait. Checked runs and profiles wait after
 * every node. Command buffers are cut by the work in them, so that none comes near the GPU's watchdog. */
#include "core/backend.h"
#include "metal/plan.h"
#include "metal/runtime.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PAGE = 16384,        /* a multiple of every Mac's */
    MAX_DISPATCHES = 256 /* in one command buffer */
};

/* In one command buffer: a tenth of a second on a small GPU. Tests make it less. */
double firn_metal_max_flops = 2e11;

typedef struct {
    firn_device base;
    firn_metal_runtime *runtime;
    bool bf16;    /* the precision */
    void *faults; /* a firn_metal_fault in shared memory */
    int n_open;   /* dispatches since the last commit */
    double flops;
} metal_device;

/* A buffer's handles: windows of `size` bytes, `stride` apart, over whole pages of which `skip` bytes belong to others.
 * One window, unless what is wrapped is larger than a buffer may be: then they overlap, so that each tensor lies in
 * one. */
typedef struct {
    size_t skip, stride, size;
    int n;
    void *window[];
} metal_buffer;

static firn_status device_failed(metal_device *d, const char *what, const char *error)
{
    return !error[0] ? FIRN_ERR_MEMORY
                     : firn_fail(d->base.ctx, FIRN_ERR_DEVICE, "%s: %s: %s", d->base.name, what, error);
}

static char *contents(const firn_buffer *b)
{
    const metal_buffer *m = b->memory;

    return (char *)firn_metal_buffer_contents(m->window[0]) + m->skip;
}

static firn_status settle(metal_device *d, double *seconds)
{
    char error[FIRN_METAL_ERROR_BYTES];

    d->n_open = 0;
    d->flops = 0;
    return firn_metal_wait(d->runtime, seconds, error) ? FIRN_OK : device_failed(d, "running", error);
}

/* ---- buffers ---- */

static firn_status expect_room(metal_device *d, size_t size)
{
    const uint64_t all = firn_metal_working_set(d->runtime), used = firn_metal_allocated(d->runtime);

    if (used + size > all)
        return firn_fail(d->base.ctx, FIRN_ERR_MEMORY,
                         "%s works on %llu bytes at most; %llu are taken and %zu more wanted", d->base.name,
                         (unsigned long long)all, (unsigned long long)used, size);
    return FIRN_OK;
}

static void release(metal_device *d, metal_buffer *m)
{
    for (int i = 0; i < m->n; i++)
        if (m->window[i])
            firn_metal_buffer_release(m->window[i]);
    firn_free(d->base.ctx, m);
}

static firn_status buffer_create(firn_device *device, size_t size, firn_buffer *b)
{
    metal_device *d = (metal_device *)device;
    const uint64_t largest = firn_metal_max_buffer(d->runtime);

    if (size > largest)
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s takes buffers of %llu bytes at most, not %zu", device->name,
                         (unsigned long long)largest, size);
    FIRN_TRY(expect_room(d, size));
    metal_buffer *m = firn_alloc_zeroed(device->ctx, 1, sizeof *m + sizeof *m->window);
    if (!m)
        return FIRN_ERR_MEMORY;
    m->n = 1;
    m->window[0] = firn_metal_buffer_create(d->runtime, size ? size : 1);
    if (!m->window[0]) {
        release(d, m);
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s has no memory left for a buffer of %zu bytes", device->name,
                         size);
    }
    b->owned = true;
    b->memory = m;
    return FIRN_OK;
}

/* Metal wraps whole pages: those that the memory touches are all there. In place or not at all: what one side writes,
 * the other reads. */
static firn_status buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer *b)
{
    metal_device *d = (metal_device *)device;
    const size_t largest = (size_t)firn_metal_max_buffer(d->runtime) / PAGE * PAGE, skip = (uintptr_t)memory % PAGE;
    const size_t whole = (skip + size + PAGE - 1) / PAGE * PAGE, stride = largest / PAGE * 7 / 8 * PAGE;
    const int n = whole <= largest ? 1 : 1 + (int)((whole - largest + stride - 1) / stride);

    if (size == 0)
        return buffer_create(device, 0, b);
    FIRN_TRY(expect_room(d, whole + (size_t)(n - 1) * (largest - stride)));
    metal_buffer *m = firn_alloc_zeroed(device->ctx, 1, sizeof *m + (size_t)n * sizeof *m->window);
    if (!m)
        return FIRN_ERR_MEMORY;
    *m = (metal_buffer){.skip = skip, .stride = stride, .size = largest, .n = n};
    for (int i = 0; i < n; i++) {
        const size_t at = (size_t)i * stride, rest = whole - at;
        m->window[i] = firn_metal_buffer_wrap(d->runtime, (char *)memory - skip + at, rest < largest ? rest : largest);
        if (m->window[i])
            continue;
        release(d, m);
        return firn_fail(device->ctx, FIRN_ERR_MEMORY, "%s cannot use these %zu bytes of the host's memory in place",
                         device->name, size);
    }
    b->memory = m;
    return FIRN_OK;
}

static void buffer_destroy(firn_buffer *b)
{
    metal_device *d = (metal_device *)b->device;

    if (!b->owned)
        settle(d, NULL); /* the host's memory may go away next */
    release(d, b->memory);
}

/* ---- queues: one, in order; transfers wait for it, since memory is shared ---- */

static firn_status upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size)
{
    (void)queue;
    FIRN_TRY(settle((metal_device *)b->device, NULL));
    memcpy(contents(b) + offset, data, size);
    return FIRN_OK;
}

static firn_status download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size)
{
    (void)queue;
    FIRN_TRY(settle((metal_device *)b->device, NULL));
    memcpy(data, contents(b) + offset, size);
    return FIRN_OK;
}

static firn_status copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size)
{
    (void)queue;
    FIRN_TRY(settle((metal_device *)to->device, NULL));
    memcpy(contents(to) + at, contents(from) + offset, size);
    return FIRN_OK;
}

static firn_status clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size)
{
    (void)queue;
    FIRN_TRY(settle((metal_device *)b->device, NULL));
    memset(contents(b) + offset, 0, size);
    return FIRN_OK;
}

static firn_event event_of(firn_device *device, firn_queue queue)
{
    (void)device;
    return (firn_event){queue, 1}; /* one for all: finishing is waiting for everything */
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
    (void)event;
    return settle((metal_device *)device, NULL);
}

/* ---- plan ---- */

static int pipeline_number(const firn_metal_dispatch *k)
{
    return (int)k->kernel * firn_metal_n_weights + k->weight;
}

static firn_status load(metal_device *d, const firn_metal_dispatch *k)
{
    char name[96], error[FIRN_METAL_ERROR_BYTES];
    const firn_metal_library library = firn_metal_kernel_name(k->kernel, k->weight, name, sizeof name);
    const bool products = library == FIRN_METAL_LIBRARY_mul_mat || library == FIRN_METAL_LIBRARY_out_prod;
    const char *head = d->bf16 && products ? "#define FIRN_PRECISION_BF16\n" : "";

    if (firn_metal_pipeline(d->runtime, (int)library, head, firn_metal_library_text(library), pipeline_number(k), name,
                            error))
        return FIRN_OK;
    return device_failed(d, name, error);
}

/* What runs keep of a plan. */
typedef struct {
    int n;
    firn_metal_dispatch d[];
} prepared;

static firn_status plan(firn_device *device, const firn_tensor *node, firn_launch *launch)
{
    firn_metal_plan p = {.ctx = device->ctx, .node = node, .id = firn_metal_node_id(launch->plan, node)};

    FIRN_TRY(firn_metal_prepare(&p));
    for (int i = 0; i < p.n; i++)
        FIRN_TRY(load((metal_device *)device, &p.d[i]));
    prepared *k = launch->memory = firn_alloc(device->ctx, sizeof *k + (size_t)p.n * sizeof *k->d);
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
static firn_status bind(metal_device *d, const firn_submission *sub, const firn_tensor *node,
                        const firn_metal_dispatch *k, int j, firn_metal_work *w)
{
    const int what = k->refs[j].what;
    const firn_tensor *t = what == FIRN_METAL_DST ? node : what < FIRN_MAX_SRC ? node->src[what] : NULL;
    const firn_place place = what == FIRN_METAL_WORK        ? firn_exec_work(sub->exec)
                             : t && firn_n_elements(t) != 0 ? firn_exec_place(sub->exec, t)
                                                            : (firn_place){0};

    w->buffers[j] = d->faults;
    w->offsets[j] = 0;
    if (!place.buffer)
        return FIRN_OK;
    const metal_buffer *m = place.buffer->memory;
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

static void commit(metal_device *d)
{
    firn_metal_commit(d->runtime);
    d->n_open = 0;
    d->flops = 0;
}

/* A dispatch, in command buffers of its own where it would be too long for one. */
static firn_status encode_pieces(metal_device *d, const firn_tensor *node, const firn_metal_dispatch *k,
                                 firn_metal_work *w)
{
    const double pieces = k->cut ? ceil(k->flops / firn_metal_max_flops) : 1;
    const uint32_t n = k->grid[k->axis], size = pieces <= 1 ? n : (uint32_t)fmax(1, ceil((double)n / pieces));
    unsigned char args[FIRN_METAL_MAX_ARG_BYTES];
    char error[FIRN_METAL_ERROR_BYTES];

    w->args = k->args;
    if (size < n)
        w->args = memcpy(args, k->args, k->n_args);
    for (uint32_t at = 0; at < n; at += w->grid[k->axis]) {
        w->grid[k->axis] = size < n - at ? size : n - at;
        if (size < n)
            memcpy(args + k->cut, &at, sizeof at);
        if (!firn_metal_encode(d->runtime, w, error))
            return device_failed(d, node->op->name, error);
        d->n_open++;
        if (size < n)
            commit(d);
    }
    return FIRN_OK;
}

static firn_status encode(metal_device *d, const firn_submission *sub, const firn_tensor *node,
                          const firn_metal_dispatch *dispatches, int n)
{
    for (int i = 0; i < n; i++) {
        const firn_metal_dispatch *k = &dispatches[i];
        firn_metal_work w = {.pipeline = pipeline_number(k),
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

static firn_metal_fault *fault_of(metal_device *d)
{
    return firn_metal_buffer_contents(d->faults);
}

/* The result's first value that is not finite becomes a fault. */
static firn_status check_finite(metal_device *d, const firn_submission *sub, const firn_launch *launch)
{
    const firn_tensor *node = launch->node;
    firn_metal_plan p = {.ctx = d->base.ctx, .node = node};
    firn_metal_check_args a = {
        .node = firn_metal_node_id(launch->plan, node), .node_index = node->index, .kind = FIRN_FAULT_NOT_FINITE};

    if (node->type != FIRN_F32 || firn_n_elements(node) == 0)
        return FIRN_OK;
    FIRN_TRY(firn_metal_view_of(p.ctx, node, &a.ids));
    firn_metal_dispatch *k = firn_metal_add(&p, FIRN_METAL_check_finite, 0, &a, sizeof a,
                                            (const int[]){FIRN_METAL_DST, FIRN_METAL_FAULT, -1});
    firn_metal_grid(k, 1, 1, 1, 256);
    FIRN_TRY(load(d, k));
    FIRN_TRY(encode(d, sub, node, p.d, p.n));
    return settle(d, NULL);
}

static firn_status run(firn_device *device, firn_queue queue, const firn_submission *sub)
{
    (void)queue;
    metal_device *d = (metal_device *)device;

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
            if (fault_of(d)->kind != FIRN_FAULT_NONE)
                return FIRN_OK; /* the wait says what it is */
        }
        if (d->flops > firn_metal_max_flops || d->n_open > MAX_DISPATCHES)
            commit(d);
    }
    firn_metal_commit(d->runtime);
    return FIRN_OK;
}

static firn_status status_of(firn_device *device, firn_fault *fault)
{
    firn_metal_fault *f = fault_of((metal_device *)device);

    fault->kind = (firn_fault_kind)f->kind;
    fault->plan = (uint32_t)((uint64_t)f->node >> 32);
    fault->node = (int32_t)f->node;
    fault->index = f->index;
    fault->value = f->value;
    fault->limit = f->limit;
    f->kind = FIRN_FAULT_NONE;
    return FIRN_OK;
}

uint64_t firn_metal_command_buffers(const firn_device *device)
{
    return firn_metal_n_committed(((const metal_device *)device)->runtime);
}

/* ---- opening ---- */

static void close_device(firn_device *device)
{
    metal_device *d = (metal_device *)device;

    if (d->faults)
        firn_metal_buffer_release(d->faults);
    firn_metal_stop(d->runtime);
    firn_free(device->ctx, d);
}

static const firn_backend metal_backend = {
    .name = "Metal",
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
    .run = run,
    .status = status_of,
    .close = close_device,
};

int firn_metal_count(void)
{
    return firn_metal_n_devices();
}

/* The products' kernels do not compile where there is no bfloat. */
static firn_status expect_bfloat(metal_device *d)
{
    const firn_metal_dispatch k = {.kernel = FIRN_METAL_mul_mat};

    const firn_status s = load(d, &k);
    if (s == FIRN_OK || s == FIRN_ERR_MEMORY)
        return s;
    char why[FIRN_METAL_ERROR_BYTES];
    snprintf(why, sizeof why, "%s", firn_error(d->base.ctx));
    return firn_fail(d->base.ctx, FIRN_ERR_UNSUPPORTED, "%s has no kernels of precision bf16: %s", d->base.name, why);
}

firn_status firn_metal_open(firn_context *ctx, int number, firn_device **device)
{
    char error[FIRN_METAL_ERROR_BYTES], what[120];
    metal_device *d;

    d = firn_alloc_zeroed(ctx, 1, sizeof *d);
    if (!d)
        return FIRN_ERR_MEMORY;
    d->base.ctx = ctx;
    d->base.backend = &metal_backend;
    d->bf16 = ctx->precision == FIRN_PRECISION_BF16;
    snprintf(d->base.name, sizeof d->base.name, "MTL%d", number);
    d->runtime =
        firn_metal_start(ctx, number, FIRN_METAL_N_LIBRARIES, FIRN_METAL_N_KERNELS * firn_metal_n_weights, error);
    if (d->runtime)
        d->faults = firn_metal_buffer_create(d->runtime, sizeof(firn_metal_fault));
    if (!d->runtime || !d->faults) {
        const firn_status s = device_failed(d, "opening", d->runtime ? "there is no memory for a buffer" : error);
        close_device(&d->base);
        return s;
    }
    memset(fault_of(d), 0, sizeof(firn_metal_fault));
    const firn_status s = d->bf16 ? expect_bfloat(d) : FIRN_OK;
    if (s != FIRN_OK) {
        close_device(&d->base);
        return s;
    }
    firn_metal_describe(d->runtime, what, sizeof what);
    snprintf(d->base.about, sizeof d->base.about, "%s%s", what, d->bf16 ? ", precision bf16" : "");
    *device = &d->base;
    return FIRN_OK;
}
