/* The graph from inside; see firn/graph.h. */
#ifndef FIRN_CORE_GRAPH_H
#define FIRN_CORE_GRAPH_H

#include "core/arena.h"
#include "firn/graph.h"

struct firn_graph {
    firn_context *ctx;
    firn_arena arena;
    firn_tensor **tensors;
    size_t n, capacity;
    int part;
    firn_status status;
    char error[FIRN_ERROR_BYTES];
    size_t plans;   /* that are there */
    bool destroyed; /* by its owner: the last plan lets it go */
};

/* Plans hold their graph. */
void firn_graph_release(firn_graph *g);
bool firn_graph_has(const firn_graph *g, const firn_tensor *t);

/* What a running device found wrong, in numbers: of the first plan that found something the smallest node, and in it
 * the smallest index. Kernels call firn_fault_set from any thread and go on without touching what they may not. */
typedef enum {
    FIRN_FAULT_NONE,
    FIRN_FAULT_ID_RANGE,   /* index: which id (in the tensor's order), value: what it was */
    FIRN_FAULT_TABLE,      /* index: which id, value: where the table puts its expert, limit: the weight's bytes */
    FIRN_FAULT_NOT_FINITE, /* index: which element */
} firn_fault_kind;

typedef struct {
    int lock; /* accessed with __atomic builtins */
    firn_fault_kind kind;
    uint32_t running; /* the plan that runs: the backend writes it before it starts a run */
    uint32_t plan;    /* the plan that found it */
    int32_t node;     /* its tensor's place in the graph */
    int64_t index, value, limit;
} firn_fault;

FIRN_INNER void firn_fault_set(firn_fault *fault, firn_fault_kind kind, const firn_tensor *node, int64_t index,
                               int64_t value, int64_t limit);

#endif
