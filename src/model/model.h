/* A model from inside; see firn/model.h. Read arch.h first, then this, then block.h. */
#ifndef FIRN_MODEL_MODEL_H
#define FIRN_MODEL_MODEL_H

#include "core/arena.h"
#include "firn/model.h"
#include "firn/ops.h"
#include "model/arch.h"

/* The tensors of a block; tensors.def. */
typedef enum {
#define TENSOR(ID, base, CLASS) FIRN_T_##ID,
#include "model/tensors.def"
#undef TENSOR
    FIRN_T_COUNT
} firn_tensor_id;

typedef struct {
    const char *base;
    firn_class class_;
} firn_tensor_row;

extern const firn_tensor_row firn_tensor_rows[FIRN_T_COUNT];

/* What the metadata says, checked. */
typedef struct {
    int64_t n_vocab, n_embd, n_ctx_train;
    int64_t n_block, n_layer;        /* in the file; those that run (without next-token-prediction blocks) */
    int64_t n_expert, n_expert_used; /* the most that a block uses */
    int64_t head_k, head_v;          /* values of one head of q and k; of v. A layer has its own */
    int64_t most_keys;               /* tokens of the longest document; 0: any */
    int64_t window;                  /* keys that a token sees in blocks with a window, itself among them; 0: none */
    float norm_eps;
    float attention_scale;                              /* of q . k */
    float embedding_scale, residual_scale, logit_scale; /* 1: as they are; logits are divided by theirs */
    float softcap;                                      /* of the logits; 0: none */
    struct {                                            /* latent attention, see mla.c */
        int64_t q_rank, kv_rank, nope;
        bool split; /* attn_k_b and attn_v_b, not attn_kv_b */
    } mla;
    bool recurrent;             /* some block carries a state */
    struct {                    /* ... see recurrent.h */
        int64_t taps, channels; /* of filters */
        int64_t state, head, n_head,
            n_group; /* a state is [state, head] for each of n_head, whose keys n_group share */
    } ssm;
    int64_t n_latent;      /* width in which experts live; 0: n_embd */
    int64_t n_per_layer;   /* values that each block gets of a token besides the stream; 0: none */
    firn_rope_params rope; /* a layer has its own base, and may go without the stretching */
    struct {
        float scale; /* q is multiplied by 1 + scale ln(1 + floor(position / length)); 0: it is not */
        int64_t length;
    } temperature;
    bool longrope; /* factors of their own for contexts beyond rope.n_ctx_orig */
    struct {
        firn_gate gate;
        bool renormalize;
        float scale;                   /* 1: none */
        int64_t n_group, n_group_used; /* of consecutive experts, 1: no groups */
    } router;
} firn_hparams;

typedef struct firn_stack firn_stack; /* stack.h */

typedef struct {
    int64_t n_head, n_head_kv, head_k, head_v;
    int64_t n_rot;                          /* values of a head that rotate */
    int64_t n_ff, n_ff_expert, n_ff_shared; /* n_ff_shared 0: no shared expert */
    int64_t n_expert_used;
    int64_t k_row, v_row; /* values that a token adds to the caches of keys and values */
    int64_t keys_of;      /* the block whose keys and values it attends to: itself, or an earlier one, which ... */
    bool lends;           /* ... lends them */
    int64_t window;       /* not 0: it sees hp.window keys */
    firn_mixer mixer;     /* what it does in the place of attention */
    int64_t recurrent;    /* it has no keys */
    int64_t kept;         /* floats that it keeps while generating */
    bool mixes, feeds;    /* it has the first part, the second part */
    bool experts, rotates;
    bool stretched;                                                    /* it rotates as rope.scaling says */
    bool factors;                                                      /* ... and as rope_freqs say */
    float rope_base;                                                   /* hp.rope has all else of its rotation */
    const firn_gguf_tensor *weight[FIRN_T_COUNT], *bias[FIRN_T_COUNT]; /* NULL: not there */
    firn_stack *stack[FIRN_T_COUNT]; /* where the file keeps the experts apart: then weight[] is its tensor */
    const firn_gguf_tensor *factor[FIRN_T_COUNT]; /* the weight is multiplied by it: [1], of experts [n_expert] */
} firn_layer;

struct firn_model {
    firn_context *ctx; /* memory only: a model may be used from other contexts */
    firn_gguf *gguf;
    const firn_arch *arch;
    firn_hparams hp;
    firn_model_info info;
    char *name;
    firn_layer *layers; /* [n_layer] */
    int64_t n_tables;   /* stacks with a span, see stack.h */
    const firn_gguf_tensor *token_embd, *output_norm, *output, *output_bias, *output_factor;
    const firn_gguf_tensor *layer_embd, *layer_proj, *layer_norm; /* per_layer_*, see ends.h; or NULL */
    const firn_gguf_tensor *rope_freqs, *rope_long, *rope_short;  /* see firn_model_factors */
    firn_gguf_tensor made_factors; /* rope_freqs where sections ask for some: not in the file, its number is -1 ... */
    float *section_factors;        /* ... but here, [n_rot/2] */
};

/* A model of an open file, which becomes the model's, also on failure. */
firn_status firn_model_take(firn_context *ctx, firn_gguf *gguf, firn_model **model);
/* What an adapter is to be. */
typedef struct {
    const char *targets; /* as in firn_adapter_create */
    bool unserved; /* false: NULL and "all" leave out what llama.cpp does not apply, and other targets that include
                    * such a tensor are refused */
    bool rslora;   /* each tensor's scale is alpha / sqrt(its rank); else all have alpha / rank */
    int64_t rank, expert_rank;  /* expert_rank 0: as the others */
    const char *const *rank_of; /* "PATTERN=R", PATTERN a class or a pattern over names; the last that matches counts */
    int n_rank_of;
    float alpha; /* 0: the scale is 1 */
} firn_adapter_spec;

/* The adapter, without its values (NULL): for plans, or to go on with firn_adapter_start. */
firn_status firn_adapter_describe(firn_context *ctx, const firn_model *model, const firn_adapter_spec *spec,
                                  firn_adapter **adapter);
/* Whether `loaded` is what the file of `adapter` holds: its values, B as llama.cpp's scale asks for it. */
bool firn_adapter_is_saved_as(const firn_adapter *adapter, const firn_adapter *loaded);
/* One without entries, which are added by hand: at most max_entries. Then their values, all zero. */
firn_status firn_adapter_create_empty(firn_context *ctx, const char *arch, size_t max_entries, firn_adapter **adapter);
firn_status firn_adapter_make_values(firn_adapter *adapter);
/* An adapter of an open file by itself: see train/adapters.h. */
firn_status firn_adapter_parse(firn_context *ctx, const firn_gguf *gguf, firn_adapter **adapter);
/* Gives it its first values. */
firn_status firn_adapter_start(firn_adapter *adapter, uint64_t seed);
/* What of the adapter is trained, by class: values of both factors, and tensors that have some. */
void firn_adapter_count(const firn_adapter *adapter, int64_t values[FIRN_CLASS_COUNT], int tensors[FIRN_CLASS_COUNT]);
/* An adapter of an open file, which stays the caller's. */
firn_status firn_adapter_read(firn_context *ctx, const firn_model *model, const firn_gguf *gguf,
                              firn_adapter **adapter);

/* hp and the per-layer numbers (model->layers is made here). Every value is checked. */
firn_status firn_hparams_read(firn_context *ctx, firn_model *model);

/* The tensors outside the blocks; NULL: not there. */
enum { FIRN_MODEL_ENDS = 11 };
void firn_model_ends(const firn_model *model, const firn_gguf_tensor *ends[FIRN_MODEL_ENDS]);
/* The divisors of the rotary angles for passes whose longest document has n_ctx tokens; NULL: none. */
const firn_gguf_tensor *firn_model_factors(const firn_model *model, int64_t n_ctx);
/* Whether a document may have a token at that position. */
firn_status firn_model_allows(firn_context *ctx, const firn_model *model, int64_t position);
/* What q is multiplied by there. */
float firn_model_temperature(const firn_model *model, int64_t position);
/* wanted.c: finds every tensor that the architecture asks for, and refuses one that nothing asks for. */
firn_status firn_model_want_all(firn_context *ctx, firn_model *model);

/* Whether a tensor of that name is part of what reads images (v.), sound (a.) or joins them to the model (mm.), as in
 * llama.cpp's mmproj files; a few files hold them beside the language model. */
bool firn_model_tower(const char *name);

/* Where a tensor of that name belongs: its block (-1: outside) and id (FIRN_T_COUNT outside the blocks). NULL when the
 * model has none of that name. *bias: a bias or a
 * factor, not a weight. */
const firn_gguf_tensor *firn_model_find(const firn_model *model, const char *name, int *layer, firn_tensor_id *id,
                                        bool *bias);
/* The class by which it is trained; FIRN_CLASS_NONE for all that never is. */
firn_class firn_model_class(const firn_model *model, const char *name);

#endif
