/* A model's metadata, checked: keys "<arch>.<name>", their defaults, and the limits that llama.cpp sets. No number from
 * the file is used before it has passed here. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 512, MAX_EXPERTS = 1024, MAX_DIM = 1 << 24, KEY_BYTES = 160 };

static const char *key_of(char key[KEY_BYTES], const firn_model *m, const char *name)
{
    snprintf(key, KEY_BYTES, "%s.%s", m->arch->name, name);
    return key;
}

static firn_status u32(firn_context *ctx, const firn_model *m, const char *name, bool required, int64_t *value)
{
    char key[KEY_BYTES];
    uint32_t v = (uint32_t)*value;

    FIRN_TRY(firn_gguf_get_u32(ctx, m->gguf, key_of(key, m, name), required, &v));
    if (v > MAX_DIM)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is %u, more than any model has", key, v);
    *value = v;
    return FIRN_OK;
}

static firn_status f32(firn_context *ctx, const firn_model *m, const char *name, bool required, float *value)
{
    char key[KEY_BYTES];

    FIRN_TRY(firn_gguf_get_f32(ctx, m->gguf, key_of(key, m, name), required, value));
    if (!isfinite(*value))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is not a finite number", key);
    return FIRN_OK;
}

/* One number for all blocks, or an array with one for each. `field` is the offset of an int64_t in firn_layer. */
static firn_status per_layer(firn_context *ctx, firn_model *m, const char *name, bool required, size_t field)
{
    char key[KEY_BYTES];
    const firn_kv *kv = firn_gguf_kv(m->gguf, key_of(key, m, name));

    if (!kv || kv->type != FIRN_KV_ARRAY) {
        int64_t one = 0;
        if (!kv && !required)
            return FIRN_OK;
        FIRN_TRY(u32(ctx, m, name, required, &one));
        for (int64_t i = 0; i < m->hp.n_layer; i++)
            *(int64_t *)((char *)&m->layers[i] + field) = one;
        return FIRN_OK;
    }
    if (kv->element != FIRN_KV_U32 && kv->element != FIRN_KV_I32)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s must be an array of 32-bit whole numbers", key);
    if (kv->n != (uint64_t)m->hp.n_block)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has %llu entries, the model has %lld blocks", key,
                         (unsigned long long)kv->n, (long long)m->hp.n_block);
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        uint32_t v;
        memcpy(&v, (const char *)kv->data + 4 * i, 4);
        if (v > MAX_DIM)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s[%lld] is %u, more than any model has", key, (long long)i, v);
        *(int64_t *)((char *)&m->layers[i] + field) = v;
    }
    return FIRN_OK;
}

static bool is(firn_string s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static firn_status rope(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    firn_string type = {"linear", 6};
    float factor = 0, base = 10000, attn_factor = 1;
    int64_t n_rot = hp->head_k, n_orig = hp->n_ctx_train;
    char key[KEY_BYTES];

    FIRN_TRY(u32(ctx, m, "rope.dimension_count", false, &n_rot));
    FIRN_TRY(f32(ctx, m, "rope.freq_base", false, &base));
    FIRN_TRY(f32(ctx, m, "rope.scale_linear", false, &factor));
    FIRN_TRY(f32(ctx, m, "rope.scaling.factor", false, &factor));
    FIRN_TRY(f32(ctx, m, "rope.scaling.attn_factor", false, &attn_factor));
    FIRN_TRY(u32(ctx, m, "rope.scaling.original_context_length", false, &n_orig));
    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, key_of(key, m, "rope.scaling.type"), false, &type));

    if (n_rot <= 0 || n_rot > hp->head_k || n_rot % 2)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.rope.dimension_count is %lld; heads have %lld values", m->arch->name,
                         (long long)n_rot, (long long)hp->head_k);
    if (m->arch->rope_all && n_rot != hp->head_k)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.rope.dimension_count is %lld, it must equal the head's %lld values",
                         m->arch->name, (long long)n_rot, (long long)hp->head_k);
    if (!(base > 0) || factor < 0 || n_orig <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the rotary metadata of %s makes no sense: base %g, factor %g",
                         m->arch->name, (double)base, (double)factor);
    const bool none = is(type, "none"), yarn = is(type, "yarn");
    if (!none && !yarn && !is(type, "linear"))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is '%.*s', this build knows none, linear, yarn", key,
                         (int)(type.size < 32 ? type.size : 32), type.data);
    hp->rope = (firn_rope_params){
        .n_rot = (int)n_rot,
        .neox = m->arch->rope == FIRN_ROPE_NEOX,
        .freq_base = base,
        .freq_scale = none || factor == 0 ? 1 : 1 / factor,
        .ext_factor = yarn ? 1 : 0,
        .attn_factor = attn_factor,
        .beta_fast = 32,
        .beta_slow = 1,
        .n_ctx_orig = (int)n_orig,
    };
    return FIRN_OK;
}

static firn_status experts(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    const char *arch = m->arch->name;
    int64_t groups = 0;

    FIRN_TRY(u32(ctx, m, "expert_count", m->arch->experts == FIRN_REQUIRED, &hp->n_expert));
    FIRN_TRY(u32(ctx, m, "expert_used_count", hp->n_expert > 0, &hp->n_expert_used));
    FIRN_TRY(u32(ctx, m, "expert_group_count", false, &groups));
    if (m->arch->experts == FIRN_ABSENT ? hp->n_expert > 0 : m->arch->experts == FIRN_REQUIRED && hp->n_expert == 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.expert_count is %lld, which %s models do not have", arch,
                         (long long)hp->n_expert, arch);
    if (hp->n_expert > MAX_EXPERTS || hp->n_expert_used > hp->n_expert || (hp->n_expert > 0 && hp->n_expert_used == 0))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s uses %lld of %lld experts; at most %d, and at least 1 of them used",
                         arch, (long long)hp->n_expert_used, (long long)hp->n_expert, MAX_EXPERTS);
    if (groups > 1)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "experts in groups (%s.expert_group_count is %lld) are not "
                         "supported for this architecture",
                         arch, (long long)groups);
    if (hp->n_expert == 0)
        return FIRN_OK;
    if (m->arch->expert_width)
        FIRN_TRY(u32(ctx, m, m->arch->expert_width, false, &hp->n_ff_expert));
    if (hp->n_ff_expert == 0)
        hp->n_ff_expert = m->arch->expert_width ? m->layers[0].n_ff / hp->n_expert_used : m->layers[0].n_ff;
    if (hp->n_ff_expert <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the width of the experts is missing: %s.%s", arch,
                         m->arch->expert_width ? m->arch->expert_width : "feed_forward_length");
    return FIRN_OK;
}

firn_status firn_hparams_read(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    const char *arch = m->arch->name;
    int64_t nextn = 0;
    bool causal = true;
    char key[KEY_BYTES];

    FIRN_TRY(u32(ctx, m, "context_length", true, &hp->n_ctx_train));
    FIRN_TRY(u32(ctx, m, "embedding_length", true, &hp->n_embd));
    FIRN_TRY(u32(ctx, m, "block_count", true, &hp->n_block));
    FIRN_TRY(u32(ctx, m, "nextn_predict_layers", false, &nextn));
    FIRN_TRY(f32(ctx, m, "attention.layer_norm_rms_epsilon", true, &hp->norm_eps));
    FIRN_TRY(firn_gguf_get_bool(ctx, m->gguf, key_of(key, m, "attention.causal"), false, &causal));
    hp->n_layer = hp->n_block - nextn;
    if (hp->n_layer <= 0 || hp->n_block > MAX_LAYERS)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.block_count is %lld; 1 to %d blocks are possible", arch,
                         (long long)hp->n_block, MAX_LAYERS);
    if (hp->n_embd <= 0 || hp->n_ctx_train <= 0 || hp->norm_eps < 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.embedding_length %lld and context_length %lld must be positive",
                         arch, (long long)hp->n_embd, (long long)hp->n_ctx_train);
    if (!causal)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is false: attention that sees the future is not supported",
                         key);

    const firn_kv *tokens = firn_gguf_kv(m->gguf, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == FIRN_KV_ARRAY && tokens->element == FIRN_KV_STRING && tokens->n <= MAX_DIM)
        hp->n_vocab = (int64_t)tokens->n;
    else
        FIRN_TRY(u32(ctx, m, "vocab_size", true, &hp->n_vocab));
    if (hp->n_vocab <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "the model has no vocabulary: tokenizer.ggml.tokens is missing or empty");

    m->layers = firn_alloc_zeroed(m->ctx, (size_t)hp->n_layer, sizeof *m->layers);
    if (!m->layers)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(per_layer(ctx, m, "attention.head_count", true, offsetof(firn_layer, n_head)));
    for (int64_t i = 0; i < hp->n_layer; i++)
        m->layers[i].n_head_kv = m->layers[i].n_head;
    FIRN_TRY(per_layer(ctx, m, "attention.head_count_kv", false, offsetof(firn_layer, n_head_kv)));
    FIRN_TRY(per_layer(ctx, m, "feed_forward_length", false, offsetof(firn_layer, n_ff)));
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const firn_layer *l = &m->layers[i];
        if (l->n_head <= 0 || l->n_head_kv <= 0 || l->n_head % l->n_head_kv || l->n_head > 4096)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "block %lld has %lld query heads over %lld key heads", (long long)i,
                             (long long)l->n_head, (long long)l->n_head_kv);
    }
    hp->head_k = hp->head_v = hp->n_embd / m->layers[0].n_head;
    FIRN_TRY(u32(ctx, m, "attention.key_length", false, &hp->head_k));
    FIRN_TRY(u32(ctx, m, "attention.value_length", false, &hp->head_v));
    if (hp->head_k <= 0 || hp->head_v <= 0 || hp->head_k > 65536 || hp->head_v > 65536)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "heads of %lld and %lld values are not possible", (long long)hp->head_k,
                         (long long)hp->head_v);
    FIRN_TRY(rope(ctx, m));
    FIRN_TRY(experts(ctx, m));
    for (int64_t i = 0; i < hp->n_layer; i++) {
        m->layers[i].experts = hp->n_expert > 0;
        if (!m->layers[i].experts && m->layers[i].n_ff <= 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.feed_forward_length is missing or 0", arch);
    }
    return FIRN_OK;
}
