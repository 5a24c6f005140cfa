/* Embedding and head; see ends.h. */
#include "model/ends.h"

#include "model/block.h"

#include <math.h>

static firn_tensor *slot_of(firn_graph *g, const firn_gguf_tensor *t)
{
    return firn_slot(g, t->type, FIRN_MAX_DIMS, t->ne, "%s", t->name);
}

/* ---- embedding ---- */

/* The blocks' own inputs, those of one block together. x [d, n] -> [P, n, L] */
static firn_tensor *layer_inputs(firn_embedding *e, const firn_model *m, firn_tensor *x, int64_t n)
{
    firn_graph *g = e->graph;
    const int64_t P = m->hp.n_per_layer, of_layers[] = {P, m->hp.n_layer, n};

    e->layer_table = slot_of(g, m->layer_embd);
    e->layer_proj = slot_of(g, m->layer_proj);
    e->layer_norm = slot_of(g, m->layer_norm);
    firn_tensor *y = firn_scale(g, firn_mul_mat(g, e->layer_proj, x), 1 / sqrtf((float)m->hp.n_embd));
    y = firn_rms_norm(g, firn_reshape(g, y, 3, of_layers), e->layer_norm, m->hp.norm_eps);
    firn_tensor *own = firn_reshape(g, firn_get_rows(g, e->layer_table, e->tokens), 3, of_layers);
    y = firn_scale(g, firn_add(g, y, firn_scale(g, own, sqrtf((float)P))), sqrtf(0.5f));
    return firn_named(firn_cont(g, firn_permute(g, y, 0, 2, 1, 3)), "per-layer inputs");
}

firn_status firn_embedding_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t n_tokens,
                                  firn_embedding **result)
{
    firn_embedding *e = *result = firn_alloc_zeroed(ctx, 1, sizeof *e);

    if (!e)
        return FIRN_ERR_MEMORY;
    firn_status s = firn_graph_create(ctx, &e->graph);
    if (s == FIRN_OK) {
        e->table = slot_of(e->graph, model->token_embd);
        e->tokens = firn_slot(e->graph, FIRN_I32, 1, &n_tokens, "tokens");
        firn_tensor *x = firn_named(firn_get_rows(e->graph, e->table, e->tokens), "embedding");
        if (model->hp.embedding_scale != 1)
            x = firn_named(firn_scale(e->graph, x, model->hp.embedding_scale), "scaled embedding");
        e->x = firn_output(e->graph, x);
        if (model->hp.n_per_layer)
            e->inputs = firn_output(e->graph, layer_inputs(e, model, x, n_tokens));
        s = firn_plan_create(device, e->graph, &e->plan);
    }
    if (s == FIRN_OK)
        s = firn_exec_create(e->plan, &e->exec);
    if (s != FIRN_OK) {
        firn_embedding_destroy(ctx, e);
        *result = NULL;
    }
    return s;
}

void firn_embedding_destroy(firn_context *ctx, firn_embedding *e)
{
    if (!e)
        return;
    firn_exec_destroy(e->exec);
    firn_plan_destroy(e->plan);
    firn_graph_destroy(e->graph);
    firn_free(ctx, e);
}

firn_status firn_embedding_bind(firn_embedding *e, const firn_weights *w)
{
    FIRN_TRY(firn_weights_bind(w, e->exec, e->table, w->model->token_embd));
    FIRN_TRY(firn_weights_bind(w, e->exec, e->layer_table, w->model->layer_embd));
    FIRN_TRY(firn_weights_bind(w, e->exec, e->layer_proj, w->model->layer_proj));
    return firn_weights_bind(w, e->exec, e->layer_norm, w->model->layer_norm);
}

/* ---- head ---- */

int64_t firn_head_chunk(const firn_model *model, int64_t n_tokens)
{
    /* 128 rows feed a matrix product well; a large vocabulary takes fewer, so that logits and their gradient stay
     * within some 64 MiB. */
    int64_t chunk = 128;

    while (chunk > 32 && chunk * model->hp.n_vocab * 8 > 64 << 20)
        chunk /= 2;
    return chunk < n_tokens ? chunk : n_tokens;
}

static firn_status build(firn_head *k, const firn_model *m, firn_head_task task, bool dx)
{
    firn_graph *g = k->graph;
    const firn_adapter_entry *e = k->entry;
    const int64_t d = m->hp.n_embd;

    k->x = firn_slot(g, FIRN_F32, 2, (int64_t[]){d, k->rows}, "x");
    k->pick = firn_slot(g, FIRN_I32, 1, &k->chunk, "picked tokens");
    k->norm = slot_of(g, m->output_norm);
    k->output = slot_of(g, m->output);
    if (m->output_bias)
        k->bias = slot_of(g, m->output_bias);
    if (m->output_factor)
        k->factor = slot_of(g, m->output_factor);
    if (e) {
        k->a = firn_slot(g, FIRN_F32, 2, (int64_t[]){e->n_in, e->rank}, "output.lora_a");
        k->b = firn_slot(g, FIRN_F32, 2, (int64_t[]){e->rank, e->n_out}, "output.lora_b");
    }
    firn_tensor *picked = firn_named(firn_get_rows(g, k->x, k->pick), "picked rows");
    firn_tensor *h = firn_named(firn_rms_norm(g, picked, k->norm, m->hp.norm_eps), "output_norm");
    firn_tensor *logits =
        firn_named(firn_adapted_product(g, k->output, k->factor, k->bias, k->a, k->b, e ? e->scale : 1, h), "logits");
    if (m->hp.logit_scale != 1)
        logits = firn_named(firn_scale(g, logits, 1 / m->hp.logit_scale), "scaled logits");
    if (m->hp.softcap != 0)
        logits = firn_named(firn_scale(g, firn_tanh(g, firn_scale(g, logits, 1 / m->hp.softcap)), m->hp.softcap),
                            "capped logits");
    if (task == FIRN_HEAD_LOGITS) {
        k->logits = firn_output(g, logits);
        return firn_graph_status(g);
    }
    k->targets = firn_slot(g, FIRN_I32, 1, &k->chunk, "targets");
    k->loss = firn_output(g, firn_named(firn_cross_entropy(g, logits, k->targets), "loss"));
    if (task == FIRN_HEAD_LOSS)
        return firn_graph_status(g);

    firn_tensor *wanted[3], *grads[3];
    int n = 0;
    k->dloss = firn_slot(g, FIRN_F32, 1, &k->chunk, "dloss");
    if (dx)
        k->dx = firn_slot(g, FIRN_F32, 2, (int64_t[]){d, k->rows}, "dx");
    if (e) {
        k->da = firn_slot(g, FIRN_F32, 2, k->a ? k->a->ne : NULL, "gradient of output.lora_a");
        k->db = firn_slot(g, FIRN_F32, 2, k->b ? k->b->ne : NULL, "gradient of output.lora_b");
        wanted[n++] = k->a;
        wanted[n++] = k->b;
    }
    if (dx)
        wanted[n++] = picked;
    firn_graph_cut(g);
    FIRN_TRY(firn_graph_status(g));
    FIRN_TRY(firn_graph_grad(g, k->loss, k->dloss, wanted, n, grads));
    if (e) {
        firn_add_gradient(g, k->da, grads[0]);
        firn_add_gradient(g, k->db, grads[1]);
    }
    if (dx)
        firn_named(firn_set_rows(g, k->dx, grads[n - 1], k->pick), "dx");
    return firn_graph_status(g);
}

firn_status firn_head_create(firn_context *ctx, firn_device *device, const firn_model *model,
                             const firn_adapter_entry *entry, int64_t rows, int64_t chunk, firn_head_task task, bool dx,
                             firn_head **result)
{
    firn_head *k = *result = firn_alloc_zeroed(ctx, 1, sizeof *k);

    if (!k)
        return FIRN_ERR_MEMORY;
    k->entry = entry;
    k->rows = rows;
    k->chunk = chunk;
    firn_status s = firn_graph_create(ctx, &k->graph);
    if (s == FIRN_OK)
        s = build(k, model, task, dx);
    if (s == FIRN_OK)
        s = firn_plan_create(device, k->graph, &k->plan);
    if (s == FIRN_OK)
        s = firn_exec_create(k->plan, &k->exec);
    if (s != FIRN_OK) {
        firn_fail_in(ctx, s, "head");
        firn_head_destroy(ctx, k);
        *result = NULL;
    }
    return s;
}

void firn_head_destroy(firn_context *ctx, firn_head *k)
{
    if (!k)
        return;
    firn_exec_destroy(k->exec);
    firn_plan_destroy(k->plan);
    firn_graph_destroy(k->graph);
    firn_free(ctx, k);
}

firn_status firn_head_bind(firn_head *k, const firn_weights *w, firn_buffer *values, firn_buffer *gradients)
{
    const firn_model *m = w->model;

    FIRN_TRY(firn_weights_bind(w, k->exec, k->norm, m->output_norm));
    FIRN_TRY(firn_weights_bind(w, k->exec, k->output, m->output));
    FIRN_TRY(firn_weights_bind(w, k->exec, k->bias, m->output_bias));
    FIRN_TRY(firn_weights_bind(w, k->exec, k->factor, m->output_factor));
    if (k->a) {
        FIRN_TRY(firn_exec_bind(k->exec, k->a, values, (size_t)k->entry->a * sizeof(float)));
        FIRN_TRY(firn_exec_bind(k->exec, k->b, values, (size_t)k->entry->b * sizeof(float)));
    }
    if (k->da) {
        FIRN_TRY(firn_exec_bind(k->exec, k->da, gradients, (size_t)k->entry->a * sizeof(float)));
        FIRN_TRY(firn_exec_bind(k->exec, k->db, gradients, (size_t)k->entry->b * sizeof(float)));
    }
    return FIRN_OK;
}
