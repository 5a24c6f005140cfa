/* What a model does before and after training, for the report: a few answers, and where its tokens are routed. */
#ifndef FIRN_TRAIN_WITNESS_H
#define FIRN_TRAIN_WITNESS_H

#include "train/run.h"

enum { FIRN_TALKS = 3, FIRN_TALK_TOKENS = 40 };

typedef struct {
    char *prompt, *expected, *answer; /* bytes that may not be UTF-8 */
} firn_talk;

typedef struct {
    firn_context *ctx;
    firn_talk talks[FIRN_TALKS];
    int n_talks;
    int64_t n_layer, n_expert;
    int64_t *load; /* [n_layer][n_expert] slots routed; NULL for dense models */
} firn_witness;

/* Lets the model with the run's adapter answer prompts of the evaluation samples (of training samples where there are
 * none). Its key/value cache is gone when it returns. Logits that are not finite are FIRN_ERR_DEVICE when `last`;
 * before that they end the talk, since a step follows that says more. */
firn_status firn_witness_talk(firn_run *run, firn_witness *witness, bool last);
/* Evaluates and keeps the load of each expert; without evaluation data the first windows of the training data are run,
 * and *loss is NAN. `last` as above. */
firn_status firn_witness_evaluate(firn_run *run, firn_witness *witness, bool last, double *loss);
void firn_witness_clear(firn_witness *witness);

/* For before.json. Bytes that are no UTF-8 are replaced. */
json_t *firn_witness_to_json(const firn_witness *witness);
firn_status firn_witness_from_json(firn_context *ctx, const json_t *json, firn_witness *witness);

#endif
