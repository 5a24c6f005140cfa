/* (1 + cos(pi p)) / 2, p from 0 at the first step after the warm-up to 1 (Loshchilov & Hutter 2017, one period). */
#include "train/schedule.h"

#include <math.h>

static double part(const firn_schedule *schedule, int64_t s)
{
    return (1 + cos(acos(-1.0) * firn_schedule_progress(schedule, schedule->warmup + 1, s))) / 2;
}

const firn_schedule_rule firn_schedule_cosine = {"cosine", part};
