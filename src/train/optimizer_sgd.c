/* Stochastic gradient descent (op/optimizer.c): p -= lr (g + decay p). */
#include "train/optimizer.h"

#include <string.h>

static void fill(const firn_optimizer_params *p, double t, float learning_rate, float *hyper)
{
    (void)t;
    memcpy(hyper, (float[]){learning_rate, p->weight_decay}, 2 * sizeof *hyper);
}

static void add(const firn_optimizer_build *b)
{
    firn_named(firn_opt_step_sgd(b->graph, firn_optimizer_part(b, FIRN_PARAMETERS_VALUES),
                                 firn_optimizer_part(b, FIRN_PARAMETERS_GRADIENTS), b->hyper),
               "sgd");
}

const firn_optimizer_rule firn_optimizer_sgd = {.name = "sgd", .n_hyper = 3, .fill = fill, .add = add};
