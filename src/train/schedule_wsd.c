/* Warm-up, stable, decay: 1 until the last fifth of the run, then 1 - sqrt(p), p from 0 to 1 (Hagele et al. 2024). */
#include "train/schedule.h"

#include <math.h>

static double part(const firn_schedule *schedule, int64_t s)
{
    const int64_t n = schedule->steps, first = firn_max_i64(schedule->warmup, n - n / 5) + 1;

    return s < first ? 1 : 1 - sqrt(firn_schedule_progress(schedule, first, s));
}

const firn_schedule_rule firn_schedule_wsd = {"wsd", part};
