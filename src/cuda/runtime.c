/* gpu/runtime.h on NVIDIA's driver.
 *
 * A stream for each queue. The device's primary context is pushed for each call and popped behind it, so that a program
 * that uses CUDA itself finds its own context as it was. Kernels are enqueued as they are encoded; a batch of work has
 * no form of its own. Points in a queue are numbered; the last RING of them have an event, and an earlier one stands
 * for what the oldest of these waits for, which comes later in the same stream. */
#include "core/backend.h"
#include "cuda/cuda.h"
#include "cuda/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    OLDEST = 80, /* compute capability 8.0: mma on TF32 and bf16, asynchronous copies */
    QUEUES = FIRN_N_QUEUES,
    RING = 64,
};

/* The process's driver: opened by the first call, never closed. */
static firn_cuda_driver driver;
static char driver_error[300];
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;

struct firn_gpu_runtime {
    firn_context *ctx;
    CUdevice device;
    CUcontext context;
    CUstream streams[QUEUES];
    CUevent points[QUEUES][RING];
    uint64_t n_points[QUEUES];
    CUmodule *modules; /* [n_libraries][2]: the second of precision bf16 */
    CUfunction *pipelines;
    int n_libraries;
    CUevent begin, end;
    bool busy; /* begin is recorded, end is not */
    uint64_t n_committed;
};

typedef struct {
    CUdeviceptr at;
} cuda_buffer;

static void open_driver(void)
{
    firn_cuda_driver_open(&driver, driver_error, sizeof driver_error);
}

static bool have_driver(void)
{
    pthread_once(&driver_once, open_driver);
    return driver.library != NULL;
}

static bool good(CUresult result, const char *what, char *error)
{
    if (result == CUDA_SUCCESS)
        return true;
    snprintf(error, FIRN_GPU_ERROR_BYTES, "%s: %s", what, firn_cuda_words(&driver, result));
    return false;
}

static int attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;

    driver.DeviceGetAttribute(&value, which, device);
    return value;
}

static void enter(const firn_gpu_runtime *r)
{
    driver.CtxPushCurrent(r->context);
}

static bool leave(bool result)
{
    CUcontext ours;

    driver.CtxPopCurrent(&ours);
    return result;
}

/* ---- devices ---- */

/* One where there is no driver, so that opening it says why. */
static int n_devices(void)
{
    int n = 0;

    if (!have_driver())
        return 1;
    driver.DeviceGetCount(&n);
    return n;
}

static bool suits(CUdevice device, char *error)
{
    const int major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    const int minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);

    if (major * 10 + minor >= OLDEST)
        return true;
    snprintf(error, FIRN_GPU_ERROR_BYTES,
             "its compute capability is %d.%d; 8.0 or later is needed (Ampere, such as the A100 and the RTX 3000)",
             major, minor);
    return false;
}

static bool start_device(firn_gpu_runtime *r, int number, char *error)
{
    if (!good(driver.DeviceGet(&r->device, number), "there is no such device", error) || !suits(r->device, error) ||
        !good(driver.DevicePrimaryCtxRetain(&r->context, r->device), "taking the device", error))
        return false;
    enter(r);
    bool ok = good(driver.EventCreate(&r->begin, CU_EVENT_DEFAULT), "making an event", error) &&
              good(driver.EventCreate(&r->end, CU_EVENT_DEFAULT), "making an event", error);
    for (int q = 0; ok && q < QUEUES; q++) {
        ok = good(driver.StreamCreate(&r->streams[q], CU_STREAM_NON_BLOCKING), "making a stream", error);
        for (int i = 0; ok && i < RING; i++)
            ok = good(driver.EventCreate(&r->points[q][i], CU_EVENT_DISABLE_TIMING), "making an event", error);
    }
    return leave(ok);
}

static bool wait_all(firn_gpu_runtime *r, double *seconds, char *error);

static void stop(firn_gpu_runtime *r)
{
    char ignored[FIRN_GPU_ERROR_BYTES];

    if (!r)
        return;
    if (r->context) {
        wait_all(r, NULL, ignored);
        enter(r);
        for (int i = 0; r->modules && i < 2 * r->n_libraries; i++)
            if (r->modules[i])
                driver.ModuleUnload(r->modules[i]);
        if (r->end)
            driver.EventDestroy(r->end);
        if (r->begin)
            driver.EventDestroy(r->begin);
        for (int q = 0; q < QUEUES; q++) {
            for (int i = 0; i < RING; i++)
                if (r->points[q][i])
                    driver.EventDestroy(r->points[q][i]);
            if (r->streams[q])
                driver.StreamDestroy(r->streams[q]);
        }
        leave(true);
        driver.DevicePrimaryCtxRelease(r->device);
    }
    firn_free(r->ctx, r->modules);
    firn_free(r->ctx, r->pipelines);
    firn_free(r->ctx, r);
}

static firn_gpu_runtime *start(firn_context *ctx, int number, int n_libraries, int n_pipelines, char *error)
{
    error[0] = 0;
    if (!have_driver()) {
        snprintf(error, FIRN_GPU_ERROR_BYTES, "%s", driver_error);
        return NULL;
    }
    firn_gpu_runtime *r = firn_alloc_zeroed(ctx, 1, sizeof *r);
    if (!r)
        return NULL;
    r->ctx = ctx;
    r->n_libraries = n_libraries;
    r->modules = firn_alloc_zeroed(ctx, 2 * (size_t)n_libraries, sizeof *r->modules);
    r->pipelines = r->modules ? firn_alloc_zeroed(ctx, (size_t)n_pipelines, sizeof *r->pipelines) : NULL;
    if (r->pipelines && start_device(r, number, error))
        return r;
    stop(r);
    return NULL;
}

static void describe(firn_gpu_runtime *r, char *text, size_t size)
{
    char name[80] = "";
    size_t bytes = 0;

    driver.DeviceGetName(name, sizeof name, r->device);
    driver.DeviceTotalMem(&bytes, r->device);
    snprintf(text, size, "%s, %.1f GiB, compute capability %d.%d", name, (double)bytes / (1 << 30),
             attribute(r->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
             attribute(r->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

static int units(firn_gpu_runtime *r)
{
    return attribute(r->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
}

static bool has_bf16(firn_gpu_runtime *r)
{
    (void)r; /* every one since OLDEST */
    return true;
}

/* ---- memory ---- */

static void memory(firn_gpu_runtime *r, size_t *available, size_t *total)
{
    *available = *total = 0;
    enter(r);
    driver.MemGetInfo(available, total);
    leave(true);
}

static uint64_t working_set(firn_gpu_runtime *r)
{
    size_t available, total;

    memory(r, &available, &total);
    return total;
}

/* With what other programs have taken. */
static uint64_t allocated(firn_gpu_runtime *r)
{
    size_t available, total;

    memory(r, &available, &total);
    return total - available;
}

static void *buffer_create(firn_gpu_runtime *r, size_t size)
{
    cuda_buffer *b = firn_alloc_zeroed(r->ctx, 1, sizeof *b);

    if (!b)
        return NULL;
    enter(r);
    if (leave(driver.MemAlloc(&b->at, size) == CUDA_SUCCESS))
        return b;
    firn_free(r->ctx, b);
    return NULL;
}

/* The driver waits for what runs before it takes memory away. */
static void buffer_release(firn_gpu_runtime *r, void *buffer)
{
    cuda_buffer *b = buffer;

    enter(r);
    driver.MemFree(b->at);
    leave(true);
    firn_free(r->ctx, b);
}

/* ---- transfers ---- */

static CUdeviceptr place(void *buffer, size_t at)
{
    return ((const cuda_buffer *)buffer)->at + at;
}

static bool upload(firn_gpu_runtime *r, int queue, void *buffer, size_t at, const void *data, size_t size, char *error)
{
    enter(r);
    return leave(good(driver.MemcpyHtoDAsync(place(buffer, at), data, size, r->streams[queue]), "an upload", error));
}

static bool download(firn_gpu_runtime *r, int queue, void *buffer, size_t at, void *data, size_t size, char *error)
{
    enter(r);
    return leave(good(driver.MemcpyDtoHAsync(data, place(buffer, at), size, r->streams[queue]), "a download", error));
}

static bool copy(firn_gpu_runtime *r, int queue, void *to, size_t at, void *from, size_t offset, size_t size,
                 char *error)
{
    enter(r);
    return leave(
        good(driver.MemcpyDtoDAsync(place(to, at), place(from, offset), size, r->streams[queue]), "a copy", error));
}

static bool clear(firn_gpu_runtime *r, int queue, void *buffer, size_t at, size_t size, char *error)
{
    enter(r);
    return leave(good(driver.MemsetD8Async(place(buffer, at), 0, size, r->streams[queue]), "clearing", error));
}

/* ---- points in queues ---- */

static CUevent point(firn_gpu_runtime *r, int queue, uint64_t number)
{
    const uint64_t last = r->n_points[queue];

    return r->points[queue][(last - number >= RING ? last - RING + 1 : number) % RING];
}

/* Numbers begin at 1. An event that cannot be recorded is a device that cannot be used: the next wait says so. */
static uint64_t event(firn_gpu_runtime *r, int queue)
{
    enter(r);
    driver.EventRecord(r->points[queue][++r->n_points[queue] % RING], r->streams[queue]);
    leave(true);
    return r->n_points[queue];
}

static bool after(firn_gpu_runtime *r, int queue, int of, uint64_t number, char *error)
{
    enter(r);
    return leave(good(driver.StreamWaitEvent(r->streams[queue], point(r, of, number), CU_EVENT_WAIT_DEFAULT),
                      "ordering queues", error));
}

static bool finish(firn_gpu_runtime *r, int queue, uint64_t number, char *error)
{
    enter(r);
    return leave(good(driver.EventSynchronize(point(r, queue, number)), "waiting for a queue", error));
}

/* Pinned: transfers from and to it run at the bus's speed, beside kernels. */
static void *staging_create(firn_gpu_runtime *r, size_t size)
{
    void *memory = NULL;

    enter(r);
    return leave(driver.MemHostAlloc(&memory, size, 0) == CUDA_SUCCESS) ? memory : NULL;
}

static void staging_destroy(firn_gpu_runtime *r, void *memory)
{
    enter(r);
    driver.MemFreeHost(memory);
    leave(true);
}

/* ---- pipelines ---- */

static bool load(firn_gpu_runtime *r, int library, bool bf16, CUmodule *module, char *error)
{
    const void *image = firn_cuda_image((firn_gpu_library)library, bf16);
    const CUresult result = image ? driver.ModuleLoadData(module, image) : CUDA_ERROR_NOT_FOUND;

    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
        snprintf(error, FIRN_GPU_ERROR_BYTES,
                 "this libfirn-cuda has kernels for the architectures %s, not for compute capability %d.%d",
                 firn_cuda_architectures, attribute(r->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                 attribute(r->device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
        return false;
    }
    return good(result, "loading kernels", error);
}

static bool pipeline(firn_gpu_runtime *r, int library, bool bf16, int number, const char *name, char *error)
{
    CUmodule *module = &r->modules[2 * library + bf16];

    if (r->pipelines[number])
        return true;
    enter(r);
    if (!*module && !load(r, library, bf16, module, error))
        return leave(false);
    return leave(good(driver.ModuleGetFunction(&r->pipelines[number], *module, name), name, error));
}

/* ---- work ---- */

/* The kernel's parameters: its arguments, the grid's size, then where buffers lie (cmake/embed_cuda.py). */
static bool launch(firn_gpu_runtime *r, const firn_gpu_work *w, uint32_t n_blocks, char *error)
{
    CUdeviceptr at[FIRN_GPU_MAX_BUFFERS];
    void *parameters[FIRN_GPU_MAX_BUFFERS + 2] = {(void *)w->args, (void *)w->grid};

    for (int i = 0; i < w->n_buffers; i++) {
        at[i] = place(w->buffers[i], w->offsets[i]);
        parameters[i + 2] = &at[i];
    }
    return good(driver.LaunchKernel(r->pipelines[w->pipeline], n_blocks, 1, 1, w->threads, 1, 1, (unsigned)w->shared,
                                    r->streams[FIRN_QUEUE_COMPUTE], parameters, NULL),
                "launching a kernel", error);
}

static bool encode(firn_gpu_runtime *r, const firn_gpu_work *w, char *error)
{
    const double blocks = (double)w->grid[0] * w->grid[1] * w->grid[2];

    error[0] = 0;
    if (blocks == 0)
        return true;
    if (blocks > INT32_MAX) {
        snprintf(error, FIRN_GPU_ERROR_BYTES, "a grid of %u x %u x %u blocks is past 2^31", w->grid[0], w->grid[1],
                 w->grid[2]);
        return false;
    }
    enter(r);
    if (!r->busy && !good(driver.EventRecord(r->begin, r->streams[FIRN_QUEUE_COMPUTE]), "recording an event", error))
        return leave(false);
    r->busy = true;
    return leave(launch(r, w, (uint32_t)blocks, error));
}

static void commit(firn_gpu_runtime *r)
{
    r->n_committed++;
}

static uint64_t n_committed(const firn_gpu_runtime *r)
{
    return r->n_committed;
}

/* Time runs from the first kernel since the last wait to the last one, with the gaps between them. */
static bool wait_all(firn_gpu_runtime *r, double *seconds, char *error)
{
    float ms = 0;
    bool ok = true;

    error[0] = 0;
    enter(r);
    if (r->busy)
        ok = good(driver.EventRecord(r->end, r->streams[FIRN_QUEUE_COMPUTE]), "recording an event", error);
    for (int q = 0; q < QUEUES && r->streams[q]; q++)
        ok = ok && good(driver.StreamSynchronize(r->streams[q]), "waiting for kernels", error);
    if (ok && r->busy && seconds)
        driver.EventElapsedTime(&ms, r->begin, r->end);
    r->busy = false;
    if (seconds)
        *seconds = ms * 1e-3;
    return leave(ok);
}

const firn_gpu_interface firn_cuda_interface = {
    .tile = {.rows = 64, .columns = 128, .threads = 256, .shared = 64 * 128 * sizeof(float), .least = 3},
    .page = 4096,
    .has_watchdog = false,
    .n_devices = n_devices,
    .start = start,
    .stop = stop,
    .describe = describe,
    .max_buffer = working_set,
    .working_set = working_set,
    .allocated = allocated,
    .units = units,
    .has_bf16 = has_bf16,
    .buffer_create = buffer_create,
    .buffer_wrap = NULL,
    .buffer_release = buffer_release,
    .upload = upload,
    .download = download,
    .copy = copy,
    .clear = clear,
    .event = event,
    .after = after,
    .finish = finish,
    .staging_create = staging_create,
    .staging_destroy = staging_destroy,
    .pipeline = pipeline,
    .encode = encode,
    .commit = commit,
    .n_committed = n_committed,
    .wait = wait_all,
};
