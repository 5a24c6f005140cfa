/* Filters of one value or text: value | name(arguments). Those of sequences are in sequence.c, of HTML in
 * markup.c. */
#include "jinja/eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one value ---- */

NATIVE(filter_abs)
{
    (void)arg, (void)raw;
    if (!jinja_is_number(self))
        return firn_jinja_fail(e, "bad operand type for abs(): '%s'", firn_jinja_type_name(self));
    if (self.type == JINJA_FLOAT)
        *out = jinja_float(fabs(self.real));
    else if (jinja_as_int(self) < 0)
        return firn_jinja_negate(e, self, out);
    else
        *out = jinja_int(jinja_as_int(self));
    return FIRN_OK;
}

NATIVE(filter_attr)
{
    const jinja_string *name;

    (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "attr's name", false, &name));
    if (self.type == JINJA_DICT) { /* attributes only, never items */
        bool denied;
        if (!firn_jinja_find_method(self, name, &denied)) {
            *out = jinja_undefined(name);
            out->owner = JINJA_DICT + 1;
            return FIRN_OK;
        }
    }
    return firn_jinja_attribute(e, self, name, out);
}

NATIVE(filter_default)
{
    (void)raw;
    if (self.type == JINJA_UNDEFINED || (firn_jinja_truth(arg[1]) && !firn_jinja_truth(self))) {
        *out = arg[0];
        return arg[0].type == JINJA_MISSING ? firn_jinja_view(e, "", 0, out) : FIRN_OK;
    }
    *out = self;
    return FIRN_OK;
}

NATIVE(filter_string)
{
    (void)arg, (void)raw;
    return firn_jinja_to_string(e, self, out);
}

NATIVE(filter_length)
{
    int64_t n;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_length(e, self, &n));
    if (n < 0)
        return firn_jinja_fail(e, "object of type '%s' has no len()", firn_jinja_type_name(self));
    *out = jinja_int(n);
    return FIRN_OK;
}

NATIVE(filter_int)
{
    int64_t base, value;
    double real = NAN;

    (void)raw;
    if (self.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, self);
    FIRN_TRY(firn_jinja_int_arg(e, arg[1], "int's base", 10, &base));
    if (jinja_is_integer(self)) {
        *out = jinja_int(jinja_as_int(self));
        return FIRN_OK;
    }
    if (self.type == JINJA_STRING) {
        FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
        if (firn_jinja_parse_int(self.string->data, self.string->size, (int)(base > 36 || base < 0 ? 1 : base),
                                 &value)) {
            *out = jinja_int(value);
            return FIRN_OK;
        }
        if (!firn_jinja_parse_float(self.string->data, self.string->size, &real))
            real = NAN;
    } else if (self.type == JINJA_FLOAT) {
        real = self.real;
    }
    if (isfinite(real) && fabs(real) >= 9223372036854775808.0)
        return firn_jinja_fail(e, "a whole number passes 64 bits");
    *out = isfinite(real) ? jinja_int((int64_t)real) : arg[0].type == JINJA_MISSING ? jinja_int(0) : arg[0];
    return FIRN_OK;
}

NATIVE(filter_float)
{
    double real;

    (void)raw;
    if (self.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, self);
    FIRN_TRY(firn_jinja_step(e, self.type == JINJA_STRING ? 2 * JINJA_PER_CHAR * self.string->size : 0));
    if (jinja_is_number(self))
        *out = jinja_float(jinja_as_double(self));
    else if (self.type == JINJA_STRING && firn_jinja_parse_float(self.string->data, self.string->size, &real))
        *out = jinja_float(real);
    else
        *out = arg[0].type == JINJA_MISSING ? jinja_float(0) : arg[0];
    return FIRN_OK;
}

NATIVE(filter_round)
{
    int64_t digits;
    const jinja_string *method;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "round's precision", 0, &digits));
    FIRN_TRY(firn_jinja_text_arg(e, arg[1], "round's method", true, &method));
    if (!jinja_is_number(self))
        return firn_jinja_fail(e, "a '%s' object cannot be rounded", firn_jinja_type_name(self));
    digits = digits > 400 ? 400 : digits < -400 ? -400 : digits;
    if (!method || firn_jinja_same_text(method, "common")) {
        if (jinja_is_integer(self) && digits >= 0)
            *out = jinja_int(jinja_as_int(self));
        else if (jinja_is_integer(self))
            *out = jinja_int((int64_t)firn_jinja_round(jinja_as_double(self), (int)digits));
        else
            *out = jinja_float(firn_jinja_round(self.real, (int)digits));
        return FIRN_OK;
    }
    const bool up = firn_jinja_same_text(method, "ceil");
    if (!up && !firn_jinja_same_text(method, "floor"))
        return firn_jinja_fail(e, "round's method must be common, ceil or floor");
    const double scale = pow(10, (double)digits), x = jinja_as_double(self) * scale;
    *out = jinja_float((up ? ceil(x) : floor(x)) / scale);
    return FIRN_OK;
}

NATIVE(filter_filesizeformat)
{
    static const char units[] = "kMGTPEZY";
    const bool binary = firn_jinja_truth(arg[0]);
    const double base = binary ? 1024 : 1000;
    char text[64];
    jinja_value size;

    FIRN_TRY(filter_float(e, self, &(jinja_value){.type = JINJA_NONE}, raw, &size));
    if (size.type != JINJA_FLOAT || !isfinite(size.real))
        return firn_jinja_fail(e, "filesizeformat takes a number");
    if (size.real == 1) {
        snprintf(text, sizeof text, "1 Byte");
    } else if (size.real < base) {
        firn_snprintf(text, sizeof text, "%.0f Bytes", trunc(size.real));
    } else {
        int i = 0;
        double unit = base * base;
        while (size.real >= unit && i < 7) {
            unit *= base;
            i++;
        }
        char prefix = units[i];
        if (binary && prefix == 'k')
            prefix = 'K';
        firn_snprintf(text, sizeof text, "%.1f %c%sB", base * size.real / unit, prefix, binary ? "i" : "");
    }
    return firn_jinja_string(e, text, strlen(text), out);
}

NATIVE(filter_format)
{
    jinja_args args = *raw;
    jinja_value format;

    (void)arg;
    if (args.n && args.n_named)
        return firn_jinja_fail(e, "format takes positional or named arguments, not both");
    FIRN_TRY(firn_jinja_to_string(e, self, &format));
    return firn_jinja_percent(e, format.string, &args, args.n_named == 0, out);
}

static bool is_plain_in_url(char c, bool query)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_.-~", c)) ||
           (!query && c == '/');
}

static firn_status quote(jinja_eval *e, firn_text *text, jinja_value v, bool query)
{
    FIRN_TRY(firn_jinja_to_string(e, v, &v));
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_PRINT * v.string->size));
    for (size_t i = 0; i < v.string->size; i++) {
        const char c = v.string->data[i];
        if (is_plain_in_url(c, query))
            firn_text_putc(text, c);
        else if (query && c == ' ')
            firn_text_putc(text, '+');
        else
            firn_text_printf(text, "%%%02X", (unsigned char)c);
    }
    return text->status;
}

static firn_status urlencode(jinja_eval *e, firn_text *text, jinja_value self)
{
    jinja_list *list;

    if (self.type == JINJA_DICT) {
        for (size_t i = 0; i < self.dict->n; i++) {
            if (i)
                firn_text_putc(text, '&');
            FIRN_TRY(quote(e, text, self.dict->entries[i].key, true));
            firn_text_putc(text, '=');
            FIRN_TRY(quote(e, text, self.dict->entries[i].value, true));
        }
        return FIRN_OK;
    }
    if (!jinja_is_list(self))
        return quote(e, text, self, false);
    FIRN_TRY(firn_jinja_iterate(e, self, &list));
    for (size_t i = 0; i < list->n; i++) {
        jinja_list *pair;
        FIRN_TRY(firn_jinja_iterate(e, list->items[i], &pair));
        if (pair->n != 2)
            return firn_jinja_fail(e, "urlencode takes pairs");
        if (i)
            firn_text_putc(text, '&');
        FIRN_TRY(quote(e, text, pair->items[0], true));
        firn_text_putc(text, '=');
        FIRN_TRY(quote(e, text, pair->items[1], true));
    }
    return FIRN_OK;
}

NATIVE(filter_urlencode)
{
    firn_text text;

    (void)arg, (void)raw;
    firn_jinja_text(e, &text);
    return firn_jinja_finish(e, &text, urlencode(e, &text, self), out);
}

/* ---- texts ---- */

static firn_status indent(jinja_eval *e, firn_text *text, const jinja_string *s, const jinja_string *by, bool first,
                          bool blank)
{
    jinja_string line;
    size_t next = 0, with_end;

    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * s->size + by->size));
    if (first)
        firn_text_append(text, by->data, by->size);
    for (int64_t i = 0; firn_jinja_next_line(s, &next, &line, &with_end); i++) {
        FIRN_TRY(firn_jinja_step(e, by->size));
        if (i)
            firn_text_putc(text, '\n');
        if (i && (blank || line.size))
            firn_text_append(text, by->data, by->size);
        firn_text_append(text, line.data, line.size);
    }
    return text->status;
}

NATIVE(filter_indent)
{
    firn_text text, padded;
    jinja_value by = arg[0], s;
    const jinja_string *lines;

    (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, self, "what indent takes", false, &lines));
    FIRN_TRY(firn_jinja_step(e, lines->size));
    firn_jinja_text(e, &padded); /* one more newline, so that a last empty line counts */
    firn_text_append(&padded, lines->data, lines->size);
    firn_text_putc(&padded, '\n');
    FIRN_TRY(firn_jinja_take(e, &padded, &s));
    if (by.type != JINJA_STRING) {
        int64_t width;
        FIRN_TRY(firn_jinja_int_arg(e, by, "indent's width", 4, &width));
        FIRN_TRY(firn_jinja_view(e, " ", 1, &by));
        FIRN_TRY(firn_jinja_binary(e, JINJA_T_MUL, by, jinja_int(width), &by));
    }
    firn_jinja_text(e, &text);
    return firn_jinja_finish(
        e, &text, indent(e, &text, s.string, by.string, firn_jinja_truth(arg[1]), firn_jinja_truth(arg[2])), out);
}

NATIVE(filter_title)
{
    firn_text text;
    bool begins = true;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    for (size_t i = 0; i < self.string->size; i += firn_jinja_char_size(self.string->data[i])) {
        const uint32_t c = firn_jinja_char_at(self.string->data + i);
        if (firn_jinja_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c))) {
            firn_text_codepoint(&text, c);
            begins = true;
        } else {
            (begins ? firn_jinja_put_upper : firn_jinja_put_lower)(&text, c);
            begins = false;
        }
    }
    return firn_jinja_take(e, &text, out);
}

NATIVE(filter_trim)
{
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    return firn_jinja_strip(e, self, arg, raw, out);
}

NATIVE(filter_replace)
{
    jinja_value bound[3] = {arg[0], arg[1], arg[2]};

    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_to_string(e, arg[0], &bound[0]));
    FIRN_TRY(firn_jinja_to_string(e, arg[1], &bound[1]));
    return firn_jinja_replace(e, self, bound, raw, out);
}

NATIVE(filter_truncate)
{
    int64_t length, leeway;
    jinja_value end = arg[2];
    const jinja_string *tail;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "truncate's length", 255, &length));
    FIRN_TRY(firn_jinja_int_arg(e, arg[3], "truncate's leeway", 5, &leeway));
    if (end.type == JINJA_MISSING)
        FIRN_TRY(firn_jinja_view(e, "...", 3, &end));
    FIRN_TRY(firn_jinja_text_arg(e, end, "truncate's end", false, &tail));
    int64_t tail_length, n;
    FIRN_TRY(firn_jinja_length(e, end, &tail_length));
    if (length < tail_length || leeway < 0)
        return firn_jinja_fail(e, "truncate takes a length of at least %lld and a leeway of at least 0",
                               (long long)tail_length);
    FIRN_TRY(firn_jinja_length(e, self, &n));
    *out = self;
    if (n >= 0 && n - leeway <= length)
        return FIRN_OK;
    if (self.type != JINJA_STRING)
        return firn_jinja_fail(e, "truncate takes a string, not '%s'", firn_jinja_type_name(self));
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * self.string->size));
    const char *s = self.string->data;
    size_t cut = firn_jinja_offset(s, self.string->size, (size_t)(length - tail_length));
    if (!firn_jinja_truth(arg[1])) {
        size_t word = cut;
        while (word && s[word - 1] != ' ')
            word--;
        cut = word ? word - 1 : cut;
    }
    firn_text text;
    firn_jinja_text(e, &text);
    firn_text_append(&text, s, cut);
    firn_text_append(&text, tail->data, tail->size);
    return firn_jinja_take(e, &text, out);
}

/* One paragraph, greedily: words keep the white space between them, lines lose it at their ends (textwrap.wrap). Words
 * may part behind a hyphen between letters. */
static firn_status wrap_line(jinja_eval *e, firn_text *text, const jinja_string *line, int64_t width, bool break_long,
                             bool hyphens, const jinja_string *newline)
{
    const char *s = line->data;
    size_t at = 0, begin = 0, end = 0; /* the output line is [begin, end), trailing space excluded */
    int64_t used = 0, pending = 0;     /* characters of it, and of the space behind it */
    bool first = true, empty = true;

    FIRN_TRY(firn_jinja_step(e, 4 * JINJA_PER_CHAR * line->size));
    while (at < line->size) {
        size_t n = 0;
        const bool space = firn_jinja_is_space(firn_jinja_char_at(s + at));
        while (at + n < line->size && firn_jinja_is_space(firn_jinja_char_at(s + at + n)) == space) {
            const size_t size = firn_jinja_char_size(s[at + n]);
            const bool hyphen = !space && hyphens && s[at + n] == '-' && n && at + n + 1 < line->size &&
                                firn_jinja_is_alpha(firn_jinja_char_at(s + at + n - firn_jinja_last_char(s + at, n))) &&
                                firn_jinja_is_alpha(firn_jinja_char_at(s + at + n + 1));
            n += size;
            if (hyphen)
                break;
        }
        int64_t chars = (int64_t)firn_jinja_chars(s + at, n);
        /* for the next look at it too: a word may be cut, and its rest is looked at again */
        FIRN_TRY(firn_jinja_step(e, 4 * JINJA_PER_CHAR * n + newline->size));
        if (space) {
            if (empty && first && at == 0) { /* leading space of the paragraph stays */
                begin = at;
                end = at + n;
                used = chars;
                empty = false;
            } else if (!empty) {
                pending = chars;
            }
            at += n;
            continue;
        }
        if (!empty && used + pending + chars > width) {
            if (break_long && chars > width && width - used - pending > 0) {
                n = firn_jinja_offset(s + at, n, (size_t)(width - used - pending));
                end = at + n;
                at += n;
            }
            if (!first)
                firn_text_append(text, newline->data, newline->size);
            firn_text_append(text, s + begin, end - begin);
            first = false;
            empty = true;
            used = pending = 0;
            continue;
        }
        if (empty)
            begin = at;
        if (empty && chars > width && break_long) {
            n = firn_jinja_offset(s + at, n, (size_t)width);
            chars = width;
        }
        used += pending + chars;
        pending = 0;
        end = at + n;
        at += n;
        empty = false;
    }
    if (!empty) {
        if (!first)
            firn_text_append(text, newline->data, newline->size);
        firn_text_append(text, s + begin, end - begin);
    }
    return text->status;
}

NATIVE(filter_wordwrap)
{
    int64_t width;
    jinja_value newline = arg[2];
    jinja_string line;
    size_t next = 0, with_end;
    firn_text text;
    firn_status status = FIRN_OK;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "wordwrap's width", 79, &width));
    if (width <= 0)
        return firn_jinja_fail(e, "wordwrap takes a width of at least 1");
    if (!jinja_given(newline))
        FIRN_TRY(firn_jinja_view(e, "\n", 1, &newline));
    if (self.type != JINJA_STRING || newline.type != JINJA_STRING)
        return firn_jinja_fail(e, "wordwrap takes strings");
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    for (int64_t i = 0; status == FIRN_OK && firn_jinja_next_line(self.string, &next, &line, &with_end); i++) {
        status = firn_jinja_step(e, newline.string->size);
        if (i)
            firn_text_append(&text, newline.string->data, newline.string->size);
        if (status == FIRN_OK)
            status = wrap_line(e, &text, &line, width, arg[1].type == JINJA_MISSING || firn_jinja_truth(arg[1]),
                               arg[3].type == JINJA_MISSING || firn_jinja_truth(arg[3]), newline.string);
    }
    return firn_jinja_finish(e, &text, status, out);
}

NATIVE(filter_wordcount)
{
    int64_t n = 0;
    bool inside = false;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    for (size_t i = 0; i < self.string->size; i += firn_jinja_char_size(self.string->data[i])) {
        const uint32_t c = firn_jinja_char_at(self.string->data + i);
        const bool word = c == '_' || firn_jinja_is_alpha(c) || firn_jinja_is_numeric(c);
        n += word && !inside;
        inside = word;
    }
    *out = jinja_int(n);
    return FIRN_OK;
}

const jinja_row firn_jinja_filters[] = {
    {"abs", filter_abs, "", 0},
    {"attr", filter_attr, "name", 1},
    {"capitalize", firn_jinja_capitalize, "", 0},
    {"center", firn_jinja_center, "width", 0},
    {"count", filter_length, "", 0},
    {"d", filter_default, "default_value boolean", 0},
    {"default", filter_default, "default_value boolean", 0},
    {"filesizeformat", filter_filesizeformat, "binary", 0},
    {"float", filter_float, "default", 0},
    {"format", filter_format, NULL, 0},
    {"indent", filter_indent, "width first blank", 0},
    {"int", filter_int, "default base", 0},
    {"length", filter_length, "", 0},
    {"lower", firn_jinja_lower, "", 0},
    {"replace", filter_replace, "old new count", 2},
    {"round", filter_round, "precision method", 0},
    {"string", filter_string, "", 0},
    {"title", filter_title, "", 0},
    {"tojson", firn_jinja_tojson, "ensure_ascii indent separators sort_keys", 0},
    {"trim", filter_trim, "chars", 0},
    {"truncate", filter_truncate, "length killwords end leeway", 0},
    {"upper", firn_jinja_upper, "", 0},
    {"urlencode", filter_urlencode, "", 0},
    {"wordcount", filter_wordcount, "", 0},
    {"wordwrap", filter_wordwrap, "width break_long_words wrapstring break_on_hyphens", 0},
    {0},
};

const jinja_row *firn_jinja_find_row(const jinja_row *rows, const jinja_string *name)
{
    for (const jinja_row *r = rows; r->name; r++)
        if (firn_jinja_same_text(name, r->name))
            return r;
    return NULL;
}

const jinja_row *firn_jinja_find_filter(const jinja_string *name)
{
    static const jinja_row *const tables[] = {firn_jinja_filters, firn_jinja_sequence_filters,
                                              firn_jinja_markup_filters};
    const jinja_row *row = NULL;

    for (size_t i = 0; !row && i < sizeof tables / sizeof *tables; i++)
        row = firn_jinja_find_row(tables[i], name);
    return row;
}
