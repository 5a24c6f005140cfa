#include "model/random_model.h"

#include "core/random.h"
#include "format/draw.h"
#include "format/fallback.h"
#include "gguf/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* From the models' published configurations; the tiny ones are ours: several heads to a key-value head, more experts
 * than are used, rows that the block sizes divide (tiny, tiny-qwen3moe: 256) and do not (tiny-olmoe, tiny-llama). */
/* clang-format off */
static const firn_random_shape shapes[] = {
    /* name, arch, pre, vocab, embd, layers, heads, kv, head dim, ff, experts, used, expert ff, ctx, rope, eps, tied */
    {"qwen3-30b-a3b", "qwen3moe", "qwen2", 151936, 2048, 48, 32, 4, 128, 6144, 128, 8, 768, 40960, 1e6f, 1e-6f, .tied = false},
    {"olmoe-7b", "olmoe", "olmo", 50304, 2048, 16, 16, 16, 128, 1024, 64, 8, 1024, 4096, 1e4f, 1e-5f, .tied = false},
    {"mixtral-8x7b", "llama", "gpt-2", 32000, 4096, 32, 32, 8, 128, 14336, 8, 2, 14336, 32768, 1e6f, 1e-5f, .tied = false},
    {"deepseek-v2-lite", "deepseek2", "deepseek-llm", 102400, 2048, 27, 16, 16, 192, 10944, 64, 6, 1408, 163840, 1e4f,
     1e-6f, false, .n_rot = 64, .n_lead = 1, .n_shared = 2, .gating = 1, .weights_scale = 1, .yarn_factor = 40,
     .yarn_log_multiplier = 0.0707f, .n_ctx_orig = 4096, .kv_rank = 512, .n_nope = 128, .n_head_v = 128},
    {"deepseek-v3", "deepseek2", "deepseek-v3", 129280, 7168, 61, 128, 128, 192, 18432, 256, 8, 2048, 163840, 1e4f,
     1e-6f, false, .n_rot = 64, .n_lead = 3, .n_shared = 1, .n_group = 8, .n_group_used = 4, .gating = 2,
     .weights_norm = true, .choice_bias = true, .weights_scale = 2.5f, .yarn_factor = 40, .yarn_log_multiplier = 0.1f,
     .n_ctx_orig = 4096, .q_rank = 1536, .kv_rank = 512, .n_nope = 128, .n_head_v = 128},
    {"tiny", "llama", "gpt-2", 512, 256, 2, 8, 2, 32, 256, 6, 2, 256, 512, 1e4f, 1e-5f, .tied = true},
    {"tiny-qwen3moe", "qwen3moe", "qwen2", 512, 256, 2, 4, 2, 64, 512, 8, 3, 128, 512, 1e6f, 1e-6f, .tied = false},
    {"tiny-olmoe", "olmoe", "olmo", 512, 128, 2, 4, 4, 32, 64, 8, 2, 64, 512, 1e4f, 1e-5f, .tied = false},
    {"tiny-llama", "llama", "gpt-2", 512, 128, 2, 4, 2, 32, 320, 0, 0, 0, 512, 1e4f, 1e-5f, .tied = true},
    {"tiny-deepseek2", "deepseek2", "deepseek-v3", 512, 128, 3, 4, 4, 64, 160, 12, 3, 64, 512, 1e4f, 1e-6f, false,
     .n_rot = 32, .n_lead = 1, .n_shared = 2, .n_group = 4, .n_group_used = 2, .gating = 2, .weights_norm = true,
     .choice_bias = true, .weights_scale = 2.5f, .yarn_factor = 16, .yarn_log_multiplier = 0.1f, .n_ctx_orig = 24,
     .q_rank = 96, .kv_rank = 64, .n_nope = 32, .n_head_v = 32},
    {"tiny-deepseek2-lite", "deepseek2", "deepseek-llm", 512, 128, 3, 4, 4, 48, 160, 8, 2, 64, 512, 1e4f, 1e-6f, false,
     .n_rot = 16, .n_lead = 1, .n_shared = 1, .gating = 1, .weights_scale = 1, .yarn_factor = 16,
     .yarn_log_multiplier = 0.0707f, .n_ctx_orig = 24, .kv_rank = 64, .n_nope = 32, .n_head_v = 64},
    {"tiny-deepseek2-old", "deepseek2", "deepseek-llm", 512, 128, 3, 4, 4, 48, 160, 8, 2, 64, 512, 1e4f, 1e-6f, false,
     .n_rot = 16, .n_lead = 1, .n_shared = 1, .gating = 1, .weights_scale = 1, .yarn_factor = 16,
     .yarn_log_multiplier = 0.0707f, .n_ctx_orig = 24, .kv_rank = 64, .n_nope = 32, .n_head_v = 64, .joint = true},
};
/* clang-format on */

enum { N_SHAPES = sizeof shapes / sizeof *shapes, CHUNK_BYTES = 1 << 20 };

const firn_random_shape *firn_random_shape_at(int i)
{
    return i >= 0 && i < N_SHAPES ? &shapes[i] : NULL;
}

const firn_random_shape *firn_random_shape_find(const char *name)
{
    for (int i = 0; i < N_SHAPES; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* ---- keys ---- */

typedef struct {
    firn_context *ctx;
    firn_gguf_writer *out;
    const firn_random_shape *shape;
    int64_t n_layer;
    firn_type type;
    uint64_t seed;
    bool writing; /* false: tensors are described, true: their bytes are written */
    firn_random_report report;
    void *chunk; /* [CHUNK_BYTES] */
} maker;

static const char *arch_key(const maker *m, char key[80], const char *rest)
{
    snprintf(key, 80, "%s.%s", m->shape->arch, rest);
    return key;
}

static firn_status put_u32(maker *m, const char *rest, int64_t value)
{
    char key[80];

    return firn_gguf_put_u32(m->out, arch_key(m, key, rest), (uint32_t)value);
}

static firn_status put_f32(maker *m, const char *rest, float value)
{
    char key[80];

    return firn_gguf_put_f32(m->out, arch_key(m, key, rest), value);
}

/* Latent attention in its new form gives the sizes of the one head that its cache holds, and the real ones apart. */
static firn_status put_heads(maker *m)
{
    const firn_random_shape *s = m->shape;
    const int64_t hv = s->n_head_v ? s->n_head_v : s->n_head_dim;
    const bool latent = s->kv_rank && !s->joint;

    FIRN_TRY(put_u32(m, "attention.head_count_kv", latent ? 1 : s->n_head_kv));
    FIRN_TRY(put_u32(m, "attention.key_length", latent ? s->kv_rank + s->n_rot : s->n_head_dim));
    FIRN_TRY(put_u32(m, "attention.value_length", latent ? s->kv_rank : hv));
    if (s->kv_rank) {
        FIRN_TRY(put_u32(m, "attention.q_lora_rank", s->q_rank));
        FIRN_TRY(put_u32(m, "attention.kv_lora_rank", s->kv_rank));
    }
    if (latent) {
        FIRN_TRY(put_u32(m, "attention.key_length_mla", s->n_head_dim));
        FIRN_TRY(put_u32(m, "attention.value_length_mla", hv));
    }
    return FIRN_OK;
}

static firn_status put_rope(maker *m)
{
    const firn_random_shape *s = m->shape;
    char key[80];

    FIRN_TRY(put_u32(m, "rope.dimension_count", s->n_rot ? s->n_rot : s->n_head_dim));
    FIRN_TRY(put_f32(m, "rope.freq_base", s->rope_base));
    if (s->yarn_factor == 0)
        return FIRN_OK;
    FIRN_TRY(firn_gguf_put_string(m->out, arch_key(m, key, "rope.scaling.type"), "yarn", 4));
    FIRN_TRY(put_f32(m, "rope.scaling.factor", s->yarn_factor));
    FIRN_TRY(put_u32(m, "rope.scaling.original_context_length", s->n_ctx_orig));
    return s->yarn_log_multiplier != 0 ? put_f32(m, "rope.scaling.yarn_log_multiplier", s->yarn_log_multiplier)
                                       : FIRN_OK;
}

static firn_status put_experts(maker *m)
{
    const firn_random_shape *s = m->shape;
    char key[80];

    if (s->n_expert == 0)
        return FIRN_OK;
    FIRN_TRY(put_u32(m, "expert_count", s->n_expert));
    FIRN_TRY(put_u32(m, "expert_used_count", s->n_expert_used));
    if (s->n_ff_expert != s->n_ff)
        FIRN_TRY(put_u32(m, "expert_feed_forward_length", s->n_ff_expert));
    if (s->n_lead)
        FIRN_TRY(put_u32(m, "leading_dense_block_count", s->n_lead));
    if (s->n_shared)
        FIRN_TRY(put_u32(m, "expert_shared_count", s->n_shared));
    if (s->n_group) {
        FIRN_TRY(put_u32(m, "expert_group_count", s->n_group));
        FIRN_TRY(put_u32(m, "expert_group_used_count", s->n_group_used));
    }
    if (s->gating)
        FIRN_TRY(put_u32(m, "expert_gating_func", s->gating));
    if (s->weights_scale != 0) {
        FIRN_TRY(put_f32(m, "expert_weights_scale", s->weights_scale));
        FIRN_TRY(firn_gguf_put_bool(m->out, arch_key(m, key, "expert_weights_norm"), s->weights_norm));
    }
    return FIRN_OK;
}

static firn_status put_keys(maker *m)
{
    const firn_random_shape *s = m->shape;
    char name[96];

    snprintf(name, sizeof name, "%s (random weights)", s->name);
    FIRN_TRY(firn_gguf_put_string(m->out, "general.architecture", s->arch, strlen(s->arch)));
    FIRN_TRY(firn_gguf_put_string(m->out, "general.name", name, strlen(name)));
    FIRN_TRY(put_u32(m, "vocab_size", s->n_vocab));
    FIRN_TRY(put_u32(m, "context_length", s->n_ctx));
    FIRN_TRY(put_u32(m, "embedding_length", s->n_embd));
    FIRN_TRY(put_u32(m, "block_count", m->n_layer));
    FIRN_TRY(put_u32(m, "feed_forward_length", s->n_ff));
    FIRN_TRY(put_u32(m, "attention.head_count", s->n_head));
    FIRN_TRY(put_heads(m));
    FIRN_TRY(put_rope(m));
    FIRN_TRY(put_f32(m, "attention.layer_norm_rms_epsilon", s->eps));
    FIRN_TRY(put_experts(m));
    return firn_random_vocab_put(m->ctx, m->out, s->n_vocab, s->pre);
}

/* ---- tensors ---- */

/* Norms lie around 1, everything else around 0 with deviation 1/sqrt(ne0): products keep their inputs' size. */
static firn_status write_tensor(maker *m, const char *name, firn_type type, int n_dims, const int64_t *ne)
{
    const uint64_t stream = firn_stream(name);
    const int64_t per_chunk = (int64_t)(CHUNK_BYTES / firn_type_size(type));
    const float std = n_dims == 1 ? 0.1f : 1.0f / sqrtf((float)ne[0]);
    const bool norm = n_dims == 1 && !strstr(name, ".bias");
    int64_t blocks = ne[0] / firn_type_block(type);

    for (int d = 1; d < n_dims; d++)
        blocks *= ne[d];
    for (int64_t first = 0; first < blocks; first += per_chunk) {
        const int64_t n = firn_min_i64(per_chunk, blocks - first);
        firn_format_draw(type, std, m->seed, stream, first, n, m->chunk);
        for (int64_t i = 0; norm && i < n; i++)
            ((float *)m->chunk)[i] += 1;
        FIRN_TRY(firn_gguf_writer_data(m->out, m->chunk, (size_t)n * firn_type_size(type)));
    }
    return FIRN_OK;
}

static firn_status named(maker *m, const char *name, int n_dims, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t ne[FIRN_MAX_DIMS] = {ne0, ne1, ne2, 1};
    const bool plain = firn_quantize_keeps_f32(name, n_dims);
    const firn_type type = plain ? FIRN_F32 : firn_quantize_fallback(m->type, ne0);
    if (m->writing)
        return write_tensor(m, name, type, n_dims, ne);
    m->report.n_tensors++;
    m->report.n_weights += ne0 * ne1 * ne2;
    m->report.bytes += firn_tensor_bytes(type, ne);
    if (!plain && type != m->type) {
        m->report.n_fallbacks++;
        m->report.fallback = type;
    }
    return firn_gguf_add_tensor(m->out, name, type, n_dims, ne);
}

/* The weight of that name; layer -1: outside the blocks. */
static firn_status tensor(maker *m, int64_t layer, const char *what, int n_dims, int64_t ne0, int64_t ne1, int64_t ne2)
{
    char name[GGUF_LLAMA_NAME];

    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", what);
    else
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s.weight", layer, what);
    return named(m, name, n_dims, ne0, ne1, ne2);
}

static firn_status bias(maker *m, int64_t layer, const char *what, int64_t n)
{
    char name[GGUF_LLAMA_NAME];

    snprintf(name, sizeof name, "blk.%" PRId64 ".%s.bias", layer, what);
    return named(m, name, 1, n, 1, 1);
}

static firn_status feed_forward(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t shared = s->n_shared * s->n_ff_expert;

    FIRN_TRY(tensor(m, i, "ffn_norm", 1, s->n_embd, 1, 1));
    if (s->n_expert == 0 || i < s->n_lead) {
        FIRN_TRY(tensor(m, i, "ffn_gate", 2, s->n_embd, s->n_ff, 1));
        FIRN_TRY(tensor(m, i, "ffn_up", 2, s->n_embd, s->n_ff, 1));
        return tensor(m, i, "ffn_down", 2, s->n_ff, s->n_embd, 1);
    }
    FIRN_TRY(tensor(m, i, "ffn_gate_inp", 2, s->n_embd, s->n_expert, 1));
    if (s->choice_bias)
        FIRN_TRY(bias(m, i, "exp_probs_b", s->n_expert));
    if (shared) {
        FIRN_TRY(tensor(m, i, "ffn_gate_shexp", 2, s->n_embd, shared, 1));
        FIRN_TRY(tensor(m, i, "ffn_up_shexp", 2, s->n_embd, shared, 1));
        FIRN_TRY(tensor(m, i, "ffn_down_shexp", 2, shared, s->n_embd, 1));
    }
    FIRN_TRY(tensor(m, i, "ffn_gate_exps", 3, s->n_embd, s->n_ff_expert, s->n_expert));
    FIRN_TRY(tensor(m, i, "ffn_up_exps", 3, s->n_embd, s->n_ff_expert, s->n_expert));
    return tensor(m, i, "ffn_down_exps", 3, s->n_ff_expert, s->n_embd, s->n_expert);
}

static firn_status latent_attention(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t H = s->n_head, q = H * s->n_head_dim, r = s->kv_rank;

    if (s->q_rank) {
        FIRN_TRY(tensor(m, i, "attn_q_a", 2, s->n_embd, s->q_rank, 1));
        FIRN_TRY(tensor(m, i, "attn_q_a_norm", 1, s->q_rank, 1, 1));
        FIRN_TRY(tensor(m, i, "attn_q_b", 2, s->q_rank, q, 1));
    } else {
        FIRN_TRY(tensor(m, i, "attn_q", 2, s->n_embd, q, 1));
    }
    FIRN_TRY(tensor(m, i, "attn_kv_a_mqa", 2, s->n_embd, r + s->n_rot, 1));
    FIRN_TRY(tensor(m, i, "attn_kv_a_norm", 1, r, 1, 1));
    if (s->joint) {
        FIRN_TRY(tensor(m, i, "attn_kv_b", 2, r, H * (s->n_nope + s->n_head_v), 1));
    } else {
        FIRN_TRY(tensor(m, i, "attn_k_b", 3, s->n_nope, r, H));
        FIRN_TRY(tensor(m, i, "attn_v_b", 3, r, s->n_head_v, H));
    }
    return tensor(m, i, "attn_output", 2, H * s->n_head_v, s->n_embd, 1);
}

static firn_status attention(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t q = s->n_head * s->n_head_dim, kv = s->n_head_kv * s->n_head_dim;
    const bool whole = strcmp(s->arch, "olmoe") == 0, per_head = strcmp(s->arch, "qwen3moe") == 0;

    FIRN_TRY(tensor(m, i, "attn_q", 2, s->n_embd, q, 1));
    FIRN_TRY(tensor(m, i, "attn_k", 2, s->n_embd, kv, 1));
    FIRN_TRY(tensor(m, i, "attn_v", 2, s->n_embd, kv, 1));
    if (whole || per_head) {
        FIRN_TRY(tensor(m, i, "attn_q_norm", 1, whole ? q : s->n_head_dim, 1, 1));
        FIRN_TRY(tensor(m, i, "attn_k_norm", 1, whole ? kv : s->n_head_dim, 1, 1));
    }
    return tensor(m, i, "attn_output", 2, q, s->n_embd, 1);
}

static firn_status block(maker *m, int64_t i)
{
    FIRN_TRY(tensor(m, i, "attn_norm", 1, m->shape->n_embd, 1, 1));
    FIRN_TRY(m->shape->kv_rank ? latent_attention(m, i) : attention(m, i));
    return feed_forward(m, i);
}

static firn_status tensors(maker *m)
{
    const firn_random_shape *s = m->shape;

    FIRN_TRY(tensor(m, -1, "token_embd", 2, s->n_embd, s->n_vocab, 1));
    for (int64_t i = 0; i < m->n_layer; i++)
        FIRN_TRY(block(m, i));
    FIRN_TRY(tensor(m, -1, "output_norm", 1, s->n_embd, 1, 1));
    return s->tied ? FIRN_OK : tensor(m, -1, "output", 2, s->n_embd, s->n_vocab, 1);
}

static firn_status make(maker *m, const char *path)
{
    FIRN_TRY(put_keys(m));
    FIRN_TRY(tensors(m));
    FIRN_TRY(firn_gguf_writer_begin(m->out, path));
    m->writing = true;
    FIRN_TRY(tensors(m));
    return firn_gguf_writer_finish(m->out);
}

firn_status firn_random_model_write(firn_context *ctx, const firn_random_shape *shape, int64_t n_layer, firn_type type,
                                    uint64_t seed, const char *path, firn_random_report *report)
{
    maker m = {.ctx = ctx, .shape = shape, .n_layer = n_layer ? n_layer : shape->n_layer, .type = type, .seed = seed};

    FIRN_EXPECT(ctx, m.n_layer > 0 && m.n_layer <= 512, "a model has 1 to 512 blocks, not %" PRId64, m.n_layer);
    if (!firn_format_can_draw(type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "blocks of type %s cannot be drawn", firn_type_name(type));
    m.chunk = firn_alloc(ctx, CHUNK_BYTES);
    firn_status s = m.chunk ? firn_gguf_writer_create(ctx, &m.out) : FIRN_ERR_MEMORY;
    if (s == FIRN_OK)
        s = make(&m, path);
    firn_gguf_writer_destroy(m.out);
    firn_free(ctx, m.chunk);
    if (report)
        *report = m.report;
    return s;
}
