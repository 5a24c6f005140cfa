/* What a node becomes: dispatches of kernels. plan_*.c describe it; gpu.c asks when a plan is made, to say yes or no,
 * and keeps what comes for the runs: one function, so that claim and kernel cannot drift apart. */
#ifndef FIRN_GPU_PLAN_H
#define FIRN_GPU_PLAN_H

#include "gpu/kernels/args.h"
#include "gpu/runtime.h"
#include "op/op.h"

/* The types that weights are read in: kernels/formats.h has the same list. */
#define FIRN_GPU_WEIGHTS(F)                                                                                            \
    F(F32, f32)                                                                                                        \
    F(F16, f16)                                                                                                        \
    F(BF16, bf16)                                                                                                      \
    F(Q4_0, q4_0)                                                                                                      \
    F(Q4_1, q4_1)                                                                                                      \
    F(Q5_0, q5_0)                                                                                                      \
    F(Q5_1, q5_1)                                                                                                      \
    F(Q8_0, q8_0)                                                                                                      \
    F(Q2_K, q2_K)                                                                                                      \
    F(Q3_K, q3_K)                                                                                                      \
    F(Q4_K, q4_K)                                                                                                      \
    F(Q5_K, q5_K)                                                                                                      \
    F(Q6_K, q6_K)                                                                                                      \
    F(IQ4_NL, iq4_nl)                                                                                                  \
    F(IQ4_XS, iq4_xs)                                                                                                  \
    F(MXFP4, mxfp4)                                                                                                    \
    F(NVFP4, nvfp4)                                                                                                    \
    F(IQ2_XXS, iq2_xxs)                                                                                                \
    F(IQ2_XS, iq2_xs)                                                                                                  \
    F(IQ2_S, iq2_s)                                                                                                    \
    F(IQ3_XXS, iq3_xxs)                                                                                                \
    F(IQ3_S, iq3_s)                                                                                                    \
    F(IQ1_S, iq1_s)                                                                                                    \
    F(IQ1_M, iq1_m)                                                                                                    \
    F(TQ1_0, tq1_0)                                                                                                    \
    F(TQ2_0, tq2_0)                                                                                                    \
    F(Q1_0, q1_0)                                                                                                      \
    F(Q2_0, q2_0)

typedef enum {
#define LIBRARY(file) FIRN_GPU_LIBRARY_##file,
#define KERNEL(file, name)
#define TYPED(file, name)
#include "gpu/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
    FIRN_GPU_N_LIBRARIES
} firn_gpu_library;

typedef enum {
#define LIBRARY(file)
#define KERNEL(file, name) FIRN_GPU_##name,
#define TYPED(file, name)  FIRN_GPU_##name,
#include "gpu/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
    FIRN_GPU_N_KERNELS
} firn_gpu_kernel;

/* A type's place among FIRN_GPU_WEIGHTS; -1: none. */
int firn_gpu_weight(firn_type type);
extern const int firn_gpu_n_weights;

/* Pipelines are numbered kernel * firn_gpu_n_weights + type. Writes kernel_<name>[_<type>]; returns its library. */
firn_gpu_library firn_gpu_kernel_name(firn_gpu_kernel kernel, int weight, char *name, size_t size);
bool firn_gpu_is_typed(firn_gpu_kernel kernel);

/* ---- a node's dispatches ---- */

enum {
    FIRN_GPU_MAX_DISPATCHES = 8,
    FIRN_GPU_MAX_ARG_BYTES = 512,
    FIRN_GPU_MAX_REFS = 10,
    /* What a buffer argument is: a source by its number, or one of these. */
    FIRN_GPU_DST = 16,
    FIRN_GPU_WORK,  /* the workspace, at an offset */
    FIRN_GPU_FAULT, /* the device's record of faults */
    FIRN_GPU_NONE,  /* something, never read */
};

typedef struct {
    firn_gpu_kernel kernel;
    int weight; /* of typed kernels */
    struct {
        int what;
        size_t offset;
    } refs[FIRN_GPU_MAX_REFS]; /* buffer(1), ... */
    int n_refs;
    unsigned char args[FIRN_GPU_MAX_ARG_BYTES]; /* buffer(0) */
    size_t n_args, shared;
    uint32_t grid[3], threads;
    /* May be cut into runs of threadgroups along an axis of the grid: where in args the first one's number (uint32_t)
     * is written, and the operations of all. 0: it is short. */
    size_t cut;
    int axis;
    double flops;
} firn_gpu_dispatch;

typedef struct {
    firn_context *ctx;
    const firn_tensor *node;
    int64_t id; /* of the node, for faults: firn_gpu_node_id */
    firn_gpu_tile_shape tile;
    firn_gpu_dispatch d[FIRN_GPU_MAX_DISPATCHES];
    int n; /* 0: nothing to do (an empty result) */
    size_t work;
} firn_gpu_plan;

/* Plan and node as one number, by which a fault names them. */
static inline int64_t firn_gpu_node_id(uint32_t plan, const firn_tensor *node)
{
    return (int64_t)((uint64_t)plan << 32 | (uint32_t)node->index);
}

/* Fills plan (ctx, node, id and tile are set), or fails with FIRN_ERR_UNSUPPORTED and the reason. */
firn_status firn_gpu_prepare(firn_gpu_plan *plan);

/* ---- for plan_*.c ---- */

typedef firn_status (*firn_gpu_planner)(firn_gpu_plan *plan);

/* Appends a dispatch; args are copied. `refs` is a list that ends with -1. */
firn_gpu_dispatch *firn_gpu_add(firn_gpu_plan *plan, firn_gpu_kernel kernel, int weight, const void *args,
                                size_t n_args, const int *refs);
void firn_gpu_grid(firn_gpu_dispatch *d, int64_t x, int64_t y, int64_t z, uint32_t threads);
/* Bytes of workspace; returns their offset. */
size_t firn_gpu_take_work(firn_gpu_plan *plan, size_t size);
/* Shapes as kernels take them: refused where a dimension passes 32 bits. */
firn_status firn_gpu_view_of(firn_context *ctx, const firn_tensor *t, firn_gpu_view *view);
/* A kernel of kernels/check.metal that looks at src[of]. */
firn_status firn_gpu_check_by(firn_gpu_plan *plan, firn_gpu_kernel kernel, int of, int64_t low, int64_t limit);
/* Reports ids of src[of] outside [low, limit). */
firn_status firn_gpu_check_ids(firn_gpu_plan *plan, int of, int64_t low, int64_t limit);

static inline int64_t firn_gpu_tiles(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* ---- plan_nodes.c ---- */

/* Views and parameters; n stays 0. */
firn_status firn_gpu_describe_node(firn_gpu_plan *plan, firn_gpu_node_args *a);
/* What runs over n elements or rows: refused past 2^31. */
firn_status firn_gpu_set_count(firn_gpu_plan *plan, firn_gpu_node_args *a, int64_t n);
/* A dispatch that takes the result as buffer(1) and the sources as buffer(2), ... */
firn_gpu_dispatch *firn_gpu_add_node(firn_gpu_plan *plan, firn_gpu_kernel kernel, int weight,
                                     const firn_gpu_node_args *a);
/* Threads of a threadgroup that has a row of n values. */
uint32_t firn_gpu_row_threads(int64_t n);
/* A thread for each of n elements. */
void firn_gpu_by_element(firn_gpu_dispatch *d, int64_t n);
/* Operations of its table, and their planner. */
bool firn_gpu_in_table(const firn_op *op);
firn_status firn_gpu_plan_node(firn_gpu_plan *plan);

#define PLAN(op, planner) firn_status firn_gpu_plan_##planner(firn_gpu_plan *plan);
#include "gpu/planners.def"
#undef PLAN

#endif
