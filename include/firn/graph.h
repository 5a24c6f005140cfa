/* Graphs: built once, planned once, run many times.
 *
 *     graph   tensors in build order; shapes are checked as nodes are added
 *     plan    a graph on a device: dead nodes dropped, memory laid out by liveness, launches prepared. Its sizes are
 *             known before anything is allocated. Immutable.
 *     exec    a plan with memory: an arena, a workspace, and the bindings of its slots. Cheap; many may share one plan.
 *
 * Tensors follow ggml: up to 4 dimensions, ne innermost first, byte strides nb, views. Tensors whose contents come from
 * outside and change from run to run (weights, ids, positions) are slots; nodes that the caller wants to keep are
 * outputs. Both are bound to buffers in an exec; no plan bakes an address in.
 *
 * Builders are sticky: NULL in gives NULL out, the first error is kept, and firn_graph_status reports it once. */
#ifndef FIRN_GRAPH_H
#define FIRN_GRAPH_H

#include "firn/firn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { FIRN_MAX_SRC = 8, FIRN_MAX_PARAMS = 16, FIRN_MAX_NAME = 80 };

typedef struct firn_graph firn_graph;
typedef struct firn_plan firn_plan;
typedef struct firn_exec firn_exec;
typedef struct firn_device firn_device;
typedef struct firn_buffer firn_buffer;
typedef struct firn_tensor firn_tensor;
struct firn_op;

/* What an operation is told besides its sources; each operation's file says which words it uses. */
typedef union {
    int32_t i[FIRN_MAX_PARAMS];
    float f[FIRN_MAX_PARAMS];
} firn_params;

/* Read-only outside the library. */
struct firn_tensor {
    firn_type type;
    int64_t ne[FIRN_MAX_DIMS]; /* elements, innermost first; never 0 dimensions, unused ones are 1 */
    int64_t nb[FIRN_MAX_DIMS]; /* bytes from one element (packed types: block) to the next along each dimension */
    const struct firn_op *op;  /* NULL: a slot */
    firn_tensor *src[FIRN_MAX_SRC];
    firn_params params;
    firn_tensor
        *root;      /* whose storage this tensor lies in: itself, or another's (views, results written into a slot) */
    int64_t offset; /* bytes into that storage */
    int index;      /* place in the graph */
    int part;       /* see firn_graph_cut */
    bool output;
    char name[FIRN_MAX_NAME];
    firn_tensor *grad; /* the library's, while firn_graph_grad runs */
    uint32_t mark;
};

/* ---- lifetimes ----
 * Graphs, devices, plans, execs and buffers may be destroyed in any order: an exec holds its plan, a plan its graph and
 * its device, a buffer its device, and what was destroyed early goes with its last holder. A handle that was destroyed
 * is not to be used again. Two things are the caller's: the context is destroyed last of all, and a buffer outlives
 * what is enqueued with it (firn_device_wait). */

/* ---- graphs ---- */

FIRN_API firn_status firn_graph_create(firn_context *ctx, firn_graph **graph);
FIRN_API void firn_graph_destroy(firn_graph *graph);
/* FIRN_OK, or the first failure; its sentence is put into the context again. */
FIRN_API firn_status firn_graph_status(firn_graph *graph);
FIRN_API int firn_graph_n_tensors(const firn_graph *graph);
FIRN_API firn_tensor *firn_graph_tensor(const firn_graph *graph, int index);

/* A contiguous tensor whose bytes are bound before a run. `name` is printf-like. */
FIRN_API firn_tensor *firn_slot(firn_graph *g, firn_type type, int n_dims, const int64_t *ne, const char *name, ...)
    FIRN_PRINTF(5, 6);
/* Names a node, for errors and profiles. Returns t. */
FIRN_API firn_tensor *firn_named(firn_tensor *t, const char *name, ...) FIRN_PRINTF(2, 3);
/* The node's result is kept in memory that the caller binds. Not for views or slots. Returns t. */
FIRN_API firn_tensor *firn_output(firn_graph *g, firn_tensor *t);
/* Nodes added from here on belong to the next part; parts are run one by one (forward, backward) over one arena. */
FIRN_API void firn_graph_cut(firn_graph *g);

/* Appends the gradient of y with respect to each of wanted[0..n): grads[i] has the shape of wanted[i], or is NULL when
 * y does not depend on it through anything with a slope. dy is the gradient of y, of y's shape (a slot, usually); NULL
 * when y has one element, and stands for 1. An operation without a gradient on the way to a wanted tensor is an error
 * that names both. Integer tensors have no gradient. */
FIRN_API firn_status firn_graph_grad(firn_graph *g, firn_tensor *y, firn_tensor *dy, firn_tensor *const *wanted, int n,
                                     firn_tensor **grads);
/* The same for several results at once, y[0..n_y): their gradients meet where the results' sources do. */
FIRN_API firn_status firn_graph_grad_all(firn_graph *g, firn_tensor *const *y, firn_tensor *const *dy, int n_y,
                                         firn_tensor *const *wanted, int n, firn_tensor **grads);

FIRN_API int64_t firn_n_elements(const firn_tensor *t);
FIRN_API int64_t firn_n_rows(const firn_tensor *t); /* ne[1] * ne[2] * ne[3] */
/* From the first byte to past the last. */
FIRN_API size_t firn_n_bytes(const firn_tensor *t);
FIRN_API bool firn_is_contiguous(const firn_tensor *t);
FIRN_API bool firn_same_shape(const firn_tensor *a, const firn_tensor *b);

/* ---- devices and buffers ---- */

/* What a device is. Numbers that are not known are 0. */
typedef struct {
    size_t size;                        /* sizeof(firn_device_info), set before the call */
    char name[32];                      /* "MTL0": what firn_device_open takes */
    char about[160];                    /* for people: see firn_device_about */
    char backend[32];                   /* "Metal" */
    uint64_t memory_total, memory_free; /* bytes of the memory that it computes in */
    bool host_memory;                   /* it reads the host's memory in place: firn_buffer_wrap may succeed */
    unsigned precisions;                /* bit p: it has kernels of firn_precision p */
    int units;                          /* what computes side by side: processors of the context, multiprocessors */
    char error[512];                    /* why it cannot be opened, or a backend not loaded; "": it can */
    char kernels[64];                   /* its set of kernels where it has several: other ones round otherwise */
} firn_device_info;

/* Devices of all backends: built in, and in shared objects libfirn-<name>.so in the folders of the environment's
 * FIRN_BACKENDS (colons between them) or beside the library. One that cannot be loaded counts as a device, so that it
 * can be told. */
FIRN_API int firn_device_count(void);
/* Number `index` of them, 0 to firn_device_count() - 1; 0 is the CPU. Opens it to see that it can be, and closes it:
 * what went wrong is in info->error, not in the status. */
FIRN_API firn_status firn_device_describe(firn_context *ctx, int index, firn_device_info *info);
/* Of an open device. */
FIRN_API firn_status firn_device_get_info(firn_device *device, firn_device_info *info);

/* "CPU" (or "CPU0"), "MTL0", "CUDA0". An unknown name is refused with the list of those that are there. A device
 * belongs to its context. */
FIRN_API firn_status firn_device_open(firn_context *ctx, const char *name, firn_device **device);
FIRN_API void firn_device_close(firn_device *device);
FIRN_API const char *firn_device_name(const firn_device *device);
/* For people: "AMD EPYC ..., 2 threads, kernels avx2". */
FIRN_API const char *firn_device_about(const firn_device *device);

/* Memory of a device, aligned to 64 bytes, contents undefined. */
FIRN_API firn_status firn_buffer_create(firn_device *device, size_t size, firn_buffer **buffer);
/* Host memory that the caller keeps (a mapped file: then read-only), used in place: what one side writes, the other
 * reads after a wait. A device that cannot refuses. */
FIRN_API firn_status firn_buffer_wrap(firn_device *device, const void *memory, size_t size, firn_buffer **buffer);
FIRN_API void firn_buffer_destroy(firn_buffer *buffer); /* NULL is fine */
FIRN_API size_t firn_buffer_size(const firn_buffer *buffer);
/* Ordered after everything enqueued before; returns when the bytes have been copied. */
FIRN_API firn_status firn_buffer_write(firn_buffer *buffer, size_t offset, const void *data, size_t size);
FIRN_API firn_status firn_buffer_read(firn_buffer *buffer, size_t offset, void *data, size_t size);
FIRN_API firn_status firn_buffer_clear(firn_buffer *buffer, size_t offset, size_t size); /* to zero bytes */

/* ---- plans ---- */

/* The graph must be of the device's context, and is as it was when the plan was made. A node that the device declines
 * is an error that names node and reason. */
FIRN_API firn_status firn_plan_create(firn_device *device, firn_graph *graph, firn_plan **plan);
FIRN_API void firn_plan_destroy(firn_plan *plan);
FIRN_API size_t firn_plan_arena_bytes(const firn_plan *plan); /* intermediate tensors; kept from part to part */
FIRN_API size_t firn_plan_work_bytes(const firn_plan *plan);  /* scratch; may be shared by all execs of a device */
FIRN_API int firn_plan_n_parts(const firn_plan *plan);
FIRN_API int firn_plan_n_nodes(const firn_plan *plan);
/* Floating-point operations of a part, from the operations' costs. */
FIRN_API double firn_plan_flops(const firn_plan *plan, int part);

FIRN_API firn_status firn_exec_create(firn_plan *plan, firn_exec **exec);
FIRN_API void firn_exec_destroy(firn_exec *exec);
/* tensor: a slot or an output of the graph as it was when the plan was made; buffer: of the plan's device, with all its
 * bytes at an address that is a multiple of firn_type_align. What a part needs must be bound before that part is run.
 */
FIRN_API firn_status firn_exec_bind(firn_exec *exec, const firn_tensor *tensor, firn_buffer *buffer, size_t offset);
/* Both at addresses that are multiples of 64 (a buffer begins at one); NULL where the plan needs none. */
FIRN_API firn_status firn_exec_memory(firn_exec *exec, firn_buffer *arena, size_t arena_offset, firn_buffer *work,
                                      size_t work_offset);

enum {
    FIRN_RUN_CHECK = 1, /* look at every node's result: the first value that is not finite stops the run (slow) */
};
/* Enqueues a part and returns. */
FIRN_API firn_status firn_exec_run(firn_exec *exec, int part, int flags);
/* Waits for everything enqueued on the device. What went wrong there (an id out of range, a value that is not finite)
 * is FIRN_ERR_DEVICE: the first node in graph order, and the smallest index in it. Afterwards the device is usable
 * again. */
FIRN_API firn_status firn_device_wait(firn_device *device);

/* ---- profile ---- */

typedef struct {
    const char *op; /* "MUL_MAT_ID" */
    uint64_t calls;
    double seconds, flops, bytes;
} firn_profile_row;

/* Starts or stops counting time by operation. */
FIRN_API void firn_device_profile(firn_device *device, bool on);
/* Rows by falling time; *rows belongs to the device until the next call. */
FIRN_API firn_status firn_device_profile_rows(firn_device *device, const firn_profile_row **rows, int *n);

#ifdef __cplusplus
}
#endif
#endif
