/* What a model architecture is: a descriptor, read by the loader (which tensors, which metadata) and by the block
 * builder (which graph). A descriptor is data, and nothing tests for an architecture by name. Facts: llama.cpp's model
 * loaders, as of October 2026. */
#ifndef FIRN_MODEL_ARCH_H
#define FIRN_MODEL_ARCH_H

#include <stdbool.h>

typedef enum {
    FIRN_ABSENT, /* a file that has it is refused; of a key: it is not read */
    FIRN_OPTIONAL,
    FIRN_REQUIRED,
} firn_presence;

typedef enum {
    FIRN_ATTENTION_HEADS, /* q, k, v heads, grouped */
    FIRN_ATTENTION_MLA,   /* keys and values through a latent vector */
} firn_attention_kind;

/* What blocks that do not attend do; see recurrent.h. */
typedef enum {
    FIRN_MIX_ATTENTION, /* there are none */
    FIRN_MIX_SHORTCONV,
    FIRN_MIX_DELTA,
    FIRN_MIX_KIMI,
    FIRN_MIX_MAMBA,
} firn_mixer;

typedef enum {
    FIRN_ROPE_NORM, /* neighbouring values of a head rotate */
    FIRN_ROPE_NEOX, /* value i with value i + n_rot/2 */
} firn_rope_kind;

typedef enum {
    FIRN_QK_NORM_NONE,
    FIRN_QK_NORM_PER_HEAD,  /* weight [head], on each head before RoPE */
    FIRN_QK_NORM_TURNED,    /* weight [head], on each head after RoPE */
    FIRN_QK_NORM_WHOLE_ROW, /* weight [heads * head], on all heads together */
} firn_qk_norm;

/* How router logits become what experts are chosen by and weighted with; the numbers of expert_gating_func. */
typedef enum {
    FIRN_GATE_SOFTMAX = 1,
    FIRN_GATE_SIGMOID = 2,
    FIRN_GATE_SOFTMAX_CHOSEN = 3, /* chosen by the logits, weighted with the softmax over the chosen */
} firn_gate;

typedef struct {
    firn_gate gate;            /* where the file does not say */
    firn_presence gate_key;    /* expert_gating_func */
    bool gate_by_size;         /* ... but sigmoid in models of the size of GLM-4.7-Flash */
    bool renormalize;          /* the chosen weights are divided by max(their sum, 2^-14) */
    bool renormalize_key;      /* ... where expert_weights_norm says so */
    bool scale_key;            /* the chosen weights are multiplied by expert_weights_scale */
    firn_presence logit_bias;  /* ffn_gate_inp.bias */
    firn_presence choice_bias; /* exp_probs_b.bias: bears on the choice, not on the weights */
    bool choice_bias_bare;     /* ... named exp_probs_b, without a suffix */
} firn_router;

typedef enum {
    FIRN_SHARED_NONE,
    FIRN_SHARED_ADDED, /* the shared expert's result is added */
    FIRN_SHARED_GATED, /* ... times sigmoid(ffn_gate_inp_shexp . x) */
} firn_shared;

typedef enum {
    FIRN_WIDTH_NONE,
    FIRN_WIDTH_DENSE,  /* feed_forward_length */
    FIRN_WIDTH_EXPERT, /* an expert's */
} firn_width;

typedef enum {
    FIRN_SWIGLU,
    FIRN_SWIGLU_OAI,   /* clamped; alpha 1.702, limit 7 */
    FIRN_GEGLU,        /* GELU's tanh form */
    FIRN_RELU_SQUARED, /* without a gate: relu(up)^2 */
} firn_activation;

/* How transformers 5 holds the experts of a block. */
typedef enum {
    FIRN_HF_JOINT,       /* one parameter for gate and up, gate rows first, one for down */
    FIRN_HF_ALTERNATING, /* the same with rows of gate and up in turn */
    FIRN_HF_MODULES,     /* three modules for each expert */
    FIRN_HF_UNGATED,     /* one parameter for up, one for down */
} firn_hf_experts;

/* Names and layouts in transformers, after "model.layers.N."; NULL takes the usual name. Read by train/peft.c. */
typedef struct {
    const char *layers;    /* "model.layers" */
    bool permuted;         /* values of a head of q and k that rotate together are neighbours in GGUF, half a head apart
                              there */
    const char *attention; /* "self_attn" */
    const char *q, *k, *v, *qkv, *o; /* "q_proj", ..., no qkv: NULL */
    const char *mixer;               /* owner of what stands in the place of attention */
    const char *dense;               /* "mlp" */
    const char *gate, *up, *down;    /* "gate_proj", ... */
    firn_hf_experts layout;
    const char *experts; /* "mlp.experts" */
    const char *router;  /* "mlp.gate" */
    const char *shared;  /* "mlp.shared_experts" */

    const char *refused; /* base on which PEFT refuses an adapter by the model's type */
    bool shared_joint;   /* its input_linear holds gate and up, gate rows first, its output_linear down */
} firn_hf;

typedef struct firn_arch {
    const char *name; /* general.architecture, and the prefix of its keys */

    /* blocks without attention */
    firn_mixer mixer;
    bool mixer_by_interval; /* all but every full_attention_interval-th, or by attention.recurrent_layers; else those
                               without key heads */
    bool delta_joint;       /* b and a are one product, ssm_ba, and perhaps q, k, v, z, ssm_in */
    bool delta_tiled;       /* value head h reads key head h mod nk */
    bool one_part;          /* a block has attention, or a state, or a feed-forward, and one norm */

    /* attention */
    firn_attention_kind attention;
    firn_rope_kind rope;
    bool rope_factors;      /* rope_freqs, rope_factors_long and _short are used where the file has them */
    bool rope_factors_full; /* ... but by blocks without a window alone, which must have them */
    bool rope_none;         /* nothing rotates */
    bool rope_all;          /* the whole head rotates: rope.dimension_count must equal it */
    bool rope_finetuned;    /* rope.scaling.finetuned false: no block rotates */
    bool rope_sections;     /* a pair that rope.dimension_sections gives to no axis of an image does not rotate */
    bool rope_windows;      /* blocks without a window do not rotate, if the model has windows */
    bool rope_unstretched;  /* blocks with a window rotate without rope.scaling */
    int rope_skip;          /* every that-many-th block does not rotate; 0: all do */
    float attention_scale;  /* of q . k; 0: 1 / sqrt(head) */
    bool temperature;       /* q grows with its position where attention.temperature_scale says so */
    firn_qk_norm qk_norm;
    bool qk_norm_optional;
    bool v_norm; /* each head of v is normed, without a weight */
    bool v_or_k; /* without attn_v, v is k as attn_k leaves it */
    firn_presence qkv_bias, attn_output_bias;
    bool attn_output_bias_unused; /* loaded, not added */
    firn_presence sinks;          /* attn_sinks: a logit per head that enters the softmax's denominator */
    int window_step; /* attention.sliding_window on all but every that-many-th block, if sliding_window_pattern does not
                        say otherwise; 0: no windows */
    bool window_optional;
    bool window_pattern;     /* ... and sliding_window_pattern must say so for each block */
    bool window_heads;       /* blocks with a window have heads of key_length_swa and value_length_swa, of which
                                rope.dimension_count_swa rotate */
    bool q_gated;            /* behind each head of q in attn_q's rows lie those of its gate: attention's result is
                                multiplied by the gate's sigmoid */
    bool q_full;             /* latent attention never has a low-rank q */
    firn_presence attn_gate; /* attn_gate: attention's result is multiplied by sigmoid(attn_gate x) */
    const char *most_keys;   /* key of the number of keys that a token chooses among its own; with no more than these
                                all are chosen, and longer documents are refused */
    const char *idle;        /* tensors of a block that begin so are there for what does not run here */

    /* feed-forward */
    bool sandwich; /* what attention and feed-forward add is normed first: post_attention_norm, post_ffw_norm */
    bool post_attention_norm; /* the norm in front of it is named post_attention_norm, not ffn_norm */
    firn_presence ffn_bias;
    firn_presence experts;     /* OPTIONAL: where expert_count > 0 */
    firn_presence expert_gate; /* ffn_gate_exps; without it the expert is down(silu(up x)) */
    firn_presence expert_bias; /* of ffn_gate_exps, ffn_up_exps, ffn_down_exps */
    const char *expert_width;  /* key of the experts' width, where absent or 0 feed_forward_length / experts used; NULL:
                                  feed_forward_length */
    firn_activation activation;
    bool latent_experts;   /* where moe_latent_size says so, experts live in that width */
    bool dense_beside;     /* experts stand beside a dense feed-forward, each with norms of its own; see ffn.c */
    bool routed_by_router; /* blocks that have a router (ffn_gate_inp) are routed */
    bool leading_dense;    /* leading_dense_block_count blocks are dense */
    bool interleaved;      /* from there on every interleave_moe_layer_step-th is routed */
    firn_router router;
    firn_shared shared;
    bool shared_key;         /* its width is expert_shared_feed_forward_length ... */
    firn_width shared_width; /* ... and where that is absent or 0 or not read, this */
    bool shared_count;       /* times expert_shared_count */

    /* ends */
    bool per_layer_inputs; /* keys may say that blocks have embeddings of their own, and that the last ones attend to
                              the keys and values of earlier ones; see handed.h */
    bool output_scale;     /* the stream behind a block is multiplied by layer_output_scale where that is there */
    float softcap;       /* logits become c tanh(logits / c), c by final_logit_softcapping or else this; 0: they stay */
    bool embedding_root; /* the embedding is multiplied by sqrt(n_embd) */
    bool logit_scale_optional;
    bool eps_other;          /* attention.layer_norm_epsilon serves where layer_norm_rms_epsilon is absent */
    const char *output_norm; /* "output_norm" */
    bool scales;             /* logit_scale, residual_scale, embedding_scale, attention.scale */
    firn_presence output;    /* OPTIONAL: the embedding serves where it is absent */
    firn_presence output_bias;

    bool own_factors; /* ffn_gate_inp.scale and ffn_down_exps.scale are the model's own. transformers multiplies by the
                         latter what an adapter adds, too; llama.cpp does not */
    bool factors_served;        /* llama.cpp multiplies by every .scale tensor; elsewhere by those of attention alone */
    const char *unserved_mixer; /* more of those, in blocks that do not attend */
    const char *unserved; /* bases on which llama.cpp loads an adapter and ignores it, with spaces between; or NULL */
    firn_hf hf;
    const char *verified; /* reference cases that it passes, see docs/models.md */
} firn_arch;

#define ARCH(name) extern const firn_arch firn_arch_##name;
#include "archs.def"
#undef ARCH

/* NULL-terminated, in the order of archs.def. */
extern const firn_arch *const firn_archs[];

#endif
