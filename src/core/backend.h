/* What a backend implements, and what core asks of it. A backend knows nodes, buffers and queues, not models.
 *
 * plan(node) is the one place that says yes or no: it prepares the launch that run will use, so that claim and kernel
 * cannot drift apart. The launches of a plan's part, prepared once, are its program: `run` binds and enqueues them.
 *
 * Nothing that takes a queue waits. Work of one queue runs in the order in which it was enqueued; the two queues of a
 * device run beside each other, and only events order them. Everything that a run needs of an exec is looked up before
 * `run` returns: the exec may be bound anew at once. Host memory of a transfer stays the caller's, unchanged, until an
 * event behind the transfer is finished.
 *
 * A device that lacks a capability leaves its function NULL: buffer_wrap (it cannot use the host's memory), staging_*.
 */
#ifndef FIRN_CORE_BACKEND_H
#define FIRN_CORE_BACKEND_H

#include "core/graph.h"
#include "core/op.h"

struct firn_buffer {
    firn_device *device;
    size_t size;
    void *memory; /* the backend's: host address on the CPU, a handle elsewhere */
    size_t skew;  /* of wrapped memory: its address past a multiple of 64 */
    bool owned;
};

/* The queues of a device. */
typedef enum { FIRN_QUEUE_COMPUTE, FIRN_QUEUE_TRANSFER, FIRN_N_QUEUES } firn_queue;

/* A point in a queue: all that was enqueued there before. Number 0 is reached from the start. A value, nothing to free.
 */
typedef struct {
    firn_queue queue;
    uint64_t number;
} firn_event;

/* A prepared launch of one node; `kernel` is the backend's own description, static or at `memory`. */
typedef struct {
    const firn_tensor *node;
    uint32_t plan; /* number of the plan, for faults */
    const void *kernel;
    void *memory; /* of the context's, or NULL; freed with the plan */
    size_t work;  /* scratch bytes for the whole device */
} firn_launch;

/* Where a tensor's first element lies. */
typedef struct {
    firn_buffer *buffer;
    size_t offset;
} firn_place;

/* A run as the backend sees it. */
typedef struct {
    const firn_launch *launches;
    int n;
    const firn_exec *exec;
    int flags;
} firn_submission;

typedef struct {
    const char *name;  /* "CPU" */
    bool host_buffers; /* a buffer's memory is an address of the host's */
    firn_status (*buffer_create)(firn_device *, size_t size, firn_buffer *);
    /* Host memory in place. NULL, or FIRN_ERR_UNSUPPORTED for this memory: callers copy instead. */
    firn_status (*buffer_wrap)(firn_device *, const void *memory, size_t size, firn_buffer *);
    /* Queued work that uses it is done first. */
    void (*buffer_destroy)(firn_buffer *);
    /* Host memory from which transfers are fast. NULL: any memory is as good. */
    firn_status (*staging_create)(firn_device *, size_t size, void **memory);
    void (*staging_destroy)(firn_device *, void *memory);

    /* ---- on a queue; ranges are checked by the caller, size is not 0 ---- */
    firn_status (*upload)(firn_queue, firn_buffer *, size_t offset, const void *data, size_t size);
    firn_status (*download)(firn_queue, firn_buffer *, size_t offset, void *data, size_t size);
    /* Ranges of one buffer do not overlap. */
    firn_status (*copy)(firn_queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset, size_t size);
    firn_status (*clear)(firn_queue, firn_buffer *, size_t offset, size_t size); /* with zero bytes */
    firn_event (*event)(firn_device *, firn_queue);                              /* where the queue ends now */
    firn_status (*after)(firn_device *, firn_queue, firn_event); /* what comes next on the queue waits for the event */
    /* The host waits for the event. What failed on the way (not faults) comes out of here once. */
    firn_status (*finish)(firn_device *, firn_event);

    /* ---- programs ---- */
    /* FIRN_ERR_UNSUPPORTED with the reason in the context when the node cannot run here. */
    firn_status (*plan)(firn_device *, const firn_tensor *node, firn_launch *);
    /* plan may be called again when a node's shape has changed: on the launch that it made, whose memory it uses again
     * and puts another in place of where that is too small. */
    bool replans;
    firn_status (*run)(firn_device *, firn_queue, const firn_submission *);
    /* Reads the status block and clears it; both queues are finished. Kind FIRN_FAULT_NONE: nothing was found. */
    firn_status (*status)(firn_device *, firn_fault *);
    /* Fills what firn/graph.h says of an open device, past name, about and backend; all 0 before. NULL: nothing more.
     */
    void (*info)(firn_device *, firn_device_info *info);
    void (*close)(firn_device *);
} firn_backend;

/* A backend's device starts with this. */
struct firn_device {
    firn_context *ctx;
    const firn_backend *backend;
    char name[16], about[160];
    bool profile;
    firn_profile_row *rows; /* [number of operations] */
    firn_plan *plans;       /* those that are there, the newest first: a fault names one by number */
    uint32_t n_plans;       /* made so far */
    uint32_t n_compiled;    /* kernels, so far, where they are compiled for plans */
    size_t holders;         /* plans and buffers that are there */
    bool closed;            /* by its owner: the last holder lets it go */
    firn_status late;       /* what firn_device_settle met, with its sentence */
    char why_late[400];
};

/* ---- transfers and events; buffers and ranges are checked here ---- */

firn_status firn_queue_upload(firn_queue queue, firn_buffer *buffer, size_t offset, const void *data, size_t size);
firn_status firn_queue_download(firn_queue queue, firn_buffer *buffer, size_t offset, void *data, size_t size);
/* Between buffers of one device, or within one: rows may move over each other towards the front. */
firn_status firn_queue_copy(firn_queue queue, firn_buffer *to, size_t at, firn_buffer *from, size_t offset,
                            size_t size);
firn_status firn_queue_clear(firn_queue queue, firn_buffer *buffer, size_t offset, size_t size); /* with zero bytes */
firn_event firn_queue_event(firn_device *device, firn_queue queue);
firn_status firn_queue_after(firn_device *device, firn_queue queue, firn_event event);
firn_status firn_event_finish(firn_device *device, firn_event event);
/* Memory for transfers; NULL is fine for destroy. */
firn_status firn_staging_create(firn_device *device, size_t size, void **memory);
void firn_staging_destroy(firn_device *device, void *memory);
/* The host's memory in place where the device can, else a buffer of that size with a copy of it; *wrapped says which.
 * The copy is there when this returns. */
firn_status firn_buffer_of(firn_device *device, const void *memory, size_t size, firn_buffer **buffer, bool *wrapped);
/* firn_exec_run on another queue. */
firn_status firn_exec_run_on(firn_exec *exec, firn_queue queue, int part, int flags);

/* A device is used with the context that it was opened on. */
firn_status firn_expect_device(firn_context *ctx, const firn_device *device);

/* The place of a tensor in an exec; buffer NULL when its slot is not bound. */
FIRN_INNER firn_place firn_exec_place(const firn_exec *exec, const firn_tensor *tensor);
FIRN_INNER firn_place firn_exec_work(const firn_exec *exec);
/* A tensor of the plan's graph, for faults; NULL when there is no such number or plan. */
FIRN_INNER const firn_tensor *firn_plan_tensor(const firn_device *device, uint32_t plan, int32_t index);
/* Plans and buffers hold their device, so that it may be closed before them. */
void firn_device_hold(firn_device *device);
void firn_device_release(firn_device *device);
firn_graph *firn_plan_graph(const firn_plan *plan);
/* For core/shrink.c: whether nodes may be planned again, after their shapes were changed; that; and waiting before. */
bool firn_plan_replans(const firn_plan *plan);
firn_status firn_plan_replan(firn_plan *plan);
void firn_plan_settle(const firn_plan *plan);
/* Waits for everything that is queued. A failure is kept for the next firn_device_wait. */
void firn_device_settle(firn_device *device);
/* Adds one run of a node to the device's profile. */
FIRN_INNER void firn_profile_add(firn_device *device, const firn_tensor *node, double seconds);

/* One row a backend: in devices.def for those that are built in, in a firn_plugin for one in a shared object. Device
 * number i of the backend is called <prefix><i>. */
typedef struct {
    const char *name, *prefix; /* "Metal", "MTL" */
    int (*count)(void);        /* of devices that are there; asks without opening */
    firn_status (*open)(firn_context *ctx, int number, firn_device **device);
} firn_backend_row;

/* Those that are built in, NULL-terminated; the CPU's is the first (src/tables/devices.c). */
extern const firn_backend_row *const firn_built_in_backends[];

/* What libfirn-<name>.so exports as `firn_backend_plugin`. Inner structures are as they are in one version of the
 * library alone: the version must be the same, and so must the layout. Such an object calls the functions that are
 * marked FIRN_INNER (core/context.h) in the library that loads it. */
typedef struct {
    const char *version; /* FIRN_VERSION */
    uint64_t layout;     /* FIRN_PLUGIN_LAYOUT */
    firn_backend_row row;
} firn_plugin;

/* Sizes of the structures that both sides know. */
#define FIRN_PLUGIN_LAYOUT                                                                                             \
    ((((uint64_t)sizeof(firn_backend) * 1009 + sizeof(firn_device)) * 1009 + sizeof(firn_tensor)) * 1009 +             \
     sizeof(firn_op) + sizeof(firn_device_info) + sizeof(firn_launch) + sizeof(firn_fault) + sizeof(firn_buffer))
#define FIRN_PLUGIN(NAME, PREFIX, COUNT, OPEN)                                                                         \
    FIRN_API extern const firn_plugin firn_backend_plugin;                                                             \
    const firn_plugin firn_backend_plugin = {FIRN_VERSION, FIRN_PLUGIN_LAYOUT, {NAME, PREFIX, COUNT, OPEN}}

/* Backends in shared objects (plugin.c): found and loaded once a process, by the first call. */
typedef struct {
    char name[32];               /* "cuda", of libfirn-cuda.so */
    const firn_backend_row *row; /* NULL: it cannot be used */
    char error[400];             /* why, then */
} firn_plugin_entry;
const firn_plugin_entry *firn_plugins(int *n);
/* The first shared object of that name in the same folders, loaded with its symbols seen by what it loads itself; NULL
 * with the reason. */
void *firn_plugin_object(const char *file, char *why, size_t size);

#endif
