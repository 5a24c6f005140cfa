/* NEFTune (Jain et al. 2024): while training, uniform noise on the embeddings,
 *
 *     x[:, t] += alpha / sqrt(L d) u        u in +-1 for each element, L the tokens of the sample that t is of
 *
 * as a function of (seed, step, pass): an interrupted run, and one of several ranks, draws the same. Evaluations have
 * none. Called by train/step.c. */
#ifndef FIRN_TRAIN_NEFTUNE_H
#define FIRN_TRAIN_NEFTUNE_H

#include "train/data.h"

/* Of a pass's samples into noise [d, n_tokens]: columns from its own on are zero. */
void firn_neftune_fill(const firn_pass *pass, double alpha, uint64_t seed, int64_t step, int64_t number, int64_t d,
                       int64_t n_tokens, float *noise);

#endif
