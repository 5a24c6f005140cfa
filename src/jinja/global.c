/* Functions that every template sees: those of jinja2, and raise_exception and strftime_now of transformers. */
#include "jinja/eval.h"

#include <string.h>

enum { MAX_RANGE = 100000 }; /* the sandbox's */

NATIVE(global_range)
{
    int64_t bounds[3] = {0, 0, 1};

    (void)self, (void)arg;
    if (raw->n < 1 || raw->n > 3 || raw->n_named)
        return firn_jinja_fail(e, "range takes 1 to 3 whole numbers");
    for (size_t i = 0; i < raw->n; i++) {
        if (!jinja_is_integer(raw->items[i]))
            return raw->items[i].type == JINJA_UNDEFINED
                       ? firn_jinja_fail_undefined(e, raw->items[i])
                       : firn_jinja_fail(e, "range takes whole numbers, not '%s'", firn_jinja_type_name(raw->items[i]));
        bounds[raw->n == 1 ? 1 : i] = jinja_as_int(raw->items[i]);
    }
    const int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
    if (step == 0)
        return firn_jinja_fail(e, "range() arg 3 must not be zero");
    uint64_t n = 0;
    if (step > 0 && start < stop)
        n = ((uint64_t)stop - (uint64_t)start - 1) / (uint64_t)step + 1;
    else if (step < 0 && start > stop)
        n = ((uint64_t)start - (uint64_t)stop - 1) / (0 - (uint64_t)step) + 1;
    if (n > MAX_RANGE)
        return firn_jinja_fail(e, "range too big: the sandbox allows at most %d items", MAX_RANGE);
    FIRN_TRY(firn_jinja_list(e, JINJA_RANGE, n, out));
    memcpy(out->list->range, bounds, sizeof bounds);
    for (uint64_t i = 0; i < n; i++)
        out->list->items[i] = jinja_int((int64_t)((uint64_t)start + i * (uint64_t)step));
    return FIRN_OK;
}

/* dict and namespace: a mapping or pairs, and named values. */
static firn_status fill(jinja_eval *e, const jinja_args *raw, jinja_value *out)
{
    FIRN_TRY(firn_jinja_dict(e, out));
    if (raw->n > 1)
        return firn_jinja_fail(e, "at most one mapping is expected, got %zu", raw->n);
    if (raw->n == 1 && raw->items[0].type == JINJA_DICT) {
        const jinja_dict *from = raw->items[0].dict;
        for (size_t i = 0; i < from->n; i++)
            FIRN_TRY(firn_jinja_dict_set(e, out->dict, from->entries[i].key, from->entries[i].value));
    } else if (raw->n == 1) {
        jinja_list *pairs;
        FIRN_TRY(firn_jinja_iterate(e, raw->items[0], &pairs));
        for (size_t i = 0; i < pairs->n; i++) {
            jinja_list *pair;
            FIRN_TRY(firn_jinja_iterate(e, pairs->items[i], &pair));
            if (pair->n != 2)
                return firn_jinja_fail(e, "item %zu of a sequence of pairs has length %zu", i, pair->n);
            FIRN_TRY(firn_jinja_dict_set(e, out->dict, pair->items[0], pair->items[1]));
        }
    }
    for (size_t k = 0; k < raw->n_named; k++)
        FIRN_TRY(firn_jinja_dict_set(e, out->dict, raw->named[k].key, raw->named[k].value));
    return FIRN_OK;
}

NATIVE(global_dict)
{
    (void)self, (void)arg;
    return fill(e, raw, out);
}

NATIVE(global_namespace)
{
    (void)self, (void)arg;
    FIRN_TRY(fill(e, raw, out));
    out->type = JINJA_NAMESPACE;
    return FIRN_OK;
}

NATIVE(global_cycler)
{
    jinja_cycler *cycler = firn_jinja_alloc(e, 1, sizeof *cycler);
    jinja_value list;

    (void)self, (void)arg;
    if (!cycler)
        return FIRN_ERR_MEMORY;
    if (!raw->n)
        return firn_jinja_fail(e, "at least one item has to be provided");
    FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, raw->n, &list));
    memcpy(list.list->items, raw->items, raw->n * sizeof *raw->items);
    cycler->list = list.list;
    *out = (jinja_value){.type = JINJA_CYCLER, .cycler = cycler};
    return FIRN_OK;
}

NATIVE(global_joiner)
{
    jinja_joiner *joiner = firn_jinja_alloc(e, 1, sizeof *joiner);
    const jinja_string *separator;

    (void)self, (void)raw;
    if (!joiner)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "joiner's separator", true, &separator));
    joiner->separator = separator ? *separator : (jinja_string){", ", 2};
    *out = (jinja_value){.type = JINJA_JOINER, .joiner = joiner};
    return FIRN_OK;
}

NATIVE(global_lipsum)
{
    (void)self, (void)arg, (void)raw, (void)out;
    return firn_jinja_fail(e, "lipsum is not supported: it is random");
}

NATIVE(global_raise)
{
    jinja_value message;

    (void)self, (void)raw, (void)out;
    FIRN_TRY(firn_jinja_to_string(e, arg[0], &message));
    return firn_jinja_fail(e, "%.*s", (int)firn_min_i64((int64_t)message.string->size, FIRN_ERROR_BYTES),
                           message.string->data);
}

NATIVE(global_strftime)
{
    const jinja_string *format;

    (void)self, (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "strftime_now's format", false, &format));
    return firn_jinja_strftime(e, format, out);
}

const jinja_row firn_jinja_globals[] = {
    {"cycler", global_cycler, NULL, 0},
    {"dict", global_dict, NULL, 0},
    {"joiner", global_joiner, "sep", 0},
    {"lipsum", global_lipsum, NULL, 0},
    {"namespace", global_namespace, NULL, 0},
    {"raise_exception", global_raise, "message", 1},
    {"range", global_range, NULL, 0},
    {"strftime_now", global_strftime, "format", 1},
    {0},
};

const jinja_row *firn_jinja_find_global(const jinja_string *name)
{
    return firn_jinja_find_row(firn_jinja_globals, name);
}
