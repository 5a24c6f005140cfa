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
static const firn_random_shape shapes[] = {
    /* name, arch, pre, vocab, embd, layers, heads, kv, head dim, ff, experts, used, expert ff, ctx, rope, eps, tied */
    {"qwen3-30b-a3b", "qwen3moe", "qwen2", 151936, 2048, 48, 32, 4, 128, 6144, 128, 8, 768, 40960, 1e6f, 1e-6f, false},
    {"olmoe-7b", "olmoe", "olmo", 50304, 2048, 16, 16, 16, 128, 1024, 64, 8, 1024, 4096, 1e4f, 1e-5f, false},
    {"mixtral-8x7b", "llama", "gpt-2", 32000, 4096, 32, 32, 8, 128, 14336, 8, 2, 14336, 32768, 1e6f, 1e-5f, false},
    {"tiny", "llama", "gpt-2", 512, 256, 2, 8, 2, 32, 256, 6, 2, 256, 512, 1e4f, 1e-5f, true},
    {"tiny-qwen3moe", "qwen3moe", "qwen2", 512, 256, 2, 4, 2, 64, 512, 8, 3, 128, 512, 1e6f, 1e-6f, false},
    {"tiny-olmoe", "olmoe", "olmo", 512, 128, 2, 4, 4, 32, 64, 8, 2, 64, 512, 1e4f, 1e-5f, false},
    {"tiny-llama", "llama", "gpt-2", 512, 128, 2, 4, 2, 32, 320, 0, 0, 0, 512, 1e4f, 1e-5f, true},
};

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

static firn_status put_keys(maker *m)
{
    const firn_random_shape *s = m->shape;
    char name[96], key[80];

    snprintf(name, sizeof name, "%s (random weights)", s->name);
    FIRN_TRY(firn_gguf_put_string(m->out, "general.architecture", s->arch, strlen(s->arch)));
    FIRN_TRY(firn_gguf_put_string(m->out, "general.name", name, strlen(name)));
    FIRN_TRY(put_u32(m, "vocab_size", s->n_vocab));
    FIRN_TRY(put_u32(m, "context_length", s->n_ctx));
    FIRN_TRY(put_u32(m, "embedding_length", s->n_embd));
    FIRN_TRY(put_u32(m, "block_count", m->n_layer));
    FIRN_TRY(put_u32(m, "feed_forward_length", s->n_ff));
    FIRN_TRY(put_u32(m, "attention.head_count", s->n_head));
    FIRN_TRY(put_u32(m, "attention.head_count_kv", s->n_head_kv));
    FIRN_TRY(put_u32(m, "attention.key_length", s->n_head_dim));
    FIRN_TRY(put_u32(m, "attention.value_length", s->n_head_dim));
    FIRN_TRY(put_u32(m, "rope.dimension_count", s->n_head_dim));
    FIRN_TRY(firn_gguf_put_f32(m->out, arch_key(m, key, "rope.freq_base"), s->rope_base));
    FIRN_TRY(firn_gguf_put_f32(m->out, arch_key(m, key, "attention.layer_norm_rms_epsilon"), s->eps));
    if (s->n_expert) {
        FIRN_TRY(put_u32(m, "expert_count", s->n_expert));
        FIRN_TRY(put_u32(m, "expert_used_count", s->n_expert_used));
    }
    if (s->n_expert && s->n_ff_expert != s->n_ff)
        FIRN_TRY(put_u32(m, "expert_feed_forward_length", s->n_ff_expert));
    return firn_random_vocab_put(m->ctx, m->out, s->n_vocab, s->pre);
}

/* ---- tensors ---- */

/* Norms lie around 1, everything else around 0 with deviation 1/sqrt(ne0): products keep their inputs' size. */
static firn_status write_tensor(maker *m, const char *name, firn_type type, int n_dims, const int64_t *ne)
{
    const uint64_t stream = firn_stream(name);
    const int64_t per_chunk = (int64_t)(CHUNK_BYTES / firn_type_size(type));
    const float std = n_dims == 1 ? 0.1f : 1.0f / sqrtf((float)ne[0]);
    int64_t blocks = ne[0] / firn_type_block(type);

    for (int d = 1; d < n_dims; d++)
        blocks *= ne[d];
    for (int64_t first = 0; first < blocks; first += per_chunk) {
        const int64_t n = firn_min_i64(per_chunk, blocks - first);
        firn_format_draw(type, std, m->seed, stream, first, n, m->chunk);
        for (int64_t i = 0; n_dims == 1 && i < n; i++)
            ((float *)m->chunk)[i] += 1;
        FIRN_TRY(firn_gguf_writer_data(m->out, m->chunk, (size_t)n * firn_type_size(type)));
    }
    return FIRN_OK;
}

/* layer -1: outside the blocks. */
static firn_status tensor(maker *m, int64_t layer, const char *what, int n_dims, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t ne[FIRN_MAX_DIMS] = {ne0, ne1, ne2, 1};
    char name[GGUF_LLAMA_NAME];

    if (layer < 0)
        snprintf(name, sizeof name, "%s.weight", what);
    else
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s.weight", layer, what);
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

static firn_status feed_forward(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;

    FIRN_TRY(tensor(m, i, "ffn_norm", 1, s->n_embd, 1, 1));
    if (s->n_expert == 0) {
        FIRN_TRY(tensor(m, i, "ffn_gate", 2, s->n_embd, s->n_ff, 1));
        FIRN_TRY(tensor(m, i, "ffn_up", 2, s->n_embd, s->n_ff, 1));
        return tensor(m, i, "ffn_down", 2, s->n_ff, s->n_embd, 1);
    }
    FIRN_TRY(tensor(m, i, "ffn_gate_inp", 2, s->n_embd, s->n_expert, 1));
    FIRN_TRY(tensor(m, i, "ffn_gate_exps", 3, s->n_embd, s->n_ff_expert, s->n_expert));
    FIRN_TRY(tensor(m, i, "ffn_up_exps", 3, s->n_embd, s->n_ff_expert, s->n_expert));
    return tensor(m, i, "ffn_down_exps", 3, s->n_ff_expert, s->n_embd, s->n_expert);
}

static firn_status block(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t q = s->n_head * s->n_head_dim, kv = s->n_head_kv * s->n_head_dim;
    const bool whole = strcmp(s->arch, "olmoe") == 0, per_head = strcmp(s->arch, "qwen3moe") == 0;

    FIRN_TRY(tensor(m, i, "attn_norm", 1, s->n_embd, 1, 1));
    FIRN_TRY(tensor(m, i, "attn_q", 2, s->n_embd, q, 1));
    FIRN_TRY(tensor(m, i, "attn_k", 2, s->n_embd, kv, 1));
    FIRN_TRY(tensor(m, i, "attn_v", 2, s->n_embd, kv, 1));
    if (whole || per_head) {
        FIRN_TRY(tensor(m, i, "attn_q_norm", 1, whole ? q : s->n_head_dim, 1, 1));
        FIRN_TRY(tensor(m, i, "attn_k_norm", 1, whole ? kv : s->n_head_dim, 1, 1));
    }
    FIRN_TRY(tensor(m, i, "attn_output", 2, q, s->n_embd, 1));
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
