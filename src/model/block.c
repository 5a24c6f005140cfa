/* The shared block builder: every architecture's block is put together here, from what its descriptor and the file say.
 * This file owns the slots and the products with adapters, and joins the parts: attention.c, mla.c, ffn.c.
 *
 * Shapes innermost first: d = n_embd, n = n_tokens. LoRA is part of the product: y = W x + s B (A x), s = alpha / rank;
 * the scale goes onto A x, the smallest tensor. */
#include "model/build.h"
#include "model/recurrent.h"
#include "model/stack.h"

#include <stdio.h>
#include <string.h>

firn_status firn_entries_find(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                              const firn_adapter_entry **entries, const firn_adapter_entry **output)
{
    *output = NULL;
    FIRN_EXPECT(ctx, !adapter || strcmp(adapter->arch, model->arch->name) == 0,
                "the adapter is for models of architecture %s, and this one is of %s", adapter->arch,
                model->arch->name);
    for (int i = 0; adapter && i < adapter->n_entries; i++) {
        const firn_adapter_entry *e = &adapter->entries[i];
        int layer;
        firn_tensor_id id;
        bool bias;
        const firn_gguf_tensor *t = firn_model_find(model, e->tensor, &layer, &id, &bias);
        FIRN_EXPECT(ctx, t && !bias && t->ne[0] == e->n_in && t->ne[1] == e->n_out && t->ne[2] == e->n_expert,
                    "the adapter does not belong to this model: %s", e->tensor);
        if (layer < 0)
            *output = e;
        else
            entries[layer * FIRN_T_COUNT + id] = e;
    }
    return FIRN_OK;
}

firn_block_kind firn_block_kind_of(const firn_model *model, int layer, const firn_adapter_entry *const *entries,
                                   int64_t n_tokens, int64_t n_cache, bool backward, bool dx)
{
    const firn_layer *l = &model->layers[layer];
    firn_block_kind kind;

    memset(&kind, 0, sizeof kind);
    kind.n_tokens = n_tokens;
    kind.n_cache = n_cache;
    kind.n_head = l->n_head;
    kind.n_head_kv = l->n_head_kv;
    kind.head_k = l->head_k;
    kind.head_v = l->head_v;
    kind.n_rot = l->n_rot;
    kind.n_ff = l->weight[FIRN_T_FFN_UP] ? l->n_ff : 0;
    kind.n_ff_expert = l->n_ff_expert;
    kind.n_ff_shared = l->n_ff_shared;
    kind.n_expert_used = l->n_expert_used;
    kind.experts = l->experts;
    kind.mixer = l->mixer;
    kind.mixes = l->mixes;
    kind.feeds = l->feeds;
    kind.rotates = l->rotates;
    kind.stretched = l->stretched;
    kind.factors = l->factors;
    kind.rope_base = l->rope_base;
    kind.lends = l->lends && !n_cache;
    kind.borrows = l->keys_of != layer;
    kind.backward = backward;
    kind.dx = dx;
    for (int i = 0; i < FIRN_T_COUNT; i++) {
        kind.t[i].bias = l->bias[i] != NULL;
        kind.t[i].factor = l->factor[i] != NULL;
        if (l->weight[i]) {
            kind.t[i].there = 1;
            kind.t[i].type = l->weight[i]->type;
            if (l->stack[i] && !firn_stack_dense(l->stack[i])) {
                kind.t[i].distance = l->stack[i]->distance;
                kind.t[i].span = backward ? 0 : l->stack[i]->span;
            }
        }
        if (entries && entries[i]) {
            kind.t[i].rank = (int32_t)entries[i]->rank;
            kind.t[i].scale = entries[i]->scale;
        }
    }
    return kind;
}

/* ---- slots ---- */

static firn_tensor *slot_like(firn_graph *g, const firn_gguf_tensor *t)
{
    /* Without "blk.<i>.": the same slot serves many blocks. */
    const char *dot = strncmp(t->name, "blk.", 4) == 0 ? strchr(t->name + 4, '.') : NULL;

    return firn_slot(g, t->type, FIRN_MAX_DIMS, t->ne, "%s", dot ? dot + 1 : t->name);
}

/* Experts with other tensors between them: a slot over everything from the first to past the last, and a view of it.
 * At equal distances the view picks them; where a table does, it only has to reach from one end to the other. */
static firn_tensor *spread_experts(firn_graph *g, const firn_gguf_tensor *t, int64_t distance, int64_t span,
                                   firn_tensor **bytes)
{
    const int64_t size = (int64_t)firn_type_size(t->type), row = (int64_t)firn_row_bytes(t->type, t->ne[0]);
    const int64_t one = row * t->ne[1], n = span ? 2 : t->ne[2], step = span ? span - one : distance;
    const int64_t blocks = (step * (n - 1) + one) / size;

    *bytes = firn_slot(g, t->type, 1, (int64_t[]){blocks * firn_type_block(t->type)}, "experts, spread");
    return firn_view(g, *bytes, 3, (int64_t[]){t->ne[0], t->ne[1], n}, (int64_t[]){size, row, step}, 0);
}

static void make_slots(firn_builder *u)
{
    const firn_model *m = u->model;
    const firn_layer *l = u->layer;
    firn_block *k = u->block;
    firn_graph *g = u->g;
    const int64_t d = m->hp.n_embd;

    k->x = firn_slot(g, FIRN_F32, 2, (int64_t[]){d, u->n}, "x");
    k->position = firn_slot(g, FIRN_I32, 1, &u->n, "position");
    k->range = firn_slot(g, FIRN_I32, 2, (int64_t[]){2, u->n}, "range");
    const firn_gguf_tensor *factors = firn_model_factors(m, m->hp.n_ctx_train);
    if (factors && l->rotates && l->factors)
        k->factors = slot_like(g, factors);
    if (m->hp.temperature.scale != 0)
        k->temperature = firn_slot(g, FIRN_F32, 3, (int64_t[]){1, 1, u->n}, "temperature");
    if (l->mixer != FIRN_MIX_ATTENTION)
        k->first = firn_slot(g, FIRN_I32, 1, &u->n, "first token");
    const firn_layer *from = &m->layers[l->keys_of];
    if (k->kind.n_cache && from->k_row) {
        if (from == l)
            k->row = firn_slot(g, FIRN_I32, 1, &u->n, "cache row");
        k->k_cache = firn_slot(g, FIRN_F32, 2, (int64_t[]){from->k_row, k->kind.n_cache}, "k cache");
        if (from->v_row)
            k->v_cache = firn_slot(g, FIRN_F32, 2, (int64_t[]){from->v_row, k->kind.n_cache}, "v cache");
    } else if (from != l) {
        k->keys[0] = firn_slot(g, FIRN_F32, 3, (int64_t[]){l->head_k, l->n_head_kv, u->n}, "borrowed k");
        k->keys[1] = firn_slot(g, FIRN_F32, 3, (int64_t[]){l->head_v, l->n_head_kv, u->n}, "borrowed v");
    }
    if (m->hp.n_per_layer)
        k->input = firn_slot(g, FIRN_F32, 2, (int64_t[]){m->hp.n_per_layer, u->n}, "per-layer input");
    for (int i = 0; i < FIRN_T_COUNT; i++) {
        const firn_gguf_tensor *w = l->weight[i];
        const char *base = firn_tensor_rows[i].base;
        const int64_t distance = k->kind.t[i].distance, span = k->kind.t[i].span;
        if (w && (distance || span))
            k->weight[i] = firn_named(spread_experts(g, w, distance, span, &k->bytes[i]), "%s", base);
        else if (w)
            k->weight[i] = k->bytes[i] = slot_like(g, w);
        if (w && span)
            k->table[i] = firn_slot(g, FIRN_I64, 1, &w->ne[2], "where %s lie", base);
        if (l->bias[i] && !(i == FIRN_T_ATTN_OUTPUT && m->arch->attn_output_bias_unused))
            k->bias[i] = slot_like(g, l->bias[i]);
        if (l->factor[i])
            k->factor[i] = slot_like(g, l->factor[i]);
        if (!w || !k->kind.t[i].rank)
            continue;
        const int64_t r = k->kind.t[i].rank, ne_a[] = {w->ne[0], r, w->ne[2]}, ne_b[] = {r, w->ne[1], w->ne[2]};
        k->a[i] = firn_slot(g, FIRN_F32, 3, ne_a, "%s.lora_a", base);
        k->b[i] = firn_slot(g, FIRN_F32, 3, ne_b, "%s.lora_b", base);
        if (k->kind.backward) {
            k->da[i] = firn_slot(g, FIRN_F32, 3, ne_a, "gradient of %s.lora_a", base);
            k->db[i] = firn_slot(g, FIRN_F32, 3, ne_b, "gradient of %s.lora_b", base);
        }
    }
}

/* ---- products ---- */

firn_tensor *firn_adapted_product(firn_graph *g, firn_tensor *w, firn_tensor *factor, firn_tensor *bias, firn_tensor *a,
                                  firn_tensor *b, float scale, firn_tensor *x)
{
    firn_tensor *y = firn_mul_mat(g, w, x);

    if (w)
        firn_named(y, "%s", w->name);
    if (factor)
        y = firn_mul(g, y, factor);
    if (a && b) {
        firn_tensor *low = firn_named(firn_scale(g, firn_mul_mat(g, a, x), scale), "%s", a->name);
        y = firn_add(g, y, firn_named(firn_mul_mat(g, b, low), "%s", b->name));
    }
    return bias ? firn_add(g, y, bias) : y;
}

firn_tensor *firn_build_product(firn_builder *u, firn_tensor_id id, firn_tensor *x)
{
    firn_block *k = u->block;

    return firn_named(firn_adapted_product(u->g, k->weight[id], k->factor[id], k->bias[id], k->a[id], k->b[id],
                                           k->kind.t[id].scale, x),
                      "%s", firn_tensor_rows[id].base);
}

firn_tensor *firn_build_routed(firn_builder *u, firn_tensor_id id, firn_tensor *x, firn_tensor *ids)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *y = firn_mul_mat_id(g, k->weight[id], x, ids, k->table[id]);

    if (k->factor[id]) {
        const int64_t n_expert = u->model->hp.n_expert, n = u->layer->n_expert_used * u->n;
        firn_tensor *of_all = firn_reshape(g, k->factor[id], 2, (int64_t[]){1, n_expert});
        firn_tensor *chosen = firn_get_rows(g, of_all, firn_reshape(g, firn_cont(g, ids), 1, &n));
        y = firn_mul(g, y, firn_reshape(g, chosen, 3, (int64_t[]){1, u->layer->n_expert_used, u->n}));
    }
    if (k->a[id] && k->b[id]) {
        firn_tensor *low = firn_scale(g, firn_mul_mat_id(g, k->a[id], x, ids, NULL), k->kind.t[id].scale);
        firn_named(low, "%s", k->a[id]->name);
        y = firn_add(g, y, firn_named(firn_mul_mat_id(g, k->b[id], low, ids, NULL), "%s", k->b[id]->name));
    }
    if (k->bias[id])
        y = firn_add_id(g, y, k->bias[id], ids);
    return firn_named(y, "%s", firn_tensor_rows[id].base);
}

/* ---- the block ---- */

firn_tensor *firn_output_of(firn_graph *g, firn_tensor *t)
{
    if (t && (!t->op || t->root != t || t->output))
        t = firn_cont(g, t);
    return firn_output(g, t);
}

void firn_add_gradient(firn_graph *g, firn_tensor *slot, firn_tensor *grad)
{
    if (slot && grad)
        firn_add_into(g, slot,
                      firn_reshape(g, firn_is_contiguous(grad) ? grad : firn_cont(g, grad), FIRN_MAX_DIMS, slot->ne));
}

/* What a part adds to the stream. `norm`: where there are norms behind the parts. */
static firn_tensor *residual(firn_builder *u, firn_tensor *x, firn_tensor_id norm)
{
    const float scale = u->model->hp.residual_scale;

    if (u->model->arch->sandwich)
        x = firn_named(firn_rms_norm(u->g, x, u->block->weight[norm], u->model->hp.norm_eps), "%s",
                       firn_tensor_rows[norm].base);
    return scale == 1 ? x : firn_scale(u->g, x, scale);
}

static firn_tensor *attention(firn_builder *u, firn_tensor *x)
{
    if (u->layer->mixer != FIRN_MIX_ATTENTION)
        return firn_build_recurrent(u, x);
    return u->model->arch->attention == FIRN_ATTENTION_MLA ? firn_build_mla(u, x) : firn_build_attention(u, x);
}

/* What the block's own input adds to the stream. */
static firn_tensor *own_input(firn_builder *u, firn_tensor *x)
{
    firn_tensor *chosen = firn_geglu(u->g, firn_build_product(u, FIRN_T_INP_GATE, x), u->block->input);
    firn_tensor *y = firn_build_product(u, FIRN_T_PROJ, chosen);

    return firn_named(firn_rms_norm(u->g, y, u->block->weight[FIRN_T_POST_NORM], u->model->hp.norm_eps), "post_norm");
}

static void forward(firn_builder *u)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    const float eps = u->model->hp.norm_eps;
    const firn_tensor_id norm = k->weight[FIRN_T_FFN_NORM]              ? FIRN_T_FFN_NORM
                                : k->weight[FIRN_T_POST_ATTENTION_NORM] ? FIRN_T_POST_ATTENTION_NORM
                                                                        : FIRN_T_ATTN_NORM; /* the only one */
    firn_tensor *x = k->x;

    if (u->layer->mixes) {
        firn_tensor *h = firn_named(firn_rms_norm(g, x, k->weight[FIRN_T_ATTN_NORM], eps), "attn_norm");
        x = firn_add(g, x, residual(u, attention(u, h), FIRN_T_POST_ATTENTION_NORM));
        firn_named(x, "after attention");
    }
    if (u->layer->feeds) {
        firn_tensor *h = firn_named(firn_rms_norm(g, x, k->weight[norm], eps), "ffn_norm");
        x = firn_add(g, x, residual(u, firn_build_feed_forward(u, h, x), FIRN_T_POST_FFW_NORM));
    }
    if (k->input)
        x = firn_add(g, x, own_input(u, x));
    if (k->weight[FIRN_T_LAYER_OUTPUT_SCALE])
        x = firn_mul(g, x, k->weight[FIRN_T_LAYER_OUTPUT_SCALE]);
    k->y = firn_output(g, firn_named(x, "block output"));
}

static firn_status backward(firn_context *ctx, firn_builder *u)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *wanted[3 + 2 * FIRN_T_COUNT], *grads[3 + 2 * FIRN_T_COUNT];
    firn_tensor *result[5] = {k->y}, *slope[5];
    int n = 0, n_results = 1;

    FIRN_TRY(firn_graph_status(g));
    k->dy = firn_slot(g, FIRN_F32, 2, (int64_t[]){u->model->hp.n_embd, u->n}, "dy");
    slope[0] = k->dy;
    for (int i = 0; i < 2 && k->router[i]; i++) {
        k->drouter[i] = firn_slot(g, FIRN_F32, 1, (int64_t[]){1}, "slope of %s", k->router[i]->name);
        result[n_results] = k->router[i];
        slope[n_results++] = k->drouter[i];
    }
    for (int i = 0; i < 2 && k->kind.dkeys; i++) {
        k->dkeys[i] = firn_slot(g, FIRN_F32, 3, k->keys[i]->ne, "gradient of %s that are lent", i ? "values" : "keys");
        if (k->kind.borrows)
            continue;
        result[n_results] = k->keys[i];
        slope[n_results++] = k->dkeys[i];
    }
    firn_graph_cut(g);
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (k->a[i]) {
            wanted[n++] = k->a[i];
            wanted[n++] = k->b[i];
        }
    for (int i = 0; i < 2 && k->kind.dkeys && k->kind.borrows; i++)
        wanted[n++] = k->keys[i];
    if (k->kind.dx)
        wanted[n++] = k->x;
    FIRN_EXPECT(ctx, n > 0, "a backward pass needs something to differentiate by");
    /* What the router's losses add reaches the router's logits within this block, what others do with keys that are
     * lent reaches these; nothing of it passes through y. */
    FIRN_TRY(firn_graph_grad_all(g, result, slope, n_results, wanted, n, grads));
    n = 0;
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (k->a[i]) {
            firn_add_gradient(g, k->da[i], grads[n++]);
            firn_add_gradient(g, k->db[i], grads[n++]);
        }
    for (int i = 0; i < 2 && k->kind.dkeys && k->kind.borrows; i++)
        firn_add_gradient(g, k->dkeys[i], grads[n++]);
    if (k->kind.dx)
        k->dx = firn_named(firn_output_of(g, grads[n]), "dx");
    return firn_graph_status(g);
}

firn_status firn_block_create(firn_context *ctx, firn_device *device, const firn_model *model, int layer,
                              const firn_block_kind *kind, firn_block **result)
{
    firn_block *k = firn_alloc_zeroed(ctx, 1, sizeof *k);
    firn_status s = FIRN_ERR_MEMORY;

    *result = NULL;
    if (!k)
        return FIRN_ERR_MEMORY;
    k->kind = *kind;
    s = firn_graph_create(ctx, &k->graph);
    if (s == FIRN_OK) {
        firn_builder u = {
            .model = model, .layer = &model->layers[layer], .g = k->graph, .block = k, .n = kind->n_tokens};
        make_slots(&u);
        forward(&u);
        s = kind->backward ? backward(ctx, &u) : firn_graph_status(k->graph);
    }
    if (s == FIRN_OK)
        s = firn_plan_create(device, k->graph, &k->plan);
    if (s != FIRN_OK) {
        firn_fail_in(ctx, s, "block %d", layer);
        firn_block_destroy(ctx, k);
        return s;
    }
    *result = k;
    return FIRN_OK;
}

void firn_block_destroy(firn_context *ctx, firn_block *k)
{
    if (!k)
        return;
    firn_plan_destroy(k->plan);
    firn_graph_destroy(k->graph);
    firn_free(ctx, k);
}

firn_status firn_block_bind(const firn_block *k, firn_exec *exec, firn_weights *w, int64_t layer,
                            const firn_adapter_entry *const *entries, firn_buffer *values, firn_buffer *gradients)
{
    const firn_layer *l = &w->model->layers[layer];

    for (int i = 0; i < FIRN_T_COUNT; i++) {
        const firn_adapter_entry *e = entries[i];
        FIRN_TRY(firn_weights_bind_weight(w, exec, k->bytes[i], k->table[i], l, (firn_tensor_id)i));
        FIRN_TRY(firn_weights_bind(w, exec, k->bias[i], l->bias[i]));
        FIRN_TRY(firn_weights_bind(w, exec, k->factor[i], l->factor[i]));
        if (!e)
            continue;
        FIRN_TRY(firn_exec_bind(exec, k->a[i], values, (size_t)e->a * sizeof(float)));
        FIRN_TRY(firn_exec_bind(exec, k->b[i], values, (size_t)e->b * sizeof(float)));
        if (!k->da[i])
            continue;
        FIRN_TRY(firn_exec_bind(exec, k->da[i], gradients, (size_t)e->a * sizeof(float)));
        FIRN_TRY(firn_exec_bind(exec, k->db[i], gradients, (size_t)e->b * sizeof(float)));
    }
    return FIRN_OK;
}
