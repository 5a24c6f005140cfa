/* The optimizer over an adapter's store (model/parameters.h): the norm of the gradients, the clipping factor and the
 * step are one graph of two nodes on the whole adapter as one tensor [n], and nothing of it comes to the host but the
 * norm.
 *
 *     g = factor * gradient, factor = min(1, clip / norm)                                                (op/clip.c)
 *     adamw   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *             p -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p)
 *     sgd     p -= lr (g + decay p)                                                             (op/optimizer.c)
 *
 * A gradient that is not finite leaves everything as it was. The public face is in firn/train.h. Called by
 * train/step.c and firn verify. */
#ifndef FIRN_TRAIN_OPTIMIZER_H
#define FIRN_TRAIN_OPTIMIZER_H

#include "firn/train.h"
#include "model/parameters.h"

/* "adamw", "sgd" */
firn_status firn_optimizer_kind_from_name(firn_context *ctx, const char *name, firn_optimizer_kind *kind);
/* On a store with gradients; m and v are added to it. */
firn_status firn_optimizer_create_on(firn_parameters *store, const firn_optimizer_params *params,
                                     firn_optimizer **optimizer);
/* For checkpoints: the number of steps done; the caller may write it. */
int64_t *firn_optimizer_steps(firn_optimizer *optimizer);
/* Bytes of state for n values. */
uint64_t firn_optimizer_bytes(firn_optimizer_kind kind, int64_t n);

#endif
