/* The software Metal device against planted faults: each is in a process of its own, and must be found; and what is
 * right must come out right in every order of threads. Which faults can be found depends on the sanitizer that the
 * device was built with; the others are counted as skipped.
 *
 * The last line is `N passed, N failed, N skipped`. */
#import <Metal/Metal.h>

#include "executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 64 };

static id<MTLDevice> device;
static id<MTLCommandQueue> queue;
static id<MTLLibrary> library;
static int passed, failed, skipped;

static char *text_of(const char *path)
{
    static char text[1 << 16];
    FILE *f = fopen(path, "rb");

    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f)
        fclose(f);
    return text;
}

static void open_fast(bool fast)
{
    NSError *error = nil;
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];

    device = MTLCreateSystemDefaultDevice();
    queue = [device newCommandQueue];
    if (!fast)
        options.fastMathEnabled = NO;
    library = [device newLibraryWithSource:[NSString stringWithUTF8String:text_of(FAULTS)]
                                   options:options
                                     error:&error];
    [options release];
    if (!library) {
        fprintf(stderr, "faults.metal: %s\n", [[error localizedDescription] UTF8String]);
        exit(9);
    }
}

static void open_device(void)
{
    open_fast(false);
}

static id<MTLComputePipelineState> pipeline(const char *name, MTLFunctionConstantValues *values)
{
    NSError *error = nil;
    id<MTLFunction> f = [library newFunctionWithName:[NSString stringWithUTF8String:name]
                                      constantValues:values
                                               error:&error];

    if (!f) {
        fprintf(stderr, "%s\n", [[error localizedDescription] UTF8String]);
        exit(8);
    }
    id<MTLComputePipelineState> p = [device newComputePipelineStateWithFunction:f error:&error];
    [f release];
    return p;
}

/* Runs a kernel of faults.metal; results in out. Ends the process with status 7 and the device's words on an error. */
static void launch(const char *name, unsigned groups, MTLFunctionConstantValues *values, float out[THREADS])
{
    id<MTLBuffer> b = [device newBufferWithLength:THREADS * sizeof(float) options:MTLResourceStorageModeShared];
    id<MTLCommandBuffer> commands = [queue commandBuffer];
    id<MTLComputeCommandEncoder> e = [commands computeCommandEncoder];

    memset([b contents], 0, THREADS * sizeof(float));
    id<MTLComputePipelineState> p = pipeline(name, values);
    [e setComputePipelineState:p];
    [p release];
    [e setBuffer:b offset:0 atIndex:0];
    [e setThreadgroupMemoryLength:THREADS * sizeof(float) atIndex:0];
    [e dispatchThreadgroups:MTLSizeMake(groups, 1, 1) threadsPerThreadgroup:MTLSizeMake(THREADS, 1, 1)];
    [e endEncoding];
    [commands commit];
    [commands waitUntilCompleted];
    if ([commands status] != MTLCommandBufferStatusCompleted) {
        fprintf(stderr, "%s\n", [[[commands error] localizedDescription] UTF8String]);
        exit(7);
    }
    memcpy(out, [b contents], THREADS * sizeof(float));
    [b release];
}

/* ---- a child process for each ---- */

typedef void (*body)(const char *argument);

/* Runs f in a child; its standard error goes to text. Returns the wait status. */
static int in_child(body f, const char *argument, char *text, size_t size)
{
    int ends[2];
    size_t n = 0;
    ssize_t got;

    if (pipe(ends) != 0)
        return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 2);
        close(ends[0]);
        @autoreleasepool {
            f(argument);
        }
        fflush(stderr);
        _exit(0);
    }
    close(ends[1]);
    while (n < size - 1 && (got = read(ends[0], text + n, size - 1 - n)) > 0)
        n += (size_t)got;
    text[n] = 0;
    char rest[4096];
    while (read(ends[0], rest, sizeof rest) > 0)
        ;
    close(ends[0]);
    int status = -1;
    waitpid(pid, &status, 0);
    return status;
}

static void say(bool ok, const char *name, const char *text)
{
    *(ok ? &passed : &failed) += 1;
    printf("%s: %s%s%.300s\n", ok ? "ok" : "FAILED", name, ok ? "" : ": ", ok ? "" : text);
}

/* The child must not end well, and must say `words`. */
static void expect_found(const char *name, body f, const char *argument, const char *words)
{
    static char text[1 << 16];
    const int status = in_child(f, argument, text, sizeof text);

    say(status != 0 && strstr(text, words), name, status == 0 ? "nothing was found" : text);
}

static void expect_right(const char *name, body f, const char *argument)
{
    static char text[1 << 16];
    const int status = in_child(f, argument, text, sizeof text);

    say(status == 0, name, text);
}

/* ---- kernels ---- */

static void fault(const char *name)
{
    float out[THREADS];

    open_device();
    mdev_set_threads(1);
    launch(name, 1, nil, out);
}

static void fault_of_many(const char *name)
{
    float out[THREADS];

    open_device();
    mdev_set_threads(2);
    launch(name, 64, nil, out);
}

static void want(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "%s is wrong\n", what);
    exit(6);
}

static void in_every_order(void (*check)(void))
{
    open_device();
    for (int order = MDEV_FORWARD; order <= MDEV_RANDOM; order++) {
        mdev_set_order((mdev_order)order, 7);
        check();
    }
}

static void check_kernels(void)
{
    static const char *const all_ones[] = {"simd_functions", "swizzles", "simdgroup_barrier_right"};
    float out[THREADS];

    launch("reversed", 1, nil, out);
    for (int i = 0; i < THREADS; i++)
        want(out[i] == (float)(63 - i), "reversed");
    for (int k = 0; k < 3; k++) {
        launch(all_ones[k], 1, nil, out);
        for (int i = 0; i < THREADS; i++)
            want(out[i] == 1, all_ones[k]);
    }
    launch("matrices", 1, nil, out);
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) {
            float sum = 0;
            for (int l = 0; l < 8; l++)
                sum += (float)(i + 8 * l) * (float)(j - l);
            want(out[8 * i + j] == sum, "a matrix product");
        }
}

static void right_kernels(const char *unused)
{
    (void)unused;
    in_every_order(check_kernels);
}

static void set_constants(const char *unused)
{
    float out[THREADS];
    const int value = 42;

    (void)unused;
    open_device();
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    [values setConstantValue:&value type:MTLDataTypeInt atIndex:3];
    launch("constant_value", 1, values, out);
    want(out[0] == 42, "a function constant");
    launch("constant_value", 1, nil, out);
    want(out[0] != 42, "a function constant that is not set");
    [values release];
}

static void sees_nan(const char *fast)
{
    float out[THREADS];

    open_fast(fast != NULL);
    launch("sees_nan", 1, nil, out);
    want(out[0] == 1, "what is no number");
}

static void arithmetic(const char *kind)
{
    float out[THREADS];

    if (kind)
        setenv("MDEV_ARITHMETIC", kind, 1);
    open_device();
    launch("arithmetic", 1, nil, out);
    want(out[0] == (kind ? 7 : 0), "arithmetic");
}

static void wrong_constant(const char *unused)
{
    float out[THREADS];
    const short value = 42;

    (void)unused;
    open_device();
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    [values setConstantValue:&value type:MTLDataTypeShort atIndex:3];
    launch("constant_value", 1, values, out);
}

static void no_barrier_once(void)
{
    float out[THREADS];
    bool right = true;

    launch("no_barrier", 1, nil, out);
    for (int i = 0; i < THREADS; i++)
        right &= out[i] == (float)(63 - i);
    if (!right) {
        fprintf(stderr, "the order shows it\n");
        exit(5);
    }
}

static void no_barrier_in_some_order(const char *unused)
{
    (void)unused;
    in_every_order(no_barrier_once);
}

/* ---- the API ---- */

typedef enum {
    LONG_BYTES,
    SECOND_COMMIT,
    OPEN_ENCODER,
    LOST_ENCODER,
    UNBOUND,
    SHORT_BUFFER,
    ODD_SHARED,
    MUCH_SHARED,
    MANY_THREADS,
    EMPTY_GRID,
    NO_PIPELINE,
    ODD_PAGES,
    EARLY_WAIT,
    LATE_HANDLER,
    OVER_RELEASE,
    ODD_CONSTANT,
    ODD_OFFSET,
    FEW_THREADS,
    HALF_SIMDGROUP,
    MANY_COMMANDS,
} mistake;

/* Of one mistake's kernel, by a descriptor where it matters. */
static id<MTLComputePipelineState> pipeline_of(mistake m)
{
    if (m == SHORT_BUFFER || m == ODD_CONSTANT)
        return pipeline("takes_a_struct", nil);
    MTLComputePipelineDescriptor *d = [[MTLComputePipelineDescriptor alloc] init];
    d.computeFunction = [library newFunctionWithName:@"reversed"];
    d.maxTotalThreadsPerThreadgroup = m == FEW_THREADS ? 32 : 0;
    d.threadGroupSizeIsMultipleOfThreadExecutionWidth = YES;
    return [device newComputePipelineStateWithDescriptor:d options:0 reflection:NULL error:NULL];
}

static void misuse(const char *argument)
{
    const mistake m = (mistake)atoi(argument);
    static char bytes[5000], pages[40000];

    open_device();
    id<MTLBuffer> b = [device newBufferWithLength:m == SHORT_BUFFER ? 2 : 512 options:MTLResourceStorageModeShared];
    id<MTLCommandBuffer> commands = [queue commandBuffer];
    for (int i = 0; m == MANY_COMMANDS && i < 64; i++)
        [queue commandBuffer];
    if (m == EARLY_WAIT)
        [commands waitUntilCompleted];
    if (m == ODD_PAGES)
        [device newBufferWithBytesNoCopy:pages + 1 length:16384 options:0 deallocator:nil];
    @autoreleasepool {
        id<MTLComputeCommandEncoder> e = [commands computeCommandEncoder];
        if (m != NO_PIPELINE)
            [e setComputePipelineState:pipeline_of(m)];
        if (m != UNBOUND)
            [e setBuffer:b offset:m == ODD_CONSTANT ? 16 : m == ODD_OFFSET ? 2 : 0 atIndex:0];
        if (m == LONG_BYTES)
            [e setBytes:bytes length:sizeof bytes atIndex:1];
        [e setThreadgroupMemoryLength:m == ODD_SHARED ? 250 : m == MUCH_SHARED ? 32784 : 256 atIndex:0];
        [e dispatchThreadgroups:MTLSizeMake(m == EMPTY_GRID ? 0 : 1, 1, 1)
            threadsPerThreadgroup:MTLSizeMake(m == MANY_THREADS     ? 2048
                                              : m == HALF_SIMDGROUP ? 48
                                                                    : 64,
                                              1, 1)];
        if (m == LOST_ENCODER) {
            [e release];
            [e release];
        }
        if (m != OPEN_ENCODER)
            [e endEncoding];
        [commands commit];
        if (m == SECOND_COMMIT)
            [commands commit];
        if (m == LATE_HANDLER)
            [commands addCompletedHandler:^(id<MTLCommandBuffer> x) {
              (void)x;
            }];
        [commands waitUntilCompleted];
        if (m == OVER_RELEASE) {
            [b release];
            [b release];
            [b release];
        }
    }
}

static const struct {
    mistake mistake;
    const char *name, *words;
} mistakes[] = {
    {LONG_BYTES, "setBytes of 5000 bytes", "at most 4096"},
    {SECOND_COMMIT, "a second commit", "second commit"},
    {OPEN_ENCODER, "commit with an open encoder", "open encoder"},
    {LOST_ENCODER, "an encoder freed before its end", "freed before endEncoding"},
    {UNBOUND, "an argument that is not bound", "nothing is bound to buffer(0), p"},
    {SHORT_BUFFER, "an argument that is too short", "2 bytes are bound, 4 needed"},
    {ODD_SHARED, "threadgroup memory of 250 bytes", "a multiple of 16"},
    {MUCH_SHARED, "threadgroup memory past 32 KB", "at most 32768"},
    {MANY_THREADS, "2048 threads", "at most 1024"},
    {EMPTY_GRID, "an empty grid", "empty grid"},
    {NO_PIPELINE, "a dispatch without a pipeline", "without a pipeline"},
    {ODD_PAGES, "no-copy memory that is no page", "not whole pages"},
    {EARLY_WAIT, "waiting before the commit", "before commit"},
    {LATE_HANDLER, "a handler after the commit", "after commit"},
    {OVER_RELEASE, "one release too many", ""},
    {ODD_CONSTANT, "constant memory at an offset of 16", "offset 16, which is no multiple of 256"},
    {ODD_OFFSET, "floats at an offset of 2", "offset 2, which is no multiple of 4"},
    {FEW_THREADS, "more threads than the pipeline has", "64 x 1 x 1 threads; at most 32"},
    {HALF_SIMDGROUP, "half a simdgroup after whole ones were promised", "a threadgroup of 48 threads"},
    {MANY_COMMANDS, "65 command buffers", "a queue has 64 command buffers"},
};

/* Work starts when it is waited for: what is read before is what was there. */
static void reads_too_early(const char *unused)
{
    __block int handled = 0;

    (void)unused;
    open_device();
    id<MTLBuffer> b = [device newBufferWithLength:256 options:MTLResourceStorageModeShared];
    float *values = [b contents];
    values[0] = -1;
    id<MTLCommandBuffer> commands = [queue commandBuffer];
    id<MTLComputeCommandEncoder> e = [commands computeCommandEncoder];
    [e setComputePipelineState:pipeline("reversed", nil)];
    [e setBuffer:b offset:0 atIndex:0];
    [e setThreadgroupMemoryLength:256 atIndex:0];
    [e dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(64, 1, 1)];
    [e endEncoding];
    [commands addCompletedHandler:^(id<MTLCommandBuffer> x) {
      handled += [x status] == MTLCommandBufferStatusCompleted;
    }];
    [commands commit];
    want(values[0] == -1 && handled == 0, "what is there before the wait");
    [commands waitUntilCompleted];
    want(values[0] == 63 && handled == 1, "what is there after the wait");
    [b release];
}

static void no_such_function(const char *unused)
{
    float out[THREADS];

    (void)unused;
    open_device();
    launch("nobody", 1, nil, out);
}

static void compile(const char *source)
{
    NSError *error = nil;

    device = MTLCreateSystemDefaultDevice();
    if ([device newLibraryWithSource:[NSString stringWithUTF8String:source] options:nil error:&error])
        return;
    fprintf(stderr, "%s\n", [[error localizedDescription] UTF8String]);
    exit(4);
}

static void without_bfloat(const char *unused)
{
    float out[THREADS];

    (void)unused;
    setenv("MDEV_DEFINES", "-DMSL_NO_BFLOAT", 1);
    open_device();
    launch("reversed", 1, nil, out);
    launch("with_bfloat", 1, nil, out);
}

static void with_bfloat(const char *unused)
{
    float out[THREADS];

    (void)unused;
    open_device();
    launch("with_bfloat", 1, nil, out);
    want(out[0] == 1, "rounding to bfloat, to even");
}

/* ---- all ---- */

static bool runs_with(const char *sanitizer)
{
    const char *variant = getenv("MDEV_SANITIZER"); /* with_sanitizer sets it */
    return variant && strcmp(variant, sanitizer) == 0;
}

static const struct {
    const char *kernel, *words;
    body run;
} for_address[] = {{"past_device_memory", "heap-buffer-overflow", fault},
                   {"past_shared_memory", "heap-buffer-overflow", fault},
                   {"past_an_array", "out of bounds", fault},
                   {"misaligned", "misaligned address", fault}},
  for_thread[] = {{"barrier_of_nothing", "data race", fault},
                  {"no_simdgroup_barrier", "data race", fault},
                  {"simdgroup_barrier_of_nothing", "data race", fault},
                  {"no_barrier", "data race", fault},
                  {"race_between_threadgroups", "data race", fault_of_many}};

static void sanitizers(void)
{
    const bool has_address = runs_with("address"), has_thread = runs_with("thread");
    const int n_address = sizeof for_address / sizeof *for_address, n_thread = sizeof for_thread / sizeof *for_thread;

    for (int i = 0; has_address && i < n_address; i++)
        expect_found(for_address[i].kernel, for_address[i].run, for_address[i].kernel, for_address[i].words);
    for (int i = 0; has_thread && i < n_thread; i++)
        expect_found(for_thread[i].kernel, for_thread[i].run, for_thread[i].kernel, for_thread[i].words);
    skipped += (has_address ? 0 : n_address) + (has_thread ? 0 : n_thread);
}

int main(void)
{
    static const char *const scheduled[][2] = {
        {"barrier_in_a_branch", "barrier is not reached"},
        {"two_barriers", "different barriers"},
        {"early_return", "has returned"},
        {"sum_in_a_branch", "divergent simdgroup"},
        {"dead_lane", "not active"},
        {"partial_matrix", "partial simdgroup"},
        {"too_much_shared", "past 32768"},
    };
    static const char *const parameters[][3] = {
        {"an index that is signed", "int i [[thread_index_in_simdgroup]]", "a parameter of type int where"},
        {"an index that is a vector", "uint3 i [[thread_index_in_threadgroup]]", "a parameter of type uint3 where"},
        {"positions of one and of three components",
         "uint i [[thread_position_in_grid]], uint3 g [[threadgroup_position_in_grid]]",
         "different numbers of components"},
        {"a position and a size of different types",
         "uint3 i [[thread_position_in_threadgroup]], ushort3 n [[threads_per_threadgroup]]",
         "differ (uint3, ushort3)"},
        {"an index shorter than the position",
         "uint3 i [[thread_position_in_threadgroup]], ushort n [[thread_index_in_threadgroup]]",
         "index_in_threadgroup is uint"},
    };
    static const char *const bodies[][3] = {
        {"a sum of longs over a simdgroup", "p[t] = simd_sum((long)t)", "no numbers of 64 bits"},
        {"the lesser of longs", "p[t] = min((long)t, 3l)", "ambiguous"},
    };
    char number[8];

    setvbuf(stdout, NULL, _IOLBF, 0);
    expect_right("right kernels in every order", right_kernels, NULL);
    expect_right("function constants", set_constants, NULL);
    expect_right("results come after the wait", reads_too_early, NULL);
    expect_right("bfloat", with_bfloat, NULL);
    expect_right("arithmetic", arithmetic, NULL);
    expect_right("arithmetic of a GPU", arithmetic, "gpu");
    expect_right("NaN", sees_nan, NULL);
    expect_found("NaN with fast math", sees_nan, "fast", "what is no number is wrong");
    expect_found("without bfloat", without_bfloat, NULL, "no function is called with_bfloat");
    expect_found("a function constant of another size", wrong_constant, NULL, "has 4 bytes, and was given 2");
    expect_found("an unknown function", no_such_function, NULL, "no function is called nobody");
    expect_found("a source with an error", compile,
                 "#include <metal_stdlib>\nusing namespace metal;\nkernel void k(device float *p) { p[0] = q; }\n",
                 ":3:");
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        static char source[300];
        snprintf(source, sizeof source, "#include <metal_stdlib>\nkernel void k(device float *p, %s)\n{\n}\n",
                 parameters[i][1]);
        expect_found(parameters[i][0], compile, source, parameters[i][2]);
    }
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        static char source[300];
        snprintf(source, sizeof source,
                 "#include <metal_stdlib>\nusing namespace metal;\n"
                 "kernel void k(device float *p, ushort t [[thread_index_in_threadgroup]])\n{\n%s;\n}\n",
                 bodies[i][1]);
        expect_found(bodies[i][0], compile, source, bodies[i][2]);
    }
    for (size_t i = 0; i < sizeof scheduled / sizeof *scheduled; i++)
        expect_found(scheduled[i][0], fault, scheduled[i][0], scheduled[i][1]);
    if (!runs_with("thread")) /* which finds it before the result is looked at */
        expect_found("no_barrier, by order", no_barrier_in_some_order, NULL, "the order shows it");
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        snprintf(number, sizeof number, "%d", (int)mistakes[i].mistake);
        expect_found(mistakes[i].name, misuse, number, mistakes[i].words);
    }
    sanitizers();
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}
