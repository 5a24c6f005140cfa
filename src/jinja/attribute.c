/* What a.name and a[key] find: jinja2's environment, in its sandbox. */
#include "jinja/eval.h"

#include <string.h>

static firn_status method_value(jinja_eval *e, const jinja_row *row, jinja_value self, jinja_value *out)
{
    jinja_method *method = firn_jinja_alloc(e, 1, sizeof *method);

    if (!method)
        return FIRN_ERR_MEMORY;
    *method = (jinja_method){row, self};
    *out = (jinja_value){.type = JINJA_METHOD, .method = method};
    return FIRN_OK;
}

static firn_status loop_attribute(jinja_eval *e, const jinja_loop *loop, const jinja_string *name, jinja_value *out)
{
    const int64_t i = (int64_t)loop->i, n = (int64_t)loop->list->n;
    const struct {
        const char *name;
        jinja_value value;
    } attributes[] = {
        {"index", jinja_int(i + 1)},
        {"index0", jinja_int(i)},
        {"first", jinja_bool(i == 0)},
        {"last", jinja_bool(i + 1 == n)},
        {"length", jinja_int(n)},
        {"revindex", jinja_int(n - i)},
        {"revindex0", jinja_int(n - i - 1)},
        {"depth", jinja_int(loop->depth + 1)},
        {"depth0", jinja_int(loop->depth)},
    };

    (void)e;
    for (size_t k = 0; k < sizeof attributes / sizeof *attributes; k++) {
        if (firn_jinja_same_text(name, attributes[k].name)) {
            *out = attributes[k].value;
            return FIRN_OK;
        }
    }
    if (firn_jinja_same_text(name, "previtem") && i > 0)
        *out = loop->list->items[i - 1];
    else if (firn_jinja_same_text(name, "nextitem") && i + 1 < n)
        *out = loop->list->items[i + 1];
    return FIRN_OK;
}

/* Attributes that Python's objects have; *found says whether there is such a one. */
static firn_status own_attribute(jinja_eval *e, jinja_value v, const jinja_string *name, jinja_value *out, bool *found)
{
    bool denied = false;

    *found = true;
    *out = (jinja_value){.type = JINJA_MISSING};
    if (v.type == JINJA_NAMESPACE) {
        const jinja_value *value;
        FIRN_TRY(firn_jinja_dict_text(e, v.dict, name, &value));
        if (value) {
            *out = *value;
            return FIRN_OK;
        }
    } else if (v.type == JINJA_LOOP) {
        FIRN_TRY(loop_attribute(e, v.loop, name, out));
    } else if (v.type == JINJA_CYCLER && firn_jinja_same_text(name, "current")) {
        *out = v.cycler->list->items[v.cycler->i];
    } else if (v.type == JINJA_MACRO && firn_jinja_same_text(name, "name")) {
        return firn_jinja_view(e, v.macro->name.data, v.macro->name.size, out);
    } else if (v.type == JINJA_TUPLE && v.flag && v.list->n == 2) {
        if (firn_jinja_same_text(name, "grouper"))
            *out = v.list->items[0];
        else if (firn_jinja_same_text(name, "list"))
            *out = v.list->items[1];
    }
    if (out->type != JINJA_MISSING)
        return FIRN_OK;
    const jinja_row *row = firn_jinja_find_method(v, name, &denied);
    if (row)
        return method_value(e, row, v, out);
    *out = jinja_undefined(name);
    out->owner = (uint8_t)(v.type + 1);
    out->flag = denied;
    *found = denied;
    return FIRN_OK;
}

/* obj[key]; *found false where Python raises LookupError or TypeError. */
static firn_status own_item(jinja_eval *e, jinja_value v, jinja_value key, jinja_value *out, bool *found)
{
    *found = false;
    if (v.type == JINJA_DICT) {
        const jinja_value *value;
        if (key.type == JINJA_LIST || key.type == JINJA_DICT) /* not hashable */
            return FIRN_OK;
        FIRN_TRY(firn_jinja_dict_get(e, v.dict, key, &value));
        if (value)
            *out = *value;
        *found = value != NULL;
        return FIRN_OK;
    }
    if (!jinja_is_integer(key))
        return FIRN_OK;
    int64_t i = jinja_as_int(key);
    if (v.type == JINJA_LIST || v.type == JINJA_TUPLE || v.type == JINJA_RANGE) {
        const int64_t n = (int64_t)v.list->n;
        i += i < 0 ? n : 0;
        *found = i >= 0 && i < n;
        if (*found)
            *out = v.list->items[i];
        return FIRN_OK;
    }
    if (v.type == JINJA_STRING) {
        const char *s = v.string->data;
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * v.string->size));
        const int64_t n = (int64_t)firn_jinja_chars(s, v.string->size);
        i += i < 0 ? n : 0;
        *found = i >= 0 && i < n;
        if (!*found)
            return FIRN_OK;
        s += firn_jinja_offset(s, v.string->size, (size_t)i);
        return firn_jinja_view(e, s, firn_jinja_char_size(*s), out);
    }
    return FIRN_OK;
}

firn_status firn_jinja_attribute(jinja_eval *e, jinja_value v, const jinja_string *name, jinja_value *out)
{
    bool found;
    jinja_value value;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    FIRN_TRY(own_attribute(e, v, name, &value, &found));
    if (!found && v.type == JINJA_DICT) {
        const jinja_value *entry;
        FIRN_TRY(firn_jinja_dict_text(e, v.dict, name, &entry));
        if (entry) {
            *out = *entry;
            return FIRN_OK;
        }
    }
    *out = value;
    return FIRN_OK;
}

firn_status firn_jinja_item(jinja_eval *e, jinja_value v, jinja_value key, jinja_value *out)
{
    bool found;
    jinja_value value;

    FIRN_TRY(firn_jinja_step(e, 0));
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    FIRN_TRY(own_item(e, v, key, &value, &found));
    if (!found && key.type == JINJA_STRING)
        FIRN_TRY(own_attribute(e, v, key.string, &value, &found));
    else if (!found) {
        firn_text text;
        jinja_value name;
        firn_jinja_text(e, &text);
        const firn_status status = firn_jinja_repr(e, &text, key, 0);
        if (status != FIRN_OK) {
            firn_text_free(&text);
            return status;
        }
        FIRN_TRY(firn_jinja_take(e, &text, &name));
        value = jinja_undefined(name.string);
        value.owner = (uint8_t)(v.type + 1);
    }
    *out = value;
    return FIRN_OK;
}
