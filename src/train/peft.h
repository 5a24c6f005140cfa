/* Adapters for PEFT; see peft.c. */
#ifndef FIRN_TRAIN_PEFT_H
#define FIRN_TRAIN_PEFT_H

#include "model/model.h"

/* Writes folder/adapter_model.safetensors and folder/adapter_config.json. *n_tensors (may be NULL): how many
 * the former holds. Refuses in words what PEFT has no form for. On failure neither file has changed; the folder may
 * have been made. */
firn_status firn_adapter_export_peft(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                                     const char *folder, int64_t *n_tensors);

#endif
