/* Any bytes as a model: refused with a sentence, or its plan for a pass can be made. */
#include "model/model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_gguf *g;
    firn_model *m;
    firn_device *device;
    firn_session_memory memory = {.size = sizeof memory};

    if (!ctx)
        return 0;
    if (firn_gguf_parse(ctx, data, size, &g) == FIRN_OK) {
        if (firn_model_take(ctx, g, &m) == FIRN_OK) {
            if (firn_device_open(ctx, "CPU", &device) == FIRN_OK) {
                firn_session_plan(ctx, device, m, NULL, &(firn_session_params){.n_tokens = 3}, &memory);
                firn_device_close(device);
            }
            firn_model_close(m);
        } else if (!firn_error(ctx)[0]) {
            abort();
        }
    }
    firn_context_destroy(ctx);
    return 0;
}
