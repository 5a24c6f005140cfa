/* The device of every GPU backend: buffers, plans, runs and faults, on a table of the GPU's own functions (runtime.h).
 * Called by the backends' folders: metal/metal.c. */
#ifndef FIRN_GPU_GPU_H
#define FIRN_GPU_GPU_H

#include "core/backend.h"
#include "gpu/runtime.h"

firn_status firn_gpu_buffer_create(firn_device *device, size_t size, firn_buffer *b);
firn_status firn_gpu_buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer *b);
void firn_gpu_buffer_destroy(firn_buffer *b);
firn_status firn_gpu_upload(firn_queue queue, firn_buffer *b, size_t offset, const void *data, size_t size);
firn_status firn_gpu_download(firn_queue queue, firn_buffer *b, size_t offset, void *data, size_t size);
firn_status firn_gpu_copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size);
firn_status firn_gpu_clear(firn_queue queue, firn_buffer *b, size_t offset, size_t size);
firn_event firn_gpu_event(firn_device *device, firn_queue queue);
firn_status firn_gpu_after(firn_device *device, firn_queue queue, firn_event event);
firn_status firn_gpu_finish(firn_device *device, firn_event event);
firn_status firn_gpu_staging_create(firn_device *device, size_t size, void **memory);
void firn_gpu_staging_destroy(firn_device *device, void *memory);
firn_status firn_gpu_plan_launch(firn_device *device, const firn_tensor *node, firn_launch *launch);
firn_status firn_gpu_run(firn_device *device, firn_queue queue, const firn_submission *sub);
firn_status firn_gpu_status(firn_device *device, firn_fault *fault);
void firn_gpu_info(firn_device *device, firn_device_info *info);
void firn_gpu_close(firn_device *device);

#define FIRN_GPU_BACKEND(NAME)                                                                                         \
    {                                                                                                                  \
        .name = NAME, .buffer_create = firn_gpu_buffer_create, .buffer_wrap = firn_gpu_buffer_wrap,                    \
        .buffer_destroy = firn_gpu_buffer_destroy, .staging_create = firn_gpu_staging_create,                          \
        .staging_destroy = firn_gpu_staging_destroy, .upload = firn_gpu_upload, .download = firn_gpu_download,         \
        .copy = firn_gpu_copy, .clear = firn_gpu_clear, .event = firn_gpu_event, .after = firn_gpu_after,              \
        .finish = firn_gpu_finish, .plan = firn_gpu_plan_launch, .replans = true, .run = firn_gpu_run,                 \
        .status = firn_gpu_status, .info = firn_gpu_info, .close = firn_gpu_close,                                     \
    }

/* Device <prefix><number>. */
firn_status firn_gpu_open(firn_context *ctx, const firn_backend *backend, const firn_gpu_interface *interface,
                          const char *prefix, int number, firn_device **device);

/* Operations that a batch of work may have where there is a watchdog: a tenth of a second on a small GPU. Tests make it
 * less. */
extern double firn_gpu_max_flops;
/* Batches that the device has been given so far; for tests. */
uint64_t firn_gpu_batches(const firn_device *device);

#endif
