/* LoRA adapters: which tensors they sit on, their values, and the GGUF file that llama.cpp loads.
 *
 *     y = W x + alpha / r * B (A x)       "<tensor>.lora_a" A [n_in, r(, E)], "<tensor>.lora_b" B [r, n_out(, E)], F32
 *
 * Keys: general.type "adapter", general.architecture, adapter.type "lora", adapter.lora.alpha (f32; absent or 0: no
 * division by the rank, the scale is 1). A scale that is not alpha / r goes into B as it is written (low_rank.h).
 * llama.cpp does not check the expert dimension and reads past the end of a
 * stack that is too small; here every shape is checked. All values of an adapter lie in one flat buffer (each factor
 * at a multiple of 16 floats, the gaps zero), and gradients and moments share its layout. */
#include "core/arena.h"
#include "model/model.h"

#include "core/buffer.h"
#include "core/nearest.h"
#include "core/random.h"
#include "format/format.h"
#include "train/checkpoint.h"
#include "train/low_rank.h"
#include "train/origin.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, NAME_BYTES = 64 /* llama.cpp's limit for a tensor's name, the NUL included */ };

static const char *const class_names[FIRN_CLASS_COUNT] = {
    [FIRN_CLASS_ATTENTION] = "attention", [FIRN_CLASS_EXPERTS] = "experts", [FIRN_CLASS_SHARED] = "shared",
    [FIRN_CLASS_DENSE] = "dense",         [FIRN_CLASS_ROUTER] = "router",   [FIRN_CLASS_OUTPUT] = "output",
};

const char *firn_class_name(firn_class c)
{
    return (unsigned)c < FIRN_CLASS_COUNT ? class_names[c] : "none";
}

/* ---- making ---- */

firn_status firn_adapter_create_empty(firn_context *ctx, const char *arch, size_t max_entries, firn_adapter **result)
{
    firn_adapter *ad = firn_alloc_zeroed(ctx, 1, sizeof *ad);

    *result = NULL;
    if (!ad)
        return FIRN_ERR_MEMORY;
    ad->ctx = ctx;
    snprintf(ad->arch, sizeof ad->arch, "%s", arch);
    ad->entries = firn_alloc_zeroed(ctx, max_entries + 1, sizeof *ad->entries);
    if (!ad->entries) {
        firn_adapter_destroy(ad);
        return FIRN_ERR_MEMORY;
    }
    *result = ad;
    return FIRN_OK;
}

static int64_t aligned(int64_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int64_t a_size(const firn_adapter_entry *e)
{
    return e->n_in * e->rank * e->n_expert;
}

static int64_t b_size(const firn_adapter_entry *e)
{
    return e->rank * e->n_out * e->n_expert;
}

static firn_status add_entry(firn_context *ctx, firn_adapter *ad, const firn_model *model, const firn_gguf_tensor *t,
                             int64_t rank, float scale)
{
    int layer;
    firn_tensor_id id;
    bool bias;
    firn_adapter_entry *e = &ad->entries[ad->n_entries];

    firn_model_find(model, t->name, &layer, &id, &bias);
    *e = (firn_adapter_entry){
        .tensor = firn_strdup(ctx, t->name),
        .layer = layer,
        .class_ = firn_model_class(model, t->name),
        .n_in = t->ne[0],
        .n_out = t->ne[1],
        .n_expert = t->ne[2],
        .rank = rank,
        .scale = scale,
    };
    if (!e->tensor)
        return FIRN_ERR_MEMORY;
    ad->n_entries++;
    return FIRN_OK;
}

/* Sizes are known: places every factor. */
static void place_factors(firn_adapter *ad)
{
    int64_t at = 0;

    for (int i = 0; i < ad->n_entries; i++) {
        firn_adapter_entry *e = &ad->entries[i];
        e->a = at;
        at += aligned(a_size(e));
        e->b = at;
        at += aligned(b_size(e));
    }
    ad->n_values = at;
}

/* The values, all zero. */
static firn_status make_values(firn_context *ctx, firn_adapter *ad)
{
    /* The allocation is kept in front of the aligned values, at values[-1] as a pointer would lie. */
    char *raw = firn_alloc_zeroed(ctx, (size_t)ad->n_values + 32, sizeof(float));
    if (!raw)
        return FIRN_ERR_MEMORY;
    char *place = raw + 64 - (uintptr_t)raw % 64;
    if (place - raw < (ptrdiff_t)sizeof raw)
        place += 64;
    memcpy(place - sizeof raw, &raw, sizeof raw);
    ad->values = (float *)place;
    return FIRN_OK;
}

firn_status firn_adapter_make_values(firn_adapter *adapter)
{
    place_factors(adapter);
    return make_values(adapter->ctx, adapter);
}

void firn_adapter_destroy(firn_adapter *ad)
{
    if (!ad)
        return;
    for (int i = 0; i < ad->n_entries; i++)
        firn_free(ad->ctx, (char *)ad->entries[i].tensor);
    firn_free(ad->ctx, ad->entries);
    if (ad->values) {
        char *raw;
        memcpy(&raw, (char *)ad->values - sizeof raw, sizeof raw);
        firn_free(ad->ctx, raw);
    }
    firn_free(ad->ctx, ad);
}

const firn_adapter_entry *firn_adapter_entry_at(const firn_adapter *ad, int i)
{
    return ad && i >= 0 && i < ad->n_entries ? &ad->entries[i] : NULL;
}

/* ---- targets ---- */

/* Calls visit for every weight of the model, blocks first, each in the order of tensors.def, then output.weight and
 * the rest. */
typedef firn_status (*visitor)(void *user, const firn_gguf_tensor *t);

static firn_status each_weight(const firn_model *m, visitor visit, void *user)
{
    for (int64_t i = 0; i < m->hp.n_layer; i++)
        for (int t = 0; t < FIRN_T_COUNT; t++)
            if (m->layers[i].weight[t])
                FIRN_TRY(visit(user, m->layers[i].weight[t]));
    FIRN_TRY(visit(user, m->output));
    if (m->output != m->token_embd)
        FIRN_TRY(visit(user, m->token_embd));
    return visit(user, m->output_norm);
}

typedef struct {
    char text[256];
    firn_class class_; /* FIRN_CLASS_NONE: a pattern */
    bool open;         /* what llama.cpp does not serve is left out, not refused */
    int matched;
} target;

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    firn_adapter *adapter;
    target *targets;
    int n;
    const firn_adapter_spec *spec;
    bool *ranked; /* [spec->n_rank_of]: it gave a tensor its rank */
} choice;

static bool matches(const target *t, const char *name, firn_class class_)
{
    return t->class_ != FIRN_CLASS_NONE ? class_ == t->class_ : fnmatch(t->text, name, 0) == 0;
}

typedef struct {
    const choice *choice;
    const target *target;
    firn_text *list;
    firn_tensor_id seen[FIRN_T_COUNT];
    int n;
} served;

/* Lists "*.attn_output.weight" for what the target includes and llama.cpp serves, once for all blocks. */
static firn_status list_served(void *user, const firn_gguf_tensor *t)
{
    served *s = user;
    const firn_model *m = s->choice->model;
    int layer;
    firn_tensor_id id;
    bool bias;

    if (!matches(s->target, t->name, firn_model_class(m, t->name)) || !firn_model_serves(m, t->name))
        return FIRN_OK;
    firn_model_find(m, t->name, &layer, &id, &bias);
    if (layer < 0)
        return FIRN_OK;
    for (int i = 0; i < s->n; i++)
        if (s->seen[i] == id)
            return FIRN_OK;
    firn_text_printf(s->list, "%s*.%s.weight", s->n ? "," : "; it does apply ", firn_tensor_rows[id].base);
    s->seen[s->n++] = id;
    return FIRN_OK;
}

static firn_status refuse_unserved(const choice *c, const target *p, const firn_gguf_tensor *t)
{
    firn_text list;
    served s = {.choice = c, .target = p, .list = &list};

    firn_text_init(&list, c->ctx, 0);
    each_weight(c->model, list_served, &s);
    const firn_status status = firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED,
                                         "target '%s' includes %s, and llama.cpp does not apply an adapter on that "
                                         "tensor%s (--unserved trains it all the same)",
                                         p->text, t->name, firn_text_cstr(&list));
    firn_text_free(&list);
    return status;
}

static firn_status choose(void *user, const firn_gguf_tensor *t)
{
    choice *c = user;
    const firn_class class_ = firn_model_class(c->model, t->name);
    bool wanted = false;

    for (int i = 0; i < c->n; i++) {
        target *p = &c->targets[i];
        if (!matches(p, t->name, class_))
            continue;
        if (t == c->model->token_embd)
            return firn_fail(c->ctx, FIRN_ERR_UNSUPPORTED, "%s cannot be trained: %s", t->name,
                             c->model->output == t
                                 ? "it is also the output, and llama.cpp cannot apply an adapter to such a tensor"
                                 : "adapters on embeddings are not supported");
        if (class_ == FIRN_CLASS_NONE)
            return firn_fail(c->ctx, FIRN_ERR_ARGUMENT,
                             "target '%s' matches %s: norms and biases are not trained by adapters", p->text, t->name);
        if (!c->spec->unserved && !firn_model_serves(c->model, t->name)) {
            if (!p->open)
                return refuse_unserved(c, p, t);
            continue;
        }
        p->matched++;
        wanted = true;
    }
    if (!wanted)
        return FIRN_OK;
    const int64_t rank = firn_rank_of_tensor(c->spec, t->name, class_, c->ranked);
    return add_entry(c->ctx, c->adapter, c->model, t, rank, firn_rank_scale(c->spec, rank));
}

static firn_status parse_targets(firn_context *ctx, const firn_model *m, const char *text, target **targets, int *n)
{
    const char *defaults = m->hp.n_expert ? "attention,experts" : "attention,dense";
    const char *s = text ? text : defaults;
    size_t commas = 1;

    for (const char *p = s; *p; p++)
        commas += *p == ',';
    *n = 0;
    *targets = firn_alloc_zeroed(ctx, commas * FIRN_CLASS_COUNT, sizeof **targets); /* each may be "all" */
    if (!*targets)
        return FIRN_ERR_MEMORY;
    for (;; s++) {
        while (*s == ' ')
            s++;
        size_t length = strcspn(s, ",");
        const size_t whole = length;
        while (length && s[length - 1] == ' ')
            length--;
        target *t = &(*targets)[*n];
        if (length == 0 || length >= sizeof t->text)
            return firn_fail(ctx, FIRN_ERR_ARGUMENT, "targets '%s' hold an empty or endless name", text ? text : "");
        memcpy(t->text, s, length);
        t->text[length] = 0;
        t->class_ = FIRN_CLASS_NONE;
        t->open = !text;
        for (int c = 0; c < FIRN_CLASS_COUNT; c++)
            if (strcmp(t->text, class_names[c]) == 0)
                t->class_ = (firn_class)c;
        if (strcmp(t->text, "all") == 0) {
            for (int c = 0; c < FIRN_CLASS_COUNT; c++) {
                target *each = &(*targets)[(*n)++];
                *each = (target){.text = "all", .class_ = (firn_class)c, .open = true, .matched = 1};
            }
        } else {
            (*n)++;
        }
        s += whole;
        if (*s != ',')
            return FIRN_OK;
    }
}

/* Names of PEFT's and of llama.cpp's, for a tensor or several; NULL: none. */
static const char *other_name(const firn_model *m, const char *text)
{
    static const struct {
        const char *theirs, *dense, *experts;
    } names[] = {
        {"q_proj", "*.attn_q.weight", NULL},
        {"k_proj", "*.attn_k.weight", NULL},
        {"v_proj", "*.attn_v.weight", NULL},
        {"o_proj", "*.attn_output.weight", NULL},
        {"qkv_proj", "*.attn_qkv.weight", NULL},
        {"gate_proj", "*.ffn_gate.weight", "*.ffn_gate_exps.weight"},
        {"up_proj", "*.ffn_up.weight", "*.ffn_up_exps.weight"},
        {"down_proj", "*.ffn_down.weight", "*.ffn_down_exps.weight"},
        {"gate_up_proj", "*.ffn_gate.weight,*.ffn_up.weight", "*.ffn_gate_exps.weight,*.ffn_up_exps.weight"},
        {"gate", "*.ffn_gate.weight", "router"},
        {"lm_head", "output", NULL},
        {"mlp", "dense", "experts"},
        {"ffn", "dense", "experts"},
        {"self_attn", "attention", NULL},
        {"all-linear", "all", NULL},
    };
    static const char *const words[] = {"attention", "experts", "shared", "dense", "router", "output", "all"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i].theirs) == 0)
            return m->hp.n_expert && names[i].experts ? names[i].experts : names[i].dense;
    return firn_nearest(text, words, sizeof words / sizeof *words);
}

/* "attn_q" -> "*.attn_q.weight", where the model has such a tensor. */
static const char *whole_name(const firn_model *m, const char *text, char pattern[FIRN_MAX_NAME])
{
    for (int t = 0; t < FIRN_T_COUNT; t++)
        for (int64_t i = 0; strcmp(firn_tensor_rows[t].base, text) == 0 && i < m->hp.n_layer; i++)
            if (m->layers[i].weight[t]) {
                snprintf(pattern, FIRN_MAX_NAME, "*.%s.weight", firn_tensor_rows[t].base);
                return pattern;
            }
    return NULL;
}

static firn_status unmatched(firn_context *ctx, const firn_model *m, const target *t)
{
    char pattern[FIRN_MAX_NAME];
    const char *meant = whole_name(m, t->text, pattern);

    meant = meant ? meant : other_name(m, t->text);
    if (t->class_ == FIRN_CLASS_OUTPUT && m->output == m->token_embd)
        return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                         "target 'output' matches nothing: this model's output is its embedding, and llama.cpp cannot "
                         "apply an adapter to that");
    if (t->class_ == FIRN_CLASS_NONE && !strpbrk(t->text, "*?[."))
        return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                         "there is no class of targets '%s'%s%s%s; classes are attention, experts, shared, dense, "
                         "router, output, all, and patterns match whole names such as blk.*.attn_q.weight",
                         t->text, meant ? "; did you mean '" : "", meant ? meant : "", meant ? "'?" : "");
    return firn_fail(ctx, FIRN_ERR_ARGUMENT, "target '%s' matches no tensor of this model", t->text);
}

void firn_adapter_count(const firn_adapter *ad, int64_t values[FIRN_CLASS_COUNT], int tensors[FIRN_CLASS_COUNT])
{
    for (int c = 0; c < FIRN_CLASS_COUNT; c++)
        values[c] = tensors[c] = 0;
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        values[e->class_] += a_size(e) + b_size(e);
        tensors[e->class_]++;
    }
}

/* 1/sqrt(n_in) keeps A x of the size of x; the stream is the tensor's name, so that adding a target changes no other.
 */
static void draw(firn_adapter *ad, uint64_t seed)
{
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        const float bound = 1.0f / sqrtf((float)e->n_in);
        uint64_t stream = 0xCBF29CE484222325u; /* FNV-1a */
        for (const char *p = e->tensor; *p; p++)
            stream = (stream ^ (unsigned char)*p) * 0x100000001B3u;
        for (int64_t j = 0; j < a_size(e); j++)
            ad->values[e->a + j] = bound * (2 * firn_random_unit(seed, stream, (uint64_t)j) - 1);
    }
}

static firn_status choose_all(firn_context *ctx, const firn_model *m, const firn_adapter_spec *spec, firn_adapter *ad)
{
    choice c = {.ctx = ctx, .model = m, .adapter = ad, .spec = spec};
    firn_status s = parse_targets(ctx, m, spec->targets, &c.targets, &c.n);

    c.ranked = s == FIRN_OK ? firn_alloc_zeroed(ctx, (size_t)spec->n_rank_of + 1, sizeof *c.ranked) : NULL;
    if (s == FIRN_OK && !c.ranked)
        s = FIRN_ERR_MEMORY;

    if (s == FIRN_OK)
        s = each_weight(m, choose, &c);
    for (int i = 0; s == FIRN_OK && i < c.n; i++)
        if (!c.targets[i].matched)
            s = unmatched(ctx, m, &c.targets[i]);
    for (int i = 0; s == FIRN_OK && i < spec->n_rank_of; i++)
        if (!c.ranked[i])
            s = firn_fail(ctx, FIRN_ERR_ARGUMENT, "rank_of '%.80s' matches no tensor that is trained",
                          spec->rank_of[i]);
    firn_free(ctx, c.targets);
    firn_free(ctx, c.ranked);
    if (s == FIRN_OK)
        place_factors(ad);
    return s;
}

static size_t max_entries(const firn_model *m)
{
    return (size_t)m->hp.n_layer * FIRN_T_COUNT + 1;
}

firn_status firn_adapter_describe(firn_context *ctx, const firn_model *model, const firn_adapter_spec *spec,
                                  firn_adapter **adapter)
{
    FIRN_TRY(firn_ranks_check(ctx, spec));
    FIRN_TRY(firn_adapter_create_empty(ctx, model->arch->name, max_entries(model), adapter));
    (*adapter)->alpha = spec->alpha;
    firn_status s = choose_all(ctx, model, spec, *adapter);
    if (s == FIRN_OK)
        s = firn_origin_set(ctx, model, *adapter);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*adapter);
        *adapter = NULL;
    }
    return s;
}

firn_status firn_adapter_start(firn_adapter *adapter, uint64_t seed)
{
    FIRN_TRY(make_values(adapter->ctx, adapter));
    draw(adapter, seed);
    return FIRN_OK;
}

firn_status firn_adapter_create(firn_context *ctx, const firn_model *model, const char *targets, int64_t rank,
                                float alpha, uint64_t seed, firn_adapter **adapter)
{
    FIRN_GIVEN(ctx, ctx, model, adapter);
    const firn_adapter_spec spec = {.targets = targets, .unserved = true, .rank = rank, .alpha = alpha};
    FIRN_TRY(firn_adapter_describe(ctx, model, &spec, adapter));
    const firn_status s = firn_adapter_start(*adapter, seed);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*adapter);
        *adapter = NULL;
    }
    return s;
}

/* Whatever is loaded or saved passes here. */
static firn_status check_values(firn_context *ctx, const firn_adapter *ad, const float *values)
{
    if (firn_all_finite(values, ad->n_values))
        return FIRN_OK;
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        for (int which = 0; which < 2; which++) {
            const float *x = values + (which ? e->b : e->a);
            const int64_t n = which ? b_size(e) : a_size(e);
            for (int64_t k = 0; k < n; k++)
                if (!isfinite(x[k]))
                    return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.lora_%c is not finite: value %lld is %g", e->tensor,
                                     which ? 'b' : 'a', (long long)k, (double)x[k]);
        }
    }
    return firn_fail(ctx, FIRN_ERR_FORMAT, "the adapter is not finite");
}

/* ---- loading ---- */

static firn_status check_key(firn_context *ctx, const firn_gguf *g, const char *key, const char *wanted)
{
    firn_string s = {NULL, 0};

    FIRN_TRY(firn_gguf_get_string(ctx, g, key, true, &s));
    if (s.size != strlen(wanted) || memcmp(s.data, wanted, s.size) != 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s should be '%s', not '%.*s'", key, wanted,
                         (int)(s.size < 64 ? s.size : 64), s.data);
    return FIRN_OK;
}

/* "<tensor>.lora_a": the length of <tensor>, and which factor; 0 for another name. */
static size_t factor_of(const char *name, char *factor)
{
    const size_t n = strlen(name);

    if (n <= 7 || (strcmp(name + n - 7, ".lora_a") != 0 && strcmp(name + n - 7, ".lora_b") != 0))
        return 0;
    *factor = name[n - 1];
    return n - 7;
}

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    const firn_gguf *gguf;
    firn_adapter *adapter;
    firn_string layout; /* of a checkpoint */
} loading;

/* llama.cpp's scale. */
static float alpha_over(const firn_adapter *ad, int64_t rank)
{
    return ad->alpha == 0 ? 1 : ad->alpha / (float)rank;
}

static const firn_gguf_tensor *factor(const loading *l, const char *tensor, char which)
{
    char name[FIRN_MAX_NAME + 16];

    snprintf(name, sizeof name, "%s.lora_%c", tensor, which);
    return firn_gguf_find(l->gguf, name);
}

static firn_status take_entry(void *user, const firn_gguf_tensor *t)
{
    loading *l = user;
    firn_context *ctx = l->ctx;
    const firn_gguf_tensor *a = factor(l, t->name, 'a'), *b = factor(l, t->name, 'b');

    if (!a && !b)
        return FIRN_OK;
    if (!a || !b)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.lora_%c is missing, its other half is there", t->name,
                         a ? 'b' : 'a');
    if (t == l->model->token_embd)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "the adapter changes %s: adapters on embeddings are not supported",
                         t->name);
    if (firn_model_class(l->model, t->name) == FIRN_CLASS_NONE)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "the adapter changes %s, which adapters are not applied to",
                         t->name);
    const int64_t r = b->ne[0];
    if (a->ne[0] != t->ne[0] || a->ne[1] != r || a->ne[2] != t->ne[2] || b->ne[1] != t->ne[1] || b->ne[2] != t->ne[2] ||
        a->ne[3] != 1 || b->ne[3] != 1)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "the factors of %s are [%lld, %lld, %lld] and [%lld, %lld, %lld]; its shape [%lld, %lld, "
                         "%lld] asks for [%lld, r, %lld] and [r, %lld, %lld]",
                         t->name, (long long)a->ne[0], (long long)a->ne[1], (long long)a->ne[2], (long long)b->ne[0],
                         (long long)b->ne[1], (long long)b->ne[2], (long long)t->ne[0], (long long)t->ne[1],
                         (long long)t->ne[2], (long long)t->ne[0], (long long)t->ne[2], (long long)t->ne[1],
                         (long long)t->ne[2]);
    if (r > FIRN_MAX_RANK)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "the rank of %s is %lld, at most %d is possible", t->name,
                         (long long)r, FIRN_MAX_RANK);
    if (!firn_format_can_decode(a->type) || !firn_format_can_decode(b->type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "the factors of %s are %s and %s, they should be f32", t->name,
                         firn_type_name(a->type), firn_type_name(b->type));
    return add_entry(ctx, l->adapter, l->model, t, r, alpha_over(l->adapter, r));
}

/* Keys under "adapter." say what the adapter is. Those that are not understood may change what it means: so does
 * adapter.alora.invocation_tokens, which switches an adapter on behind certain tokens only. */
static firn_status check_meaning(const loading *l)
{
    static const char *const known[] = {"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name",
                                        "adapter.lora.prompt_prefix"};

    for (size_t i = 0; i < firn_gguf_n_kv(l->gguf); i++) {
        const char *key = firn_gguf_kv_at(l->gguf, i)->key;
        bool is = strncmp(key, "adapter.", 8) != 0;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is |= strcmp(key, known[k]) == 0;
        if (!is)
            return firn_fail(
                l->ctx, FIRN_ERR_UNSUPPORTED,
                "%.80s changes what the adapter means in a way that is not supported here%s", key,
                strncmp(key, "adapter.alora.", 14) == 0 ? ": it would apply behind its invocation tokens only" : "");
    }
    return FIRN_OK;
}

static firn_status check_names(const loading *l)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(l->gguf); i++) {
        const char *name = firn_gguf_tensor_at(l->gguf, i)->name;
        char which, base[FIRN_MAX_NAME];
        const size_t n = factor_of(name, &which);
        int layer;
        firn_tensor_id id;
        bool bias;
        if (n == 0)
            return firn_fail(l->ctx, FIRN_ERR_FORMAT, "tensor %s is no factor of an adapter (.lora_a, .lora_b)", name);
        snprintf(base, sizeof base, "%.*s", (int)n, name);
        if (!firn_model_find(l->model, base, &layer, &id, &bias))
            return firn_fail(l->ctx, FIRN_ERR_FORMAT, "the adapter changes %s, which this model does not have", base);
        if (bias)
            return firn_fail(l->ctx, FIRN_ERR_UNSUPPORTED, "the adapter changes %s, which adapters are not applied to",
                             base);
    }
    return FIRN_OK;
}

static firn_status take_listed(void *user, const firn_gguf_tensor *t)
{
    const loading *l = user;
    char name[FIRN_MAX_NAME];
    int64_t rank;
    float scale;

    for (size_t at = 0; firn_checkpoint_layout_next(l->layout, &at, name, &rank, &scale);)
        if (strcmp(name, t->name) == 0 && rank >= 1 && rank <= FIRN_MAX_RANK)
            return add_entry(l->ctx, l->adapter, l->model, t, rank,
                             scale > 0 && isfinite(scale) ? scale : alpha_over(l->adapter, rank));
    return FIRN_OK;
}

/* A checkpoint of a run holds its adapter as one flat buffer, in a layout that it names. */
static firn_status load_checkpoint(loading *l)
{
    firn_context *ctx = l->ctx;

    FIRN_TRY(firn_gguf_get_string(ctx, l->gguf, "firn.layout", true, &l->layout));
    if (!firn_gguf_kv(l->gguf, "adapter.lora.alpha"))
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "this checkpoint of an older firn does not say its alpha: go on with its run "
                         "(firn finetune --resume) to have an adapter");
    FIRN_TRY(check_key(ctx, l->gguf, "general.architecture", l->model->arch->name));
    FIRN_TRY(firn_gguf_get_f32(ctx, l->gguf, "adapter.lora.alpha", true, &l->adapter->alpha));
    if (!isfinite(l->adapter->alpha))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "adapter.lora.alpha is not a finite number");
    FIRN_TRY(each_weight(l->model, take_listed, l));
    FIRN_TRY(firn_adapter_make_values(l->adapter));
    return firn_checkpoint_adapter(ctx, l->gguf, l->adapter);
}

/* All entries are there. */
static firn_status take_values(const loading *l)
{
    firn_adapter *ad = l->adapter;

    if (ad->n_entries == 0)
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "the adapter is empty");
    FIRN_TRY(firn_adapter_make_values(ad));
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        const firn_gguf_tensor *a = factor(l, e->tensor, 'a'), *b = factor(l, e->tensor, 'b');
        firn_decode_row(a->type, a->data, a_size(e), ad->values + e->a);
        firn_decode_row(b->type, b->data, b_size(e), ad->values + e->b);
    }
    return check_values(l->ctx, ad, ad->values);
}

static firn_status take_alpha(const loading *l)
{
    FIRN_TRY(firn_gguf_get_f32(l->ctx, l->gguf, "adapter.lora.alpha", false, &l->adapter->alpha));
    return isfinite(l->adapter->alpha)
               ? FIRN_OK
               : firn_fail(l->ctx, FIRN_ERR_FORMAT, "adapter.lora.alpha is not a finite number");
}

static firn_status load(loading *l)
{
    firn_context *ctx = l->ctx;
    firn_string type = {NULL, 0};

    if (firn_gguf_kv(l->gguf, "firn.layout"))
        FIRN_TRY(firn_gguf_get_string(ctx, l->gguf, "general.type", true, &type));
    if (type.size == strlen("firn.checkpoint") && memcmp(type.data, "firn.checkpoint", type.size) == 0)
        return load_checkpoint(l);
    FIRN_TRY(check_key(ctx, l->gguf, "general.type", "adapter"));
    FIRN_TRY(check_key(ctx, l->gguf, "general.architecture", l->model->arch->name));
    FIRN_TRY(check_key(ctx, l->gguf, "adapter.type", "lora"));
    FIRN_TRY(take_alpha(l));
    FIRN_TRY(check_meaning(l));
    FIRN_TRY(check_names(l));
    FIRN_TRY(each_weight(l->model, take_entry, l));
    return take_values(l);
}

firn_status firn_adapter_read(firn_context *ctx, const firn_model *model, const firn_gguf *gguf, firn_adapter **adapter)
{
    FIRN_TRY(firn_adapter_create_empty(ctx, model->arch->name, max_entries(model), adapter));
    loading l = {.ctx = ctx, .model = model, .gguf = gguf, .adapter = *adapter};
    firn_status s = load(&l);
    if (s == FIRN_OK)
        s = firn_origin_get(ctx, gguf, &(*adapter)->origin);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*adapter);
        *adapter = NULL;
    }
    return s;
}

static firn_status load_file(firn_context *ctx, const firn_model *model, const char *path, bool forced,
                             firn_adapter **adapter)
{
    firn_gguf *gguf;

    *adapter = NULL;
    FIRN_TRY(firn_gguf_open(ctx, path, &gguf));
    firn_status s = firn_adapter_read(ctx, model, gguf, adapter);
    firn_gguf_close(gguf);
    if (s == FIRN_OK && !forced)
        s = firn_origin_expect(ctx, model, *adapter);
    if (s == FIRN_OK)
        return FIRN_OK;
    firn_adapter_destroy(*adapter);
    *adapter = NULL;
    return firn_fail_in(ctx, s, "%s", path);
}

firn_status firn_adapter_load(firn_context *ctx, const firn_model *model, const char *path, firn_adapter **adapter)
{
    FIRN_GIVEN(ctx, ctx, model, path, adapter);
    return load_file(ctx, model, path, false, adapter);
}

firn_status firn_adapter_load_forced(firn_context *ctx, const firn_model *model, const char *path,
                                     firn_adapter **adapter)
{
    FIRN_GIVEN(ctx, ctx, model, path, adapter);
    return load_file(ctx, model, path, true, adapter);
}

/* ---- without a model ---- */

/* The block and the class that a tensor's name says. */
static void place_by_name(firn_adapter_entry *e)
{
    char base[FIRN_MAX_NAME];
    int layer, end = 0;

    e->layer = -1;
    e->class_ = strcmp(e->tensor, "output.weight") == 0 ? FIRN_CLASS_OUTPUT : FIRN_CLASS_NONE;
    if (sscanf(e->tensor, "blk.%d.%n", &layer, &end) < 1 || end == 0 || layer < 0)
        return;
    e->layer = layer;
    for (int t = 0; t < FIRN_T_COUNT; t++) {
        snprintf(base, sizeof base, "%s.weight", firn_tensor_rows[t].base);
        if (strcmp(e->tensor + end, base) == 0)
            e->class_ = firn_tensor_rows[t].class_;
    }
}

static firn_status take_alone(const loading *l, const firn_gguf_tensor *a, const char *tensor)
{
    const firn_gguf_tensor *b = factor(l, tensor, 'b');
    firn_adapter *ad = l->adapter;

    if (!b)
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "%s.lora_b is missing, its other half is there", tensor);
    const int64_t r = b->ne[0];
    if (a->ne[1] != r || a->ne[2] != b->ne[2] || a->ne[3] != 1 || b->ne[3] != 1 || r > FIRN_MAX_RANK)
        return firn_fail(l->ctx, FIRN_ERR_FORMAT,
                         "the factors of %s are [%lld, %lld, %lld] and [%lld, %lld, %lld]; expected [n, r, e] and [r, "
                         "m, e] with r at most %d",
                         tensor, (long long)a->ne[0], (long long)a->ne[1], (long long)a->ne[2], (long long)b->ne[0],
                         (long long)b->ne[1], (long long)b->ne[2], FIRN_MAX_RANK);
    if (!firn_format_can_decode(a->type) || !firn_format_can_decode(b->type))
        return firn_fail(l->ctx, FIRN_ERR_UNSUPPORTED, "the factors of %s are %s and %s, they should be f32", tensor,
                         firn_type_name(a->type), firn_type_name(b->type));
    firn_adapter_entry *e = &ad->entries[ad->n_entries];
    *e = (firn_adapter_entry){.tensor = firn_strdup(l->ctx, tensor),
                              .n_in = a->ne[0],
                              .n_out = b->ne[1],
                              .n_expert = a->ne[2],
                              .rank = r,
                              .scale = alpha_over(ad, r)};
    if (!e->tensor)
        return FIRN_ERR_MEMORY;
    ad->n_entries++;
    place_by_name(e);
    return FIRN_OK;
}

static firn_status load_alone(loading *l)
{
    firn_string arch = {NULL, 0};
    char which, tensor[FIRN_MAX_NAME];

    FIRN_TRY(check_key(l->ctx, l->gguf, "general.type", "adapter"));
    FIRN_TRY(check_key(l->ctx, l->gguf, "adapter.type", "lora"));
    FIRN_TRY(firn_gguf_get_string(l->ctx, l->gguf, "general.architecture", true, &arch));
    snprintf(l->adapter->arch, sizeof l->adapter->arch, "%.*s", (int)firn_min_i64((int64_t)arch.size, 63), arch.data);
    FIRN_TRY(take_alpha(l));
    FIRN_TRY(check_meaning(l));
    FIRN_TRY(firn_origin_get(l->ctx, l->gguf, &l->adapter->origin));
    for (size_t i = 0; i < firn_gguf_n_tensors(l->gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(l->gguf, i);
        const size_t n = factor_of(t->name, &which);
        if (n == 0 || n >= sizeof tensor)
            return firn_fail(l->ctx, FIRN_ERR_FORMAT, "tensor %s is no factor of an adapter (.lora_a, .lora_b)",
                             t->name);
        snprintf(tensor, sizeof tensor, "%.*s", (int)n, t->name);
        if (which == 'a')
            FIRN_TRY(take_alone(l, t, tensor));
        else if (!factor(l, tensor, 'a'))
            return firn_fail(l->ctx, FIRN_ERR_FORMAT, "%s.lora_a is missing, its other half is there", tensor);
    }
    return take_values(l);
}

firn_status firn_adapter_parse(firn_context *ctx, const firn_gguf *gguf, firn_adapter **adapter)
{
    FIRN_TRY(firn_adapter_create_empty(ctx, "", firn_gguf_n_tensors(gguf), adapter));
    loading l = {.ctx = ctx, .gguf = gguf, .adapter = *adapter};
    const firn_status s = load_alone(&l);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*adapter);
        *adapter = NULL;
    }
    return s;
}

/* ---- saving ---- */

/* B as the file has it: at llama.cpp's scale it computes what was trained. */
static float value_of_b(double factor, float b)
{
    return (float)(factor * (double)b);
}

static firn_status write_b(firn_gguf_writer *w, firn_context *ctx, const firn_adapter *ad, const firn_adapter_entry *e,
                           const float *b)
{
    enum { PIECE = 1024 };
    const double factor = firn_rank_factor(ad, e);
    float piece[PIECE];

    if (factor == 1)
        return firn_gguf_writer_data(w, b, (size_t)b_size(e) * sizeof(float));
    for (int64_t at = 0; at < b_size(e); at += PIECE) {
        const int64_t n = firn_min_i64(PIECE, b_size(e) - at);
        for (int64_t i = 0; i < n; i++)
            piece[i] = value_of_b(factor, b[at + i]);
        if (!firn_all_finite(piece, n))
            return firn_fail(ctx, FIRN_ERR_FORMAT,
                             "%s.lora_b is too large for the scale alpha / rank that llama.cpp has", e->tensor);
        FIRN_TRY(firn_gguf_writer_data(w, piece, (size_t)n * sizeof *piece));
    }
    return FIRN_OK;
}

bool firn_adapter_is_saved_as(const firn_adapter *ad, const firn_adapter *loaded)
{
    if (loaded->n_values != ad->n_values || loaded->n_entries != ad->n_entries || loaded->alpha != ad->alpha)
        return false;
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i], *l = &loaded->entries[i];
        const double factor = firn_rank_factor(ad, e);
        const float *b = ad->values + e->b, *theirs = loaded->values + l->b;
        if (strcmp(e->tensor, l->tensor) != 0 || e->rank != l->rank ||
            memcmp(ad->values + e->a, loaded->values + l->a, (size_t)a_size(e) * sizeof(float)) != 0)
            return false;
        for (int64_t k = 0; k < b_size(e); k++) {
            const float is = factor == 1 ? b[k] : value_of_b(factor, b[k]);
            if (memcmp(&is, &theirs[k], sizeof is) != 0)
                return false;
        }
    }
    return true;
}

static firn_status save(firn_gguf_writer *w, firn_context *ctx, const firn_adapter *ad, const float *values,
                        const char *path)
{
    FIRN_TRY(firn_gguf_put_string(w, "general.type", "adapter", 7));
    FIRN_TRY(firn_gguf_put_string(w, "general.architecture", ad->arch, strlen(ad->arch)));
    FIRN_TRY(firn_gguf_put_string(w, "adapter.type", "lora", 4));
    FIRN_TRY(firn_gguf_put_f32(w, "adapter.lora.alpha", ad->alpha));
    FIRN_TRY(firn_origin_put(w, &ad->origin));
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        const int n_dims = e->class_ == FIRN_CLASS_EXPERTS || e->n_expert > 1 ? 3 : 2;
        char name[FIRN_MAX_NAME];
        FIRN_EXPECT(ctx, strlen(e->tensor) + strlen(".lora_a") < NAME_BYTES, "%s is too long a name for an adapter",
                    e->tensor);
        snprintf(name, sizeof name, "%s.lora_a", e->tensor);
        FIRN_TRY(firn_gguf_add_tensor(w, name, FIRN_F32, n_dims, (int64_t[]){e->n_in, e->rank, e->n_expert}));
        snprintf(name, sizeof name, "%s.lora_b", e->tensor);
        FIRN_TRY(firn_gguf_add_tensor(w, name, FIRN_F32, n_dims, (int64_t[]){e->rank, e->n_out, e->n_expert}));
    }
    FIRN_TRY(firn_gguf_writer_begin(w, path));
    for (int i = 0; i < ad->n_entries; i++) {
        const firn_adapter_entry *e = &ad->entries[i];
        FIRN_TRY(firn_gguf_writer_data(w, values + e->a, (size_t)a_size(e) * sizeof(float)));
        FIRN_TRY(write_b(w, ctx, ad, e, values + e->b));
    }
    return firn_gguf_writer_finish(w);
}

firn_status firn_adapter_save(firn_context *ctx, const firn_adapter *adapter, const float *values, const char *path)
{
    FIRN_GIVEN(ctx, ctx, adapter, path);
    firn_gguf_writer *w;

    FIRN_TRY(check_values(ctx, adapter, values ? values : adapter->values));
    FIRN_TRY(firn_gguf_writer_create(ctx, &w));
    const firn_status s = save(w, ctx, adapter, values ? values : adapter->values, path);
    firn_gguf_writer_destroy(w);
    return s;
}
