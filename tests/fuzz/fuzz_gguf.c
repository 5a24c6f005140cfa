/* Any bytes as a GGUF file: refused with a sentence, or every byte that a getter gives can be read. */
#include "core/context.h"
#include "firn/gguf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t sum;

static void touch(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        sum += ((const uint8_t *)bytes)[i];
}

static void touch_kv(const firn_gguf *g, const firn_kv *kv)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

    if (firn_gguf_kv(g, kv->key) != kv)
        abort();
    if (kv->element == FIRN_KV_STRING)
        for (uint64_t i = 0; i < kv->n; i++)
            touch(kv->strings[i].data, kv->strings[i].size);
    else
        touch(kv->data, (size_t)kv->n * sizes[kv->element]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_gguf *g;

    if (!ctx)
        return 0;
    if (firn_gguf_parse(ctx, data, size, &g) == FIRN_OK) {
        for (size_t i = 0; i < firn_gguf_n_kv(g); i++)
            touch_kv(g, firn_gguf_kv_at(g, i));
        for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
            const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
            if (firn_gguf_find(g, t->name) != t)
                abort();
            touch(t->data, t->size);
        }
        size_t n;
        touch(firn_gguf_header(g, &n), 0);
        if (n > size)
            abort();
        firn_gguf_close(g);
    } else if (!firn_error(ctx)[0]) {
        abort();
    }
    firn_context_destroy(ctx);
    return 0;
}
