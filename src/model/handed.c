/* Inputs of the blocks' own, and keys and values that are lent; see handed.h. */
#include "model/handed.h"

#include "core/backend.h"

/* Where the keys of a lender begin; for the number of blocks, how many bytes all take. */
static uint64_t place(const firn_model *m, int64_t layer, int64_t n_tokens)
{
    uint64_t floats = 0;

    for (int64_t i = 0; i < layer; i++)
        if (m->layers[i].lends)
            floats += (uint64_t)(m->layers[i].k_row + m->layers[i].v_row) * (uint64_t)n_tokens;
    return floats * sizeof(float);
}

static uint64_t input_bytes(const firn_model *m, int64_t n_tokens)
{
    return (uint64_t)m->hp.n_per_layer * (uint64_t)n_tokens * sizeof(float);
}

uint64_t firn_handed_bytes(const firn_model *m, int64_t n_tokens, firn_handed_parts parts)
{
    return input_bytes(m, n_tokens) * (uint64_t)m->hp.n_layer + (uint64_t)parts * place(m, m->hp.n_layer, n_tokens);
}

firn_status firn_handed_create(firn_device *device, const firn_model *m, int64_t n_tokens, firn_handed_parts parts,
                               firn_handed *h)
{
    const uint64_t inputs = input_bytes(m, n_tokens) * (uint64_t)m->hp.n_layer,
                   keys = parts >= FIRN_HANDED_KEYS ? place(m, m->hp.n_layer, n_tokens) : 0;

    *h = (firn_handed){.model = m, .n_tokens = n_tokens};
    if (inputs)
        FIRN_TRY(firn_buffer_create(device, (size_t)inputs, &h->inputs));
    if (keys)
        FIRN_TRY(firn_buffer_create(device, (size_t)keys, &h->keys));
    return keys && parts == FIRN_HANDED_GRADIENTS ? firn_buffer_create(device, (size_t)keys, &h->dkeys) : FIRN_OK;
}

void firn_handed_clear(firn_handed *h)
{
    firn_buffer_destroy(h->inputs);
    firn_buffer_destroy(h->keys);
    firn_buffer_destroy(h->dkeys);
    *h = (firn_handed){0};
}

firn_status firn_handed_zero(const firn_handed *h)
{
    return h->dkeys ? firn_buffer_clear(h->dkeys, 0, (size_t)place(h->model, h->model->hp.n_layer, h->n_tokens))
                    : FIRN_OK;
}

firn_status firn_handed_bind_embedding(const firn_handed *h, const firn_embedding *e)
{
    return e->inputs ? firn_exec_bind(e->exec, e->inputs, h->inputs, 0) : FIRN_OK;
}

firn_status firn_handed_bind(const firn_handed *h, const firn_block *k, firn_exec *exec, int64_t layer, int64_t n)
{
    const int64_t from = h->model->layers[layer].keys_of;
    uint64_t at = place(h->model, from, h->n_tokens);

    if (k->input)
        FIRN_TRY(firn_exec_bind(exec, k->input, h->inputs, (size_t)(input_bytes(h->model, n) * (uint64_t)layer)));
    for (int i = 0; i < 2 && k->keys[i]; i++) {
        FIRN_TRY(firn_exec_bind(exec, k->keys[i], h->keys, (size_t)at));
        if (k->dkeys[i])
            FIRN_TRY(firn_exec_bind(exec, k->dkeys[i], h->dkeys, (size_t)at));
        at += (uint64_t)h->model->layers[from].k_row * (uint64_t)h->n_tokens * sizeof(float);
    }
    return FIRN_OK;
}
