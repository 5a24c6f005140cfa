/* Methods of dicts, lists, loops and cyclers, and where every type's are found, as Python has them. What would change a
 * list or dict in place is denied, as in jinja2's immutable sandbox. */
#include "jinja/eval.h"

#include <string.h>

/* ---- dicts ---- */

static firn_status dict_view(jinja_eval *e, const jinja_dict *dict, const char *label, int which, jinja_value *out)
{
    FIRN_TRY(firn_jinja_list(e, JINJA_VIEW, dict->n, out));
    out->list->label = label;
    for (size_t i = 0; i < dict->n; i++) {
        jinja_value *item = &out->list->items[i];
        if (which == 2) {
            FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, 2, item));
            item->list->items[0] = dict->entries[i].key;
            item->list->items[1] = dict->entries[i].value;
        } else {
            *item = which ? dict->entries[i].value : dict->entries[i].key;
        }
    }
    return FIRN_OK;
}

NATIVE(dict_keys)
{
    (void)arg, (void)raw;
    return dict_view(e, self.dict, "dict_keys", 0, out);
}

NATIVE(dict_values)
{
    (void)arg, (void)raw;
    return dict_view(e, self.dict, "dict_values", 1, out);
}

NATIVE(dict_items)
{
    (void)arg, (void)raw;
    return dict_view(e, self.dict, "dict_items", 2, out);
}

NATIVE(dict_get)
{
    const jinja_value *found;

    (void)raw;
    FIRN_TRY(firn_jinja_dict_get(e, self.dict, arg[0], &found));
    *out = found ? *found : arg[1].type == JINJA_MISSING ? jinja_none() : arg[1];
    return FIRN_OK;
}

NATIVE(dict_copy)
{
    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_dict(e, out));
    for (size_t i = 0; i < self.dict->n; i++)
        FIRN_TRY(firn_jinja_dict_set(e, out->dict, self.dict->entries[i].key, self.dict->entries[i].value));
    return FIRN_OK;
}

const jinja_row firn_jinja_dict_methods[] = {
    {"copy", dict_copy, "", 0}, {"get", dict_get, "key default", 1}, {"items", dict_items, "", 0},
    {"keys", dict_keys, "", 0}, {"values", dict_values, "", 0},      {0},
};

/* ---- lists and tuples ---- */

NATIVE(list_index)
{
    jinja_value bounds[3] = {jinja_none(), jinja_none(), jinja_none()}, part, all;
    int64_t start;

    (void)raw;
    for (int i = 0; i < 2; i++)
        if (arg[1 + i].type != JINJA_MISSING)
            bounds[i] = arg[1 + i];
    FIRN_TRY(firn_jinja_slice(e, self, bounds, &part));
    bounds[1] = bounds[0]; /* how many items lie before the slice */
    bounds[0] = jinja_none();
    start = 0;
    if (bounds[1].type != JINJA_NONE) {
        FIRN_TRY(firn_jinja_slice(e, self, bounds, &all));
        start = (int64_t)all.list->n;
    }
    for (size_t i = 0; i < part.list->n; i++) {
        bool equal;
        FIRN_TRY(firn_jinja_equal(e, part.list->items[i], arg[0], 0, &equal));
        if (equal) {
            *out = jinja_int(start + (int64_t)i);
            return FIRN_OK;
        }
    }
    return firn_jinja_fail(e, "the value is not in the list");
}

NATIVE(list_count)
{
    int64_t n = 0;

    (void)raw;
    for (size_t i = 0; i < self.list->n; i++) {
        bool equal;
        FIRN_TRY(firn_jinja_equal(e, self.list->items[i], arg[0], 0, &equal));
        n += equal;
    }
    *out = jinja_int(n);
    return FIRN_OK;
}

NATIVE(list_copy)
{
    (void)e, (void)arg, (void)raw;
    *out = self;
    return FIRN_OK;
}

const jinja_row firn_jinja_list_methods[] = {
    {"copy", list_copy, "", 0},
    {"count", list_count, "value", 1},
    {"index", list_index, "value start stop", 1},
    {0},
};

/* ---- loops, cyclers ---- */

NATIVE(loop_cycle)
{
    (void)arg;
    if (raw->n == 0)
        return firn_jinja_fail(e, "no items for cycling given");
    *out = raw->items[self.loop->i % raw->n];
    return FIRN_OK;
}

NATIVE(loop_changed)
{
    jinja_list *last = self.loop->changed;
    bool same = last && last->n == raw->n;
    jinja_value now;

    (void)arg;
    for (size_t i = 0; same && i < raw->n; i++)
        FIRN_TRY(firn_jinja_equal(e, last->items[i], raw->items[i], 0, &same));
    FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, raw->n, &now));
    for (size_t i = 0; i < raw->n; i++)
        now.list->items[i] = raw->items[i];
    self.loop->changed = now.list;
    *out = jinja_bool(!same);
    return FIRN_OK;
}

static const jinja_row loop_methods[] = {
    {"changed", loop_changed, NULL, 0},
    {"cycle", loop_cycle, NULL, 0},
    {0},
};

NATIVE(cycler_next)
{
    (void)e, (void)arg, (void)raw;
    *out = self.cycler->list->items[self.cycler->i];
    self.cycler->i = (self.cycler->i + 1) % self.cycler->list->n;
    return FIRN_OK;
}

NATIVE(cycler_reset)
{
    (void)e, (void)arg, (void)raw;
    self.cycler->i = 0;
    *out = jinja_none();
    return FIRN_OK;
}

static const jinja_row cycler_methods[] = {
    {"next", cycler_next, "", 0},
    {"reset", cycler_reset, "", 0},
    {0},
};

const jinja_row *firn_jinja_find_method(jinja_value self, const jinja_string *name, bool *denied)
{
    static const char *const denied_in_list[] = {"append", "clear",   "extend", "insert", "pop",
                                                 "remove", "reverse", "sort",   NULL};
    static const char *const denied_in_dict[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const char *const *names = NULL;
    const jinja_row *rows = NULL;

    *denied = name->size > 4 && memcmp(name->data, "__", 2) == 0 && memcmp(name->data + name->size - 2, "__", 2) == 0;
    if (*denied)
        return NULL;
    switch (self.type) {
    case JINJA_STRING:
        rows = firn_jinja_text_methods;
        break;
    case JINJA_LIST:
        rows = firn_jinja_list_methods;
        names = denied_in_list;
        break;
    case JINJA_TUPLE:
    case JINJA_RANGE:
        rows = firn_jinja_list_methods + 1; /* these have no copy */
        break;
    case JINJA_DICT:
        rows = firn_jinja_dict_methods;
        names = denied_in_dict;
        break;
    case JINJA_LOOP:
        rows = loop_methods;
        break;
    case JINJA_CYCLER:
        rows = cycler_methods;
        break;
    default:
        return NULL;
    }
    for (int i = 0; names && names[i]; i++)
        *denied |= firn_jinja_same_text(name, names[i]);
    if (*denied)
        return NULL;
    const jinja_row *row = firn_jinja_find_row(rows, name);
    return row || self.type != JINJA_STRING ? row : firn_jinja_find_row(firn_jinja_find_methods, name);
}
