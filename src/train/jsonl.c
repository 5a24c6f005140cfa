/* Records of JSON files: see jsonl.h. jansson parses; this file cuts records out of the bytes and finds lines and
 * columns. Columns count characters from 1; a byte order mark at the very start is passed over. */
#include "train/jsonl.h"

#include "core/plain.h"
#include "text/unicode.h"
#include "train/source.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_BYTES = 256 << 10 };

/* ---- opening ---- */

void firn_jsonl_parse(firn_context *ctx, const char *name, const void *data, size_t size, firn_jsonl *lines)
{
    *lines = (firn_jsonl){.ctx = ctx, .name = name, .data = data, .size = size, .ended = true, .next = 1};
    if (size >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0)
        lines->offset = 3;
}

typedef firn_status map_function(firn_context *ctx, const char *path, firn_map *map);

static firn_status open_with(map_function *open, firn_context *ctx, const char *path, firn_jsonl *lines)
{
    firn_map map;

    *lines = (firn_jsonl){.ctx = ctx};
    FIRN_TRY(open(ctx, path, &map));
    firn_jsonl_parse(ctx, path, map.data, map.size, lines);
    lines->map = map;
    return FIRN_OK;
}

firn_status firn_jsonl_open(firn_context *ctx, const char *path, firn_jsonl *lines)
{
    return open_with(firn_map_open, ctx, path, lines);
}

firn_status firn_jsonl_stream(firn_context *ctx, const char *path, firn_jsonl *lines)
{
    return open_with(firn_map_stream, ctx, path, lines);
}

void firn_jsonl_close(firn_jsonl *lines)
{
    firn_map_close(&lines->map);
    if (lines->ctx)
        firn_free(lines->ctx, lines->buffer);
    json_decref(lines->names);
    lines->buffer = NULL;
    lines->names = NULL;
}

firn_status firn_jsonl_more(firn_jsonl *lines, bool *more)
{
    size_t n = 0;

    *more = false;
    if (lines->ended)
        return FIRN_OK;
    if (lines->offset > 0) {
        memmove(lines->buffer, lines->buffer + lines->offset, lines->size - lines->offset);
        lines->size -= lines->offset;
        lines->offset = 0;
    }
    if (lines->size == lines->capacity) {
        const size_t wanted = lines->capacity ? 2 * lines->capacity : FIRST_BYTES;
        char *grown = firn_realloc(lines->ctx, lines->buffer, wanted);
        if (!grown)
            return FIRN_ERR_MEMORY;
        lines->data = lines->buffer = grown;
        lines->capacity = wanted;
    }
    FIRN_TRY(firn_source_read(lines->source, lines->buffer + lines->size, lines->capacity - lines->size, &n));
    lines->size += n;
    lines->ended = n == 0;
    *more = n > 0;
    return FIRN_OK;
}

/* Has a line to itself what opens an object? Then objects follow each other over many lines. */
static bool opens_alone(const char *text, size_t n)
{
    for (size_t i = 1; i < n && text[i] != '\n'; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return memchr(text, '\n', n) != NULL;
}

static firn_status look(firn_jsonl *lines, bool plain)
{
    static const char *const csv[] = {".csv", ".tsv", NULL}, *const text[] = {".txt", ".text", NULL};
    static const char *const json[] = {".jsonl", ".json", ".ndjson", NULL};
    const char *data = lines->data + lines->offset;
    const size_t left = lines->size - lines->offset;
    size_t i = 0;

    if (left >= 2 && (memcmp(data, "\xFF\xFE", 2) == 0 || memcmp(data, "\xFE\xFF", 2) == 0))
        return firn_fail(lines->ctx, FIRN_ERR_FORMAT, "%s is UTF-16; expected UTF-8:  iconv -f UTF-16 -t UTF-8 %s",
                         lines->name, lines->name);
    while (i < left && strchr(" \t\r\n", data[i]) && data[i])
        i++;
    lines->records = FIRN_RECORDS_LINES;
    if (firn_source_ends(lines->name, csv))
        lines->records = FIRN_RECORDS_CSV;
    else if (firn_source_ends(lines->name, text))
        lines->records = FIRN_RECORDS_TEXT;
    else if (i < left && data[i] == '[')
        lines->records = FIRN_RECORDS_ARRAY;
    else if (i < left && data[i] == '{' && opens_alone(data + i, left - i)) {
        lines->records = FIRN_RECORDS_ARRAY;
        lines->bare = lines->begun = true;
    } else if (i < left && data[i] != '{' && !firn_source_ends(lines->name, json)) {
        if (!plain)
            return firn_fail(lines->ctx, FIRN_ERR_FORMAT,
                             "%s is neither JSON lines nor a JSON array: expected { or [ at its start (--format text "
                             "or csv reads it as such)",
                             lines->name);
        lines->records = FIRN_RECORDS_TEXT;
    }
    return FIRN_OK;
}

firn_status firn_jsonl_begin(firn_context *ctx, const char *name, firn_source *source, int records, firn_jsonl *lines)
{
    bool more = true;

    *lines = (firn_jsonl){.ctx = ctx, .name = name, .source = source, .next = 1};
    firn_status s = firn_jsonl_more(lines, &more);
    if (s == FIRN_OK && lines->size >= 3 && memcmp(lines->data, "\xEF\xBB\xBF", 3) == 0)
        lines->offset = 3;
    if (s == FIRN_OK && (records < 0 || records == FIRN_RECORDS_TEXT))
        s = look(lines, records == FIRN_RECORDS_TEXT);
    else if (s == FIRN_OK)
        lines->records = (firn_records)records;
    if (s != FIRN_OK)
        firn_jsonl_close(lines);
    return s;
}

bool firn_jsonl_goes_on(const firn_jsonl *lines)
{
    return !lines->done;
}

/* ---- a walk over a line that jansson has accepted ---- */

static size_t skip_space(const char *t, size_t n, size_t i)
{
    while (i < n && (t[i] == ' ' || t[i] == '\t' || t[i] == '\r' || t[i] == '\n'))
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
            while (i < n && !strchr(",]} \t\r\n", t[i]))
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

static firn_status fail_at(const firn_jsonl *lines, size_t offset, const char *format, va_list args)
{
    char sentence[1024];
    int64_t line = lines->line, column = (int64_t)lines->column + 1;

    firn_vsnprintf(sentence, sizeof sentence, format, args);
    if (lines->records == FIRN_RECORDS_CSV || lines->records == FIRN_RECORDS_TEXT)
        return firn_fail(lines->ctx, FIRN_ERR_FORMAT, "%s:%lld: %s", lines->name, (long long)line, sentence);
    for (size_t i = 0; i < offset && i < lines->n; i++) {
        column = lines->text[i] == '\n' ? 1 : column + (((unsigned char)lines->text[i] & 0xC0) != 0x80);
        line += lines->text[i] == '\n';
    }
    return firn_fail(lines->ctx, FIRN_ERR_FORMAT, "%s:%lld:%lld: %s", lines->name, (long long)line, (long long)column,
                     sentence);
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
    const firn_status s = fail_at(lines, at, format, args);
    va_end(args);
    return s;
}

firn_status firn_jsonl_fail_byte(const firn_jsonl *lines, size_t offset, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const firn_status s = fail_at(lines, offset, format, args);
    va_end(args);
    return s;
}

/* ---- cutting records out ---- */

static firn_status too_long(firn_jsonl *lines)
{
    lines->text = lines->data + lines->offset;
    lines->n = 0;
    lines->line = lines->next;
    lines->done = true;
    return firn_jsonl_fail_byte(lines, 0, "the %s has more than %d bytes; expected a JSON object of fewer",
                                lines->records == FIRN_RECORDS_LINES ? "line" : "object", FIRN_LINE_BYTES);
}

/* The next line that is not blank; n 0 at the end. */
static firn_status next_line(firn_jsonl *lines)
{
    for (;;) {
        size_t seen = 0;
        const char *end = NULL;
        for (bool more = true; more;) {
            const size_t left = lines->size - lines->offset;
            end = left > seen ? memchr(lines->data + lines->offset + seen, '\n', left - seen) : NULL;
            if ((end ? (size_t)(end - lines->data) - lines->offset : left) > FIRN_LINE_BYTES)
                return too_long(lines);
            if (end)
                break;
            seen = left;
            FIRN_TRY(firn_jsonl_more(lines, &more));
        }
        const size_t left = lines->size - lines->offset;
        lines->text = lines->data + lines->offset;
        lines->n = end ? (size_t)(end - lines->text) : left;
        if (left == 0)
            return FIRN_OK;
        lines->offset += lines->n + (end != NULL);
        lines->line = lines->next++;
        lines->n -= lines->n > 0 && lines->text[lines->n - 1] == '\r';
        if (skip_space(lines->text, lines->n, 0) < lines->n)
            return FIRN_OK;
    }
}

/* The byte at the offset, -1 at the end. */
static firn_status peek(firn_jsonl *lines, int *c)
{
    bool more = true;

    if (lines->offset == lines->size)
        FIRN_TRY(firn_jsonl_more(lines, &more));
    *c = lines->offset < lines->size ? (unsigned char)lines->data[lines->offset] : -1;
    return FIRN_OK;
}

static void step(firn_jsonl *lines)
{
    const char c = lines->data[lines->offset++];

    lines->here = c == '\n' ? 0 : lines->here + (((unsigned char)c & 0xC0) != 0x80);
    lines->next += c == '\n';
}

static firn_status peek_word(firn_jsonl *lines, int *c)
{
    for (;;) {
        FIRN_TRY(peek(lines, c));
        if (*c != ' ' && *c != '\t' && *c != '\r' && *c != '\n')
            return FIRN_OK;
        step(lines);
    }
}

static firn_status lost_way(firn_jsonl *lines, const char *expected)
{
    lines->line = lines->next;
    lines->column = lines->here;
    lines->text = lines->data + lines->offset;
    lines->n = 0;
    lines->done = true;
    return firn_jsonl_fail_byte(lines, 0, "expected %s", expected);
}

/* From an element's first byte to past its last, strings hiding what is in them. */
static firn_status cut_element(firn_jsonl *lines)
{
    int depth = 0;
    bool quoted = false, more = true;
    size_t i = 0;

    for (;; i++) {
        if (lines->offset + i == lines->size) {
            if (i > FIRN_LINE_BYTES)
                return too_long(lines);
            FIRN_TRY(firn_jsonl_more(lines, &more));
            if (!more) { /* jansson will say what is missing */
                lines->done = true;
                break;
            }
        }
        const char c = lines->data[lines->offset + i];
        if (quoted) {
            if (c == '\\') {
                i++;
                if (lines->offset + i == lines->size) {
                    FIRN_TRY(firn_jsonl_more(lines, &more));
                    if (!more) {
                        lines->done = true;
                        break;
                    }
                }
            } else
                quoted = c != '"';
            if (quoted || depth > 0)
                continue;
            i++;
            break;
        }
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth < 0 || (depth == 0 && !quoted && strchr(", \t\r\n", c) && c))
            break;
        if (depth == 0 && (c == '}' || c == ']')) {
            i++;
            break;
        }
    }
    lines->n = i < lines->size - lines->offset ? i : lines->size - lines->offset;
    return FIRN_OK;
}

/* The next element of an array; n 0 at the end. */
static firn_status next_element(firn_jsonl *lines)
{
    int c;

    lines->n = 0;
    if (lines->done)
        return FIRN_OK;
    FIRN_TRY(peek_word(lines, &c));
    if (!lines->begun) {
        step(lines); /* the bracket that look() saw */
        lines->begun = true;
        FIRN_TRY(peek_word(lines, &c));
    } else if (c == ',' && lines->line > 0) {
        step(lines);
        FIRN_TRY(peek_word(lines, &c));
        if (c == ']')
            return lost_way(lines, "a JSON object behind the comma");
    } else if (!lines->bare && lines->line > 0 && c != ']') {
        return lost_way(lines, c < 0 ? "the array to be closed by ]" : "a comma or ] behind the object");
    }
    if (c < 0 && !lines->bare)
        return lost_way(lines, "the array to be closed by ]");
    if (c == ']' && !lines->bare) {
        step(lines);
        FIRN_TRY(peek_word(lines, &c));
        if (c >= 0)
            return lost_way(lines, "nothing behind the array");
        lines->done = true;
        return FIRN_OK;
    }
    if (c < 0)
        return FIRN_OK;
    lines->line = lines->next;
    lines->column = lines->here;
    FIRN_TRY(cut_element(lines));
    if (lines->n == 0)
        return lost_way(lines, "a JSON object");
    lines->text = lines->data + lines->offset;
    for (size_t i = 0; i < lines->n; i++)
        step(lines);
    return FIRN_OK;
}

/* ---- records ---- */

static firn_status next_json(firn_jsonl *lines, json_t **object)
{
    json_error_t error;

    FIRN_TRY(lines->records == FIRN_RECORDS_ARRAY ? next_element(lines) : next_line(lines));
    if (lines->n == 0)
        return FIRN_OK;
    const char *nul = memchr(lines->text, 0, lines->n);
    if (nul)
        return firn_jsonl_fail_byte(lines, (size_t)(nul - lines->text), "expected JSON text, got a NUL byte");
    json_t *value = firn_json_load(lines, &error);
    if (!value && !error.text[0]) /* jansson's way to say it */
        return firn_fail(lines->ctx, FIRN_ERR_MEMORY, "%s:%lld: out of memory while reading JSON", lines->name,
                         (long long)lines->line);
    if (!value) {
        /* jansson stands behind the token that it stumbled over, but before a byte that is no UTF-8 */
        const int behind = json_error_code(&error) != json_error_invalid_utf8;
        return firn_jsonl_fail_byte(lines, error.position > behind ? (size_t)(error.position - behind) : 0,
                                    "expected one JSON object: %s", error.text);
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return firn_jsonl_fail_byte(lines, skip_space(lines->text, lines->n, 0),
                                    "expected a JSON object { ... } with messages, prompt and completion, or text");
    }
    *object = value;
    return FIRN_OK;
}

/* A piece of a plain text: up to its last line break within FIRN_TEXT_BYTES, or else to the end of a character. */
static firn_status next_text(firn_jsonl *lines, json_t **object)
{
    size_t n, bad;

    for (;;) {
        for (bool more = true; more && lines->size - lines->offset <= FIRN_TEXT_BYTES;)
            FIRN_TRY(firn_jsonl_more(lines, &more));
        lines->text = lines->data + lines->offset;
        n = lines->size - lines->offset;
        if (n == 0)
            return FIRN_OK;
        if (n > FIRN_TEXT_BYTES) {
            const char *end = memrchr(lines->text, '\n', FIRN_TEXT_BYTES);
            n = end ? (size_t)(end + 1 - lines->text) : FIRN_TEXT_BYTES;
            while (!end && n > FIRN_TEXT_BYTES - 4 && ((unsigned char)lines->text[n] & 0xC0) == 0x80)
                n--;
        }
        lines->n = n;
        lines->offset += n;
        lines->line = lines->next;
        for (size_t i = 0; i < n; i++)
            lines->next += lines->text[i] == '\n';
        if (skip_space(lines->text, n, 0) < n)
            break;
    }
    if (!firn_utf8_valid(lines->text, n, &bad))
        return firn_jsonl_fail_byte(lines, bad, "expected UTF-8, got the byte 0x%02x at byte %zu of this stretch",
                                    (unsigned char)lines->text[bad], bad + 1);
    *object = json_pack("{s:s%}", "text", lines->text, n);
    return *object ? FIRN_OK : firn_fail(lines->ctx, FIRN_ERR_MEMORY, "out of memory for a text");
}

static firn_status next_record(firn_jsonl *lines, json_t **object)
{
    *object = NULL;
    lines->n_lost = 0;
    if (lines->records == FIRN_RECORDS_CSV)
        return firn_csv_next(lines, object);
    return lines->records == FIRN_RECORDS_TEXT ? next_text(lines, object) : next_json(lines, object);
}

firn_status firn_jsonl_next(firn_jsonl *lines, json_t **object)
{
    const firn_status s = next_record(lines, object), readable = firn_map_check(lines->ctx, &lines->map);

    if (readable == FIRN_OK)
        return s;
    json_decref(*object);
    *object = NULL;
    return readable;
}
