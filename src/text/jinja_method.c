/* Methods of strings, dicts and lists, as Python has them. What would change a list or dict in place is denied, as in
 * jinja2's immutable sandbox. */
#include "text/jinja_impl.h"

#include <string.h>

#define NATIVE(name)                                                                                                   \
    static firn_status name(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw,            \
                            jinja_value *out)
#define SHARED(name)                                                                                                   \
    firn_status name(jinja_eval *e, jinja_value self, const jinja_value *arg, const jinja_args *raw, jinja_value *out)

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

/* self[start:end] for the bounds that find, count and their kin take; *begin is its byte offset. */
static firn_status window(jinja_eval *e, jinja_value self, const jinja_value bounds[2], jinja_string *part,
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

    FIRN_TRY(window(e, self, arg + 1, &part, &begin));
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

/* ---- searching ---- */

/* Searching from the end by Knuth, Morris and Pratt, so that the work is linear whatever the texts: border[i] is the
 * size of the longest proper suffix of the last i + 1 bytes of `part` that they begin with too, read backwards. */
typedef struct {
    const jinja_string *part;
    size_t *border;
} backwards;

static firn_status backwards_begin(jinja_eval *e, const jinja_string *part, backwards *b)
{
    const char *s = part->data;
    const size_t n = part->size;

    *b = (backwards){.part = part, .border = firn_jinja_alloc(e, n, sizeof *b->border)};
    if (!b->border)
        return FIRN_ERR_MEMORY;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && s[n - 1 - i] != s[n - 1 - k])
            k = b->border[k - 1];
        k += s[n - 1 - i] == s[n - 1 - k];
        b->border[i] = k;
    }
    return FIRN_OK;
}

static firn_status find_last(jinja_eval *e, const backwards *b, const char *s, size_t size, const char **at)
{
    const size_t n = b->part->size;

    *at = n ? NULL : s + size;
    for (size_t i = 0, k = 0; i < size && !*at; i++) {
        const char c = s[size - 1 - i];
        if (i % 64 == 0)
            FIRN_TRY(firn_jinja_step(e, 64 * JINJA_PER_CHAR));
        while (k && c != b->part->data[n - 1 - k])
            k = b->border[k - 1];
        k += c == b->part->data[n - 1 - k];
        if (k == n)
            *at = s + size - 1 - i;
    }
    return FIRN_OK;
}

/* The first or last place of `part`; *at NULL where there is none. */
static firn_status seek(jinja_eval *e, const char *s, size_t size, const jinja_string *part, bool last, const char **at)
{
    backwards b;

    if (last) {
        FIRN_TRY(backwards_begin(e, part, &b));
        return find_last(e, &b, s, size, at);
    }
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * size));
    *at = part->size ? memmem(s, size, part->data, part->size) : s;
    return FIRN_OK;
}

/* Character index of the first or last place, -1 where there is none. */
static firn_status find(jinja_eval *e, jinja_value self, const jinja_value *arg, bool last, int64_t *index)
{
    const jinja_string *part;
    jinja_string where;
    size_t begin;

    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "what is sought", false, &part));
    FIRN_TRY(window(e, self, arg + 1, &where, &begin));
    const char *at;
    FIRN_TRY(seek(e, where.data, where.size, part, last, &at));
    if (at)
        FIRN_TRY(firn_jinja_step(e, (size_t)(at - self.string->data)));
    *index = at ? (int64_t)firn_jinja_chars(self.string->data, (size_t)(at - self.string->data)) : -1;
    return FIRN_OK;
}

static firn_status find_or_fail(jinja_eval *e, jinja_value self, const jinja_value *arg, bool last, bool must,
                                jinja_value *out)
{
    int64_t index;

    FIRN_TRY(find(e, self, arg, last, &index));
    if (must && index < 0)
        return firn_jinja_fail(e, "substring not found");
    *out = jinja_int(index);
    return FIRN_OK;
}

NATIVE(str_find)
{
    (void)raw;
    return find_or_fail(e, self, arg, false, false, out);
}

NATIVE(str_rfind)
{
    (void)raw;
    return find_or_fail(e, self, arg, true, false, out);
}

NATIVE(str_index)
{
    (void)raw;
    return find_or_fail(e, self, arg, false, true, out);
}

NATIVE(str_rindex)
{
    (void)raw;
    return find_or_fail(e, self, arg, true, true, out);
}

NATIVE(str_count)
{
    const jinja_string *part;
    jinja_string where;
    size_t begin;
    int64_t n = 0;

    (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "what is counted", false, &part));
    FIRN_TRY(window(e, self, arg + 1, &where, &begin));
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * where.size));
    if (part->size == 0) {
        n = (int64_t)firn_jinja_chars(where.data, where.size) + 1;
    } else {
        const char *end = where.data + where.size;
        for (const char *at = where.data; (at = memmem(at, (size_t)(end - at), part->data, part->size)); n++)
            at += part->size;
    }
    *out = jinja_int(n);
    return FIRN_OK;
}

SHARED(firn_jinja_replace)
{
    const jinja_string *from, *to;
    int64_t count;
    firn_text text;

    (void)raw;
    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "what is replaced", false, &from));
    FIRN_TRY(firn_jinja_text_arg(e, arg[1], "the replacement", false, &to));
    FIRN_TRY(firn_jinja_int_arg(e, arg[2], "replace's count", -1, &count));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * self.string->size));
    firn_jinja_text(e, &text);
    const char *s = self.string->data, *const end = s + self.string->size;
    while (count != 0) {
        if (firn_jinja_step(e, to->size) != FIRN_OK) {
            firn_text_free(&text);
            return FIRN_ERR_MEMORY;
        }
        const char *at = from->size ? memmem(s, (size_t)(end - s), from->data, from->size) : s;
        if (!at)
            break;
        firn_text_append(&text, s, (size_t)(at - s));
        firn_text_append(&text, to->data, to->size);
        count -= count > 0;
        s = at + from->size;
        if (from->size == 0) { /* before each character, and at the end */
            if (s == end)
                break;
            firn_text_append(&text, s, firn_jinja_char_size(*s));
            s += firn_jinja_char_size(*s);
        }
    }
    firn_text_append(&text, s, (size_t)(end - s));
    FIRN_TRY(firn_jinja_take(e, &text, out));
    out->flag = self.flag;
    return FIRN_OK;
}

/* ---- cutting ---- */

/* A list that grows. */
typedef struct {
    jinja_value *items;
    size_t n, capacity;
} parts;

static firn_status add_part(jinja_eval *e, parts *p, const char *s, size_t size)
{
    if (p->n == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 8;
        jinja_value *items = firn_jinja_alloc(e, capacity, sizeof *items);
        if (!items)
            return FIRN_ERR_MEMORY;
        if (p->n)
            memcpy(items, p->items, p->n * sizeof *items);
        p->items = items;
        p->capacity = capacity;
    }
    FIRN_TRY(firn_jinja_step(e, 0));
    return firn_jinja_view(e, s, size, &p->items[p->n++]);
}

static firn_status parts_list(jinja_eval *e, parts *p, jinja_type type, bool reverse, jinja_value *out)
{
    FIRN_TRY(firn_jinja_list(e, type, p->n, out));
    for (size_t i = 0; i < p->n; i++)
        out->list->items[i] = p->items[reverse ? p->n - 1 - i : i];
    return FIRN_OK;
}

/* At white space. What is left after the last cut keeps the space at its far end. */
static firn_status split_white(jinja_eval *e, const jinja_string *s, int64_t limit, jinja_value *out)
{
    parts p = {0};

    for (size_t at = 0;;) {
        while (at < s->size && firn_jinja_is_space(firn_jinja_char_at(s->data + at)))
            at += firn_jinja_char_size(s->data[at]);
        if (at == s->size)
            break;
        size_t end = at;
        while (end < s->size && (limit == 0 || !firn_jinja_is_space(firn_jinja_char_at(s->data + end))))
            end += firn_jinja_char_size(s->data[end]);
        FIRN_TRY(add_part(e, &p, s->data + at, end - at));
        limit -= limit > 0;
        at = end;
    }
    return parts_list(e, &p, JINJA_LIST, false, out);
}

static firn_status rsplit_white(jinja_eval *e, const jinja_string *s, int64_t limit, jinja_value *out)
{
    parts p = {0};

    for (size_t end = s->size;;) {
        size_t n;
        while (end && firn_jinja_is_space(firn_jinja_char_at(s->data + end - (n = firn_jinja_last_char(s->data, end)))))
            end -= n;
        if (!end)
            break;
        size_t begin = end;
        while (begin) {
            n = firn_jinja_last_char(s->data, begin);
            if (limit != 0 && firn_jinja_is_space(firn_jinja_char_at(s->data + begin - n)))
                break;
            begin -= n;
        }
        FIRN_TRY(add_part(e, &p, s->data + begin, end - begin));
        limit -= limit > 0;
        end = begin;
    }
    return parts_list(e, &p, JINJA_LIST, true, out);
}

static firn_status split(jinja_eval *e, jinja_value self, const jinja_value *arg, bool from_right, jinja_value *out)
{
    const jinja_string *separator, *s = self.string;
    int64_t limit;
    parts p = {0};

    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "split's separator", true, &separator));
    FIRN_TRY(firn_jinja_int_arg(e, arg[1], "split's number of cuts", -1, &limit));
    FIRN_TRY(firn_jinja_step(e, 2 * JINJA_PER_CHAR * s->size));
    if (!separator)
        return (from_right ? rsplit_white : split_white)(e, s, limit, out);
    if (separator->size == 0)
        return firn_jinja_fail(e, "empty separator");
    size_t begin = 0, end = s->size;
    backwards b;
    if (from_right)
        FIRN_TRY(backwards_begin(e, separator, &b));
    while (limit != 0) {
        const char *at;
        if (from_right)
            FIRN_TRY(find_last(e, &b, s->data, end, &at));
        else
            at = memmem(s->data + begin, end - begin, separator->data, separator->size);
        if (!at)
            break;
        const size_t where = (size_t)(at - s->data), behind = where + separator->size;
        if (from_right) {
            FIRN_TRY(add_part(e, &p, s->data + behind, end - behind));
            end = where;
        } else {
            FIRN_TRY(add_part(e, &p, s->data + begin, where - begin));
            begin = behind;
        }
        limit -= limit > 0;
    }
    FIRN_TRY(add_part(e, &p, s->data + begin, end - begin));
    return parts_list(e, &p, JINJA_LIST, from_right, out);
}

NATIVE(str_split)
{
    (void)raw;
    return split(e, self, arg, false, out);
}

NATIVE(str_rsplit)
{
    (void)raw;
    return split(e, self, arg, true, out);
}

bool firn_jinja_next_line(const jinja_string *text, size_t *next, jinja_string *line, size_t *with_end)
{
    const char *s = text->data;
    size_t end = *next, after;

    if (*next >= text->size)
        return false;
    for (;; end += firn_jinja_char_size(s[end])) {
        if (end == text->size) {
            after = end;
            break;
        }
        const uint32_t c = firn_jinja_char_at(s + end);
        if ((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
            after = end + firn_jinja_char_size(s[end]);
            if (c == '\r' && after < text->size && s[after] == '\n')
                after++;
            break;
        }
    }
    *line = (jinja_string){s + *next, end - *next};
    *with_end = after - *next;
    *next = after;
    return true;
}

NATIVE(str_splitlines)
{
    parts p = {0};
    jinja_string line;
    size_t next = 0, with_end;

    (void)raw;
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * self.string->size));
    while (firn_jinja_next_line(self.string, &next, &line, &with_end))
        FIRN_TRY(add_part(e, &p, line.data, firn_jinja_truth(arg[0]) ? with_end : line.size));
    return parts_list(e, &p, JINJA_LIST, false, out);
}

static firn_status partition(jinja_eval *e, jinja_value self, const jinja_value *arg, bool last, jinja_value *out)
{
    const jinja_string *separator, *s = self.string;
    parts p = {0};

    FIRN_TRY(firn_jinja_text_arg(e, arg[0], "partition's separator", false, &separator));
    if (separator->size == 0)
        return firn_jinja_fail(e, "empty separator");
    const char *at;
    FIRN_TRY(seek(e, s->data, s->size, separator, last, &at));
    const size_t none = last ? 0 : s->size; /* where the empty parts lie when it is not found */
    const size_t before = at ? (size_t)(at - s->data) : none, behind = at ? before + separator->size : none;
    FIRN_TRY(add_part(e, &p, s->data, before));
    FIRN_TRY(add_part(e, &p, s->data + before, behind - before));
    FIRN_TRY(add_part(e, &p, s->data + behind, s->size - behind));
    return parts_list(e, &p, JINJA_TUPLE, false, out);
}

NATIVE(str_partition)
{
    (void)raw;
    return partition(e, self, arg, false, out);
}

NATIVE(str_rpartition)
{
    (void)raw;
    return partition(e, self, arg, true, out);
}

static firn_status join_into(jinja_eval *e, firn_text *text, const jinja_string *separator, const jinja_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const jinja_string *s;
        FIRN_TRY(firn_jinja_text_arg(e, list->items[i], "each item that join takes", false, &s));
        FIRN_TRY(firn_jinja_step(e, s->size + separator->size));
        if (i)
            firn_text_append(text, separator->data, separator->size);
        firn_text_append(text, s->data, s->size);
    }
    return text->status;
}

NATIVE(str_join)
{
    jinja_list *list;
    firn_text text;

    (void)raw;
    if (arg[0].type == JINJA_UNDEFINED)
        return firn_jinja_view(e, "", 0, out);
    FIRN_TRY(firn_jinja_iterate(e, arg[0], &list));
    firn_jinja_text(e, &text);
    const firn_status status = join_into(e, &text, self.string, list);
    if (status == FIRN_OK)
        return firn_jinja_take(e, &text, out);
    firn_text_free(&text);
    return status;
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
    if (status == FIRN_OK)
        return firn_jinja_take(e, &text, out);
    firn_text_free(&text);
    return status;
}

NATIVE(str_format)
{
    (void)arg;
    return firn_jinja_str_format(e, self.string, raw, out);
}

const jinja_row firn_jinja_str_methods[] = {
    {"capitalize", firn_jinja_capitalize, "", 0},
    {"casefold", str_casefold, "", 0},
    {"center", firn_jinja_center, "width fillchar", 1},
    {"count", str_count, "sub start end", 1},
    {"endswith", str_endswith, "suffix start end", 1},
    {"expandtabs", str_expandtabs, "tabsize", 0},
    {"find", str_find, "sub start end", 1},
    {"format", str_format, NULL, 0},
    {"index", str_index, "sub start end", 1},
    {"isalnum", str_isalnum, "", 0},
    {"isalpha", str_isalpha, "", 0},
    {"isascii", str_isascii, "", 0},
    {"isdecimal", str_isdecimal, "", 0},
    {"isdigit", str_isdigit, "", 0},
    {"islower", str_islower, "", 0},
    {"isnumeric", str_isnumeric, "", 0},
    {"isspace", str_isspace, "", 0},
    {"isupper", str_isupper, "", 0},
    {"join", str_join, "iterable", 1},
    {"ljust", str_ljust, "width fillchar", 1},
    {"lower", firn_jinja_lower, "", 0},
    {"lstrip", str_lstrip, "chars", 0},
    {"partition", str_partition, "sep", 1},
    {"removeprefix", str_removeprefix, "prefix", 1},
    {"removesuffix", str_removesuffix, "suffix", 1},
    {"replace", firn_jinja_replace, "old new count", 2},
    {"rfind", str_rfind, "sub start end", 1},
    {"rindex", str_rindex, "sub start end", 1},
    {"rjust", str_rjust, "width fillchar", 1},
    {"rpartition", str_rpartition, "sep", 1},
    {"rsplit", str_rsplit, "sep maxsplit", 0},
    {"rstrip", str_rstrip, "chars", 0},
    {"split", str_split, "sep maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {"startswith", str_startswith, "prefix start end", 1},
    {"strip", firn_jinja_strip, "chars", 0},
    {"swapcase", str_swapcase, "", 0},
    {"title", str_title, "", 0},
    {"upper", firn_jinja_upper, "", 0},
    {"zfill", str_zfill, "width", 1},
    {0},
};

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
        rows = firn_jinja_str_methods;
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
    return *denied ? NULL : firn_jinja_find_row(rows, name);
}
