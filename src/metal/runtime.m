/* See runtime.h. Correct with automatic reference counting and without it: objects that live in C structs are kept by
 * RETAINED and let go by DROP. */
#import <Metal/Metal.h>

#include "metal/runtime.h"

#include <stdio.h>
#include <stdlib.h>
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

enum { IN_FLIGHT = 32 };

struct firn_metal_runtime {
    void *device, *queue;
    void **libraries, **pipelines;
    int n_libraries, n_pipelines;
    void *open, *encoder; /* the command buffer that is being encoded */
    void *flying[IN_FLIGHT];
    int n_flying;
    uint64_t n_committed;
    double seconds;
    char error[FIRN_METAL_ERROR_BYTES]; /* of the first command buffer that failed since the last wait */
};

static void say(char *error, const char *text)
{
    snprintf(error, FIRN_METAL_ERROR_BYTES, "%s", text ? text : "no reason given");
}

static void say_error(char *error, NSError *e)
{
    say(error, [[e localizedDescription] UTF8String]);
}

/* ---- devices ---- */

int firn_metal_n_devices(void)
{
    @autoreleasepool {
        NSArray *all = MTLCopyAllDevices();
        const int n = (int)[all count];
        RELEASE(all);
        return n;
    }
}

firn_metal_runtime *firn_metal_start(int number, int n_libraries, int n_pipelines, char *error)
{
    @autoreleasepool {
        firn_metal_runtime *m = calloc(1, sizeof *m);
        NSArray *all = MTLCopyAllDevices();
        if (m && number < (int)[all count]) {
            id<MTLDevice> device = [all objectAtIndex:(NSUInteger)number];
            m->device = KEPT(device);
            m->queue = RETAINED([device newCommandQueue]);
            m->n_libraries = n_libraries;
            m->n_pipelines = n_pipelines;
            m->libraries = calloc((size_t)n_libraries, sizeof *m->libraries);
            m->pipelines = calloc((size_t)n_pipelines, sizeof *m->pipelines);
        }
        RELEASE(all);
        if (m && m->queue && m->libraries && m->pipelines)
            return m;
        say(error, m && m->device ? "the device gives no command queue" : "there is no such device");
        firn_metal_stop(m);
        return NULL;
    }
}

static void drop_all(void **objects, int n)
{
    for (int i = 0; objects && i < n; i++)
        if (objects[i])
            DROP(objects[i]);
    free(objects);
}

void firn_metal_stop(firn_metal_runtime *m)
{
    char error[FIRN_METAL_ERROR_BYTES];

    if (!m)
        return;
    @autoreleasepool {
        firn_metal_wait(m, NULL, error);
        drop_all(m->pipelines, m->n_pipelines);
        drop_all(m->libraries, m->n_libraries);
        if (m->queue)
            DROP(m->queue);
        if (m->device)
            DROP(m->device);
        free(m);
    }
}

void firn_metal_describe(firn_metal_runtime *m, char *text, size_t size)
{
    @autoreleasepool {
        id<MTLDevice> device = OBJECT(id<MTLDevice>, m->device);
        snprintf(text, size, "%s, %.1f GiB%s", [[device name] UTF8String],
                 (double)[device recommendedMaxWorkingSetSize] / (1 << 30),
                 [device hasUnifiedMemory] ? " of shared memory" : "");
    }
}

uint64_t firn_metal_max_buffer(firn_metal_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) maxBufferLength];
}

uint64_t firn_metal_working_set(firn_metal_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) recommendedMaxWorkingSetSize];
}

uint64_t firn_metal_allocated(firn_metal_runtime *m)
{
    return [OBJECT(id<MTLDevice>, m->device) currentAllocatedSize];
}

/* ---- buffers ---- */

void *firn_metal_buffer_create(firn_metal_runtime *m, size_t size)
{
    @autoreleasepool {
        id<MTLBuffer> b = [OBJECT(id<MTLDevice>, m->device) newBufferWithLength:size
                                                                        options:MTLResourceStorageModeShared];
        return b ? RETAINED(b) : NULL;
    }
}

void *firn_metal_buffer_wrap(firn_metal_runtime *m, void *pages, size_t size)
{
    @autoreleasepool {
        id<MTLBuffer> b = [OBJECT(id<MTLDevice>, m->device) newBufferWithBytesNoCopy:pages
                                                                              length:size
                                                                             options:MTLResourceStorageModeShared
                                                                         deallocator:nil];
        return b ? RETAINED(b) : NULL;
    }
}

void firn_metal_buffer_release(void *buffer)
{
    @autoreleasepool {
        DROP(buffer);
    }
}

void *firn_metal_buffer_contents(void *buffer)
{
    return [OBJECT(id<MTLBuffer>, buffer) contents];
}

/* ---- pipelines ---- */

static bool compile(firn_metal_runtime *m, int library, const char *head, const char *text, char *error)
{
    NSError *e = nil;
    const size_t size = strlen(head) + strlen(text) + 1;
    char *all = malloc(size);
    if (!all) {
        say(error, "no memory for the kernels' source");
        return false;
    }
    snprintf(all, size, "%s%s", head, text);
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.fastMathEnabled = NO;
    id<MTLLibrary> l = [OBJECT(id<MTLDevice>, m->device) newLibraryWithSource:[NSString stringWithUTF8String:all]
                                                                      options:options
                                                                        error:&e];
    RELEASE(options);
    free(all);
    if (!l) {
        say_error(error, e);
        return false;
    }
    m->libraries[library] = RETAINED(l);
    return true;
}

bool firn_metal_pipeline(firn_metal_runtime *m, int library, const char *head, const char *text, int pipeline,
                         const char *name, char *error)
{
    if (m->pipelines[pipeline])
        return true;
    @autoreleasepool {
        NSError *e = nil;
        if (!m->libraries[library] && !compile(m, library, head, text, error))
            return false;
        id<MTLFunction> function =
            [OBJECT(id<MTLLibrary>, m->libraries[library]) newFunctionWithName:[NSString stringWithUTF8String:name]];
        if (!function) {
            snprintf(error, FIRN_METAL_ERROR_BYTES, "there is no kernel %s", name);
            return false;
        }
        id<MTLComputePipelineState> p = [OBJECT(id<MTLDevice>, m->device) newComputePipelineStateWithFunction:function
                                                                                                        error:&e];
        RELEASE(function);
        if (!p) {
            say_error(error, e);
            return false;
        }
        m->pipelines[pipeline] = RETAINED(p);
        return true;
    }
}

/* ---- work ---- */

/* The oldest command buffer in flight: waits for it. */
static void land(firn_metal_runtime *m)
{
    id<MTLCommandBuffer> b = OBJECT(id<MTLCommandBuffer>, m->flying[0]);

    [b waitUntilCompleted];
    if ([b status] == MTLCommandBufferStatusError && !m->error[0])
        say_error(m->error, [b error]);
    m->seconds += [b GPUEndTime] - [b GPUStartTime];
    DROP(m->flying[0]);
    memmove(m->flying, m->flying + 1, sizeof *m->flying * (size_t)--m->n_flying);
}

bool firn_metal_encode(firn_metal_runtime *m, const firn_metal_work *work, char *error)
{
    @autoreleasepool {
        id<MTLComputePipelineState> pipeline = OBJECT(id<MTLComputePipelineState>, m->pipelines[work->pipeline]);
        if (work->threads > [pipeline maxTotalThreadsPerThreadgroup]) {
            snprintf(error, FIRN_METAL_ERROR_BYTES, "a kernel is launched with %u threads and runs with %lu at most",
                     (unsigned)work->threads, (unsigned long)[pipeline maxTotalThreadsPerThreadgroup]);
            return false;
        }
        if (!m->open) {
            id<MTLCommandBuffer> b = [OBJECT(id<MTLCommandQueue>, m->queue) commandBuffer];
            if (!b) {
                say(error, "the device gives no command buffer");
                return false;
            }
            m->open = KEPT(b);
            m->encoder = KEPT([b computeCommandEncoder]);
        }
        id<MTLComputeCommandEncoder> e = OBJECT(id<MTLComputeCommandEncoder>, m->encoder);
        [e setComputePipelineState:pipeline];
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

void firn_metal_commit(firn_metal_runtime *m)
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

uint64_t firn_metal_n_committed(const firn_metal_runtime *m)
{
    return m->n_committed;
}

bool firn_metal_wait(firn_metal_runtime *m, double *seconds, char *error)
{
    @autoreleasepool {
        firn_metal_commit(m);
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
