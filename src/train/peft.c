/* An adapter as PEFT 0.20 and later loads it onto the model in transformers 5: adapter_model.safetensors (F32) and
 * adapter_config.json. PEFT has GGUF's factors in other folds:
 *
 *     linear layer        lora_A [r, in], lora_B [out, r], as they are; rows of B of q and k are put back into
 *                         transformers' order where GGUF has them permuted
 *     stacked experts     lora_A [E r, in]: row e r + j is row j of expert e (expert-major); lora_B [out, r E]: column
 *                         j E + e is column j of expert e (rank-major)
 *
 * One parameter holds gate and up: two adapters of ranks r1, r2 become one of rank r1 + r2, A_e = [A_gate; A_up], B_e =
 * [[B_gate, 0], [0, B_up]], its rows those of gate first, or in turn with those of up. Where both parameters of one
 * module are adapted, the first one's wrapper is inside: "experts.base_layer.lora_A".
 *
 * (Shapes outermost first, as safetensors has them.) The scale is alpha / r; a module of another rank or scale than the
 * rest gets its own in rank_pattern and alpha_pattern. In models with experts PEFT takes "gate_proj" and its like among
 * target_modules for the experts of transformers 4 and moves them there, so that dense layers and shared experts are
 * named by their weights in target_parameters; where experts are modules, by their full names in target_modules.
 * Checked against PEFT 0.21.2 by loading: docs/finetune.md.
 *
 * safetensors: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape, data_offsets),
 * bytes.
 *
 * Called by cmd/export.c. */
#include "firn/export.h"

#include "core/buffer.h"
#include "core/file.h"
#include "core/lock.h"
#include "core/utf8.h"
#include "model/block.h"
#include "train/peft.h"
#include "train/record.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { PART_BYTES = 96, MODULE_BYTES = 128, NAME_BYTES = FIRN_PEFT_NAME, MAX_PATH = 4096 };

typedef firn_peft_piece piece;
typedef firn_peft_pieces exporting;

/* ---- which pieces ---- */

static const char *or_usual(const char *name, const char *usual)
{
    return name ? name : usual;
}

/* PEFT's rewriting of targets, see above. */
static bool taken_for_experts(const char *leaf)
{
    static const char *const names[] = {"gate", "gate_proj", "up_proj", "down_proj"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf, names[i]) == 0)
            return true;
    return false;
}

/* Each expert has modules of its own, whose leaves are called as those of dense layers and shared experts are. */
static bool own_modules(const exporting *x)
{
    return x->model->arch->hf.layout == FIRN_HF_MODULES;
}

/* "model.layers.3.<what>"; <what> alone outside the blocks. */
static const char *full(const exporting *x, char name[MODULE_BYTES], int layer, const char *what)
{
    if (layer < 0)
        snprintf(name, MODULE_BYTES, "%s", what);
    else
        snprintf(name, MODULE_BYTES, "%s.%d.%s", or_usual(x->model->arch->hf.layers, "model.layers"), layer, what);
    return name;
}

/* parameter NULL: a linear layer. */
static firn_status add(exporting *x, int layer, firn_tensor_id id, const char *module, const char *parameter,
                       bool inner, const firn_adapter_entry *one, const firn_adapter_entry *other,
                       firn_peft_order order, piece **result)
{
    const firn_adapter_entry *some = one ? one : other;
    const char *leaf = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    char path[MODULE_BYTES];

    FIRN_TRY(firn_grow(x->ctx, (void **)&x->pieces, x->n, &x->capacity, sizeof *x->pieces));
    piece *p = &x->pieces[x->n++];
    memset(p, 0, sizeof *p);
    snprintf(p->module, sizeof p->module, "%s%s", full(x, path, layer, module), inner ? ".base_layer" : "");
    p->parameter = parameter || (x->model->hp.n_expert && !own_modules(x) && taken_for_experts(leaf));
    if (p->parameter)
        snprintf(p->target, sizeof p->target, "%s.%s", module, parameter ? parameter : "weight");
    else
        snprintf(p->target, sizeof p->target, "%s", leaf);
    p->id = id;
    p->part[0] = one;
    p->part[1] = other;
    p->order = order;
    p->n_in = some->n_in;
    p->n_expert = some->n_expert;
    p->expert = -1;
    const bool two = order >= ROWS_HALVES && id != FIRN_T_FFN_GATE_UP_EXPS;
    p->n_out = (two ? 2 : 1) * some->n_out;
    p->rank = (one ? one->rank : 0) + (other ? other->rank : 0);
    p->alpha = (double)some->scale * (double)p->rank;
    *result = p;
    return FIRN_OK;
}

static firn_status add_linear(exporting *x, int layer, firn_tensor_id id, const char *owner, const char *leaf)
{
    const firn_adapter_entry *e = x->entries[layer * FIRN_T_COUNT + id];
    char module[PART_BYTES];
    piece *p;

    if (!e)
        return FIRN_OK;
    snprintf(module, sizeof module, "%s%s%s", owner, *leaf ? "." : "", leaf);
    FIRN_TRY(add(x, layer, id, module, NULL, false, e, NULL, ROWS_AS_THEY_ARE, &p));
    if (x->model->arch->hf.permuted && (id == FIRN_T_ATTN_Q || id == FIRN_T_ATTN_K)) {
        p->order = ROWS_PERMUTED;
        p->head = x->model->layers[layer].head_k;
    }
    return FIRN_OK;
}

/* One product for q, k, v: a module there too, or a piece for each of three, which share A. */
static firn_status add_fused(exporting *x, int layer, const char *owner)
{
    const firn_hf *hf = &x->model->arch->hf;
    const firn_layer *l = &x->model->layers[layer];
    const firn_adapter_entry *e = x->entries[layer * FIRN_T_COUNT + FIRN_T_ATTN_QKV];
    const char *names[] = {or_usual(hf->q, "q_proj"), or_usual(hf->k, "k_proj"), or_usual(hf->v, "v_proj")};
    const int64_t rows[] = {l->n_head * l->head_k, l->n_head_kv * l->head_k, l->n_head_kv * l->head_v};
    int64_t first = 0;

    if (hf->qkv || !e)
        return hf->qkv ? add_linear(x, layer, FIRN_T_ATTN_QKV, owner, hf->qkv) : FIRN_OK;
    for (int i = 0; i < 3; i++) {
        char module[PART_BYTES];
        piece *p;
        snprintf(module, sizeof module, "%s.%s", owner, names[i]);
        FIRN_TRY(add(x, layer, FIRN_T_ATTN_QKV, module, NULL, false, e, NULL, ROWS_AS_THEY_ARE, &p));
        p->first = first;
        p->n_out = rows[i];
        if (hf->permuted && i < 2) {
            p->order = ROWS_PERMUTED;
            p->head = l->head_k;
        }
        first += rows[i];
    }
    return FIRN_OK;
}

static firn_status add_attention(exporting *x, int layer)
{
    const firn_hf *hf = &x->model->arch->hf;
    const char *owner = or_usual(hf->attention, "self_attn");

    for (int id = FIRN_T_ATTN_K_B; id <= FIRN_T_ATTN_V_B; id++)
        if (x->entries[layer * FIRN_T_COUNT + id])
            return firn_fail(x->ctx, FIRN_ERR_UNSUPPORTED,
                             "%s cannot go to PEFT: in transformers it is part of kv_b_proj, for which this adapter of "
                             "each head is not of low rank",
                             x->entries[layer * FIRN_T_COUNT + id]->tensor);
    FIRN_TRY(add_fused(x, layer, owner));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_Q, owner, or_usual(hf->q, "q_proj")));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_K, owner, or_usual(hf->k, "k_proj")));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_V, owner, or_usual(hf->v, "v_proj")));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_Q_A, owner, "q_a_proj"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_Q_B, owner, "q_b_proj"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_KV_A_MQA, owner, "kv_a_proj_with_mqa"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_KV_B, owner, "kv_b_proj"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_ATTN_GATE, owner, "gate_proj"));
    return add_linear(x, layer, FIRN_T_ATTN_OUTPUT, owner, or_usual(hf->o, "o_proj"));
}

/* Experts that are modules of their own, each with three. */
firn_status firn_peft_add_expert_modules(exporting *x, int layer, const char *owner, const char *const leaves[3])
{
    static const firn_tensor_id ids[] = {FIRN_T_FFN_GATE_EXPS, FIRN_T_FFN_UP_EXPS, FIRN_T_FFN_DOWN_EXPS};

    for (int64_t e = 0; e < x->model->hp.n_expert; e++)
        for (int i = 0; i < 3; i++) {
            const firn_adapter_entry *entry = x->entries[layer * FIRN_T_COUNT + ids[i]];
            char module[PART_BYTES];
            piece *p;
            if (!entry)
                continue;
            snprintf(module, sizeof module, "%s.%lld.%s", owner, (long long)e, leaves[i]);
            FIRN_TRY(add(x, layer, ids[i], module, NULL, false, entry, NULL, ROWS_AS_THEY_ARE, &p));
            p->expert = e;
            p->parameter = false;
            snprintf(p->target, sizeof p->target, "%s", leaves[i]);
        }
    return FIRN_OK;
}

firn_status firn_peft_add_stacks(exporting *x, int layer, const char *owner)
{
    static const struct {
        firn_tensor_id id;
        const char *leaf;
    } stacks[] = {
        {FIRN_T_FFN_GATE_EXPS, "gate_proj"}, {FIRN_T_FFN_UP_EXPS, "up_proj"}, {FIRN_T_FFN_DOWN_EXPS, "down_proj"}};

    for (size_t i = 0; i < sizeof stacks / sizeof *stacks; i++)
        FIRN_TRY(add_linear(x, layer, stacks[i].id, owner, stacks[i].leaf));
    return FIRN_OK;
}

static firn_status add_experts(exporting *x, int layer)
{
    const firn_hf *hf = &x->model->arch->hf;
    const firn_adapter_entry *const *e = &x->entries[layer * FIRN_T_COUNT];
    const char *owner = or_usual(hf->experts, "mlp.experts");
    const firn_adapter_entry *both = e[FIRN_T_FFN_GATE_UP_EXPS], *gate = e[FIRN_T_FFN_GATE_EXPS],
                             *up = e[FIRN_T_FFN_UP_EXPS], *down = e[FIRN_T_FFN_DOWN_EXPS];
    const firn_peft_order order = hf->layout == FIRN_HF_ALTERNATING ? ROWS_ALTERNATING : ROWS_HALVES;
    piece *p;

    if (hf->layout == FIRN_HF_UNGATED) {
        if (up)
            FIRN_TRY(add(x, layer, FIRN_T_FFN_UP_EXPS, owner, "up_proj", down != NULL, up, NULL, ROWS_AS_THEY_ARE, &p));
        if (down)
            FIRN_TRY(add(x, layer, FIRN_T_FFN_DOWN_EXPS, owner, "down_proj", false, down, NULL, ROWS_AS_THEY_ARE, &p));
        return FIRN_OK;
    }
    if (own_modules(x)) {
        if (both)
            return firn_fail(x->ctx, FIRN_ERR_UNSUPPORTED,
                             "%s cannot go to PEFT: %s models have no joint gate and up there", both->tensor,
                             x->model->arch->name);
        return firn_peft_add_expert_modules(x, layer, owner,
                                            (const char *const[]){"gate_proj", "up_proj", "down_proj"});
    }
    if (both)
        FIRN_TRY(add(x, layer, FIRN_T_FFN_GATE_UP_EXPS, owner, "gate_up_proj", down != NULL, both, NULL, order, &p));
    if (gate || up)
        FIRN_TRY(add(x, layer, gate ? FIRN_T_FFN_GATE_EXPS : FIRN_T_FFN_UP_EXPS, owner, "gate_up_proj", down != NULL,
                     gate, up, order, &p));
    if (down)
        FIRN_TRY(add(x, layer, FIRN_T_FFN_DOWN_EXPS, owner, "down_proj", false, down, NULL, ROWS_AS_THEY_ARE, &p));
    const firn_gguf_tensor *factor = x->model->layers[layer].factor[FIRN_T_FFN_DOWN_EXPS];
    if (down && factor && x->model->arch->own_factors)
        p->divisor = (const float *)(const void *)factor->data;
    return FIRN_OK;
}

/* Gate and up as one module, gate rows first. */
static firn_status add_joint(exporting *x, int layer, const char *owner, firn_tensor_id gate, firn_tensor_id up,
                             firn_tensor_id down)
{
    const firn_adapter_entry *const *e = &x->entries[layer * FIRN_T_COUNT];
    char module[PART_BYTES];
    piece *p;

    snprintf(module, sizeof module, "%s.input_linear", owner);
    if (e[gate] || e[up])
        FIRN_TRY(add(x, layer, e[gate] ? gate : up, module, NULL, false, e[gate], e[up], ROWS_HALVES, &p));
    return add_linear(x, layer, down, owner, "output_linear");
}

static firn_status add_apart(exporting *x, int layer, const char *owner, firn_tensor_id gate, firn_tensor_id up,
                             firn_tensor_id down)
{
    const firn_hf *hf = &x->model->arch->hf;

    FIRN_TRY(add_linear(x, layer, gate, owner, or_usual(hf->gate, "gate_proj")));
    FIRN_TRY(add_linear(x, layer, up, owner, or_usual(hf->up, "up_proj")));
    return add_linear(x, layer, down, owner, or_usual(hf->down, "down_proj"));
}

static firn_status add_feed_forward(exporting *x, int layer)
{
    const firn_hf *hf = &x->model->arch->hf;
    const firn_adapter_entry *const *e = &x->entries[layer * FIRN_T_COUNT];
    const char *shared = or_usual(hf->shared, "mlp.shared_experts");
    piece *p;

    /* Where a shared expert has gate and up in one, so has the dense model that is all shared expert. */
    const bool joint = hf->shared_joint && x->model->arch->mixer != FIRN_MIX_ATTENTION;
    if (joint)
        FIRN_TRY(add_joint(x, layer, shared, FIRN_T_FFN_GATE, FIRN_T_FFN_UP, FIRN_T_FFN_DOWN));
    else
        FIRN_TRY(add_apart(x, layer, or_usual(hf->dense, "mlp"), FIRN_T_FFN_GATE, FIRN_T_FFN_UP, FIRN_T_FFN_DOWN));
    FIRN_TRY(add_linear(x, layer, FIRN_T_FFN_LATENT_DOWN, or_usual(hf->dense, "mlp"), "fc1_latent_proj"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_FFN_LATENT_UP, or_usual(hf->dense, "mlp"), "fc2_latent_proj"));
    if (e[FIRN_T_FFN_GATE_INP])
        FIRN_TRY(add(x, layer, FIRN_T_FFN_GATE_INP, or_usual(hf->router, "mlp.gate"), "weight", false,
                     e[FIRN_T_FFN_GATE_INP], NULL, ROWS_AS_THEY_ARE, &p));
    FIRN_TRY(add_experts(x, layer));
    FIRN_TRY(add_linear(x, layer, FIRN_T_INP_GATE, "per_layer_input_gate", ""));
    FIRN_TRY(add_linear(x, layer, FIRN_T_PROJ, "per_layer_projection", ""));
    FIRN_TRY(add_linear(x, layer, FIRN_T_FFN_GATE_INP_SHEXP, "mlp", "shared_expert_gate"));
    return (hf->shared_joint ? add_joint : add_apart)(x, layer, shared, FIRN_T_FFN_GATE_SHEXP, FIRN_T_FFN_UP_SHEXP,
                                                      FIRN_T_FFN_DOWN_SHEXP);
}

/* A delta net's products, whose value heads have another order there. */
static firn_status add_delta(exporting *x, int layer)
{
    const char *owner = x->model->arch->hf.mixer;
    const int64_t s = x->model->hp.ssm.state, nk = x->model->hp.ssm.n_group;
    const firn_adapter_entry *const *e = &x->entries[layer * FIRN_T_COUNT];
    const struct {
        firn_tensor_id id;
        const char *leaf;
        int64_t from, block;
        bool columns;
    } apart[] = {
        {FIRN_T_ATTN_QKV, "in_proj_qkv", 2 * nk * s, s, false},
        {FIRN_T_ATTN_GATE, "in_proj_z", 0, s, false},
        {FIRN_T_SSM_BETA, "in_proj_b", 0, 1, false},
        {FIRN_T_SSM_ALPHA, "in_proj_a", 0, 1, false},
        {FIRN_T_SSM_OUT, "out_proj", 0, s, true},
    };

    if (!x->model->arch->delta_joint) {
        for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
            const size_t before = x->n;
            FIRN_TRY(add_linear(x, layer, apart[i].id, owner, apart[i].leaf));
            for (size_t k = before; k < x->n; k++) {
                x->pieces[k].from = apart[i].from;
                x->pieces[k].block = apart[i].block;
                x->pieces[k].columns = apart[i].columns;
            }
        }
        return FIRN_OK;
    }
    const firn_adapter_entry *qkv = e[FIRN_T_ATTN_QKV], *z = e[FIRN_T_ATTN_GATE];
    char module[PART_BYTES];
    piece *p;
    snprintf(module, sizeof module, "%s.in_proj_qkvz", owner);
    if (qkv || z) {
        FIRN_TRY(
            add(x, layer, qkv ? FIRN_T_ATTN_QKV : FIRN_T_ATTN_GATE, module, NULL, false, qkv, z, ROWS_BY_KEY_HEAD, &p));
        p->n_out = (2 * nk + 2 * x->model->hp.ssm.n_head) * s;
    }
    FIRN_TRY(add_linear(x, layer, FIRN_T_SSM_IN, owner, "in_proj_qkvz"));
    FIRN_TRY(add_linear(x, layer, FIRN_T_SSM_BA, owner, "in_proj_ba"));
    return add_linear(x, layer, FIRN_T_SSM_OUT, owner, "out_proj");
}

/* What stands in the place of attention. */
static firn_status add_mixer(exporting *x, int layer)
{
    static const struct {
        firn_mixer mixer;
        firn_tensor_id id;
        const char *leaf;
    } parts[] = {
        {FIRN_MIX_SHORTCONV, FIRN_T_SHORTCONV_IN, "in_proj"},
        {FIRN_MIX_SHORTCONV, FIRN_T_SHORTCONV_OUT, "out_proj"},
        {FIRN_MIX_MAMBA, FIRN_T_SSM_IN, "in_proj"},
        {FIRN_MIX_MAMBA, FIRN_T_SSM_OUT, "out_proj"},
        {FIRN_MIX_KIMI, FIRN_T_ATTN_Q, "q_proj"},
        {FIRN_MIX_KIMI, FIRN_T_ATTN_K, "k_proj"},
        {FIRN_MIX_KIMI, FIRN_T_ATTN_V, "v_proj"},
        {FIRN_MIX_KIMI, FIRN_T_SSM_BETA, "b_proj"},
        {FIRN_MIX_KIMI, FIRN_T_SSM_F_A, "forget_gate.f_a_proj"},
        {FIRN_MIX_KIMI, FIRN_T_SSM_F_B, "forget_gate.f_b_proj"},
        {FIRN_MIX_KIMI, FIRN_T_SSM_G_A, "g_a_proj"},
        {FIRN_MIX_KIMI, FIRN_T_SSM_G_B, "g_b_proj"},
        {FIRN_MIX_KIMI, FIRN_T_ATTN_OUTPUT, "o_proj"},
    };
    const firn_mixer mixer = x->model->layers[layer].mixer;

    if (mixer == FIRN_MIX_DELTA)
        return add_delta(x, layer);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].mixer == mixer)
            FIRN_TRY(add_linear(x, layer, parts[i].id, x->model->arch->hf.mixer, parts[i].leaf));
    return FIRN_OK;
}

firn_status firn_peft_collect(exporting *x)
{
    const int64_t n_layer = x->model->hp.n_layer;
    piece *p;

    x->entries = firn_alloc_zeroed(x->ctx, (size_t)n_layer * FIRN_T_COUNT, sizeof *x->entries);
    if (!x->entries)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_entries_find(x->ctx, x->model, x->adapter, x->entries, &x->output));
    for (int i = 0; i < n_layer; i++) {
        FIRN_TRY(x->model->layers[i].mixer == FIRN_MIX_ATTENTION ? add_attention(x, i) : add_mixer(x, i));
        FIRN_TRY(add_feed_forward(x, i));
    }
    if (x->output)
        FIRN_TRY(add(x, -1, FIRN_T_COUNT, "lm_head", NULL, false, x->output, NULL, ROWS_AS_THEY_ARE, &p));
    return FIRN_OK;
}

/* A target means all blocks that have such a module. Where only some of them are adapted, or not all alike, they are
 * named one by one; so are those whose leaf would mean experts too. */
static void find_exact(exporting *x)
{
    for (size_t i = 0; i < x->n; i++) {
        piece *p = &x->pieces[i];
        int64_t there = p->id == FIRN_T_COUNT, adapted = 0;
        bool alike = true;
        if (p->expert >= 0)
            continue;
        for (int64_t l = 0; p->id < FIRN_T_COUNT && l < x->model->hp.n_layer; l++)
            there += x->model->layers[l].weight[p->id] != NULL;
        for (size_t j = 0; j < x->n; j++)
            if (strcmp(x->pieces[j].target, p->target) == 0 && x->pieces[j].parameter == p->parameter) {
                adapted++;
                alike &= x->pieces[j].rank == p->rank && x->pieces[j].alpha == p->alpha;
            }
        /* Blocks of several kinds call different things alike: out_proj, q_proj. */
        const bool several = x->model->hp.recurrent && !p->parameter && p->id != FIRN_T_COUNT;
        p->exact =
            several || adapted < there || !alike || (own_modules(x) && !p->parameter && taken_for_experts(p->target));
    }
}

/* ---- values ---- */

/* transformers has the value heads of a key head together, GGUF the first ones of all key heads, then the second ones.
 */
static int64_t moved_head(const exporting *x, const piece *p, int64_t o)
{
    if (!p->block || o < p->from)
        return o;
    const int64_t nk = x->model->hp.ssm.n_group, per = x->model->hp.ssm.n_head / nk;
    const int64_t head = (o - p->from) / p->block;
    return p->from + (head % per * nk + head / per) * p->block + (o - p->from) % p->block;
}

int64_t firn_peft_column(const exporting *x, const piece *p, int64_t i)
{
    return p->columns ? moved_head(x, p, i) : i;
}

static double value_a(const exporting *x, const piece *p, int64_t row, int64_t i, int64_t expert)
{
    i = firn_peft_column(x, p, i);
    const int64_t r0 = p->part[0] ? p->part[0]->rank : 0;
    const firn_adapter_entry *e = row < r0 ? p->part[0] : p->part[1];
    const int64_t j = row < r0 ? row : row - r0;

    return (double)x->adapter->values[e->a + (expert * e->rank + j) * e->n_in + i];
}

/* The part that holds transformers' row o, and the row in it. */
static int64_t find_row(const exporting *x, const piece *p, int64_t o, int *part)
{
    const int64_t half = p->n_out / 2;
    const bool one = p->id == FIRN_T_FFN_GATE_UP_EXPS;

    *part = 0;
    switch (p->order) {
    case ROWS_AS_THEY_ARE:
        return p->first + o;
    case ROWS_PERMUTED: {
        const int64_t head = o / p->head, at = o % p->head, in_half = p->head / 2;
        return p->first + head * p->head + 2 * (at % in_half) + at / in_half;
    }
    case ROWS_BY_KEY_HEAD: {
        const int64_t s = x->model->hp.ssm.state, nk = x->model->hp.ssm.n_group, v = x->model->hp.ssm.n_head / nk * s;
        const int64_t head = o / (2 * s + 2 * v), at = o % (2 * s + 2 * v);
        *part = at >= 2 * s + v;
        return at < s           ? head * s + at
               : at < 2 * s     ? nk * s + head * s + at - s
               : at < 2 * s + v ? 2 * nk * s + head * v + at - 2 * s
                                : head * v + at - 2 * s - v;
    }
    case ROWS_HALVES:
    case ROWS_ALTERNATING:
        break;
    }
    const int64_t which = p->order == ROWS_HALVES ? o / half : o % 2, row = p->order == ROWS_HALVES ? o % half : o / 2;
    *part = one ? 0 : (int)which;
    return one ? which * half + row : row;
}

int64_t firn_peft_row(const exporting *x, const piece *p, int64_t o, int *part)
{
    return find_row(x, p, p->columns ? o : moved_head(x, p, o), part);
}

static double value_b(const exporting *x, const piece *p, int64_t o, int64_t column, int64_t expert)
{
    const int64_t r0 = p->part[0] ? p->part[0]->rank : 0;
    int part;
    const int64_t row = firn_peft_row(x, p, o, &part);
    const firn_adapter_entry *e = p->part[part];
    const int64_t j = part ? column - r0 : column;

    if (!e || j < 0 || j >= e->rank)
        return 0;
    /* Both parts share one scale, that of the piece. */
    const double scale = (double)e->scale * (double)p->rank / p->alpha / (p->divisor ? (double)p->divisor[expert] : 1);
    return scale * (double)x->adapter->values[e->b + (expert * e->n_out + row) * e->rank + j];
}

/* ---- files ---- */

static int64_t rows_a(const piece *p)
{
    return p->rank * (p->expert < 0 ? p->n_expert : 1);
}

/* One factor, row by row: A [rows_a, n_in], B [n_out, rows_a]. */
static firn_status write_factor(const exporting *x, const piece *p, bool b, float *row, firn_out *out)
{
    const int64_t E = p->expert < 0 ? p->n_expert : 1, n_rows = b ? p->n_out : rows_a(p), n = b ? rows_a(p) : p->n_in;

    for (int64_t o = 0; o < n_rows; o++) {
        for (int64_t i = 0; i < n; i++) {
            const int64_t expert = p->expert >= 0 ? p->expert : b ? i % E : o / p->rank;
            row[i] = (float)(b ? value_b(x, p, o, i / E, expert) : value_a(x, p, o % p->rank, i, expert));
        }
        FIRN_TRY(firn_out_write(out, row, (size_t)n * sizeof *row));
    }
    return FIRN_OK;
}

static void describe(firn_text *t, const piece *p, bool b, uint64_t *at)
{
    const int64_t n_rows = b ? p->n_out : rows_a(p), n = b ? rows_a(p) : p->n_in;
    const uint64_t bytes = (uint64_t)n_rows * (uint64_t)n * sizeof(float);

    firn_text_printf(t, ",\"base_model.model.%s.lora_%c.weight\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],", p->module,
                     b ? 'B' : 'A', (long long)n_rows, (long long)n);
    firn_text_printf(t, "\"data_offsets\":[%llu,%llu]}", (unsigned long long)*at, (unsigned long long)(*at + bytes));
    *at += bytes;
}

static firn_status write_tensors(const exporting *x, firn_text *header, firn_out *out)
{
    uint64_t at = 0;
    int64_t widest = 1;
    uint8_t length[8];

    firn_text_printf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < 2 * x->n; i++) {
        const piece *p = &x->pieces[i / 2];
        describe(header, p, i % 2, &at);
        widest = firn_max_i64(widest, firn_max_i64(p->n_in, rows_a(p)));
    }
    firn_text_printf(header, "}");
    while (header->status == FIRN_OK && header->size % 8)
        firn_text_printf(header, " ");
    FIRN_TRY(header->status);
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header->size >> (8 * i));
    FIRN_TRY(firn_out_write(out, length, sizeof length));
    FIRN_TRY(firn_out_write(out, header->data, header->size));
    float *row = firn_alloc(x->ctx, (size_t)widest * sizeof *row);
    firn_status s = row ? FIRN_OK : FIRN_ERR_MEMORY;
    for (size_t i = 0; s == FIRN_OK && i < 2 * x->n; i++)
        s = write_factor(x, &x->pieces[i / 2], i % 2, row, out);
    firn_free(x->ctx, row);
    return s;
}

/* All but committed: *out is the caller's. */
static firn_status write_safetensors(const exporting *x, const char *path, firn_out **out)
{
    firn_text header;

    FIRN_TRY(firn_out_open(x->ctx, path, out));
    firn_text_init(&header, x->ctx, 0);
    const firn_status s = write_tensors(x, &header, *out);
    firn_text_free(&header);
    if (s != FIRN_OK)
        firn_out_abort(*out);
    return s;
}

static bool in_array(const json_t *array, const char *text)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (strcmp(json_string_value(json_array_get(array, i)), text) == 0)
            return true;
    return false;
}

/* What base_model_name_or_path says; NULL: nothing. `text` may hold it. */
static const char *base_name(const exporting *x, char text[MAX_PATH])
{
    static const char *const keys[] = {"general.source.huggingface.repository", "general.base_model.0.repo_url",
                                       "general.repo_url"};
    static const char hub[] = "https://huggingface.co/";
    size_t bad;

    for (size_t i = 0; !x->base && i < sizeof keys / sizeof *keys; i++) {
        const firn_kv *kv = firn_gguf_kv(x->model->gguf, keys[i]);
        if (!kv || kv->type != FIRN_KV_STRING || kv->strings[0].size >= MAX_PATH)
            continue;
        snprintf(text, MAX_PATH, "%.*s", (int)kv->strings[0].size, kv->strings[0].data);
        if (firn_utf8_valid(text, strlen(text), &bad) && (i == 0 || strncmp(text, hub, sizeof hub - 1) == 0))
            return i == 0 ? text : text + sizeof hub - 1;
    }
    return x->base;
}

/* The first piece's rank and scale are the default. NULL: memory was short. */
static json_t *configuration(const exporting *x)
{
    char text[MAX_PATH];
    bool good = true;
    json_t *modules = json_array(), *parameters = json_array(), *ranks = json_object(), *alphas = json_object();
    const int64_t rank = x->pieces[0].rank;
    const double alpha = x->pieces[0].alpha;

    for (size_t i = 0; i < x->n; i++) {
        const piece *p = &x->pieces[i];
        char name[2 * NAME_BYTES];
        snprintf(name, sizeof name, "%s", p->target);
        if (p->exact) { /* "model.layers.3.self_attn.q_proj", "model.layers.3.mlp.experts.gate_up_proj" */
            const char *tail = p->parameter ? strrchr(p->target, '.') : "", *inner = strstr(p->module, ".base_layer");
            snprintf(name, sizeof name, "%.*s%s", (int)(inner ? inner - p->module : (long)strlen(p->module)), p->module,
                     tail);
        }
        json_t *list = p->parameter ? parameters : modules;
        if (!in_array(list, name))
            good &= json_array_append_new(list, json_string(name)) == 0;
        if (p->rank != rank)
            good &= json_object_set_new(ranks, name, json_integer(p->rank)) == 0;
        if (p->alpha != alpha)
            good &= json_object_set_new(alphas, name, json_real(p->alpha)) == 0;
    }
    json_t *all =
        json_pack("{s:s, s:s, s:s?, s:b, s:s, s:I, s:f, s:f, s:b, s:b, s:b, s:n, s:o, s:o, s:o, s:o}", "peft_type",
                  "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", base_name(x, text), "inference_mode", 1,
                  "bias", "none", "r", (json_int_t)rank, "lora_alpha", alpha, "lora_dropout", 0.0, "fan_in_fan_out", 0,
                  "use_rslora", 0, "use_dora", 0, "modules_to_save", "target_modules", modules, "target_parameters",
                  parameters, "rank_pattern", ranks, "alpha_pattern", alphas);
    if (good)
        return all;
    json_decref(all);
    return NULL;
}

static firn_status write_both(exporting *x, const char *folder)
{
    char path[MAX_PATH];
    firn_out *weights;

    snprintf(path, sizeof path, "%s/adapter_model.safetensors", folder);
    FIRN_TRY(write_safetensors(x, path, &weights));
    snprintf(path, sizeof path, "%s/adapter_config.json", folder);
    const firn_status s = firn_json_write(x->ctx, path, configuration(x));
    if (s != FIRN_OK) {
        firn_out_abort(weights); /* a folder never gets one of the two alone */
        return s;
    }
    return firn_out_commit(weights);
}

static firn_status export_to(exporting *x, const char *folder)
{
    size_t made;
    firn_lock *lock;

    FIRN_EXPECT(x->ctx, x->adapter->n_entries > 0, "the adapter is empty");
    FIRN_EXPECT(x->ctx, strlen(folder) < MAX_PATH - 64, "the folder's name is too long");
    FIRN_TRY(firn_peft_collect(x));
    find_exact(x);
    FIRN_TRY(firn_make_folder(x->ctx, folder, &made));
    firn_status s = firn_lock_folder(x->ctx, folder, &lock);
    if (s == FIRN_OK)
        s = write_both(x, folder);
    firn_lock_drop(lock);
    if (s != FIRN_OK)
        firn_unmake_folder(folder, made);
    return s;
}

firn_status firn_adapter_export_peft_named(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                                           const char *folder, const char *base, int64_t *n_tensors)
{
    FIRN_GIVEN(ctx, ctx, model, adapter, folder);
    size_t bad;
    FIRN_EXPECT(ctx, !base || firn_utf8_valid(base, strlen(base), &bad), "the base's name should be UTF-8");
    exporting x = {.ctx = ctx, .model = model, .adapter = adapter, .base = base};
    const firn_status s = export_to(&x, folder);
    if (n_tensors)
        *n_tensors = 2 * (int64_t)x.n;
    firn_free(ctx, x.entries);
    firn_free(ctx, x.pieces);
    return s;
}

firn_status firn_adapter_export_peft(firn_context *ctx, const firn_model *model, const firn_adapter *adapter,
                                     const char *folder, int64_t *n_tensors)
{
    FIRN_GIVEN(ctx, ctx, model, adapter, folder);
    return firn_adapter_export_peft_named(ctx, model, adapter, folder, NULL, n_tensors);
}
