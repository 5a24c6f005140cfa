/* Fast siblings of GATED_DELTA, SSM_SCAN and their gradients, run by the whole team: one row per vector width
 * (kernel_set.h). */
#ifndef FIRN_CPU_SCAN_H
#define FIRN_CPU_SCAN_H

#include "core/pool.h"
#include "op/op.h"

typedef struct firn_scan_kernels {
    /* Bytes of the workspace for a team of n_threads, a multiple of 64. */
    size_t (*work)(const firn_tensor *node, int n_threads);
    void (*forward)(const firn_call *call, firn_team team);
    size_t (*back_work)(const firn_tensor *node, int n_threads);
    void (*back)(const firn_call *call, firn_team team);
} firn_scan_kernels;

#if defined(__x86_64__)
extern const firn_scan_kernels firn_avx2_scan, firn_avx512_scan;
#endif

#endif
