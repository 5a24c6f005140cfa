/* Filters of text that is, or becomes, HTML: what jinja2 does by markupsafe and Python's html.unescape. */
#include "jinja/eval.h"

#include "jinja/entities.h"

#include <string.h>

NATIVE(filter_escape)
{
    firn_text text;
    jinja_value s;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, &s));
    *out = s;
    if (s.type == JINJA_STRING && s.flag)
        return FIRN_OK;
    firn_jinja_text(e, &text);
    FIRN_TRY(firn_jinja_finish(e, &text, firn_jinja_escape(e, &text, s.string), out));
    out->flag = 1;
    return FIRN_OK;
}

NATIVE(filter_forceescape)
{
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    self.flag = 0;
    return filter_escape(e, self, arg, raw, out);
}

NATIVE(filter_safe)
{
    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, out));
    out->flag = 1;
    return FIRN_OK;
}

/* ---- striptags ---- */

/* Where `mark` begins in the n bytes at s; n where it does not. */
static size_t seek(const char *s, size_t n, const char *mark)
{
    const size_t size = strlen(mark);

    for (size_t i = 0; i + size <= n; i++)
        if (memcmp(s + i, mark, size) == 0)
            return i;
    return n;
}

/* Takes comments out, the leftmost first, until none is left that ends: what one leaves may begin another
 * (`<<!---->!--x-->`), and `<!-->` is a whole one. Returns the new size. */
static size_t strip_comments(char *s, size_t size)
{
    size_t kept = 0, at = 0;

    while (at < size) {
        s[kept++] = s[at++];
        if (kept < 4 || memcmp(s + kept - 4, "<!--", 4) != 0)
            continue;
        /* the two hyphens of the beginning may be those of the end */
        size_t end = at;
        if (end < size && s[end] == '>')
            end += 1;
        else if (size - end >= 2 && memcmp(s + end, "->", 2) == 0)
            end += 2;
        else if ((end += seek(s + at, size - at, "-->")) < size)
            end += 3;
        else
            break; /* it has no end: it and what follows stay */
        kept -= 4;
        at = end;
    }
    memmove(s + kept, s + at, size - at);
    return kept + size - at;
}

/* Takes out each `<` to the next `>`. */
static size_t strip_elements(char *s, size_t size)
{
    size_t kept = 0, at = 0;

    while (at < size) {
        if (s[at] == '<') {
            const size_t end = at + seek(s + at, size - at, ">");
            if (end == size)
                break;
            at = end + 1;
        } else {
            s[kept++] = s[at++];
        }
    }
    memmove(s + kept, s + at, size - at);
    return kept + size - at;
}

/* One space for each run of white space, none at the ends. */
static size_t collapse(char *s, size_t size)
{
    size_t kept = 0;
    bool space = false;

    for (size_t at = 0, n; at < size; at += n) {
        n = firn_jinja_char_size(s[at]);
        if (firn_jinja_is_space(firn_jinja_char_at(s + at))) {
            space = kept > 0;
            continue;
        }
        if (space)
            s[kept++] = ' ';
        space = false;
        memmove(s + kept, s + at, n);
        kept += n;
    }
    return kept;
}

/* The text of the entity with this name of `size` bytes, NULL when there is none. */
static const char *find_entity(const char *name, size_t size)
{
    size_t low = 0, high = sizeof entities / sizeof *entities;

    if (memchr(name, '\0', size)) /* strncmp would stop there */
        return NULL;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        int order = strncmp(entities[middle].name, name, size);
        if (order == 0)
            order = entities[middle].name[size] != '\0';
        if (order == 0)
            return entities[middle].text;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static int digit(char c, bool hex)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (hex && c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return hex && c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static void put_number(firn_text *text, uint32_t c)
{
    if (c >= 0x80 && c <= 0x9F)
        c = windows_1252[c - 0x80];
    else if (c == 0 || (c >= 0xD800 && c <= 0xDFFF) || c > 0x10FFFF)
        c = 0xFFFD;
    else if ((c < 0x20 && c != '\t' && c != '\n' && c != '\f' && c != '\r') || c == 0x7F ||
             (c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE)
        return; /* HTML has no such character */
    firn_text_codepoint(text, c);
}

/* Bytes of the reference &#... at s, which is put into the text; 0 where there is none. */
static size_t number_reference(firn_text *text, const char *s, size_t size)
{
    const bool hex = size > 2 && (s[2] == 'x' || s[2] == 'X');
    const size_t begin = hex ? 3 : 2;
    size_t i = begin;
    uint32_t c = 0;

    for (; i < size && digit(s[i], hex) >= 0; i++)
        c = c > 0x10FFFF ? c : c * (hex ? 16 : 10) + (uint32_t)digit(s[i], hex);
    if (i == begin)
        return 0;
    put_number(text, c);
    return i + (i < size && s[i] == ';');
}

/* The same for &name; where the whole is no entity, the longest entity that it begins with is taken. */
static size_t name_reference(firn_text *text, const char *s, size_t size)
{
    size_t n = 1;

    for (int chars = 0; n < size && chars < 32 && !strchr("\t\n\f <&#;", s[n] ? s[n] : 'x'); chars++)
        n += firn_jinja_char_size(s[n]);
    if (n == 1)
        return 0;
    n += n < size && s[n] == ';';
    for (size_t part = n - 1; part > 1; part--) {
        const char *found = find_entity(s + 1, part);
        if (found) {
            firn_text_puts(text, found);
            return 1 + part;
        }
    }
    firn_text_append(text, s, n);
    return n;
}

static void unescape(firn_text *text, const char *s, size_t size)
{
    for (size_t i = 0; i < size;) {
        size_t n = 0;
        if (s[i] == '&' && i + 1 < size)
            n = s[i + 1] == '#' ? number_reference(text, s + i, size - i) : name_reference(text, s + i, size - i);
        if (n == 0)
            firn_text_putc(text, s[i]);
        i += n ? n : 1;
    }
}

NATIVE(filter_striptags)
{
    firn_text text;

    (void)arg, (void)raw;
    FIRN_TRY(firn_jinja_to_string(e, self, &self));
    const size_t size = self.string->size;
    FIRN_TRY(firn_jinja_step(e, JINJA_PER_PRINT * size));
    char *s = firn_jinja_alloc(e, size + 1, 1);
    if (!s)
        return FIRN_ERR_MEMORY;
    memcpy(s, self.string->data, size);
    firn_jinja_text(e, &text);
    unescape(&text, s, collapse(s, strip_elements(s, strip_comments(s, size))));
    return firn_jinja_take(e, &text, out);
}

/* ---- xmlattr ---- */

static firn_status put_attributes(jinja_eval *e, firn_text *text, const jinja_dict *dict, bool space)
{
    for (size_t i = 0; i < dict->n; i++) {
        const jinja_value key = dict->entries[i].key;
        jinja_value value = dict->entries[i].value;
        if (value.type == JINJA_NONE || value.type == JINJA_UNDEFINED)
            continue;
        if (key.type != JINJA_STRING)
            return firn_jinja_fail(e, "an attribute's name must be a string, not '%s'", firn_jinja_type_name(key));
        FIRN_TRY(firn_jinja_step(e, JINJA_PER_CHAR * key.string->size));
        for (size_t k = 0; k < key.string->size; k++)
            if (memchr(" \t\n\r\f\v/>=", key.string->data[k], 9))
                return firn_jinja_fail(e, "an attribute's name has no white space, /, > or =, but '%.*s' does",
                                       (int)(key.string->size < 60 ? key.string->size : 60), key.string->data);
        if (space)
            firn_text_putc(text, ' ');
        space = true;
        jinja_value name;
        FIRN_TRY(filter_escape(e, key, NULL, NULL, &name));
        FIRN_TRY(filter_escape(e, value, NULL, NULL, &value));
        firn_text_append(text, name.string->data, name.string->size);
        firn_text_puts(text, "=\"");
        firn_text_append(text, value.string->data, value.string->size);
        firn_text_putc(text, '"');
    }
    return text->status;
}

NATIVE(filter_xmlattr)
{
    firn_text text;

    (void)raw;
    if (self.type == JINJA_UNDEFINED)
        return firn_jinja_fail_undefined(e, self);
    if (self.type != JINJA_DICT)
        return firn_jinja_fail(e, "xmlattr takes a dict, not '%s'", firn_jinja_type_name(self));
    firn_jinja_text(e, &text);
    const bool space = arg[0].type == JINJA_MISSING || firn_jinja_truth(arg[0]);
    return firn_jinja_finish(e, &text, put_attributes(e, &text, self.dict, space), out);
}

const jinja_row firn_jinja_markup_filters[] = {
    {"e", filter_escape, "", 0},
    {"escape", filter_escape, "", 0},
    {"forceescape", filter_forceescape, "", 0},
    {"safe", filter_safe, "", 0},
    {"striptags", filter_striptags, "", 0},
    {"xmlattr", filter_xmlattr, "autospace", 0},
    {0},
};
