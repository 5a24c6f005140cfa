/* How values print: str and repr, as CPython does. */
#include "jinja/eval.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 200 };

/* The shortest digits that read back as x, fixed for exponents from -4 to 15: Python's repr. */
void firn_jinja_float_text(double x, char text[JINJA_FLOAT_BYTES])
{
    char digits[40];
    int precision = fabs(x) < DBL_MIN ? 1 : 15; /* up to 15 digits are a number's own, unless it is subnormal */

    if (isnan(x) || isinf(x)) {
        snprintf(text, JINJA_FLOAT_BYTES, "%s", isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
        return;
    }
    do
        firn_snprintf(digits, sizeof digits, "%.*e", precision - 1, x);
    while (precision++ < 17 && firn_strtod(digits, NULL) != x);

    char *e = strchr(digits, 'e');
    const int exponent = atoi(e + 1);
    char d[24];
    int n = 0;
    for (const char *p = digits; p < e; p++)
        if (*p >= '0' && *p <= '9')
            d[n++] = *p;
    while (n > 1 && d[n - 1] == '0')
        n--;
    char *out = text;
    if (digits[0] == '-')
        *out++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *out++ = d[0];
        if (n > 1)
            *out++ = '.';
        for (int i = 1; i < n; i++)
            *out++ = d[i];
        snprintf(out, 16, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        *out++ = '0';
        *out++ = '.';
        for (int i = -1; i > exponent; i--)
            *out++ = '0';
    }
    for (int i = 0; i < n || i <= exponent; i++) {
        *out++ = i < n ? d[i] : '0';
        if (i == exponent) {
            *out++ = '.';
            if (i + 1 >= n)
                *out++ = '0';
        }
    }
    *out = 0;
}

/* ---- repr and str ---- */

static firn_status repr_text(jinja_eval *e, firn_text *out, const jinja_string *s)
{
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_PRINT * s->size));
    const bool twice = memchr(s->data, '\'', s->size) && !memchr(s->data, '"', s->size);
    const char quote = twice ? '"' : '\'';

    firn_text_putc(out, quote);
    for (size_t i = 0; i < s->size;) {
        const uint32_t c = firn_jinja_char_at(s->data + i);
        const size_t n = firn_jinja_char_size(s->data[i]);
        if (c == (uint32_t)quote || c == '\\')
            firn_text_printf(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            firn_text_puts(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (firn_jinja_is_printable(c))
            firn_text_append(out, s->data + i, n);
        else
            firn_text_printf(out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        i += n;
    }
    firn_text_putc(out, quote);
    return out->status;
}

static firn_status repr_items(jinja_eval *e, firn_text *out, const jinja_list *list, const char *ends, int depth)
{
    firn_text_putc(out, ends[0]);
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            firn_text_puts(out, ", ");
        FIRN_TRY(firn_jinja_repr(e, out, list->items[i], depth + 1));
    }
    if (ends[0] == '(' && list->n == 1)
        firn_text_putc(out, ',');
    firn_text_putc(out, ends[1]);
    return out->status;
}

static firn_status repr_dict(jinja_eval *e, firn_text *out, const jinja_dict *dict, int depth)
{
    firn_text_putc(out, '{');
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            firn_text_puts(out, ", ");
        FIRN_TRY(firn_jinja_repr(e, out, dict->entries[i].key, depth + 1));
        firn_text_puts(out, ": ");
        FIRN_TRY(firn_jinja_repr(e, out, dict->entries[i].value, depth + 1));
    }
    firn_text_putc(out, '}');
    return out->status;
}

firn_status firn_jinja_repr(jinja_eval *e, firn_text *out, jinja_value v, int depth)
{
    char text[JINJA_FLOAT_BYTES];

    FIRN_TRY(firn_jinja_step(e, 0));
    if (depth >= MAX_NESTING)
        return firn_jinja_fail(e, "a value nested more than %d levels deep is printed", MAX_NESTING);
    switch (v.type) {
    case JINJA_UNDEFINED:
        firn_text_puts(out, "Undefined");
        break;
    case JINJA_NONE:
        firn_text_puts(out, "None");
        break;
    case JINJA_BOOL:
        firn_text_puts(out, v.boolean ? "True" : "False");
        break;
    case JINJA_INT:
        firn_text_printf(out, "%lld", (long long)v.integer);
        break;
    case JINJA_FLOAT:
        firn_jinja_float_text(v.real, text);
        firn_text_puts(out, text);
        break;
    case JINJA_STRING:
        if (v.flag)
            firn_text_puts(out, "Markup(");
        FIRN_TRY(repr_text(e, out, v.string));
        if (v.flag)
            firn_text_putc(out, ')');
        break;
    case JINJA_LIST:
        return repr_items(e, out, v.list, "[]", depth);
    case JINJA_TUPLE:
        return repr_items(e, out, v.list, "()", depth);
    case JINJA_RANGE:
        firn_text_printf(out, v.list->range[2] == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                         (long long)v.list->range[0], (long long)v.list->range[1], (long long)v.list->range[2]);
        break;
    case JINJA_VIEW:
        firn_text_printf(out, "%s(", v.list->label);
        FIRN_TRY(repr_items(e, out, v.list, "[]", depth));
        firn_text_putc(out, ')');
        break;
    case JINJA_DICT:
        return repr_dict(e, out, v.dict, depth);
    case JINJA_NAMESPACE:
        firn_text_puts(out, "<Namespace ");
        FIRN_TRY(repr_dict(e, out, v.dict, depth));
        firn_text_putc(out, '>');
        break;
    case JINJA_MACRO:
        firn_text_puts(out, "<Macro ");
        FIRN_TRY(repr_text(e, out, &v.macro->name));
        firn_text_putc(out, '>');
        break;
    case JINJA_LOOP:
        firn_text_printf(out, "<LoopContext %zu/%zu>", v.loop->i + 1, v.loop->list->n);
        break;
    default:
        firn_text_printf(out, "<%s object>", firn_jinja_type_name(v));
    }
    return out->status;
}

firn_status firn_jinja_str(jinja_eval *e, firn_text *out, jinja_value v)
{
    if (v.type == JINJA_UNDEFINED)
        return FIRN_OK;
    if (v.type != JINJA_STRING)
        return firn_jinja_repr(e, out, v, 0);
    FIRN_TRY(firn_jinja_step(e, v.string->size));
    firn_text_append(out, v.string->data, v.string->size);
    return out->status;
}

firn_status firn_jinja_to_string(jinja_eval *e, jinja_value v, jinja_value *out)
{
    firn_text text;

    if (v.type == JINJA_STRING) {
        *out = v;
        return FIRN_OK;
    }
    firn_jinja_text(e, &text);
    const firn_status status = firn_jinja_str(e, &text, v);
    if (status != FIRN_OK) {
        firn_text_free(&text);
        return status;
    }
    return firn_jinja_take(e, &text, out);
}

firn_status firn_jinja_escape(jinja_eval *e, firn_text *out, const jinja_string *s)
{
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * s->size));
    for (size_t i = 0; i < s->size; i++) {
        switch (s->data[i]) {
        case '&':
            firn_text_puts(out, "&amp;");
            break;
        case '<':
            firn_text_puts(out, "&lt;");
            break;
        case '>':
            firn_text_puts(out, "&gt;");
            break;
        case '"':
            firn_text_puts(out, "&#34;");
            break;
        case '\'':
            firn_text_puts(out, "&#39;");
            break;
        default:
            firn_text_putc(out, s->data[i]);
        }
    }
    return out->status;
}
