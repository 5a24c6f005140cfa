/* Models of random weights in the shape of real ones, for tests and benchmarks: every key, tensor and token that
 * llama.cpp and firn ask for. */
#ifndef FIRN_MODEL_RANDOM_MODEL_H
#define FIRN_MODEL_RANDOM_MODEL_H

#include "core/context.h"
#include "firn/gguf.h"

/* Parts that an architecture's files may have or not. */
enum {
    FIRN_WITH_QKV_BIAS = 1,
    FIRN_WITH_OUTPUT_BIAS = 2, /* attn_output.bias */
    FIRN_WITH_FFN_BIAS = 4,
    FIRN_WITH_CHOICE_BIAS = 8, /* exp_probs_b */
    FIRN_WITH_QK_NORM = 16,
    FIRN_WITH_FACTORS = 32, /* rope_freqs, or rope_factors_long and _short where rope_scaling is longrope */
    FIRN_WITH_FUSED_QKV = 64,
    FIRN_WITH_FUSED_EXPERTS = 128, /* ffn_gate_up_exps */
};

/* 0 leaves out. */
typedef struct {
    const char *name; /* "qwen3-30b-a3b" */
    const char *arch; /* "qwen3moe" */
    const char *pre;  /* tokenizer.ggml.pre */
    int64_t n_vocab, n_embd, n_layer;
    int64_t n_head, n_head_kv, n_head_dim;
    int64_t n_ff, n_expert, n_expert_used, n_ff_expert; /* n_ff_expert: width of an expert; 0 experts: n_ff is dense */
    int64_t n_ctx;
    float rope_base, eps;
    bool tied; /* no output.weight */
    unsigned with;
    int64_t n_rot;            /* 0: the whole head */
    const char *rope_scaling; /* "yarn", "longrope" */
    float rope_factor;
    int64_t n_ctx_orig, n_window;
    int64_t n_lead, n_ff_shared, n_shared; /* dense blocks in front; keys of the shared expert's width and count */
    int64_t n_group, n_group_used;
    int64_t gating;
    float weights_scale;
    bool weights_norm;
    float logit_scale, residual_scale, embedding_scale, attention_scale;
    float yarn_log_multiplier;
    int64_t q_rank, kv_rank, n_nope, n_head_v; /* latent attention where kv_rank is not 0: heads of n_nope + n_rot */
    int32_t sections[4];                       /* rope.dimension_sections */
    /* Blocks that do not all attend: over and over, A attends, R has a state, E (one_part) is a feed-forward. */
    const char *pattern;
    int64_t n_taps, n_state, n_state_group, n_state_head, n_inner; /* of what R is; shortconv needs taps alone */
    int64_t n_latent;                                              /* width of the experts' own stream */
    float temperature;                                             /* of q, and the tokens that share one */
    int64_t n_temperature;
    int64_t n_head_window, n_kv_full; /* where blocks with a window have other heads: values of theirs, and key heads of
                                         the blocks without one, which have no attn_v */
    int64_t window_step;              /* then every so-many-th block has no window */
    float rope_base_window;
    int64_t n_per_layer;                 /* values of each block's own inputs */
    int64_t n_borrowing, n_ff_borrowing; /* last blocks that attend to the keys of earlier ones, and their width (0: as
                                            the others) */
    int64_t top_k; /* keys that a token chooses, by tensors beside latent attention; 0: all of them */
    bool joint;    /* attn_kv_b, the old form of latent attention */
} firn_random_shape;

/* The i-th shape, NULL past the last. */
const firn_random_shape *firn_random_shape_at(int i);
/* NULL when there is none of that name. */
const firn_random_shape *firn_random_shape_find(const char *name);

typedef struct {
    int64_t n_weights;
    uint64_t bytes; /* of tensors */
    int n_tensors, n_fallbacks;
    firn_type fallback; /* the type of the last fallback */
} firn_random_report;

/* Writes `path` whole or not at all. Matrices get `type` by the rules of format/fallback.h, norms and routers F32.
 * n_layer 0: as the shape has it. `report` may be NULL. */
firn_status firn_random_model_write(firn_context *ctx, const firn_random_shape *shape, int64_t n_layer, firn_type type,
                                    uint64_t seed, const char *path, firn_random_report *report);

/* tokenizer.*: n_vocab tokens, at least FIRN_RANDOM_VOCAB_MIN. See random_vocab.c. */
enum { FIRN_RANDOM_VOCAB_MIN = 256 + 3 };
firn_status firn_random_vocab_put(firn_context *ctx, firn_gguf_writer *w, int64_t n_vocab, const char *pre);

#endif
