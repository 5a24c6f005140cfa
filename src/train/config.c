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
        firn_train_options none;
        firn_train_options_init(&none);
        for (int i = 0; i < firn_n_train_options; i++)
            if (firn_train_shapes_adapter(firn_train_option_table[i].name))
                firn_train_option_copy(o, &none, &firn_train_option_table[i]);
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

static bool contradicts(const firn_train_options *set, const char *name)
{
    return (firn_train_shapes_adapter(name) && set->adapter) || (strcmp(name, "steps") == 0 && !isnan(set->epochs)) ||
           (strcmp(name, "eval_data") == 0 && !isnan(set->eval_split)) ||
           (strcmp(name, "eval_split") == 0 && set->eval_data);
}

void firn_train_options_fill(firn_train_options *options, const firn_train_options *from)
{
    const firn_train_options set = *options;

    for (int i = 0; i < firn_n_train_options; i++) {
        const firn_train_option *o = &firn_train_option_table[i];
        if (!firn_train_option_is_set(&set, o) && !contradicts(&set, o->name))
            firn_train_option_copy(options, from, o);
    }
}
