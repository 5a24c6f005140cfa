/* Learning rates; see schedule.h. */
#include "train/schedule.h"

#include "train/named.h"

#define SCHEDULE(id, name) extern const firn_schedule_rule firn_schedule_##id;
#include "train/schedules.def"
#undef SCHEDULE

static const firn_schedule_rule *const rules[] = {
#define SCHEDULE(id, name) &firn_schedule_##id,
#include "train/schedules.def"
#undef SCHEDULE
};

#define SCHEDULE(id, name) name
const char *const firn_schedule_names = &(
#include "train/schedules.def"
    )[1];
#undef SCHEDULE

firn_status firn_schedule_from_name(firn_context *ctx, const char *name, const firn_schedule_rule **rule)
{
    const int i = firn_name_index(name, firn_schedule_names);

    if (i < 0)
        return firn_not_named(ctx, "schedule", name, firn_schedule_names);
    *rule = rules[i];
    return FIRN_OK;
}

double firn_schedule_progress(const firn_schedule *schedule, int64_t first, int64_t s)
{
    const int64_t rest = schedule->steps - first + 1;

    return rest <= 0 ? 0 : (double)firn_min_i64(s - first, rest) / (double)rest;
}

double firn_schedule_rate(const firn_schedule *schedule, int64_t s)
{
    const double lr = schedule->learning_rate;

    if (s <= schedule->warmup)
        return lr * (double)s / (double)schedule->warmup;
    return lr * schedule->rule->part(schedule, s);
}

float firn_clip_factor(double norm, double clip)
{
    return clip > 0 && norm > clip ? (float)(clip / norm) : 1.0f;
}
