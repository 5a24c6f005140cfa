/* firn export: an adapter in another program's form. */
#include "model.h"

#include "firn/export.h"

#include "model/model.h"

#include <inttypes.h>
#include <string.h>

/* PEFT has kernels of Mamba in mind that take a weight past the adapter around it, and does not load one there. */
static void say_what_is_refused(const cmd_model *m)
{
    const char *base = m->model->arch->hf.refused;
    int layer;
    firn_tensor_id id;
    bool bias;

    for (int i = 0; base && i < m->adapter->n_entries; i++)
        if (firn_model_find(m->model, m->adapter->entries[i].tensor, &layer, &id, &bias) && layer >= 0 &&
            strcmp(firn_tensor_rows[id].base, base) == 0) {
            fprintf(stderr,
                    "firn: note: PEFT up to 0.21 refuses adapters on %s of %s models unless its check "
                    "(_check_lora_target_modules_mamba) is switched off; llama.cpp applies them\n",
                    base, m->model->arch->name);
            return;
        }
}

int cmd_export(int argc, char **argv)
{
    cmd_compute compute = {.threads = 1};
    const char *base = NULL;
    const cmd_option options[] = {
        {"--base", 's', &base, "NAME",
         "the model's folder or its name on the hub, for base_model_name_or_path (default: as the GGUF says)", 0, 0},
        {"--force", 'b', &compute.force, NULL, "also where the adapter was made for another model", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        "firn export MODEL.gguf ADAPTER.gguf FOLDER",
        "Writes an adapter as PEFT 0.20 and later loads it onto the model in transformers 5:\n"
        "FOLDER/adapter_model.safetensors and FOLDER/adapter_config.json. MODEL is the file that it was trained on.",
        options,
        3,
        3,
    };
    int64_t n_tensors;
    cmd_model m;
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!cmd_model_open(&m, &compute, argv[1], argv[2]))
        return 1;
    const firn_status s = firn_adapter_export_peft_named(m.ctx, m.model, m.adapter, argv[3], base, &n_tensors);
    if (s == FIRN_OK)
        say_what_is_refused(&m);
    if (s == FIRN_OK)
        printf("%s: %" PRId64 " tensors for PEFT\n", argv[3], n_tensors);
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(m.ctx);
    cmd_model_close(&m);
    return status;
}
