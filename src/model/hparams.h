/* For metadata of attention of other kinds: reading keys "<arch>.<name>", checked; see hparams.c. Where a key is absent
 * and not required, *value stays. */
#ifndef FIRN_MODEL_HPARAMS_H
#define FIRN_MODEL_HPARAMS_H

#include "model/model.h"

enum { FIRN_KEY_BYTES = 160 };

const char *firn_key(char key[FIRN_KEY_BYTES], const firn_model *model, const char *name);
firn_status firn_key_u32(firn_context *ctx, const firn_model *model, const char *name, bool required, int64_t *value);
firn_status firn_key_f32(firn_context *ctx, const firn_model *model, const char *name, bool required, float *value);
/* One number for all blocks, or an array with one for each. `field` is the offset of an int64_t in firn_layer. */
firn_status firn_key_per_layer(firn_context *ctx, firn_model *model, const char *name, bool required, size_t field);

#endif
