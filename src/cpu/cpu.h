/* The CPU backend's kernels: fast siblings of operations' scalar references, where they pay. */
#ifndef FIRN_CPU_CPU_H
#define FIRN_CPU_CPU_H

#include "core/backend.h"
#include "core/pool.h"
#include "cpu/kernel_set.h"

/* A kernel that the whole team runs together, with the device's kernel set. */
typedef struct {
    const firn_op *op;
    /* True when it takes this node; otherwise the reference runs. */
    bool (*takes)(const firn_tensor *node, const firn_kernel_set *set);
    size_t (*work)(const firn_tensor *node, const firn_kernel_set *set, int n_threads);
    void (*run)(const firn_call *call, const firn_kernel_set *set, firn_team team);
} firn_cpu_kernel;

/* The kernel set of a precision, or of FIRN_CPU's name; refused in words where this machine has none. */
firn_status firn_cpu_choose_set(firn_context *ctx, firn_precision wanted, const firn_kernel_set **set);

/* The kernel set of a CPU device, and another in its place for what is planned from now on (tests). */
const firn_kernel_set *firn_cpu_set(const firn_device *device);
void firn_cpu_use_set(firn_device *device, const firn_kernel_set *set);

/* NULL-op-terminated; the first that takes a node runs it. */
extern const firn_cpu_kernel firn_cpu_kernels[];

#endif
