/* Runs one dispatch of a kernel; see executor.cpp. */
#ifndef MDEV_EXECUTOR_H
#define MDEV_EXECUTOR_H

#include "unit.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const mdev_kernel *kernel;
    void *buffer[MDEV_MAX_BUFFERS];
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

#ifdef __cplusplus
}
#endif
#endif
