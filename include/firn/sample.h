/* Choosing the next token from logits.
 *
 * In this order, each step leaving fewer candidates: repeat penalty, top-k, temperature, top-p, min-p, draw. At
 * temperature 0 the largest logit wins, the lowest id among equals. The draw is a function of (seed, step): the same
 * parameters and logits give the same tokens anywhere. */
#ifndef FIRN_SAMPLE_H
#define FIRN_SAMPLE_H

#include "firn/firn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Greedy is temperature 0, top_p 1, repeat_penalty 1, the rest 0. */
typedef struct {
    size_t size;          /* sizeof(firn_sample_params) */
    float temperature;    /* divides the logits; 0: greedy */
    int64_t top_k;        /* the k largest; 0: all */
    float top_p;          /* the smallest set with total probability p, 0 to 1; 1: all */
    float min_p;          /* those of at least p times the largest probability, 0 to 1; 0: all */
    float repeat_penalty; /* logits of recent tokens: divided by it where positive, else multiplied; 1: none */
    uint64_t seed;
} firn_sample_params;

typedef struct firn_sampler firn_sampler;

/* For logits [n_vocab]. Refused: fewer than one token, a parameter that is not finite or outside of its range. */
FIRN_API firn_status firn_sampler_create(firn_context *ctx, const firn_sample_params *params, int64_t n_vocab,
                                         firn_sampler **sampler);
FIRN_API void firn_sampler_destroy(firn_sampler *sampler); /* NULL is fine */
/* The next token for logits [n_vocab], which are not changed. It is remembered for the repeat penalty (of the last 64),
 * as are those of firn_sampler_saw. -1 where a pointer is NULL. */
FIRN_API int32_t firn_sampler_next(firn_sampler *sampler, const float *logits);
/* Remembers a token that came otherwise: those of the prompt. */
FIRN_API void firn_sampler_saw(firn_sampler *sampler, int32_t token);

#ifdef __cplusplus
}
#endif
#endif
