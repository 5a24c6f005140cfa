/* Methods of strings: searching and cutting. */
#include "jinja/eval.h"

#include <string.h>

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
    FIRN_TRY(firn_jinja_window(e, self, arg + 1, &where, &begin));
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
    FIRN_TRY(firn_jinja_window(e, self, arg + 1, &where, &begin));
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
    return firn_jinja_finish(e, &text, status, out);
}

const jinja_row firn_jinja_find_methods[] = {
    {"count", str_count, "sub start end", 1},
    {"find", str_find, "sub start end", 1},
    {"index", str_index, "sub start end", 1},
    {"join", str_join, "iterable", 1},
    {"partition", str_partition, "sep", 1},
    {"replace", firn_jinja_replace, "old new count", 2},
    {"rfind", str_rfind, "sub start end", 1},
    {"rindex", str_rindex, "sub start end", 1},
    {"rpartition", str_rpartition, "sep", 1},
    {"rsplit", str_rsplit, "sep maxsplit", 0},
    {"split", str_split, "sep maxsplit", 0},
    {"splitlines", str_splitlines, "keepends", 0},
    {0},
};
