/* Adapters of PEFT, Unsloth and mlx-lm: see firn/export.h. What peft.c would write of an adapter on every tensor of the
 * model says which names there may be and where their rows belong; what is there of these is read back through the same
 * maps. Forms of a pair of factors (shapes outermost first, as safetensors has them):
 *
 *     PEFT      base_model.model.<module>.lora_A.weight [r, in], lora_B.weight [out, r]   Unsloth writes the same;
 *               of stacked experts [E r, in] and [out, r E], see peft.c; of experts apart "<experts>.<e>.gate_proj"
 *     mlx-lm    <module>.lora_a [in, r], lora_b [r, out]; of "mlp.switch_mlp.gate_proj" [E, r, in] and [E, out, r]
 *
 * (mlx-lm: mlx_lm/tuner/lora.py.) PEFT's scale is lora_alpha / r or, with use_rslora, lora_alpha / sqrt(r), where
 * alpha_pattern may have another alpha for a module; mlx-lm's is lora_parameters.scale as it stands.
 *
 * A module that is two tensors here gives both its A; ranks whose half of B is zero are left out, so that what was
 * exported as one pair of rank r1 + r2 becomes the two again. A tensor that is three modules there gets their ranks one
 * behind the other, or one rank where all have the same A. */
#include "firn/export.h"

#include "core/file.h"
#include "train/low_rank.h"
#include "train/origin.h"
#include "train/peft.h"
#include "train/record.h"
#include "train/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef enum { FORM_PEFT, FORM_MLX, FORM_MLX_STACK } factor_form;

/* A piece that is there. */
typedef struct {
    const firn_peft_piece *piece;
    factor_form form;
    firn_safetensor a, b;
    int64_t rank, at[2]; /* at: the first of its ranks in the entry of each part */
    double scale;
} found;

/* What a tensor of the model gets. */
typedef struct {
    int64_t rank, of_experts, experts_at; /* of_experts: the highest of modules for one expert; experts_at -1: none */
    double scale;
    bool joint; /* from a module that is two tensors here */
} share;

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    const char *folder;
    bool mlx;
    json_t *config, *used;
    firn_safetensors file;
    firn_adapter *plan; /* an entry for every tensor */
    firn_peft_pieces x;
    found *founds;
    size_t n, capacity;
    share *shares; /* [plan->n_entries] */
} importing;

/* ---- the configuration ---- */

static firn_status refuse_config(const importing *m, const char *key, const char *why)
{
    return firn_fail(m->ctx, FIRN_ERR_UNSUPPORTED, "%s: %s in adapter_config.json %s", m->folder, key, why);
}

static bool is_set(const json_t *value)
{
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}

static firn_status check_config(importing *m)
{
    static const struct {
        const char *key, *why;
    } none[] = {
        {"use_dora", "asks for DoRA, whose magnitudes no adapter here can hold"},
        {"fan_in_fan_out", "says that weights lie the other way round, which models in GGUF do not"},
        {"modules_to_save", "names modules that were trained whole; only low-rank updates can be imported"},
        {"trainable_token_indices", "says that embeddings were trained; only low-rank updates can be imported"},
        {"alora_invocation_tokens", "switches the adapter on behind certain tokens only"},
        {"use_bdlora", "asks for block-diagonal factors"},
    };
    const json_t *c = m->config;
    const char *type = json_string_value(json_object_get(c, "peft_type")),
               *bias = json_string_value(json_object_get(c, "bias")),
               *tuned = json_string_value(json_object_get(c, "fine_tune_type"));

    m->mlx = json_object_get(c, "lora_parameters") != NULL;
    if (m->mlx && tuned && strcmp(tuned, "lora") != 0)
        return refuse_config(m, "fine_tune_type", "is not lora");
    if (m->mlx)
        return FIRN_OK;
    if (!type || strcmp(type, "LORA") != 0)
        return refuse_config(m, "peft_type", "is not LORA (and there are no lora_parameters, as mlx-lm has them)");
    if (bias && strcmp(bias, "none") != 0)
        return refuse_config(m, "bias", "says that biases were trained; only low-rank updates can be imported");
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (is_set(json_object_get(c, none[i].key)))
            return refuse_config(m, none[i].key, none[i].why);
    return FIRN_OK;
}

/* "model.layers.3.mlp.experts.gate_up_proj", as patterns name it. */
static void pattern_name(const firn_peft_piece *p, char name[2 * FIRN_PEFT_NAME])
{
    const char *inner = strstr(p->module, ".base_layer"), *tail = p->parameter ? strrchr(p->target, '.') : NULL;

    snprintf(name, 2 * FIRN_PEFT_NAME, "%.*s%s", (int)(inner ? (size_t)(inner - p->module) : strlen(p->module)),
             p->module, tail ? tail : "");
}

/* PEFT takes a key for a regular expression at the end of a name, behind a dot; names alone are understood here. */
static firn_status alpha_of(const importing *m, const firn_peft_piece *p, double *alpha)
{
    const json_t *given = json_object_get(m->config, "lora_alpha");
    json_t *patterns = json_object_get(m->config, "alpha_pattern"), *value;
    char name[2 * FIRN_PEFT_NAME];
    const char *key;

    pattern_name(p, name);
    const size_t n = strlen(name);
    json_object_foreach(patterns, key, value)
    {
        const size_t k = strlen(key);
        if (strpbrk(key, "\\^$*+?()[]{}|"))
            return firn_fail(m->ctx, FIRN_ERR_UNSUPPORTED,
                             "%s: the key '%.80s' of alpha_pattern is a regular expression; names of modules alone are "
                             "understood",
                             m->folder, key);
        if (k <= n && strcmp(name + n - k, key) == 0 && (k == n || name[n - k - 1] == '.')) {
            given = value;
            break;
        }
    }
    *alpha = json_number_value(given);
    if (!json_is_number(given) || !(fabs(*alpha) < 1e30))
        return firn_fail(m->ctx, FIRN_ERR_FORMAT, "%s: the alpha of %.100s should be a number", m->folder, name);
    return FIRN_OK;
}

static firn_status scale_of(const importing *m, found *f)
{
    if (m->mlx) {
        const json_t *scale = json_object_get(json_object_get(m->config, "lora_parameters"), "scale");
        if (!json_is_number(scale) || !(fabs(json_number_value(scale)) < 1e30))
            return firn_fail(m->ctx, FIRN_ERR_FORMAT,
                             "%s: lora_parameters.scale in adapter_config.json should be a number", m->folder);
        f->scale = json_number_value(scale);
        return FIRN_OK;
    }
    FIRN_TRY(alpha_of(m, f->piece, &f->scale));
    f->scale /= json_is_true(json_object_get(m->config, "use_rslora")) ? sqrt((double)f->rank) : (double)f->rank;
    return FIRN_OK;
}

/* ---- which factors are there ---- */

static int64_t experts_of(const firn_peft_piece *p)
{
    return p->expert < 0 ? p->n_expert : 1;
}

static bool take_shape(found *f)
{
    const firn_peft_piece *p = f->piece;
    const firn_safetensor *a = &f->a, *b = &f->b;
    const int64_t E = experts_of(p);

    if (a->n_dims != b->n_dims)
        return false;
    switch (f->form) {
    case FORM_PEFT:
        f->rank = a->ne[1] / E;
        return a->n_dims == 2 && a->ne[0] == p->n_in && f->rank * E == a->ne[1] && b->ne[0] == a->ne[1] &&
               b->ne[1] == p->n_out;
    case FORM_MLX:
        f->rank = a->ne[0];
        return E == 1 && a->n_dims == 2 && a->ne[1] == p->n_in && b->ne[0] == p->n_out && b->ne[1] == f->rank;
    case FORM_MLX_STACK:
        f->rank = a->ne[1];
        return a->n_dims == 3 && a->ne[0] == p->n_in && a->ne[2] == E && b->ne[0] == f->rank && b->ne[1] == p->n_out &&
               b->ne[2] == E;
    }
    return false;
}

static firn_status mark(const importing *m, const char *name)
{
    return json_object_set_new(m->used, name, json_true()) == 0
               ? FIRN_OK
               : firn_fail(m->ctx, FIRN_ERR_MEMORY, "memory was short for the names of factors");
}

/* The pair whose names begin with `begin`; *there: one is, *fits: for this piece. */
static firn_status look(importing *m, const firn_peft_piece *p, const char *begin, const char *module, factor_form form,
                        bool *there, bool *fits)
{
    static const char *const ends[][2] = {{".lora_A.weight", ".lora_B.weight"},
                                          {".lora_A.default.weight", ".lora_B.default.weight"},
                                          {".lora_a", ".lora_b"}};
    const int first = form == FORM_PEFT ? 0 : 2, last = form == FORM_PEFT ? 1 : 2;
    found f = {.piece = p, .form = form};
    char name[2][2 * FIRN_PEFT_NAME];
    bool is[2] = {false, false};

    *there = *fits = false;
    for (int e = first; e <= last && !*there; e++) {
        for (int i = 0; i < 2; i++) {
            snprintf(name[i], sizeof name[i], "%s%s%s", begin, module, ends[e][i]);
            FIRN_TRY(firn_safetensors_find(&m->file, name[i], i ? &f.b : &f.a, &is[i]));
        }
        *there = is[0] || is[1];
    }
    if (!*there)
        return FIRN_OK;
    if (!is[0] || !is[1])
        return firn_fail(m->ctx, FIRN_ERR_FORMAT, "%s: %s is missing, its other half is there", m->folder,
                         name[is[0] ? 1 : 0]);
    if (form == FORM_MLX && f.a.n_dims == 3)
        f.form = FORM_MLX_STACK;
    if (!take_shape(&f))
        return FIRN_OK;
    *fits = true;
    if (f.rank < 1 || f.rank > FIRN_MAX_RANK)
        return firn_fail(m->ctx, FIRN_ERR_UNSUPPORTED, "%s: the rank of %s is %lld; 1 to %d is possible", m->folder,
                         module, (long long)f.rank, FIRN_MAX_RANK);
    FIRN_TRY(scale_of(m, &f));
    FIRN_TRY(mark(m, name[0]));
    FIRN_TRY(mark(m, name[1]));
    FIRN_TRY(firn_grow(m->ctx, (void **)&m->founds, m->n, &m->capacity, sizeof *m->founds));
    m->founds[m->n++] = f;
    return FIRN_OK;
}

/* Of two parameters in one module the first one's factors are "experts.base_layer.lora_A", but only if both are
 * adapted: shapes tell which is which, and the other place is looked at too. */
static firn_status find_piece(importing *m, const firn_peft_piece *p)
{
    const char *begin = m->mlx ? "" : "base_model.model.", *inner = strstr(p->module, ".base_layer");
    const factor_form form = m->mlx ? FORM_MLX : FORM_PEFT;
    char other[FIRN_PEFT_NAME + 16];
    bool there, fits, there_too = false, fits_too = false;

    FIRN_TRY(look(m, p, begin, p->module, form, &there, &fits));
    if (fits || m->mlx)
        goto checked;
    if (inner)
        snprintf(other, sizeof other, "%.*s", (int)(inner - p->module), p->module);
    else
        snprintf(other, sizeof other, "%s.base_layer", p->module);
    FIRN_TRY(look(m, p, begin, other, form, &there_too, &fits_too));
checked:
    if ((there || there_too) && !fits && !fits_too && !p->parameter)
        return firn_fail(
            m->ctx, FIRN_ERR_FORMAT,
            "%s: the factors of %s have other shapes than a module of %lld inputs and %lld outputs asks for", m->folder,
            p->module, (long long)p->n_in, (long long)p->n_out);
    return FIRN_OK;
}

static firn_status check_all_used(const importing *m)
{
    static const struct {
        const char *part, *why;
    } kinds[] = {
        {"lora_magnitude_vector", "is DoRA's, which no adapter here can hold"},
        {"lora_embedding", "changes embeddings, on which adapters are not supported"},
        {"embed_tokens", "changes embeddings, on which adapters are not supported"},
        {"lora_", "belongs to no tensor of this model, or has another shape than it"},
    };
    const char *name;
    json_t *entry;

    json_object_foreach(m->file.header, name, entry)
    {
        const char *why = "is no factor of a low-rank update (lora_A, lora_B)";
        if (strcmp(name, "__metadata__") == 0 || json_object_get(m->used, name))
            continue;
        for (size_t i = sizeof kinds / sizeof *kinds; i-- > 0;)
            if (strstr(name, kinds[i].part))
                why = kinds[i].why;
        return firn_fail(m->ctx, FIRN_ERR_UNSUPPORTED, "%s: %.160s %s", m->folder, name, why);
    }
    return FIRN_OK;
}

/* An entry for each tensor that PEFT has a form for. */
static firn_status make_plan(importing *m)
{
    const firn_adapter_spec spec = {.targets = "all", .unserved = true, .rank = 1, .alpha = 1};
    const bool modules = m->model->arch->hf.layout == FIRN_HF_MODULES;
    int kept = 0;

    FIRN_TRY(firn_adapter_describe(m->ctx, m->model, &spec, &m->plan));
    for (int i = 0; i < m->plan->n_entries; i++) {
        firn_adapter_entry *e = &m->plan->entries[i];
        int layer;
        firn_tensor_id id;
        bool bias;
        firn_model_find(m->model, e->tensor, &layer, &id, &bias);
        if (layer >= 0 &&
            (id == FIRN_T_ATTN_K_B || id == FIRN_T_ATTN_V_B || (modules && id == FIRN_T_FFN_GATE_UP_EXPS)))
            firn_free(m->ctx, (char *)e->tensor);
        else
            m->plan->entries[kept++] = *e;
    }
    m->plan->n_entries = kept;
    m->x = (firn_peft_pieces){.ctx = m->ctx, .model = m->model, .adapter = m->plan};
    FIRN_TRY(firn_peft_collect(&m->x));
    for (int i = 0; i < m->model->hp.n_layer && !modules && m->model->hp.n_expert; i++) {
        if (m->mlx) {
            FIRN_TRY(firn_peft_add_stacks(&m->x, i, "mlp.switch_mlp"));
            FIRN_TRY(firn_peft_add_stacks(&m->x, i, "block_sparse_moe.switch_mlp"));
            continue;
        }
        FIRN_TRY(firn_peft_add_expert_modules(&m->x, i, "mlp.experts",
                                              (const char *const[]){"gate_proj", "up_proj", "down_proj"}));
        FIRN_TRY(firn_peft_add_expert_modules(&m->x, i, "block_sparse_moe.experts",
                                              (const char *const[]){"w1", "w3", "w2"}));
    }
    return FIRN_OK;
}

/* ---- ranks ---- */

static bool same_a(const found *f, const found *g)
{
    const int64_t n = f->a.ne[0] * f->a.ne[1] * f->a.ne[2];

    return f->rank == g->rank && f->form == g->form && f->a.type == g->a.type && f->piece->expert < 0 &&
           g->piece->expert < 0 && f->a.ne[0] == g->a.ne[0] &&
           memcmp(f->a.data, g->a.data, firn_row_bytes(f->a.type, n)) == 0;
}

static share *share_of(const importing *m, const found *f, int part)
{
    const firn_adapter_entry *e = f->piece->part[part];

    return e ? &m->shares[e - m->plan->entries] : NULL;
}

/* The found before `i` that has ranks in the same entry which this one can use too; its place in *part. */
static const found *sharing(const importing *m, size_t i, int part, int *theirs)
{
    for (size_t k = 0; k < i; k++)
        for (int q = 0; q < 2; q++)
            if (m->founds[k].piece->part[q] && m->founds[k].piece->part[q] == m->founds[i].piece->part[part] &&
                same_a(&m->founds[k], &m->founds[i])) {
                *theirs = q;
                return &m->founds[k];
            }
    return NULL;
}

static firn_status give_ranks(importing *m)
{
    for (size_t i = 0; i < m->n; i++)
        for (int part = 0; part < 2; part++) {
            share *s = share_of(m, &m->founds[i], part);
            if (s && m->founds[i].piece->expert >= 0)
                s->of_experts = firn_max_i64(s->of_experts, m->founds[i].rank);
        }
    for (size_t i = 0; i < m->n; i++)
        for (int part = 0; part < 2; part++) {
            found *f = &m->founds[i];
            share *s = share_of(m, f, part);
            int theirs;
            if (!s)
                continue;
            s->scale = s->rank == 0 ? f->scale : s->scale;
            s->joint |= f->piece->part[0] && f->piece->part[1];
            /* Only pieces of a fused product have ranks to share: those that begin at another row. */
            const found *g = f->piece->id == FIRN_T_ATTN_QKV ? sharing(m, i, part, &theirs) : NULL;
            if (g) {
                f->at[part] = g->at[theirs];
            } else if (f->piece->expert >= 0) {
                if (s->experts_at < 0) {
                    s->experts_at = s->rank;
                    s->rank += s->of_experts;
                }
                f->at[part] = s->experts_at;
            } else {
                f->at[part] = s->rank;
                s->rank += f->rank;
            }
            FIRN_EXPECT(m->ctx, s->rank <= FIRN_MAX_RANK, "%s: the ranks on %s add up to %lld; at most %d is possible",
                        m->folder, f->piece->part[part]->tensor, (long long)s->rank, FIRN_MAX_RANK);
        }
    return FIRN_OK;
}

/* ---- values ---- */

static int64_t at_a(const found *f, int64_t x, int64_t j, int64_t i)
{
    return f->form == FORM_MLX ? i * f->rank + j : (x * f->rank + j) * f->piece->n_in + i;
}

static int64_t at_b(const found *f, int64_t x, int64_t j, int64_t o)
{
    const int64_t E = experts_of(f->piece);

    return f->form == FORM_MLX         ? j * f->piece->n_out + o
           : f->form == FORM_MLX_STACK ? (x * f->piece->n_out + o) * f->rank + j
                                       : o * f->rank * E + j * E + x;
}

static void lay_a(const importing *m, const found *f, const firn_adapter *ad, const firn_adapter_entry *e, int part,
                  const float *a)
{
    const firn_peft_piece *p = f->piece;

    for (int64_t x = 0; x < experts_of(p); x++)
        for (int64_t j = 0; j < f->rank; j++)
            for (int64_t i = 0; i < p->n_in; i++) {
                const int64_t expert = p->expert < 0 ? x : p->expert;
                ad->values[e->a + (expert * e->rank + f->at[part] + j) * e->n_in + firn_peft_column(&m->x, p, i)] =
                    a[at_a(f, x, j, i)];
            }
}

static void lay_b(const importing *m, const found *f, const firn_adapter *ad, const firn_adapter_entry *e, int part,
                  const float *b)
{
    const firn_peft_piece *p = f->piece;
    const double ratio = f->scale / share_of(m, f, part)->scale;
    int is;

    for (int64_t o = 0; o < p->n_out; o++) {
        const int64_t row = firn_peft_row(&m->x, p, o, &is);
        for (int64_t x = 0; is == part && x < experts_of(p); x++) {
            const int64_t expert = p->expert < 0 ? x : p->expert;
            const double factor = ratio * (p->divisor ? (double)p->divisor[expert] : 1);
            for (int64_t j = 0; j < f->rank; j++)
                ad->values[e->b + (expert * e->n_out + row) * e->rank + f->at[part] + j] =
                    (float)(factor * (double)b[at_b(f, x, j, o)]);
        }
    }
}

static firn_status read_values(const importing *m, const firn_safetensor *t, float **values)
{
    const int64_t n = t->ne[0] * t->ne[1] * t->ne[2];

    *values = firn_alloc(m->ctx, (size_t)n * sizeof **values);
    if (!*values)
        return FIRN_ERR_MEMORY;
    firn_safetensor_values(t, 0, n, *values);
    return FIRN_OK;
}

static firn_status lay(const importing *m, const firn_adapter *ad, firn_adapter_entry *const *entries, const found *f)
{
    float *a = NULL, *b = NULL;

    firn_status s = read_values(m, &f->a, &a);
    if (s == FIRN_OK)
        s = read_values(m, &f->b, &b);
    for (int part = 0; s == FIRN_OK && part < 2; part++)
        if (f->piece->part[part]) {
            const firn_adapter_entry *e = entries[f->piece->part[part] - m->plan->entries];
            lay_a(m, f, ad, e, part, a);
            lay_b(m, f, ad, e, part, b);
        }
    firn_free(m->ctx, a);
    firn_free(m->ctx, b);
    return s;
}

/* ---- the adapter ---- */

/* A rank of an entry does something: its column of B is not zero. */
static bool works(const firn_adapter *ad, const firn_adapter_entry *e, int64_t j)
{
    for (int64_t k = 0; k < e->n_out * e->n_expert; k++)
        if (ad->values[e->b + k * e->rank + j] != 0)
            return true;
    return false;
}

/* An entry like it of that rank; its tensor's name is a copy. */
static firn_status add_like(const importing *m, firn_adapter *ad, const firn_adapter_entry *like, int64_t rank,
                            float scale, firn_adapter_entry **entry)
{
    firn_adapter_entry *e = &ad->entries[ad->n_entries];

    *e = *like;
    e->tensor = firn_strdup(m->ctx, like->tensor);
    if (!e->tensor)
        return FIRN_ERR_MEMORY;
    e->rank = rank;
    e->scale = scale;
    ad->n_entries++;
    *entry = e;
    return FIRN_OK;
}

/* As the file has it, zero ranks and all. */
static firn_status fill(const importing *m, firn_adapter *ad)
{
    firn_adapter_entry **entries = firn_alloc_zeroed(m->ctx, (size_t)m->plan->n_entries, sizeof *entries);
    firn_status s = entries ? FIRN_OK : FIRN_ERR_MEMORY;

    for (int i = 0; s == FIRN_OK && i < m->plan->n_entries; i++)
        if (m->shares[i].rank)
            s = add_like(m, ad, &m->plan->entries[i], m->shares[i].rank, (float)m->shares[i].scale, &entries[i]);
    if (s == FIRN_OK)
        s = firn_adapter_make_values(ad);
    for (size_t i = 0; s == FIRN_OK && i < m->n; i++)
        s = lay(m, ad, entries, &m->founds[i]);
    firn_free(m->ctx, entries);
    return s;
}

static void copy_rank(const firn_adapter *from, const firn_adapter_entry *e, int64_t j, const firn_adapter *to,
                      const firn_adapter_entry *t, int64_t k)
{
    for (int64_t x = 0; x < e->n_expert; x++) {
        memcpy(to->values + t->a + (x * t->rank + k) * t->n_in, from->values + e->a + (x * e->rank + j) * e->n_in,
               (size_t)e->n_in * sizeof(float));
        for (int64_t o = 0; o < e->n_out; o++)
            to->values[t->b + (x * t->n_out + o) * t->rank + k] = from->values[e->b + (x * e->n_out + o) * e->rank + j];
    }
}

/* Without the ranks of joint modules that do nothing here; where none does anything at all, the adapter is a fresh one
 * and keeps them. */
static firn_status trim(const importing *m, const firn_adapter *whole, firn_adapter *ad)
{
    bool any = false;
    int at = 0;

    for (int i = 0; i < whole->n_entries && !any; i++)
        for (int64_t j = 0; j < whole->entries[i].rank && !any; j++)
            any = works(whole, &whole->entries[i], j);
    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        for (int i = 0, k = 0; i < m->plan->n_entries; i++) {
            if (!m->shares[i].rank)
                continue;
            const firn_adapter_entry *e = &whole->entries[k++];
            firn_adapter_entry *mine = pass ? &ad->entries[at] : NULL;
            int64_t rank = 0;
            for (int64_t j = 0; j < e->rank; j++)
                if (!any || !m->shares[i].joint || works(whole, e, j)) {
                    if (pass)
                        copy_rank(whole, e, j, ad, mine, rank);
                    rank++;
                }
            at += rank > 0;
            if (!pass && rank > 0)
                FIRN_TRY(add_like(m, ad, e, rank, e->scale, &mine));
        }
        if (!pass)
            FIRN_TRY(firn_adapter_make_values(ad));
    }
    return FIRN_OK;
}

/* The alpha that needs the fewest B rescaled in the file: the first tensor's; 0 where all scales are 1. */
static float alpha_for(const firn_adapter *ad)
{
    bool one = true;

    for (int i = 0; i < ad->n_entries; i++)
        one &= ad->entries[i].scale == 1;
    return one ? 0 : (float)((double)ad->entries[0].scale * (double)ad->entries[0].rank);
}

static firn_status make_adapter(const importing *m, firn_adapter **result)
{
    firn_adapter *whole = NULL, *ad = NULL;
    const size_t most = (size_t)m->plan->n_entries;

    firn_status s = firn_adapter_create_empty(m->ctx, m->plan->arch, most, &whole);
    if (s == FIRN_OK)
        s = fill(m, whole);
    if (s == FIRN_OK)
        s = firn_adapter_create_empty(m->ctx, m->plan->arch, most, &ad);
    if (s == FIRN_OK)
        s = trim(m, whole, ad);
    if (s == FIRN_OK)
        s = firn_origin_set(m->ctx, m->model, ad);
    if (s == FIRN_OK && !firn_all_finite(ad->values, ad->n_values))
        s = firn_fail(m->ctx, FIRN_ERR_FORMAT, "%s: the adapter has values that are not finite", m->folder);
    firn_adapter_destroy(whole);
    if (s != FIRN_OK) {
        firn_adapter_destroy(ad);
        return s;
    }
    ad->alpha = alpha_for(ad);
    *result = ad;
    return FIRN_OK;
}

static firn_status import(importing *m, firn_adapter **adapter)
{
    FIRN_TRY(check_config(m));
    FIRN_TRY(make_plan(m));
    for (size_t i = 0; i < m->x.n; i++)
        FIRN_TRY(find_piece(m, &m->x.pieces[i]));
    FIRN_TRY(check_all_used(m));
    FIRN_EXPECT(m->ctx, m->n > 0, "%s: the adapter is empty", m->folder);
    m->shares = firn_alloc_zeroed(m->ctx, (size_t)m->plan->n_entries, sizeof *m->shares);
    if (!m->shares)
        return FIRN_ERR_MEMORY;
    for (int i = 0; i < m->plan->n_entries; i++)
        m->shares[i].experts_at = -1;
    FIRN_TRY(give_ranks(m));
    return make_adapter(m, adapter);
}

/* The one that is there. */
static firn_status open_weights(firn_context *ctx, const char *folder, firn_map *map)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapters.safetensors"};
    char path[FIRN_PATH_BYTES];
    firn_status s = FIRN_OK;

    for (int i = 0; i < 2; i++) {
        FIRN_TRY(firn_run_path(ctx, folder, names[i], path));
        s = firn_map_open(ctx, path, map);
        if (s == FIRN_OK)
            return FIRN_OK;
    }
    return firn_fail(ctx, s,
                     "%s holds neither adapter_model.safetensors (PEFT, Unsloth) nor adapters.safetensors "
                     "(mlx-lm) that can be read; a .bin is to be saved as safetensors first",
                     folder);
}

firn_status firn_adapter_import_peft(firn_context *ctx, const firn_model *model, const char *folder,
                                     firn_adapter **adapter)
{
    FIRN_GIVEN(ctx, ctx, model, folder, adapter);
    importing m = {.ctx = ctx, .model = model, .folder = folder};
    char path[FIRN_PATH_BYTES];
    firn_map map;

    *adapter = NULL;
    FIRN_TRY(firn_run_path(ctx, folder, "adapter_config.json", path));
    FIRN_TRY(open_weights(ctx, folder, &map));
    m.used = json_object();
    firn_status s = firn_json_read(ctx, path, &m.config);
    if (s == FIRN_OK && !m.used)
        s = firn_fail(ctx, FIRN_ERR_MEMORY, "memory was short for the names of factors");
    if (s == FIRN_OK)
        s = firn_safetensors_parse(ctx, map.data, map.size, &m.file);
    if (s == FIRN_OK)
        s = import(&m, adapter);
    if (s == FIRN_OK)
        s = firn_map_check(ctx, &map);
    if (s != FIRN_OK) {
        firn_adapter_destroy(*adapter);
        *adapter = NULL;
    }
    firn_safetensors_forget(&m.file);
    json_decref(m.config);
    json_decref(m.used);
    firn_map_close(&map);
    firn_adapter_destroy(m.plan);
    firn_free(ctx, m.x.entries);
    firn_free(ctx, m.x.pieces);
    firn_free(ctx, m.founds);
    firn_free(ctx, m.shares);
    return s;
}
