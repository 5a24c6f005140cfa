/* Runs one dispatch of a kernel; see executor.cpp. */
#ifndef MDEV_EXECUTOR_H
#define MDEV_EXECUTOR_H

#include "unit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const mdev_kernel *kernel;
    void *buffer[MDEV_MAX_BUFFERS];
    size_t size[MDEV_MAX_BUFFERS];       /* bytes from there to the buffer's end */
    bool is_bytes[MDEV_MAX_BUFFERS];     /* set by setBytes */
    size_t shared[MDEV_MAX_THREADGROUP]; /* bytes of threadgroup memory by index */
    unsigned grid[3], block[3];
} mdev_dispatch;

/* 0, or -1 with what went wrong: a barrier that not all reach, lanes at different operations... */
int mdev_run(const mdev_dispatch *dispatch, char *error, size_t size);

/* In which order the lanes of a simdgroup, the simdgroups of a threadgroup and the threadgroups run. Also from the
 * environment: MDEV_ORDER=forward|reverse|random, MDEV_SEED=n, MDEV_THREADS=n. */
typedef enum { MDEV_FORWARD, MDEV_REVERSE, MDEV_RANDOM } mdev_order;
void mdev_set_order(mdev_order order, unsigned seed);
void mdev_set_threads(int n);

/* MDEV_ARITHMETIC=gpu: kernels compute as Apple's GPUs may without fast math. Products and sums contract, denormals are
 * zeros, functions (log, cos...) are 4 units of the last place off. */
bool mdev_like_a_gpu(void);

/* What one dispatch did, in the build of the device that counts (counters/); elsewhere nothing is reported. Bytes are
 * those of all loads and stores that its threads made. */
typedef struct {
    uint64_t read, written;
    uint64_t once; /* read, each byte counted once per threadgroup: what a cache of the threadgroup's leaves */
} mdev_traffic;

typedef struct {
    mdev_traffic buffer[MDEV_MAX_BUFFERS]; /* device memory; what setBytes bound is constant */
    mdev_traffic threadgroup;
    uint64_t constant;         /* bytes read: arguments and tables */
    uint64_t products, others; /* floating-point operations: of the products' loops; all others */
    uint64_t barriers;         /* of threadgroups, each counted once for the threads that meet at it */
    size_t memory;             /* bytes of threadgroup memory */
} mdev_counts;

void mdev_set_report(void (*report)(const mdev_dispatch *, const mdev_counts *));

/* The n-th thing that the device is asked for from now on is refused: a buffer, a queue, a library, a function, a
 * pipeline, a command buffer, an encoder; or a command buffer ends in error. 0: nothing is. */
void mdev_refuse(long n);
bool mdev_has_refused(void);
long mdev_live_objects(void); /* of every class */

#ifdef __cplusplus
}
#endif
#endif
