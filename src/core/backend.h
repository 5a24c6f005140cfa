/* What a backend implements, and what plans and execs ask of it. A backend knows nodes and buffers, not models.
 *
 * plan(node) is the one place that says yes or no: it prepares the launch that run will use, so that claim and kernel
 * cannot drift apart. run only enqueues; wait reports. */
#ifndef FIRN_CORE_BACKEND_H
#define FIRN_CORE_BACKEND_H

#include "core/graph.h"
#include "op/op.h"

struct firn_buffer {
    firn_device *device;
    size_t size;
    void *memory; /* the backend's: host address on the CPU, a handle elsewhere */
    bool owned;
};

/* A prepared launch of one node; `kernel` is the backend's own description, static or at `memory`. */
typedef struct {
    const firn_tensor *node;
    const void *kernel;
    void *memory; /* of the context's, or NULL; freed with the plan */
    size_t work;  /* scratch bytes for the whole device */
} firn_launch;

/* Where a tensor's first element lies. */
typedef struct {
    firn_buffer *buffer;
    size_t offset;
} firn_place;

/* A run as the backend sees it: places are resolved when the launch is enqueued. */
typedef struct {
    const firn_launch *launches;
    int n;
    const firn_exec *exec;
    int flags;
} firn_submission;

typedef struct {
    const char *name; /* "CPU" */
    firn_status (*buffer_create)(firn_device *, size_t size, firn_buffer *);
    firn_status (*buffer_wrap)(firn_device *, const void *memory, size_t size, firn_buffer *);
    void (*buffer_destroy)(firn_buffer *);
    firn_status (*buffer_write)(firn_buffer *, size_t offset, const void *data, size_t size);
    firn_status (*buffer_read)(firn_buffer *, size_t offset, void *data, size_t size);
    firn_status (*buffer_clear)(firn_buffer *, size_t offset, size_t size);
    /* FIRN_ERR_UNSUPPORTED with the reason in the context when the node cannot run here. */
    firn_status (*plan)(firn_device *, const firn_tensor *node, firn_launch *);
    firn_status (*run)(firn_device *, const firn_submission *);
    /* Fills fault when a kernel found one (kind FIRN_FAULT_NONE otherwise). Other failures: a status. */
    firn_status (*wait)(firn_device *, firn_fault *fault);
    void (*close)(firn_device *);
} firn_backend;

/* A backend's device starts with this. */
struct firn_device {
    firn_context *ctx;
    const firn_backend *backend;
    char name[16], about[160];
    bool profile;
    firn_profile_row *rows; /* [number of operations] */
};

/* The place of a tensor in an exec; buffer NULL when its slot is not bound. */
firn_place firn_exec_place(const firn_exec *exec, const firn_tensor *tensor);
firn_place firn_exec_work(const firn_exec *exec);
/* Adds one run of a node to the device's profile. */
void firn_profile_add(firn_device *device, const firn_tensor *node, double seconds);

/* Devices by backend: opens "CPU" and its like; declines other names with FIRN_ERR_UNSUPPORTED. */
firn_status firn_cpu_open(firn_context *ctx, firn_device **device);
#ifdef FIRN_METAL /* macOS, and the tests' software Metal device */
int firn_metal_count(void);
firn_status firn_metal_open(firn_context *ctx, int number, firn_device **device); /* "MTL<number>" */
#endif

#endif
