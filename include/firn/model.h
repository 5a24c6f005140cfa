/* Models: a GGUF file understood as an architecture, adapters on it, and what can be computed with both. */
#ifndef FIRN_MODEL_H
#define FIRN_MODEL_H

#include "firn/gguf.h"
#include "firn/graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model: immutable, weights stay where they are in the mapped file ---- */

typedef struct firn_model firn_model;

/* Opens and checks everything: architecture (an unknown one is refused with the list of those that are there), every
 * tensor's presence, shape and type; a tensor that the architecture does not ask for refuses the file by name. */
FIRN_API firn_status firn_model_open(firn_context *ctx, const char *path, firn_model **model);
FIRN_API void firn_model_close(firn_model *model);

typedef struct {
    const char *arch; /* "qwen3moe" */
    const char *name; /* general.name, "" when absent */
    int64_t n_vocab, n_embd, n_layer, n_ctx_train;
    int64_t n_expert, n_expert_used; /* 0 for dense models */
    bool tied_output;
} firn_model_info;

FIRN_API const firn_model_info *firn_model_get_info(const firn_model *model);
FIRN_API const firn_gguf *firn_model_gguf(const firn_model *model);
/* The i-th sentence about how llama.cpp differs on this file; NULL past the last. Usually there is none. */
FIRN_API const char *firn_model_warning(const firn_model *model, int i);

/* ---- adapters (LoRA): y += alpha / r * B (A x) on the tensors that are named ---- */

typedef enum {
    FIRN_CLASS_ATTENTION, /* attn_q, attn_k, attn_v, attn_qkv, attn_output, and the projections of latent attention */
    FIRN_CLASS_EXPERTS,   /* ffn_*_exps */
    FIRN_CLASS_SHARED,    /* ffn_*_shexp, ffn_gate_inp_shexp */
    FIRN_CLASS_DENSE,     /* ffn_gate, ffn_up, ffn_down */
    FIRN_CLASS_ROUTER,    /* ffn_gate_inp */
    FIRN_CLASS_OUTPUT,    /* output.weight */
    FIRN_CLASS_COUNT,
    FIRN_CLASS_NONE = FIRN_CLASS_COUNT /* norms, embeddings, biases: never trained */
} firn_class;

FIRN_API const char *firn_class_name(firn_class c); /* "attention", ... */

/* Whether llama.cpp applies an adapter on that tensor. On some it loads one and ignores it without a word, or makes
 * another thing of it. */
FIRN_API bool firn_model_serves(const firn_model *model, const char *tensor);

/* One adapted tensor. Offsets are in floats into the adapter's flat buffers (values, gradients, moments alike). */
typedef struct {
    const char *tensor; /* "blk.3.attn_q.weight" */
    int layer;          /* -1: outside the blocks */
    firn_class class_;
    int64_t n_in, n_out, n_expert; /* n_expert 1 for 2-D weights; heads, where a tensor is a stack of those */
    int64_t rank;
    float scale;  /* alpha / rank */
    int64_t a, b; /* A [n_in, rank, n_expert], B [rank, n_out, n_expert] */
} firn_adapter_entry;

/* Where an adapter comes from, as its file says (keys firn.base.name, firn.base.fingerprint, firn.version, firn.data);
 * "": it does not. */
typedef struct {
    char base_name[128];        /* general.name of the model that it was made for */
    char base_fingerprint[104]; /* which model that is, in whatever weight formats */
    char version[32];           /* of the firn that wrote it */
    char data[72];              /* SHA-256 of the data set that it was trained on */
} firn_adapter_origin;

typedef struct {
    firn_context *ctx;
    char arch[64];
    float alpha;
    firn_adapter_entry *entries; /* by layer, then in the order of the block; a program goes by firn_adapter_entry_at */
    int n_entries;
    int64_t n_values;
    float *values; /* [n_values], 64-byte aligned */
    firn_adapter_origin origin;
} firn_adapter;

/* A fresh adapter: A uniform in +-1/sqrt(n_in) as a function of (seed, tensor), B zero. targets: a comma list of class
 * names, "all", or shell patterns over whole tensor names; NULL: attention + experts, or attention + dense where there
 * are no experts. A class or pattern that matches nothing is an error; so are embeddings, norms, biases named by
 * pattern. */
FIRN_API firn_status firn_adapter_create(firn_context *ctx, const firn_model *model, const char *targets, int64_t rank,
                                         float alpha, uint64_t seed, firn_adapter **adapter);
/* An adapter file (GGUF, as llama.cpp reads it), checked against the model: names, shapes, ranks, the expert dimension.
 * One that says that it was made for another model is refused with both names; other weight formats of one model are
 * the same model. */
FIRN_API firn_status firn_adapter_load(firn_context *ctx, const firn_model *model, const char *path,
                                       firn_adapter **adapter);
/* The same, whatever model it was made for: names and shapes are all that counts. */
FIRN_API firn_status firn_adapter_load_forced(firn_context *ctx, const firn_model *model, const char *path,
                                              firn_adapter **adapter);
/* Written whole or not at all. `values` NULL: the adapter's own; else another flat buffer of its layout (gradients). */
FIRN_API firn_status firn_adapter_save(firn_context *ctx, const firn_adapter *adapter, const float *values,
                                       const char *path);
FIRN_API void firn_adapter_destroy(firn_adapter *adapter);
/* The i-th of adapter->n_entries; NULL past the last. Entries may grow: do not step through them by their size. */
FIRN_API const firn_adapter_entry *firn_adapter_entry_at(const firn_adapter *adapter, int i);

/* ---- sessions: compute with a model and an adapter on a device ---- */

typedef struct firn_session firn_session;

typedef struct {
    size_t size;           /* sizeof(firn_session_params) */
    int64_t n_tokens;      /* most tokens of one pass (windows x context) */
    bool train;            /* gradients will be asked for */
    bool router_losses;    /* those of firn_session_router_losses will be; a dense model has none */
    uint64_t memory_limit; /* bytes of anonymous memory for this session; 0: none */
} firn_session_params;

/* Bytes of anonymous memory, known before anything of it is allocated. */
typedef struct {
    size_t size; /* sizeof(firn_session_memory), set before the call */
    uint64_t arenas, work, adapter, gradients, inputs, head, total;
    uint64_t gathered; /* experts that the file keeps apart at uneven distances: a block in training, and tables */
    uint64_t least;    /* what total would be with the activations of no block kept */
    uint64_t mapped;   /* weights in the file */
    int blocks_kept, blocks;  /* blocks whose activations stay from forward to backward */
    double flops_per_token;   /* of one training (or forward) pass */
    uint64_t weights;         /* copies of weights, in total too: all of them, or the ring's blocks */
    firn_weights_place place; /* of the blocks' weights: see firn_context_set_weights; never AUTO */
    int ring;                 /* streamed: blocks of the ring */
} firn_session_memory;

/* One pass: windows of `context` tokens lie one after the other. */
typedef struct {
    size_t size; /* sizeof(firn_batch) */
    int64_t n_tokens;
    const int32_t *tokens;   /* [n_tokens] */
    const int32_t *targets;  /* [n_tokens] the next token to predict here, or -1 */
    const int32_t *position; /* [n_tokens] for RoPE: counts from 0 in each document */
    const int32_t *first;    /* [n_tokens] index in this pass of the first token of this token's document */
    float router_weight[2];  /* what the router's losses of this pass count in firn_session_gradient: balance and z */
} firn_batch;

/* adapter may be NULL (then not for training). Its values are brought to the device here, and by firn_session_push; a
 * device that uses the host's memory in place, as the CPU, reads them at every pass. Model and adapter must outlive the
 * session, and the adapter be of the model's architecture and shapes. The device may be closed before. Fails in words
 * when the limit is too small, saying the least that would do. */
FIRN_API firn_status firn_session_create(firn_context *ctx, firn_device *device, const firn_model *model,
                                         firn_adapter *adapter, const firn_session_params *params,
                                         firn_session **session);
FIRN_API void firn_session_destroy(firn_session *session);
/* The plan alone: what firn_session_create would take. */
FIRN_API firn_status firn_session_plan(firn_context *ctx, firn_device *device, const firn_model *model,
                                       const firn_adapter *adapter, const firn_session_params *params,
                                       firn_session_memory *memory);

/* Sum over targets of -log p, in double, in a fixed order; *n_targets counts them. Where something is not finite (here
 * and in firn_session_gradient; gradients are looked at by firn_optimizer_step) the pass is run again node by node, and
 * the error names block, tensor and index. */
FIRN_API firn_status firn_session_loss(firn_session *session, const firn_batch *batch, double *loss,
                                       int64_t *n_targets);
/* Forward and backward: adds weight * d(sum of losses)/d(adapter) to the session's gradients; loss as above. With
 * router_losses also router_weight * d(sum over the expert blocks of the router's losses)/d(adapter). */
FIRN_API firn_status firn_session_gradient(firn_session *session, const firn_batch *batch, float weight, double *loss,
                                           int64_t *n_targets);
/* A copy of the gradients as they are now, [adapter->n_values]: the session's, until the next call. NULL without
 * gradients, or where they could not be read. */
FIRN_API const float *firn_session_gradients(firn_session *session);
FIRN_API void firn_session_zero_gradients(firn_session *session);
/* After adapter->values were written: brings them to the device. Before they are read, where an optimizer has stepped:
 * brings them back. On a device that uses them in place neither does anything. */
FIRN_API firn_status firn_session_push(firn_session *session);
FIRN_API firn_status firn_session_pull(firn_session *session);
/* logits [n_vocab, n_tokens] to host memory; some that are not finite are an error that names the block or the token.
 */
FIRN_API firn_status firn_session_logits(firn_session *session, const firn_batch *batch, float *logits);
/* Tokens routed to each expert since the last reset, [n_layer][n_expert]; counted by loss, gradient and logits. NULL
 * for dense models. */
FIRN_API int64_t *firn_session_expert_load(firn_session *session);
/* Of the last pass, the sums over the expert blocks, unweighted: losses[0] of ROUTER_BALANCE, losses[1] of ROUTER_Z
 * (see firn_router_balance and firn_router_z; 1 and the square of a logit's size where all is well). *n_blocks counts
 * the blocks; 0 without router_losses. */
FIRN_API void firn_session_router_losses(const firn_session *session, double losses[2], int64_t *n_blocks);

/* ---- generation: a key/value cache of n_ctx tokens ---- */
typedef struct firn_generator firn_generator;

/* n_ctx tokens fit; their cache is allocated at once, F32. Blocks with a window keep the last few hundred tokens more
 * than the window alone. adapter may be NULL. Model and adapter must outlive the generator, and the adapter's
 * values are read at every feed. */
FIRN_API firn_status firn_generator_create(firn_context *ctx, firn_device *device, const firn_model *model,
                                           firn_adapter *adapter, int64_t n_ctx, firn_generator **generator);
FIRN_API void firn_generator_destroy(firn_generator *generator);
/* Appends tokens to the cache; *logits [n_vocab] of the last one belongs to the generator until the next call. Logits
 * that are not finite are an error, the tokens stay appended then. What fails otherwise forgets these tokens, and may
 * forget those before: firn_generator_length says how many are left. */
FIRN_API firn_status firn_generator_feed(firn_generator *generator, const int32_t *tokens, int64_t n,
                                         const float **logits);
FIRN_API int64_t firn_generator_length(const firn_generator *generator);
FIRN_API void firn_generator_reset(firn_generator *generator);
/* Forgets all tokens but the first n, and returns how many are left, the others are to be fed again: n or the length,
 * whichever is less; but 0 where blocks with a window have let go of what token n would see there (they let go of none
 * of the last 128 tokens' and their windows). Where blocks carry a state (gated delta nets, Mamba 2, short
 * convolutions) that goes back to before the last tokens that were fed several at a time, of one feed the last 128 or
 * fewer: as many are left as were there then, or 0 where n is less. */
FIRN_API int64_t firn_generator_truncate(firn_generator *generator, int64_t n);
/* Bytes of the cache for n_ctx tokens; 0 where there can be none. */
FIRN_API uint64_t firn_generator_cache_bytes(const firn_model *model, int64_t n_ctx);

#ifdef __cplusplus
}
#endif
#endif
