/* CSV as RFC 4180 has it: rows end at \n or \r\n, fields are separated by the byte that the header row has most of
 * (comma, semicolon, tab), and one in double quotes may hold separators, line breaks and quotes, these twice. The first
 * row names the fields. A field is a string; where its column is one that holds lists in other formats (messages,
 * input_ids...), it may be the JSON text of one. */
#include "text/unicode.h"
#include "train/jsonl.h"

#include <string.h>

/* The separator outside of quotes that the first row has most of. */
static char find_separator(const char *row, size_t n)
{
    static const char candidates[] = {',', ';', '\t'};
    size_t counts[3] = {0};
    bool quoted = false;
    int best = 0;

    for (size_t i = 0; i < n; i++) {
        quoted ^= row[i] == '"';
        for (int k = 0; k < 3; k++)
            counts[k] += !quoted && row[i] == candidates[k];
    }
    for (int k = 1; k < 3; k++)
        best = counts[k] > counts[best] ? k : best;
    return candidates[best];
}

/* Cuts out the next row that is not blank; n 0 at the end. */
static firn_status cut_row(firn_jsonl *lines)
{
    for (;;) {
        size_t i = 0;
        bool quoted = false, more = true;
        for (;; i++) {
            if (lines->offset + i == lines->size) {
                FIRN_TRY(firn_jsonl_more(lines, &more));
                if (!more)
                    break;
            }
            const char c = lines->data[lines->offset + i];
            quoted ^= c == '"';
            if (c == '\n' && !quoted)
                break;
            if (i > FIRN_LINE_BYTES) {
                lines->done = true;
                break;
            }
        }
        lines->text = lines->data + lines->offset;
        lines->n = i;
        lines->line = lines->next;
        if (quoted || lines->done) {
            lines->done = true;
            return firn_jsonl_fail_byte(lines, 0, "a quoted field that begins in this row does not end");
        }
        if (i == 0 && !more)
            return FIRN_OK;
        lines->offset += i + more;
        for (size_t k = 0; k < i; k++)
            lines->next += lines->text[k] == '\n';
        lines->next += more;
        lines->n -= lines->n > 0 && lines->text[lines->n - 1] == '\r';
        if (lines->n > 0)
            return FIRN_OK;
    }
}

/* The field at *at into `field`; *at is then behind its separator, past n when it was the last. */
static firn_status read_field(const firn_jsonl *lines, size_t *at, firn_text *field)
{
    const char *row = lines->text;
    size_t i = *at;

    field->size = 0;
    if (i < lines->n && row[i] == '"') {
        for (i++; i < lines->n; i++) {
            const bool quote = row[i] == '"', twice = quote && i + 1 < lines->n && row[i + 1] == '"';
            i += quote;
            if (quote && !twice)
                break;
            firn_text_putc(field, row[i]);
        }
        if (i < lines->n && row[i] != lines->separator)
            return firn_jsonl_fail_byte(lines, i, "expected a separator behind a quoted field");
    } else {
        for (; i < lines->n && row[i] != lines->separator; i++)
            firn_text_putc(field, row[i]);
    }
    *at = i + 1;
    return field->status;
}

static firn_status check_utf8(const firn_jsonl *lines)
{
    size_t bad;

    if (memchr(lines->text, 0, lines->n))
        return firn_jsonl_fail_byte(lines, 0, "expected text, got a NUL byte");
    if (!firn_utf8_valid(lines->text, lines->n, &bad))
        return firn_jsonl_fail_byte(lines, bad, "expected UTF-8, got the byte 0x%02x", (unsigned char)lines->text[bad]);
    return FIRN_OK;
}

static json_t *value_of(const char *name, const firn_text *field)
{
    static const char *const lists[] = {"messages", "conversations", "input_ids", "labels",
                                        "tools",    "chosen",        "rejected",  NULL};
    const char first = field->size ? field->data[0] : 0;

    for (const char *const *l = lists; *l && first == '['; l++) {
        json_t *list = strcmp(name, *l) == 0 ? json_loadb(field->data, field->size, 0, NULL) : NULL;
        if (list)
            return list;
    }
    return json_stringn(firn_text_cstr(field), field->size);
}

static firn_status out_of_memory(const firn_jsonl *lines)
{
    return firn_fail(lines->ctx, FIRN_ERR_MEMORY, "out of memory for a row");
}

static firn_status read_header(firn_jsonl *lines, firn_text *field)
{
    FIRN_TRY(cut_row(lines));
    if (lines->n == 0)
        return FIRN_OK;
    FIRN_TRY(check_utf8(lines));
    lines->separator = find_separator(lines->text, lines->n);
    lines->names = json_array();
    for (size_t at = 0; at <= lines->n;) {
        FIRN_TRY(read_field(lines, &at, field));
        if (!lines->names || json_array_append_new(lines->names, json_string(firn_text_cstr(field))) != 0)
            return out_of_memory(lines);
    }
    return FIRN_OK;
}

static firn_status read_row(firn_jsonl *lines, firn_text *field, json_t *object)
{
    const size_t wanted = json_array_size(lines->names);
    size_t k = 0;

    for (size_t at = 0; at <= lines->n; k++) {
        FIRN_TRY(read_field(lines, &at, field));
        const char *name = json_string_value(json_array_get(lines->names, k));
        if (name && json_object_set_new(object, name, value_of(name, field)) != 0)
            return out_of_memory(lines);
    }
    if (k != wanted)
        return firn_jsonl_fail_byte(lines, 0, "expected %zu fields, as the header has, got %zu", wanted, k);
    return FIRN_OK;
}

firn_status firn_csv_next(firn_jsonl *lines, json_t **object)
{
    firn_text field;
    firn_status s = FIRN_OK;

    *object = NULL;
    firn_text_init(&field, lines->ctx, 0);
    if (!lines->names)
        s = read_header(lines, &field);
    if (s == FIRN_OK && lines->names)
        s = cut_row(lines);
    if (s == FIRN_OK && lines->names && lines->n > 0) {
        s = check_utf8(lines);
        json_t *row = s == FIRN_OK ? json_object() : NULL;
        if (s == FIRN_OK)
            s = row ? read_row(lines, &field, row) : out_of_memory(lines);
        if (s == FIRN_OK)
            *object = row;
        else
            json_decref(row);
    }
    firn_text_free(&field);
    if (s != FIRN_OK && !lines->names)
        lines->done = true;
    return s;
}
