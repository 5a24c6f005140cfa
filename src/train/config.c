/* Options from a file: a JSON object of options by name, or a run's run.json. */
#include "train/record.h"

#include <math.h>

static firn_status take_options(firn_arena *arena, const char *path, const json_t *json, firn_train_options *o)
{
    const json_t *inner = json_object_get(json, "options");

    if (!json_is_object(json))
        return firn_fail(arena->ctx, FIRN_ERR_FORMAT,
                         "%s: expected an object of options (\"rank\": 8) or the run.json of a run", path);
    FIRN_TRY(firn_train_options_from_json(arena, path, json_is_object(inner) ? inner : json, o));
    if (!inner)
        return FIRN_OK;
    /* Of a run, what follows from other options; and its folder, which holds a run already. */
    o->output = NULL;
    if (o->adapter) {
        o->rank = FIRN_UNSET;
        o->alpha = NAN;
        o->targets = NULL;
    }
    if (o->eval_data)
        o->eval_split = NAN;
    return FIRN_OK;
}

firn_status firn_train_options_read(firn_arena *arena, const char *path, firn_train_options *options)
{
    json_t *json;

    FIRN_TRY(firn_json_read(arena->ctx, path, &json));
    const firn_status s = take_options(arena, path, json, options);
    json_decref(json);
    return s;
}
