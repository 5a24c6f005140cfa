/* Stretches of the file, and the choice of a place; see place.h. */
#include "model/place.h"

#include "core/machine.h"
#include "model/stack.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, USUAL_SLOTS = 3 /* one computes, one comes, one is there when the direction turns */ };

/* ---- stretches ---- */

typedef struct {
    firn_stretch *items;
    size_t n, capacity;
} stretch_list;

static firn_status add(firn_context *ctx, stretch_list *list, int file, uint64_t low, uint64_t high)
{
    FIRN_TRY(firn_grow(ctx, (void **)&list->items, list->n, &list->capacity, sizeof *list->items));
    list->items[list->n++] = (firn_stretch){.file = file, .low = low, .high = high};
    return FIRN_OK;
}

/* A tensor of the file joins a group. */
static firn_status add_tensor(firn_weight_layout *l, stretch_list *list, int32_t group, const firn_gguf_tensor *t)
{
    if (!t || t->file < 0) /* not there, or made by us */
        return FIRN_OK;
    l->group_of[t - firn_gguf_tensor_at(l->model->gguf, 0)] = group;
    return add(l->ctx, list, t->file, t->offset, t->offset + t->size);
}

static firn_status add_stack(firn_weight_layout *l, stretch_list *list, const firn_stack *s, bool backward)
{
    const firn_gguf_tensor *first = s->part[0], *last = s->part[s->tensor.ne[2] - 1];

    if (s->distance)
        return add(l->ctx, list, first->file, first->offset, last->offset + last->size);
    if (!s->span || backward) /* gathered */
        return FIRN_OK;
    return add(l->ctx, list, first->file, (uint64_t)s->origin, (uint64_t)(s->origin + s->span));
}

static int by_place(const void *a, const void *b)
{
    const firn_stretch *p = a, *q = b;

    if (p->file != q->file)
        return p->file < q->file ? -1 : 1;
    return p->low < q->low ? -1 : p->low > q->low;
}

/* Joins what touches, padding between tensors included, and lays the rest out. */
static void lay_out(stretch_list *list, firn_weight_group *group)
{
    int n = 0;

    if (list->n == 0)
        return;
    qsort(list->items, list->n, sizeof *list->items, by_place);
    for (size_t i = 0; i < list->n; i++) {
        firn_stretch *before = n ? &list->items[n - 1] : NULL;
        const firn_stretch s = list->items[i];
        if (before && before->file == s.file && s.low <= before->high + ALIGN)
            before->high = s.high > before->high ? s.high : before->high;
        else
            list->items[n++] = s;
    }
    for (int i = 0; i < n; i++) {
        firn_stretch *s = &list->items[i];
        s->at = (group->bytes + ALIGN - 1) / ALIGN * ALIGN + (size_t)(s->low % ALIGN);
        group->bytes = s->at + (size_t)(s->high - s->low);
    }
    group->stretches = list->items;
    group->n = n;
}

static firn_status lay_out_block(firn_weight_layout *l, int64_t layer, bool backward)
{
    const firn_layer *b = &l->model->layers[layer];
    stretch_list list = {0};
    firn_status s = FIRN_OK;

    for (int i = 0; s == FIRN_OK && i < FIRN_T_COUNT; i++) {
        s = b->stack[i] ? add_stack(l, &list, b->stack[i], backward)
                        : add_tensor(l, &list, (int32_t)layer, b->weight[i]);
        if (s == FIRN_OK)
            s = add_tensor(l, &list, (int32_t)layer, b->bias[i]);
        if (s == FIRN_OK)
            s = add_tensor(l, &list, (int32_t)layer, b->factor[i]);
    }
    lay_out(&list, &l->groups[layer]);
    return s;
}

static firn_status lay_out_ends(firn_weight_layout *l)
{
    const firn_model *m = l->model;
    const firn_gguf_tensor *ends[FIRN_MODEL_ENDS];
    stretch_list list = {0};
    firn_status s = FIRN_OK;

    firn_model_ends(m, ends);
    for (int i = 0; s == FIRN_OK && i < FIRN_MODEL_ENDS; i++)
        s = add_tensor(l, &list, (int32_t)m->hp.n_layer, ends[i]);
    lay_out(&list, &l->groups[m->hp.n_layer]);
    return s;
}

firn_status firn_weight_layout_create(firn_context *ctx, const firn_model *model, int64_t backward,
                                      firn_weight_layout *l)
{
    const size_t n = firn_gguf_n_tensors(model->gguf);

    *l = (firn_weight_layout){.ctx = ctx, .model = model};
    l->groups = firn_alloc_zeroed(ctx, (size_t)model->hp.n_layer + 1, sizeof *l->groups);
    l->group_of = firn_alloc(ctx, (n + 1) * sizeof *l->group_of);
    firn_status s = l->groups && l->group_of ? FIRN_OK : FIRN_ERR_MEMORY;
    for (size_t i = 0; s == FIRN_OK && i < n; i++)
        l->group_of[i] = -1;
    for (int64_t i = 0; s == FIRN_OK && i < model->hp.n_layer; i++)
        s = lay_out_block(l, i, i >= backward);
    if (s == FIRN_OK)
        s = lay_out_ends(l);
    if (s != FIRN_OK)
        firn_weight_layout_clear(l);
    return s;
}

void firn_weight_layout_clear(firn_weight_layout *l)
{
    for (int64_t i = 0; l->groups && i <= l->model->hp.n_layer; i++)
        firn_free(l->ctx, l->groups[i].stretches);
    if (l->ctx) {
        firn_free(l->ctx, l->groups);
        firn_free(l->ctx, l->group_of);
    }
    *l = (firn_weight_layout){0};
}

bool firn_weight_layout_find(const firn_weight_layout *l, int64_t group, int file, uint64_t offset, size_t *at)
{
    const firn_weight_group *g = &l->groups[group];

    for (int i = 0; i < g->n; i++) {
        const firn_stretch *s = &g->stretches[i];
        if (s->file == file && offset >= s->low && offset < s->high) {
            *at = s->at + (size_t)(offset - s->low);
            return true;
        }
    }
    return false;
}

/* ---- the choice ---- */

static firn_device_info info_of(firn_device *device)
{
    firn_device_info info = {.size = sizeof info, .host_memory = device->backend->buffer_wrap != NULL};

    if (device->backend->info)
        device->backend->info(device, &info);
    return info;
}

uint64_t firn_device_room(firn_device *device)
{
    const firn_device_info info = info_of(device);

    return info.host_memory ? 0 : info.memory_free;
}

static uint64_t up(uint64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static const char *amount(firn_text *text, uint64_t bytes)
{
    text->size = 0;
    firn_text_bytes(text, bytes);
    return firn_text_cstr(text);
}

/* "...: 1.20 GiB, not 500 MiB". */
static firn_status too_small(firn_context *ctx, const char *format, uint64_t wanted, uint64_t there)
{
    firn_text a, b;

    firn_text_init(&a, ctx, 0);
    firn_text_init(&b, ctx, 0);
    const char *wants = amount(&a, wanted), *has = amount(&b, there);
    firn_fail(ctx, FIRN_ERR_MEMORY, format, wants, has);
    firn_text_free(&a);
    firn_text_free(&b);
    return FIRN_ERR_MEMORY;
}

/* How many blocks the ring has; `room` 0: as the context says. */
static firn_status choose_ring(firn_context *ctx, int64_t n_layer, uint64_t room, firn_weight_plan *p)
{
    const uint64_t asked = room ? room : ctx->ring_bytes, slot = p->slot_bytes ? p->slot_bytes : 1;
    const uint64_t least = n_layer < 2 ? 1 : 2, n = asked ? asked / slot : USUAL_SLOTS;

    if (n < least)
        return too_small(ctx,
                         room ? "streaming weights takes room for two blocks on the device, %s, and there is %s"
                              : "a ring for streamed weights has room for two blocks at least, %s, not %s",
                         least * slot, asked);
    p->n_slots = (int)(n < (uint64_t)n_layer ? n : (uint64_t)n_layer);
    return FIRN_OK;
}

firn_status firn_weight_plan_of(firn_context *ctx, firn_device *device, const firn_weight_layout *l, uint64_t others,
                                firn_weight_plan *p)
{
    const firn_device_info info = info_of(device);
    const int64_t n_layer = l->model->hp.n_layer;
    firn_weights_place place = ctx->weights;

    *p = (firn_weight_plan){.ends_bytes = up(l->groups[n_layer].bytes)};
    for (int64_t i = 0; i < n_layer; i++) {
        const uint64_t bytes = up(l->groups[i].bytes);
        p->block_bytes += bytes;
        p->slot_bytes = bytes > p->slot_bytes ? bytes : p->slot_bytes;
    }
    if (place == FIRN_WEIGHTS_MAPPED && !info.host_memory)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "%s has memory of its own and cannot read weights in the mapped file: --weights resident or "
                         "streamed",
                         device->name);
    const uint64_t room = info.host_memory || !info.memory_free       ? UINT64_MAX
                          : info.memory_free > others + p->ends_bytes ? info.memory_free - others - p->ends_bytes
                                                                      : 1;
    if (place == FIRN_WEIGHTS_AUTO)
        place = info.host_memory         ? FIRN_WEIGHTS_MAPPED
                : p->block_bytes <= room ? FIRN_WEIGHTS_RESIDENT
                                         : FIRN_WEIGHTS_STREAMED;
    p->blocks = place;
    p->ends_mapped = info.host_memory && place != FIRN_WEIGHTS_RESIDENT;
    if (place == FIRN_WEIGHTS_STREAMED)
        FIRN_TRY(choose_ring(ctx, n_layer, room != UINT64_MAX && !ctx->ring_bytes ? room : 0, p));
    p->device_bytes =
        (p->ends_mapped ? 0 : p->ends_bytes) + (place == FIRN_WEIGHTS_RESIDENT   ? p->block_bytes
                                                : place == FIRN_WEIGHTS_STREAMED ? (uint64_t)p->n_slots * p->slot_bytes
                                                                                 : 0);
    return FIRN_OK;
}

void firn_weight_plan_text(const firn_session_memory *m, firn_text *text)
{
    if (m->place == FIRN_WEIGHTS_RESIDENT) {
        firn_text_puts(text, "resident on the device ");
        firn_text_bytes(text, m->weights);
    } else if (m->place == FIRN_WEIGHTS_STREAMED) {
        firn_text_puts(text, "streamed from the file ");
        firn_text_bytes(text, m->mapped);
        firn_text_printf(text, " through %d block%s, ", m->ring, m->ring == 1 ? "" : "s");
        firn_text_bytes(text, m->weights);
    } else {
        firn_text_puts(text, "mapped from the file ");
        firn_text_bytes(text, m->mapped);
    }
}
