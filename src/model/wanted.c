/* Which tensors an architecture asks for, and whether the file has exactly these.
 *
 * Shapes innermost first; d = n_embd, H and G = query and key-value heads, F, Fe, Fs = width of the feed-forward, of an
 * expert, of the shared expert, E = experts. A tensor that is missing, has another shape or an unusable type, or that
 * nothing asks for, refuses the file by name: a model that is computed without one of its tensors would be another
 * model. */
#include "model/wanted.h"

#include "format/format.h"
#include "model/mla.h"
#include "model/recurrent.h"
#include "model/stack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

/* The shape as "[64, 271]". */
static const char *shape_text(char text[80], int n_dims, const int64_t *ne)
{
    int at = snprintf(text, 80, "[");

    for (int i = 0; i < n_dims; i++)
        at += snprintf(text + at, (size_t)(80 - at), "%s%lld", i ? ", " : "", (long long)ne[i]);
    snprintf(text + at, (size_t)(80 - at), "]");
    return text;
}

/* *slot = the tensor of that name, checked. `f32`: other types will not do. */
static firn_status want(firn_context *ctx, const firn_model *m, const firn_gguf_tensor **slot, firn_presence presence,
                        const char *name, bool f32, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t ne[FIRN_MAX_DIMS] = {ne0, ne1 ? ne1 : 1, ne2 ? ne2 : 1, 1};
    const int n_dims = ne2 ? 3 : ne1 ? 2 : 1;
    char wanted[80], found[80];

    if (presence == FIRN_ABSENT)
        return FIRN_OK;
    const firn_gguf_tensor *t = firn_gguf_find(m->gguf, name);
    if (!t) {
        if (presence == FIRN_OPTIONAL)
            return FIRN_OK;
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s is missing; %s models have it, %s", name, m->arch->name,
                         shape_text(wanted, n_dims, ne));
    }
    if (memcmp(t->ne, ne, sizeof ne) != 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s should be %s, not %s", name, shape_text(wanted, n_dims, ne),
                         shape_text(found, t->n_dims, t->ne));
    if (f32 ? t->type != FIRN_F32 : !firn_format_can_decode(t->type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "tensor %s has type %s; %s", name, firn_type_name(t->type),
                         f32 ? "norms and biases are f32" : "no product here can read that");
    *slot = t;
    return FIRN_OK;
}

firn_status firn_want_weight(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                             int64_t ne0, int64_t ne1, int64_t ne2)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s.weight", i, firn_tensor_rows[id].base);
    if (presence != FIRN_ABSENT && firn_tensor_rows[id].class_ == FIRN_CLASS_EXPERTS &&
        !firn_gguf_find(m->gguf, name) && firn_stack_there(m, i, id))
        return firn_stack_want(ctx, m, i, id, ne0, ne1, ne2);
    const bool f32 = ne1 == 0 || firn_tensor_rows[id].class_ == FIRN_CLASS_NONE;
    return want(ctx, m, &m->layers[i].weight[id], presence, name, f32, ne0, ne1, ne2);
}

firn_status firn_want_bias(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                           int64_t ne0, int64_t ne1)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s.bias", i, firn_tensor_rows[id].base);
    return want(ctx, m, &m->layers[i].bias[id], presence, name, true, ne0, ne1, 0);
}

firn_status firn_want_bare(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                           int64_t ne0, int64_t ne1)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s", i, firn_tensor_rows[id].base);
    return want(ctx, m, &m->layers[i].weight[id], presence, name, true, ne0, ne1, 0);
}

/* exp_probs_b as a few files name it, without a suffix. */
static firn_status want_bare_bias(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                                  int64_t ne0)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s", i, firn_tensor_rows[id].base);
    return want(ctx, m, &m->layers[i].bias[id], presence, name, true, ne0, 0, 0);
}

/* "<base>.scale" beside the weight, which is multiplied by it: a tensor's own factor that its blocks do not hold
 * (NVFP4). Experts have one each. */
static firn_status want_factors_of(firn_context *ctx, firn_model *m, int i)
{
    firn_layer *l = &m->layers[i];
    char name[NAME_BYTES];

    for (int id = 0; id < FIRN_T_COUNT; id++) {
        const bool experts = firn_tensor_rows[id].class_ == FIRN_CLASS_EXPERTS;
        if (!l->weight[id] || firn_tensor_rows[id].class_ == FIRN_CLASS_NONE || l->factor[id])
            continue;
        snprintf(name, sizeof name, "blk.%d.%s.scale", i, firn_tensor_rows[id].base);
        FIRN_TRY(want(ctx, m, &l->factor[id], FIRN_OPTIONAL, name, true, experts ? l->weight[id]->ne[2] : 1, 0, 0));
    }
    return FIRN_OK;
}

/* ---- attention ---- */

/* A block that attends to the keys and values of another has none; where the file does, they are idle. */
static bool borrows(const firn_model *m, int64_t i)
{
    return m->layers[i].keys_of != i;
}

static firn_status want_heads(firn_context *ctx, firn_model *m, int i)
{
    const firn_arch *arch = m->arch;
    const firn_layer *l = &m->layers[i];
    const int64_t d = m->hp.n_embd, heads = l->n_head * l->head_k, q = arch->q_gated ? 2 * heads : heads,
                  k = l->n_head_kv * l->head_k, v = l->n_head_kv * l->head_v;

    FIRN_TRY(
        firn_want_weight(ctx, m, i, FIRN_T_ATTN_QKV, borrows(m, i) ? FIRN_ABSENT : FIRN_OPTIONAL, d, q + k + v, 0));
    /* Fused weights may have one bias, or three separate ones. */
    const bool fused = l->weight[FIRN_T_ATTN_QKV];
    const firn_presence split = fused ? FIRN_ABSENT : FIRN_REQUIRED, keys = borrows(m, i) ? FIRN_ABSENT : split;
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_ATTN_QKV, fused ? arch->qkv_bias : FIRN_ABSENT, q + k + v, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q, split, d, q, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_K, keys, d, k, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_V, keys == FIRN_REQUIRED && arch->v_or_k ? FIRN_OPTIONAL : keys, d,
                              v, 0));
    const firn_presence bias = l->bias[FIRN_T_ATTN_QKV] ? FIRN_ABSENT : arch->qkv_bias;
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_ATTN_Q, bias, q, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_ATTN_K, bias, k, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_ATTN_V, bias, v, 0));
    if (arch->qk_norm != FIRN_QK_NORM_NONE) {
        const bool head = arch->qk_norm != FIRN_QK_NORM_WHOLE_ROW;
        const firn_presence norm = arch->qk_norm_optional ? FIRN_OPTIONAL : FIRN_REQUIRED;
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_Q_NORM, norm, head ? l->head_k : heads, 0, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_K_NORM, borrows(m, i) ? FIRN_ABSENT : norm,
                                  head ? l->head_k : k, 0, 0));
    }
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_GATE, arch->attn_gate, d, l->n_head * l->head_v, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_SINKS, arch->sinks, l->n_head, 0, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_OUTPUT, FIRN_REQUIRED, l->n_head * l->head_v, d, 0));
    return firn_want_bias(ctx, m, i, FIRN_T_ATTN_OUTPUT, arch->attn_output_bias, d, 0);
}

static firn_status want_attention(firn_context *ctx, firn_model *m, int i)
{
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_ATTN_NORM, FIRN_REQUIRED, m->hp.n_embd, 0, 0));
    if (!m->layers[i].mixes)
        return FIRN_OK;
    if (m->layers[i].mixer != FIRN_MIX_ATTENTION)
        return firn_recurrent_want(ctx, m, i);
    return m->arch->attention == FIRN_ATTENTION_MLA ? firn_mla_want(ctx, m, i) : want_heads(ctx, m, i);
}

/* ---- feed-forward ---- */

/* Of ffn_gate and ffn_gate_shexp. */
static firn_presence gate_presence(const firn_model *m)
{
    return m->arch->activation == FIRN_RELU_SQUARED ? FIRN_ABSENT : FIRN_REQUIRED;
}

static firn_status want_dense(firn_context *ctx, firn_model *m, int i)
{
    const firn_presence bias = m->arch->ffn_bias;
    const int64_t d = m->hp.n_embd, f = m->layers[i].n_ff;

    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE, gate_presence(m), d, f, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_UP, FIRN_REQUIRED, d, f, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_DOWN, FIRN_REQUIRED, f, d, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_GATE, bias, f, 0));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_UP, bias, f, 0));
    return firn_want_bias(ctx, m, i, FIRN_T_FFN_DOWN, bias, d, 0);
}

static firn_status want_experts(firn_context *ctx, firn_model *m, int i)
{
    const firn_arch *arch = m->arch;
    const firn_layer *l = &m->layers[i];
    const int64_t fe = l->n_ff_expert, e = m->hp.n_expert, d = m->hp.n_latent ? m->hp.n_latent : m->hp.n_embd;

    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE_INP, FIRN_REQUIRED, m->hp.n_embd, e, 0));
    if (m->hp.n_latent) {
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_LATENT_DOWN, FIRN_REQUIRED, m->hp.n_embd, d, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_LATENT_UP, FIRN_REQUIRED, d, m->hp.n_embd, 0));
    }
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_GATE_INP, arch->router.logit_bias, e, 0));
    FIRN_TRY(arch->router.choice_bias_bare
                 ? want_bare_bias(ctx, m, i, FIRN_T_EXP_PROBS_B, arch->router.choice_bias, e)
                 : firn_want_bias(ctx, m, i, FIRN_T_EXP_PROBS_B, arch->router.choice_bias, e, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE_UP_EXPS, FIRN_OPTIONAL, d, 2 * fe, e));
    const bool fused = l->weight[FIRN_T_FFN_GATE_UP_EXPS];
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_GATE_UP_EXPS, fused ? arch->expert_bias : FIRN_ABSENT, 2 * fe, e));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE_EXPS, fused ? FIRN_ABSENT : arch->expert_gate, d, fe, e));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_UP_EXPS, fused ? FIRN_ABSENT : FIRN_REQUIRED, d, fe, e));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_DOWN_EXPS, FIRN_REQUIRED, fe, d, e));
    const firn_presence bias = fused ? FIRN_ABSENT : arch->expert_bias;
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_GATE_EXPS, bias, fe, e));
    FIRN_TRY(firn_want_bias(ctx, m, i, FIRN_T_FFN_UP_EXPS, bias, fe, e));
    return firn_want_bias(ctx, m, i, FIRN_T_FFN_DOWN_EXPS, arch->expert_bias, d, e);
}

static firn_status want_shared(firn_context *ctx, firn_model *m, int i)
{
    const int64_t d = m->hp.n_embd, fs = m->layers[i].n_ff_shared;

    if (m->arch->shared == FIRN_SHARED_GATED)
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE_INP_SHEXP, FIRN_REQUIRED, d, 0, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_GATE_SHEXP, gate_presence(m), d, fs, 0));
    FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_FFN_UP_SHEXP, FIRN_REQUIRED, d, fs, 0));
    return firn_want_weight(ctx, m, i, FIRN_T_FFN_DOWN_SHEXP, FIRN_REQUIRED, fs, d, 0);
}

/* Experts beside a dense feed-forward; the router's .scale is as long as what it reads. */
static firn_status want_beside_dense(firn_context *ctx, firn_model *m, int i)
{
    static const firn_tensor_id norms[] = {FIRN_T_PRE_FFW_NORM_2, FIRN_T_POST_FFW_NORM_1, FIRN_T_POST_FFW_NORM_2};
    char name[NAME_BYTES];

    for (size_t k = 0; k < sizeof norms / sizeof *norms; k++)
        FIRN_TRY(firn_want_weight(ctx, m, i, norms[k], FIRN_REQUIRED, m->hp.n_embd, 0, 0));
    snprintf(name, sizeof name, "blk.%d.%s.scale", i, firn_tensor_rows[FIRN_T_FFN_GATE_INP].base);
    FIRN_TRY(want(ctx, m, &m->layers[i].factor[FIRN_T_FFN_GATE_INP], FIRN_REQUIRED, name, true, m->hp.n_embd, 0, 0));
    return want_dense(ctx, m, i);
}

static firn_status want_feed_forward(firn_context *ctx, firn_model *m, int i)
{
    const firn_layer *l = &m->layers[i];
    const firn_tensor_id norm = m->arch->post_attention_norm ? FIRN_T_POST_ATTENTION_NORM : FIRN_T_FFN_NORM;

    if (!l->feeds)
        return FIRN_OK;
    if (!m->arch->one_part)
        FIRN_TRY(firn_want_weight(ctx, m, i, norm, FIRN_REQUIRED, m->hp.n_embd, 0, 0));
    if (m->arch->sandwich) {
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_POST_ATTENTION_NORM, FIRN_REQUIRED, m->hp.n_embd, 0, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_POST_FFW_NORM, FIRN_REQUIRED, m->hp.n_embd, 0, 0));
    }
    if (m->hp.n_per_layer) {
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_INP_GATE, FIRN_REQUIRED, m->hp.n_embd, m->hp.n_per_layer, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_PROJ, FIRN_REQUIRED, m->hp.n_per_layer, m->hp.n_embd, 0));
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_POST_NORM, FIRN_REQUIRED, m->hp.n_embd, 0, 0));
    }
    if (m->arch->output_scale)
        FIRN_TRY(firn_want_weight(ctx, m, i, FIRN_T_LAYER_OUTPUT_SCALE, FIRN_OPTIONAL, 1, 0, 0));
    if (!l->experts)
        return want_dense(ctx, m, i);
    if (m->arch->dense_beside)
        FIRN_TRY(want_beside_dense(ctx, m, i));
    FIRN_TRY(want_experts(ctx, m, i));
    return l->n_ff_shared ? want_shared(ctx, m, i) : FIRN_OK;
}

/* ---- the model ---- */

static firn_status want_factors(firn_context *ctx, firn_model *m)
{
    const int64_t n = m->hp.rope.n_rot / 2;
    firn_presence presence = FIRN_OPTIONAL;

    if (!m->arch->rope_factors)
        return FIRN_OK;
    for (int64_t i = 0; m->arch->rope_factors_full && i < m->hp.n_layer; i++)
        if (m->layers[i].factors)
            presence = FIRN_REQUIRED;
    if (!m->hp.longrope)
        return want(ctx, m, &m->rope_freqs, presence, "rope_freqs.weight", true, n, 0, 0);
    FIRN_TRY(want(ctx, m, &m->rope_long, FIRN_OPTIONAL, "rope_factors_long.weight", true, n, 0, 0));
    return want(ctx, m, &m->rope_short, m->rope_long ? FIRN_REQUIRED : FIRN_ABSENT, "rope_factors_short.weight", true,
                n, 0, 0);
}

static bool begins(const char *text, const char *start)
{
    return start && strncmp(text, start, strlen(start)) == 0;
}

bool firn_model_tower(const char *name)
{
    return begins(name, "v.") || begins(name, "a.") || begins(name, "mm.");
}

/* Blocks past n_layer predict further tokens and do not run; nor do a block's idle tensors, nor what reads images or
 * sound. */
static bool skipped(const firn_model *m, const char *name)
{
    char *end;

    if (!begins(name, "blk."))
        return firn_model_tower(name);
    const long i = strtol(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || i < 0)
        return false;
    if (i >= m->hp.n_layer)
        return i < m->hp.n_block;
    const char *base = end + 1;
    const bool keys = begins(base, "attn_k.") || begins(base, "attn_v.") || begins(base, "attn_k_norm.");
    return begins(base, m->arch->idle) || (keys && borrows(m, i));
}

/* "<tensor>.input_scale" is for engines that round what they multiply, which nothing here does. */
static bool for_activations(const firn_model *m, const char *name)
{
    const size_t n = strlen(name), tail = strlen(".input_scale");
    char weight[FIRN_MAX_NAME];
    int layer;
    firn_tensor_id id;
    bool bias;

    if (n <= tail || n >= sizeof weight - tail || strcmp(name + n - tail, ".input_scale") != 0)
        return false;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(n - tail), name);
    return firn_model_find(m, weight, &layer, &id, &bias) != NULL;
}

static firn_status no_others(firn_context *ctx, const firn_model *m)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(m->gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->gguf, i);
        int layer;
        firn_tensor_id id;
        bool bias;
        if (firn_model_find(m, t->name, &layer, &id, &bias) != t && !skipped(m, t->name) &&
            !for_activations(m, t->name) && !firn_stack_holds(m, t->name))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s has no place in this %s model", t->name, m->arch->name);
    }
    return FIRN_OK;
}

firn_status firn_model_want_all(firn_context *ctx, firn_model *m)
{
    const firn_arch *arch = m->arch;
    const int64_t d = m->hp.n_embd, v = m->hp.n_vocab;

    FIRN_TRY(want(ctx, m, &m->token_embd, FIRN_REQUIRED, "token_embd.weight", false, d, v, 0));
    FIRN_TRY(want(ctx, m, &m->output_norm, FIRN_REQUIRED, arch->output_norm ? arch->output_norm : "output_norm.weight",
                  true, d, 0, 0));
    FIRN_TRY(want(ctx, m, &m->output, arch->output, "output.weight", false, d, v, 0));
    if (!m->output)
        m->output = m->token_embd;
    FIRN_TRY(want(ctx, m, &m->output_bias, arch->output_bias, "output.bias", true, v, 0, 0));
    if (m->output != m->token_embd)
        FIRN_TRY(want(ctx, m, &m->output_factor, FIRN_OPTIONAL, "output.scale", true, 1, 0, 0));
    FIRN_TRY(want_factors(ctx, m));
    if (m->hp.n_per_layer) {
        const int64_t p = m->hp.n_per_layer, all = p * m->hp.n_layer;
        FIRN_TRY(want(ctx, m, &m->layer_embd, FIRN_REQUIRED, "per_layer_token_embd.weight", false, all, v, 0));
        FIRN_TRY(want(ctx, m, &m->layer_proj, FIRN_REQUIRED, "per_layer_model_proj.weight", false, d, all, 0));
        FIRN_TRY(want(ctx, m, &m->layer_norm, FIRN_REQUIRED, "per_layer_proj_norm.weight", true, p, 0, 0));
    }
    for (int i = 0; i < m->hp.n_layer; i++) {
        FIRN_TRY(want_attention(ctx, m, i));
        FIRN_TRY(want_feed_forward(ctx, m, i));
        FIRN_TRY(want_factors_of(ctx, m, i));
    }
    return no_others(ctx, m);
}
