/* Any bytes as an adapter of a small model: refused with a sentence, or every value of it can be read. */
#include "core/file.h"
#include "model/model.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile float sum;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static firn_model *model;
    static char *bytes; /* kept: the model lies in them */
    firn_gguf *g;
    firn_adapter *a;
    size_t n;

    if (!model) {
        ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
        if (!ctx ||
            firn_file_read(ctx, FIRN_SOURCE_DIR "/tests/fuzz/corpus/model/mixtral.gguf", 0, &bytes, &n) != FIRN_OK ||
            firn_gguf_parse(ctx, bytes, n, &g) != FIRN_OK || firn_model_take(ctx, g, &model) != FIRN_OK)
            abort();
    }
    if (firn_gguf_parse(ctx, data, size, &g) != FIRN_OK)
        return 0;
    if (firn_adapter_read(ctx, model, g, &a) == FIRN_OK) {
        for (int64_t i = 0; i < a->n_values; i++)
            sum = a->values[i];
        firn_adapter_destroy(a);
    } else if (!firn_error(ctx)[0]) {
        abort();
    }
    firn_gguf_close(g);
    return 0;
}
