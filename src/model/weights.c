/* Weights in place; see weights.h. */
#include "model/weights.h"

firn_status firn_weights_create(firn_context *ctx, firn_device *device, const firn_model *model, firn_weights **result)
{
    const firn_gguf *g = model->gguf;
    size_t *size = NULL;
    firn_status s = FIRN_ERR_MEMORY;

    *result = NULL;
    firn_weights *w = firn_alloc_zeroed(ctx, 1, sizeof *w);
    if (!w)
        return FIRN_ERR_MEMORY;
    w->ctx = ctx;
    w->model = model;
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++)
        if (firn_gguf_tensor_at(g, i)->file >= w->n_parts)
            w->n_parts = firn_gguf_tensor_at(g, i)->file + 1;
    w->part = firn_alloc_zeroed(ctx, (size_t)w->n_parts + 1, sizeof *w->part);
    w->base = firn_alloc_zeroed(ctx, (size_t)w->n_parts + 1, sizeof *w->base);
    size = firn_alloc_zeroed(ctx, (size_t)w->n_parts + 1, sizeof *size);
    if (w->part && w->base && size) {
        s = FIRN_OK;
        for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
            const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
            w->base[t->file] = t->data - t->offset;
            if (t->offset + t->size > size[t->file])
                size[t->file] = (size_t)t->offset + t->size;
        }
        for (int i = 0; s == FIRN_OK && i < w->n_parts; i++)
            if (w->base[i])
                s = firn_buffer_wrap(device, w->base[i], size[i], &w->part[i]);
    }
    firn_free(ctx, size);
    if (s != FIRN_OK) {
        firn_weights_destroy(w);
        return s;
    }
    *result = w;
    return FIRN_OK;
}

void firn_weights_destroy(firn_weights *w)
{
    if (!w)
        return;
    for (int i = 0; w->part && i < w->n_parts; i++)
        firn_buffer_destroy(w->part[i]);
    firn_free(w->ctx, w->part);
    firn_free(w->ctx, w->base);
    firn_free(w->ctx, w);
}

firn_status firn_weights_bind(const firn_weights *w, firn_exec *exec, const firn_tensor *slot,
                              const firn_gguf_tensor *t)
{
    return slot ? firn_exec_bind(exec, slot, w->part[t->file], (size_t)t->offset) : FIRN_OK;
}

static void each_of(const firn_weights *w, int64_t layer, void (*hint)(const firn_gguf *, const firn_gguf_tensor *))
{
    if (layer < 0 || layer >= w->model->hp.n_layer)
        return;
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (w->model->layers[layer].weight[i])
            hint(w->model->gguf, w->model->layers[layer].weight[i]);
}

void firn_weights_near(const firn_weights *w, int64_t layer)
{
    each_of(w, layer, firn_gguf_will_need);
}

void firn_weights_far(const firn_weights *w, int64_t layer)
{
    each_of(w, layer, firn_gguf_release);
}

uint64_t firn_weights_bytes(const firn_model *model)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < firn_gguf_n_tensors(model->gguf); i++)
        bytes += firn_gguf_tensor_at(model->gguf, i)->size;
    return bytes;
}
