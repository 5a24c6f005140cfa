/* sqrt(w / s), w the steps of warm-up, 1 where there are none (Vaswani et al. 2017): it does not know where the run
 * ends, so that more steps may follow. */
#include "train/schedule.h"

#include <math.h>

static double part(const firn_schedule *schedule, int64_t s)
{
    return sqrt((double)firn_max_i64(schedule->warmup, 1) / (double)s);
}

const firn_schedule_rule firn_schedule_inverse_sqrt = {"inverse-sqrt", part};
