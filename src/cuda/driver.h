/* The CUDA driver's calls that the backend uses, found at run time in libcuda.so.1: firn links to nothing of NVIDIA's,
 * and says in words when there is no driver. Types come from the toolkit's cuda.h, which holds no code. */
#ifndef FIRN_CUDA_DRIVER_H
#define FIRN_CUDA_DRIVER_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

/* CALL(our name, the library's symbol): the symbol is the version whose arguments cuda.h declares. */
#define FIRN_CUDA_CALLS(CALL)                                                                                          \
    CALL(Init, cuInit)                                                                                                 \
    CALL(DriverGetVersion, cuDriverGetVersion)                                                                         \
    CALL(GetErrorString, cuGetErrorString)                                                                             \
    CALL(DeviceGetCount, cuDeviceGetCount)                                                                             \
    CALL(DeviceGet, cuDeviceGet)                                                                                       \
    CALL(DeviceGetName, cuDeviceGetName)                                                                               \
    CALL(DeviceGetAttribute, cuDeviceGetAttribute)                                                                     \
    CALL(DeviceTotalMem, cuDeviceTotalMem_v2)                                                                          \
    CALL(DevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                                                             \
    CALL(DevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2)                                                        \
    CALL(CtxPushCurrent, cuCtxPushCurrent_v2)                                                                          \
    CALL(CtxPopCurrent, cuCtxPopCurrent_v2)                                                                            \
    CALL(MemGetInfo, cuMemGetInfo_v2)                                                                                  \
    CALL(MemAlloc, cuMemAlloc_v2)                                                                                      \
    CALL(MemFree, cuMemFree_v2)                                                                                        \
    CALL(MemHostAlloc, cuMemHostAlloc)                                                                                 \
    CALL(MemFreeHost, cuMemFreeHost)                                                                                   \
    CALL(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                                                                        \
    CALL(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)                                                                        \
    CALL(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                                                                        \
    CALL(MemsetD8Async, cuMemsetD8Async)                                                                               \
    CALL(StreamCreate, cuStreamCreate)                                                                                 \
    CALL(StreamDestroy, cuStreamDestroy_v2)                                                                            \
    CALL(StreamSynchronize, cuStreamSynchronize)                                                                       \
    CALL(StreamWaitEvent, cuStreamWaitEvent)                                                                           \
    CALL(EventCreate, cuEventCreate)                                                                                   \
    CALL(EventDestroy, cuEventDestroy_v2)                                                                              \
    CALL(EventRecord, cuEventRecord)                                                                                   \
    CALL(EventSynchronize, cuEventSynchronize)                                                                         \
    CALL(EventElapsedTime, cuEventElapsedTime)                                                                         \
    CALL(ModuleLoadData, cuModuleLoadData)                                                                             \
    CALL(ModuleUnload, cuModuleUnload)                                                                                 \
    CALL(ModuleGetFunction, cuModuleGetFunction)                                                                       \
    CALL(LaunchKernel, cuLaunchKernel)

typedef struct {
    void *library;
#define FIRN_CUDA_MEMBER(name, symbol) __typeof__(&symbol) name;
    FIRN_CUDA_CALLS(FIRN_CUDA_MEMBER)
#undef FIRN_CUDA_MEMBER
} firn_cuda_driver;

/* Loads the driver and starts it. False with a sentence in error [size]; nothing is left open then. */
bool firn_cuda_driver_open(firn_cuda_driver *d, char *error, size_t size);
void firn_cuda_driver_close(firn_cuda_driver *d);
/* The driver's words for a result. */
const char *firn_cuda_words(const firn_cuda_driver *d, CUresult result);

#endif
