/* The shared block builder: every architecture's block is put together here, from what its descriptor and the file say.
 *
 * Shapes innermost first: d = n_embd, n = n_tokens, H and G = query and key-value heads, hd = head, k = experts used.
 * LoRA is part of the product: y = W x + s B (A x), s = alpha / rank; the scale goes onto A x, the smallest tensor. */
#include "model/block.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What the parts below hand around. */
typedef struct {
    const firn_model *model;
    firn_graph *g;
    firn_block *block;
    int64_t n; /* tokens */
} builder;

firn_status firn_entries_find(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                              const firn_adapter_entry **entries, const firn_adapter_entry **output)
{
    *output = NULL;
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
    kind.n_ff = l->n_ff;
    kind.experts = l->experts;
    kind.backward = backward;
    kind.dx = dx;
    for (int i = 0; i < FIRN_T_COUNT; i++) {
        kind.t[i].bias = l->bias[i] != NULL;
        if (l->weight[i]) {
            kind.t[i].there = 1;
            kind.t[i].type = l->weight[i]->type;
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

static void make_slots(builder *u, int layer)
{
    const firn_model *m = u->model;
    const firn_layer *l = &m->layers[layer];
    firn_block *k = u->block;
    firn_graph *g = u->g;
    const int64_t d = m->hp.n_embd;

    k->x = firn_slot(g, FIRN_F32, 2, (int64_t[]){d, u->n}, "x");
    k->position = firn_slot(g, FIRN_I32, 1, &u->n, "position");
    k->range = firn_slot(g, FIRN_I32, 2, (int64_t[]){2, u->n}, "range");
    if (m->rope_freqs)
        k->factors = slot_like(g, m->rope_freqs);
    if (k->kind.n_cache) {
        k->row = firn_slot(g, FIRN_I32, 1, &u->n, "cache row");
        k->k_cache = firn_slot(g, FIRN_F32, 2, (int64_t[]){l->n_head_kv * m->hp.head_k, k->kind.n_cache}, "k cache");
        k->v_cache = firn_slot(g, FIRN_F32, 2, (int64_t[]){l->n_head_kv * m->hp.head_v, k->kind.n_cache}, "v cache");
    }
    for (int i = 0; i < FIRN_T_COUNT; i++) {
        const firn_gguf_tensor *w = l->weight[i];
        const char *base = firn_tensor_rows[i].base;
        if (w)
            k->weight[i] = slot_like(g, w);
        if (l->bias[i])
            k->bias[i] = slot_like(g, l->bias[i]);
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

firn_tensor *firn_adapted_product(firn_graph *g, firn_tensor *w, firn_tensor *bias, firn_tensor *a, firn_tensor *b,
                                  float scale, firn_tensor *x)
{
    firn_tensor *y = firn_mul_mat(g, w, x);

    if (w)
        firn_named(y, "%s", w->name);
    if (a && b) {
        firn_tensor *low = firn_named(firn_scale(g, firn_mul_mat(g, a, x), scale), "%s", a->name);
        y = firn_add(g, y, firn_named(firn_mul_mat(g, b, low), "%s", b->name));
    }
    return bias ? firn_add(g, y, bias) : y;
}

static firn_tensor *product(builder *u, firn_tensor_id id, firn_tensor *x)
{
    firn_block *k = u->block;

    return firn_named(
        firn_adapted_product(u->g, k->weight[id], k->bias[id], k->a[id], k->b[id], k->kind.t[id].scale, x), "%s",
        firn_tensor_rows[id].base);
}

/* The routed product; an adapter has one pair of factors per expert, chosen by the same ids. */
static firn_tensor *routed(builder *u, firn_tensor_id id, firn_tensor *x, firn_tensor *ids)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *y = firn_mul_mat_id(g, k->weight[id], x, ids, NULL);

    if (k->a[id] && k->b[id]) {
        firn_tensor *low = firn_scale(g, firn_mul_mat_id(g, k->a[id], x, ids, NULL), k->kind.t[id].scale);
        firn_named(low, "%s", k->a[id]->name);
        y = firn_add(g, y, firn_named(firn_mul_mat_id(g, k->b[id], low, ids, NULL), "%s", k->b[id]->name));
    }
    return firn_named(y, "%s", firn_tensor_rows[id].base);
}

/* ---- attention ---- */

/* The next n_head * hd values of each row of x (all of it, or a piece of a fused product) as heads: [hd, n_head, n]. */
static firn_tensor *heads(builder *u, firn_tensor *x, int64_t offset, int64_t hd, int64_t n_head)
{
    if (!x)
        return NULL;
    return firn_view(u->g, x, 3, (int64_t[]){hd, n_head, u->n}, (int64_t[]){4, 4 * hd, x->nb[1]}, 4 * offset);
}

/* q or k: bias (where a fused product left it separate), norm, rotation. */
static firn_tensor *prepared(builder *u, firn_tensor *x, firn_tensor_id id, firn_tensor_id norm, int64_t hd,
                             int64_t n_head)
{
    const firn_model *m = u->model;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    if (m->arch->qk_norm == FIRN_QK_NORM_WHOLE_ROW && x) {
        firn_tensor *row = firn_view(g, x, 2, (int64_t[]){hd * n_head, u->n}, (int64_t[]){4, x->nb[2]}, 0);
        x = heads(u, firn_rms_norm(g, row, k->weight[norm], m->hp.norm_eps), 0, hd, n_head);
    } else if (m->arch->qk_norm == FIRN_QK_NORM_PER_HEAD) {
        x = firn_rms_norm(g, x, k->weight[norm], m->hp.norm_eps);
    }
    return firn_named(firn_rope(g, x, k->position, k->factors, &m->hp.rope), "rotated %s", firn_tensor_rows[id].base);
}

/* A separate bias of a fused product; one of a product of its own is added there. */
static firn_tensor *late_bias(builder *u, firn_tensor *x, firn_tensor_id id, int64_t hd, int64_t n_head)
{
    firn_tensor *bias = u->block->bias[id];

    if (!bias || !u->block->weight[FIRN_T_ATTN_QKV])
        return x;
    return firn_add(u->g, x, firn_reshape(u->g, bias, 2, (int64_t[]){hd, n_head}));
}

/* Keys or values of all tokens so far: this pass's rows join the cache, and the cache is what attention reads. */
static firn_tensor *through_cache(builder *u, firn_tensor *x, firn_tensor *cache, int64_t hd, int64_t n_head)
{
    firn_graph *g = u->g;

    if (!cache)
        return x;
    firn_tensor *row = firn_reshape(g, firn_cont(g, x), 2, (int64_t[]){hd * n_head, u->n});
    firn_tensor *all = firn_set_rows(g, cache, row, u->block->row);
    return all ? firn_view(g, all, 3, (int64_t[]){hd, n_head, u->block->kind.n_cache},
                           (int64_t[]){4, 4 * hd, all->nb[1]}, 0)
               : NULL;
}

static firn_tensor *attention(builder *u, firn_tensor *x)
{
    const firn_hparams *hp = &u->model->hp;
    firn_block *blk = u->block;
    firn_graph *g = u->g;
    const int64_t H = blk->kind.n_head, G = blk->kind.n_head_kv, hk = hp->head_k, hv = hp->head_v;
    firn_tensor *q, *k, *v;

    if (blk->weight[FIRN_T_ATTN_QKV]) {
        firn_tensor *qkv = product(u, FIRN_T_ATTN_QKV, x); /* rows of q, then k, then v */
        q = late_bias(u, heads(u, qkv, 0, hk, H), FIRN_T_ATTN_Q, hk, H);
        k = late_bias(u, heads(u, qkv, H * hk, hk, G), FIRN_T_ATTN_K, hk, G);
        v = late_bias(u, heads(u, qkv, (H + G) * hk, hv, G), FIRN_T_ATTN_V, hv, G);
    } else {
        q = heads(u, product(u, FIRN_T_ATTN_Q, x), 0, hk, H);
        k = heads(u, product(u, FIRN_T_ATTN_K, x), 0, hk, G);
        v = heads(u, product(u, FIRN_T_ATTN_V, x), 0, hv, G);
    }
    q = prepared(u, q, FIRN_T_ATTN_Q, FIRN_T_ATTN_Q_NORM, hk, H);
    k = prepared(u, k, FIRN_T_ATTN_K, FIRN_T_ATTN_K_NORM, hk, G);
    k = through_cache(u, k, blk->k_cache, hk, G);
    v = through_cache(u, v, blk->v_cache, hv, G);

    firn_tensor *o = firn_attention(g, q, k, v, blk->range, NULL, 1.0f / sqrtf((float)hk), 0);
    o = firn_named(o, "attention");
    return product(u, FIRN_T_ATTN_OUTPUT, firn_reshape(g, o, 2, (int64_t[]){hv * H, u->n}));
}

/* ---- feed-forward ---- */

/* The experts of each token and their weights [k, n], from the router's logits [E, n]. The choice has no slope; the
 * weights do, through the probabilities of the chosen. */
static firn_tensor *route(builder *u, firn_tensor *x, firn_tensor **ids)
{
    const firn_hparams *hp = &u->model->hp;
    firn_graph *g = u->g;
    const int64_t E = hp->n_expert, k = hp->n_expert_used;
    firn_tensor *logits = product(u, FIRN_T_FFN_GATE_INP, x);
    firn_tensor *probs = firn_named(firn_soft_max(g, logits, NULL, NULL, 1.0f), "router probabilities");

    *ids = firn_output(g, firn_named(firn_top_k(g, probs, (int)k), "chosen experts"));
    firn_tensor *w = firn_get_rows(g, firn_reshape(g, probs, 3, (int64_t[]){1, E, u->n}), *ids);
    w = firn_reshape(g, w, 2, (int64_t[]){k, u->n});
    if (u->model->arch->router.renormalize)
        w = firn_div(g, w, firn_clamp(g, firn_sum_rows(g, w), 0x1p-14f, INFINITY));
    return firn_named(w, "router weights");
}

static firn_tensor *experts(builder *u, firn_tensor *x)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *w = route(u, x, &k->ids);
    firn_tensor *shared = firn_reshape(g, x, 3, (int64_t[]){u->model->hp.n_embd, 1, u->n});

    firn_tensor *up = routed(u, FIRN_T_FFN_UP_EXPS, shared, k->ids);
    firn_tensor *act = k->weight[FIRN_T_FFN_GATE_EXPS]
                           ? firn_swiglu(g, routed(u, FIRN_T_FFN_GATE_EXPS, shared, k->ids), up)
                           : firn_silu(g, up);
    return firn_named(firn_mix_slots(g, routed(u, FIRN_T_FFN_DOWN_EXPS, act, k->ids), w), "experts");
}

static firn_tensor *dense(builder *u, firn_tensor *x)
{
    return product(u, FIRN_T_FFN_DOWN, firn_swiglu(u->g, product(u, FIRN_T_FFN_GATE, x), product(u, FIRN_T_FFN_UP, x)));
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

static void forward(builder *u)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    const float eps = u->model->hp.norm_eps;

    firn_tensor *h = firn_named(firn_rms_norm(g, k->x, k->weight[FIRN_T_ATTN_NORM], eps), "attn_norm");
    firn_tensor *x = firn_named(firn_add(g, k->x, attention(u, h)), "after attention");
    h = firn_named(firn_rms_norm(g, x, k->weight[FIRN_T_FFN_NORM], eps), "ffn_norm");
    k->y = firn_output(g, firn_named(firn_add(g, x, k->kind.experts ? experts(u, h) : dense(u, h)), "block output"));
}

static firn_status backward(firn_context *ctx, builder *u)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *wanted[1 + 2 * FIRN_T_COUNT], *grads[1 + 2 * FIRN_T_COUNT];
    int n = 0;

    FIRN_TRY(firn_graph_status(g));
    k->dy = firn_slot(g, FIRN_F32, 2, (int64_t[]){u->model->hp.n_embd, u->n}, "dy");
    firn_graph_cut(g);
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (k->a[i]) {
            wanted[n++] = k->a[i];
            wanted[n++] = k->b[i];
        }
    if (k->kind.dx)
        wanted[n++] = k->x;
    FIRN_EXPECT(ctx, n > 0, "a backward pass needs something to differentiate by");
    FIRN_TRY(firn_graph_grad(g, k->y, k->dy, wanted, n, grads));
    n = 0;
    for (int i = 0; i < FIRN_T_COUNT; i++)
        if (k->a[i]) {
            firn_add_gradient(g, k->da[i], grads[n++]);
            firn_add_gradient(g, k->db[i], grads[n++]);
        }
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
        builder u = {.model = model, .g = k->graph, .block = k, .n = kind->n_tokens};
        make_slots(&u, layer);
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
