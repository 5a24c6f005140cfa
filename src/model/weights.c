/* Weights in their place; see weights.h. */
#include "model/weights.h"

#include "model/stack.h"

#include <assert.h>

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

/* ---- copies ---- */

/* A group's bytes into its memory, enqueued: the mapped file stays as it is until they have come. */
static firn_status upload(const firn_weights *w, firn_queue queue, int64_t group, firn_buffer *memory)
{
    const firn_weight_group *g = &w->layout.groups[group];

    for (int i = 0; i < g->n; i++) {
        const firn_stretch *s = &g->stretches[i];
        FIRN_TRY(firn_queue_upload(queue, memory, s->at, w->base[s->file] + s->low, (size_t)(s->high - s->low)));
    }
    return FIRN_OK;
}

static firn_status make_copy(firn_weights *w, int64_t group)
{
    const size_t bytes = w->layout.groups[group].bytes;

    if (!bytes)
        return FIRN_OK;
    FIRN_TRY(firn_buffer_create(w->device, bytes, &w->copy[group]));
    return upload(w, FIRN_QUEUE_TRANSFER, group, w->copy[group]);
}

static firn_status make_copies(firn_weights *w)
{
    const int64_t n_layer = w->model->hp.n_layer;

    if (!w->plan.ends_mapped)
        FIRN_TRY(make_copy(w, n_layer));
    for (int64_t i = 0; w->plan.blocks == FIRN_WEIGHTS_RESIDENT && i < n_layer; i++)
        FIRN_TRY(make_copy(w, i));
    for (int i = 0; i < w->plan.n_slots; i++) {
        w->ring[i].layer = -1;
        FIRN_TRY(
            firn_buffer_create(w->device, (size_t)(w->plan.slot_bytes ? w->plan.slot_bytes : 1), &w->ring[i].memory));
    }
    return firn_queue_after(w->device, FIRN_QUEUE_COMPUTE, firn_queue_event(w->device, FIRN_QUEUE_TRANSFER));
}

/* ---- create ---- */

/* The parts of the file, and how far tensors reach in them. */
static firn_status find_parts(firn_weights *w, size_t **size)
{
    const firn_gguf *g = w->model->gguf;

    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++)
        if (firn_gguf_tensor_at(g, i)->file >= w->n_parts)
            w->n_parts = firn_gguf_tensor_at(g, i)->file + 1;
    w->part = firn_alloc_zeroed(w->ctx, (size_t)w->n_parts + 1, sizeof *w->part);
    w->base = firn_alloc_zeroed(w->ctx, (size_t)w->n_parts + 1, sizeof *w->base);
    *size = firn_alloc_zeroed(w->ctx, (size_t)w->n_parts + 1, sizeof **size);
    if (!w->part || !w->base || !*size)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        w->base[t->file] = t->data - t->offset;
        if (t->offset + t->size > (*size)[t->file])
            (*size)[t->file] = (size_t)t->offset + t->size;
    }
    return FIRN_OK;
}

static firn_status make(firn_weights *w, int64_t backward, uint64_t others, size_t **size)
{
    const firn_model *m = w->model;

    FIRN_TRY(firn_weight_layout_create(w->ctx, m, backward, &w->layout));
    FIRN_TRY(firn_weight_plan_of(w->ctx, w->device, &w->layout, others, &w->plan));
    FIRN_TRY(find_parts(w, size));
    w->copy = firn_alloc_zeroed(w->ctx, (size_t)m->hp.n_layer + 1, sizeof *w->copy);
    w->ring = firn_alloc_zeroed(w->ctx, (size_t)w->plan.n_slots + 1, sizeof *w->ring);
    if (!w->copy || !w->ring)
        return FIRN_ERR_MEMORY;
    for (int i = 0; i < w->n_parts; i++)
        if (w->base[i] && (w->plan.ends_mapped || w->plan.blocks == FIRN_WEIGHTS_MAPPED))
            FIRN_TRY(firn_buffer_wrap(w->device, w->base[i], (*size)[i], &w->part[i]));
    FIRN_TRY(make_copies(w));
    for (int id = 0; id < FIRN_T_COUNT; id++)
        if (gathered_bytes(m, backward, id))
            FIRN_TRY(firn_buffer_create(w->device, (size_t)gathered_bytes(m, backward, id), &w->gathered[id]));
    FIRN_TRY(make_tables(w, w->device));
    if (!m->made_factors.data)
        return FIRN_OK;
    FIRN_TRY(firn_buffer_create(w->device, m->made_factors.size, &w->made));
    return firn_buffer_write(w->made, 0, m->made_factors.data, m->made_factors.size);
}

firn_status firn_weights_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t backward,
                                uint64_t others, firn_weights **result)
{
    size_t *size = NULL;

    *result = NULL;
    firn_weights *w = firn_alloc_zeroed(ctx, 1, sizeof *w);
    if (!w)
        return FIRN_ERR_MEMORY;
    w->ctx = ctx;
    w->device = device;
    w->model = model;
    const firn_status s = make(w, backward, others, &size);
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
    for (int i = 0; w->ring && i < w->plan.n_slots; i++)
        firn_buffer_destroy(w->ring[i].memory);
    for (int64_t i = 0; w->copy && i <= w->model->hp.n_layer; i++)
        firn_buffer_destroy(w->copy[i]);
    for (int i = 0; w->part && i < w->n_parts; i++)
        firn_buffer_destroy(w->part[i]);
    for (int id = 0; id < FIRN_T_COUNT; id++)
        firn_buffer_destroy(w->gathered[id]);
    firn_buffer_destroy(w->tables);
    firn_buffer_destroy(w->made);
    firn_weight_layout_clear(&w->layout);
    firn_free(w->ctx, w->ring);
    firn_free(w->ctx, w->copy);
    firn_free(w->ctx, w->part);
    firn_free(w->ctx, w->base);
    firn_free(w->ctx, w);
}

/* ---- the ring ---- */

static firn_weight_slot *slot_of(const firn_weights *w, int64_t layer)
{
    for (int i = 0; i < w->plan.n_slots; i++)
        if (w->ring[i].layer == layer)
            return &w->ring[i];
    return NULL;
}

/* The one that was wanted longest ago; not the block that computes, unless there is no other. */
static firn_weight_slot *oldest(const firn_weights *w)
{
    firn_weight_slot *found = &w->ring[0];

    for (int i = 1; i < w->plan.n_slots; i++)
        if (found->layer == w->current || (w->ring[i].turn < found->turn && w->ring[i].layer != w->current))
            found = &w->ring[i];
    return found;
}

/* Enqueues what brings a block, behind the last reader of the one that was there before. */
static firn_status bring(firn_weights *w, int64_t layer, firn_weight_slot **result)
{
    firn_weight_slot *slot = slot_of(w, layer);

    if (!slot) {
        slot = oldest(w);
        slot->layer = -1;
        FIRN_TRY(firn_queue_after(w->device, FIRN_QUEUE_TRANSFER, slot->used));
        FIRN_TRY(upload(w, FIRN_QUEUE_TRANSFER, layer, slot->memory));
        slot->there = firn_queue_event(w->device, FIRN_QUEUE_TRANSFER);
        slot->layer = layer;
    }
    slot->turn = ++w->turn;
    *result = slot;
    return FIRN_OK;
}

firn_status firn_weights_acquire(firn_weights *w, int64_t layer)
{
    firn_weight_slot *slot;

    if (w->plan.blocks != FIRN_WEIGHTS_STREAMED)
        return FIRN_OK;
    w->current = layer;
    FIRN_TRY(bring(w, layer, &slot));
    return firn_queue_after(w->device, FIRN_QUEUE_COMPUTE, slot->there);
}

firn_status firn_weights_release(firn_weights *w, int64_t layer, int64_t next)
{
    if (w->plan.blocks != FIRN_WEIGHTS_STREAMED)
        return FIRN_OK;
    firn_weight_slot *slot = slot_of(w, layer);
    assert(slot); /* it was acquired */
    slot->used = firn_queue_event(w->device, FIRN_QUEUE_COMPUTE);
    if (next < 0 || next >= w->model->hp.n_layer)
        return FIRN_OK;
    firn_weights_near(w, 2 * next - layer); /* read while the next one is copied */
    return bring(w, next, &slot);
}

/* ---- binding ---- */

/* Binds a slot to the bytes from `offset` on of a part of the file, which belong to a group. */
static firn_status bind(const firn_weights *w, firn_exec *exec, const firn_tensor *tensor, int64_t group, int file,
                        uint64_t offset)
{
    const bool end = group == w->model->hp.n_layer;
    firn_buffer *memory = w->copy[group];
    size_t at = (size_t)offset;

    if (end ? w->plan.ends_mapped : w->plan.blocks == FIRN_WEIGHTS_MAPPED)
        return firn_exec_bind(exec, tensor, w->part[file], at);
    if (!end && w->plan.blocks == FIRN_WEIGHTS_STREAMED) {
        const firn_weight_slot *slot = slot_of(w, group);
        memory = slot ? slot->memory : NULL;
    }
    if (!memory || !firn_weight_layout_find(&w->layout, group, file, offset, &at))
        return firn_fail(w->ctx, FIRN_ERR_ARGUMENT, "%s was not brought to %s", tensor->name,
                         firn_device_name(w->device));
    return firn_exec_bind(exec, tensor, memory, at);
}

firn_status firn_weights_bind(const firn_weights *w, firn_exec *exec, const firn_tensor *slot,
                              const firn_gguf_tensor *t)
{
    if (!slot)
        return FIRN_OK;
    if (t->file < 0)
        return firn_exec_bind(exec, slot, w->made, (size_t)t->offset);
    const int32_t group = w->layout.group_of[t - firn_gguf_tensor_at(w->model->gguf, 0)];
    assert(group >= 0);
    return bind(w, exec, slot, group, t->file, t->offset);
}

firn_status firn_weights_bind_weight(firn_weights *w, firn_exec *exec, const firn_tensor *bytes,
                                     const firn_tensor *table, const firn_layer *l, firn_tensor_id id)
{
    const firn_stack *s = l->stack[id];
    const int64_t layer = l - w->model->layers;

    if (!bytes || !s)
        return firn_weights_bind(w, exec, bytes, l->weight[id]);
    if (s->distance)
        return bind(w, exec, bytes, layer, s->part[0]->file, s->part[0]->offset);
    if (table) {
        FIRN_TRY(firn_exec_bind(exec, table, w->tables, (size_t)s->number * table_bytes(w->model)));
        return bind(w, exec, bytes, layer, s->part[0]->file, (uint64_t)s->origin);
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

/* ---- pages of the file ---- */

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
