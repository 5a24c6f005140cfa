/* See driver.h. */
#include "cuda/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { NEEDED = 12000 }; /* CUDA 12.0: what the kernels' images are made for */

/* The name behind a macro such as cuMemAlloc, which cuda.h defines as cuMemAlloc_v2. */
#define TEXT(symbol)  TEXT_(symbol)
#define TEXT_(symbol) #symbol

static bool find(firn_cuda_driver *d, char *error, size_t size)
{
#define FIND(name, symbol)                                                                                             \
    *(void **)&d->name = dlsym(d->library, TEXT(symbol));                                                              \
    if (!d->name) {                                                                                                    \
        snprintf(error, size, "NVIDIA's driver is too old: its library has no %s", TEXT(symbol));                      \
        return false;                                                                                                  \
    }
    FIRN_CUDA_CALLS(FIND)
#undef FIND
    return true;
}

static bool start(firn_cuda_driver *d, char *error, size_t size)
{
    int version = 0;
    const CUresult r = d->Init(0);

    if (r != CUDA_SUCCESS) {
        snprintf(error, size, "NVIDIA's driver does not start: %s", firn_cuda_words(d, r));
        return false;
    }
    d->DriverGetVersion(&version);
    if (version < NEEDED) {
        snprintf(error, size, "NVIDIA's driver speaks CUDA %d.%d; %d.%d is needed", version / 1000, version % 1000 / 10,
                 NEEDED / 1000, NEEDED % 1000 / 10);
        return false;
    }
    return true;
}

bool firn_cuda_driver_open(firn_cuda_driver *d, char *error, size_t size)
{
    memset(d, 0, sizeof *d);
    d->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        snprintf(error, size, "there is no NVIDIA driver: %s", dlerror());
        return false;
    }
    if (find(d, error, size) && start(d, error, size))
        return true;
    firn_cuda_driver_close(d);
    return false;
}

void firn_cuda_driver_close(firn_cuda_driver *d)
{
    if (d->library)
        dlclose(d->library);
    memset(d, 0, sizeof *d);
}

const char *firn_cuda_words(const firn_cuda_driver *d, CUresult result)
{
    const char *words = NULL;

    if (d->GetErrorString(result, &words) != CUDA_SUCCESS || !words)
        return "an error that the driver has no words for";
    return words;
}
