/* The CUDA backend: what its files share. */
#ifndef FIRN_CUDA_CUDA_H
#define FIRN_CUDA_CUDA_H

#include "gpu/plan.h"
#include "gpu/runtime.h"

/* The driver's functions (runtime.c). */
extern const firn_gpu_interface firn_cuda_interface;

/* Machine code of a library's kernels for every architecture that was built (a fat binary, cmake/cuda.cmake); bf16: of
 * precision bf16, NULL where the library has none of its own. */
const void *firn_cuda_image(firn_gpu_library library, bool bf16);
/* For people: "80 86 89 90a". */
extern const char firn_cuda_architectures[];

#endif
