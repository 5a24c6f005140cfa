/* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): what all heads know of a token is one row of r values,
 * and that row and one rotated key are all that a cache has to hold.
 *
 *     q = Wq x, or Wq_b norm(Wq_a x);  each head [nope | rot], the last n_rot values rotate
 *     [c | k_pe] = Wkv_a x;  c = norm(c) [r, n];  k_pe [n_rot, 1, n] rotates, one for all heads
 *     old files, attn_kv_b [r, H (nope + hv)]:  [k_nope | v] = Wkv_b c per head, k = [k_nope | k_pe]
 *     new files, attn_k_b [nope, r, H], attn_v_b [r, hv, H], the same numbers with those of k transposed:
 *         q' = [Wk_b q_nope | q_pe],  k' = [c | k_pe],  v' = c,  o = Wv_b (attention of one key-value head)
 *     s = scale q . k = scale q' . k', q times its position's temperature where the model has one
 *
 * The second way (absorbed) is what new files ask for, and what generation uses for both, since its keys are the rows
 * of the cache. A pass without a cache through an old file takes the first, whose heads are narrower.
 *
 * Stretched contexts (YaRN, factor f, m = rope.scaling.yarn_log_multiplier / 0.1, a = rope.scaling.attn_factor):
 *     cos and sin are multiplied by a, times 1 + 0.1 ln f where m is 0 and the type is yarn
 *     scale = (A (1 + 0.1 m ln f))^2 / sqrt(nope + rot), A = a, times 1 + 0.1 ln f where m is 0 or the type not yarn
 * Facts: llama.cpp's deepseek2, October 2026. Called by hparams.c (metadata), wanted.c (tensors), block.c (graph). */
#include "model/mla.h"
#include "model/build.h"
#include "model/hparams.h"
#include "model/wanted.h"

#include <math.h>

/* ---- metadata ---- */

/* DeepSeek-V2-Lite and its like have no low-rank q, and llama.cpp tells them by their size alone. */
static bool lite(const firn_hparams *hp)
{
    return hp->n_layer == 26 || hp->n_layer == 27 || (hp->n_layer == 48 && hp->n_vocab == 128256);
}

firn_status firn_mla_heads(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    int64_t k = 0, v = 0;

    FIRN_TRY(firn_key_u32(ctx, m, "attention.kv_lora_rank", true, &hp->mla.kv_rank));
    if (!lite(hp) && !m->arch->q_full)
        FIRN_TRY(firn_key_u32(ctx, m, "attention.q_lora_rank", true, &hp->mla.q_rank));
    FIRN_TRY(firn_key_u32(ctx, m, "attention.key_length_mla", false, &k));
    FIRN_TRY(firn_key_u32(ctx, m, "attention.value_length_mla", false, &v));
    if (hp->mla.kv_rank <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.attention.kv_lora_rank is 0: nothing is left of keys and values",
                         m->arch->name);
    if ((k > 0) != (v > 0))
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "%s.attention.key_length_mla and value_length_mla come together; they are %lld and %lld",
                         m->arch->name, (long long)k, (long long)v);
    hp->mla.split = k > 0;
    if (hp->mla.split) {
        hp->head_k = k;
        hp->head_v = v;
    }
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const int64_t expected = hp->mla.split ? 1 : m->layers[i].n_head;
        if (m->layers[i].n_head_kv != expected && !m->layers[i].recurrent)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.attention.head_count_kv of block %lld is %lld, not %lld",
                             m->arch->name, (long long)i, (long long)m->layers[i].n_head_kv, (long long)expected);
    }
    return FIRN_OK;
}

firn_status firn_mla_rope(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    float multiplier = 0;

    FIRN_TRY(firn_key_f32(ctx, m, "rope.scaling.yarn_log_multiplier", false, &multiplier));
    hp->mla.nope = hp->head_k - hp->rope.n_rot;
    if (hp->mla.nope <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "heads of %lld values of which %d rotate leave none for latent attention",
                         (long long)hp->head_k, hp->rope.n_rot);
    const float stretch = 0.1f * logf(1 / hp->rope.freq_scale), m_all = multiplier / 0.1f;
    float a = hp->rope.attn_factor;
    if (multiplier != 0 && hp->rope.ext_factor != 0)
        hp->rope.attn_factor = a / (1 + stretch); /* the rotation multiplies by the latter */
    else
        a *= 1 + stretch;
    const float magnitude = a * (1 + m_all * stretch);
    hp->attention_scale = magnitude * magnitude / sqrtf((float)hp->head_k);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        m->layers[i].k_row = m->layers[i].recurrent ? 0 : hp->mla.kv_rank + hp->rope.n_rot;
        m->layers[i].v_row = 0;
    }
    return FIRN_OK;
}

/* ---- tensors ---- */

firn_status firn_mla_want(firn_context *ctx, firn_model *m, int i)
{
    const firn_hparams *hp = &m->hp;
    const int64_t d = hp->n_embd, H = m->layers[i].n_head, r = hp->mla.kv_rank, q = hp->mla.q_rank, nope = hp->mla.nope,
                  hv = hp->head_v;
    const firn_presence low = q ? FIRN_REQUIRED : FIRN_ABSENT, full = q ? FIRN_ABSENT : FIRN_REQUIRED,
                        split = hp->mla.split ? FIRN_REQUIRED : FIRN_ABSENT,
                        joint = hp->mla.split ? FIRN_ABSENT : FIRN_REQUIRED;

    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q, full, d, H * hp->head_k, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q_A, low, d, q, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q_A_NORM, low, q, 0, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q_B, low, q, H * hp->head_k, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_KV_A_MQA, FIRN_REQUIRED, d, r + hp->rope.n_rot, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_KV_A_NORM, FIRN_REQUIRED, r, 0, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_KV_B, joint, r, H * (nope + hv), 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_K_B, split, nope, r, H));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_V_B, split, r, hv, H));
    return firn_want_weight(ctx, m, i, FIRN_T_ATTN_OUTPUT, FIRN_REQUIRED, H * hv, d, 0);
}

/* ---- graph ---- */

/* [nope + rot, H, n] */
static firn_tensor *queries(firn_builder *u, firn_tensor *x)
{
    const firn_hparams *hp = &u->model->hp;
    firn_tensor *q;

    if (hp->mla.q_rank) {
        firn_tensor *low = firn_build_product(u, FIRN_T_ATTN_Q_A, x);
        low = firn_rms_norm(u->g, low, u->block->weight[FIRN_T_ATTN_Q_A_NORM], hp->norm_eps);
        q = firn_build_product(u, FIRN_T_ATTN_Q_B, firn_named(low, "attn_q_a_norm"));
    } else {
        q = firn_build_product(u, FIRN_T_ATTN_Q, x);
    }
    return firn_build_heads(u, q, 0, hp->head_k, u->block->kind.n_head);
}

/* Values [first, first + n) of each row of t. */
static firn_tensor *columns(firn_builder *u, firn_tensor *t, int64_t first, int64_t n)
{
    return t ? firn_view(u->g, t, 3, (int64_t[]){n, t->ne[1], t->ne[2]}, (int64_t[]){4, t->nb[1], t->nb[2]}, 4 * first)
             : NULL;
}

static firn_tensor *rotated(firn_builder *u, firn_tensor *t, const char *name)
{
    return u->layer->rotates ? firn_named(firn_build_rotated(u, t, NULL), "%s", name) : t;
}

/* Tokens and heads exchanged: [a, n, H] to [a, H, n] and back. */
static firn_tensor *exchanged(firn_builder *u, firn_tensor *t)
{
    return firn_permute(u->g, t, 0, 2, 1, 3);
}

/* Rows [first, first + n) of each head's nope + hv in attn_kv_b or its lora_b: [ne0, n, H]. */
static firn_tensor *rows_of(firn_builder *u, firn_tensor *t, int64_t first, int64_t n)
{
    const firn_hparams *hp = &u->model->hp;

    return t ? firn_view(u->g, t, 3, (int64_t[]){t->ne[0], n, u->block->kind.n_head},
                         (int64_t[]){t->nb[0], t->nb[1], t->nb[1] * (hp->mla.nope + hp->head_v)}, first * t->nb[1])
             : NULL;
}

/* W' x, the product along W's columns: W [k, m, H or 1], x [m, n, H] -> [k, n, H]. */
static firn_tensor *product_back(firn_builder *u, firn_tensor *w, firn_tensor *x)
{
    return firn_out_prod(u->g, w, firn_transpose(u->g, x));
}

/* q's first part as the latent row sees it: [nope, n, H] -> [r, n, H]. */
static firn_tensor *to_latent(firn_builder *u, firn_tensor *q)
{
    const firn_block *k = u->block;
    const firn_tensor_id id = FIRN_T_ATTN_KV_B;
    const int64_t nope = u->model->hp.mla.nope;

    if (u->model->hp.mla.split)
        return firn_build_product(u, FIRN_T_ATTN_K_B, q);
    firn_tensor *y = product_back(u, rows_of(u, k->weight[id], 0, nope), q);
    if (k->factor[id])
        y = firn_mul(u->g, y, k->factor[id]);
    if (k->a[id] && k->b[id]) {
        firn_tensor *low = firn_scale(u->g, product_back(u, rows_of(u, k->b[id], 0, nope), q), k->kind.t[id].scale);
        y = firn_add(u->g, y, product_back(u, k->a[id], low));
    }
    return firn_named(y, "attn_kv_b, keys");
}

/* What attention found among latent rows, as each head's values: [r, n, H] -> [hv, n, H]. */
static firn_tensor *from_latent(firn_builder *u, firn_tensor *o)
{
    const firn_block *k = u->block;
    const firn_tensor_id id = FIRN_T_ATTN_KV_B;
    const int64_t nope = u->model->hp.mla.nope, hv = u->model->hp.head_v;

    if (u->model->hp.mla.split)
        return firn_build_product(u, FIRN_T_ATTN_V_B, o);
    return firn_named(firn_adapted_product(u->g, rows_of(u, k->weight[id], nope, hv), k->factor[id], NULL, k->a[id],
                                           rows_of(u, k->b[id], nope, hv), k->kind.t[id].scale, o),
                      "attn_kv_b, values");
}

/* The latent rows as several equal key-value heads: a device works on those side by side, and a single token has
 * nothing else to share out. Only where nothing is differentiated; each has at least 8 query heads, since it reads all
 * keys. */
static firn_tensor *side_by_side(firn_builder *u, firn_tensor *rows)
{
    int64_t n = firn_max_i64(u->block->kind.n_head / 8, 1);

    if (!rows || !u->block->kind.n_cache)
        return rows;
    while (u->block->kind.n_head % n)
        n--;
    return firn_view(u->g, rows, 3, (int64_t[]){rows->ne[0], n, rows->ne[2]}, (int64_t[]){4, 0, rows->nb[2]}, 0);
}

/* One key-value head, the latent row, shared by all: [hv, H, n]. */
static firn_tensor *absorbed(firn_builder *u, firn_tensor *q_nope, firn_tensor *q_pe, firn_tensor *c, firn_tensor *k_pe)
{
    const firn_hparams *hp = &u->model->hp;
    const int64_t r = hp->mla.kv_rank;
    firn_graph *g = u->g;

    firn_tensor *q = firn_concat(g, exchanged(u, to_latent(u, exchanged(u, q_nope))), q_pe, 0);
    q = firn_build_tempered(u, q);
    firn_tensor *row = firn_concat(g, c, k_pe, 0);
    row = side_by_side(u, firn_build_through_cache(u, row, u->block->k_cache, r + hp->rope.n_rot, 1));
    firn_tensor *o = firn_attention(g, q, row, columns(u, row, 0, r), u->block->range, NULL, hp->attention_scale, 0);
    o = firn_named(o, "attention among latent rows");
    return firn_cont(g, exchanged(u, from_latent(u, exchanged(u, o))));
}

/* Keys and values of every head: [hv, H, n]. */
static firn_tensor *expanded(firn_builder *u, firn_tensor *q_nope, firn_tensor *q_pe, firn_tensor *c, firn_tensor *k_pe)
{
    const firn_hparams *hp = &u->model->hp;
    const int64_t H = u->block->kind.n_head, nope = hp->mla.nope, hv = hp->head_v;
    firn_graph *g = u->g;

    firn_tensor *flat = firn_reshape(g, c, 2, (int64_t[]){hp->mla.kv_rank, u->n});
    firn_tensor *kv = firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_KV_B, flat), 0, nope + hv, H);
    firn_tensor *shared = firn_repeat(g, k_pe, (int64_t[]){hp->rope.n_rot, H, u->n, 1});
    firn_tensor *k = firn_concat(g, columns(u, kv, 0, nope), shared, 0);
    firn_tensor *q = firn_build_tempered(u, firn_concat(g, q_nope, q_pe, 0));
    return firn_named(firn_attention(g, q, k, columns(u, kv, nope, hv), u->block->range, NULL, hp->attention_scale, 0),
                      "attention");
}

firn_tensor *firn_build_mla(firn_builder *u, firn_tensor *x)
{
    const firn_hparams *hp = &u->model->hp;
    const int64_t H = u->block->kind.n_head, r = hp->mla.kv_rank, n_rot = hp->rope.n_rot, nope = hp->mla.nope;
    firn_graph *g = u->g;

    firn_tensor *q = queries(u, x);
    firn_tensor *q_pe = rotated(u, columns(u, q, nope, n_rot), "rotated part of q");
    firn_tensor *low = firn_build_heads(u, firn_build_product(u, FIRN_T_ATTN_KV_A_MQA, x), 0, r + n_rot, 1);
    firn_tensor *c = firn_rms_norm(g, columns(u, low, 0, r), u->block->weight[FIRN_T_ATTN_KV_A_NORM], hp->norm_eps);
    firn_tensor *k_pe = rotated(u, columns(u, low, r, n_rot), "rotated key");
    const bool absorb = hp->mla.split || u->block->kind.n_cache;
    firn_named(c, "attn_kv_a_norm");
    firn_tensor *o = (absorb ? absorbed : expanded)(u, columns(u, q, 0, nope), q_pe, c, k_pe);
    return firn_build_product(u, FIRN_T_ATTN_OUTPUT, firn_reshape(g, o, 2, (int64_t[]){hp->head_v * H, u->n}));
}
