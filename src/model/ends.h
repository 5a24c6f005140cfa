/* The two ends of a model: the embedding in front of the blocks, and the head behind them.
 *
 *     x[:,t] = embedding_scale token_embd[:, tokens[t]]
 *     h = output_norm(x[:, pick[i]]);  logits[:,i] = (output h (+ LoRA)) / logit_scale
 *     loss[i] = -log softmax(logits[:,i])[target[i]]
 *
 * Where each block has inputs of its own, P values of a token (per_layer_* in the file):
 *
 *     p[:,l,t] = (norm(layer_proj x[:,t] / sqrt(n_embd))[block l] + sqrt(P) layer_embd[:, tokens[t]][block l]) / sqrt(2)
 *
 * The head works on `chunk` picked rows at a time, so that logits [n_vocab, n_tokens] never exist whole, and tokens
 * without a target cost nothing. Rows that fill up the last chunk pick row n_tokens, which is there for them. The chunk
 * depends on the model alone (firn_head_chunk): what is summed over chunks has the same bits under any memory limit. */
#ifndef FIRN_MODEL_ENDS_H
#define FIRN_MODEL_ENDS_H

#include "model/weights.h"

typedef struct {
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    firn_tensor *table;                                 /* token_embd */
    firn_tensor *tokens;                                /* I32 [n_tokens] */
    firn_tensor *layer_table, *layer_proj, *layer_norm; /* NULL: blocks have no inputs of their own */
    firn_tensor *x;                                     /* output [d, n_tokens] */
    firn_tensor *inputs;                                /* output [P, n_tokens, n_layer], or NULL */
} firn_embedding;

typedef enum {
    FIRN_HEAD_LOGITS,
    FIRN_HEAD_LOSS,
    FIRN_HEAD_GRADIENT, /* part 0 gives the loss, part 1 the gradient */
} firn_head_task;

typedef struct {
    firn_graph *graph;
    firn_plan *plan;
    firn_exec *exec;
    const firn_adapter_entry *entry; /* of the output, or NULL */
    int64_t rows, chunk;
    /* slots */
    firn_tensor *x;       /* [d, rows] */
    firn_tensor *pick;    /* I32 [chunk] rows of x */
    firn_tensor *targets; /* I32 [chunk] */
    firn_tensor *norm, *output, *factor, *bias, *a, *b;
    firn_tensor *dloss; /* [chunk] */
    firn_tensor *dx;    /* [d, rows], whose picked rows are written; NULL when nobody wants it */
    firn_tensor *da, *db;
    /* outputs */
    firn_tensor *logits; /* [n_vocab, chunk] */
    firn_tensor *loss;   /* [chunk] */
} firn_head;

firn_status firn_embedding_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t n_tokens,
                                  firn_embedding **embedding);
void firn_embedding_destroy(firn_context *ctx, firn_embedding *embedding);
/* Weights. */
firn_status firn_embedding_bind(firn_embedding *embedding, const firn_weights *weights);

/* Rows of a chunk for passes of n_tokens. */
int64_t firn_head_chunk(const firn_model *model, int64_t n_tokens);
firn_status firn_head_create(firn_context *ctx, firn_device *device, const firn_model *model,
                             const firn_adapter_entry *entry, int64_t rows, int64_t chunk, firn_head_task task, bool dx,
                             firn_head **head);
void firn_head_destroy(firn_context *ctx, firn_head *head);
/* Weights, and the adapter's factors from its flat buffer of values; gradients NULL where there are none. */
firn_status firn_head_bind(firn_head *head, const firn_weights *weights, firn_buffer *values, firn_buffer *gradients);

#endif
