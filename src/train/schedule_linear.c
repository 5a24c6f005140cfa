/* 1 - p, p from 0 at the first step after the warm-up to 1. */
#include "train/schedule.h"

static double part(const firn_schedule *schedule, int64_t s)
{
    return 1 - firn_schedule_progress(schedule, schedule->warmup + 1, s);
}

const firn_schedule_rule firn_schedule_linear = {"linear", part};
