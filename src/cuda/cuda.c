/* The CUDA backend: gpu/ on NVIDIA's driver (runtime.c), with the kernels' text translated and compiled when firn was
 * built (cmake/cuda.cmake). Built as a shared object, libfirn-cuda.so, which a program loads when it lists its devices;
 * it links to nothing of NVIDIA's. */
#include "cuda/cuda.h"

#include "gpu/gpu.h"

static const firn_backend cuda_backend = FIRN_GPU_BACKEND("CUDA");

static int count(void)
{
    return firn_cuda_interface.n_devices();
}

static firn_status open_device(firn_context *ctx, int number, firn_device **device)
{
    return firn_gpu_open(ctx, &cuda_backend, &firn_cuda_interface, "CUDA", number, device);
}

FIRN_PLUGIN("CUDA", "CUDA", count, open_device);
