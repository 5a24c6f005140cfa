/* The Metal backend: what its files share. */
#ifndef FIRN_METAL_METAL_H
#define FIRN_METAL_METAL_H

#include "gpu/plan.h"
#include "gpu/runtime.h"

/* Metal's functions (runtime.m). */
extern const firn_gpu_interface firn_metal_interface;
/* The text of a library's kernels, with its headers in it (cmake/embed_metal.py). */
const char *firn_metal_library_text(firn_gpu_library library);

#endif
