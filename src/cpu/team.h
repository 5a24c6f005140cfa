/* Fast siblings of ATTENTION, GATED_DELTA, SSM_SCAN and their gradients, run by the whole team: one row of each per
 * vector width (kernel_set.h). */
#ifndef FIRN_CPU_TEAM_H
#define FIRN_CPU_TEAM_H

#include "core/pool.h"
#include "op/op.h"

typedef struct firn_team_kernels {
    /* Bytes of the workspace for a team of n_threads, a multiple of 64. */
    size_t (*work)(const firn_tensor *node, int n_threads);
    void (*forward)(const firn_call *call, firn_team team);
    size_t (*back_work)(const firn_tensor *node, int n_threads);
    void (*back)(const firn_call *call, firn_team team);
} firn_team_kernels;

#if defined(__x86_64__)
extern const firn_team_kernels firn_avx2_attention, firn_avx512_attention, firn_avx2_scan, firn_avx512_scan;
#endif

#endif
