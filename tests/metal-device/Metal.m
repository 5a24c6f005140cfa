/* The software Metal device: Metal's objects over the executor.
 *
 * Committed work waits until somebody waits for it, so that a runtime that looks at results too early is found out.
 * Misuse of the API aborts with a sentence, as Metal's validation layer does. Sources are compiled when asked for
 * (compile_library.c), and what the compiler says is the NSError. Set up by the environment:
 *
 *     MDEV_FAMILY=n        the family of Apple's GPUs that it is of; 7 (an M1) unless given
 *     MDEV_MAX_BUFFER=n    bytes of the largest buffer
 *     MDEV_WORKING_SET=n   bytes that may be resident
 *     MDEV_PIPELINE=n      threads that a pipeline runs with at most */
#import <Metal/Metal.h>

#include "compile_library.h"
#include "executor.h"

#include <Block.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 16384, MAX_SHARED = 32768, MAX_THREADS = 1024, MAX_BYTES = 4096, CONSTANT_ALIGN = 256 };
enum { MAX_COMMAND_BUFFERS = 64 };
static NSUInteger allocated;
static long refusal; /* things to be asked for until one is refused; 0: none is, -1: it was */

static NSUInteger number_of(const char *name, NSUInteger otherwise)
{
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

void mdev_refuse(long n)
{
    refusal = n;
}

bool mdev_has_refused(void)
{
    return refusal < 0;
}

static bool refused(void)
{
    if (refusal <= 0 || --refusal > 0)
        return false;
    refusal = -1;
    return true;
}

static NSError *make_error(const char *text)
{
    NSError *e = [[NSError alloc] init];
    e->_text = [[NSString alloc] initWithBytes:text length:strlen(text) encoding:NSUTF8StringEncoding];
    return [e autorelease];
}

static void misuse(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void misuse(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "Metal API misuse: ");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- libraries, functions, pipelines ---- */

@implementation MTLCompileOptions
@synthesize fastMathEnabled = _fast;
- (instancetype)init
{
    _fast = YES;
    return self;
}
@end

@implementation MTLComputePipelineDescriptor
@synthesize computeFunction = _function;
@synthesize maxTotalThreadsPerThreadgroup = _threads;
@synthesize threadGroupSizeIsMultipleOfThreadExecutionWidth = _whole;
- (void)dealloc
{
    [_function release];
    [super dealloc];
}
@end

@implementation MTLFunctionConstantValues
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index
{
    const int size = type == MTLDataTypeBool                                                            ? 1
                     : type == MTLDataTypeShort || type == MTLDataTypeUShort || type == MTLDataTypeHalf ? 2
                     : type == MTLDataTypeInt || type == MTLDataTypeUInt || type == MTLDataTypeFloat    ? 4
                                                                                                        : 0;
    if (!size || index >= 256)
        misuse("setConstantValue: of type %lu at index %lu", (unsigned long)type, (unsigned long)index);
    _values[index].size = (unsigned char)size;
    memcpy(_values[index].bytes, value, (size_t)size);
}
@end

@interface MdevFunction : NSObject <MTLFunction> {
  @public
    const mdev_kernel *_kernel;
    const mdev_unit *_unit;
    MTLFunctionConstantValues *_constants;
}
@end
@implementation MdevFunction
- (NSString *)name
{
    return [NSString stringWithUTF8String:_kernel->name];
}
- (void)dealloc
{
    [_constants release];
    [super dealloc];
}
@end

@interface MdevPipeline : NSObject <MTLComputePipelineState> {
  @public
    MdevFunction *_function;
    NSUInteger _threads;
    BOOL _whole; /* simdgroups are promised */
}
@end
@implementation MdevPipeline
- (NSUInteger)maxTotalThreadsPerThreadgroup
{
    return _threads;
}
- (NSUInteger)threadExecutionWidth
{
    return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength
{
    return 0;
}
- (void)dealloc
{
    [_function release];
    [super dealloc];
}
@end

@interface MdevLibrary : NSObject <MTLLibrary> {
  @public
    const mdev_unit *_unit;
}
@end
@implementation MdevLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
{
    return [self newFunctionWithName:name constantValues:nil error:NULL];
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error
{
    char text[256];

    for (int j = 0; values && j < _unit->n_constants; j++) {
        const mdev_constant *c = &_unit->constants[j];
        const int size = values->_values[c->index].size;
        if (!size || size == c->size)
            continue;
        snprintf(text, sizeof text, "function constant %s has %d bytes, and was given %d", c->name, c->size, size);
        if (error)
            *error = make_error(text);
        return nil;
    }
    for (int i = 0; i < _unit->n_kernels && !refused(); i++) {
        if (strcmp(_unit->kernels[i].name, [name UTF8String]) != 0)
            continue;
        MdevFunction *f = [[MdevFunction alloc] init];
        f->_kernel = &_unit->kernels[i];
        f->_unit = _unit;
        f->_constants = [values retain];
        return f;
    }
    snprintf(text, sizeof text, "no function is called %s", [name UTF8String]);
    if (error)
        *error = make_error(text);
    return nil;
}
@end

/* ---- buffers ---- */

@interface MdevBuffer : NSObject <MTLBuffer> {
  @public
    char *_memory;
    NSUInteger _length;
    void *_own;
    void (^_deallocator)(void *, NSUInteger);
}
@end
@implementation MdevBuffer
- (void *)contents
{
    return _memory;
}
- (NSUInteger)length
{
    return _length;
}
- (void)dealloc
{
    if (_deallocator) {
        _deallocator(_memory, _length);
        Block_release(_deallocator);
    }
    allocated -= _length;
    free(_own);
    [super dealloc];
}
@end

/* ---- command buffers ---- */

typedef struct {
    mdev_dispatch dispatch;
    MdevPipeline *pipeline;
    id kept[MDEV_MAX_BUFFERS];
    void *bytes[MDEV_MAX_BUFFERS];
} command;

@class MdevQueue;
@interface MdevCommandBuffer : NSObject <MTLCommandBuffer> {
  @public
    MdevQueue *_queue;
    command **_commands;
    int _n, _n_handlers;
    BOOL _encoding;
    MTLCommandBufferStatus _status;
    NSError *_error;
    MTLCommandBufferHandler _handlers[8];
    double _started, _ended;
}
- (void)execute;
@end

@interface MdevQueue : NSObject <MTLCommandQueue> {
  @public
    MdevCommandBuffer *_pending[MAX_COMMAND_BUFFERS];
    int _n_pending, _n_unfinished; /* committed; all that have not run */
}
- (void)runUntil:(MdevCommandBuffer *)last;
@end

@interface MdevEncoder : NSObject <MTLComputeCommandEncoder> {
  @public
    MdevCommandBuffer *_commands;
    MdevPipeline *_pipeline;
    MdevBuffer *_buffer[MDEV_MAX_BUFFERS];
    NSUInteger _offset[MDEV_MAX_BUFFERS];
    char *_bytes[MDEV_MAX_BUFFERS];
    NSUInteger _n_bytes[MDEV_MAX_BUFFERS];
    NSUInteger _shared[MDEV_MAX_THREADGROUP];
    BOOL _ended;
}
@end

@implementation MdevEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipeline
{
    if (!pipeline)
        misuse("setComputePipelineState: nil");
    [pipeline retain];
    [_pipeline release];
    _pipeline = (MdevPipeline *)pipeline;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index
{
    if (index >= MDEV_MAX_BUFFERS)
        misuse("setBuffer: at index %lu", index);
    if (buffer && offset >= [buffer length])
        misuse("setBuffer: at index %lu, offset %lu in a buffer of %lu bytes", index, offset, [buffer length]);
    [buffer retain];
    [_buffer[index] release];
    free(_bytes[index]);
    _bytes[index] = NULL;
    _buffer[index] = (MdevBuffer *)buffer;
    _offset[index] = offset;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index
{
    if (index >= MDEV_MAX_BUFFERS || !length || length > MAX_BYTES)
        misuse("setBytes: of length %lu at index %lu; at most %d", length, index, MAX_BYTES);
    [_buffer[index] release];
    _buffer[index] = nil;
    free(_bytes[index]);
    _bytes[index] = memcpy(malloc(length), bytes, length);
    _n_bytes[index] = length;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index
{
    if (length % 16 || index >= MDEV_MAX_THREADGROUP)
        misuse("setThreadgroupMemoryLength: of length %lu at index %lu; a multiple of 16", length, index);
    _shared[index] = length;
}

/* What the kernel's parameters ask for is bound, and long enough. */
- (void)bind:(command *)c
{
    const mdev_kernel *k = c->dispatch.kernel;

    for (int i = 0; i < k->n_params; i++) {
        const mdev_param *p = &k->params[i];
        const int j = p->index;
        if (p->kind == MDEV_THREADGROUP && !_shared[j])
            misuse("%s: no length for threadgroup(%d), %s", k->name, j, p->name);
        if (p->kind != MDEV_BUFFER)
            continue;
        if (_buffer[j] && _offset[j] % (p->is_constant ? CONSTANT_ALIGN : p->align))
            misuse("%s: buffer(%d), %s: offset %lu, which is no multiple of %d", k->name, j, p->name, _offset[j],
                   p->is_constant ? CONSTANT_ALIGN : p->align);
        const size_t have = _buffer[j] ? _buffer[j]->_length - _offset[j] : _bytes[j] ? _n_bytes[j] : 0;
        if (!have)
            misuse("%s: nothing is bound to buffer(%d), %s", k->name, j, p->name);
        if (have < p->least)
            misuse("%s: buffer(%d), %s: %zu bytes are bound, %u needed", k->name, j, p->name, have, p->least);
        if (_buffer[j]) {
            c->kept[j] = [_buffer[j] retain];
            c->dispatch.buffer[j] = _buffer[j]->_memory + _offset[j];
        } else {
            c->bytes[j] = memcpy(malloc(_n_bytes[j]), _bytes[j], _n_bytes[j]);
            c->dispatch.buffer[j] = c->bytes[j];
            c->dispatch.is_bytes[j] = true;
        }
        c->dispatch.size[j] = have;
    }
}
- (void)dispatchThreadgroups:(MTLSize)g threadsPerThreadgroup:(MTLSize)t
{
    if (_ended || !_pipeline)
        misuse("dispatch %s", _ended ? "after endEncoding" : "without a pipeline");
    const mdev_kernel *k = _pipeline->_function->_kernel;
    size_t shared = 0;
    if (!g.width || !g.height || !g.depth)
        misuse("%s: an empty grid", k->name);
    const NSUInteger threads = t.width * t.height * t.depth;
    if (!threads || threads > _pipeline->_threads)
        misuse("%s: a threadgroup of %lu x %lu x %lu threads; at most %lu", k->name, t.width, t.height, t.depth,
               _pipeline->_threads);
    if (_pipeline->_whole && threads % 32)
        misuse("%s: a threadgroup of %lu threads; whole simdgroups were promised", k->name, threads);
    command *c = calloc(1, sizeof *c);
    c->dispatch.kernel = k;
    c->pipeline = [_pipeline retain];
    for (int i = 0; i < MDEV_MAX_THREADGROUP; i++)
        shared += c->dispatch.shared[i] = _shared[i];
    if (shared > MAX_SHARED)
        misuse("%s: %zu bytes of threadgroup memory; at most %d", k->name, shared, MAX_SHARED);
    [self bind:c];
    const NSUInteger grid[] = {g.width, g.height, g.depth}, block[] = {t.width, t.height, t.depth};
    for (int i = 0; i < 3; i++) {
        c->dispatch.grid[i] = (unsigned)grid[i];
        c->dispatch.block[i] = (unsigned)block[i];
    }
    _commands->_commands = realloc(_commands->_commands, sizeof(void *) * ((size_t)_commands->_n + 1));
    _commands->_commands[_commands->_n++] = c;
}
- (void)endEncoding
{
    if (_ended)
        misuse("a second endEncoding");
    _ended = YES;
    _commands->_encoding = NO;
}
- (void)dealloc
{
    if (!_ended)
        misuse("an encoder is freed before endEncoding");
    for (int i = 0; i < MDEV_MAX_BUFFERS; i++) {
        [_buffer[i] release];
        free(_bytes[i]);
    }
    [_pipeline release];
    [_commands release];
    [super dealloc];
}
@end

@implementation MdevCommandBuffer
- (id<MTLComputeCommandEncoder>)computeCommandEncoder
{
    if (_encoding || _status >= MTLCommandBufferStatusCommitted)
        misuse("an encoder for a command buffer that is %s", _encoding ? "being encoded" : "committed");
    if (refused())
        return nil;
    _encoding = YES;
    MdevEncoder *e = [[MdevEncoder alloc] init];
    e->_commands = [self retain];
    return [e autorelease];
}
- (void)commit
{
    if (_encoding)
        misuse("commit with an open encoder");
    if (_status >= MTLCommandBufferStatusCommitted)
        misuse("a second commit");
    _status = MTLCommandBufferStatusCommitted;
    _queue->_pending[_queue->_n_pending++] = [self retain];
}

/* Function constants are globals of the unit: those that were not set have odd values. */
static void set_constants(const MdevFunction *f)
{
    for (int j = 0; j < f->_unit->n_constants; j++) {
        const mdev_constant *c = &f->_unit->constants[j];
        if (f->_constants && f->_constants->_values[c->index].size)
            memcpy(c->address, f->_constants->_values[c->index].bytes, (size_t)c->size);
        else
            memset(c->address, 0xa5, (size_t)c->size);
    }
}

- (void)execute
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    char text[768];

    pthread_mutex_lock(&mutex);
    _started = seconds_now();
    _status = MTLCommandBufferStatusCompleted;
    for (int i = 0; i < _n && _status == MTLCommandBufferStatusCompleted; i++) {
        set_constants(_commands[i]->pipeline->_function);
        if (mdev_run(&_commands[i]->dispatch, text, sizeof text) != 0) {
            _status = MTLCommandBufferStatusError;
            _error = [make_error(text) retain];
        }
    }
    if (_status == MTLCommandBufferStatusCompleted && refused()) {
        _status = MTLCommandBufferStatusError;
        _error = [make_error("the software device was told to fail") retain];
    }
    _ended = seconds_now();
    _queue->_n_unfinished--;
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < _n_handlers; i++) {
        _handlers[i](self);
        Block_release(_handlers[i]);
    }
    _n_handlers = 0;
}
- (void)waitUntilCompleted
{
    if (_status < MTLCommandBufferStatusCommitted)
        misuse("waitUntilCompleted before commit waits for ever");
    if (_status == MTLCommandBufferStatusCommitted)
        [_queue runUntil:self];
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)block
{
    if (_n_handlers == 8 || _status >= MTLCommandBufferStatusCommitted)
        misuse("addCompletedHandler: %s", _n_handlers == 8 ? "too many" : "after commit");
    _handlers[_n_handlers++] = Block_copy(block);
}
- (MTLCommandBufferStatus)status
{
    return _status;
}
- (NSError *)error
{
    return _error;
}
- (CFTimeInterval)GPUStartTime
{
    return _started;
}
- (CFTimeInterval)GPUEndTime
{
    return _ended;
}
- (void)dealloc
{
    for (int i = 0; i < _n; i++) {
        for (int j = 0; j < MDEV_MAX_BUFFERS; j++) {
            [_commands[i]->kept[j] release];
            free(_commands[i]->bytes[j]);
        }
        [_commands[i]->pipeline release];
        free(_commands[i]);
    }
    free(_commands);
    for (int i = 0; i < _n_handlers; i++)
        Block_release(_handlers[i]);
    if (_status < MTLCommandBufferStatusCommitted)
        _queue->_n_unfinished--;
    [_error release];
    [_queue release];
    [super dealloc];
}
@end

@implementation MdevQueue
- (id<MTLCommandBuffer>)commandBuffer
{
    if (refused())
        return nil;
    if (_n_unfinished == MAX_COMMAND_BUFFERS)
        misuse("a queue has %d command buffers, and this thread would wait for one of them", MAX_COMMAND_BUFFERS);
    _n_unfinished++;
    MdevCommandBuffer *b = [[MdevCommandBuffer alloc] init];
    b->_queue = [self retain];
    return [b autorelease];
}
/* In the order of commits. */
- (void)runUntil:(MdevCommandBuffer *)last
{
    for (BOOL found = NO; !found && _n_pending;) {
        MdevCommandBuffer *b = _pending[0];
        memmove(_pending, _pending + 1, sizeof *_pending * (size_t)--_n_pending);
        found = b == last;
        [b execute];
        [b release];
    }
}
@end

/* ---- the device ---- */

@interface MdevDevice : NSObject <MTLDevice>
@end
@implementation MdevDevice
- (NSString *)name
{
    return @"software Metal device";
}
- (NSUInteger)maxThreadgroupMemoryLength
{
    return MAX_SHARED;
}
- (NSUInteger)maxBufferLength
{
    return number_of("MDEV_MAX_BUFFER", (NSUInteger)1 << 32);
}
- (uint64_t)recommendedMaxWorkingSetSize
{
    return number_of("MDEV_WORKING_SET", (NSUInteger)1 << 33);
}
- (NSUInteger)currentAllocatedSize
{
    return allocated;
}
- (BOOL)hasUnifiedMemory
{
    return YES;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family
{
    return family / 1000 == 1 && (NSUInteger)family % 1000 <= number_of("MDEV_FAMILY", 7);
}
- (id<MTLCommandQueue>)newCommandQueue
{
    return refused() ? nil : [[MdevQueue alloc] init];
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options
{
    void *memory;

    (void)options;
    if (!length || length > [self maxBufferLength] || refused() || posix_memalign(&memory, 256, length) != 0)
        return nil;
    memset(memory, 0xcd, length);
    MdevBuffer *b = [[MdevBuffer alloc] init];
    b->_memory = b->_own = memory;
    b->_length = length;
    allocated += length;
    return b;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)memory
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator
{
    (void)options;
    if ((uintptr_t)memory % PAGE || length % PAGE || !length)
        misuse("newBufferWithBytesNoCopy: %p, %lu bytes: not whole pages of %d", memory, length, PAGE);
    if (length > [self maxBufferLength] || refused())
        return nil;
    allocated += length;
    MdevBuffer *b = [[MdevBuffer alloc] init];
    b->_memory = memory;
    b->_length = length;
    b->_deallocator = deallocator ? Block_copy(deallocator) : NULL;
    return b;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error
{
    char *text = NULL;

    const mdev_unit *unit =
        refused() ? NULL : mdev_compile([source UTF8String], !options || options.fastMathEnabled, &text);
    if (!unit) {
        if (error)
            *error = make_error(text ? text : "the compiler is out of memory");
        free(text);
        return nil;
    }
    MdevLibrary *l = [[MdevLibrary alloc] init];
    l->_unit = unit;
    return l;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor *)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(id *)reflection
                                                               error:(NSError **)error
{
    const NSUInteger threads = descriptor.maxTotalThreadsPerThreadgroup;

    (void)options, (void)reflection;
    if (!descriptor.computeFunction || threads > MAX_THREADS || refused()) {
        if (error)
            *error = make_error(!descriptor.computeFunction ? "a pipeline needs a function, not nil"
                                : threads > MAX_THREADS     ? "a pipeline has at most 1024 threads"
                                                            : "there is no memory for a pipeline");
        return nil;
    }
    MdevPipeline *p = [[MdevPipeline alloc] init];
    p->_function = (MdevFunction *)[descriptor.computeFunction retain];
    p->_threads = number_of("MDEV_PIPELINE", MAX_THREADS);
    if (threads && threads < p->_threads)
        p->_threads = threads;
    p->_whole = descriptor.threadGroupSizeIsMultipleOfThreadExecutionWidth;
    return p;
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error
{
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor alloc] init];
    d.computeFunction = function;
    id<MTLComputePipelineState> p = [self newComputePipelineStateWithDescriptor:d
                                                                        options:0
                                                                     reflection:NULL
                                                                          error:error];
    [d release];
    return p;
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void)
{
    return [[MdevDevice alloc] init];
}

NSArray *MTLCopyAllDevices(void)
{
    NSArray *a = [[NSArray alloc] init];
    a->_objects = malloc(sizeof *a->_objects);
    a->_objects[0] = MTLCreateSystemDefaultDevice();
    a->_n = 1;
    return a;
}
