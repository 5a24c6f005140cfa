/* Finding words, tags and end tokens in renderings: see chat.h. */
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static firn_status out_of_memory(firn_context *ctx)
{
    return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
}

/* ---- bytes ---- */

size_t firn_common_prefix(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;

    while (i < n && i < m && a[i] == b[i])
        i++;
    return i;
}

static size_t common_suffix(const char *a, size_t n, const char *b, size_t m)
{
    size_t i = 0;

    while (i < n && i < m && a[n - 1 - i] == b[m - 1 - i])
        i++;
    return i;
}

static bool is_letter(char c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

size_t firn_boundary(const char *s, size_t size, size_t at)
{
    static const char pairs[][2] = {{'<', '>'}, {'[', ']'}};

    while (at && at < size && ((unsigned char)s[at] & 0xC0) == 0x80)
        at--;
    for (int k = 0; k < 2; k++) {
        for (size_t i = at; i-- > 0 && at - i < 64 && s[i] != pairs[k][1] && s[i] != '\n';) {
            if (s[i] != pairs[k][0])
                continue;
            const char *close = memchr(s + at, pairs[k][1], size - at < 64 ? size - at : 64);
            if (close && !memchr(s + at, '\n', (size_t)(close - (s + at))))
                at = i;
            break;
        }
    }
    while (at && at < size && is_letter(s[at]) && is_letter(s[at - 1]))
        at--;
    return at;
}

const char *firn_last_place(const char *s, size_t size, const char *part, size_t n)
{
    for (size_t i = size >= n ? size - n + 1 : 0; i--;)
        if (memcmp(s + i, part, n) == 0)
            return s + i;
    return NULL;
}

size_t firn_end_token(const firn_template *t, const char *s, size_t size, bool last)
{
    size_t best = 0, place = last ? 0 : size;

    for (size_t k = 0; k < t->tokens.n_ends; k++) {
        const char *token = t->tokens.ends[k];
        const size_t n = strlen(token);
        const char *at = n == 0 ? NULL : last ? firn_last_place(s, size, token, n) : memmem(s, size, token, n);
        if (!at)
            continue;
        const size_t here = (size_t)(at - s);
        if (best == 0 || (last ? here > place : here < place) || (here == place && here + n > best)) {
            place = here;
            best = here + n;
        }
    }
    return best;
}

/* ---- tags ---- */

size_t firn_tag(const char *s, size_t size)
{
    if (size < 3 || (s[0] != '<' && s[0] != '['))
        return 0;
    const char close = s[0] == '<' ? '>' : ']';
    for (size_t i = 1; i < size && i < 64 && s[i] != '\n' && s[i] != s[0]; i++)
        if (s[i] == close)
            return i + 1;
    return 0;
}

static bool contains(const char *s, size_t n, const char *const *words, size_t n_words)
{
    for (size_t k = 0; k < n_words; k++) {
        const size_t length = strlen(words[k]);
        for (size_t i = 0; i + length <= n; i++) {
            size_t j = 0;
            while (j < length && (s[i + j] == words[k][j] || (is_letter(s[i + j]) && (s[i + j] | 32) == words[k][j])))
                j++;
            if (j == length)
                return true;
        }
    }
    return false;
}

firn_thought firn_thought_kind(const char *s, size_t size)
{
    static const char *const closing[] = {"</", "[/", "<|/", "end_", "end|", "<channel|"}, *const opening[] = {
                                                                                               "think", "thought",
                                                                                               "reason"};
    size_t at = 0, n_tags = 0, n;
    bool closed = false;

    for (;;) {
        while (at < size && is_space(s[at]))
            at++;
        if (at == size)
            break;
        n = firn_tag(s + at, size - at);
        if (n) {
            closed = contains(s + at, n, closing, sizeof closing / sizeof *closing);
            n_tags++;
        } else { /* the name of a channel */
            while (at + n < size && n < 16 && is_letter(s[at + n]))
                n++;
            if (n == 0 || n_tags != 1)
                return FIRN_THOUGHT_NONE;
        }
        at += n;
    }
    if (closed && n_tags <= 2)
        return FIRN_THOUGHT_CLOSED;
    return n_tags == 1 && contains(s, size, opening, sizeof opening / sizeof *opening) ? FIRN_THOUGHT_OPEN
                                                                                       : FIRN_THOUGHT_NONE;
}

/* ---- words ---- */

bool firn_has_words(const json_t *text)
{
    const char *s = json_string_value(text);
    const size_t n = json_string_length(text);

    for (size_t i = 0; i < n; i++)
        if (!is_space(s[i]))
            return true;
    return false;
}

static bool is_text(const json_t *v)
{
    return json_is_string(v) && json_string_length(v) > 0;
}

/* The probe in place of a content: in its thought, where it has one, and in what stands behind that. */
static json_t *varied_content(firn_context *ctx, const json_t *content, const char *probe)
{
    const char *s = json_string_value(content), *thought;
    const size_t n = json_string_length(content);
    size_t n_thought, rest;
    firn_text text;

    if (!s || !firn_thought_block(s, n, &thought, &n_thought, &rest))
        return json_string(probe);
    firn_text_init(&text, ctx, 0);
    firn_text_append(&text, s, (size_t)(thought - s));
    firn_text_puts(&text, probe);
    firn_text_append(&text, thought + n_thought, (size_t)(s + rest - thought) - n_thought);
    if (rest < n)
        firn_text_puts(&text, probe);
    json_t *v = text.status == FIRN_OK ? json_stringn(text.data, text.size) : NULL;
    firn_text_free(&text);
    return v;
}

/* Replaces the words of `message` by `probe`; its shape (which keys, which calls) stays as it is. With `content` a
 * content is put there too, whatever it was. */
static bool vary(firn_context *ctx, json_t *message, const char *probe, bool content)
{
    static const char *const keys[] = {"content", "reasoning_content", "thinking", "reasoning"};
    json_t *part, *call;
    bool ok = true;
    size_t i;

    json_array_foreach(json_object_get(message, "content"), i, part)
    {
        if (is_text(json_object_get(part, "text")))
            ok &= json_object_set_new(part, "text", json_string(probe)) == 0;
    }
    for (i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_text(json_object_get(message, keys[i])) || (i == 0 && content))
            ok &= json_object_set_new(message, keys[i],
                                      i == 0 ? varied_content(ctx, json_object_get(message, keys[i]), probe)
                                             : json_string(probe)) == 0;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function");
        const json_t *arguments = json_object_get(function, "arguments");
        if (json_is_object(arguments))
            ok &= json_object_set_new(function, "arguments", json_pack("{s:s}", probe, probe)) == 0;
        else if (json_is_string(arguments))
            ok &= json_object_set_new(function, "arguments", json_string(probe)) == 0;
    }
    return ok;
}

/* Two probes that begin and end differently: one of them differs from the words at either end. A message without words
 * that show gets a content. */
firn_status firn_find_region(firn_finder *f, size_t n, bool prompt, size_t j, const firn_text *base, firn_region *r)
{
    static const char *const probes[] = {"0probe8", "1other9"};
    firn_text text;

    *r = (firn_region){.begin = base->size};
    firn_text_init(&text, f->ctx, 0);
    for (int k = 0; k < 4; k++) {
        if (k == 2 && r->exists)
            break;
        json_t *other = json_deep_copy(json_array_get(f->messages, j));
        const bool made = other && vary(f->ctx, other, probes[k % 2], k >= 2);
        const firn_status status =
            made ? firn_finder_render(f, n, prompt, j, other, &text, NULL) : out_of_memory(f->ctx);
        json_decref(other);
        if (status != FIRN_OK) {
            firn_text_free(&text);
            r->exists = false;
            return status == FIRN_ERR_MEMORY ? status : FIRN_OK;
        }
        const size_t before = firn_common_prefix(base->data, base->size, text.data, text.size);
        const size_t behind =
            common_suffix(base->data + before, base->size - before, text.data + before, text.size - before);
        if (before < base->size || text.size != base->size) {
            r->exists = true;
            r->begin = before < r->begin ? before : r->begin;
            r->end = base->size - behind > r->end ? base->size - behind : r->end;
        }
    }
    firn_text_free(&text);
    return FIRN_OK;
}

/* ---- whether words show ---- */

/* Puts probe `number` in place of v's words if there are any. */
static bool put_probe(json_t *holder, const char *key, int number)
{
    char probe[32];

    snprintf(probe, sizeof probe, "0probe%dx8", number);
    return json_object_set_new(holder, key, json_string(probe)) == 0;
}

static bool probe_shows(const firn_text *text, int number)
{
    char probe[32];

    snprintf(probe, sizeof probe, "0probe%dx8", number);
    return memmem(text->data, text->size, probe, strlen(probe)) != NULL;
}

/* Probes for the content of a message: number `first` for all of its text. */
static bool probe_content(json_t *m, int first, bool *any)
{
    json_t *content = json_object_get(m, "content"), *part;
    bool ok = true;
    size_t k;

    *any = false;
    if (firn_has_words(content)) {
        *any = true;
        return put_probe(m, "content", first);
    }
    json_array_foreach(content, k, part)
    {
        if (!firn_has_words(json_object_get(part, "text")))
            continue;
        *any = true;
        ok = ok && put_probe(part, "text", first);
    }
    return ok;
}

enum { MAX_CALLS = 1000 };

firn_status firn_check_shown(firn_finder *f, size_t n, bool prompt, size_t j)
{
    json_t *m = json_deep_copy(json_array_get(f->messages, j)), *call;
    bool ok = m != NULL, any = false;
    firn_text text;
    size_t k;

    if (ok)
        ok = probe_content(m, 1, &any);
    json_array_foreach(json_object_get(m, "tool_calls"), k, call)
    {
        json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        if (k >= MAX_CALLS)
            break;
        ok = ok && put_probe(function, "name", 10000 + (int)k);
        if (json_is_object(arguments) && json_object_size(arguments) > 0) {
            json_t *v = json_object();
            ok = ok && v && put_probe(v, "probe", 20000 + (int)k) && json_object_set(function, "arguments", v) == 0;
            json_decref(v);
        }
    }
    firn_text_init(&text, f->ctx, 0);
    firn_status s = ok ? firn_finder_render(f, n, prompt, j, m, &text, NULL) : out_of_memory(f->ctx);
    if (s == FIRN_OK && any && !probe_shows(&text, 1))
        s = firn_finder_refuse(f, j, "this chat template does not show its content%s",
                               json_object_get(m, "tool_calls") ? " beside its calls" : "");
    json_array_foreach(json_object_get(json_array_get(f->messages, j), "tool_calls"), k, call)
    {
        const json_t *function = json_object_get(call, "function"), *arguments = json_object_get(function, "arguments");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (s != FIRN_OK || k >= MAX_CALLS)
            break;
        if (!probe_shows(&text, 10000 + (int)k))
            s = firn_finder_refuse(f, j, "this chat template does not show its call of \"%.100s\"", name);
        else if (json_is_object(arguments) && json_object_size(arguments) > 0 && !probe_shows(&text, 20000 + (int)k))
            s = firn_finder_refuse(f, j, "this chat template does not show the arguments of its call of \"%.100s\"",
                                   name);
    }
    firn_text_free(&text);
    json_decref(m);
    /* a template that refuses the probes (it knows the tools' names, say) says nothing */
    return s == FIRN_ERR_FORMAT ? FIRN_OK : s;
}

/* One message that a probe did not show: does anything change with its words where it is first asked with? */
static firn_status check_one(firn_finder *f, size_t j)
{
    firn_text base;
    firn_region r = {0};
    size_t i = j + 1;

    while (i < f->n && strcmp(json_string_value(json_object_get(json_array_get(f->messages, i), "role")), "assistant"))
        i++;
    firn_text_init(&base, f->ctx, 0);
    firn_status s = firn_finder_render(f, i, true, i, NULL, &base, NULL);
    if (s == FIRN_OK)
        s = firn_find_region(f, i, true, j, &base, &r);
    firn_text_free(&base);
    if (s != FIRN_OK)
        return s == FIRN_ERR_MEMORY ? s : FIRN_OK;
    return r.exists ? FIRN_OK
                    : firn_finder_refuse(f, j, "this chat template does not show what a message of role \"%.40s\" says",
                                         json_string_value(json_object_get(json_array_get(f->messages, j), "role")));
}

firn_status firn_check_asked(firn_finder *f, size_t n)
{
    json_t *list = json_array(), *kept = f->messages;
    bool *probed = firn_alloc_zeroed(f->ctx, n + 1, sizeof *probed);
    firn_status s = list && probed ? FIRN_OK : out_of_memory(f->ctx);
    firn_text text;

    firn_text_init(&text, f->ctx, 0);
    for (size_t j = 0; s == FIRN_OK && j < n; j++) {
        json_t *m = json_array_get(kept, j);
        if (strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0) {
            s = json_array_append(list, m) == 0 ? FIRN_OK : out_of_memory(f->ctx);
            continue;
        }
        m = json_deep_copy(m);
        if (!m || json_array_append_new(list, m) != 0 || !probe_content(m, (int)j, &probed[j]))
            s = out_of_memory(f->ctx);
    }
    if (s == FIRN_OK) {
        f->messages = list;
        s = firn_finder_render(f, n, true, n, NULL, &text, NULL);
        f->messages = kept;
        const bool refused = s != FIRN_OK && s != FIRN_ERR_MEMORY;
        if (refused)
            s = FIRN_OK;
        for (size_t j = 0; s == FIRN_OK && j < n; j++)
            if (probed[j] && (refused || !probe_shows(&text, (int)j)))
                s = check_one(f, j);
    }
    firn_text_free(&text);
    firn_free(f->ctx, probed);
    json_decref(list);
    return s;
}
