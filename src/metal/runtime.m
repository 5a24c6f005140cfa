/* Metal behind gpu/runtime.h. Correct with automatic reference counting and without it: objects that live in C structs
 * are kept by RETAINED and let go by DROP. */
#import <Metal/Metal.h>

#include "gpu/plan.h"
#include "metal/metal.h"

#include <stdio.h>
#include <string.h>

#if __has_feature(objc_arc)
#define RETAINED(x)  ((__bridge_retained void *)(x))
#define KEPT(x)      ((__bridge_retained void *)(x))
#define OBJECT(T, p) ((__bridge T)(p))
#define DROP(p)      ((void)(__bridge_transfer id)(p))
#define RELEASE(x)   ((void)0)
#else
#define RETAINED(x)  ((void *)(x))          /* a new object's one reference */
#define KEPT(x)      ((void *)[(x) retain]) /* one more of an autoreleased object */
#define OBJECT(T, p) ((T)(p))
#define DROP(p)      [(id)(p) release]
#define RELEASE(x)   [(x) release]
#endif

enum { IN_FLIGHT = 32 }; /* of the 64 command buffers that a queue has */

struct firn_gpu_runtime {
    firn_context *ctx;
    void *device, *queue;
    void **libraries, **pipelines;
    int n_libraries, n_pipelines;
    void *open, *encoder; /* the command buffer that is being encoded */
    void *flying[IN_FLIGHT];
    int n_flying;
    uint64_t n_committed;
    double seconds;
    char error[FIRN_GPU_ERROR_BYTES]; /* of the first command buffer that failed since the last wait */
};

static void say(char *error, const char *text)
{
    snprintf(error, FIRN_GPU_ERROR_BYTES, "%s", text ? text : "no reason given");
}

static void say_error(char *error, NSError *e)
{
    say(error, [[e localizedDescription] UTF8String]);
}

/* ---- devices ---- */

static int n_devices(void)
{
    @autoreleasepool {
        NSArray *all = MTLCopyAllDevices();
        const int n = (int)[all count];
        RELEASE(all);
        return n;
    }
}

/* Kernels are written for simdgroups of 32 and 8x8 matrices of theirs, which Apple's own GPUs have since the M1. */
static bool suits(id<MTLDevice> device, char *error)
{
    if ([device supportsFamily:MTLGPUFamilyApple7])
        return true;
    snprintf(error, FIRN_GPU_ERROR_BYTES, "%s has no simdgroup matrices: a GPU of Apple's is needed, an M1 or later",
             [[device name] UTF8String]);
    return false;
}

static void stop(firn_gpu_runtime *m);
static bool wait_all(firn_gpu_runtime *m, double *seconds, char *error);

static firn_gpu_runtime *start(firn_context *ctx, int number, int n_libraries, int n_pipelines, char *error)
{
    @autoreleasepool {
        firn_gpu_runtime *m = firn_alloc_zeroed(ctx, 1, sizeof *m);
        error[0] = 0;
        if (!m)
            return NULL;
        m->ctx = ctx;
        m->n_libraries = n_libraries;
        m->n_pipelines = n_pipelines;
        m->libraries = firn_alloc_zeroed(ctx, (size_t)n_libraries, sizeof *m->libraries);
        m->pipelines = m->libraries ? firn_alloc_zeroed(ctx, (size_t)n_pipelines, sizeof *m->pipelines) : NULL;
        if (m->pipelines) {
            NSArray *all = MTLCopyAllDevices();
            id<MTLDevice> device = number < (int)[all count] ? [all objectAtIndex:(NSUInteger)number] : nil;
            if (!device)
                say(error, "there is no such device");
            else if (suits(device, error)) {
                id<MTLCommandQueue> queue = [device newCommandQueue];
                m->device = KEPT(device);
                m->queue = queue ? RETAINED(queue) : NULL;
                if (!queue)
                    say(error, "the device gives no command queue");
            }
            RELEASE(all);
        }
        if (m->queue)
            return m;
        stop(m);
        return NULL;
    }
}

static void drop_all(firn_context *ctx, void **objects, int n)
{
    for (int i = 0; objects && i < n; i++)
        if (objects[i])
            DROP(objects[i]);
    firn_free(ctx, objects);
}

static void stop(firn_gpu_runtime *m)
{
    char error[FIRN_GPU_ERROR_BYTES];

    if (!m)
        return;
    @autoreleasepool {
        wait_all(m, NULL, error);
        drop_all(m->ctx, m->pipelines, m->n_pipelines);
        drop_all(m->ctx, m->libraries, m->n_libraries);
        if (m->queue)
            DROP(m->queue);
        if (m->device)
            DROP(m->device);
        firn_free(m->ctx, m);
    }
}

static void describe(firn_gpu_runtime *m, char *text, size_t size)
{
    @autoreleasepool {
        id<MTLDevice> device = OBJECT(id<MTLDevice>, m->device);
        snprintf(text, size, "%s, %.1f GiB%s", [[device name] UTF8String],
                 (double)[device recommendedMaxWorkingSetSize] / (1 << 30),
                 [device hasUnifiedMemory] ? " of shared memory" : "");
    }
}

static uint64_t max_buffer(firn_gpu_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) maxBufferLength];
}

static uint64_t working_set(firn_gpu_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) recommendedMaxWorkingSetSize];
}

static uint64_t allocated(firn_gpu_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) currentAllocatedSize];
}

/* ---- buffers ---- */

static void *buffer_create(firn_gpu_runtime *m, size_t size)
{
    @autoreleasepool {
        id<MTLBuffer> b = [OBJECT(id<MTLDevice>, m->device) newBufferWithLength:size
                                                                        options:MTLResourceStorageModeShared];
        return b ? RETAINED(b) : NULL;
    }
}

static void *buffer_wrap(firn_gpu_runtime *m, void *pages, size_t size)
{
    @autoreleasepool {
        id<MTLBuffer> b = [OBJECT(id<MTLDevice>, m->device) newBufferWithBytesNoCopy:pages
                                                                              length:size
                                                                             options:MTLResourceStorageModeShared
                                                                         deallocator:nil];
        return b ? RETAINED(b) : NULL;
    }
}

static void buffer_release(firn_gpu_runtime *m, void *buffer)
{
    (void)m;
    @autoreleasepool {
        DROP(buffer);
    }
}

/* Memory is shared: transfers wait for the queue, and the host does them. */
static char *contents(void *buffer)
{
    return [OBJECT(id<MTLBuffer>, buffer) contents];
}

static bool upload(firn_gpu_runtime *m, int queue, void *buffer, size_t at, const void *data, size_t size, char *error)
{
    (void)queue;
    if (!wait_all(m, NULL, error))
        return false;
    memcpy(contents(buffer) + at, data, size);
    return true;
}

static bool download(firn_gpu_runtime *m, int queue, void *buffer, size_t at, void *data, size_t size, char *error)
{
    (void)queue;
    if (!wait_all(m, NULL, error))
        return false;
    memcpy(data, contents(buffer) + at, size);
    return true;
}

static bool copy(firn_gpu_runtime *m, int queue, void *to, size_t at, void *from, size_t offset, size_t size,
                 char *error)
{
    (void)queue;
    if (!wait_all(m, NULL, error))
        return false;
    memcpy(contents(to) + at, contents(from) + offset, size);
    return true;
}

static bool clear(firn_gpu_runtime *m, int queue, void *buffer, size_t at, size_t size, char *error)
{
    (void)queue;
    if (!wait_all(m, NULL, error))
        return false;
    memset(contents(buffer) + at, 0, size);
    return true;
}

/* ---- pipelines ---- */

/* Without fast math, which takes NaN and infinity for impossible and functions for approximate (macOS 15 calls it
 * mathMode, and calls this name old). */
static void keep_arithmetic(MTLCompileOptions *options)
{
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    options.fastMathEnabled = NO;
#pragma clang diagnostic pop
}

static id<MTLLibrary> compile(firn_gpu_runtime *m, const char *head, const char *text, char *error)
{
    NSError *e = nil;
    const size_t size = strlen(head) + strlen(text) + 1;
    char *all = firn_alloc(m->ctx, size);
    error[0] = 0;
    if (!all)
        return nil;
    snprintf(all, size, "%s%s", head, text);
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    keep_arithmetic(options);
    id<MTLLibrary> l = [OBJECT(id<MTLDevice>, m->device) newLibraryWithSource:[NSString stringWithUTF8String:all]
                                                                      options:options
                                                                        error:&e];
    RELEASE(options);
    firn_free(m->ctx, all);
    if (!l)
        say_error(error, e);
    return l;
}

static bool compile_library(firn_gpu_runtime *m, int library, bool bf16, char *error)
{
    id<MTLLibrary> l = compile(m, bf16 ? "#define FIRN_PRECISION_BF16\n" : "",
                               firn_metal_library_text((firn_gpu_library)library), error);

    if (!l)
        return false;
    m->libraries[library] = RETAINED(l);
    return true;
}

/* bfloat comes with the language, and so with the system: whether a kernel that names it compiles. */
static bool has_bf16(firn_gpu_runtime *m)
{
    char error[FIRN_GPU_ERROR_BYTES];

    @autoreleasepool {
        id<MTLLibrary> l = compile(m, "",
                                   "#include <metal_stdlib>\nusing namespace metal;\n"
                                   "kernel void probe(device bfloat *x [[buffer(0)]]) { x[0] = bfloat(1.0f); }\n",
                                   error);
        RELEASE(l);
        return l != nil;
    }
}

/* The descriptor tells the compiler how many threads there will be, so that it does not spend their registers. */
static id<MTLComputePipelineState> new_pipeline(firn_gpu_runtime *m, id<MTLFunction> function, NSError **e)
{
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor alloc] init];

    d.computeFunction = function;
    d.maxTotalThreadsPerThreadgroup = FIRN_GPU_MAX_THREADS;
    d.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
    id<MTLComputePipelineState> p = [OBJECT(id<MTLDevice>, m->device) newComputePipelineStateWithDescriptor:d
                                                                                                    options:0
                                                                                                 reflection:NULL
                                                                                                      error:e];
    RELEASE(d);
    return p;
}

static bool make_pipeline(firn_gpu_runtime *m, int library, bool bf16, int pipeline, const char *name, char *error)
{
    if (m->pipelines[pipeline])
        return true;
    @autoreleasepool {
        NSError *e = nil;
        if (!m->libraries[library] && !compile_library(m, library, bf16, error))
            return false;
        id<MTLFunction> function =
            [OBJECT(id<MTLLibrary>, m->libraries[library]) newFunctionWithName:[NSString stringWithUTF8String:name]];
        if (!function) {
            snprintf(error, FIRN_GPU_ERROR_BYTES, "there is no kernel %s", name);
            return false;
        }
        id<MTLComputePipelineState> p = new_pipeline(m, function, &e);
        RELEASE(function);
        if (!p) {
            say_error(error, e);
            return false;
        }
        if ([p maxTotalThreadsPerThreadgroup] < FIRN_GPU_MAX_THREADS || [p threadExecutionWidth] != 32) {
            snprintf(error, FIRN_GPU_ERROR_BYTES,
                     "the device runs it with %lu threads at most, in simdgroups of %lu; %d are needed, by 32",
                     (unsigned long)[p maxTotalThreadsPerThreadgroup], (unsigned long)[p threadExecutionWidth],
                     FIRN_GPU_MAX_THREADS);
            RELEASE(p);
            return false;
        }
        m->pipelines[pipeline] = RETAINED(p);
        return true;
    }
}

/* ---- work ---- */

/* The oldest command buffer in flight: waits for it. */
static void land(firn_gpu_runtime *m)
{
    id<MTLCommandBuffer> b = OBJECT(id<MTLCommandBuffer>, m->flying[0]);

    [b waitUntilCompleted];
    if ([b status] == MTLCommandBufferStatusError && !m->error[0])
        say_error(m->error, [b error]);
    m->seconds += [b GPUEndTime] - [b GPUStartTime];
    DROP(m->flying[0]);
    memmove(m->flying, m->flying + 1, sizeof *m->flying * (size_t)--m->n_flying);
}

/* A command buffer and its encoder. */
static bool open_commands(firn_gpu_runtime *m, char *error)
{
    id<MTLCommandBuffer> b = [OBJECT(id<MTLCommandQueue>, m->queue) commandBuffer];
    id<MTLComputeCommandEncoder> e = [b computeCommandEncoder];

    if (!e) {
        say(error, b ? "the device gives no encoder" : "the device gives no command buffer");
        return false;
    }
    m->open = KEPT(b);
    m->encoder = KEPT(e);
    return true;
}

static bool encode(firn_gpu_runtime *m, const firn_gpu_work *work, char *error)
{
    @autoreleasepool {
        if (!m->open && !open_commands(m, error))
            return false;
        id<MTLComputeCommandEncoder> e = OBJECT(id<MTLComputeCommandEncoder>, m->encoder);
        [e setComputePipelineState:OBJECT(id<MTLComputePipelineState>, m->pipelines[work->pipeline])];
        [e setBytes:work->args length:work->n_args atIndex:0];
        for (int i = 0; i < work->n_buffers; i++)
            [e setBuffer:OBJECT(id<MTLBuffer>, work->buffers[i]) offset:work->offsets[i] atIndex:(NSUInteger)i + 1];
        if (work->shared)
            [e setThreadgroupMemoryLength:(work->shared + 15) / 16 * 16 atIndex:0];
        [e dispatchThreadgroups:MTLSizeMake(work->grid[0], work->grid[1], work->grid[2])
            threadsPerThreadgroup:MTLSizeMake(work->threads, 1, 1)];
        return true;
    }
}

static void commit(firn_gpu_runtime *m)
{
    if (!m->open)
        return;
    @autoreleasepool {
        if (m->n_flying == IN_FLIGHT)
            land(m);
        [OBJECT(id<MTLComputeCommandEncoder>, m->encoder) endEncoding];
        [OBJECT(id<MTLCommandBuffer>, m->open) commit];
        DROP(m->encoder);
        m->flying[m->n_flying++] = m->open;
        m->open = m->encoder = NULL;
        m->n_committed++;
    }
}

static uint64_t n_committed(const firn_gpu_runtime *m)
{
    return m->n_committed;
}

static bool wait_all(firn_gpu_runtime *m, double *seconds, char *error)
{
    @autoreleasepool {
        commit(m);
        while (m->n_flying)
            land(m);
    }
    if (seconds)
        *seconds = m->seconds;
    m->seconds = 0;
    if (!m->error[0])
        return true;
    say(error, m->error);
    m->error[0] = 0;
    return false;
}

/* Metal does not tell. */
static int units(firn_gpu_runtime *m)
{
    (void)m;
    return 0;
}

const firn_gpu_interface firn_metal_interface = {
    .tile = {.rows = 32, .columns = 64, .threads = 128, .shared = 4 * (32 * 32 + 32 * 64), .least = 8},
    .page = 16384, /* a multiple of every Mac's */
    .has_watchdog = true,
    .n_devices = n_devices,
    .start = start,
    .stop = stop,
    .describe = describe,
    .max_buffer = max_buffer,
    .working_set = working_set,
    .allocated = allocated,
    .units = units,
    .has_bf16 = has_bf16,
    .buffer_create = buffer_create,
    .buffer_wrap = buffer_wrap,
    .buffer_release = buffer_release,
    .upload = upload,
    .download = download,
    .copy = copy,
    .clear = clear,
    .pipeline = make_pipeline,
    .encode = encode,
    .commit = commit,
    .n_committed = n_committed,
    .wait = wait_all,
};
