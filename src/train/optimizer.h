/* AdamW over an adapter's flat buffers. The whole adapter is one tensor [n]; the step is a graph of one node.
 *
 *     g = scale * gradient;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *     p -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p)
 *
 * Called by train/step.c and firn verify. */
#ifndef FIRN_TRAIN_OPTIMIZER_H
#define FIRN_TRAIN_OPTIMIZER_H

#include "firn/graph.h"

typedef struct {
    float beta1, beta2, eps, weight_decay;
} firn_adamw_params;

#define FIRN_ADAMW_DEFAULTS ((firn_adamw_params){.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.0f})

typedef struct firn_optimizer firn_optimizer;

/* State for n values, all zero, t = 0. */
firn_status firn_optimizer_create(firn_context *ctx, firn_device *device, int64_t n, const firn_adamw_params *params,
                                  firn_optimizer **optimizer);
void firn_optimizer_destroy(firn_optimizer *optimizer);
/* One step: t += 1. scale multiplies the gradients (clipping). values and gradients [n], 64-byte aligned, stay the
 * caller's. */
firn_status firn_optimizer_step(firn_optimizer *optimizer, float *values, const float *gradients, float learning_rate,
                                float scale);
/* For checkpoints: moments [n] and the number of steps done; the caller may write them. */
float *firn_optimizer_m(firn_optimizer *optimizer);
float *firn_optimizer_v(firn_optimizer *optimizer);
int64_t *firn_optimizer_steps(firn_optimizer *optimizer);
/* Bytes of state for n values. */
uint64_t firn_optimizer_bytes(int64_t n);

/* L2 norm, summed in double in a fixed order. */
double firn_norm_of(const float *x, int64_t n);

#endif
