/* The gradient of a step is the sum over its passes, added in one order for any number of ranks:
 *
 *     T(0, i) = gradient of pass i, nothing for i >= n        T(k + 1, i) = T(k, i) + T(k, i + N / 2^(k + 1))
 *     N = n rounded up to 2^m;  the sum is T(m, 0)
 *
 * so that the same run gives the same bits on 1, 2, 3 or 8 ranks. Each rank takes passes that lie side by side in this
 * tree (for powers of two every R-th pass), adds its own first and keeps at most about log2 of their number at a time.
 * What is left of the tree is added between ranks, in segments: each is summed up on a rank of its own and sent to all
 * from there.
 *
 * Called by train/step.c; calls core/group.h. */
#ifndef FIRN_TRAIN_REDUCE_H
#define FIRN_TRAIN_REDUCE_H

#include "core/group.h"
#include "model/parameters.h"

typedef struct firn_reduction firn_reduction;

/* whole: what a pass adds to the gradients is its whole gradient in one addition. Where it comes in several (the output
 * layer's, a chunk of rows at a time), each pass starts from zero, which takes more memory. */
firn_status firn_reduction_create(firn_parameters *store, firn_group *group, int64_t n_passes, bool whole,
                                  firn_reduction **reduction);
void firn_reduction_destroy(firn_reduction *reduction); /* NULL is fine */
/* The passes of this rank in the order in which they are run; *n may be 0. */
const int64_t *firn_reduction_passes(const firn_reduction *reduction, int64_t *n);
/* Of any rank. */
const int64_t *firn_reduction_passes_of(const firn_reduction *reduction, int rank, int64_t *n);
/* Before a step: the gradients are zeros. */
firn_status firn_reduction_begin(firn_reduction *reduction);
/* After each pass, when its gradient was added to those of the store. */
firn_status firn_reduction_passed(firn_reduction *reduction);
/* After all: the gradients of the store are the step's, on every rank. */
firn_status firn_reduction_finish(firn_reduction *reduction);
/* Host memory that it takes; host_memory: the host reads the device's. */
uint64_t firn_reduction_bytes(int64_t n_values, const firn_group *group, int64_t n_passes, bool whole,
                              bool host_memory);

#endif
