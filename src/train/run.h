/* A run from inside: what setup.c puts together, step.c moves on, and run.c tells the story with. */
#ifndef FIRN_TRAIN_RUN_H
#define FIRN_TRAIN_RUN_H

#include "core/group.h"
#include "core/lock.h"
#include "train/checkpoint.h"
#include "train/data.h"
#include "train/events.h"
#include "train/language.h"
#include "train/optimizer.h"
#include "train/record.h"
#include "train/reduce.h"
#include "train/schedule.h"

/* What a pass of a step gave. */
typedef struct {
    double loss, router[2]; /* router: balance and z, weighed by the pass's share of the step's tokens */
} firn_pass_result;

/* The passes of a step: what is in them, and what came out. */
typedef struct {
    int32_t *samples;           /* of pass i: [begin[i], begin[i + 1]) */
    int64_t *begin;             /* [passes + 1] */
    int64_t *tokens;            /* [passes] */
    firn_pass_result *results;  /* [passes] */
    firn_pass_result *gathered; /* [ranks + 1][most passes of a rank]: of all ranks, and what this one sends */
} firn_step_list;

typedef struct {
    firn_context *ctx;
    firn_watch watch; /* functions may be NULL */
    int flags;
    char folder[FIRN_PATH_BYTES];
    firn_lock *lock;  /* of the folder */
    size_t made;      /* what of its path this run made; see firn_make_folder */
    firn_arena arena; /* texts of the options */
    firn_run_record record;
    uint64_t present;       /* anonymous memory before the adapter: vocabulary and data */
    uint64_t memory_limit;  /* of the process; 0: none */
    uint64_t session_limit; /* the session's share of it */

    firn_device *device;
    firn_model *model;
    firn_language *language;
    firn_adapter *adapter;
    firn_optimizer *optimizer;
    firn_session *session;

    firn_data *data, *eval_data; /* eval_data NULL: `held` of data, if any */
    firn_sample_list train, held;
    firn_packing packing; /* of the epoch `packed` */
    int64_t packed;       /* -1: none */
    firn_packing held_packing;
    firn_pass pass;

    firn_group *group; /* those who train together; NULL or of size 1: this process alone */
    firn_reduction *reduction;
    firn_step_list listed; /* of the step that runs */

    bool evaluates; /* firn_eval: nothing is trained */
    bool fresh;     /* a new run: what its options leave open is decided now */

    firn_schedule schedule;
    int64_t steps_before; /* of a resumed run, as it was; 0: a new one */
    firn_position at;
    double last_loss; /* of the last step; NAN before the first of this process */
    firn_metrics metrics;
    firn_events events;
    bool metrics_failed; /* and that was said */

    /* train/course.h */
    firn_position ahead;     /* where the next step would begin had the one that runs been done */
    int64_t best_kept;       /* the step of the best that the newest checkpoint names; 0: none */
    int64_t adapter_step;    /* whose adapter the run leaves */
    double saved, evaluated; /* when by the clock */
} firn_run;

typedef struct {
    double loss, grad_norm, learning_rate;
    double router[2]; /* balance and z, means over the expert blocks; NAN where not asked for */
    int64_t tokens, target_tokens;
    double seconds;
} firn_step_result;

/* ---- run.c ---- */

/* A log never stops the work: what goes wrong with it is said once. */
firn_status firn_run_forgive(firn_run *run, firn_status s);

/* ---- setup.c ---- */

/* Whoever watches (NULL: nobody), in our form. */
firn_status firn_run_watched_by(firn_run *run, const firn_watch *watch);

/* Says a sentence to whoever watches. */
void firn_run_say(const firn_run *run, const char *format, ...) FIRN_PRINTF(2, 3);
/* Says a text that was put together, or returns why it could not be; frees it. */
firn_status firn_run_say_text(const firn_run *run, firn_text *text);
/* Whether whoever watches wants the run to stop with a checkpoint. */
bool firn_run_stop_wanted(const firn_run *run);
/* Decides the tokens of a window and checks them and the size of a pass against the model, which must be open. */
firn_status firn_run_context(firn_run *run);
/* Opens the model, reads the data, makes the adapter; with record.options set by the caller. */
firn_status firn_run_open(firn_run *run);
/* Decides what depends on data and model: steps, warm-up, how often to save and evaluate. */
firn_status firn_run_decide(firn_run *run);
/* Bytes of training outside the session: what is present, optimizer, the pass being put together. */
uint64_t firn_run_outside_bytes(const firn_run *run);
/* Says what will be trained and what memory it takes; fails when the limit is too small. */
firn_status firn_run_plan(firn_run *run);
/* Bytes that the run's folder may take: the adapter, and one checkpoint more than are kept, since the new one is there
 * before the oldest goes. */
uint64_t firn_run_disk_bytes(const firn_run *run);
/* The device memory of training: session and optimizer. */
firn_status firn_run_prepare(firn_run *run);
void firn_run_close(firn_run *run);

/* ---- say_data.c ---- */

/* Says what the data is, what was passed over or dropped, how long its samples are, what is held back. */
firn_status firn_run_say_data(const firn_run *run);

/* ---- need.c ---- */

/* What training with these options would take, without data. */
typedef struct {
    int64_t context, batch, rank, expert_rank;
    int64_t n_values, values[FIRN_CLASS_COUNT]; /* trained, in all and by class */
    uint64_t total, least;                      /* bytes beside the data; with no block's activations kept */
    uint64_t mapped;                            /* weights in the file */
    firn_session_memory session;                /* of which total has the rest; where weights are */
} firn_training_need;

firn_status firn_training_need_of(firn_context *ctx, const firn_train_options *options, firn_training_need *need);

/* ---- step.c ---- */

/* The windows of an epoch; the packing belongs to the run until the next call. */
firn_status firn_run_pack(firn_run *run, int64_t epoch);
/* Memory for the passes of a step; when options are decided. */
firn_status firn_run_list_create(firn_run *run);
void firn_run_list_destroy(firn_run *run);
/* One optimizer step: at.step + 1. Its gradients stay in the session until the next. A loss or gradient that is not
 * finite fails, naming step, sample and tensor; the adapter is then as before the step. */
firn_status firn_run_step(firn_run *run, firn_step_result *result);

typedef struct {
    double loss; /* sum over the targets */
    int64_t tokens, target_tokens;
} firn_loss_sum;

/* The loss of all windows of a packing, in passes of `batch` windows. Expert load is counted from zero. Of
 * several ranks each takes passes in turn; the sum is all ranks', the load each one's own. */
firn_status firn_packing_loss(firn_session *session, firn_group *group, const firn_data *data,
                              const firn_packing *packing, int64_t batch, firn_pass *pass, firn_loss_sum *sum);
/* Mean loss over the evaluation data; NAN when there is none. */
firn_status firn_run_evaluate(firn_run *run, double *loss);

#endif
