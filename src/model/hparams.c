/* A model's metadata, checked: keys "<arch>.<name>", their defaults, and the limits that llama.cpp sets. No number from
 * the file is used before it has passed here. */
#include "model/hparams.h"

#include "model/mla.h"
#include "model/recurrent.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LAYERS = 512, MAX_EXPERTS = 1024, MAX_DIM = 1 << 24 };

/* ---- reading keys ---- */

const char *firn_key(char key[FIRN_KEY_BYTES], const firn_model *m, const char *name)
{
    snprintf(key, FIRN_KEY_BYTES, "%s.%s", m->arch->name, name);
    return key;
}

firn_status firn_key_u32(firn_context *ctx, const firn_model *m, const char *name, bool required, int64_t *value)
{
    char key[FIRN_KEY_BYTES];
    uint32_t v = (uint32_t)*value;

    FIRN_TRY(firn_gguf_get_u32(ctx, m->gguf, firn_key(key, m, name), required, &v));
    if (v > MAX_DIM)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is %u, more than any model has", key, v);
    *value = v;
    return FIRN_OK;
}

firn_status firn_key_f32(firn_context *ctx, const firn_model *m, const char *name, bool required, float *value)
{
    char key[FIRN_KEY_BYTES];

    FIRN_TRY(firn_gguf_get_f32(ctx, m->gguf, firn_key(key, m, name), required, value));
    if (!isfinite(*value))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is not a finite number", key);
    return FIRN_OK;
}

/* An array with one whole number (or truth value, as 0 or 1) for each block that the file has. */
static firn_status array(firn_context *ctx, firn_model *m, const char *key, const firn_kv *kv, size_t field)
{
    const bool bytes = kv->element == FIRN_KV_BOOL;

    if (kv->element != FIRN_KV_U32 && kv->element != FIRN_KV_I32 && !bytes)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s must be an array of 32-bit whole numbers", key);
    if (kv->n != (uint64_t)m->hp.n_block)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has %llu entries, the model has %lld blocks", key,
                         (unsigned long long)kv->n, (long long)m->hp.n_block);
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        uint32_t v = 0;
        if (bytes)
            v = ((const uint8_t *)kv->data)[i] != 0;
        else
            memcpy(&v, (const char *)kv->data + 4 * i, 4);
        if (v > MAX_DIM)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s[%lld] is %u, more than any model has", key, (long long)i, v);
        *(int64_t *)((char *)&m->layers[i] + field) = v;
    }
    return FIRN_OK;
}

firn_status firn_key_per_layer(firn_context *ctx, firn_model *m, const char *name, bool required, size_t field)
{
    char key[FIRN_KEY_BYTES];
    const firn_kv *kv = firn_gguf_kv(m->gguf, firn_key(key, m, name));
    int64_t one = 0;

    if (!kv && !required)
        return FIRN_OK;
    if (kv && kv->type == FIRN_KV_ARRAY)
        return array(ctx, m, key, kv, field);
    FIRN_TRY(firn_key_u32(ctx, m, name, required, &one));
    for (int64_t i = 0; i < m->hp.n_layer; i++)
        *(int64_t *)((char *)&m->layers[i] + field) = one;
    return FIRN_OK;
}

/* ---- attention ---- */

static bool is(firn_string s, const char *text)
{
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

/* The axes of an image (time, height, width) take turns at the pairs, as many as rope.dimension_sections gives to each.
 * A token of text has one position on all three; a pair that none of them takes follows a fourth axis, on which text
 * stands at 0: it does not rotate. Its angle is divided by so much that nothing is left. */
static firn_status sections(firn_context *ctx, firn_model *m)
{
    const int64_t pairs = m->hp.rope.n_rot / 2;
    int32_t section[4] = {0};
    char key[FIRN_KEY_BYTES];
    bool all = true;

    const firn_kv *kv = firn_gguf_kv(m->gguf, firn_key(key, m, "rope.dimension_sections"));
    if (!kv || kv->type != FIRN_KV_ARRAY || (kv->element != FIRN_KV_I32 && kv->element != FIRN_KV_U32) || kv->n < 3 ||
        kv->n > 4)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s must be an array of 4 whole numbers: pairs of a head for each axis",
                         key);
    memcpy(section, kv->data, (size_t)kv->n * sizeof *section);
    float *factors = m->section_factors = firn_alloc(m->ctx, (size_t)pairs * sizeof *factors);
    if (!factors)
        return FIRN_ERR_MEMORY;
    for (int64_t i = 0; i < pairs; i++) {
        const bool turns = i < 3 * (int64_t)section[i % 3];
        factors[i] = turns ? 1.0f : 1e30f;
        all &= turns;
    }
    m->made_factors = (firn_gguf_tensor){
        .name = "rope.dimension_sections",
        .type = FIRN_F32,
        .n_dims = 1,
        .ne = {pairs, 1, 1, 1},
        .size = (size_t)pairs * sizeof *factors,
        .data = (const uint8_t *)factors,
        .file = -1,
    };
    if (!all)
        m->rope_freqs = &m->made_factors;
    return FIRN_OK;
}

static firn_status rope(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    firn_string type = {"linear", 6};
    float factor = 0, base = 10000, attn_factor = 1;
    int64_t n_rot = hp->head_k, n_orig = hp->n_ctx_train;
    char key[FIRN_KEY_BYTES];

    FIRN_TRY(firn_key_u32(ctx, m, "rope.dimension_count", false, &n_rot));
    FIRN_TRY(firn_key_f32(ctx, m, "rope.freq_base", false, &base));
    FIRN_TRY(firn_key_f32(ctx, m, "rope.scale_linear", false, &factor));
    FIRN_TRY(firn_key_f32(ctx, m, "rope.scaling.factor", false, &factor));
    FIRN_TRY(firn_key_f32(ctx, m, "rope.scaling.attn_factor", false, &attn_factor));
    FIRN_TRY(firn_key_u32(ctx, m, "rope.scaling.original_context_length", false, &n_orig));
    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, firn_key(key, m, "rope.scaling.type"), false, &type));

    if (n_rot <= 0 || n_rot > hp->head_k || n_rot % 2)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.rope.dimension_count is %lld; heads have %lld values", m->arch->name,
                         (long long)n_rot, (long long)hp->head_k);
    if (m->arch->rope_all && n_rot != hp->head_k)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.rope.dimension_count is %lld, it must equal the head's %lld values",
                         m->arch->name, (long long)n_rot, (long long)hp->head_k);
    if (!(base > 1) || factor < 0 || n_orig <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the rotary metadata of %s makes no sense: base %g, factor %g",
                         m->arch->name, (double)base, (double)factor);
    const bool none = is(type, "none"), yarn = is(type, "yarn");
    if (!none && !yarn && !is(type, "linear") && !is(type, "longrope"))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is '%.*s'; none, linear, yarn and longrope are supported", key,
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
    hp->longrope = is(type, "longrope");
    bool finetuned = true;
    if (m->arch->rope_finetuned)
        FIRN_TRY(firn_gguf_get_bool(ctx, m->gguf, firn_key(key, m, "rope.scaling.finetuned"), false, &finetuned));
    for (int64_t i = 0; i < hp->n_layer; i++) {
        m->layers[i].rope_base = base;
        m->layers[i].stretched = m->layers[i].factors = true;
        m->layers[i].n_rot = n_rot;
        m->layers[i].rotates =
            finetuned && !m->arch->rope_none && (m->arch->rope_skip == 0 || (i + 1) % m->arch->rope_skip != 0);
    }
    return m->arch->rope_sections ? sections(ctx, m) : FIRN_OK;
}

/* Which blocks have a window, how far it reaches, and the base of their rotation, which has all else in common with
 * that of the others. */
static firn_status windows(firn_context *ctx, firn_model *m)
{
    char key[FIRN_KEY_BYTES];
    int64_t step = m->arch->window_step;
    float base = m->hp.rope.freq_base;

    if (!step)
        return FIRN_OK;
    FIRN_TRY(firn_key_u32(ctx, m, "attention.sliding_window", !m->arch->window_optional, &m->hp.window));
    FIRN_TRY(firn_key_f32(ctx, m, "rope.freq_base_swa", false, &base));
    if (!(base > 1))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.rope.freq_base_swa is %g, and a base is above 1", m->arch->name,
                         (double)base);
    const firn_kv *kv = firn_gguf_kv(m->gguf, firn_key(key, m, "attention.sliding_window_pattern"));
    if (m->arch->window_pattern && !(kv && kv->type == FIRN_KV_ARRAY))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s must be an array that says of each block whether it has a window",
                         key);
    if (kv && kv->type == FIRN_KV_ARRAY)
        FIRN_TRY(array(ctx, m, key, kv, offsetof(firn_layer, window)));
    else
        FIRN_TRY(firn_key_u32(ctx, m, "attention.sliding_window_pattern", false, &step));
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        firn_layer *l = &m->layers[i];
        if (!kv || kv->type != FIRN_KV_ARRAY)
            l->window = step == 0 || i % step < step - 1;
        l->window = l->window && m->hp.window > 0;
        if (l->window && m->arch->rope_unstretched)
            l->stretched = false;
        else if (l->window)
            l->rope_base = base;
        if (m->arch->rope_windows && m->hp.window > 0)
            l->rotates = l->window;
        l->factors = !(m->arch->rope_factors_full && l->window);
    }
    return FIRN_OK;
}

/* Blocks with a window may have heads of another size. */
static firn_status window_heads(firn_context *ctx, firn_model *m)
{
    const firn_hparams *hp = &m->hp;
    int64_t k = 0, v = 0, n_rot = hp->rope.n_rot;

    FIRN_TRY(firn_key_u32(ctx, m, "attention.key_length_swa", true, &k));
    FIRN_TRY(firn_key_u32(ctx, m, "attention.value_length_swa", true, &v));
    FIRN_TRY(firn_key_u32(ctx, m, "rope.dimension_count_swa", false, &n_rot));
    if (k <= 0 || v <= 0 || k > 65536 || v > 65536 || n_rot <= 0 || n_rot > k || n_rot % 2)
        return firn_fail(
            ctx, FIRN_ERR_FORMAT,
            "%s has heads of %lld and %lld values in blocks with a window, of which %lld rotate: not possible",
            m->arch->name, (long long)k, (long long)v, (long long)n_rot);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        firn_layer *l = &m->layers[i];
        if (!l->window)
            continue;
        l->head_k = k;
        l->head_v = v;
        l->n_rot = n_rot;
        l->k_row = l->n_head_kv * k;
        l->v_row = l->n_head_kv * v;
    }
    return FIRN_OK;
}

/* A q that grows with its position, so that long contexts do not blur. */
static firn_status temperature(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;

    if (!m->arch->temperature)
        return FIRN_OK;
    FIRN_TRY(firn_key_f32(ctx, m, "attention.temperature_scale", false, &hp->temperature.scale));
    FIRN_TRY(firn_key_u32(ctx, m, "attention.temperature_length", hp->temperature.scale != 0, &hp->temperature.length));
    if (hp->temperature.scale != 0 && hp->temperature.length <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.attention.temperature_length is 0, and positions are divided by it",
                         m->arch->name);
    return FIRN_OK;
}

static firn_status heads(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;

    FIRN_TRY(firn_key_per_layer(ctx, m, "attention.head_count", true, offsetof(firn_layer, n_head)));
    for (int64_t i = 0; i < hp->n_layer; i++)
        m->layers[i].n_head_kv = m->layers[i].n_head;
    FIRN_TRY(firn_key_per_layer(ctx, m, "attention.head_count_kv", false, offsetof(firn_layer, n_head_kv)));
    FIRN_TRY(firn_recurrent_read(ctx, m));
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const firn_layer *l = &m->layers[i];
        if (l->n_head <= 0 || l->n_head_kv <= 0 || l->n_head % l->n_head_kv || l->n_head > 4096)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "block %lld has %lld query heads over %lld key heads", (long long)i,
                             (long long)l->n_head, (long long)l->n_head_kv);
    }
    hp->head_k = hp->head_v = hp->n_embd / m->layers[0].n_head;
    FIRN_TRY(firn_key_u32(ctx, m, "attention.key_length", false, &hp->head_k));
    FIRN_TRY(firn_key_u32(ctx, m, "attention.value_length", false, &hp->head_v));
    if (hp->head_k <= 0 || hp->head_v <= 0 || hp->head_k > 65536 || hp->head_v > 65536)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "heads of %lld and %lld values are not possible", (long long)hp->head_k,
                         (long long)hp->head_v);
    if (m->arch->attention == FIRN_ATTENTION_MLA)
        FIRN_TRY(firn_mla_heads(ctx, m));
    FIRN_TRY(rope(ctx, m));
    hp->attention_scale = m->arch->attention_scale != 0 ? m->arch->attention_scale : 1.0f / sqrtf((float)hp->head_k);
    for (int64_t i = 0; i < hp->n_layer; i++) {
        firn_layer *l = &m->layers[i];
        l->head_k = hp->head_k;
        l->head_v = hp->head_v;
        const bool keys = l->mixes && l->mixer == FIRN_MIX_ATTENTION;
        l->keys_of = i;
        l->k_row = keys ? l->n_head_kv * hp->head_k : 0;
        l->v_row = keys ? l->n_head_kv * hp->head_v : 0;
    }
    if (m->arch->attention == FIRN_ATTENTION_MLA)
        FIRN_TRY(firn_mla_rope(ctx, m));
    if (m->arch->most_keys)
        FIRN_TRY(firn_key_u32(ctx, m, m->arch->most_keys, true, &hp->most_keys));
    FIRN_TRY(temperature(ctx, m));
    FIRN_TRY(windows(ctx, m));
    return m->arch->window_heads ? window_heads(ctx, m) : FIRN_OK;
}

/* ---- feed-forward ---- */

static firn_status router(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    const firn_router *r = &m->arch->router;
    const char *arch = m->arch->name;
    int64_t gate = r->gate, groups = 0, used = 0;
    float scale = 0;
    char key[FIRN_KEY_BYTES];

    if (r->gate_by_size && (hp->n_layer == 47 || hp->n_layer == 48) && hp->n_vocab == 154880)
        gate = FIRN_GATE_SIGMOID;
    hp->router.renormalize = r->renormalize;
    if (r->gate_key != FIRN_ABSENT)
        FIRN_TRY(firn_key_u32(ctx, m, "expert_gating_func", r->gate_key == FIRN_REQUIRED, &gate));
    if (r->renormalize_key)
        FIRN_TRY(
            firn_gguf_get_bool(ctx, m->gguf, firn_key(key, m, "expert_weights_norm"), false, &hp->router.renormalize));
    if (r->scale_key)
        FIRN_TRY(firn_key_f32(ctx, m, "expert_weights_scale", false, &scale));
    hp->router.scale = scale == 0 ? 1 : scale;
    if (gate != FIRN_GATE_SOFTMAX && gate != FIRN_GATE_SIGMOID && gate != FIRN_GATE_SOFTMAX_CHOSEN)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                         "%s.expert_gating_func is %lld; 1 (softmax), 2 (sigmoid) and 3 (softmax over the chosen) are "
                         "supported",
                         arch, (long long)gate);
    hp->router.gate = (firn_gate)gate;

    FIRN_TRY(firn_key_u32(ctx, m, "expert_group_count", false, &groups));
    FIRN_TRY(firn_key_u32(ctx, m, "expert_group_used_count", groups > 1, &used));
    hp->router.n_group = groups > 1 ? groups : 1;
    hp->router.n_group_used = groups > 1 ? used : 1;
    if (groups <= 1)
        return FIRN_OK;
    if (hp->n_expert % groups || hp->n_expert / groups < 2 || used <= 0 || used >= groups ||
        hp->n_expert_used > used * (hp->n_expert / groups))
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "%s chooses %lld of %lld experts from %lld of %lld groups, which is not possible", arch,
                         (long long)hp->n_expert_used, (long long)hp->n_expert, (long long)used, (long long)groups);
    return FIRN_OK;
}

/* Which blocks are routed. */
static firn_status routed_blocks(firn_context *ctx, firn_model *m)
{
    int64_t lead = 0, step = 1;

    if (m->arch->leading_dense)
        FIRN_TRY(firn_key_u32(ctx, m, "leading_dense_block_count", false, &lead));
    if (m->arch->interleaved)
        FIRN_TRY(firn_key_u32(ctx, m, "interleave_moe_layer_step", true, &step));
    if (step <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.interleave_moe_layer_step is 0", m->arch->name);
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        char router[64];
        snprintf(router, sizeof router, "blk.%d.ffn_gate_inp.weight", (int)i);
        m->layers[i].experts =
            m->layers[i].feeds &&
            (m->arch->routed_by_router ? firn_gguf_find(m->gguf, router) != NULL : i >= lead && (i + 1) % step == 0);
    }
    return FIRN_OK;
}

/* Widths of the experts and of the shared expert. */
static firn_status expert_widths(firn_context *ctx, firn_model *m)
{
    const firn_arch *arch = m->arch;
    int64_t shared = 0, count = 1;

    if (arch->expert_width)
        FIRN_TRY(firn_key_per_layer(ctx, m, arch->expert_width, false, offsetof(firn_layer, n_ff_expert)));
    if (arch->shared_key)
        FIRN_TRY(firn_key_u32(ctx, m, "expert_shared_feed_forward_length", false, &shared));
    if (arch->shared_count)
        FIRN_TRY(firn_key_u32(ctx, m, "expert_shared_count", true, &count));
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        firn_layer *l = &m->layers[i];
        if (!l->experts)
            continue;
        if (l->n_ff_expert == 0)
            l->n_ff_expert = arch->expert_width ? l->n_ff / l->n_expert_used : l->n_ff;
        if (l->n_ff_expert <= 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "the width of the experts is missing: %s.%s", arch->name,
                             arch->expert_width ? arch->expert_width : "feed_forward_length");
        l->n_ff_shared = count * (shared                                    ? shared
                                  : arch->shared_width == FIRN_WIDTH_DENSE  ? l->n_ff
                                  : arch->shared_width == FIRN_WIDTH_EXPERT ? l->n_ff_expert
                                                                            : 0);
    }
    return FIRN_OK;
}

static firn_status experts(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    const char *arch = m->arch->name;

    FIRN_TRY(firn_key_u32(ctx, m, "expert_count", m->arch->experts == FIRN_REQUIRED, &hp->n_expert));
    if (m->arch->experts == FIRN_ABSENT ? hp->n_expert > 0 : m->arch->experts == FIRN_REQUIRED && hp->n_expert == 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.expert_count is %lld, which %s models do not have", arch,
                         (long long)hp->n_expert, arch);
    if (hp->n_expert == 0)
        return FIRN_OK;
    FIRN_TRY(routed_blocks(ctx, m));
    FIRN_TRY(firn_key_per_layer(ctx, m, "expert_used_count", true, offsetof(firn_layer, n_expert_used)));
    for (int64_t i = 0; i < hp->n_layer; i++) {
        const int64_t used = m->layers[i].n_expert_used;
        if (hp->n_expert > MAX_EXPERTS || used > hp->n_expert || (used == 0 && m->layers[i].experts))
            return firn_fail(ctx, FIRN_ERR_FORMAT,
                             "block %lld of %s uses %lld of %lld experts; at most %d, and at least 1 of them used",
                             (long long)i, arch, (long long)used, (long long)hp->n_expert, MAX_EXPERTS);
        hp->n_expert_used = firn_max_i64(hp->n_expert_used, used);
    }
    FIRN_TRY(router(ctx, m));
    return expert_widths(ctx, m);
}

/* ---- the whole ---- */

static firn_status scales(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    float attention = 0, embedding = 0, residual = 0, logit = 1;

    hp->embedding_scale = m->arch->embedding_root ? sqrtf((float)hp->n_embd) : 1;
    hp->residual_scale = hp->logit_scale = 1;
    hp->softcap = m->arch->softcap;
    if (m->arch->softcap != 0)
        FIRN_TRY(firn_key_f32(ctx, m, "final_logit_softcapping", false, &hp->softcap));
    if (hp->softcap < 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.final_logit_softcapping is %g, and logits are kept within it",
                         m->arch->name, (double)hp->softcap);
    if (!m->arch->scales)
        return FIRN_OK;
    FIRN_TRY(firn_key_f32(ctx, m, "logit_scale", !m->arch->logit_scale_optional, &logit));
    FIRN_TRY(firn_key_f32(ctx, m, "residual_scale", false, &residual));
    FIRN_TRY(firn_key_f32(ctx, m, "embedding_scale", false, &embedding));
    FIRN_TRY(firn_key_f32(ctx, m, "attention.scale", false, &attention));
    if (logit == 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.logit_scale is 0, and logits are divided by it", m->arch->name);
    hp->logit_scale = logit;
    if (residual != 0)
        hp->residual_scale = residual;
    if (embedding != 0)
        hp->embedding_scale = embedding;
    if (attention != 0)
        hp->attention_scale = attention;
    return FIRN_OK;
}

/* The last blocks have no keys and values of their own. Those with a window attend to those of the last block but one
 * that has some, the others to the last one's: llama.cpp's rule, whatever these are. Elsewhere it is the last one of
 * the same kind; only where both come to the same is the model run. */
static firn_status borrowed_keys(firn_context *ctx, firn_model *m, int64_t borrowing)
{
    const int64_t own = m->hp.n_layer - borrowing;

    for (int64_t i = own; i < m->hp.n_layer; i++) {
        firn_layer *l = &m->layers[i];
        const int64_t from = own - (l->window ? 2 : 1);
        firn_layer *lender = from >= 0 ? &m->layers[from] : NULL;
        if (!lender || !lender->window != !l->window || lender->n_head_kv != l->n_head_kv)
            return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                             "%s.attention.shared_kv_layers is %lld: of the last two blocks that have keys the first "
                             "should have a window and the second none, and block %lld as many key heads as it takes",
                             m->arch->name, (long long)borrowing, (long long)i);
        lender->lends = true;
        l->keys_of = from;
        l->k_row = l->v_row = 0;
    }
    return FIRN_OK;
}

/* What the small Gemma 4 have besides. */
static firn_status per_layer_inputs(firn_context *ctx, firn_model *m)
{
    int64_t borrowing = 0;

    if (!m->arch->per_layer_inputs)
        return FIRN_OK;
    FIRN_TRY(firn_key_u32(ctx, m, "attention.shared_kv_layers", false, &borrowing));
    FIRN_TRY(firn_key_u32(ctx, m, "embedding_length_per_layer_input", true, &m->hp.n_per_layer));
    return borrowed_keys(ctx, m, borrowing);
}

static firn_status vocabulary(firn_context *ctx, firn_model *m)
{
    const firn_kv *tokens = firn_gguf_kv(m->gguf, "tokenizer.ggml.tokens");

    if (tokens && tokens->type == FIRN_KV_ARRAY && tokens->element == FIRN_KV_STRING && tokens->n <= MAX_DIM)
        m->hp.n_vocab = (int64_t)tokens->n;
    else
        FIRN_TRY(firn_key_u32(ctx, m, "vocab_size", true, &m->hp.n_vocab));
    if (m->hp.n_vocab <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "the model has no vocabulary: tokenizer.ggml.tokens is missing or empty");
    return FIRN_OK;
}

firn_status firn_hparams_read(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;
    const char *arch = m->arch->name;
    int64_t nextn = 0;
    bool causal = true;
    char key[FIRN_KEY_BYTES];

    FIRN_TRY(firn_key_u32(ctx, m, "context_length", true, &hp->n_ctx_train));
    FIRN_TRY(firn_key_u32(ctx, m, "embedding_length", true, &hp->n_embd));
    FIRN_TRY(firn_key_u32(ctx, m, "block_count", true, &hp->n_block));
    FIRN_TRY(firn_key_u32(ctx, m, "nextn_predict_layers", false, &nextn));
    if (m->arch->eps_other)
        FIRN_TRY(firn_key_f32(ctx, m, "attention.layer_norm_epsilon", true, &hp->norm_eps));
    FIRN_TRY(firn_key_f32(ctx, m, "attention.layer_norm_rms_epsilon", !m->arch->eps_other, &hp->norm_eps));
    if (m->arch->latent_experts)
        FIRN_TRY(firn_key_u32(ctx, m, "moe_latent_size", false, &hp->n_latent));
    FIRN_TRY(firn_gguf_get_bool(ctx, m->gguf, firn_key(key, m, "attention.causal"), false, &causal));
    hp->n_layer = hp->n_block - nextn;
    if (hp->n_layer <= 0 || hp->n_block > MAX_LAYERS)
        return firn_fail(
            ctx, FIRN_ERR_FORMAT,
            "%s.block_count is %lld, nextn_predict_layers of them %lld; 1 to %d blocks are possible, and at "
            "least 1 must be left to run",
            arch, (long long)hp->n_block, (long long)nextn, MAX_LAYERS);
    if (hp->n_embd <= 0 || hp->n_ctx_train <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.embedding_length %lld and context_length %lld must be positive",
                         arch, (long long)hp->n_embd, (long long)hp->n_ctx_train);
    if (hp->norm_eps < 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.attention.layer_norm_rms_epsilon is %g, and it cannot be negative",
                         arch, (double)hp->norm_eps);
    if (!causal)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s is false: attention that sees the future is not supported",
                         key);
    FIRN_TRY(vocabulary(ctx, m));
    m->layers = firn_alloc_zeroed(m->ctx, (size_t)hp->n_layer, sizeof *m->layers);
    if (!m->layers)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_key_per_layer(ctx, m, "feed_forward_length", false, offsetof(firn_layer, n_ff)));
    FIRN_TRY(heads(ctx, m));
    FIRN_TRY(scales(ctx, m));
    FIRN_TRY(per_layer_inputs(ctx, m));
    FIRN_TRY(experts(ctx, m));
    for (int64_t i = 0; i < hp->n_layer; i++)
        if (m->layers[i].feeds && !m->layers[i].experts && m->layers[i].n_ff <= 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.feed_forward_length is missing or 0", arch);
    return FIRN_OK;
}
