/* Choosing the next token from logits.
 *
 * In this order, each step leaving fewer candidates: repeat penalty, top-k, temperature, top-p, min-p, draw. At
 * temperature 0 the largest logit wins, the lowest id among equals. The draw is a function of (seed, step). */
#ifndef FIRN_MODEL_SAMPLE_H
#define FIRN_MODEL_SAMPLE_H

#include "core/context.h"

typedef struct {
    float temperature; /* 0: greedy */
    int64_t top_k;     /* the k largest; 0: all */
    float top_p;       /* the fewest whose probabilities reach p; 1: all */
    float min_p;       /* those of at least p times the largest probability; 0: all */
    float
        repeat_penalty; /* logits of recent tokens: divided by it where positive, multiplied where negative; 1: none */
    uint64_t seed;
} firn_sample_params;

typedef struct firn_sampler firn_sampler;

firn_status firn_sampler_create(firn_context *ctx, const firn_sample_params *params, int64_t n_vocab,
                                firn_sampler **sampler);
void firn_sampler_destroy(firn_sampler *sampler);
/* The token is remembered for the repeat penalty (of the last 64), as are those of firn_sampler_saw. */
int32_t firn_sampler_next(firn_sampler *sampler, const float *logits);
void firn_sampler_saw(firn_sampler *sampler, int32_t token);

#endif
