/* An adapter's flat buffers on a device: values, and where they are trained gradients and the optimizer's moments.
 *
 * The device's are what counts. The host sees them through read and write; adapter->values are the host's copy, brought
 * over by push and pull. Where a device uses the host's memory in place, the values are that copy itself, and both do
 * nothing. Counted: sessions and optimizers on one store keep it, and the last one frees it.
 *
 * Called by session.c, generate.c and train/; calls core/backend.h. */
#ifndef FIRN_MODEL_PARAMETERS_H
#define FIRN_MODEL_PARAMETERS_H

#include "core/backend.h"
#include "firn/model.h"

typedef enum {
    FIRN_PARAMETERS_VALUES,
    FIRN_PARAMETERS_GRADIENTS,
    FIRN_PARAMETERS_M,
    FIRN_PARAMETERS_V,
    FIRN_PARAMETERS_PARTS
} firn_parameters_part;

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_adapter *adapter;
    int64_t n; /* values; of each part */
    firn_buffer *part[FIRN_PARAMETERS_PARTS];
    bool in_place; /* the values are adapter->values */
    int keepers;
} firn_parameters;

/* The adapter's values, as they are now; the adapter stays the caller's and outlives the store. */
firn_status firn_parameters_create(firn_context *ctx, firn_device *device, firn_adapter *adapter,
                                   firn_parameters **store);
firn_parameters *firn_parameters_keep(firn_parameters *store);
void firn_parameters_drop(firn_parameters *store); /* NULL is fine */
/* Gives it a part, of zeros, where it has none. */
firn_status firn_parameters_add(firn_parameters *store, firn_parameters_part part);
/* [first, first + n) of a part to or from the host; waits. */
firn_status firn_parameters_read(firn_parameters *store, firn_parameters_part part, int64_t first, int64_t n,
                                 float *values);
firn_status firn_parameters_write(firn_parameters *store, firn_parameters_part part, int64_t first, int64_t n,
                                  const float *values);
/* To zeros; enqueued. */
firn_status firn_parameters_zero(firn_parameters *store, firn_parameters_part part);
/* The part itself where the device's memory is the host's (nothing may be queued when it is used), else NULL. */
float *firn_parameters_host(const firn_parameters *store, firn_parameters_part part);
/* adapter->values to the device, and back. */
firn_status firn_parameters_push(firn_parameters *store);
firn_status firn_parameters_pull(firn_parameters *store);
/* A session's; NULL without an adapter. */
firn_parameters *firn_session_parameters(const firn_session *session);
firn_context *firn_session_context(const firn_session *session);
/* The pass of firn_session_gradient node by node: fails at the first value that is not finite, naming it with its block
 * and tensor. */
firn_status firn_session_examine(firn_session *session, const firn_batch *batch, float weight);
/* Makes room for noise on the embedding (model/noise.h). Then: whether the next passes add it, and where its values
 * [n_embd, n_tokens of the session] are written, between passes; NULL: there is no room for it. */
firn_status firn_session_noise_create(firn_session *session);
float *firn_session_noise(firn_session *session, bool on);
/* Bytes of `parts` parts of n values. */
uint64_t firn_parameters_bytes(int64_t n, int parts);

#endif
