/* Methods of strings: characters, ends, padding. */
#include "jinja/eval.h"

#include <string.h>

/* ---- characters ---- */

typedef void put_char(firn_text *out, uint32_t c);

/* Applies a mapping to each character; `first` to the first one where it is given. */
static firn_status map_chars(jinja_eval *e, jinja_value self, put_char *first, put_char *rest, jinja_value *out)
{
    firn_text text;

    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    for (size_t i = 0; i < self.string->size; i += firn_jinja_char_size(self.string->data[i]))
        (i == 0 && first ? first : rest)(&text, firn_jinja_char_at(self.string->data + i));
    return firn_jinja_take(e, &text, out);
}

SHARED(firn_jinja_upper)
{
    (void)arg, (void)raw;
    return map_chars(e, self, NULL, firn_jinja_put_upper, out);
}

SHARED(firn_jinja_lower)
{
    (void)arg, (void)raw;
    return map_chars(e, self, NULL, firn_jinja_put_lower, out);
}

SHARED(firn_jinja_capitalize)
{
    (void)arg, (void)raw;
    return map_chars(e, self, firn_jinja_put_title, firn_jinja_put_lower, out);
}

/* Nearly Python's: the lower case of the upper case (ß becomes ss). */
NATIVE(str_casefold)
{
    (void)arg, (void)raw;
    FIRN_TRY(map_chars(e, self, NULL, firn_jinja_put_upper, out));
    return map_chars(e, *out, NULL, firn_jinja_put_lower, out);
}

static void put_swapped(firn_text *out, uint32_t c)
{
    if (firn_jinja_is_upper(c))
        firn_jinja_put_lower(out, c);
    else
        firn_jinja_put_upper(out, c);
}

NATIVE(str_swapcase)
{
    (void)arg, (void)raw;
    return map_chars(e, self, NULL, put_swapped, out);
}

NATIVE(str_title)
{
    firn_text text;
    bool inside = false;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    for (size_t i = 0; i < self.string->size; i += firn_jinja_char_size(self.string->data[i])) {
        const uint32_t c = firn_jinja_char_at(self.string->data + i);
        (inside ? firn_jinja_put_lower : firn_jinja_put_title)(&text, c);
        inside = firn_jinja_is_upper(c) || firn_jinja_is_lower(c);
    }
    return firn_jinja_take(e, &text, out);
}

/* True when there is a character and each one passes. */
static firn_status every(jinja_eval *e, jinja_value self, bool (*test)(uint32_t), jinja_value *out)
{
    bool all = self.string->size != 0;

    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    for (size_t i = 0; i < self.string->size && all; i += firn_jinja_char_size(self.string->data[i]))
        all = test(firn_jinja_char_at(self.string->data + i));
    *out = jinja_bool(all);
    return FIRN_OK;
}

static bool is_alnum(uint32_t c)
{
    return firn_jinja_is_alpha(c) || firn_jinja_is_numeric(c);
}

static bool is_ascii(uint32_t c)
{
    return c < 0x80;
}

#define EVERY(name, test)                                                                                              \
    NATIVE(name)                                                                                                       \
    {                                                                                                                  \
        (void)arg, (void)raw;                                                                                          \
        return every(e, self, test, out);                                                                              \
    }

EVERY(str_isalpha, firn_jinja_is_alpha)
EVERY(str_isalnum, is_alnum)
EVERY(str_isdigit, firn_jinja_is_digit)
EVERY(str_isdecimal, firn_jinja_is_decimal)
EVERY(str_isnumeric, firn_jinja_is_numeric)
EVERY(str_isspace, firn_jinja_is_space)

NATIVE(str_isascii)
{
    if (self.string->size)
        return every(e, self, is_ascii, out);
    (void)arg, (void)raw;
    *out = jinja_bool(true);
    return FIRN_OK;
}

static firn_status by_test(jinja_eval *e, const char *test, jinja_value self, jinja_value *out)
{
    const jinja_string name = {test, strlen(test)};

    return firn_jinja_find_test(&name)->call(e, self, NULL, NULL, out);
}

NATIVE(str_isupper)
{
    (void)arg, (void)raw;
    return by_test(e, "upper", self, out);
}

NATIVE(str_islower)
{
    (void)arg, (void)raw;
    return by_test(e, "lower", self, out);
}

/* ---- ends ---- */

static bool in_set(const jinja_string *set, const char *s)
{
    const uint32_t c = firn_jinja_char_at(s);

    if (!set)
        return firn_jinja_is_space(c);
    for (size_t i = 0; i < set->size; i += firn_jinja_char_size(set->data[i]))
        if (firn_jinja_char_at(set->data + i) == c)
            return true;
    return false;
}

static firn_status strip(jinja_eval *e, jinja_value self, jinja_value chars, bool left, bool right, jinja_value *out)
{
    const jinja_string *set;
    const char *s = self.string->data;
    size_t begin = 0, end = self.string->size;

    FIRN_TRY(firn_jinja_text_arg(e, chars, "strip's characters", true, &set));
    const size_t each = JINJA_PER_CHAR * (1 + (set ? set->size : 0)); /* what one character more costs */
    while (left && begin < end) {
        FIRN_TRY(firn_jinja_step(e, each));
        if (!in_set(set, s + begin))
            break;
        begin += firn_jinja_char_size(s[begin]);
    }
    while (right && end > begin) {
        const size_t n = firn_jinja_last_char(s + begin, end - begin);
        FIRN_TRY(firn_jinja_step(e, each));
        if (!in_set(set, s + end - n))
            break;
        end -= n;
    }
    FIRN_TRY(firn_jinja_view(e, s + begin, end - begin, out));
    out->flag = self.flag;
    return FIRN_OK;
}

SHARED(firn_jinja_strip)
{
    (void)raw;
    return strip(e, self, arg[0], true, true, out);
}

NATIVE(str_lstrip)
{
    (void)raw;
    return strip(e, self, arg[0], true, false, out);
}

NATIVE(str_rstrip)
{
    (void)raw;
    return strip(e, self, arg[0], false, true, out);
}

static firn_status has_end(jinja_eval *e, const jinja_string *s, const jinja_string *part, bool start, bool *result)
{
    *result = false;
    FIRN_TRY(firn_jinja_step(e, part->size));
    if (part->size <= s->size)
        *result = memcmp(start ? s->data : s->data + s->size - part->size, part->data, part->size) == 0;
    return FIRN_OK;
}

firn_status firn_jinja_window(jinja_eval *e, jinja_value self, const jinja_value bounds[2], jinja_string *part,
                              size_t *begin)
{
    jinja_value slice[3] = {jinja_none(), jinja_none(), jinja_none()}, v;

    for (int i = 0; i < 2; i++)
        if (bounds[i].type != JINJA_MISSING)
            slice[i] = bounds[i];
    FIRN_TRY(firn_jinja_slice(e, self, slice, &v));
    *part = *v.string;
    *begin = (size_t)(part->data - self.string->data);
    return FIRN_OK;
}

static firn_status ends(jinja_eval *e, jinja_value self, const jinja_value *arg, bool start, jinja_value *out)
{
    jinja_string part;
    size_t begin;
    bool result = false;

    FIRN_TRY(firn_jinja_window(e, self, arg + 1, &part, &begin));
    if (arg[0].type == JINJA_TUPLE) {
        for (size_t i = 0; i < arg[0].list->n && !result; i++) {
            const jinja_string *s;
            FIRN_TRY(firn_jinja_text_arg(e, arg[0].list->items[i], "startswith's and endswith's argument", false, &s));
            FIRN_TRY(has_end(e, &part, s, start, &result));
        }
    } else {
        const jinja_string *s;
        FIRN_TRY(firn_jinja_text_arg(e, arg[0], "startswith's and endswith's argument", false, &s));
        FIRN_TRY(has_end(e, &part, s, start, &result));
    }
    *out = jinja_bool(result);
    return FIRN_OK;
}

NATIVE(str_startswith)
{
    (void)raw;
    return ends(e, self, arg, true, out);
}

NATIVE(str_endswith)
{
    (void)raw;
    return ends(e, self, arg, false, out);
}

static firn_status remove_end(jinja_eval *e, jinja_value self, const jinja_value *arg, bool start, jinja_value *out)
{
    const jinja_string *part;
    const jinja_string *s = self.string;

    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "the argument", false, &part));
    bool has;
    FIRN_TRY(has_end(e, s, part, start, &has));
    if (!has) {
        *out = self;
        return FIRN_OK;
    }
    return firn_jinja_view(e, s->data + (start ? part->size : 0), s->size - part->size, out);
}

NATIVE(str_removeprefix)
{
    (void)raw;
    return remove_end(e, self, arg, true, out);
}

NATIVE(str_removesuffix)
{
    (void)raw;
    return remove_end(e, self, arg, false, out);
}

/* ---- padding ---- */

/* `left` and `right` times the character. */
static firn_status pad(jinja_eval *e, jinja_value self, int64_t left, int64_t right, jinja_value fill, jinja_value *out)
{
    jinja_value with[2];

    if (fill.type == JINJA_MISSING)
        FIRN_TRY(firn_jinja_view(e, " ", 1, &fill));
    if (fill.type != JINJA_STRING || !fill.string->size ||
        firn_jinja_char_size(*fill.string->data) != fill.string->size)
        return firn_jinja_fail(e, "the fill character must be exactly one character long");
    FIRN_TRY(firn_jinja_binary(e, JINJA_T_MUL, fill, jinja_int(left), &with[0]));
    FIRN_TRY(firn_jinja_binary(e, JINJA_T_MUL, fill, jinja_int(right), &with[1]));
    with[0].flag = with[1].flag = self.flag;
    FIRN_TRY(firn_jinja_binary(e, JINJA_T_ADD, with[0], self, out));
    return firn_jinja_binary(e, JINJA_T_ADD, *out, with[1], out);
}

static firn_status missing_width(jinja_eval *e, jinja_value self, jinja_value width, int64_t otherwise,
                                 int64_t *missing)
{
    FIRN_TRY(firn_jinja_int_arg(e, width, "the width", otherwise, missing));
    int64_t n;
    FIRN_TRY(firn_jinja_length(e, self, &n));
    *missing = *missing > n ? *missing - n : 0;
    return FIRN_OK;
}

SHARED(firn_jinja_center)
{
    int64_t missing, width;

    (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "the width", 80, &width));
    FIRN_TRY(missing_width(e, self, arg[0], 80, &missing));
    const int64_t left = missing / 2 + (missing & width & 1); /* as CPython rounds */
    return pad(e, self, left, missing - left, arg[1], out);
}

NATIVE(str_ljust)
{
    int64_t missing;

    (void)raw;
    FIRN_TRY(missing_width(e, self, arg[0], 0, &missing));
    return pad(e, self, 0, missing, arg[1], out);
}

NATIVE(str_rjust)
{
    int64_t missing;

    (void)raw;
    FIRN_TRY(missing_width(e, self, arg[0], 0, &missing));
    return pad(e, self, missing, 0, arg[1], out);
}

NATIVE(str_zfill)
{
    int64_t missing;
    jinja_value zero, rest = self, sign;
    const bool is_signed = self.string->size && (self.string->data[0] == '-' || self.string->data[0] == '+');

    (void)raw;
    FIRN_TRY(missing_width(e, self, arg[0], 0, &missing));
    FIRN_TRY(firn_jinja_view(e, "0", 1, &zero));
    FIRN_TRY(firn_jinja_view(e, self.string->data, is_signed, &sign));
    FIRN_TRY(firn_jinja_view(e, self.string->data + is_signed, self.string->size - is_signed, &rest));
    FIRN_TRY(pad(e, rest, missing, 0, zero, &rest));
    return firn_jinja_binary(e, JINJA_T_ADD, sign, rest, out);
}

NATIVE(str_expandtabs)
{
    int64_t width, column = 0;
    firn_text text;

    (void)raw;
    FIRN_TRY(firn_jinja_int_arg(e, arg[0], "the tab size", 8, &width));
    if (width > 1024)
        return firn_jinja_fail(e, "expandtabs takes a tab size of at most 1024");
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    firn_status status = FIRN_OK;
    for (size_t i = 0; i < self.string->size && status == FIRN_OK;) {
        const size_t n = firn_jinja_char_size(self.string->data[i]);
        const char c = self.string->data[i];
        if (c == '\t') {
            const int64_t spaces = width > 0 ? width - column % width : 0;
            status = firn_jinja_step(e, JINJA_PER_CHAR * (size_t)spaces);
            for (int64_t k = 0; k < spaces && status == FIRN_OK; k++)
                firn_text_putc(&text, ' ');
            column += spaces;
        } else {
            firn_text_append(&text, self.string->data + i, n);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    return firn_jinja_finish(e, &text, status, out);
}

NATIVE(str_format)
{
    (void)arg;
    return firn_jinja_str_format(e, self.string, raw, out);
}

const jinja_row firn_jinja_text_methods[] = {
    {"capitalize", firn_jinja_capitalize, "", 0},
    {"casefold", str_casefold, "", 0},
    {"center", firn_jinja_center, "width fillchar", 1},
    {"endswith", str_endswith, "suffix start end", 1},
    {"expandtabs", str_expandtabs, "tabsize", 0},
    {"format", str_format, NULL, 0},
    {"isalnum", str_isalnum, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isascii", str_isascii, "", 0},
    {"isdecimal", str_isdecimal, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"islower", str_islower, "", 0},
    {"isnumeric", str_isnumeric, "", 0},
    {"isspace", str_isspace, "", 0},
    {"isupper", str_isupper, "", 0},
    {"ljust", str_ljust, "width fillchar", 1},
    {"lower", firn_jinja_lower, "", 0},
    {"lstrip", str_lstrip, "chars", 0},
    {"removeprefix", str_removeprefix, "prefix", 1},
    {"removesuffix", str_removesuffix, "suffix", 1},
    {"rjust", str_rjust, "width fillchar", 1},
    {"rstrip", str_rstrip, "chars", 0},
    {"startswith", str_startswith, "prefix start end", 1},
    {"strip", firn_jinja_strip, "chars", 0},
    {"swapcase", str_swapcase, "", 0},
    {"title", str_title, "", 0},
    {"upper", firn_jinja_upper, "", 0},
    {"zfill", str_zfill, "width", 1},
    {0},
};
