/* The contract of MUL_MAT_ID's table: where an expert may begin, in bytes from the weight's data. One place for the
 * reference, the CPU's products, firn/kernels.h and GPUs; in the common subset of C, CUDA and MSL. */
#ifndef FIRN_FORMAT_GATHER_H
#define FIRN_FORMAT_GATHER_H

#include "format/common.h"

#if !defined(__METAL_VERSION__) && !defined(__cplusplus)
#include <stdbool.h>
#endif

/* Whether an expert of `expert` bytes that begins at `at` lies within `all` bytes, at an address that is a multiple of
 * `align` (a power of 2) where the data's is. `at` may be any number. */
FIRN_INLINE bool firn_expert_lies_within(int64_t at, int64_t expert, int64_t all, int64_t align)
{
    return at >= 0 && expert <= all && at <= all - expert && (at & (align - 1)) == 0;
}

#endif
