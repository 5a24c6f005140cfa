/* JSON as Python writes it. json.dumps gives NaN, Infinity and integers of any size, which JSON and jansson do not
 * have. Under a key that nobody reads they are no reason to stop: a record that jansson refuses is looked through for
 * them, and read again without the members of the object that hold one. Which they were is kept, so that whoever wants
 * one of them can say what was wrong. */
#include "train/jsonl.h"

#include "core/plain.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

/* How many bytes at t are a number that jansson cannot keep, or NaN and the like: 0 for anything else. */
static size_t unreadable(const char *t, size_t n)
{
    static const char *const words[] = {"NaN", "Infinity", "-Infinity"};
    size_t i = 0;

    for (int k = 0; k < 3; k++) {
        const size_t length = strlen(words[k]);
        if (n >= length && memcmp(t, words[k], length) == 0)
            return length;
    }
    bool whole = true;
    for (; i < n && t[i] && strchr("+-.0123456789eE", t[i]); i++)
        whole &= !strchr(".eE", t[i]);
    if (i < 19 && whole)
        return 0;
    char number[64];
    if (i >= sizeof number) /* longer than any double needs; whole ones of this length are too large */
        return whole ? i : 0;
    memcpy(number, t, i);
    number[i] = 0;
    errno = 0;
    if (whole)
        (void)strtoll(number, NULL, 10);
    else if (!isinf(firn_strtod(number, NULL)))
        errno = 0;
    return errno == ERANGE ? i : 0;
}

/* Overwrites what cannot be read by zeros in `copy`, and lists the members of the object that it was in; 0: nothing was
 * found, or it cannot be mended. */
static int blank(firn_jsonl *lines, char *copy)
{
    const char *t = lines->text;
    int depth = 0, found = 0;
    firn_lost at = {0};
    bool is_key = true, taken = false;

    for (size_t i = 0; i < lines->n; i++) {
        if (t[i] == '"') {
            const size_t begin = ++i;
            while (i < lines->n && t[i] != '"')
                i += t[i] == '\\' ? 2 : 1;
            if (depth == 1 && is_key)
                at = (firn_lost){.key = begin, .n_key = i - begin};
            continue;
        }
        depth += (t[i] == '{' || t[i] == '[') - (t[i] == '}' || t[i] == ']');
        if (depth == 1 && (t[i] == ':' || t[i] == ',')) {
            is_key = t[i] == ',';
            taken = false;
        }
        const bool begins = strchr("-NI", t[i]) || (t[i] >= '0' && t[i] <= '9');
        const size_t n = t[i] && begins ? unreadable(t + i, lines->n - i) : 0;
        if (n > 0 && !taken) {
            if (found == FIRN_LOST_KEYS || memchr(t + at.key, '\\', at.n_key))
                return 0; /* too many to keep account of, or a key that is spelled with escapes */
            at.number = i;
            lines->lost[found++] = at;
            taken = true;
        }
        if (n > 0) {
            memset(copy + i, ' ', n);
            copy[i] = '0';
            i += n - 1;
        } else if (begins) { /* a number that can be read: past it, so that its tail is not taken for another */
            while (i + 1 < lines->n && t[i + 1] && strchr("+-.0123456789eE", t[i + 1]))
                i++;
        }
    }
    return found;
}

json_t *firn_json_load(firn_jsonl *lines, json_error_t *error)
{
    json_t *value = json_loadb(lines->text, lines->n, JSON_DECODE_ANY, error);

    if (value || !error->text[0])
        return value;
    const enum json_error_code code = json_error_code(error);
    if (code != json_error_invalid_syntax && code != json_error_numeric_overflow)
        return NULL;
    char *copy = firn_alloc(lines->ctx, lines->n + 1);
    if (!copy) {
        error->text[0] = 0; /* as jansson says it */
        return NULL;
    }
    memcpy(copy, lines->text, lines->n);
    const int found = blank(lines, copy);
    json_error_t again;
    value = found ? json_loadb(copy, lines->n, JSON_DECODE_ANY, &again) : NULL;
    firn_free(lines->ctx, copy);
    if (!value)
        return NULL;
    lines->n_lost = found;
    for (int i = 0; i < found; i++) {
        char *key = firn_alloc(lines->ctx, lines->lost[i].n_key + 1);
        if (key) {
            memcpy(key, lines->text + lines->lost[i].key, lines->lost[i].n_key);
            key[lines->lost[i].n_key] = 0;
            json_object_del(value, key);
            firn_free(lines->ctx, key);
        } else {
            json_decref(value);
            error->text[0] = 0;
            return NULL;
        }
    }
    return value;
}
