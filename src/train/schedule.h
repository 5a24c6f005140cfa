/* How large a step is: the learning rate of a step and the clipping of its gradient.
 *
 * With lr the highest rate, w steps of warm-up, n steps in all, the rate of step s, counted from 1, is
 *
 *     s <= w     lr s / w
 *     s > w      lr f(s)            f of the schedule, 1 at step w + 1 or just below: src/train/schedule_<id>.c
 *
 * schedules.def lists them. Called by train/step.c and setup.c. */
#ifndef FIRN_TRAIN_SCHEDULE_H
#define FIRN_TRAIN_SCHEDULE_H

#include "core/context.h"

typedef struct firn_schedule firn_schedule;

typedef struct {
    const char *name;
    double (*part)(const firn_schedule *schedule, int64_t s); /* of the highest rate, at a step behind the warm-up */
} firn_schedule_rule;

struct firn_schedule {
    const firn_schedule_rule *rule;
    double learning_rate; /* the highest */
    int64_t warmup;       /* steps of warm-up, 0: none */
    int64_t steps;        /* of the whole run */
};

/* "cosine|linear|..." */
extern const char *const firn_schedule_names;
/* By its name; another one is refused with those there are. */
firn_status firn_schedule_from_name(firn_context *ctx, const char *name, const firn_schedule_rule **rule);
/* Of step s, counted from 1. */
double firn_schedule_rate(const firn_schedule *schedule, int64_t s);
/* How far step s is between step `first` and the end: 0 there, one short of 1 at the last step, so that no step is
 * wasted at a rate of 0. */
double firn_schedule_progress(const firn_schedule *schedule, int64_t first, int64_t s);

/* The factor that brings a gradient of this L2 norm to at most `clip`; 1 when clip is 0 (none) or the norm is smaller.
 */
float firn_clip_factor(double norm, double clip);

#endif
