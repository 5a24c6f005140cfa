/* Formatted text: the % operator and str.format, as CPython does each. */
#include "jinja/eval.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PRECISION = 400 };

/* ---- formatted numbers and texts, for % and str.format ---- */

typedef struct {
    char fill[5], align, sign, type;
    bool alternate, zero, comma;
    int64_t width, precision; /* precision -1: not given */
} format_spec;

static firn_status pad(jinja_eval *e, firn_text *out, const format_spec *spec, char align, const char *sign,
                       const char *body, size_t size)
{
    FIRN_TRY(firn_jinja_step(e, size));
    const size_t n = strlen(sign) + firn_jinja_chars(body, size);
    const size_t width = spec->width > 0 ? (size_t)spec->width : 0;
    const size_t fill = width > n ? width - n : 0;

    if (width > e->limits.memory)
        return firn_fail(e->ctx, FIRN_ERR_MEMORY,
                         "chat template, line %d: a width of %zu passes the limit of %zu bytes", e->line, width,
                         e->limits.memory);
    FIRN_TRY(firn_jinja_step(e, size + JINJA_PER_CHAR * fill));
    const size_t left = align == '>' ? fill : align == '^' ? fill / 2 : 0;
    if (align == '=')
        firn_text_puts(out, sign);
    for (size_t i = 0; i < (align == '=' ? fill : left); i++)
        firn_text_puts(out, spec->fill);
    if (align != '=')
        firn_text_puts(out, sign);
    firn_text_append(out, body, size);
    for (size_t i = 0; align != '=' && i < fill - left; i++)
        firn_text_puts(out, spec->fill);
    return out->status;
}

static char number_align(const format_spec *spec)
{
    return spec->align ? spec->align : spec->zero ? '=' : '>';
}

/* Puts commas between groups of three before the point. */
static void group(char *text, size_t room)
{
    char grouped[MAX_PRECISION + 800];
    const size_t whole = strspn(text, "0123456789");
    size_t n = 0;

    for (size_t i = 0; text[i] && n + 2 < sizeof grouped; i++) {
        if (i && i < whole && (whole - i) % 3 == 0)
            grouped[n++] = ',';
        grouped[n++] = text[i];
    }
    grouped[n] = 0;
    snprintf(text, room, "%s", grouped);
}

static firn_status put_float(jinja_eval *e, firn_text *out, const format_spec *spec, double x)
{
    char text[MAX_PRECISION + 800], format[16];
    const int precision = spec->precision < 0 ? 6 : (int)firn_min_i64(spec->precision, MAX_PRECISION + 1);
    const char *sign = signbit(x) && !isnan(x) ? "-" : spec->sign == '+' ? "+" : spec->sign == ' ' ? " " : "";

    if (precision > MAX_PRECISION)
        return firn_jinja_fail(e, "a precision of more than %d digits", MAX_PRECISION);
    if (spec->type == 'r') {
        firn_jinja_float_text(fabs(x), text);
    } else {
        snprintf(format, sizeof format, "%%%s.*%c", spec->alternate ? "#" : "", spec->type == '%' ? 'f' : spec->type);
        firn_snprintf(text, sizeof text - 2, format, precision, spec->type == '%' ? fabs(x) * 100 : fabs(x));
        if (spec->type == '%')
            strcat(text, "%");
    }
    if (spec->comma)
        group(text, sizeof text);
    return pad(e, out, spec, number_align(spec), sign, text, strlen(text));
}

static firn_status put_int(jinja_eval *e, firn_text *out, const format_spec *spec, int64_t value)
{
    char digits[MAX_PRECISION + 800], sign[8];
    const int base = spec->type == 'x' || spec->type == 'X' ? 16 : spec->type == 'o' ? 8 : spec->type == 'b' ? 2 : 10;
    uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    size_t at = sizeof digits - 1;

    digits[at] = 0;
    do {
        digits[--at] = (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[v % (unsigned)base];
        v /= (unsigned)base;
    } while (v);
    if (spec->precision > MAX_PRECISION)
        return firn_jinja_fail(e, "a precision of more than %d digits", MAX_PRECISION);
    while ((int64_t)(sizeof digits - 1 - at) < spec->precision)
        digits[--at] = '0';
    memmove(digits, digits + at, sizeof digits - at);
    if (spec->comma)
        group(digits, sizeof digits);
    snprintf(sign, sizeof sign, "%s%s",
             value < 0           ? "-"
             : spec->sign == '+' ? "+"
             : spec->sign == ' ' ? " "
                                 : "",
             !spec->alternate || base == 10 ? ""
             : base == 2                    ? "0b"
             : base == 8                    ? "0o"
             : spec->type == 'X'            ? "0X"
                                            : "0x");
    return pad(e, out, spec, number_align(spec), sign, digits, strlen(digits));
}

static firn_status put_text(jinja_eval *e, firn_text *out, const format_spec *spec, jinja_value v, bool repr)
{
    firn_text text;

    firn_jinja_text(e, &text);
    firn_status status = repr ? firn_jinja_repr(e, &text, v, 0) : firn_jinja_str(e, &text, v);
    if (status == FIRN_OK) {
        size_t size = text.size;
        if (spec->precision >= 0 && (status = firn_jinja_step(e, JINJA_PER_CHAR * size)) == FIRN_OK)
            size = firn_jinja_offset(firn_text_cstr(&text), size, (size_t)spec->precision);
        if (status == FIRN_OK)
            status = pad(e, out, spec, spec->align ? spec->align : '<', "", firn_text_cstr(&text), size);
    }
    firn_text_free(&text);
    return status;
}

/* ---- the % operator ---- */

typedef struct {
    const jinja_args *args;
    size_t next;
} percent_args;

static firn_status next_arg(jinja_eval *e, percent_args *p, jinja_value *v)
{
    if (p->next >= p->args->n)
        return firn_jinja_fail(e, "not enough arguments for format string");
    *v = p->args->items[p->next++];
    return FIRN_OK;
}

/* The named argument of that name, MISSING where there is none; the last one where there are several. */
static firn_status named_arg(jinja_eval *e, const jinja_args *args, const char *name, size_t size, jinja_value *v)
{
    *v = (jinja_value){.type = JINJA_MISSING};
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * args->n_named));
    for (size_t k = 0; k < args->n_named; k++) {
        const jinja_entry *entry = &args->named[k];
        if (entry->key.type != JINJA_STRING || entry->key.string->size != size)
            continue;
        FIRN_TRY(firn_jinja_step(e, size));
        if (memcmp(entry->key.string->data, name, size) == 0)
            *v = entry->value;
    }
    return FIRN_OK;
}

/* A number or *, at f[*i]. */
static firn_status count(jinja_eval *e, const jinja_string *f, size_t *i, percent_args *p, int64_t *out)
{
    *out = 0;
    if (*i < f->size && f->data[*i] == '*') {
        jinja_value v;
        ++*i;
        FIRN_TRY(next_arg(e, p, &v));
        return firn_jinja_int_arg(e, v, "'*'", 0, out);
    }
    for (; *i < f->size && f->data[*i] >= '0' && f->data[*i] <= '9'; ++*i)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, f->data[*i] - '0', out))
            return firn_jinja_fail(e, "a width in a format string is too large");
    return FIRN_OK;
}

static firn_status convert(jinja_eval *e, firn_text *out, format_spec *spec, jinja_value v)
{
    switch (spec->type) {
    case 's':
    case 'r':
    case 'a':
        if (spec->align != '<')
            spec->align = '>';
        return put_text(e, out, spec, v, spec->type != 's');
    case 'c':
        if (v.type == JINJA_STRING && v.string->size && firn_jinja_char_size(*v.string->data) == v.string->size)
            return put_text(e, out, spec, v, false);
        if (jinja_is_integer(v) && jinja_as_int(v) > 0 && jinja_as_int(v) <= 0x10FFFF) {
            firn_text_codepoint(out, (uint32_t)jinja_as_int(v));
            return out->status;
        }
        return firn_jinja_fail(e, "%%c requires int or char");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (v.type == JINJA_FLOAT && strchr("diu", spec->type)) {
            if (!(fabs(v.real) < 9e18))
                return firn_jinja_fail(e, "%%%c: the float does not fit 64 bits", spec->type);
            v = jinja_int((int64_t)v.real);
        }
        if (!jinja_is_integer(v))
            return v.type == JINJA_UNDEFINED ? firn_jinja_fail_undefined(e, v)
                                             : firn_jinja_fail(e, "%%%c format: a number is required, not %s",
                                                               spec->type, firn_jinja_type_name(v));
        return put_int(e, out, spec, jinja_as_int(v));
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (!jinja_is_number(v))
            return v.type == JINJA_UNDEFINED
                       ? firn_jinja_fail_undefined(e, v)
                       : firn_jinja_fail(e, "must be real number, not %s", firn_jinja_type_name(v));
        return put_float(e, out, spec, jinja_as_double(v));
    default:
        return firn_jinja_fail(e, "unsupported format character '%c'", spec->type);
    }
}

static firn_status percent(jinja_eval *e, firn_text *out, const jinja_string *f, const jinja_args *args, bool all)
{
    percent_args p = {.args = args};
    bool mapped = false;

    for (size_t i = 0; i < f->size;) {
        FIRN_TRY(firn_jinja_step(e, 0));
        const char *next = memchr(f->data + i, '%', f->size - i);
        const size_t plain = next ? (size_t)(next - f->data) - i : f->size - i;
        firn_text_append(out, f->data + i, plain);
        i += plain + 1;
        if (!next)
            break;
        format_spec spec = {.fill = " ", .precision = -1};
        jinja_value v = {.type = JINJA_MISSING};
        if (i < f->size && f->data[i] == '(') {
            const char *end = memchr(f->data + i, ')', f->size - i);
            if (!end)
                return firn_jinja_fail(e, "incomplete format key");
            mapped = true;
            FIRN_TRY(named_arg(e, args, f->data + i + 1, (size_t)(end - f->data) - i - 1, &v));
            if (v.type == JINJA_MISSING)
                return firn_jinja_fail(e, "the format string names a key that was not given");
            i = (size_t)(end - f->data) + 1;
        }
        for (; i < f->size && f->data[i] && strchr("#0- +", f->data[i]); i++) {
            const char c = f->data[i];
            if (c == '#')
                spec.alternate = true;
            else if (c == '0')
                spec.zero = true;
            else if (c == '-')
                spec.align = '<';
            else if (spec.sign != '+')
                spec.sign = c;
        }
        FIRN_TRY(count(e, f, &i, &p, &spec.width));
        if (spec.width < 0) {
            spec.align = '<';
            spec.width = spec.width == INT64_MIN ? INT64_MAX : -spec.width;
        }
        if (i < f->size && f->data[i] == '.') {
            i++;
            FIRN_TRY(count(e, f, &i, &p, &spec.precision));
            if (spec.precision < 0)
                spec.precision = 0;
        }
        while (i < f->size && f->data[i] && strchr("hlL", f->data[i]))
            i++;
        if (i >= f->size)
            return firn_jinja_fail(e, "incomplete format");
        spec.type = f->data[i++];
        if (spec.type == '%') {
            firn_text_putc(out, '%');
            continue;
        }
        if (v.type == JINJA_MISSING)
            FIRN_TRY(next_arg(e, &p, &v));
        if (spec.zero && !spec.align && strchr("diuxXoeEfFgG", spec.type))
            spec.fill[0] = '0';
        FIRN_TRY(convert(e, out, &spec, v));
    }
    if (!mapped && all && p.next < args->n)
        return firn_jinja_fail(e, "not all arguments converted during string formatting");
    return out->status;
}

firn_status firn_jinja_percent(jinja_eval *e, const jinja_string *format, const jinja_args *args, bool all,
                               jinja_value *out)
{
    firn_text text;

    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * format->size));
    firn_jinja_text(e, &text);
    return firn_jinja_finish(e, &text, percent(e, &text, format, args, all), out);
}

/* ---- str.format: {}, {0}, {name}, {a.b[c]}, !r, and [[fill]align][sign][#][0][width][,][.precision][type] ---- */

/* *numbering counts the fields without a number, or is -1 once one has a number. */
static firn_status field(jinja_eval *e, const char *s, size_t size, const jinja_args *args, int64_t *numbering,
                         jinja_value *out)
{
    size_t n = 0;
    int64_t index;

    while (n < size && s[n] != '.' && s[n] != '[')
        n++;
    if (n == 0 || firn_jinja_parse_int(s, n, 10, &index)) {
        if (n == 0 ? *numbering < 0 : *numbering > 0)
            return firn_jinja_fail(e, "a format string mixes fields with and without numbers");
        const size_t i = n == 0 ? (size_t)(*numbering)++ : (size_t)index;
        if (n)
            *numbering = -1;
        if (i >= args->n)
            return firn_jinja_fail(e, "Replacement index %zu out of range for positional args tuple", i);
        *out = args->items[i];
    } else {
        FIRN_TRY(named_arg(e, args, s, n, out));
        if (out->type == JINJA_MISSING)
            return firn_jinja_fail(e, "the format string names a key that was not given");
    }
    while (n < size) {
        const bool item = s[n] == '[';
        const size_t begin = ++n;
        while (n < size && (item ? s[n] != ']' : s[n] != '.' && s[n] != '['))
            n++;
        jinja_value key;
        FIRN_TRY(firn_jinja_view(e, s + begin, n - begin, &key));
        if (!item)
            FIRN_TRY(firn_jinja_attribute(e, *out, key.string, out));
        else if (firn_jinja_parse_int(s + begin, n - begin, 10, &index))
            FIRN_TRY(firn_jinja_item(e, *out, jinja_int(index), out));
        else
            FIRN_TRY(firn_jinja_item(e, *out, key, out));
        n += item && n < size;
        if (n < size && s[n] != '.' && s[n] != '[')
            return firn_jinja_fail(e, "a field of a format string cannot be read");
    }
    return FIRN_OK;
}

static firn_status read_spec(jinja_eval *e, const char *s, size_t size, format_spec *spec)
{
    const jinja_string text = {s, size};
    size_t i = 0;

    *spec = (format_spec){.fill = " ", .precision = -1};
    const size_t first = size ? firn_jinja_char_size(*s) : 0;
    if (first && first < size && strchr("<>^=", s[first]) && s[first]) {
        memset(spec->fill, 0, sizeof spec->fill);
        memcpy(spec->fill, s, first);
        spec->align = s[first];
        i = first + 1;
    } else if (size && *s && strchr("<>^=", *s)) {
        spec->align = s[i++];
    }
    if (i < size && (s[i] == '+' || s[i] == '-' || s[i] == ' '))
        spec->sign = s[i++];
    if (i < size && s[i] == '#') {
        spec->alternate = true;
        i++;
    }
    if (i < size && s[i] == '0' && !spec->align) {
        spec->zero = true;
        memcpy(spec->fill, "0", 2);
    }
    FIRN_TRY(count(e, &text, &i, &(percent_args){.args = &(jinja_args){0}}, &spec->width));
    if (i < size && s[i] == ',') {
        spec->comma = true;
        i++;
    }
    if (i < size && s[i] == '.') {
        i++;
        FIRN_TRY(count(e, &text, &i, &(percent_args){.args = &(jinja_args){0}}, &spec->precision));
    }
    if (i < size)
        spec->type = s[i++];
    return i == size ? FIRN_OK : firn_jinja_fail(e, "a format specifier cannot be read");
}

static firn_status put_formatted(jinja_eval *e, firn_text *out, format_spec *spec, jinja_value v)
{
    if (v.type == JINJA_INT || (v.type == JINJA_BOOL && spec->type && spec->type != 's')) {
        if (!spec->type || strchr("dxXobn", spec->type))
            return put_int(e, out, spec, jinja_as_int(v));
        if (strchr("eEfFgG%", spec->type))
            return put_float(e, out, spec, jinja_as_double(v));
    } else if (v.type == JINJA_FLOAT) {
        if (!spec->type) {
            spec->type = spec->precision < 0 ? 'r' : 'g';
            return put_float(e, out, spec, v.real);
        }
        if (strchr("eEfFgG%", spec->type))
            return put_float(e, out, spec, v.real);
    } else if (!spec->type || spec->type == 's') {
        return put_text(e, out, spec, v, false);
    }
    return firn_jinja_fail(e, "unknown format code '%c' for object of type '%s'", spec->type, firn_jinja_type_name(v));
}

static firn_status str_format(jinja_eval *e, firn_text *out, const jinja_string *f, const jinja_args *args)
{
    int64_t numbering = 0;

    for (size_t i = 0; i < f->size; i++) {
        const char c = f->data[i];
        const bool twice = i + 1 < f->size && f->data[i + 1] == c;
        if (c != '{' && c != '}') {
            firn_text_putc(out, c);
            continue;
        }
        if (twice) {
            firn_text_putc(out, c);
            i++;
            continue;
        }
        if (c == '}')
            return firn_jinja_fail(e, "Single '}' encountered in format string");
        FIRN_TRY(firn_jinja_step(e, 0));
        const size_t begin = i + 1;
        const char *end = memchr(f->data + begin, '}', f->size - begin);
        if (!end)
            return firn_jinja_fail(e, "Single '{' encountered in format string");
        size_t size = (size_t)(end - f->data) - begin;
        i = begin + size;
        if (memchr(f->data + begin, '{', size))
            return firn_jinja_fail(e, "fields inside of fields of a format string are not supported");
        format_spec spec;
        const char *colon = memchr(f->data + begin, ':', size);
        const size_t spec_at = colon ? (size_t)(colon - f->data) - begin + 1 : size;
        FIRN_TRY(read_spec(e, f->data + begin + spec_at, size - spec_at, &spec));
        size = colon ? spec_at - 1 : size;
        char conversion = 0;
        if (size >= 2 && f->data[begin + size - 2] == '!') {
            conversion = f->data[begin + size - 1];
            size -= 2;
        }
        jinja_value v;
        FIRN_TRY(field(e, f->data + begin, size, args, &numbering, &v));
        if (conversion)
            FIRN_TRY(put_text(e, out, &spec, v, conversion != 's'));
        else
            FIRN_TRY(put_formatted(e, out, &spec, v));
    }
    return out->status;
}

firn_status firn_jinja_str_format(jinja_eval *e, const jinja_string *format, const jinja_args *args, jinja_value *out)
{
    firn_text text;

    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * format->size));
    firn_jinja_text(e, &text);
    return firn_jinja_finish(e, &text, str_format(e, &text, format, args), out);
}
