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

/* Fills in dst, src and work of launch i. Called by every thread. */
typedef void (*firn_cpu_addresses)(const void *user, int launch, firn_call *call);
/* Runs launches that this device's plan prepared, on memory that `addresses` finds: for a device of other memory whose
 * kernels are the CPU's (tests/remote-device). n is at least 1. */
firn_status firn_cpu_run(firn_device *device, const firn_launch *launches, int n, int flags,
                         firn_cpu_addresses addresses, const void *user);

/* NULL-op-terminated; the first that takes a node runs it. */
extern const firn_cpu_kernel firn_cpu_kernels[];

#endif
