/* Learning rates: with lr the highest rate, w steps of warm-up, n steps in all,
 *
 *     s <= w     lr * s / w
 *     constant   lr
 *     linear     lr * (1 - p)                    p = (s - w - 1) / (n - w): 0 at the first step after the warm-up,
 *     cosine     lr * (1 + cos(pi p)) / 2            and one short of 1 at the last, so that no step is wasted at 0 */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {"cosine", "linear", "constant"};

firn_status firn_schedule_from_name(firn_context *ctx, const char *name, firn_schedule_kind *kind)
{
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            *kind = (firn_schedule_kind)i;
            return FIRN_OK;
        }
    }
    return firn_fail(ctx, FIRN_ERR_ARGUMENT, "there is no schedule '%.40s': expected cosine, linear or constant", name);
}

double firn_schedule_rate(const firn_schedule *schedule, int64_t s)
{
    const double lr = schedule->learning_rate;
    const int64_t w = schedule->warmup, rest = schedule->steps - w;

    if (s <= w)
        return lr * (double)s / (double)w;
    if (schedule->kind == FIRN_SCHEDULE_CONSTANT || rest <= 0)
        return lr;
    const double p = (double)firn_min_i64(s - w - 1, rest) / (double)rest;
    return schedule->kind == FIRN_SCHEDULE_LINEAR ? lr * (1 - p) : lr * (1 + cos(acos(-1.0) * p)) / 2;
}

float firn_clip_factor(double norm, double clip)
{
    return clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
}
