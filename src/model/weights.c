/* Weights in place; see weights.h. */
#include "model/weights.h"

#include "model/stack.h"

static uint64_t gathered_bytes(const firn_model *m, int64_t backward, int id)
{
    uint64_t most = 0;

    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        const firn_stack *s = m->layers[i].stack[id];
        if (s && !s->distance && (!s->span || i >= backward) && s->tensor.size > most)
            most = s->tensor.size;
    }
    return most;
}

uint64_t firn_weights_gathered_bytes(const firn_model *m, int64_t backward)
{
    uint64_t bytes = 0;

    for (int id = 0; id < FIRN_T_COUNT; id++)
        bytes += gathered_bytes(m, backward, id);
    return bytes;
}

static size_t table_bytes(const firn_model *m)
{
    return (size_t)m->hp.n_expert * sizeof(int64_t);
}

uint64_t firn_weights_table_bytes(const firn_model *m)
{
    return (uint64_t)m->n_tables * table_bytes(m);
}

static firn_status make_tables(firn_weights *w, firn_device *device)
{
    const firn_model *m = w->model;

    if (!m->n_tables)
        return FIRN_OK;
    int64_t *at = firn_alloc(w->ctx, table_bytes(m));
    firn_status status =
        at ? firn_buffer_create(device, (size_t)firn_weights_table_bytes(m), &w->tables) : FIRN_ERR_MEMORY;
    for (int64_t i = 0; i < m->hp.n_layer * FIRN_T_COUNT; i++) {
        const firn_stack *s = m->layers[i / FIRN_T_COUNT].stack[i % FIRN_T_COUNT];
        if (status != FIRN_OK || !s || !s->span)
            continue;
        for (int64_t e = 0; e < s->tensor.ne[2]; e++)
            at[e] = (int64_t)s->part[e]->offset - s->origin;
        status = firn_buffer_write(w->tables, (size_t)s->number * table_bytes(m), at, table_bytes(m));
    }
    firn_free(w->ctx, at);
    return status;
}

firn_status firn_weights_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t backward,
                                firn_weights **result)
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
        for (int id = 0; s == FIRN_OK && id < FIRN_T_COUNT; id++)
            if (gathered_bytes(model, backward, id))
                s = firn_buffer_create(device, (size_t)gathered_bytes(model, backward, id), &w->gathered[id]);
        if (s == FIRN_OK)
            s = make_tables(w, device);
        if (s == FIRN_OK && model->made_factors.data)
            s = firn_buffer_create(device, model->made_factors.size, &w->made);
        if (s == FIRN_OK && w->made)
            s = firn_buffer_write(w->made, 0, model->made_factors.data, model->made_factors.size);
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
    for (int id = 0; id < FIRN_T_COUNT; id++)
        firn_buffer_destroy(w->gathered[id]);
    firn_buffer_destroy(w->tables);
    firn_buffer_destroy(w->made);
    firn_free(w->ctx, w->part);
    firn_free(w->ctx, w->base);
    firn_free(w->ctx, w);
}

firn_status firn_weights_bind(const firn_weights *w, firn_exec *exec, const firn_tensor *slot,
                              const firn_gguf_tensor *t)
{
    if (!slot)
        return FIRN_OK;
    return firn_exec_bind(exec, slot, t->file < 0 ? w->made : w->part[t->file], (size_t)t->offset);
}

firn_status firn_weights_bind_weight(firn_weights *w, firn_exec *exec, const firn_tensor *bytes,
                                     const firn_tensor *table, const firn_layer *l, firn_tensor_id id)
{
    const firn_stack *s = l->stack[id];

    if (!bytes || !s || s->distance)
        return firn_weights_bind(w, exec, bytes, l->weight[id]);
    if (table) {
        FIRN_TRY(firn_exec_bind(exec, table, w->tables, (size_t)s->number * table_bytes(w->model)));
        return firn_exec_bind(exec, bytes, w->part[s->part[0]->file], (size_t)s->origin);
    }
    if (w->holds[id] != s) {
        w->holds[id] = NULL;
        for (int64_t e = 0; e < s->tensor.ne[2]; e++)
            FIRN_TRY(
                firn_buffer_write(w->gathered[id], (size_t)e * s->part[e]->size, s->part[e]->data, s->part[e]->size));
        w->holds[id] = s;
    }
    return firn_exec_bind(exec, bytes, w->gathered[id], 0);
}

static void each_of(const firn_weights *w, int64_t layer, void (*hint)(const firn_gguf *, const firn_gguf_tensor *))
{
    if (layer < 0 || layer >= w->model->hp.n_layer)
        return;
    const firn_layer *l = &w->model->layers[layer];
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (l->stack[i])
            for (int64_t e = 0; e < l->stack[i]->tensor.ne[2]; e++)
                hint(w->model->gguf, l->stack[i]->part[e]);
        else if (l->weight[i])
            hint(w->model->gguf, l->weight[i]);
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
