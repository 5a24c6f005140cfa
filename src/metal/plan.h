/* What a node becomes: dispatches of kernels. plan_*.c describe it; metal.c asks when a plan is made, to say yes or no,
 * and keeps what comes for the runs: one function, so that claim and kernel cannot drift apart. */
#ifndef FIRN_METAL_PLAN_H
#define FIRN_METAL_PLAN_H

#include "metal/kernels/args.h"
#include "op/op.h"

/* The types that weights are read in: kernels/formats.h has the same list. */
#define FIRN_METAL_WEIGHTS(F)                                                                                          \
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
#define LIBRARY(file) FIRN_METAL_LIBRARY_##file,
#define KERNEL(file, name)
#define TYPED(file, name)
#include "metal/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
    FIRN_METAL_N_LIBRARIES
} firn_metal_library;

typedef enum {
#define LIBRARY(file)
#define KERNEL(file, name) FIRN_METAL_##name,
#define TYPED(file, name)  FIRN_METAL_##name,
#include "metal/kernels.def"
#undef LIBRARY
#undef KERNEL
#undef TYPED
    FIRN_METAL_N_KERNELS
} firn_metal_kernel;

/* A type's place among FIRN_METAL_WEIGHTS; -1: none. */
int firn_metal_weight(firn_type type);
extern const int firn_metal_n_weights;

/* Pipelines are numbered kernel * firn_metal_n_weights + type. Writes kernel_<name>[_<type>]; returns its library. */
firn_metal_library firn_metal_kernel_name(firn_metal_kernel kernel, int weight, char *name, size_t size);
bool firn_metal_is_typed(firn_metal_kernel kernel);
const char *firn_metal_library_text(firn_metal_library library);

/* ---- a node's dispatches ---- */

enum {
    FIRN_METAL_MAX_DISPATCHES = 8,
    FIRN_METAL_MAX_ARG_BYTES = 512,
    FIRN_METAL_MAX_REFS = 10,
    /* What a buffer argument is: a source by its number, or one of these. */
    FIRN_METAL_DST = 16,
    FIRN_METAL_WORK,  /* the workspace, at an offset */
    FIRN_METAL_FAULT, /* the device's record of faults */
    FIRN_METAL_NONE,  /* something, never read */
};

typedef struct {
    firn_metal_kernel kernel;
    int weight; /* of typed kernels */
    struct {
        int what;
        size_t offset;
    } refs[FIRN_METAL_MAX_REFS]; /* buffer(1), ... */
    int n_refs;
    unsigned char args[FIRN_METAL_MAX_ARG_BYTES]; /* buffer(0) */
    size_t n_args, shared;
    uint32_t grid[3], threads;
    /* May be cut into runs of threadgroups along an axis of the grid: where in args the first one's number (uint32_t)
     * is written, and the operations of all. 0: it is short. */
    size_t cut;
    int axis;
    double flops;
} firn_metal_dispatch;

typedef struct {
    firn_context *ctx;
    const firn_tensor *node;
    int64_t id; /* of the node, for faults: firn_metal_node_id */
    firn_metal_dispatch d[FIRN_METAL_MAX_DISPATCHES];
    int n; /* 0: nothing to do (an empty result) */
    size_t work;
} firn_metal_plan;

/* Plan and node as one number, by which a fault names them. */
static inline int64_t firn_metal_node_id(uint32_t plan, const firn_tensor *node)
{
    return (int64_t)((uint64_t)plan << 32 | (uint32_t)node->index);
}

/* Fills plan (ctx, node and id are set), or fails with FIRN_ERR_UNSUPPORTED and the reason. */
firn_status firn_metal_prepare(firn_metal_plan *plan);

/* Operations that one command buffer may have (metal.c): GPUs stop what runs for seconds. */
extern double firn_metal_max_flops;
/* Those that the device has been given so far; for tests. */
uint64_t firn_metal_command_buffers(const firn_device *device);

/* ---- for plan_*.c ---- */

typedef firn_status (*firn_metal_planner)(firn_metal_plan *plan);

/* Appends a dispatch; args are copied. `refs` is a list that ends with -1. */
firn_metal_dispatch *firn_metal_add(firn_metal_plan *plan, firn_metal_kernel kernel, int weight, const void *args,
                                    size_t n_args, const int *refs);
void firn_metal_grid(firn_metal_dispatch *d, int64_t x, int64_t y, int64_t z, uint32_t threads);
/* Bytes of workspace; returns their offset. */
size_t firn_metal_take_work(firn_metal_plan *plan, size_t size);
/* Shapes as kernels take them: refused where a dimension passes 32 bits. */
firn_status firn_metal_view_of(firn_context *ctx, const firn_tensor *t, firn_metal_view *view);
/* Reports ids of src[of] outside [low, limit). */
firn_status firn_metal_check_ids(firn_metal_plan *plan, int of, int64_t low, int64_t limit);

static inline int64_t firn_metal_tiles(int64_t n, int64_t size)
{
    return (n + size - 1) / size;
}

/* ---- plan_nodes.c ---- */

/* Views and parameters; n stays 0. */
firn_status firn_metal_describe_node(firn_metal_plan *plan, firn_metal_node_args *a);
/* What runs over n elements or rows: refused past 2^31. */
firn_status firn_metal_set_count(firn_metal_plan *plan, firn_metal_node_args *a, int64_t n);
/* A dispatch that takes the result as buffer(1) and the sources as buffer(2), ... */
firn_metal_dispatch *firn_metal_add_node(firn_metal_plan *plan, firn_metal_kernel kernel, int weight,
                                         const firn_metal_node_args *a);
/* Threads of a threadgroup that has a row of n values. */
uint32_t firn_metal_row_threads(int64_t n);
/* A thread for each of n elements. */
void firn_metal_by_element(firn_metal_dispatch *d, int64_t n);
/* Operations of its table, and their planner. */
bool firn_metal_in_table(const firn_op *op);
firn_status firn_metal_plan_node(firn_metal_plan *plan);

#define PLAN(op, planner) firn_status firn_metal_plan_##planner(firn_metal_plan *plan);
#include "metal/planners.def"
#undef PLAN

#endif
