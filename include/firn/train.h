/* Fine-tuning: from a model and a data set to an adapter, in a folder that survives interruption.
 *
 *     DIR/run.json        everything that decides the result: options, model, data, kernel set; makes a folder a run
 *     DIR/metrics.jsonl   one object a step
 *     DIR/checkpoints/    step-00000040.gguf, ...: adapter, optimizer, data position; best-00000030.gguf: adapter
 *     DIR/before.json     what the model did before training: generations, expert load (for the report)
 *     DIR/adapter.gguf    the result, as llama.cpp loads it
 *     DIR/report.html     a page for people, written anew at each evaluation
 *     DIR/latest.json     expert load of the newest evaluation, at the end with answers (for firn watch)
 *     DIR/events.out.tfevents.*   the same numbers as metrics.jsonl, for TensorBoard
 *
 * Adapter, optimizer and metrics (but timings and memory) are the same bits for any number of threads, memory limit,
 * interruption and repetition on one kernel set. */
#ifndef FIRN_TRAIN_H
#define FIRN_TRAIN_H

#include "firn/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every field has the name of its option on the command line. An unset one (NULL, NAN, FIRN_UNSET) takes its default,
 * or, in a resumed run, what the run was started with. */
#define FIRN_UNSET INT64_MIN
/* For save_every and eval_every: after n seconds in place of n steps. */
#define FIRN_SECONDS(n) (-(int64_t)(n))

/* Texts of an option that may be given several times; the caller keeps them. */
typedef struct {
    const char *const *items;
    int n;
} firn_strings;

/* FIRN_STRINGS("a.jsonl", "b.jsonl:2"); valid to the end of the block that it stands in. */
#define FIRN_STRINGS(...)                                                                                              \
    ((firn_strings){(const char *const[]){__VA_ARGS__},                                                                \
                    (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))})

typedef struct {
    size_t size; /* sizeof(firn_train_options): firn_train_options_init sets it */
    const char *model, *output;
    firn_strings data;        /* files, folders, "-", each perhaps with a weight: "a.jsonl:2" (docs/data.md) */
    const char *eval_data;    /* likewise; takes the place of eval_split */
    const char *adapter;      /* an adapter to go on from */
    const char *targets;      /* see firn_adapter_create */
    bool unserved;            /* also on tensors whose adapters llama.cpp does not apply */
    const char *optimizer;    /* adamw, sgd, muon */
    const char *schedule;     /* cosine, linear, constant, inverse-sqrt, wsd */
    const char *device;       /* "CPU" */
    const char *precision;    /* "f32" or "bf16" (firn_precision) */
    const char *memory_limit; /* "6G" */
    double eval_split;        /* part of the samples that is held back */
    double epochs, learning_rate, weight_decay, clip, alpha;
    double router_aux_loss, router_z_loss; /* coefficients of the router's losses; 0: none */
    int64_t steps;                         /* 0 or unset: by epochs */
    int64_t context;                       /* tokens of a window */
    int64_t batch;                         /* windows of a forward pass */
    int64_t accumulate;
    int64_t warmup, rank, seed, save_every, eval_every, keep;
    const char *reasoning, *loss; /* see firn_language_options */
    const char *format;           /* "auto", "chat", ...: see firn/data.h */
    firn_strings field;           /* "messages=dialog" */
    int64_t skip_bad;             /* bad lines that are passed over */
    const char *cache;            /* folder of the token cache, or "none" */
    const char *weights;  /* "mapped", "resident", "streamed", "streamed:2G": see firn_context_set_weights_text */
    int64_t expert_rank;  /* of stacks of experts; unset: rank / experts used, 4 at least */
    firn_strings rank_of; /* "experts=8", "blk.*.attn_q.weight=32": the last that matches counts */
    firn_strings learning_rate_of; /* "router=1e-5": the last that matches counts */
    double loraplus;               /* B's rate over A's; unset: 1 */
    bool rslora;                   /* scale alpha / sqrt(a tensor's rank); else alpha / rank for all */
    bool force;                    /* `adapter` may have been made for another model */
    int64_t patience;          /* evaluations in a row that are no better, after which the run ends; 0: it does not */
    const char *final;         /* "best": adapter.gguf is the best by evaluation; "last" */
    double neftune;            /* noise on the embeddings of training passes; unset: none */
    const char *on_divergence; /* "stop", or "rewind": back to a checkpoint from before */
} firn_train_options;

/* Everything unset, of a struct of `size` bytes; what lies behind the fields that the library knows is zero. */
FIRN_API void firn_train_options_init_sized(firn_train_options *options, size_t size);
static inline void firn_train_options_init(firn_train_options *options)
{
    firn_train_options_init_sized(options, sizeof *options);
}

typedef struct {
    size_t size;                           /* sizeof(firn_progress) of the library */
    int64_t step, steps, tokens;           /* tokens of this step, padding not counted */
    double loss, eval_loss;                /* eval_loss: the last one, NAN before the first */
    double router_aux_loss, router_z_loss; /* means over the expert blocks, unweighted; NAN where not asked for */
    double learning_rate, grad_norm, tokens_per_second;
    double seconds, seconds_left;
    uint64_t memory; /* anonymous bytes of the process now */
} firn_progress;

/* How a run talks to whoever started it. Every function may be NULL. */
typedef struct {
    size_t size; /* sizeof(firn_watch) */
    void *user;
    void (*say)(void *user, const char *line);                   /* a sentence for people: plan, notes, warnings */
    void (*progress)(void *user, const firn_progress *progress); /* after each step */
    bool (*stop)(void *user); /* asked between the blocks of a step; true: stop with a
                               * checkpoint of what the whole steps left */
} firn_watch;

typedef struct {
    size_t size;                        /* sizeof(firn_train_result), set before the call */
    bool finished;                      /* false: stopped on request */
    bool was_finished;                  /* a resumed run had nothing left to do */
    int64_t step;                       /* how far it came */
    double loss;                        /* of the last step that this call made; NAN: it made none */
    double eval_loss_before, eval_loss; /* NAN where there is none */
    char adapter[4096], report[4096];
    int rank; /* of this process among those that train together: 0 wrote all there is, and the others nothing */
    int64_t adapter_step; /* whose adapter the finished run leaves: the best's, or the last */
} firn_train_result;

enum {
    FIRN_TRAIN_DRY_RUN = 1, /* plan, memory, estimated time; nothing is written */
    FIRN_TRAIN_PROFILE = 2, /* time by operation, said at the end */
};

/* A new run. Started by mpirun or srun, the processes train together (docs/ranks.md): each makes the same call.
 * The output folder must not hold one yet. FIRN_ERR_CANCELLED is never returned: see result->finished. */
FIRN_API firn_status firn_train(firn_context *ctx, const firn_train_options *options, int flags,
                                const firn_watch *watch, firn_train_result *result);
/* Goes on with the run in `folder`. Of options, steps, epochs, memory_limit, weights, cache, save_every, eval_every,
 * patience, final and on_divergence may be set. */
FIRN_API firn_status firn_train_resume(firn_context *ctx, const char *folder, const firn_train_options *options,
                                       int flags, const firn_watch *watch, firn_train_result *result);

typedef struct {
    size_t size; /* sizeof(firn_eval_result), set before the call */
    int64_t samples, tokens, target_tokens;
    double loss, perplexity;
} firn_eval_result;

/* Loss of a data set. Unset options: context 512 or the model's, batch 4. Uses model, data, adapter, context, batch,
 * device, precision, memory_limit, weights. */
FIRN_API firn_status firn_eval(firn_context *ctx, const firn_train_options *options, const firn_watch *watch,
                               firn_eval_result *result);

/* ---- a training loop of one's own: firn_session_gradient, then a step ---- */

typedef enum { FIRN_OPTIMIZER_ADAMW, FIRN_OPTIMIZER_SGD, FIRN_OPTIMIZER_MUON } firn_optimizer_kind;

typedef struct {
    size_t size; /* sizeof(firn_optimizer_params): firn_optimizer_params_init sets it */
    firn_optimizer_kind kind;
    float beta1, beta2, eps; /* AdamW's */
    float weight_decay;      /* decoupled: p -= lr decay p */
    float clip;              /* largest norm of the gradients that is taken as it is; 0: any */
} firn_optimizer_params;

typedef struct firn_optimizer firn_optimizer;

/* AdamW with 0.9, 0.999, 1e-8, without decay and clipping, in a struct of `size` bytes. */
FIRN_API void firn_optimizer_params_init_sized(firn_optimizer_params *params, size_t size);
static inline void firn_optimizer_params_init(firn_optimizer_params *params)
{
    firn_optimizer_params_init_sized(params, sizeof *params);
}
/* On the values and gradients of a session that was made with train, where they lie; params NULL: as above. It may
 * outlive the session. */
FIRN_API firn_status firn_optimizer_create(firn_session *session, const firn_optimizer_params *params,
                                           firn_optimizer **optimizer);
FIRN_API void firn_optimizer_destroy(firn_optimizer *optimizer);
/* One step with the session's gradients, which stay: firn_session_zero_gradients comes before the next ones. *norm:
 * their L2 norm before clipping. One that is not finite is FIRN_ERR_DEVICE, and nothing is changed. The new values are
 * on the device; firn_session_pull brings them to adapter->values. */
FIRN_API firn_status firn_optimizer_step(firn_optimizer *optimizer, float learning_rate, double *norm);

#ifdef __cplusplus
}
#endif
#endif
