/* What blocks with a state have in common; see recurrent.h.
 *
 * Training, a pass has whole documents: states begin at zero at each one's first token (`first`), and nothing is kept.
 * Generating, a block keeps its state and the last taps - 1 tokens that its filter saw (`kept` slots, whose memory is
 * the cache's, cache.c), reads them before the pass and writes them behind it. */
#include "model/recurrent.h"
#include "model/hparams.h"
#include "model/wanted.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* ---- metadata ---- */

static firn_status delta_sizes(firn_context *ctx, firn_model *m)
{
    int64_t inner = 0;

    FIRN_TRY(firn_key_u32(ctx, m, "ssm.conv_kernel", true, &m->hp.ssm.taps));
    FIRN_TRY(firn_key_u32(ctx, m, "ssm.state_size", true, &m->hp.ssm.state));
    FIRN_TRY(firn_key_u32(ctx, m, "ssm.group_count", true, &m->hp.ssm.n_group));
    FIRN_TRY(firn_key_u32(ctx, m, "ssm.time_step_rank", true, &m->hp.ssm.n_head));
    FIRN_TRY(firn_key_u32(ctx, m, "ssm.inner_size", true, &inner));
    if (m->hp.ssm.n_head <= 0 || m->hp.ssm.n_group <= 0 || m->hp.ssm.n_head % m->hp.ssm.n_group ||
        inner % m->hp.ssm.n_head || m->hp.ssm.state <= 0 || m->hp.ssm.state > 1024)
        return firn_fail(ctx, FIRN_ERR_FORMAT,
                         "%s has states of %lld in %lld heads of %lld groups over %lld channels: not possible",
                         m->arch->name, (long long)m->hp.ssm.state, (long long)m->hp.ssm.n_head,
                         (long long)m->hp.ssm.n_group, (long long)inner);
    m->hp.ssm.head = inner / m->hp.ssm.n_head;
    return FIRN_OK;
}

static firn_status sizes(firn_context *ctx, firn_model *m)
{
    firn_hparams *hp = &m->hp;

    switch (m->arch->mixer) {
    case FIRN_MIX_ATTENTION:
        return FIRN_OK;
    case FIRN_MIX_SHORTCONV:
        FIRN_TRY(firn_key_u32(ctx, m, "shortconv.l_cache", true, &hp->ssm.taps));
        hp->ssm.channels = hp->n_embd;
        break;
    case FIRN_MIX_DELTA:
        FIRN_TRY(delta_sizes(ctx, m));
        if (hp->ssm.head != hp->ssm.state)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has keys of %lld and values of %lld, which must be the same",
                             m->arch->name, (long long)hp->ssm.state, (long long)hp->ssm.head);
        hp->ssm.channels = (2 * hp->ssm.n_group + hp->ssm.n_head) * hp->ssm.state;
        break;
    case FIRN_MIX_KIMI:
        FIRN_TRY(firn_key_u32(ctx, m, "ssm.conv_kernel", true, &hp->ssm.taps));
        FIRN_TRY(firn_key_u32(ctx, m, "kda.head_dim", true, &hp->ssm.state));
        if (hp->ssm.state <= 0 || hp->ssm.state > 1024)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.kda.head_dim is %lld; 1 to 1024 are possible", m->arch->name,
                             (long long)hp->ssm.state);
        hp->ssm.head = hp->ssm.state;
        hp->ssm.n_head = hp->ssm.n_group = m->layers[0].n_head;
        hp->ssm.channels = 3 * hp->ssm.n_head * hp->ssm.state;
        break;
    case FIRN_MIX_MAMBA:
        FIRN_TRY(delta_sizes(ctx, m));
        if (hp->ssm.head * hp->ssm.n_head % hp->ssm.n_group)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has %lld channels in %lld groups", m->arch->name,
                             (long long)(hp->ssm.head * hp->ssm.n_head), (long long)hp->ssm.n_group);
        hp->ssm.channels = hp->ssm.head * hp->ssm.n_head + 2 * hp->ssm.n_group * hp->ssm.state;
        break;
    }
    if (hp->ssm.taps < 2 || hp->ssm.taps > 8)
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "%s has filters of %lld taps; 2 to 8 are supported", m->arch->name,
                         (long long)hp->ssm.taps);
    return FIRN_OK;
}

/* By attention.recurrent_layers, or every full_attention_interval-th attends. */
static firn_status by_interval(firn_context *ctx, firn_model *m)
{
    int64_t interval = 4;
    char key[FIRN_KEY_BYTES];

    FIRN_TRY(firn_key_u32(ctx, m, "full_attention_interval", false, &interval));
    if (interval <= 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s.full_attention_interval is 0", m->arch->name);
    for (int64_t i = 0; i < m->hp.n_layer; i++)
        m->layers[i].recurrent = (i + 1) % interval != 0;
    const firn_kv *kv = firn_gguf_kv(m->gguf, firn_key(key, m, "attention.recurrent_layers"));
    if (kv && kv->type == FIRN_KV_ARRAY)
        return firn_key_per_layer(ctx, m, "attention.recurrent_layers", true, offsetof(firn_layer, recurrent));
    return FIRN_OK;
}

firn_status firn_recurrent_read(firn_context *ctx, firn_model *m)
{
    const firn_arch *arch = m->arch;
    bool any = false;

    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        firn_layer *l = &m->layers[i];
        l->mixes = l->feeds = true;
        l->recurrent = arch->mixer != FIRN_MIX_ATTENTION && l->n_head_kv == 0;
    }
    if (arch->mixer == FIRN_MIX_ATTENTION)
        return FIRN_OK;
    if (arch->mixer_by_interval)
        FIRN_TRY(by_interval(ctx, m));
    FIRN_TRY(sizes(ctx, m));
    for (int64_t i = 0; i < m->hp.n_layer; i++) {
        firn_layer *l = &m->layers[i];
        if (arch->one_part) { /* a state, or attention, or a feed-forward */
            l->feeds = l->n_ff > 0;
            l->mixes = !l->feeds;
        }
        l->mixer = l->recurrent && l->mixes ? arch->mixer : FIRN_MIX_ATTENTION;
        if (!l->recurrent)
            continue;
        l->n_head_kv = l->n_head; /* nobody asks */
        if (l->mixer == FIRN_MIX_ATTENTION)
            continue;
        any = true;
        l->kept = (m->hp.ssm.taps - 1) * m->hp.ssm.channels + m->hp.ssm.state * m->hp.ssm.head * m->hp.ssm.n_head;
    }
    m->hp.recurrent = any;
    return FIRN_OK;
}

firn_status firn_recurrent_want(firn_context *ctx, firn_model *m, int i)
{
    switch (m->layers[i].mixer) {
    case FIRN_MIX_ATTENTION:
        break;
    case FIRN_MIX_SHORTCONV:
        return firn_shortconv_want(ctx, m, i);
    case FIRN_MIX_DELTA:
        return firn_delta_want(ctx, m, i);
    case FIRN_MIX_KIMI:
        return firn_kimi_want(ctx, m, i);
    case FIRN_MIX_MAMBA:
        return firn_mamba_want(ctx, m, i);
    }
    return FIRN_OK;
}

/* ---- graph ---- */

firn_tensor *firn_build_recurrent(firn_builder *u, firn_tensor *x)
{
    switch (u->layer->mixer) {
    case FIRN_MIX_ATTENTION:
        break;
    case FIRN_MIX_SHORTCONV:
        return firn_build_shortconv(u, x);
    case FIRN_MIX_DELTA:
        return firn_build_delta(u, x);
    case FIRN_MIX_KIMI:
        return firn_build_kimi(u, x);
    case FIRN_MIX_MAMBA:
        return firn_build_mamba(u, x);
    }
    return NULL;
}

firn_tensor *firn_build_filtered(firn_builder *u, firn_tensor *x, firn_tensor_id id, int place, bool silu)
{
    firn_block *k = u->block;
    firn_graph *g = u->g;
    firn_tensor *w = k->weight[id];

    if (!x || !w)
        return NULL;
    const int64_t C = x->ne[0], taps = w->ne[0], before = taps - 1;
    w = firn_reshape(g, w, 2, (int64_t[]){taps, C});
    if (!k->kind.n_cache)
        return firn_named(firn_conv_causal(g, x, w, k->first, k->bias[id], 0, silu), "%s", firn_tensor_rows[id].base);
    firn_tensor *history = k->kept[place] = firn_slot(g, FIRN_F32, 2, (int64_t[]){C, before}, "tokens before");
    firn_tensor *all = firn_concat(g, history, x, 1);
    firn_tensor *y = firn_conv_causal(g, all, w, k->first, k->bias[id], before, silu);
    if (all)
        firn_cpy(g, firn_view(g, all, 2, (int64_t[]){C, before}, (int64_t[]){4, all->nb[1]}, u->n * all->nb[1]),
                 history);
    return firn_named(y, "%s", firn_tensor_rows[id].base);
}

firn_tensor *firn_build_state(firn_builder *u, int place, int64_t s, int64_t dv, int64_t n_head)
{
    if (u->block->kind.n_cache)
        u->block->kept[place] = firn_slot(u->g, FIRN_F32, 3, (int64_t[]){s, dv, n_head}, "state");
    return u->block->kept[place];
}

firn_tensor *firn_build_unit(firn_builder *u, firn_tensor *x, float scale)
{
    if (!x)
        return NULL;
    const float n = (float)x->ne[0];
    return firn_scale(u->g, firn_rms_norm(u->g, x, NULL, u->model->hp.norm_eps / n), scale / sqrtf(n));
}
