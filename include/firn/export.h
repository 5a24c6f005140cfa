/* Adapters in other programs' forms. */
#ifndef FIRN_EXPORT_H
#define FIRN_EXPORT_H

#include "firn/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes folder/adapter_model.safetensors and folder/adapter_config.json, as PEFT 0.20 and later loads them onto the
 * model in transformers 5; `model` is the one that the adapter was made for. *n_tensors (may be NULL): how many the
 * former holds. Refuses in words what PEFT has no form for. On failure neither file has changed; the folder may have
 * been made. */
FIRN_API firn_status firn_adapter_export_peft(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                                              const char *folder, int64_t *n_tensors);

#ifdef __cplusplus
}
#endif
#endif
