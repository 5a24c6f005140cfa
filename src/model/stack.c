/* Experts that a file keeps apart: "blk.<i>.ffn_up.<e>.weight" [n_in, n_out] for each e, as files were written before
 * "blk.<i>.ffn_up_exps.weight" [n_in, n_out, E]. To everything else the block has that one weight.
 *
 * They are used where they lie. A product takes experts at any distance; files usually write gate, down and up of an
 * expert and then of the next. Where the format's blocks do not divide that distance, or the order is another, the
 * forward product takes a table of places. The gradient takes none, so that a block with one has its experts gathered
 * (weights.c), and so has every block whose experts lie in several files. */
#include "model/stack.h"

#include "format/format.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 96 };

/* "ffn_up_exps": "ffn_up"; the length of what is left. */
static size_t base_length(firn_tensor_id id)
{
    return strlen(firn_tensor_rows[id].base) - strlen("_exps");
}

static const firn_gguf_tensor *part(const firn_model *m, int layer, firn_tensor_id id, int64_t expert,
                                    char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "blk.%d.%.*s.%lld.weight", layer, (int)base_length(id), firn_tensor_rows[id].base,
             (long long)expert);
    return firn_gguf_find(m->gguf, name);
}

bool firn_stack_there(const firn_model *m, int layer, firn_tensor_id id)
{
    char name[NAME_BYTES];

    return part(m, layer, id, 0, name) != NULL;
}

bool firn_stack_dense(const firn_stack *s)
{
    return s->distance == (int64_t)s->part[0]->size;
}

/* The distance, where all parts have the same and a product can step by it. */
static int64_t distance(const firn_stack *s, int64_t n)
{
    const int64_t block = (int64_t)firn_type_size(s->tensor.type);
    const int64_t step = n > 1 ? (int64_t)s->part[1]->offset - (int64_t)s->part[0]->offset : (int64_t)s->part[0]->size;

    for (int64_t e = 1; e < n; e++)
        if (s->part[e]->file != s->part[0]->file ||
            (int64_t)s->part[e]->offset - (int64_t)s->part[e - 1]->offset != step)
            return 0;
    return step >= (int64_t)s->part[0]->size && step % block == 0 ? step : 0;
}

/* What all parts lie in, where that is one file. Its blocks are counted from the end, so that it ends where the last
 * part ends. */
static void find_span(firn_stack *s, int64_t n)
{
    const int64_t block = (int64_t)firn_type_size(s->tensor.type);
    int64_t low = INT64_MAX, high = 0;

    for (int64_t e = 0; e < n; e++) {
        const firn_gguf_tensor *t = s->part[e];
        if (t->file != s->part[0]->file)
            return;
        low = firn_min_i64(low, (int64_t)t->offset);
        high = firn_max_i64(high, (int64_t)(t->offset + t->size));
    }
    const int64_t span = (high - low + block - 1) / block * block;
    if (span > high)
        return;
    s->origin = high - span;
    s->span = span;
}

static firn_status take_part(firn_context *ctx, const firn_model *m, int layer, firn_tensor_id id, int64_t expert,
                             int64_t n_in, int64_t n_out, firn_stack *s)
{
    char name[NAME_BYTES];
    const firn_gguf_tensor *t = s->part[expert] = part(m, layer, id, expert, name), *first = s->part[0];

    if (!t)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s is missing; the experts before it are there", name);
    if (t->ne[0] != n_in || t->ne[1] != n_out || t->ne[2] != 1 || t->ne[3] != 1)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s should be [%lld, %lld], not [%lld, %lld, %lld, %lld]", name,
                         (long long)n_in, (long long)n_out, (long long)t->ne[0], (long long)t->ne[1],
                         (long long)t->ne[2], (long long)t->ne[3]);
    if (t->type != first->type)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "tensor %s has type %s, the first expert has %s: experts of a block "
                         "have one type",
                         name, firn_type_name(t->type), firn_type_name(first->type));
    if (!firn_format_can_decode(t->type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "tensor %s has type %s; no product here can read that", name,
                         firn_type_name(t->type));
    return FIRN_OK;
}

firn_status firn_stack_want(firn_context *ctx, firn_model *m, int layer, firn_tensor_id id, int64_t n_in, int64_t n_out,
                            int64_t n_expert)
{
    firn_stack *s = firn_alloc_zeroed(m->ctx, 1, sizeof *s + (size_t)n_expert * sizeof *s->part + FIRN_MAX_NAME);

    if (!s)
        return FIRN_ERR_MEMORY;
    m->layers[layer].stack[id] = s; /* the model's from here on */
    for (int64_t e = 0; e < n_expert; e++)
        FIRN_TRY(take_part(ctx, m, layer, id, e, n_in, n_out, s));
    char *name = (char *)(s->part + n_expert);
    snprintf(name, FIRN_MAX_NAME, "blk.%d.%s.weight", layer, firn_tensor_rows[id].base);
    s->tensor = *s->part[0];
    s->tensor.name = name;
    s->tensor.n_dims = 3;
    s->tensor.ne[2] = n_expert;
    s->tensor.size *= (size_t)n_expert;
    s->distance = distance(s, n_expert);
    if (!s->distance)
        find_span(s, n_expert);
    if (s->span)
        s->number = m->n_tables++;
    m->layers[layer].weight[id] = &s->tensor;
    return FIRN_OK;
}

bool firn_stack_holds(const firn_model *m, const char *name)
{
    int layer, expert, end = 0;
    char base[32];

    if (sscanf(name, "blk.%9d.%31[a-z_].%9d.weight%n", &layer, base, &expert, &end) != 3 || !end || name[end] ||
        layer < 0 || layer >= m->hp.n_layer)
        return false;
    for (int id = 0; id < FIRN_T_COUNT; id++) {
        const firn_stack *s = m->layers[layer].stack[id];
        if (s && strlen(base) == base_length((firn_tensor_id)id) &&
            memcmp(base, firn_tensor_rows[id].base, strlen(base)) == 0)
            return expert >= 0 && expert < s->tensor.ne[2] && strcmp(s->part[expert]->name, name) == 0;
    }
    return false;
}
