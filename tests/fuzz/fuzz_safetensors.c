/* Any bytes as a safetensors file: refused with a sentence, or every tensor of it can be read. */
#include "train/safetensors.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile float sum;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    firn_safetensors f;
    const char *name;
    json_t *entry;

    if (!ctx && !(ctx = firn_context_create(&(firn_context_params){.n_threads = 1})))
        abort();
    if (firn_safetensors_parse(ctx, data, size, &f) != FIRN_OK) {
        if (!firn_error(ctx)[0])
            abort();
        return 0;
    }
    json_object_foreach(f.header, name, entry)
    {
        firn_safetensor t;
        bool found;
        if (firn_safetensors_find(&f, name, &t, &found) != FIRN_OK || !found)
            continue;
        const int64_t n = t.ne[0] * t.ne[1] * t.ne[2] * t.ne[3];
        for (int64_t i = 0; i < n; i++) {
            float x;
            firn_safetensor_values(&t, i, 1, &x);
            sum = x;
        }
    }
    firn_safetensors_forget(&f);
    return 0;
}
