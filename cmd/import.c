/* firn import: another program's adapter as a GGUF. */
#include "model.h"
#include "said.h"

#include "firn/export.h"

int cmd_import(int argc, char **argv)
{
    const cmd_option options[] = {{0}};
    const cmd_spec spec = {
        "firn import FOLDER MODEL.gguf OUT.gguf",
        "Writes an adapter that PEFT, Unsloth or mlx-lm saved in FOLDER (adapter_config.json and "
        "adapter_model.safetensors\nor adapters.safetensors) as a GGUF for firn and llama.cpp. MODEL is the same model "
        "that it was trained on, in any\nweight format. What has no form there (DoRA, whole weights, embeddings) is "
        "refused by name.",
        options,
        3,
        3,
    };
    const cmd_compute compute = {.threads = 1};
    firn_adapter *ad = NULL;
    cmd_model m;
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!cmd_model_open(&m, &compute, argv[2], NULL))
        return 1;
    firn_status s = firn_adapter_import_peft(m.ctx, m.model, argv[1], &ad);
    if (s == FIRN_OK)
        s = firn_adapter_save(m.ctx, ad, NULL, argv[3]);
    for (int i = 0; s == FIRN_OK && i < ad->n_entries; i++)
        if (!firn_model_serves(m.model, ad->entries[i].tensor)) {
            cmd_said_printf(stderr, "firn: note: llama.cpp does not apply adapters on %s and its like\n",
                            ad->entries[i].tensor);
            break;
        }
    if (s == FIRN_OK)
        cmd_said_printf(stdout, "%s: an adapter on %d tensors, %lld values\n", argv[3], ad->n_entries,
                        (long long)ad->n_values);
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(m.ctx);
    firn_adapter_destroy(ad);
    cmd_model_close(&m);
    return status;
}
