/* The C face of Metal: all that the backend (metal.c) asks of Objective-C. Sentences are written to `error`, which
 * stays empty where the context's memory ran out and the context says so; handles are opaque. Nothing here knows
 * graphs. Called by metal.c and its test only; implemented by runtime.m. */
#ifndef FIRN_METAL_RUNTIME_H
#define FIRN_METAL_RUNTIME_H

#include "core/context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIRN_METAL_MAX_BUFFERS = 12, FIRN_METAL_MAX_THREADS = 256, FIRN_METAL_ERROR_BYTES = 3000 };

typedef struct firn_metal_runtime firn_metal_runtime; /* a device with its queue, libraries and pipelines */

int firn_metal_n_devices(void);
/* NULL with a sentence. n_libraries texts of kernels, n_pipelines names of kernels to come. */
firn_metal_runtime *firn_metal_start(firn_context *ctx, int number, int n_libraries, int n_pipelines, char *error);
void firn_metal_stop(firn_metal_runtime *m);
/* For people. */
void firn_metal_describe(firn_metal_runtime *m, char *text, size_t size);
uint64_t firn_metal_max_buffer(firn_metal_runtime *m);
uint64_t firn_metal_working_set(firn_metal_runtime *m); /* bytes that may be resident at once */
uint64_t firn_metal_allocated(firn_metal_runtime *m);   /* with what is wrapped */

/* Shared memory; NULL when there is none. */
void *firn_metal_buffer_create(firn_metal_runtime *m, size_t size);
/* Whole pages of the host, in place; NULL when the device will not have them. */
void *firn_metal_buffer_wrap(firn_metal_runtime *m, void *pages, size_t size);
void firn_metal_buffer_release(void *buffer);
void *firn_metal_buffer_contents(void *buffer);

/* The pipeline number `pipeline`, kernel `name` of library number `library` with that text behind `head`, that can be
 * run with FIRN_METAL_MAX_THREADS: compiled when it is first asked for. False with the compiler's words. */
bool firn_metal_pipeline(firn_metal_runtime *m, int library, const char *head, const char *text, int pipeline,
                         const char *name, char *error);

typedef struct {
    int pipeline;
    const void *args; /* bound as bytes to buffer(0) */
    size_t n_args;
    void *buffers[FIRN_METAL_MAX_BUFFERS]; /* to buffer(1), buffer(2), ... */
    size_t offsets[FIRN_METAL_MAX_BUFFERS];
    int n_buffers;
    size_t shared; /* bytes of threadgroup(0); 0: it has none */
    uint32_t grid[3], threads;
} firn_metal_work;

/* Encodes into the open command buffer, opening one when there is none. Work runs in order. */
bool firn_metal_encode(firn_metal_runtime *m, const firn_metal_work *work, char *error);
void firn_metal_commit(firn_metal_runtime *m);
uint64_t firn_metal_n_committed(const firn_metal_runtime *m); /* command buffers so far */
/* Commits, waits for all; the first command buffer that ended in error gives the sentence. *seconds: how long the
 * device was busy since the last wait (NULL: not wanted). */
bool firn_metal_wait(firn_metal_runtime *m, double *seconds, char *error);

#endif
