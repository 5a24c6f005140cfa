/* Attention with heads of their own: q, k, v from one fused product or three, norms, rotation, grouped heads, sinks, a
 * gate. Which keys a token sees (causality, documents, windows, the cache's length) is the `range` slot's affair.
 *
 * d = n_embd, n = tokens, H and G = query and key-value heads, hd = values of a head. */
#include "model/build.h"

firn_tensor *firn_build_heads(firn_builder *u, firn_tensor *x, int64_t offset, int64_t hd, int64_t n_head)
{
    if (!x)
        return NULL;
    return firn_view(u->g, x, 3, (int64_t[]){hd, n_head, u->n}, (int64_t[]){4, 4 * hd, x->nb[1]}, 4 * offset);
}

firn_tensor *firn_build_rotated(firn_builder *u, firn_tensor *x, firn_tensor *factors)
{
    firn_rope_params params = u->model->hp.rope;

    params.freq_base = u->layer->rope_base;
    params.n_rot = (int)u->layer->n_rot;
    if (!u->layer->stretched) {
        params.freq_scale = params.attn_factor = 1;
        params.ext_factor = 0;
    }
    return firn_rope(u->g, x, u->block->position, factors, &params);
}

firn_tensor *firn_build_tempered(firn_builder *u, firn_tensor *q)
{
    return u->block->temperature ? firn_named(firn_mul(u->g, q, u->block->temperature), "tempered q") : q;
}

/* q or k: norm, rotation; or the norm behind it. */
static firn_tensor *prepared(firn_builder *u, firn_tensor *x, firn_tensor_id id, firn_tensor_id norm, int64_t hd,
                             int64_t n_head)
{
    const firn_model *m = u->model;
    firn_block *k = u->block;
    firn_graph *g = u->g;

    if (k->weight[norm] && m->arch->qk_norm == FIRN_QK_NORM_WHOLE_ROW && x) {
        firn_tensor *row = firn_view(g, x, 2, (int64_t[]){hd * n_head, u->n}, (int64_t[]){4, x->nb[2]}, 0);
        x = firn_build_heads(u, firn_rms_norm(g, row, k->weight[norm], m->hp.norm_eps), 0, hd, n_head);
    } else if (k->weight[norm] && m->arch->qk_norm == FIRN_QK_NORM_PER_HEAD) {
        x = firn_rms_norm(g, x, k->weight[norm], m->hp.norm_eps);
    }
    if (u->layer->rotates)
        x = firn_named(firn_build_rotated(u, x, k->factors), "rotated %s", firn_tensor_rows[id].base);
    return m->arch->qk_norm == FIRN_QK_NORM_TURNED ? firn_rms_norm(g, x, k->weight[norm], m->hp.norm_eps) : x;
}

/* A separate bias of a fused product; one of a product of its own is added there. */
static firn_tensor *late_bias(firn_builder *u, firn_tensor *x, firn_tensor_id id, int64_t hd, int64_t n_head)
{
    firn_tensor *bias = u->block->bias[id];

    if (!bias || !u->block->weight[FIRN_T_ATTN_QKV])
        return x;
    return firn_add(u->g, x, firn_reshape(u->g, bias, 2, (int64_t[]){hd, n_head}));
}

/* All rows of a cache, as heads. */
static firn_tensor *cached(firn_builder *u, firn_tensor *cache, int64_t hd, int64_t n_head)
{
    return cache ? firn_view(u->g, cache, 3, (int64_t[]){hd, n_head, u->block->kind.n_cache},
                             (int64_t[]){4, 4 * hd, cache->nb[1]}, 0)
                 : NULL;
}

firn_tensor *firn_build_through_cache(firn_builder *u, firn_tensor *x, firn_tensor *cache, int64_t hd, int64_t n_head)
{
    firn_graph *g = u->g;

    if (!cache)
        return x;
    firn_tensor *row = firn_reshape(g, firn_cont(g, x), 2, (int64_t[]){hd * n_head, u->n});
    return cached(u, firn_set_rows(g, cache, row, u->block->row), hd, n_head);
}

/* Values [first, first + n) of each head. */
static firn_tensor *part(firn_builder *u, firn_tensor *x, int64_t first, int64_t n)
{
    if (!x || (first == 0 && n == x->ne[0]))
        return x;
    return firn_view(u->g, x, 3, (int64_t[]){n, x->ne[1], x->ne[2]}, (int64_t[]){4, x->nb[1], x->nb[2]}, 4 * first);
}

firn_tensor *firn_build_attention(firn_builder *u, firn_tensor *x)
{
    const firn_hparams *hp = &u->model->hp;
    firn_block *blk = u->block;
    firn_graph *g = u->g;
    const int64_t H = u->layer->n_head, G = u->layer->n_head_kv, hk = u->layer->head_k, hv = u->layer->head_v;
    const int64_t q_rows = (u->model->arch->q_gated ? 2 : 1) * hk;
    firn_tensor *q, *k, *v, *qs;

    if (blk->kind.borrows) {
        qs = firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_Q, x), 0, q_rows, H);
        q = part(u, qs, 0, hk);
        k = blk->k_cache ? cached(u, blk->k_cache, hk, G) : blk->keys[0];
        v = blk->v_cache ? cached(u, blk->v_cache, hv, G) : blk->keys[1];
    } else if (blk->weight[FIRN_T_ATTN_QKV]) {
        firn_tensor *qkv = firn_build_product(u, FIRN_T_ATTN_QKV, x); /* rows of q, then k, then v */
        qs = firn_build_heads(u, qkv, 0, q_rows, H);
        q = late_bias(u, part(u, qs, 0, hk), FIRN_T_ATTN_Q, hk, H);
        k = late_bias(u, firn_build_heads(u, qkv, H * q_rows, hk, G), FIRN_T_ATTN_K, hk, G);
        v = late_bias(u, firn_build_heads(u, qkv, H * q_rows + G * hk, hv, G), FIRN_T_ATTN_V, hv, G);
    } else {
        qs = firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_Q, x), 0, q_rows, H);
        q = part(u, qs, 0, hk);
        k = firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_K, x), 0, hk, G);
        v = blk->weight[FIRN_T_ATTN_V] ? firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_V, x), 0, hv, G) : k;
    }
    q = prepared(u, q, FIRN_T_ATTN_Q, FIRN_T_ATTN_Q_NORM, hk, H);
    if (!blk->kind.borrows) {
        if (u->model->arch->v_norm)
            v = firn_named(firn_rms_norm(g, v, NULL, hp->norm_eps), "normed v");
        k = prepared(u, k, FIRN_T_ATTN_K, FIRN_T_ATTN_K_NORM, hk, G);
        if (blk->kind.lends) {
            blk->keys[0] = firn_output_of(g, k);
            blk->keys[1] = firn_output_of(g, v);
        }
        k = firn_build_through_cache(u, k, blk->k_cache, hk, G);
        v = firn_build_through_cache(u, v, blk->v_cache, hv, G);
    }

    firn_tensor *o = firn_attention(g, q, k, v, blk->range, blk->weight[FIRN_T_ATTN_SINKS], hp->attention_scale, 0);
    firn_named(o, "attention");
    if (u->model->arch->q_gated)
        o = firn_named(firn_mul(g, o, firn_sigmoid(g, part(u, qs, hk, hk))), "gated attention");
    o = firn_reshape(g, o, 2, (int64_t[]){hv * H, u->n});
    if (blk->weight[FIRN_T_ATTN_GATE])
        o = firn_named(firn_mul(g, o, firn_sigmoid(g, firn_build_product(u, FIRN_T_ATTN_GATE, x))), "gated attention");
    return firn_build_product(u, FIRN_T_ATTN_OUTPUT, o);
}
