/* JSON lines (https://jsonlines.org): UTF-8, one JSON object a line, ended by \n or \r\n; a byte order mark at the very
 * start is passed over. jansson parses; this file finds lines and columns. Columns count characters from 1. */
#include "train/jsonl.h"

#include <stdio.h>
#include <string.h>

firn_status firn_jsonl_open(firn_context *ctx, const char *path, firn_jsonl *lines)
{
    firn_map map;

    *lines = (firn_jsonl){.ctx = ctx};
    FIRN_TRY(firn_map_stream(ctx, path, &map));
    firn_jsonl_parse(ctx, path, map.data, map.size, lines);
    lines->map = map;
    return FIRN_OK;
}

void firn_jsonl_parse(firn_context *ctx, const char *name, const void *data, size_t size, firn_jsonl *lines)
{
    *lines = (firn_jsonl){.ctx = ctx, .name = name, .data = data, .size = size};
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0)
        lines->offset = 3;
}

void firn_jsonl_close(firn_jsonl *lines)
{
    firn_map_close(&lines->map);
}

static int64_t column(const firn_jsonl *lines, size_t offset)
{
    int64_t n = 1;

    for (size_t i = 0; i < offset && i < lines->n; i++)
        n += ((unsigned char)lines->text[i] & 0xC0) != 0x80;
    return n;
}

/* ---- a walk over a line that jansson has accepted ---- */

static size_t skip_space(const char *t, size_t n, size_t i)
{
    while (i < n && (t[i] == ' ' || t[i] == '\t' || t[i] == '\r'))
        i++;
    return i;
}

/* From a value's first byte to past its last; strings hide what is in them. */
static size_t skip_value(const char *t, size_t n, size_t i)
{
    int depth = 0;

    do {
        if (i < n && t[i] == '"') {
            for (i++; i < n && t[i] != '"'; i++)
                i += t[i] == '\\';
            i++;
        } else if (i < n && (t[i] == '{' || t[i] == '[')) {
            depth++;
            i++;
        } else if (i < n && (t[i] == '}' || t[i] == ']')) {
            depth--;
            i++;
        } else if (depth > 0) {
            i++;
        } else {
            while (i < n && !strchr(",]} \t\r", t[i]))
                i++;
        }
    } while (depth > 0 && i < n);
    return i < n ? i : n;
}

/* The value at `key` of the object at i (of keys spelled with escapes nothing is found); i when there is none. The last
 * of several counts, as it does for jansson. */
static size_t member(const char *t, size_t n, size_t i, const char *key)
{
    const size_t length = strlen(key), object = i;
    size_t found = object;

    if (i >= n || t[i] != '{')
        return object;
    i = skip_space(t, n, i + 1);
    while (i < n && t[i] == '"') {
        const size_t name = i + 1;
        i = skip_value(t, n, i);
        const bool same = i - 1 - name == length && memcmp(t + name, key, length) == 0;
        i = skip_space(t, n, i);
        i = skip_space(t, n, i + 1); /* the colon */
        if (same)
            found = i;
        i = skip_space(t, n, skip_value(t, n, i));
        i = skip_space(t, n, i + 1); /* the comma */
    }
    return found;
}

static size_t element(const char *t, size_t n, size_t i, int64_t index)
{
    const size_t array = i;

    if (i >= n || t[i] != '[')
        return array;
    i = skip_space(t, n, i + 1);
    for (int64_t k = 0; i < n && t[i] != ']'; k++) {
        if (k == index)
            return i;
        i = skip_space(t, n, skip_value(t, n, i));
        i = skip_space(t, n, i + 1);
    }
    return array;
}

/* ---- errors ---- */

static firn_status fail_at(const firn_jsonl *lines, int64_t at, const char *format, va_list args)
{
    char sentence[1024];

    vsnprintf(sentence, sizeof sentence, format, args);
    return firn_fail(lines->ctx, FIRN_ERR_FORMAT, "%s:%lld:%lld: %s", lines->name, (long long)lines->line,
                     (long long)at, sentence);
}

firn_status firn_jsonl_fail(const firn_jsonl *lines, const char *key, int64_t index, const char *sub,
                            const char *format, ...)
{
    size_t at = skip_space(lines->text, lines->n, 0);
    va_list args;

    if (key)
        at = member(lines->text, lines->n, at, key);
    if (key && index >= 0)
        at = element(lines->text, lines->n, at, index);
    if (key && sub)
        at = member(lines->text, lines->n, at, sub);
    va_start(args, format);
    const firn_status s = fail_at(lines, column(lines, at), format, args);
    va_end(args);
    return s;
}

static firn_status FIRN_PRINTF(3, 4) fail_byte(const firn_jsonl *lines, size_t offset, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const firn_status s = fail_at(lines, column(lines, offset), format, args);
    va_end(args);
    return s;
}

/* ---- lines ---- */

static firn_status next_line(firn_jsonl *lines, json_t **object)
{
    *object = NULL;
    while (lines->offset < lines->size) {
        const char *start = lines->data + lines->offset;
        const size_t left = lines->size - lines->offset;
        const char *end = memchr(start, '\n', left);
        const size_t n = end ? (size_t)(end - start) : left;

        lines->offset += n + (end != NULL);
        lines->line++;
        lines->text = start;
        lines->n = n > 0 && start[n - 1] == '\r' ? n - 1 : n;
        const size_t first = skip_space(lines->text, lines->n, 0);
        if (first == lines->n)
            continue;
        if (lines->n > FIRN_LINE_BYTES)
            return fail_byte(lines, 0, "the line has %zu bytes; expected a JSON object of at most %d", lines->n,
                             FIRN_LINE_BYTES);
        const char *nul = memchr(lines->text, 0, lines->n);
        if (nul)
            return fail_byte(lines, (size_t)(nul - lines->text), "expected JSON text, got a NUL byte");

        json_error_t error;
        json_t *value = json_loadb(lines->text, lines->n, JSON_DECODE_ANY, &error);
        if (!value && !error.text[0]) /* jansson's way to say it */
            return firn_fail(lines->ctx, FIRN_ERR_MEMORY, "%s:%lld: out of memory while reading JSON", lines->name,
                             (long long)lines->line);
        if (!value) {
            /* jansson stands behind the token that it stumbled over, but before a byte that is no UTF-8 */
            const int behind = json_error_code(&error) != json_error_invalid_utf8;
            return fail_byte(lines, error.position > behind ? (size_t)(error.position - behind) : 0,
                             "expected one JSON object: %s", error.text);
        }
        if (!json_is_object(value)) {
            json_decref(value);
            return fail_byte(lines, first,
                             "expected a JSON object { ... } with messages, prompt and completion, or text");
        }
        *object = value;
        return FIRN_OK;
    }
    return FIRN_OK;
}

firn_status firn_jsonl_next(firn_jsonl *lines, json_t **object)
{
    const firn_status s = next_line(lines, object), readable = firn_map_check(lines->ctx, &lines->map);

    if (readable == FIRN_OK)
        return s;
    json_decref(*object);
    *object = NULL;
    return readable;
}
