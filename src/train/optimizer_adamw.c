/* AdamW (Loshchilov & Hutter 2019; op/optimizer.c):
 *
 *     m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *     p -= lr (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay p) */
#include "train/optimizer.h"

#include <math.h>
#include <string.h>

/* The bias corrections in double: 1 - beta^t has few digits left in float at the first steps. */
static void fill(const firn_optimizer_params *p, double t, float learning_rate, float *hyper)
{
    const float all[] = {learning_rate,
                         p->beta1,
                         p->beta2,
                         p->eps,
                         p->weight_decay,
                         (float)(1 / (1 - pow((double)p->beta1, t))),
                         (float)(1 / (1 - pow((double)p->beta2, t)))};
    memcpy(hyper, all, sizeof all);
}

static void add(const firn_optimizer_build *b)
{
    firn_named(firn_opt_step_adamw(b->graph, firn_optimizer_part(b, FIRN_PARAMETERS_VALUES),
                                   firn_optimizer_part(b, FIRN_PARAMETERS_GRADIENTS),
                                   firn_optimizer_part(b, FIRN_PARAMETERS_M), firn_optimizer_part(b, FIRN_PARAMETERS_V),
                                   b->hyper),
               "adamw");
}

const firn_optimizer_rule firn_optimizer_adamw = {.name = "adamw",
                                                  .part = {FIRN_PARAMETERS_M, FIRN_PARAMETERS_V},
                                                  .n_parts = 2,
                                                  .n_hyper = 8,
                                                  .fill = fill,
                                                  .add = add};
