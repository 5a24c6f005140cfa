/* The course of a run: the checkpoints along it, the best of its evaluations, and when it has had enough or must go
 * back.
 *
 * Best is the least evaluation loss among those that come by steps (or at the end): what a clock calls for chooses
 * nothing, so that a result does not depend on the machine. It lies beside the checkpoints as the adapter's values
 * alone. With --patience N a run ends after N such evaluations in a row that were no better.
 *
 * A run diverges where a loss or gradient is not finite, or where the running mean of the losses (nine parts of what it
 * was and one of the new) is above one and a half times its least so far and one more, behind
 * step 20. Then it stops, or with
 * --on-divergence rewind goes back to a checkpoint from before, leaves out the data since, and goes on at half the
 * learning rate; the checkpoint that it begins again from is written anew and says so.
 *
 * Called by train/run.c. */
#ifndef FIRN_TRAIN_COURSE_H
#define FIRN_TRAIN_COURSE_H

#include "train/run.h"

/* A checkpoint of where the run is. */
firn_status firn_run_save(firn_run *run);
/* False where a run that would go back may be about to: halfway to the limit it writes no checkpoint that is merely
 * due, which would push out those from before. */
bool firn_run_may_save(const firn_run *run);
/* Goes to the newest checkpoint that can be read; where there is none, stays at the start. */
firn_status firn_run_load_newest(firn_run *run);

/* Whether it is time: by steps, or by the clock of the first rank, which then begins anew. */
firn_status firn_run_due(firn_run *run, int64_t every, double *since, bool *due);

/* An evaluation that chooses came out so (NAN: there is nothing to evaluate on). */
firn_status firn_run_choose(firn_run *run, double eval_loss);
/* --patience is at its end. */
bool firn_run_had_enough(const firn_run *run);
/* Before the run ends: the best adapter takes the place of the last, unless --final last. */
firn_status firn_run_take_best(firn_run *run);

/* The loss of the step that was just done; FIRN_ERR_DEVICE where the run diverges with it. */
firn_status firn_run_follow(firn_run *run, double loss);
/* What to do about a step that failed, or diverged: `failed` again, with its sentence, or with --on-divergence rewind
 * FIRN_OK, and the run is where it went back to. */
firn_status firn_run_diverged(firn_run *run, firn_status failed);

#endif
