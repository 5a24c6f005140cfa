/* Filters of sequences: sorting, choosing, grouping, joining. Those of jinja2 that are generators give an iterator
 * whose items are made at once; it is used up when it is read, like a generator. */
#include "jinja/eval.h"

#include <string.h>

static bool is_index(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] < '0' || s[i] > '9')
            return false;
    return n != 0;
}

/* item.a.b.0 for the path "a.b.0"; a whole number is an index. Where a step is undefined, `otherwise` replaces it. */
static firn_status follow(jinja_eval *e, jinja_value item, const char *path, size_t size, jinja_value otherwise,
                          jinja_value *out)
{
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * size));
    for (size_t at = 0; at <= size;) {
        size_t n = 0;
        jinja_value key;
        int64_t index;
        while (at + n < size && path[at + n] != '.')
            n++;
        if (is_index(path + at, n) && firn_jinja_parse_int(path + at, n, 10, &index))
            key = jinja_int(index);
        else
            FIRN_TRY(firn_jinja_view(e, path + at, n, &key));
        FIRN_TRY(firn_jinja_item(e, item, key, &item));
        if (item.type == JINJA_UNDEFINED && jinja_given(otherwise))
            item = otherwise;
        at += n + 1;
    }
    *out = item;
    return FIRN_OK;
}

/* The value that a filter's `attribute` argument selects: the item itself where there is none. */
static firn_status select_attribute(jinja_eval *e, jinja_value item, jinja_value attribute, jinja_value otherwise,
                                    jinja_value *out)
{
    if (!jinja_given(attribute)) {
        *out = item;
        return FIRN_OK;
    }
    if (attribute.type == JINJA_STRING)
        return follow(e, item, attribute.string->data, attribute.string->size, otherwise, out);
    FIRN_TRY(firn_jinja_item(e, item, attribute, out));
    if (out->type == JINJA_UNDEFINED && jinja_given(otherwise))
        *out = otherwise;
    return FIRN_OK;
}

/* Strings compare without case unless asked. */
static firn_status fold(jinja_eval *e, jinja_value v, bool case_sensitive, jinja_value *out)
{
    if (case_sensitive || v.type != JINJA_STRING) {
        *out = v;
        return FIRN_OK;
    }
    return firn_jinja_lower(e, v, NULL, NULL, out);
}

firn_status firn_jinja_sort(jinja_eval *e, const jinja_value *keys, size_t *order, size_t n, bool reverse)
{
    size_t *from = order, *to = firn_jinja_alloc(e, n, sizeof *to);

    if (!to)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_jinja_step(e, n));
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t begin = 0; begin < n; begin += 2 * width) {
            const size_t middle = begin + width < n ? begin + width : n;
            const size_t end = begin + 2 * width < n ? begin + 2 * width : n;
            size_t a = begin, b = middle;
            for (size_t k = begin; k < end; k++) {
                bool second = a == middle;
                if (a < middle && b < end)
                    FIRN_TRY(
                        firn_jinja_order(e, reverse ? JINJA_T_GT : JINJA_T_LT, keys[from[b]], keys[from[a]], &second));
                to[k] = second ? from[b++] : from[a++];
            }
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != order && n)
        memcpy(order, from, n * sizeof *order);
    return FIRN_OK;
}

static firn_status iterator(jinja_eval *e, size_t n, const char *label, jinja_value *out)
{
    FIRN_TRY(firn_jinja_list(e, JINJA_ITERATOR, n, out));
    out->list->label = label;
    return FIRN_OK;
}

NATIVE(filter_list)
{
    jinja_list *list;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, list->n, out));
    memcpy(out->list->items, list->items, list->n * sizeof *list->items);
    return FIRN_OK;
}

NATIVE(filter_first)
{
    jinja_list *list;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    *out = list->n ? list->items[0] : jinja_undefined(NULL);
    return FIRN_OK;
}

NATIVE(filter_last)
{
    jinja_list *list;

    (void)arg, (void)raw;
    if (self.type == JINJA_ITERATOR)
        return firn_jinja_fail(e, "'%s' object is not reversible", firn_jinja_type_name(self));
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    *out = list->n ? list->items[list->n - 1] : jinja_undefined(NULL);
    return FIRN_OK;
}

NATIVE(filter_reverse)
{
    jinja_list *list;

    (void)arg, (void)raw;
    if (self.type == JINJA_STRING)
        return firn_jinja_slice(e, self, (jinja_value[3]){jinja_none(), jinja_none(), jinja_int(-1)}, out);
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    FIRN_TRY(iterator(e, list->n, "reversed", out));
    for (size_t i = 0; i < list->n; i++)
        out->list->items[i] = list->items[list->n - 1 - i];
    return FIRN_OK;
}

static firn_status join(jinja_eval *e, firn_text *text, const jinja_list *list, jinja_value separator,
                        jinja_value attribute)
{
    for (size_t i = 0; i < list->n; i++) {
        jinja_value v;
        if (i)
            FIRN_TRY(firn_jinja_str(e, text, separator));
        FIRN_TRY(select_attribute(e, list->items[i], attribute, jinja_none(), &v));
        FIRN_TRY(firn_jinja_str(e, text, v));
    }
    return text->status;
}

NATIVE(filter_join)
{
    jinja_list *list;
    firn_text text;

    (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    firn_jinja_text(e, &text);
    return firn_jinja_finish(
        e, &text, join(e, &text, list, arg[0].type == JINJA_MISSING ? jinja_undefined(NULL) : arg[0], arg[1]), out);
}

NATIVE(filter_items)
{
    (void)arg, (void)raw;
    if (self.type == JINJA_UNDEFINED)
        return iterator(e, 0, "generator", out);
    if (self.type != JINJA_DICT)
        return firn_jinja_fail(e, "can only get item pairs from a mapping");
    FIRN_TRY(iterator(e, self.dict->n, "generator", out));
    for (size_t i = 0; i < self.dict->n; i++) {
        jinja_value pair;
        FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, 2, &pair));
        pair.list->items[0] = self.dict->entries[i].key;
        pair.list->items[1] = self.dict->entries[i].value;
        out->list->items[i] = pair;
    }
    return FIRN_OK;
}

/* The items of `list` in the order of their keys. `several`: "a,b" sorts by a, then by b, and each key is a list (so
 * that keys that are equal need not be comparable). */
static firn_status sorted(jinja_eval *e, jinja_list *list, jinja_value attribute, bool several, bool case_sensitive,
                          bool reverse, jinja_value otherwise, jinja_value *keys_out, jinja_value *out)
{
    jinja_value keys;
    size_t *order = firn_jinja_alloc(e, list->n, sizeof *order);
    size_t n_parts = 1;

    if (!order)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, list->n, &keys));
    if (several && attribute.type == JINJA_STRING) {
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * attribute.string->size));
        for (size_t i = 0; i < attribute.string->size; i++)
            n_parts += attribute.string->data[i] == ',';
    }
    for (size_t i = 0; i < list->n; i++) {
        jinja_value key;
        if (several)
            FIRN_TRY(firn_jinja_list(e, JINJA_LIST, n_parts, &keys.list->items[i]));
        jinja_value *key_out = several ? keys.list->items[i].list->items : &keys.list->items[i];
        if (n_parts == 1) {
            FIRN_TRY(select_attribute(e, list->items[i], attribute, otherwise, &key));
            FIRN_TRY(fold(e, key, case_sensitive, key_out));
            continue;
        }
        const char *path = attribute.string->data, *const end = path + attribute.string->size;
        for (size_t k = 0; k < n_parts; k++) {
            const char *comma = memchr(path, ',', (size_t)(end - path));
            const size_t size = comma ? (size_t)(comma - path) : (size_t)(end - path);
            FIRN_TRY(follow(e, list->items[i], path, size, otherwise, &key));
            FIRN_TRY(fold(e, key, case_sensitive, &key_out[k]));
            path += size + 1;
        }
    }
    FIRN_TRY(firn_jinja_sort(e, keys.list->items, order, list->n, reverse));
    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, list->n, out));
    if (keys_out)
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, list->n, keys_out));
    for (size_t i = 0; i < list->n; i++) {
        out->list->items[i] = list->items[order[i]];
        if (keys_out)
            keys_out->list->items[i] = keys.list->items[order[i]];
    }
    return FIRN_OK;
}

NATIVE(filter_sort)
{
    jinja_list *list;

    (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    return sorted(e, list, arg[2], true, firn_jinja_truth(arg[1]), firn_jinja_truth(arg[0]), jinja_none(), NULL, out);
}

NATIVE(filter_dictsort)
{
    jinja_value pairs, by = arg[1];
    const jinja_string *name;

    FIRN_TRY(firn_jinja_text_arg(e, arg[1], "dictsort's by", true, &name));
    if (name && !firn_jinja_same_text(name, "key") && !firn_jinja_same_text(name, "value"))
        return firn_jinja_fail(e, "dictsort sorts by key or value");
    if (self.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, self);
    by = jinja_int(name && firn_jinja_same_text(name, "value"));
    FIRN_TRY(filter_items(e, self, arg, raw, &pairs));
    return sorted(e, pairs.list, by, false, firn_jinja_truth(arg[0]), firn_jinja_truth(arg[2]), jinja_none(), NULL,
                  out);
}

NATIVE(filter_groupby)
{
    jinja_value items, keys;
    jinja_list *list;
    const bool case_sensitive = firn_jinja_truth(arg[2]);

    (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    FIRN_TRY(sorted(e, list, arg[0], false, case_sensitive, false, arg[1], &keys, &items));
    FIRN_TRY(firn_jinja_list(e, JINJA_LIST, list->n, out));
    size_t n_groups = 0;
    for (size_t begin = 0, end; begin < list->n; begin = end) {
        jinja_value group, members, key;
        for (end = begin + 1; end < list->n; end++) {
            bool equal;
            FIRN_TRY(firn_jinja_equal(e, keys.list->items[begin], keys.list->items[end], 0, &equal));
            if (!equal)
                break;
        }
        FIRN_TRY(select_attribute(e, items.list->items[begin], arg[0], arg[1], &key));
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, end - begin, &members));
        memcpy(members.list->items, items.list->items + begin, (end - begin) * sizeof *members.list->items);
        FIRN_TRY(firn_jinja_list(e, JINJA_TUPLE, 2, &group));
        group.flag = 1;
        group.list->items[0] = key;
        group.list->items[1] = members;
        out->list->items[n_groups++] = group;
    }
    out->list->n = n_groups;
    return FIRN_OK;
}

NATIVE(filter_unique)
{
    jinja_list *list;
    jinja_value seen;
    size_t n = 0;

    (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    FIRN_TRY(firn_jinja_dict(e, &seen));
    FIRN_TRY(iterator(e, list->n, "generator", out));
    for (size_t i = 0; i < list->n; i++) {
        jinja_value key;
        const jinja_value *found;
        FIRN_TRY(select_attribute(e, list->items[i], arg[1], jinja_none(), &key));
        FIRN_TRY(fold(e, key, firn_jinja_truth(arg[0]), &key));
        FIRN_TRY(firn_jinja_dict_get(e, seen.dict, key, &found));
        if (found)
            continue;
        FIRN_TRY(firn_jinja_dict_set(e, seen.dict, key, jinja_none()));
        out->list->items[n++] = list->items[i];
    }
    out->list->n = n;
    return FIRN_OK;
}

static firn_status extreme(jinja_eval *e, jinja_token_type op, jinja_value self, const jinja_value *arg,
                           jinja_value *out)
{
    jinja_list *list;
    jinja_value best = jinja_none();

    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    *out = jinja_undefined(NULL);
    for (size_t i = 0; i < list->n; i++) {
        jinja_value key;
        bool better = i == 0;
        FIRN_TRY(select_attribute(e, list->items[i], arg[1], jinja_none(), &key));
        FIRN_TRY(fold(e, key, firn_jinja_truth(arg[0]), &key));
        if (i)
            FIRN_TRY(firn_jinja_order(e, op, key, best, &better));
        if (better) {
            best = key;
            *out = list->items[i];
        }
    }
    return FIRN_OK;
}

NATIVE(filter_min)
{
    (void)raw;
    return extreme(e, JINJA_T_LT, self, arg, out);
}

NATIVE(filter_max)
{
    (void)raw;
    return extreme(e, JINJA_T_GT, self, arg, out);
}

NATIVE(filter_sum)
{
    jinja_list *list;

    (void)raw;
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    *out = arg[1].type == JINJA_MISSING ? jinja_int(0) : arg[1];
    if (out->type == JINJA_STRING)
        return firn_jinja_fail(e, "sum() can't sum strings");
    for (size_t i = 0; i < list->n; i++) {
        jinja_value v;
        FIRN_TRY(select_attribute(e, list->items[i], arg[0], jinja_none(), &v));
        FIRN_TRY(firn_jinja_binary(e, JINJA_T_ADD, *out, v, out));
    }
    return FIRN_OK;
}

NATIVE(filter_batch)
{
    jinja_list *list;
    int64_t n;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "batch's size", 0, &n));
    if (n <= 0)
        return firn_jinja_fail(e, "batch takes a size of at least 1");
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    const size_t size = (size_t)n < list->n || jinja_given(arg[1]) ? (size_t)n : list->n + !list->n;
    const size_t n_batches = list->n / size + (list->n % size != 0);
    FIRN_TRY(iterator(e, n_batches, "generator", out));
    for (size_t b = 0; b < n_batches; b++) {
        const size_t rest = list->n - b * size, here = rest < size ? rest : size;
        jinja_value row;
        if (size > e->limits.memory / sizeof row)
            return firn_jinja_fail(e, "batch's size is too large");
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, jinja_given(arg[1]) ? size : here, &row));
        for (size_t i = 0; i < row.list->n; i++)
            row.list->items[i] = i < here ? list->items[b * size + i] : arg[1];
        out->list->items[b] = row;
    }
    return FIRN_OK;
}

NATIVE(filter_slice)
{
    jinja_list *list;
    int64_t n;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "slice's number", 0, &n));
    if (n <= 0 || (uint64_t)n > e->limits.memory / sizeof(jinja_value))
        return firn_jinja_fail(e, "slice takes a number of at least 1 that memory holds");
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    const size_t each = list->n / (size_t)n, more = list->n % (size_t)n;
    FIRN_TRY(iterator(e, (size_t)n, "generator", out));
    size_t at = 0;
    for (size_t s = 0; s < (size_t)n; s++) {
        const size_t here = each + (s < more);
        const bool filled = jinja_given(arg[1]) && s >= more && more;
        jinja_value column;
        FIRN_TRY(firn_jinja_list(e, JINJA_LIST, here + filled, &column));
        for (size_t i = 0; i < here; i++)
            column.list->items[i] = list->items[at++];
        if (filled)
            column.list->items[here] = arg[1];
        out->list->items[s] = column;
    }
    return FIRN_OK;
}

/* ---- map, select and their kin ---- */

/* The arguments behind the first n positional ones. */
static jinja_args rest_of(const jinja_args *raw, size_t n)
{
    jinja_args rest = *raw;

    rest.items += n;
    rest.n -= n;
    return rest;
}

NATIVE(filter_map)
{
    jinja_list *list;
    const jinja_row *row = NULL;
    jinja_value attribute = {.type = JINJA_MISSING}, otherwise = {.type = JINJA_MISSING};
    jinja_args rest = {0};

    (void)arg;
    if (!firn_jinja_truth(self)) /* jinja2 looks no further then */
        return iterator(e, 0, "generator", out);
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    if (raw->n == 0) {
        for (size_t k = 0; k < raw->n_named; k++) {
            if (firn_jinja_same_text(raw->named[k].key.string, "attribute"))
                attribute = raw->named[k].value;
            else if (firn_jinja_same_text(raw->named[k].key.string, "default"))
                otherwise = raw->named[k].value;
            else
                return firn_jinja_fail(e, "map has no such named argument");
        }
        if (!jinja_given(attribute))
            return firn_jinja_fail(e, "map requires a filter argument");
    } else {
        const jinja_string *name;
        FIRN_TRY(firn_jinja_text_arg(e, raw->items[0], "map's filter", false, &name));
        if (!(row = firn_jinja_find_filter(name)))
            return firn_jinja_fail(e, "there is no filter named '%.*s'", (int)firn_min_i64((int64_t)name->size, 60),
                                   name->data);
        rest = rest_of(raw, 1);
    }
    FIRN_TRY(iterator(e, list->n, "generator", out));
    for (size_t i = 0; i < list->n; i++) {
        if (row)
            FIRN_TRY(firn_jinja_call_row(e, row, list->items[i], &rest, &out->list->items[i]));
        else
            FIRN_TRY(select_attribute(e, list->items[i], attribute, otherwise, &out->list->items[i]));
    }
    return FIRN_OK;
}

static firn_status choose(jinja_eval *e, jinja_value self, const jinja_args *raw, bool by_attribute, bool wanted,
                          jinja_value *out)
{
    jinja_list *list;
    const jinja_row *row = NULL;
    const size_t first = by_attribute;
    jinja_args rest = {0};
    size_t n = 0;

    if (!firn_jinja_truth(self)) /* jinja2 looks no further then */
        return iterator(e, 0, "generator", out);
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    if (raw->n < first)
        return firn_jinja_fail(e, "missing parameter for attribute name");
    if (raw->n > first) {
        const jinja_string *name;
        FIRN_TRY(firn_jinja_text_arg(e, raw->items[first], "the test's name", false, &name));
        if (!(row = firn_jinja_find_test(name)))
            return firn_jinja_fail(e, "there is no test named '%.*s'", (int)firn_min_i64((int64_t)name->size, 60),
                                   name->data);
        rest = rest_of(raw, first + 1);
    }
    FIRN_TRY(iterator(e, list->n, "generator", out));
    for (size_t i = 0; i < list->n; i++) {
        jinja_value v = list->items[i], passes;
        if (by_attribute)
            FIRN_TRY(select_attribute(e, v, raw->items[0], jinja_none(), &v));
        passes = v;
        if (row)
            FIRN_TRY(firn_jinja_call_row(e, row, v, &rest, &passes));
        if (firn_jinja_truth(passes) == wanted)
            out->list->items[n++] = list->items[i];
    }
    out->list->n = n;
    return FIRN_OK;
}

NATIVE(filter_select)
{
    (void)arg;
    return choose(e, self, raw, false, true, out);
}

NATIVE(filter_reject)
{
    (void)arg;
    return choose(e, self, raw, false, false, out);
}

NATIVE(filter_selectattr)
{
    (void)arg;
    return choose(e, self, raw, true, true, out);
}

NATIVE(filter_rejectattr)
{
    (void)arg;
    return choose(e, self, raw, true, false, out);
}

const jinja_row firn_jinja_sequence_filters[] = {
    {"batch", filter_batch, "linecount fill_with", 1},
    {"dictsort", filter_dictsort, "case_sensitive by reverse", 0},
    {"first", filter_first, "", 0},
    {"groupby", filter_groupby, "attribute default case_sensitive", 1},
    {"items", filter_items, "", 0},
    {"join", filter_join, "d attribute", 0},
    {"last", filter_last, "", 0},
    {"list", filter_list, "", 0},
    {"map", filter_map, NULL, 0},
    {"max", filter_max, "case_sensitive attribute", 0},
    {"min", filter_min, "case_sensitive attribute", 0},
    {"reject", filter_reject, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0},
    {"reverse", filter_reverse, "", 0},
    {"select", filter_select, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0},
    {"slice", filter_slice, "slices fill_with", 1},
    {"sort", filter_sort, "reverse case_sensitive attribute", 0},
    {"sum", filter_sum, "attribute start", 0},
    {"unique", filter_unique, "case_sensitive attribute", 0},
    {0},
};
