/* Checkpoints: everything that a run needs to go on with the same bits. */
#ifndef FIRN_TRAIN_CHECKPOINT_H
#define FIRN_TRAIN_CHECKPOINT_H

#include "core/context.h"
#include "model/parameters.h"

/* How a run has gone so far: see train/course.h. All zero in a run that has not begun. */
typedef struct {
    double best_step, best_loss; /* the best evaluation of those that choose; step 0: there was none */
    double stale;                /* evaluations since that were no better */
    double rewinds;              /* how often it went back */
    double mean, least_mean;     /* of the losses of steps, a running mean, and its least so far; 0: none yet */
} firn_course;
enum { FIRN_COURSE_NUMBERS = sizeof(firn_course) / sizeof(double) };

/* Where a run stands after `step`. There is no random state besides: what is drawn is a function of (seed, epoch). */
typedef struct {
    int64_t step;
    int64_t epoch, window;              /* the window that comes next */
    int64_t metrics_bytes;              /* of metrics.jsonl up to here */
    double seconds;                     /* of training so far */
    double eval_loss_before, eval_loss; /* NAN where there was none */
    firn_course course;
} firn_position;

/* Writes DIR/step-<step>.gguf whole or not at all, then removes all but the `keep` newest. `settings`: what decides the
 * run's result, a line each. Values that no training could have left (not finite; a negative v) are refused. */
firn_status firn_checkpoint_write(firn_context *ctx, const char *folder, firn_parameters *store,
                                  const firn_position *position, const char *settings, int64_t keep);
/* The newest checkpoint before `below` in the folder; *step -1 when there is none, also where there is no folder. */
firn_status firn_checkpoint_newest(firn_context *ctx, const char *folder, int64_t below, int64_t *step);
/* The adapter's values alone, as DIR/best-<step>.gguf; then removes such files of other steps than this and `other`. */
firn_status firn_checkpoint_write_best(firn_context *ctx, const char *folder, firn_parameters *store,
                                       const firn_position *position, const char *settings, int64_t other);
/* Those of that step into the store. */
firn_status firn_checkpoint_read_best(firn_context *ctx, const char *folder, int64_t step, firn_parameters *store);
/* Removes the best of all steps but `step`. */
void firn_checkpoint_keep_best(const char *folder, int64_t step);
/* Removes the checkpoints behind `step`, newest first. */
firn_status firn_checkpoint_drop_behind(firn_context *ctx, const char *folder, int64_t step);
/* Removes what killed writers left. The caller holds the lock of the run: nobody else writes there. */
void firn_checkpoint_sweep(const char *folder);
/* The next line of a checkpoint's firn.layout from *at on, which moves behind it: a tensor that is adapted, its name
 * with a NUL in tensor [FIRN_MAX_NAME], the rank, and the scale, 0 where it is alpha / rank. Lines that are none are
 * passed over; false at the end. */
bool firn_checkpoint_layout_next(firn_string layout, size_t *at, char *tensor, int64_t *rank, float *scale);
/* The adapter's values alone, from an open checkpoint into an adapter of its layout; whole and finite, or refused. */
firn_status firn_checkpoint_adapter(firn_context *ctx, const firn_gguf *gguf, firn_adapter *adapter);
/* Into a store whose adapter has the same layout, and whose optimizer the same moments (others are refused). A file
 * whose hash or values are wrong is FIRN_ERR_FORMAT and leaves everything as it was; one that was written with other
 * settings is FIRN_ERR_ARGUMENT. */
firn_status firn_checkpoint_read(firn_context *ctx, const char *folder, int64_t step, firn_parameters *store,
                                 firn_position *position, const char *settings);

#endif
