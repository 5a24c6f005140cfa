/* Opening a model: which tensors its architecture asks for, and whether the file has exactly these.
 *
 * Shapes innermost first; d = n_embd, H and G = query and key-value heads, F = width of the feed-forward, E = experts.
 * A tensor that is missing, has another shape or an unusable type, or that nothing asks for, refuses the file by name:
 * a model that is computed without one of its tensors would be another model. */
#include "model/model.h"

#include "core/buffer.h"
#include "format/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const firn_tensor_row firn_tensor_rows[FIRN_T_COUNT] = {
#define TENSOR(ID, base, CLASS) {base, FIRN_CLASS_##CLASS},
#include "model/tensors.def"
#undef TENSOR
};

enum { NAME_BYTES = 96 };

/* ---- names ---- */

static bool ends_with(const char *s, size_t n, const char *tail)
{
    const size_t k = strlen(tail);
    return n > k && memcmp(s + n - k, tail, k) == 0;
}

const firn_gguf_tensor *firn_model_find(const firn_model *m, const char *name, int *layer, firn_tensor_id *id,
                                        bool *bias)
{
    const firn_gguf_tensor *outside[] = {m->token_embd, m->output_norm, m->output, m->output_bias, m->rope_freqs};

    *layer = -1;
    *id = FIRN_T_COUNT;
    *bias = false;
    if (strncmp(name, "blk.", 4) != 0) {
        for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
            if (outside[i] && strcmp(outside[i]->name, name) == 0) {
                *bias = outside[i] == m->output_bias;
                return outside[i];
            }
        return NULL;
    }
    char *end;
    const long i = strtol(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || i < 0 || i >= m->hp.n_layer)
        return NULL;
    const char *base = end + 1;
    size_t n = strlen(base);
    if (ends_with(base, n, ".weight"))
        n -= strlen(".weight");
    else if (ends_with(base, n, ".bias"))
        n -= strlen(".bias"), *bias = true;
    else
        return NULL;
    for (int t = 0; t < FIRN_T_COUNT; t++)
        if (strlen(firn_tensor_rows[t].base) == n && memcmp(firn_tensor_rows[t].base, base, n) == 0) {
            const firn_gguf_tensor *found = *bias ? m->layers[i].bias[t] : m->layers[i].weight[t];
            if (!found || strcmp(found->name, name) != 0)
                return NULL;
            *layer = (int)i;
            *id = (firn_tensor_id)t;
            return found;
        }
    return NULL;
}

firn_class firn_model_class(const firn_model *m, const char *name)
{
    int layer;
    firn_tensor_id id;
    bool bias;
    const firn_gguf_tensor *t = firn_model_find(m, name, &layer, &id, &bias);

    if (!t || bias)
        return FIRN_CLASS_NONE;
    if (layer >= 0)
        return firn_tensor_rows[id].class_;
    return t == m->output && t != m->token_embd ? FIRN_CLASS_OUTPUT : FIRN_CLASS_NONE;
}

/* ---- what the architecture asks for ---- */

/* The shape as "[64, 271]". */
static const char *shape_text(char text[80], int n_dims, const int64_t *ne)
{
    int at = snprintf(text, 80, "[");

    for (int i = 0; i < n_dims; i++)
        at += snprintf(text + at, (size_t)(80 - at), "%s%lld", i ? ", " : "", (long long)ne[i]);
    snprintf(text + at, (size_t)(80 - at), "]");
    return text;
}

/* *slot = the tensor of that name, checked. ne[0..3) with 0 ends the shape. */
static firn_status want(firn_context *ctx, const firn_model *m, const firn_gguf_tensor **slot, firn_presence presence,
                        const char *name, int64_t ne0, int64_t ne1, int64_t ne2)
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
    if (n_dims == 1 ? t->type != FIRN_F32 : !firn_format_can_decode(t->type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "tensor %s has type %s; %s", name, firn_type_name(t->type),
                         n_dims == 1 ? "norms and biases are f32" : "no product here can read that");
    *slot = t;
    return FIRN_OK;
}

static firn_status want_block(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                              int64_t ne0, int64_t ne1, int64_t ne2)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s.weight", i, firn_tensor_rows[id].base);
    return want(ctx, m, &m->layers[i].weight[id], presence, name, ne0, ne1, ne2);
}

static firn_status want_bias(firn_context *ctx, firn_model *m, int i, firn_tensor_id id, firn_presence presence,
                             int64_t ne0)
{
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "blk.%d.%s.bias", i, firn_tensor_rows[id].base);
    return want(ctx, m, &m->layers[i].bias[id], presence, name, ne0, 0, 0);
}

static firn_status want_attention(firn_context *ctx, firn_model *m, int i)
{
    const firn_arch *arch = m->arch;
    const firn_hparams *hp = &m->hp;
    const firn_layer *l = &m->layers[i];
    const int64_t d = hp->n_embd, q = l->n_head * hp->head_k, k = l->n_head_kv * hp->head_k,
                  v = l->n_head_kv * hp->head_v;

    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_NORM, FIRN_REQUIRED, d, 0, 0));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_QKV, FIRN_OPTIONAL, d, q + k + v, 0));
    /* Fused weights may have one bias, or three separate ones. */
    const bool fused = l->weight[FIRN_T_ATTN_QKV];
    const firn_presence split = fused ? FIRN_ABSENT : FIRN_REQUIRED;
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_ATTN_QKV, fused ? arch->qkv_bias : FIRN_ABSENT, q + k + v));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_Q, split, d, q, 0));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_K, split, d, k, 0));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_V, split, d, v, 0));
    const firn_presence bias = l->bias[FIRN_T_ATTN_QKV] ? FIRN_ABSENT : arch->qkv_bias;
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_ATTN_Q, bias, q));
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_ATTN_K, bias, k));
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_ATTN_V, bias, v));
    if (arch->qk_norm != FIRN_QK_NORM_NONE) {
        const bool head = arch->qk_norm == FIRN_QK_NORM_PER_HEAD;
        FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_Q_NORM, FIRN_REQUIRED, head ? hp->head_k : q, 0, 0));
        FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_K_NORM, FIRN_REQUIRED, head ? hp->head_k : k, 0, 0));
    }
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_ATTN_OUTPUT, FIRN_REQUIRED, l->n_head * hp->head_v, d, 0));
    return want_bias(ctx, m, i, FIRN_T_ATTN_OUTPUT, arch->attn_output_bias, d);
}

static firn_status want_feed_forward(firn_context *ctx, firn_model *m, int i)
{
    const firn_arch *arch = m->arch;
    const firn_hparams *hp = &m->hp;
    const firn_layer *l = &m->layers[i];
    const int64_t d = hp->n_embd, f = l->n_ff, fe = hp->n_ff_expert, e = hp->n_expert;

    FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_NORM, FIRN_REQUIRED, d, 0, 0));
    if (l->experts) {
        FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_GATE_INP, FIRN_REQUIRED, d, e, 0));
        FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_GATE_EXPS, arch->expert_gate, d, fe, e));
        FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_UP_EXPS, FIRN_REQUIRED, d, fe, e));
        return want_block(ctx, m, i, FIRN_T_FFN_DOWN_EXPS, FIRN_REQUIRED, fe, d, e);
    }
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_GATE, FIRN_REQUIRED, d, f, 0));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_UP, FIRN_REQUIRED, d, f, 0));
    FIRN_TRY(want_block(ctx, m, i, FIRN_T_FFN_DOWN, FIRN_REQUIRED, f, d, 0));
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_FFN_GATE, arch->ffn_bias, f));
    FIRN_TRY(want_bias(ctx, m, i, FIRN_T_FFN_UP, arch->ffn_bias, f));
    return want_bias(ctx, m, i, FIRN_T_FFN_DOWN, arch->ffn_bias, d);
}

static firn_status want_all(firn_context *ctx, firn_model *m)
{
    const firn_arch *arch = m->arch;
    const int64_t d = m->hp.n_embd, v = m->hp.n_vocab;

    FIRN_TRY(want(ctx, m, &m->token_embd, FIRN_REQUIRED, "token_embd.weight", d, v, 0));
    FIRN_TRY(want(ctx, m, &m->output_norm, FIRN_REQUIRED, "output_norm.weight", d, 0, 0));
    FIRN_TRY(want(ctx, m, &m->output, arch->output, "output.weight", d, v, 0));
    if (!m->output)
        m->output = m->token_embd;
    FIRN_TRY(want(ctx, m, &m->output_bias, arch->output_bias, "output.bias", v, 0, 0));
    if (arch->rope_factors)
        FIRN_TRY(want(ctx, m, &m->rope_freqs, FIRN_OPTIONAL, "rope_freqs.weight", m->hp.rope.n_rot / 2, 0, 0));
    for (int i = 0; i < m->hp.n_layer; i++) {
        FIRN_TRY(want_attention(ctx, m, i));
        FIRN_TRY(want_feed_forward(ctx, m, i));
    }
    return FIRN_OK;
}

/* Blocks past n_layer predict further tokens and do not run. */
static bool skipped(const firn_model *m, const char *name)
{
    char *end;

    if (strncmp(name, "blk.", 4) != 0)
        return false;
    const long i = strtol(name + 4, &end, 10);
    return end != name + 4 && *end == '.' && i >= m->hp.n_layer && i < m->hp.n_block;
}

static firn_status no_others(firn_context *ctx, const firn_model *m)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(m->gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->gguf, i);
        int layer;
        firn_tensor_id id;
        bool bias;
        if (firn_model_find(m, t->name, &layer, &id, &bias) != t && !skipped(m, t->name))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "tensor %s has no place in this %s model", t->name, m->arch->name);
    }
    return FIRN_OK;
}

/* ---- open ---- */

static firn_status find_arch(firn_context *ctx, firn_model *m)
{
    firn_string name = {NULL, 0}, type = {"model", 5};
    firn_text list;

    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, "general.type", false, &type));
    if (type.size != 5 || memcmp(type.data, "model", 5) != 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "this GGUF file holds no model: general.type is '%.*s'",
                         (int)(type.size < 32 ? type.size : 32), type.data);
    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, "general.architecture", true, &name));
    for (int i = 0; firn_archs[i]; i++)
        if (strlen(firn_archs[i]->name) == name.size && memcmp(firn_archs[i]->name, name.data, name.size) == 0) {
            m->arch = firn_archs[i];
            return FIRN_OK;
        }
    firn_text_init(&list, ctx, 0);
    for (int i = 0; firn_archs[i]; i++)
        firn_text_printf(&list, "%s%s", i ? ", " : "", firn_archs[i]->name);
    const firn_status status =
        firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "architecture '%.*s' is not supported; these are: %s",
                  (int)(name.size < 64 ? name.size : 64), name.data, firn_text_cstr(&list));
    firn_text_free(&list);
    return status;
}

static firn_status open_gguf(firn_context *ctx, firn_model *m)
{
    firn_string name = {"", 0};

    FIRN_TRY(find_arch(ctx, m));
    FIRN_TRY(firn_hparams_read(ctx, m));
    FIRN_TRY(want_all(ctx, m));
    FIRN_TRY(no_others(ctx, m));
    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, "general.name", false, &name));
    m->name = firn_alloc(ctx, name.size + 1);
    if (!m->name)
        return FIRN_ERR_MEMORY;
    memcpy(m->name, name.data, name.size);
    m->name[name.size] = 0;
    m->info = (firn_model_info){
        .arch = m->arch->name,
        .name = m->name,
        .n_vocab = m->hp.n_vocab,
        .n_embd = m->hp.n_embd,
        .n_layer = m->hp.n_layer,
        .n_ctx_train = m->hp.n_ctx_train,
        .n_expert = m->hp.n_expert,
        .n_expert_used = m->hp.n_expert_used,
        .tied_output = m->output == m->token_embd,
    };
    return FIRN_OK;
}

firn_status firn_model_take(firn_context *ctx, firn_gguf *gguf, firn_model **model)
{
    *model = NULL;

    firn_model *m = firn_alloc_zeroed(ctx, 1, sizeof *m);
    if (!m) {
        firn_gguf_close(gguf);
        return FIRN_ERR_MEMORY;
    }
    m->ctx = ctx;
    m->gguf = gguf;
    const firn_status status = open_gguf(ctx, m);
    if (status != FIRN_OK) {
        firn_model_close(m);
        return status;
    }
    *model = m;
    return FIRN_OK;
}

firn_status firn_model_open(firn_context *ctx, const char *path, firn_model **model)
{
    firn_gguf *gguf;

    FIRN_EXPECT(ctx, path && model, "firn_model_open needs a path and a place for the model");
    *model = NULL;
    FIRN_TRY(firn_gguf_open(ctx, path, &gguf));
    const firn_status status = firn_model_take(ctx, gguf, model);
    return status == FIRN_OK ? FIRN_OK : firn_fail_in(ctx, status, "%s", path);
}

void firn_model_close(firn_model *m)
{
    if (!m)
        return;
    firn_gguf_close(m->gguf);
    firn_free(m->ctx, m->layers);
    firn_free(m->ctx, m->name);
    firn_free(m->ctx, m);
}

const firn_model_info *firn_model_get_info(const firn_model *model)
{
    return &model->info;
}

const firn_gguf *firn_model_gguf(const firn_model *model)
{
    return model->gguf;
}
