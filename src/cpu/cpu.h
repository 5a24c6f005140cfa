/* The CPU backend's kernels: fast siblings of operations' scalar references, where they pay. */
#ifndef FIRN_CPU_CPU_H
#define FIRN_CPU_CPU_H

#include "core/backend.h"
#include "core/pool.h"

/* A kernel that the whole team runs together. */
typedef struct {
    const firn_op *op;
    /* True when it takes this node; otherwise the reference runs. */
    bool (*takes)(const firn_tensor *node);
    size_t (*work)(const firn_tensor *node, int n_threads);
    void (*run)(const firn_call *call, firn_team team);
} firn_cpu_kernel;

/* NULL-op-terminated; the first that takes a node runs it. */
extern const firn_cpu_kernel firn_cpu_kernels[];

#endif
