/* A plan for the largest size that runs on fewer rows: nothing is allocated, laid out or compiled for another size.
 *
 * Every number of a graph (elements, strides, offsets, parameters) is an affine function of the sizes that it was built
 * for. It is learned by building the same graph again, one smaller in one size at a time, and confirmed by one more. A
 * tensor then has the shape that it would have in a graph of its own, at the place in the arena that the largest has.
 *
 * Called by model/session.c. */
#ifndef FIRN_CORE_SHRINK_H
#define FIRN_CORE_SHRINK_H

#include "core/backend.h"

enum { FIRN_SHRINK_SIZES = 2 };

typedef struct firn_shrink firn_shrink;

/* smaller[i]: the graph of `plan` with size i less by 1, NULL where there is no such size. also: with all of them less
 * by 2. *shrink NULL, and FIRN_OK: the numbers are no affine functions, or the device plans no node again. The plan
 * must outlive it; the other graphs may go. */
firn_status firn_shrink_create(firn_plan *plan, firn_graph *const smaller[FIRN_SHRINK_SIZES], firn_graph *also,
                               firn_shrink **shrink);
void firn_shrink_destroy(firn_shrink *shrink);
/* The plan's sizes are those it was made with, less `less`; waits for work that is queued. FIRN_ERR_MEMORY: a kernel
 * wants a larger workspace at this size, and the plan is as it was made. */
firn_status firn_shrink_to(firn_shrink *shrink, const int64_t less[FIRN_SHRINK_SIZES]);

#endif
