/* A run of several ranks: what each does, and what they tell each other. Alone, all of it does nothing.
 *
 * Every rank opens model, data and adapter, takes its passes of each step (train/reduce.h) and steps the same optimizer
 * on the same sums; evaluations are dealt out pass by pass. Rank 0 alone talks, locks and writes. Where ranks could
 * come apart they agree (core/group.h): what fails on one fails on all, with its sentence.
 *
 * Called by train/run.c and step.c. */
#ifndef FIRN_TRAIN_RANKS_H
#define FIRN_TRAIN_RANKS_H

#include "train/run.h"

/* Opens the group that the launcher says; other ranks than 0 are silent from here, and threads are divided. */
firn_status firn_run_join(firn_run *run);
/* firn_group_agree of the run's group. */
firn_status firn_run_agree(firn_run *run, firn_status mine);
static inline bool firn_run_first(const firn_run *run)
{
    return firn_group_first(run->group);
}
/* Model, data, options and kernels are the same on all ranks, or the error says which are not. */
firn_status firn_run_compare(firn_run *run);
/* Says who does what. */
firn_status firn_run_say_ranks(const firn_run *run);
/* Where rank 0 stands after reading a checkpoint, or not: position, values and moments on every rank. */
firn_status firn_run_share_position(firn_run *run);
/* Counts of the session's expert load of all ranks, on rank 0; the others begin again from zero. */
firn_status firn_run_sum_load(firn_run *run);

#endif
