/* Adapters to and from other programs' forms. */
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

/* The same with the name that base_model_name_or_path gets: a folder, or a repository of the hub. NULL: the model's
 * metadata say it (general.base_model.0.repo_url, general.source.huggingface.repository, general.repo_url, where those
 * are of the hub), or nothing does. */
FIRN_API firn_status firn_adapter_export_peft_named(firn_context *ctx, const firn_model *model,
                                                    const firn_adapter *adapter, const char *folder, const char *base,
                                                    int64_t *n_tensors);

/* The other way: an adapter for `model` from a folder that PEFT, Unsloth or mlx-lm wrote (adapter_config.json and
 * adapter_model.safetensors or adapters.safetensors). Experts may be folded into one parameter, modules of their own, or
 * mlx's stacks; factors F32, F16 or BF16; scales by rank or by its square root. What changes the model in a way that an
 * adapter here has no form for (DoRA, biases, whole weights, embeddings) is refused by name, and so is a factor that
 * belongs to no tensor of the model. What firn_adapter_export_peft wrote comes back as it was. */
FIRN_API firn_status firn_adapter_import_peft(firn_context *ctx, const firn_model *model, const char *folder,
                                              firn_adapter **adapter);

#ifdef __cplusplus
}
#endif
#endif
