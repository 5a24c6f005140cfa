/* Opening a model, and the names of its tensors. What the metadata says is read in hparams.c, which tensors the
 * architecture asks for in wanted.c. */
#include "model/model.h"

#include "core/buffer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const firn_tensor_row firn_tensor_rows[FIRN_T_COUNT] = {
#define TENSOR(ID, base, CLASS) {base, FIRN_CLASS_##CLASS},
#include "model/tensors.def"
#undef TENSOR
};

/* ---- names ---- */

void firn_model_ends(const firn_model *m, const firn_gguf_tensor *ends[FIRN_MODEL_ENDS])
{
    const firn_gguf_tensor *const all[FIRN_MODEL_ENDS] = {
        m->token_embd,  m->layer_embd,    m->layer_proj, m->layer_norm, m->output_norm, m->output,
        m->output_bias, m->output_factor, m->rope_freqs, m->rope_long,  m->rope_short};

    memcpy(ends, all, sizeof all);
}

const firn_gguf_tensor *firn_model_find(const firn_model *m, const char *name, int *layer, firn_tensor_id *id,
                                        bool *bias)
{
    const firn_gguf_tensor *outside[FIRN_MODEL_ENDS];

    firn_model_ends(m, outside);
    *layer = -1;
    *id = FIRN_T_COUNT;
    *bias = false;
    if (strncmp(name, "blk.", 4) != 0) {
        for (int i = 0; i < FIRN_MODEL_ENDS; i++)
            if (outside[i] && strcmp(outside[i]->name, name) == 0) {
                *bias = outside[i] == m->output_bias || outside[i] == m->output_factor;
                return outside[i];
            }
        return NULL;
    }
    char *end;
    const long i = strtol(name + 4, &end, 10);
    if (end == name + 4 || *end != '.' || i < 0 || i >= m->hp.n_layer)
        return NULL;
    const firn_layer *l = &m->layers[i];
    const char *base = end + 1, *dot = strrchr(base, '.');
    for (int t = 0; t < FIRN_T_COUNT; t++) {
        const size_t n = strlen(firn_tensor_rows[t].base);
        if (strncmp(base, firn_tensor_rows[t].base, n) != 0 || (base[n] && base + n != dot))
            continue;
        const firn_gguf_tensor *all[] = {l->weight[t], l->bias[t], l->factor[t]};
        for (int k = 0; k < 3; k++)
            if (all[k] && strcmp(all[k]->name, name) == 0) {
                *layer = (int)i;
                *id = (firn_tensor_id)t;
                *bias = k > 0;
                return all[k];
            }
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

const firn_gguf_tensor *firn_model_factors(const firn_model *m, int64_t n_ctx)
{
    if (!m->hp.longrope)
        return m->rope_freqs;
    return n_ctx > m->hp.rope.n_ctx_orig ? m->rope_long : m->rope_short;
}

firn_status firn_model_allows(firn_context *ctx, const firn_model *m, int64_t position)
{
    const int64_t most = m->hp.most_keys;

    if (most == 0 || position < most)
        return FIRN_OK;
    return firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                     "a document of %lld tokens or more is longer than this %s model attends to without choosing among "
                     "its keys (%s.%s is %lld), and choosing is not supported",
                     (long long)position + 1, m->arch->name, m->arch->name, m->arch->most_keys, (long long)most);
}

float firn_model_temperature(const firn_model *m, int64_t position)
{
    if (m->hp.temperature.scale == 0)
        return 1;
    const int64_t step = position / m->hp.temperature.length;
    return (float)(1 + (double)m->hp.temperature.scale * log(1 + (double)step));
}

/* Whether `word` is among the words of a list, NULL: an empty one. */
static bool listed(const char *words, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = words; p && *p; p += strcspn(p, " "), p += *p == ' ')
        if (strcspn(p, " ") == n && memcmp(p, word, n) == 0)
            return true;
    return false;
}

bool firn_model_serves(const firn_model *m, const char *name)
{
    if (!m || !name)
        return false;
    int layer;
    firn_tensor_id id;
    bool bias;

    if (firn_model_class(m, name) == FIRN_CLASS_NONE)
        return false;
    firn_model_find(m, name, &layer, &id, &bias);
    const firn_class c = layer < 0 ? FIRN_CLASS_OUTPUT : firn_tensor_rows[id].class_;
    /* A dense feed-forward's .scale multiplies what the adapter adds too; with NVFP4 weights the process ends. */
    if ((c == FIRN_CLASS_DENSE || c == FIRN_CLASS_SHARED) && m->layers[layer].factor[id])
        return false;
    const char *base = layer < 0 ? "output" : firn_tensor_rows[id].base;
    const bool mixer = layer >= 0 && m->layers[layer].mixer != FIRN_MIX_ATTENTION;
    return !listed(m->arch->unserved, base) && !(mixer && listed(m->arch->unserved_mixer, base));
}

/* ---- open ---- */

static firn_status find_arch(firn_context *ctx, firn_model *m)
{
    firn_string name = {"", 0}, type = {"model", 5};
    firn_text list;

    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, "general.type", false, &type));
    FIRN_TRY(firn_gguf_get_string(ctx, m->gguf, "general.architecture", false, &name));
    const bool mmproj = type.size == 6 && memcmp(type.data, "mmproj", 6) == 0;
    if (mmproj || (name.size == 4 && memcmp(name.data, "clip", 4) == 0))
        return firn_fail(
            ctx, FIRN_ERR_FORMAT,
            "this GGUF file is the part of a model that reads images or sound (%s), not the language model that it "
            "belongs to; images and sound are not supported",
            mmproj ? "general.type is 'mmproj'" : "general.architecture is 'clip'");
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
    FIRN_TRY(firn_model_want_all(ctx, m));
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
    FIRN_GIVEN(ctx, ctx, path, model);
    firn_gguf *gguf;

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
    for (int64_t i = 0; m->layers && i < m->hp.n_layer; i++)
        for (int id = 0; id < FIRN_T_COUNT; id++)
            firn_free(m->ctx, m->layers[i].stack[id]);
    firn_free(m->ctx, m->layers);
    firn_free(m->ctx, m->section_factors);
    firn_free(m->ctx, m->name);
    firn_free(m->ctx, m);
}

const firn_model_info *firn_model_get_info(const firn_model *model)
{
    return model ? &model->info : NULL;
}

/* Whether llama.cpp multiplies by the tensor's .scale; found by trying each on a model of each architecture. */
static bool factor_served(const firn_model *m, firn_tensor_id id)
{
    const bool own = m->arch->own_factors && (id == FIRN_T_FFN_GATE_INP || id == FIRN_T_FFN_DOWN_EXPS);

    return own || m->arch->factors_served || id == FIRN_T_ATTN_OUTPUT ||
           (m->arch->attention == FIRN_ATTENTION_HEADS && firn_tensor_rows[id].class_ == FIRN_CLASS_ATTENTION);
}

const char *firn_model_warning(const firn_model *m, int i)
{
    const char *all[3] = {NULL};
    bool factors = false, stacks = false, towers = false;
    int n = 0;

    for (int64_t layer = 0; m && layer < m->hp.n_layer; layer++)
        for (int id = 0; id < FIRN_T_COUNT; id++) {
            factors |= m->layers[layer].factor[id] && !factor_served(m, (firn_tensor_id)id);
            stacks |= m->layers[layer].stack[id] != NULL;
        }
    if (factors)
        all[n++] =
            "llama.cpp ignores some of the model's .scale tensors, all of which are applied here: it runs another "
            "model, and an adapter trained here does not fit that";
    if (stacks)
        all[n++] = "llama.cpp does not load files that keep experts apart; an adapter trained here fits the same model "
                   "with its experts stacked";
    for (size_t t = 0; m && t < firn_gguf_n_tensors(m->gguf); t++)
        towers |= firn_model_tower(firn_gguf_tensor_at(m->gguf, t)->name);
    if (towers)
        all[n++] =
            "the file also holds what reads images or sound (tensors v., a., mm.), which is not run here; llama.cpp "
            "has that in a file of its own and does not load this one";
    return i >= 0 && i < n ? all[i] : NULL;
}

const firn_gguf *firn_model_gguf(const firn_model *model)
{
    return model ? model->gguf : NULL;
}
