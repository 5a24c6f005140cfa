/* The Metal backend: gpu/ on Metal (runtime.m), with the kernels' own text, which the system compiles at run time. */
#include "metal/metal.h"

#include "gpu/gpu.h"

#define LIBRARY(file) extern const char firn_metal_source_##file[];
#define KERNEL(file, name)
#define TYPED(file, name)
#include "gpu/kernels.def"
#undef LIBRARY

const char *firn_metal_library_text(firn_gpu_library library)
{
    static const char *const texts[] = {
#define LIBRARY(file) firn_metal_source_##file,
#include "gpu/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
    };

    return texts[library];
}

static const firn_backend metal_backend = FIRN_GPU_BACKEND("Metal");

static int count(void)
{
    return firn_metal_interface.n_devices();
}

static firn_status open_device(firn_context *ctx, int number, firn_device **device)
{
    return firn_gpu_open(ctx, &metal_backend, &firn_metal_interface, "MTL", number, device);
}

const firn_backend_row firn_backend_metal = {"Metal", "MTL", count, open_device};
