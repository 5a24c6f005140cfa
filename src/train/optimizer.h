/* The optimizer over an adapter's store (model/parameters.h): the norm of the gradients, the clipping factor and the
 * step are one graph on the whole adapter as one tensor [n], and nothing of it comes to the host but the norm.
 *
 *     g = factor * gradient, factor = min(1, clip / norm)                                                (op/clip.c)
 *
 * then the step of the kind: src/train/optimizer_<id>.c, which optimizers.def lists. Where factors of the adapter have
 * rates of their own (train/rates.h) there is a node for each stretch of one rate; else one for all.
 *
 * A gradient that is not finite leaves everything as it was. The public face is in firn/train.h. Called by
 * train/setup.c, step.c and firn verify. */
#ifndef FIRN_TRAIN_OPTIMIZER_H
#define FIRN_TRAIN_OPTIMIZER_H

#include "firn/ops.h"
#include "firn/train.h"
#include "model/parameters.h"

enum { FIRN_OPTIMIZER_HYPER = 8 }; /* numbers of a step, at most */

/* Values [first, first + n) of an adapter, whose rate is the step's times factor. */
typedef struct {
    int64_t first, n;
    float factor;
} firn_rate_stretch;

/* What a kind's nodes are made with. */
typedef struct {
    firn_graph *graph;
    const firn_parameters *store;
    const firn_optimizer_params *params;
    firn_tensor *part[FIRN_PARAMETERS_PARTS]; /* whole; NULL: the kind has none */
    firn_tensor *hyper;                       /* of the stretch: what `fill` wrote, and the clipping factor */
    firn_rate_stretch stretch;
} firn_optimizer_build;

typedef struct {
    const char *name;
    firn_parameters_part part[2]; /* of the store beside values and gradients */
    int n_parts;
    int n_hyper; /* the first is the learning rate, the last CLIP_NORM's factor */
    /* All numbers but the last, of step t, counted from 1. */
    void (*fill)(const firn_optimizer_params *params, double t, float learning_rate, float *hyper);
    void (*add)(const firn_optimizer_build *build);
    uint64_t (*work)(const firn_adapter *adapter); /* bytes that its nodes take besides, at most; NULL: hardly any */
} firn_optimizer_rule;

/* "adamw|sgd|..." */
extern const char *const firn_optimizer_names;
firn_status firn_optimizer_kind_from_name(firn_context *ctx, const char *name, firn_optimizer_kind *kind);
/* On a store with gradients; what the kind keeps is added to it. stretches [n_stretches]: all of the adapter in order;
 * NULL: one rate. */
firn_status firn_optimizer_create_on(firn_parameters *store, const firn_optimizer_params *params,
                                     const firn_rate_stretch *stretches, int n_stretches, firn_optimizer **optimizer);
/* For checkpoints: the number of steps done; the caller may write it. */
int64_t *firn_optimizer_steps(firn_optimizer *optimizer);
/* Bytes of state for n values. */
uint64_t firn_optimizer_bytes(firn_optimizer_kind kind, int64_t n);
/* Bytes that a step takes besides, at most. */
uint64_t firn_optimizer_work_bytes(firn_optimizer_kind kind, const firn_adapter *adapter);

/* For the kinds: a part's values in the stretch. */
firn_tensor *firn_optimizer_part(const firn_optimizer_build *build, firn_parameters_part part);

#endif
