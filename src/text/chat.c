/* Finding the assistant's turns: see chat.h for what is sought. Calls jinja.h; called by data loading and commands. */
#include "text/chat.h"

#include <string.h>

/* The bytes [begin, end) of a rendering that change with a message's words. */
typedef struct {
    size_t begin, end;
    bool known, exists;
} region;

typedef struct {
    firn_context *ctx;
    const firn_jinja *jinja;
    const firn_chat_options *options;
    const json_t *variables, *messages;
    size_t n;
    const firn_text *text; /* the whole conversation */
    region *regions;       /* of each message in it */
} finder;

static firn_status out_of_memory(firn_context *ctx)
{
    return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
}

firn_status firn_chat_variables(firn_context *ctx, const json_t *given, const char *bos_token, const char *eos_token,
                                json_t **variables)
{
    const bool list = json_is_array(given);

    *variables = NULL;
    if (!list && !json_is_object(given))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "expected a list of messages or an object of a template's variables");
    /* jansson counts references in const objects too, hence the casts */
    json_t *own = (json_t *)(uintptr_t)given, *v = list ? json_object() : json_copy(own);
    bool ok = v && (!list || json_object_set(v, "messages", own) == 0);
    const struct {
        const char *key;
        json_t *value;
    } defaults[] = {
        {"tools", json_null()},
        {"documents", json_null()},
        {"add_generation_prompt", json_false()},
        {"bos_token", json_string(bos_token ? bos_token : "")},
        {"eos_token", json_string(eos_token ? eos_token : "")},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        if (ok && !json_object_get(v, defaults[i].key))
            ok = json_object_set(v, defaults[i].key, defaults[i].value) == 0;
        json_decref(defaults[i].value);
    }
    if (!ok) {
        json_decref(v);
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the tokens or messages of a conversation cannot be made JSON");
    }
    *variables = v;
    return FIRN_OK;
}

/* ---- renderings ---- */

/* The first n messages, message `replaced` (if < n) being `other`. */
static firn_status render(finder *f, size_t n, bool prompt, size_t replaced, json_t *other, firn_text *out,
                          firn_spans *generation)
{
    json_t *v = json_copy((json_t *)(uintptr_t)f->variables), *list = json_array();
    bool ok = v && list;

    for (size_t i = 0; ok && i < n; i++)
        ok = json_array_append(list, i == replaced ? other : json_array_get(f->messages, i)) == 0;
    ok = ok && json_object_set(v, "messages", list) == 0 &&
         json_object_set_new(v, "add_generation_prompt", json_boolean(prompt)) == 0;
    firn_text_init(out, f->ctx, 0);
    const firn_jinja_options options = {.now = f->options->now, .limits = f->options->limits};
    const firn_status status =
        ok ? firn_jinja_render(f->ctx, f->jinja, v, &options, out, generation) : out_of_memory(f->ctx);
    json_decref(v);
    json_decref(list);
    firn_text_puts(out, ""); /* so that an empty text has an address too */
    if (status == FIRN_OK && out->status == FIRN_OK)
        return FIRN_OK;
    firn_text_free(out);
    return status != FIRN_OK ? status : FIRN_ERR_MEMORY;
}

static size_t common_prefix(const char *a, size_t n, const char *b, size_t m)
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

/* ---- variants of a message ---- */

static bool is_text(const json_t *v)
{
    return json_is_string(v) && json_string_length(v) > 0;
}

/* Replaces the words of `message` by `probe`; its shape (which keys, which calls) stays as it is. With `content` a
 * content is put there too, whatever it was. */
static bool vary(json_t *message, const char *probe, bool content)
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
            ok &= json_object_set_new(message, keys[i], json_string(probe)) == 0;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        json_t *function = json_object_get(call, "function"), *holder = function ? function : call;
        const json_t *arguments = json_object_get(holder, "arguments");
        if (json_is_object(arguments))
            ok &= json_object_set_new(holder, "arguments", json_pack("{s:s}", probe, probe)) == 0;
        else if (json_is_string(arguments))
            ok &= json_object_set_new(holder, "arguments", json_string(probe)) == 0;
    }
    return ok;
}

/* Where message j shows in `base`, the rendering of the first n messages. A variant that the template refuses says
 * nothing. Two probes that begin and end differently: one of them differs from the words at either end. A message
 * without words that show (no content, calls that the template leaves out) gets a content. */
static firn_status find_region(finder *f, size_t n, bool prompt, size_t j, const firn_text *base, region *r)
{
    static const char *const probes[] = {"0probe8", "1other9"};

    *r = (region){.begin = base->size, .known = true};
    for (int k = 0; k < 4; k++) {
        if (k == 2 && r->exists)
            break;
        json_t *other = json_deep_copy(json_array_get(f->messages, j));
        firn_text text;
        const bool made = other && vary(other, probes[k % 2], k >= 2);
        const firn_status status = made ? render(f, n, prompt, j, other, &text, NULL) : out_of_memory(f->ctx);
        json_decref(other);
        if (status == FIRN_ERR_MEMORY)
            return status;
        if (status != FIRN_OK) {
            r->exists = false;
            return FIRN_OK;
        }
        const size_t before = common_prefix(base->data, base->size, text.data, text.size);
        const size_t behind =
            common_suffix(base->data + before, base->size - before, text.data + before, text.size - before);
        if (before < base->size || text.size != base->size) {
            r->exists = true;
            r->begin = before < r->begin ? before : r->begin;
            r->end = base->size - behind > r->end ? base->size - behind : r->end;
        }
        firn_text_free(&text);
    }
    return FIRN_OK;
}

static firn_status region_of(finder *f, size_t j, region *r)
{
    if (!f->regions[j].known)
        FIRN_TRY(find_region(f, f->n, false, j, f->text, &f->regions[j]));
    *r = f->regions[j];
    return FIRN_OK;
}

/* ---- the two ends of a turn ---- */

static firn_status refuse(finder *f, size_t i, const char *why)
{
    return firn_fail(f->ctx, FIRN_ERR_UNSUPPORTED,
                     "message %zu: this chat template does not show what the assistant wrote: %s", i + 1, why);
}

/* Backs up from a place inside of a character, of <a token>, of [A TOKEN] or of a word to where that begins. */
static size_t boundary(const char *s, size_t size, size_t at)
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
    while (at && at < size && (s[at] | 32) >= 'a' && (s[at] | 32) <= 'z' && (s[at - 1] | 32) >= 'a' &&
           (s[at - 1] | 32) <= 'z')
        at--;
    return at;
}

static const char *last_place(const char *s, size_t size, const char *part, size_t n)
{
    for (size_t i = size >= n ? size - n + 1 : 0; i--;)
        if (memcmp(s + i, part, n) == 0)
            return s + i;
    return NULL;
}

/* The first end token in s: the offset behind it, 0 where there is none; with `last` the last one. */
static size_t end_token(const finder *f, const char *s, size_t size, bool last)
{
    size_t best = 0, place = last ? 0 : size;

    for (size_t k = 0; k < f->options->n_end_tokens; k++) {
        const char *token = f->options->end_tokens[k];
        const size_t n = strlen(token);
        const char *at = n == 0 ? NULL : last ? last_place(s, size, token, n) : memmem(s, size, token, n);
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

/* The turn's begin, sought in the window [from, to) of the text, between the previous message's words and its own.
 * `prompted` is the conversation before it with the generation prompt, whose part behind the previous message's words
 * starts at `tail`; the last `n_header` bytes of that are the turn's header. */
static bool begin_in_window(const finder *f, size_t from, size_t to, const firn_text *prompted, size_t tail,
                            size_t n_header, size_t *begin)
{
    const char *window = f->text->data + from, *header = prompted->data + prompted->size - n_header;
    const size_t size = to - from, n_tail = prompted->size - tail;
    const char *at = n_header ? last_place(window, size, header, n_header) : NULL;

    if (at) {
        *begin = (size_t)(at - f->text->data) + n_header;
        return true;
    }
    const size_t same = common_prefix(window, size, prompted->data + tail, n_tail);
    if (same == n_tail) {
        *begin = from + same;
        return true;
    }
    *begin = boundary(f->text->data, f->text->size, from + same);
    return n_header && *begin > from && *begin - from > n_tail - n_header;
}

/* A conversation that the assistant begins, where the template cannot render what is before it (nothing): the header is
 * learned from a conversation that a user begins. */
static firn_status find_first_begin(finder *f, const region *own, size_t *begin)
{
    json_t *user = json_pack("[{s:s,s:s}]", "role", "user", "content", "0probe8");
    finder other = *f;
    firn_text plain, prompted;

    other.messages = user;
    firn_status status = user ? render(&other, 1, false, 1, NULL, &plain, NULL) : out_of_memory(f->ctx);
    if (status == FIRN_OK) {
        status = render(&other, 1, true, 1, NULL, &prompted, NULL);
        if (status == FIRN_OK) {
            const size_t same = common_prefix(plain.data, plain.size, prompted.data, prompted.size);
            const size_t n_header = prompted.size - same;
            const char *at = n_header ? last_place(f->text->data, own->begin, prompted.data + same, n_header) : NULL;
            if (at)
                *begin = (size_t)(at - f->text->data) + n_header;
            else
                status = FIRN_ERR_UNSUPPORTED;
            firn_text_free(&prompted);
        }
        firn_text_free(&plain);
    }
    json_decref(user);
    return status == FIRN_OK || status == FIRN_ERR_MEMORY ? status
                                                          : refuse(f, 0, "its header cannot be told from its words");
}

static firn_status find_begin(finder *f, size_t i, const region *own, size_t floor, size_t *begin)
{
    const firn_text *text = f->text;
    firn_text prompted, plain;
    region before = {0}, in_prompted = {0};

    firn_status status = render(f, i, true, i, NULL, &prompted, NULL);
    if (status == FIRN_ERR_MEMORY)
        return status;
    if (status != FIRN_OK)
        return i == 0 ? find_first_begin(f, own, begin)
                      : refuse(f, i, "the conversation before it cannot be rendered by itself");
    if (prompted.size <= own->end && prompted.size >= floor &&
        common_prefix(text->data, text->size, prompted.data, prompted.size) == prompted.size) {
        *begin = prompted.size;
        firn_text_free(&prompted);
        return FIRN_OK;
    }
    bool found = false;
    if (i > 0) {
        status = region_of(f, i - 1, &before);
        if (status == FIRN_OK)
            status = find_region(f, i, true, i - 1, &prompted, &in_prompted);
        if (status == FIRN_OK && before.exists && in_prompted.exists && before.end <= own->begin &&
            before.end >= floor) {
            /* The header is what the prompt adds; where it adds nothing, what stands behind the last end token. */
            size_t n_header = 0;
            status = render(f, i, false, i, NULL, &plain, NULL);
            if (status == FIRN_OK) {
                const size_t same = common_prefix(plain.data, plain.size, prompted.data, prompted.size);
                n_header = prompted.size - (same > in_prompted.end ? same : in_prompted.end);
                firn_text_free(&plain);
            } else if (status != FIRN_ERR_MEMORY) {
                status = FIRN_OK;
            }
            if (n_header == 0) {
                const size_t n_tail = prompted.size - in_prompted.end;
                const size_t token = end_token(f, prompted.data + in_prompted.end, n_tail, true);
                n_header = token ? n_tail - token : 0;
            }
            found = status == FIRN_OK &&
                    begin_in_window(f, before.end, own->begin, &prompted, in_prompted.end, n_header, begin);
        }
    }
    firn_text_free(&prompted);
    if (status != FIRN_OK)
        return status;
    return found ? FIRN_OK : refuse(f, i, "its header is not what add_generation_prompt adds");
}

static firn_status find_end(finder *f, size_t i, const region *own, size_t *end, bool *closed)
{
    region next = {.begin = f->text->size, .exists = true};

    if (i + 1 < f->n)
        FIRN_TRY(region_of(f, i + 1, &next));
    if (!next.exists || next.begin < own->end)
        return refuse(f, i, "it cannot be told from the message behind it");
    const char *s = f->text->data + own->end;
    const size_t size = next.begin - own->end, token = end_token(f, s, size, false);
    *closed = token != 0;
    *end = own->end + token;
    if (token)
        return FIRN_OK;
    for (size_t k = 0; k < size; k++)
        if (i + 1 < f->n || !memchr(" \t\r\n", s[k], 4))
            return refuse(f, i, "it is not closed by one of the model's end tokens");
    return FIRN_OK;
}

static firn_status find_turns(finder *f, firn_chat *chat)
{
    size_t floor = 0; /* turns do not overlap */

    for (size_t i = 0; i < f->n; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(f->messages, i), "role"));
        region own;
        size_t begin = 0, end = 0;
        bool closed = false;

        if (strcmp(role, "assistant") != 0)
            continue;
        FIRN_TRY(region_of(f, i, &own));
        if (!own.exists || own.begin < floor)
            return refuse(f, i, "its words do not stand in one place of their own");
        FIRN_TRY(find_begin(f, i, &own, floor, &begin));
        FIRN_TRY(find_end(f, i, &own, &end, &closed));
        FIRN_TRY(firn_spans_add(&chat->spans, begin, end));
        chat->n_open += !closed;
        floor = end;
    }
    return FIRN_OK;
}

static firn_status check_messages(firn_context *ctx, const json_t *messages)
{
    if (!json_is_array(messages))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "messages must be a list");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!json_is_string(json_object_get(json_array_get(messages, i), "role")))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "message %zu must be an object with a role", i + 1);
    return FIRN_OK;
}

firn_status firn_chat_render(firn_context *ctx, const firn_jinja *jinja, const json_t *variables,
                             const firn_chat_options *options, firn_chat *chat)
{
    const json_t *messages = json_object_get(variables, "messages");
    const bool marked = firn_jinja_has_generation(jinja);

    FIRN_TRY(check_messages(ctx, messages));
    *chat = (firn_chat){.ctx = ctx};
    firn_spans_init(&chat->spans, ctx);
    finder f = {.ctx = ctx,
                .jinja = jinja,
                .options = options,
                .variables = variables,
                .messages = messages,
                .n = json_array_size(messages),
                .text = &chat->text};
    f.regions = firn_alloc_zeroed(ctx, f.n + 1, sizeof *f.regions);
    if (!f.regions)
        return FIRN_ERR_MEMORY;
    firn_status status = render(&f, f.n, false, f.n, NULL, &chat->text, marked ? &chat->spans : NULL);
    if (status == FIRN_OK && !marked)
        status = find_turns(&f, chat);
    firn_free(ctx, f.regions);
    if (status != FIRN_OK)
        firn_chat_free(chat);
    return status;
}

void firn_chat_free(firn_chat *chat)
{
    firn_text_free(&chat->text);
    firn_spans_free(&chat->spans);
}
