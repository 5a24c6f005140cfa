/* Which learning rate each factor of an adapter has: that of the step times
 *
 *     X of the last --learning-rate-of that matches the tensor over --learning-rate, else 1
 *     x  --loraplus where it is a B (LoRA+, Hayou et al. 2024: B's rate is higher than A's)
 *
 * as stretches of the adapter's flat buffer, neighbours of one rate in one. Called by train/setup.c; the optimizer
 * steps stretch by stretch. */
#ifndef FIRN_TRAIN_RATES_H
#define FIRN_TRAIN_RATES_H

#include "train/optimizer.h"

typedef struct {
    const char *const *rate_of; /* "CLASS=X" or "PATTERN=X" */
    int n_rate_of;
    double learning_rate; /* the highest, that X is measured by */
    double loraplus;      /* 1: A and B have one rate */
} firn_rates;

/* The stretches of the whole adapter, at most two for each entry; the caller frees them (firn_free). */
firn_status firn_rates_of(firn_context *ctx, const firn_adapter *adapter, const firn_rates *rates,
                          firn_rate_stretch **stretches, int *n);

#endif
