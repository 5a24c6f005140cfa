/* Noise on the embedding of a pass: what is added to the stream before the first block, in place.
 *
 * Called by session.c; what the noise is says train/neftune.h. */
#ifndef FIRN_MODEL_NOISE_H
#define FIRN_MODEL_NOISE_H

#include "core/backend.h"

typedef struct firn_noise firn_noise;

/* x: where the embedding [d, n_tokens] lies, F32. */
firn_status firn_noise_create(firn_context *ctx, firn_device *device, int64_t d, int64_t n_tokens, firn_buffer *x,
                              size_t offset, firn_noise **noise);
void firn_noise_destroy(firn_noise *noise); /* NULL is fine */
/* [d, n_tokens], which the next pass that is enqueued by firn_noise_add uses; the caller writes it while nothing is. */
float *firn_noise_values(firn_noise *noise);
/* Enqueued. */
firn_status firn_noise_add(firn_noise *noise);
/* Bytes of it. */
uint64_t firn_noise_bytes(int64_t d, int64_t n_tokens);

#endif
