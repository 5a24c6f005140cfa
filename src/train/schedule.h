/* How large a step is: the learning rate of a step and the clipping of its gradient. */
#ifndef FIRN_TRAIN_SCHEDULE_H
#define FIRN_TRAIN_SCHEDULE_H

#include "core/context.h"

typedef enum {
    FIRN_SCHEDULE_COSINE,
    FIRN_SCHEDULE_LINEAR,
    FIRN_SCHEDULE_CONSTANT,
} firn_schedule_kind;

typedef struct {
    firn_schedule_kind kind;
    double learning_rate; /* the highest */
    int64_t warmup;       /* steps of warm-up, 0: none */
    int64_t steps;        /* of the whole run */
} firn_schedule;

/* "cosine", "linear", "constant"; another name is refused with these. */
firn_status firn_schedule_from_name(firn_context *ctx, const char *name, firn_schedule_kind *kind);
/* Of step s, counted from 1. */
double firn_schedule_rate(const firn_schedule *schedule, int64_t s);

/* The factor that brings a gradient of this L2 norm to at most `clip`; 1 when clip is 0 (none) or the norm is smaller.
 */
float firn_clip_factor(double norm, double clip);

#endif
