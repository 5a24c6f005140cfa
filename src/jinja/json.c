/* The filter tojson: JSON as Python's json.dumps writes it, with the options that transformers passes on. */
#include "jinja/eval.h"

#include <math.h>
#include <string.h>

enum { MAX_NESTING = 200 };

typedef struct {
    firn_text *out;
    bool ascii, sort;
    const jinja_string *indent; /* NULL: on one line */
    jinja_string item, key;     /* separators */
} json_writer;

static firn_status json_text(jinja_eval *e, json_writer *w, const jinja_string *s)
{
    firn_text *out = w->out;

    FIRN_TRY(firn_jinja_step(e, JINJA_PER_PRINT * s->size));
    firn_text_putc(out, '"');
    for (size_t i = 0; i < s->size;) {
        const uint32_t c = firn_jinja_char_at(s->data + i);
        const size_t n = firn_jinja_char_size(s->data[i]);
        static const char special[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
        const char *known = c && c < 0x80 ? strchr(special, (int)c) : NULL;
        if (known)
            firn_text_printf(out, "\\%c", letters[known - special]);
        else if (c < 0x20 || (w->ascii && c >= 0x7F && c < 0x10000))
            firn_text_printf(out, "\\u%04x", (unsigned)c);
        else if (w->ascii && c >= 0x10000)
            firn_text_printf(out, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                             (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
        else
            firn_text_append(out, s->data + i, n);
        i += n;
    }
    firn_text_putc(out, '"');
    return out->status;
}

static void json_float(json_writer *w, double x)
{
    char text[JINJA_FLOAT_BYTES];

    firn_jinja_float_text(x, text);
    firn_text_puts(w->out, isnan(x) ? "NaN" : isinf(x) ? (x < 0 ? "-Infinity" : "Infinity") : text);
}

static void json_line(json_writer *w, int depth)
{
    if (!w->indent)
        return;
    firn_text_putc(w->out, '\n');
    for (int i = 0; i < depth; i++)
        firn_text_append(w->out, w->indent->data, w->indent->size);
}

static firn_status json_value(jinja_eval *e, json_writer *w, jinja_value v, int depth);

static firn_status json_key(jinja_eval *e, json_writer *w, jinja_value key)
{
    if (key.type == JINJA_STRING)
        return json_text(e, w, key.string);
    if (key.type != JINJA_NONE && !jinja_is_number(key))
        return firn_jinja_fail(e, "keys must be str, int, float, bool or None, not %s", firn_jinja_type_name(key));
    firn_text_putc(w->out, '"');
    FIRN_TRY(json_value(e, w, key, 0));
    firn_text_putc(w->out, '"');
    return FIRN_OK;
}

static firn_status json_dict(jinja_eval *e, json_writer *w, const jinja_dict *dict, int depth)
{
    size_t *order = firn_jinja_alloc(e, dict->n, sizeof *order);

    if (!order)
        return FIRN_ERR_MEMORY;
    if (w->sort) {
        jinja_value *keys = firn_jinja_alloc(e, dict->n, sizeof *keys);
        if (!keys)
            return FIRN_ERR_MEMORY;
        for (size_t i = 0; i < dict->n; i++)
            keys[i] = dict->entries[i].key;
        FIRN_TRY(firn_jinja_sort(e, keys, order, dict->n, false));
    }
    firn_text_putc(w->out, '{');
    for (size_t i = 0; i < dict->n; i++) {
        const jinja_entry *entry = &dict->entries[w->sort ? order[i] : i];
        if (i)
            firn_text_append(w->out, w->item.data, w->item.size);
        json_line(w, depth + 1);
        FIRN_TRY(json_key(e, w, entry->key));
        firn_text_append(w->out, w->key.data, w->key.size);
        FIRN_TRY(json_value(e, w, entry->value, depth + 1));
    }
    if (dict->n)
        json_line(w, depth);
    firn_text_putc(w->out, '}');
    return FIRN_OK;
}

static firn_status json_value(jinja_eval *e, json_writer *w, jinja_value v, int depth)
{
    /* with the separators around it and the line behind its last item */
    FIRN_TRY(firn_jinja_step(e, w->item.size + w->key.size));
    if (w->indent)
        FIRN_TRY(firn_jinja_step(e, (w->indent->size + 2 * JINJA_PER_CHAR) * (size_t)depth));
    FIRN_TRY(w->out->status);
    if (depth >= MAX_NESTING)
        return firn_jinja_fail(e, "a value nested more than %d levels deep is written as JSON", MAX_NESTING);
    switch (v.type) {
    case JINJA_NONE:
        firn_text_puts(w->out, "null");
        return FIRN_OK;
    case JINJA_BOOL:
        firn_text_puts(w->out, v.boolean ? "true" : "false");
        return FIRN_OK;
    case JINJA_INT:
        firn_text_printf(w->out, "%lld", (long long)v.integer);
        return FIRN_OK;
    case JINJA_FLOAT:
        json_float(w, v.real);
        return FIRN_OK;
    case JINJA_STRING:
        return json_text(e, w, v.string);
    case JINJA_LIST:
    case JINJA_TUPLE:
        firn_text_putc(w->out, '[');
        for (size_t i = 0; i < v.list->n; i++) {
            if (i)
                firn_text_append(w->out, w->item.data, w->item.size);
            json_line(w, depth + 1);
            FIRN_TRY(json_value(e, w, v.list->items[i], depth + 1));
        }
        if (v.list->n)
            json_line(w, depth);
        firn_text_putc(w->out, ']');
        return FIRN_OK;
    case JINJA_DICT:
        return json_dict(e, w, v.dict, depth);
    default:
        return firn_jinja_fail(e, "Object of type %s is not JSON serializable", firn_jinja_type_name(v));
    }
}

firn_status firn_jinja_tojson(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,
                              jinja_value *out)
{
    enum { ASCII, INDENT, SEPARATORS, SORT };
    firn_text text;
    json_writer w = {.ascii = firn_jinja_truth(arg[ASCII]), .sort = firn_jinja_truth(arg[SORT])};
    jinja_value indent = arg[INDENT];

    (void)raw;
    if (jinja_is_integer(indent)) {
        char spaces[64];
        const int64_t n = jinja_as_int(indent);
        if (n > (int64_t)sizeof spaces)
            return firn_jinja_fail(e, "tojson takes an indent of at most %zu", sizeof spaces);
        memset(spaces, ' ', sizeof spaces);
        FIRN_TRY(firn_jinja_string(e, spaces, n > 0 ? (size_t)n : 0, &indent));
    }
    FIRN_TRY(firn_jinja_text_arg(e, indent, "indent", true, &w.indent));
    w.item = w.indent ? (jinja_string){",", 1} : (jinja_string){", ", 2};
    w.key = (jinja_string){": ", 2};
    if (arg[SEPARATORS].type == JINJA_LIST || arg[SEPARATORS].type == JINJA_TUPLE) {
        const jinja_list *pair = arg[SEPARATORS].list;
        if (pair->n != 2 || pair->items[0].type != JINJA_STRING || pair->items[1].type != JINJA_STRING)
            return firn_jinja_fail(e, "tojson takes two strings as separators");
        w.item = *pair->items[0].string;
        w.key = *pair->items[1].string;
    } else if (arg[SEPARATORS].type > JINJA_NONE) {
        return firn_jinja_fail(e, "tojson takes two strings as separators");
    }
    firn_jinja_text(e, &text);
    w.out = &text;
    const firn_status status = json_value(e, &w, self, 0);
    if (status == FIRN_OK)
        return firn_jinja_take(e, &text, out);
    firn_text_free(&text);
    return status;
}
