/* Where an adapter comes from, in keys that llama.cpp passes over:
 *
 *     firn.base.name          general.name of the model that it was trained on
 *     firn.base.fingerprint   which model that is, whatever its weights' formats: see below
 *     firn.version            of the firn that wrote it
 *     firn.data               SHA-256 of the data set; of a run's adapters only
 *
 * A fingerprint is "<norms>:<embedding>". Norms: SHA-256 over the architecture's name, name and values of every norm
 * (F32 in each GGUF of a model, however it is quantized), and the adapters that were merged into it (firn.merged).
 * Embedding: 128 signs, each of a sum over four rows of the token embedding at random signs. Re-encoding turns few of
 * them (about 5 % at 4 bits, 15 % at 2), another model half of them: up to a quarter the model is the same.
 *
 * Called by train/adapter.c, adapters.c, cmd/. */
#ifndef FIRN_TRAIN_ORIGIN_H
#define FIRN_TRAIN_ORIGIN_H

#include "model/model.h"

enum { FIRN_FINGERPRINT_BYTES = 64 + 1 + 32 + 1 };

/* Into text [FIRN_FINGERPRINT_BYTES]. */
firn_status firn_model_fingerprint(firn_context *ctx, const firn_model *model, char *text);
/* Whether two fingerprints are of one model; an empty one is of any. */
bool firn_fingerprints_agree(const char *one, const char *other);
/* The adapter is made for this model from now on. */
firn_status firn_origin_set(firn_context *ctx, const firn_model *model, firn_adapter *adapter);
/* Refuses an adapter that was made for another model; one that does not say is taken. */
firn_status firn_origin_expect(firn_context *ctx, const firn_model *model, const firn_adapter *adapter);
/* From and to the keys above. */
firn_status firn_origin_get(firn_context *ctx, const firn_gguf *gguf, firn_adapter_origin *origin);
firn_status firn_origin_put(firn_gguf_writer *w, const firn_adapter_origin *origin);

#endif
