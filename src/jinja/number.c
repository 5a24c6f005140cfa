/* Arithmetic as Python does it: / gives floats, // and % round down, ** of whole numbers stays whole. Whole numbers
 * have 64 bits here; what would pass them is an error, never a wrapped number. */
#include "jinja/eval.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *operator_text(jinja_token_type op)
{
    switch (op) {
    case JINJA_T_ADD:
        return "+";
    case JINJA_T_SUB:
        return "-";
    case JINJA_T_MUL:
        return "*";
    case JINJA_T_DIV:
        return "/";
    case JINJA_T_FLOORDIV:
        return "//";
    case JINJA_T_MOD:
        return "%";
    default:
        return "** or pow()";
    }
}

static firn_status too_large(jinja_eval *e)
{
    return firn_jinja_fail(e, "a whole number passes 64 bits");
}

/* a ** b of whole numbers, b >= 0. */
static bool power(int64_t a, int64_t b, int64_t *out)
{
    *out = 1;
    while (b) {
        if ((b & 1) && __builtin_mul_overflow(*out, a, out))
            return false;
        b >>= 1;
        if (b && __builtin_mul_overflow(a, a, &a))
            return false;
    }
    return true;
}

static firn_status whole(jinja_eval *e, jinja_token_type op, int64_t a, int64_t b, jinja_value *out)
{
    int64_t r = 0;

    switch (op) {
    case JINJA_T_ADD:
        if (__builtin_add_overflow(a, b, &r))
            return too_large(e);
        break;
    case JINJA_T_SUB:
        if (__builtin_sub_overflow(a, b, &r))
            return too_large(e);
        break;
    case JINJA_T_MUL:
        if (__builtin_mul_overflow(a, b, &r))
            return too_large(e);
        break;
    case JINJA_T_FLOORDIV:
    case JINJA_T_MOD:
        if (b == 0)
            return firn_jinja_fail(e, "integer division or modulo by zero");
        if (b == -1) {
            if (op == JINJA_T_FLOORDIV && a == INT64_MIN)
                return too_large(e);
            r = op == JINJA_T_FLOORDIV ? -a : 0;
            break;
        }
        r = op == JINJA_T_FLOORDIV ? a / b : a % b;
        if (a % b != 0 && (a % b < 0) != (b < 0))
            r += op == JINJA_T_FLOORDIV ? -1 : b;
        break;
    default: /* ** with b >= 0 */
        if (!power(a, b, &r))
            return too_large(e);
        break;
    }
    *out = jinja_int(r);
    return FIRN_OK;
}

static firn_status real(jinja_eval *e, jinja_token_type op, double a, double b, jinja_value *out)
{
    double r;

    if (b == 0 && (op == JINJA_T_DIV || op == JINJA_T_FLOORDIV || op == JINJA_T_MOD))
        return firn_jinja_fail(e, "division by zero");
    switch (op) {
    case JINJA_T_ADD:
        r = a + b;
        break;
    case JINJA_T_SUB:
        r = a - b;
        break;
    case JINJA_T_MUL:
        r = a * b;
        break;
    case JINJA_T_DIV:
        r = a / b;
        break;
    case JINJA_T_FLOORDIV:
    case JINJA_T_MOD: {
        double mod = fmod(a, b);
        double div = (a - mod) / b;
        if (mod != 0 && (b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        } else if (mod == 0) {
            mod = copysign(0, b);
        }
        double floored = floor(div);
        floored += div - floored > 0.5;
        r = op == JINJA_T_MOD ? mod : div != 0 ? floored : copysign(0, a / b);
        break;
    }
    default:
        if (a == 0 && b < 0)
            return firn_jinja_fail(e, "0.0 cannot be raised to a negative power");
        r = pow(a, b);
        if (isnan(r) && !isnan(a) && !isnan(b))
            return firn_jinja_fail(e, "a power of a negative number is not real");
        if (isinf(r) && isfinite(a) && isfinite(b))
            return firn_jinja_fail(e, "a power is too large for a float");
        break;
    }
    *out = jinja_float(r);
    return FIRN_OK;
}

/* A string or list n times. */
static firn_status repeat(jinja_eval *e, jinja_value v, int64_t n, jinja_value *out)
{
    size_t total;
    const size_t size = v.type == JINJA_STRING ? v.string->size : v.list->n;

    if (n < 0)
        n = 0;
    if (!firn_mul_size(size, (size_t)n, &total) || total > e->limits.memory)
        return firn_fail(e->ctx, FIRN_ERR_MEMORY,
                         "chat template, line %d: repeating %zu %s %lld times passes the limit of %zu bytes", e->line,
                         size, v.type == JINJA_STRING ? "bytes" : "items", (long long)n, e->limits.memory);
    if (size == 0)
        n = 0;
    if (v.type == JINJA_STRING) {
        FIRN_TRY(firn_jinja_step(e, total));
        FIRN_TRY(firn_jinja_step(e, (size_t)n));
        char *data = firn_arena_alloc(&e->arena, total + 1);
        if (!data)
            return FIRN_ERR_MEMORY;
        for (size_t i = 0; i < (size_t)n; i++)
            memcpy(data + i * size, v.string->data, size);
        FIRN_TRY(firn_jinja_view(e, data, total, out));
        out->flag = v.flag;
        return FIRN_OK;
    }
    FIRN_TRY(firn_jinja_list(e, (jinja_type)v.type, total, out));
    for (size_t i = 0; i < (size_t)n; i++)
        memcpy(out->list->items + i * size, v.list->items, size * sizeof *v.list->items);
    return FIRN_OK;
}

/* Two strings; where one is marked safe the other is escaped first, as markupsafe does. */
static firn_status join(jinja_eval *e, jinja_value a, jinja_value b, jinja_value *out)
{
    FIRN_TRY(firn_jinja_step(e, a.string->size + b.string->size));
    if (a.flag != b.flag) {
        firn_text text;
        firn_status status = FIRN_OK;
        firn_jinja_text(e, &text);
        for (int i = 0; i < 2 && status == FIRN_OK; i++) {
            const jinja_value *v = i ? &b : &a;
            if (v->flag)
                firn_text_append(&text, v->string->data, v->string->size);
            else
                status = firn_jinja_escape(e, &text, v->string);
        }
        if (status != FIRN_OK) {
            firn_text_free(&text);
            return status;
        }
        FIRN_TRY(firn_jinja_take(e, &text, out));
        out->flag = 1;
        return FIRN_OK;
    }
    char *data = firn_arena_alloc(&e->arena, a.string->size + b.string->size + 1);
    if (!data)
        return FIRN_ERR_MEMORY;
    memcpy(data, a.string->data, a.string->size);
    memcpy(data + a.string->size, b.string->data, b.string->size);
    FIRN_TRY(firn_jinja_view(e, data, a.string->size + b.string->size, out));
    out->flag = a.flag;
    return FIRN_OK;
}

firn_status firn_jinja_binary(jinja_eval *e, jinja_token_type op, jinja_value a, jinja_value b, jinja_value *out)
{
    FIRN_TRY(firn_jinja_step(e, 0));
    if (a.type == JINJA_UNDEFINED || b.type == JINJA_UNDEFINED) {
        if (op == JINJA_T_MOD && a.type == JINJA_STRING && b.type == JINJA_UNDEFINED)
            goto format; /* "%s" % undefined prints nothing */
        return firn_jinja_fail_undefined(e, a.type == JINJA_UNDEFINED ? a : b);
    }
    if (jinja_is_number(a) && jinja_is_number(b)) {
        if (a.type == JINJA_FLOAT || b.type == JINJA_FLOAT || op == JINJA_T_DIV ||
            (op == JINJA_T_POW && jinja_as_int(b) < 0))
            return real(e, op, jinja_as_double(a), jinja_as_double(b), out);
        return whole(e, op, jinja_as_int(a), jinja_as_int(b), out);
    }
    if (op == JINJA_T_ADD && a.type == b.type) {
        if (a.type == JINJA_STRING)
            return join(e, a, b, out);
        if (a.type == JINJA_LIST || a.type == JINJA_TUPLE) {
            FIRN_TRY(firn_jinja_list(e, (jinja_type)a.type, a.list->n + b.list->n, out));
            memcpy(out->list->items, a.list->items, a.list->n * sizeof *a.list->items);
            memcpy(out->list->items + a.list->n, b.list->items, b.list->n * sizeof *b.list->items);
            return FIRN_OK;
        }
    }
    if (op == JINJA_T_MUL) {
        const bool left = a.type == JINJA_STRING || a.type == JINJA_LIST || a.type == JINJA_TUPLE;
        const bool right = b.type == JINJA_STRING || b.type == JINJA_LIST || b.type == JINJA_TUPLE;
        if (left && jinja_is_integer(b))
            return repeat(e, a, jinja_as_int(b), out);
        if (right && jinja_is_integer(a))
            return repeat(e, b, jinja_as_int(a), out);
    }
    if (op == JINJA_T_MOD && a.type == JINJA_STRING) {
    format:;
        jinja_args args = {.items = &b, .n = 1};
        if (b.type == JINJA_TUPLE) {
            args = (jinja_args){.items = b.list->items, .n = b.list->n};
        } else if (b.type == JINJA_DICT) {
            args = (jinja_args){.named = b.dict->entries, .n_named = b.dict->n, .items = &b, .n = 1};
        }
        /* Python takes what can be indexed, but is neither tuple nor string, for a mapping: it need not be used up. */
        const bool all = b.type == JINJA_TUPLE || (b.type > JINJA_UNDEFINED && b.type <= JINJA_STRING);
        return firn_jinja_percent(e, a.string, &args, all, out);
    }
    return firn_jinja_fail(e, "unsupported operand type(s) for %s: '%s' and '%s'", operator_text(op),
                           firn_jinja_type_name(a), firn_jinja_type_name(b));
}

firn_status firn_jinja_negate(jinja_eval *e, jinja_value v, jinja_value *out)
{
    if (v.type == JINJA_FLOAT) {
        *out = jinja_float(-v.real);
        return FIRN_OK;
    }
    if (!jinja_is_integer(v))
        return v.type == JINJA_UNDEFINED
                   ? firn_jinja_fail_undefined(e, v)
                   : firn_jinja_fail(e, "bad operand type for unary -: '%s'", firn_jinja_type_name(v));
    if (jinja_as_int(v) == INT64_MIN)
        return too_large(e);
    *out = jinja_int(-jinja_as_int(v));
    return FIRN_OK;
}

/* ---- numbers in text ---- */

static void trim(const char **s, size_t *size)
{
    while (*size && firn_jinja_is_space(firn_jinja_char_at(*s))) {
        const size_t n = firn_jinja_char_size(**s);
        *s += n;
        *size -= n;
    }
    while (*size) {
        const size_t n = firn_jinja_last_char(*s, *size);
        if (!firn_jinja_is_space(firn_jinja_char_at(*s + *size - n)))
            break;
        *size -= n;
    }
}

static int digit_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'z' ? c - 'a' + 10
           : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                  : 99;
}

bool firn_jinja_parse_int(const char *s, size_t size, int base, int64_t *value)
{
    bool negative = false;
    int64_t v = 0;

    trim(&s, &size);
    if (size && (*s == '-' || *s == '+')) {
        negative = *s == '-';
        s++;
        size--;
    }
    if (base != 0 && (base < 2 || base > 36))
        return false;
    if (size > 2 && s[0] == '0') {
        const int marked = s[1] == 'x' || s[1] == 'X'   ? 16
                           : s[1] == 'o' || s[1] == 'O' ? 8
                           : s[1] == 'b' || s[1] == 'B' ? 2
                                                        : 0;
        if (marked && (base == marked || base == 0)) {
            base = marked;
            s += 2;
            size -= 2;
            if (*s == '_') {
                s++;
                size--;
            }
        }
    }
    if (base == 0) {
        base = 10;
        if (size > 1 && s[0] == '0') { /* only zeros may follow */
            for (size_t i = 0; i < size; i++)
                if (s[i] != '0' && s[i] != '_')
                    return false;
        }
    }
    if (!size)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (s[i] == '_' && i && i + 1 < size && s[i - 1] != '_')
            continue;
        if (digit_value(s[i]) >= base || __builtin_mul_overflow(v, base, &v) ||
            __builtin_sub_overflow(v, digit_value(s[i]), &v))
            return false;
    }
    if (!negative && v == INT64_MIN)
        return false;
    *value = negative ? v : -v;
    return true;
}

bool firn_jinja_parse_float(const char *s, size_t size, double *value)
{
    char text[1024];
    size_t n = 0;
    char *end;

    trim(&s, &size);
    if (!size || size >= sizeof text)
        return false;
    for (size_t i = 0; i < size; i++) {
        const bool digit = s[i] >= '0' && s[i] <= '9';
        if (s[i] == '_') {
            if (!i || i + 1 == size || digit_value(s[i - 1]) > 9 || digit_value(s[i + 1]) > 9)
                return false;
            continue;
        }
        if (!digit && !strchr("+-.eEinfatyINFATY", s[i])) /* no hexadecimal floats, no "nan(...)" */
            return false;
        text[n++] = s[i];
    }
    text[n] = 0;
    *value = firn_strtod(text, &end);
    return end != text && *end == 0;
}

double firn_jinja_round(double x, int digits)
{
    char text[400];
    char *end;

    if (!isfinite(x) || digits > 300)
        return x;
    if (digits >= 0) { /* the decimal expansion, rounded half to even by printf, is what Python rounds too */
        firn_snprintf(text, sizeof text, "%.*f", digits, x);
        return firn_strtod(text, &end);
    }
    if (digits < -308)
        return copysign(0, x);
    const double scale = pow(10, -digits);
    return nearbyint(x / scale) * scale;
}

firn_status firn_jinja_int_arg(jinja_eval *e, jinja_value v, const char *what, int64_t otherwise, int64_t *out)
{
    if (v.type == JINJA_MISSING || v.type == JINJA_NONE) {
        *out = otherwise;
        return FIRN_OK;
    }
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    if (!jinja_is_integer(v))
        return firn_jinja_fail(e, "%s must be a whole number, not '%s'", what, firn_jinja_type_name(v));
    *out = jinja_as_int(v);
    return FIRN_OK;
}

firn_status firn_jinja_text_arg(jinja_eval *e, jinja_value v, const char *what, bool optional, const jinja_string **out)
{
    if (optional && (v.type == JINJA_MISSING || v.type == JINJA_NONE)) {
        *out = NULL;
        return FIRN_OK;
    }
    if (v.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, v);
    if (v.type != JINJA_STRING)
        return firn_jinja_fail(e, "%s must be a string, not '%s'", what, firn_jinja_type_name(v));
    *out = v.string;
    return FIRN_OK;
}
