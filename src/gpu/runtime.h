/* What the GPU backend (gpu.c) asks of a GPU's own interface: one table of functions, which a backend's folder fills
 * (metal/runtime.m). Sentences are written to `error`, FIRN_GPU_ERROR_BYTES long, which stays empty where the context's
 * memory ran out and the context says so; handles are opaque. Nothing here knows graphs. */
#ifndef FIRN_GPU_RUNTIME_H
#define FIRN_GPU_RUNTIME_H

#include "core/context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIRN_GPU_MAX_BUFFERS = 12, FIRN_GPU_MAX_THREADS = 256, FIRN_GPU_ERROR_BYTES = 3000 };

typedef struct firn_gpu_runtime firn_gpu_runtime; /* a device with its queue, libraries and pipelines */

/* One dispatch of a kernel. */
typedef struct {
    int pipeline;
    const void *args; /* bound as bytes to buffer(0) */
    size_t n_args;
    void *buffers[FIRN_GPU_MAX_BUFFERS]; /* to buffer(1), buffer(2), ... */
    size_t offsets[FIRN_GPU_MAX_BUFFERS];
    int n_buffers;
    size_t shared; /* bytes of threadgroup(0); 0: it has none */
    uint32_t grid[3], threads;
} firn_gpu_work;

/* How the tiled products' kernels are built (kernels/tile.h): rows x columns of the result by so many threads, with
 * `shared` bytes of threadgroup memory. They run from `least` rows per weight on; below that, each row for itself. */
typedef struct {
    int rows, columns, threads;
    size_t shared;
    double least;
} firn_gpu_tile_shape;

typedef struct {
    firn_gpu_tile_shape tile;
    size_t page; /* whole pages of so many bytes are wrapped */
    bool
        has_watchdog; /* the system stops what runs for seconds: batches of work are kept short, and long work is cut */

    int (*n_devices)(void);
    /* NULL with a sentence. n_libraries texts of kernels, n_pipelines names of kernels to come. */
    firn_gpu_runtime *(*start)(firn_context *ctx, int number, int n_libraries, int n_pipelines, char *error);
    void (*stop)(firn_gpu_runtime *r);                              /* NULL is fine */
    void (*describe)(firn_gpu_runtime *r, char *text, size_t size); /* for people */
    uint64_t (*max_buffer)(firn_gpu_runtime *r);                    /* bytes of the largest buffer */
    uint64_t (*working_set)(firn_gpu_runtime *r);                   /* bytes that may be resident at once */
    uint64_t (*allocated)(firn_gpu_runtime *r);                     /* of these, taken: with what is wrapped */
    int (*units)(firn_gpu_runtime *r);                              /* multiprocessors; 0: not known */
    bool (*has_bf16)(firn_gpu_runtime *r);                          /* kernels of precision bf16 */

    /* Memory of the device; NULL when there is none left. */
    void *(*buffer_create)(firn_gpu_runtime *r, size_t size);
    /* Whole pages of the host, in place: NULL when the device will not have them. NULL itself where no device of the
     * backend reads the host's memory. */
    void *(*buffer_wrap)(firn_gpu_runtime *r, void *pages, size_t size);
    void (*buffer_release)(firn_gpu_runtime *r, void *buffer);
    /* Transfers on a queue (core/backend.h): in order with its other work, and enqueued; a device with one queue and
     * memory that the host sees may wait for the queue and do them at once. size is not 0. */
    bool (*upload)(firn_gpu_runtime *r, int queue, void *buffer, size_t at, const void *data, size_t size, char *error);
    bool (*download)(firn_gpu_runtime *r, int queue, void *buffer, size_t at, void *data, size_t size, char *error);
    bool (*copy)(firn_gpu_runtime *r, int queue, void *to, size_t at, void *from, size_t offset, size_t size,
                 char *error);
    bool (*clear)(firn_gpu_runtime *r, int queue, void *buffer, size_t at, size_t size, char *error);
    /* Points in queues, as in core/backend.h. All NULL: there is one queue, and waiting for a point is `wait`. */
    uint64_t (*event)(firn_gpu_runtime *r, int queue);
    bool (*after)(firn_gpu_runtime *r, int queue, int of, uint64_t number, char *error);
    bool (*finish)(firn_gpu_runtime *r, int queue, uint64_t number, char *error);
    /* Host memory from which transfers are fast; NULL: any. */
    void *(*staging_create)(firn_gpu_runtime *r, size_t size);
    void (*staging_destroy)(firn_gpu_runtime *r, void *memory);

    /* The pipeline number `pipeline`: kernel `name` of library number `library` (a firn_gpu_library), bf16: as it is
     * with FIRN_PRECISION_BF16 defined; that can be run with FIRN_GPU_MAX_THREADS. Compiled when it is first asked for.
     * False with the compiler's words. */
    bool (*pipeline)(firn_gpu_runtime *r, int library, bool bf16, int pipeline, const char *name, char *error);

    /* Encodes into the open batch of work of the compute queue, opening one when there is none. Work runs in order. */
    bool (*encode)(firn_gpu_runtime *r, const firn_gpu_work *work, char *error);
    void (*commit)(firn_gpu_runtime *r);
    uint64_t (*n_committed)(const firn_gpu_runtime *r); /* batches so far */
    /* Commits, waits for all queues; the first batch that ended in error gives the sentence. *seconds: how long the
     * device was busy since the last wait (NULL: not wanted). */
    bool (*wait)(firn_gpu_runtime *r, double *seconds, char *error);
} firn_gpu_interface;

#endif
