/* One turn: what the model is asked, what it is to say, and where the one ends in the other. See chat.h. */
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

/* What is known of the turn of message i. */
typedef struct {
    size_t i;
    const json_t *message;
    firn_region own;  /* its words in f->full */
    size_t begin;     /* where the answer begins in f->full ... */
    size_t end;       /* ... and ends */
    firn_text follow; /* what follows the prompt, where it is not [begin, end) of f->full */
    bool as_full;     /* the sample is f->full up to `end` */
} turn;

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* What the message thinks, in it or beside it. */
static bool reasoning_of(const firn_finder *f, const turn *t, const char **words, size_t *n)
{
    const json_t *thought = f->marks[t->i].thought;

    if (!thought)
        return firn_message_reasoning(f->t, t->message, words, n);
    *words = json_string_value(thought);
    *n = json_string_length(thought);
    while (*n && is_space(**words)) {
        ++*words;
        --*n;
    }
    while (*n && is_space((*words)[*n - 1]))
        --*n;
    return *n > 0;
}

static bool is_plain(const json_t *message)
{
    return json_is_string(json_object_get(message, "content")) && !json_object_get(message, "tool_calls");
}

/* What the tag does that the prompt ends in; *end: where that ends, white space behind it left out. */
static firn_thought asked_thought(const firn_finder *f, size_t *end)
{
    const char *s = f->asked.data;
    size_t begin;

    *end = f->asked.size;
    while (*end && is_space(s[*end - 1]))
        --*end;
    for (begin = *end; begin && *end - begin < 64 && s[begin - 1] != '<' && s[begin - 1] != '[';)
        begin--;
    begin -= begin > 0;
    return firn_tag(s + begin, *end - begin) == *end - begin ? firn_thought_kind(s + begin, *end - begin)
                                                             : FIRN_THOUGHT_NONE;
}

/* ---- where the answer begins ---- */

/* What is known of a place where the prompt and the full rendering part: the rest of the prompt from `asked`, and of
 * the rendering from `full` on. */
static firn_status begin_behind(firn_finder *f, turn *t, size_t asked, size_t full, firn_thought kind)
{
    const char *opened = f->asked.data + asked, *words = json_string_value(json_object_get(t->message, "content"));
    size_t n_opened = f->asked.size - asked, n = json_string_length(json_object_get(t->message, "content"));
    const char *reasoning;
    size_t n_reasoning;

    t->begin = full;
    if (kind == FIRN_THOUGHT_CLOSED) {
        /* a thought of the answer's own cannot follow one that the prompt has closed */
        const char *s = f->full.data;
        size_t at = full;
        if (reasoning_of(f, t, &reasoning, &n_reasoning)) {
            const char *place = memmem(s + at, t->own.end - at, reasoning, n_reasoning);
            if (place)
                at = (size_t)(place - s) + n_reasoning;
        }
        size_t tag = at;
        while (tag < t->own.end && is_space(s[tag]))
            tag++;
        const size_t size = firn_tag(s + tag, t->own.end - tag);
        if (size && firn_thought_kind(s + tag, size) == FIRN_THOUGHT_CLOSED) {
            for (at = tag + size; at < t->own.end && is_space(s[at]);)
                at++;
            t->begin = at;
        }
        return FIRN_OK;
    }
    /* The reasoning stands in front of what the rendering shows; data may leave out the opening that the prompt has. */
    while (n_opened && is_space(*opened)) {
        opened++;
        n_opened--;
    }
    const size_t tag = firn_tag(opened, n_opened);
    char close[80];
    snprintf(close, sizeof close, "%c/%.*s", opened[0], tag ? (int)tag - 1 : 0, opened + 1);
    if (tag && f->marks[t->i].thought && reasoning_of(f, t, &reasoning, &n_reasoning)) {
        const bool apart = tag < n_opened; /* a line break behind the opening: so the thought is written */
        firn_text_append(&t->follow, reasoning, n_reasoning);
        firn_text_printf(&t->follow, "%s%s%s", apart ? "\n" : "", close,
                         apart && !is_space(f->full.data[full]) ? "\n\n" : "");
        firn_text_append(&t->follow, f->full.data + full, t->end - full);
        return t->follow.status;
    }
    const char *closing = tag ? memmem(words ? words : "", n, close, tag + 1) : NULL;
    size_t at = 0;
    while (at < n && is_space(words[at]))
        at++;
    const bool begins = closing && n - at >= tag && memcmp(words + at, opened, tag) == 0;
    if (!closing || (!begins && memmem(words, n, opened, tag))) {
        t->as_full = true;
        f->counts->asked_otherwise++;
        return FIRN_OK;
    }
    at = begins ? at + tag : 0;
    for (size_t k = tag; begins && k < n_opened && at < n && is_space(opened[k]) && words[at] == opened[k]; k++)
        at++;
    size_t end = (size_t)(closing - words) + tag + 1;
    if (!is_space(f->full.data[full])) /* else the break behind the thought is there */
        while (end < n && is_space(words[end]))
            end++;
    firn_text_append(&t->follow, words + at, end - at);
    firn_text_append(&t->follow, f->full.data + full, t->end - full);
    return t->follow.status;
}

/* The prompt's end sought between the previous message's words and the answer's own. */
static firn_status begin_in_window(firn_finder *f, turn *t, const firn_region *before, const firn_region *in_asked)
{
    const firn_text *asked = &f->asked, *full = &f->full;
    const char *window = full->data + before->end, *tail = asked->data + in_asked->end;
    const size_t size = t->own.begin - before->end, n_tail = asked->size - in_asked->end;
    const size_t same = firn_common_prefix(window, size, tail, n_tail);
    size_t n_header = 0;
    firn_text plain;

    if (same == n_tail) {
        t->begin = before->end + same;
        return FIRN_OK;
    }
    const size_t at = firn_boundary(full->data, full->size, before->end + same);
    const size_t at_asked = firn_boundary(asked->data, asked->size, in_asked->end + same);
    const firn_thought kind = firn_thought_kind(asked->data + at_asked, asked->size - at_asked);
    if (kind != FIRN_THOUGHT_NONE)
        return begin_behind(f, t, at_asked, at, kind);

    /* The header is what the prompt adds; where it adds nothing, what stands behind the last end token. */
    firn_text_init(&plain, f->ctx, 0);
    const firn_status s = firn_finder_render(f, t->i, false, t->i, NULL, &plain, NULL);
    if (s == FIRN_OK) {
        const size_t common = firn_common_prefix(plain.data, plain.size, asked->data, asked->size);
        n_header = asked->size - (common > in_asked->end ? common : in_asked->end);
    }
    firn_text_free(&plain);
    if (s == FIRN_ERR_MEMORY)
        return s;
    if (n_header == 0) {
        const size_t token = firn_end_token(f->t, tail, n_tail, true);
        n_header = token ? n_tail - token : 0;
    }
    const char *place = n_header ? firn_last_place(window, size, asked->data + asked->size - n_header, n_header) : NULL;
    if (place) {
        t->begin = (size_t)(place - full->data) + n_header;
        return FIRN_OK;
    }
    t->as_full = true;
    f->counts->asked_otherwise++;
    t->begin = at;
    if (n_header && at > before->end && at - before->end > n_tail - n_header)
        return FIRN_OK;
    return firn_finder_refuse(f, t->i,
                              "this chat template does not show what the assistant wrote: its header is not "
                              "what add_generation_prompt adds");
}

static firn_status begin_elsewhere(firn_finder *f, turn *t)
{
    const firn_text *asked = &f->asked, *full = &f->full;
    size_t at = firn_common_prefix(asked->data, asked->size, full->data, full->size);
    firn_region before, in_asked;

    at = firn_boundary(asked->data, asked->size, at);
    if (at <= t->own.begin) {
        const size_t in_full = firn_boundary(full->data, full->size, at);
        const firn_thought kind = firn_thought_kind(asked->data + in_full, asked->size - in_full);
        if (kind != FIRN_THOUGHT_NONE)
            return begin_behind(f, t, in_full, in_full, kind);
    }
    if (t->i > 0) {
        FIRN_TRY(firn_find_region(f, t->i + 1, false, t->i - 1, full, &before));
        FIRN_TRY(firn_find_region(f, t->i, true, t->i - 1, asked, &in_asked));
        if (before.exists && in_asked.exists && before.end <= t->own.begin)
            return begin_in_window(f, t, &before, &in_asked);
    }
    return firn_finder_refuse(f, t->i,
                              "this chat template does not show what the assistant wrote: the conversation "
                              "before it shows otherwise than it was asked");
}

/* A conversation that the assistant begins, where the template cannot render what is before it (nothing): the header is
 * learned from a conversation that a user begins. */
static firn_status begin_of_first(firn_finder *f, turn *t)
{
    json_t *user = json_pack("[{s:s,s:s}]", "role", "user", "content", "0probe8"), *kept = f->messages;
    firn_text plain;
    firn_status s = user ? FIRN_OK : firn_fail(f->ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    const char *place = NULL;
    size_t n_header = 0;

    firn_text_init(&plain, f->ctx, 0);
    f->messages = user;
    if (s == FIRN_OK)
        s = firn_finder_render(f, 1, false, 1, NULL, &plain, NULL);
    if (s == FIRN_OK)
        s = firn_finder_render(f, 1, true, 1, NULL, &f->asked, NULL);
    f->messages = kept;
    if (s == FIRN_OK) {
        const size_t same = firn_common_prefix(plain.data, plain.size, f->asked.data, f->asked.size);
        n_header = f->asked.size - same;
        place = n_header ? firn_last_place(f->full.data, t->own.begin, f->asked.data + same, n_header) : NULL;
    }
    firn_text_free(&plain);
    json_decref(user);
    if (s == FIRN_ERR_MEMORY)
        return s;
    if (!place)
        return firn_finder_refuse(f, t->i,
                                  "this chat template does not show what the assistant wrote: its header "
                                  "cannot be told from its words");
    t->begin = (size_t)(place - f->full.data) + n_header;
    t->as_full = true;
    f->counts->asked_otherwise++;
    return FIRN_OK;
}

/* The prompt opens a thought, and the rendering closes it at once: what is thought beside the message goes between. */
static firn_status fill_thought(firn_finder *f, turn *t)
{
    const char *full = f->full.data, *words;
    size_t n, opened, at = t->begin;

    if (!f->marks[t->i].thought || !reasoning_of(f, t, &words, &n))
        return FIRN_OK;
    const firn_thought kind = asked_thought(f, &opened);
    const bool apart = opened < f->asked.size;
    while (at < t->end && is_space(full[at]))
        at++;
    const size_t tag = firn_tag(full + at, t->end - at);
    if (kind != FIRN_THOUGHT_OPEN || !tag || firn_thought_kind(full + at, tag) != FIRN_THOUGHT_CLOSED)
        return FIRN_OK;
    firn_text_append(&t->follow, words, n);
    firn_text_puts(&t->follow, apart ? "\n" : "");
    firn_text_append(&t->follow, full + at, t->end - at);
    return t->follow.status;
}

/* ---- where it ends ---- */

/* Behind the turn there is no end token: does the opening of the message behind it end it? `next` is that message, or
 * one that a user would write. *token: the bytes of that end token in `text`; 0: it does not. */
static firn_status closing_by_next(firn_finder *f, turn *t, json_t *next, firn_text *text, size_t *begin, size_t *token)
{
    json_t *list = json_array(), *kept = f->messages;
    bool ok = list != NULL;
    firn_region own = {0};

    *token = 0;
    for (size_t k = 0; ok && k <= t->i; k++)
        ok = json_array_append(list, json_array_get(kept, k)) == 0;
    ok = ok && json_array_append(list, next) == 0;
    f->messages = list;
    firn_status s = ok ? firn_finder_render(f, t->i + 2, false, t->i + 2, NULL, text, NULL)
                       : firn_fail(f->ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    if (s == FIRN_OK)
        s = firn_find_region(f, t->i + 2, false, t->i, text, &own);
    f->messages = kept;
    json_decref(list);
    if (s != FIRN_OK)
        return s == FIRN_ERR_MEMORY ? s : FIRN_OK;
    size_t n_tail = f->full.size - t->own.end;
    while (n_tail && is_space(f->full.data[t->own.end + n_tail - 1]))
        n_tail--;
    if (own.exists && text->size - own.end >= n_tail &&
        memcmp(text->data + own.end, f->full.data + t->own.end, n_tail) == 0) {
        size_t at = own.end + n_tail;
        while (at < text->size && is_space(text->data[at]))
            at++;
        for (size_t k = 0; k < f->t->tokens.n_ends; k++) {
            const size_t n = strlen(f->t->tokens.ends[k]);
            if (n > *token && text->size - at >= n && memcmp(text->data + at, f->t->tokens.ends[k], n) == 0)
                *token = n;
        }
        *begin = at;
    }
    return FIRN_OK;
}

/* What ends the turn beyond f->full goes into `behind`. */
static firn_status find_end(firn_finder *f, turn *t, firn_text *behind)
{
    const char *s = f->full.data + t->own.end;
    const size_t size = f->full.size - t->own.end, token = firn_end_token(f->t, s, size, false);
    const bool last = t->i + 1 == f->n;
    size_t n_words = size, begin = 0, n = 0;
    firn_text text;

    t->end = t->own.end + token;
    if (token)
        return FIRN_OK;
    while (n_words && is_space(s[n_words - 1]))
        n_words--;
    t->end = t->own.end + n_words;
    json_t *next = last ? json_pack("{s:s,s:s}", "role", "user", "content", "2third7")
                        : json_incref(json_array_get(f->messages, t->i + 1));
    firn_text_init(&text, f->ctx, 0);
    firn_status status = next ? closing_by_next(f, t, next, &text, &begin, &n)
                              : firn_fail(f->ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    if (status == FIRN_OK && n && !last)
        firn_text_append(behind, text.data + begin, n);
    firn_text_free(&text);
    json_decref(next);
    FIRN_TRY(status);
    if (last && (n || n_words == 0)) {
        f->counts->open++;
        return FIRN_OK;
    }
    return n ? behind->status
             : firn_finder_refuse(f, t->i,
                                  "this chat template does not show what the assistant wrote: it is not closed "
                                  "by one of the model's end tokens");
}

/* ---- its words ---- */

/* What stood behind the words of the plain answer before this one stands behind these, and the words are there: no
 * need to look for them. */
static bool known_tail(const firn_finder *f, const turn *t)
{
    const firn_text *tail = &f->tail, *full = &f->full;
    const char *words = json_string_value(json_object_get(t->message, "content"));
    size_t n = words ? json_string_length(json_object_get(t->message, "content")) : 0;

    if (!tail->size || !is_plain(t->message) || full->size < tail->size + f->asked.size ||
        memcmp(full->data + full->size - tail->size, tail->data, tail->size) != 0 ||
        firn_common_prefix(f->asked.data, f->asked.size, full->data, full->size) != f->asked.size)
        return false;
    while (n && is_space(words[n - 1]))
        n--;
    while (n && is_space(*words)) {
        words++;
        n--;
    }
    const size_t end = full->size - tail->size;
    return n && end - f->asked.size >= n && memcmp(full->data + end - n, words, n) == 0;
}

static firn_status find_own(firn_finder *f, turn *t)
{
    if (known_tail(f, t)) {
        t->own = (firn_region){f->asked.size, f->full.size - f->tail.size, true};
        return FIRN_OK;
    }
    if (json_object_get(t->message, "tool_calls"))
        FIRN_TRY(firn_check_shown(f, t->i + 1, false, t->i));
    FIRN_TRY(firn_find_region(f, t->i + 1, false, t->i, &f->full, &t->own));
    if (!t->own.exists)
        return firn_finder_refuse(f, t->i,
                                  "this chat template does not show what the assistant wrote: its words do not stand "
                                  "in one place of their own");
    f->tail.size = 0;
    if (is_plain(t->message) && firn_has_words(json_object_get(t->message, "content")))
        firn_text_append(&f->tail, f->full.data + t->own.end, f->full.size - t->own.end);
    return f->tail.status;
}

/* The reasoning of the message in [from, size) of its sample: where it begins and where its thought is closed. */
static bool find_reasoning(const firn_finder *f, const turn *t, const firn_text *sample, size_t from, firn_span *span)
{
    const char *words;
    size_t n;

    if (!reasoning_of(f, t, &words, &n))
        return false;
    const char *place = memmem(sample->data + from, sample->size - from, words, n);
    if (!place)
        return false;
    *span = (firn_span){(size_t)(place - sample->data), (size_t)(place - sample->data) + n};
    size_t at = span->end;
    while (at < sample->size && is_space(sample->data[at]))
        at++;
    const size_t tag = firn_tag(sample->data + at, sample->size - at);
    if (tag)
        span->end = at + tag;
    return true;
}

/* ---- all of it ---- */

static firn_status put_spans(firn_finder *f, const turn *t, const firn_text *sample, size_t begin, firn_spans *spans)
{
    const char *words;
    size_t n;
    firn_span thought;
    const bool shown = find_reasoning(f, t, sample, begin, &thought);
    size_t from = begin;

    if (!shown && reasoning_of(f, t, &words, &n)) {
        f->counts->reasoning_left_out++;
        if (!firn_has_words(json_object_get(t->message, "content")) && is_plain(t->message))
            return firn_finder_refuse(f, t->i,
                                      "this chat template does not show its reasoning, and it has nothing else");
    }
    if (shown && f->options->reasoning == FIRN_REASONING_MASK)
        from = thought.end;
    if (!firn_jinja_has_generation(f->t->jinja) || t->follow.size)
        return firn_spans_add(spans, from, sample->size);
    const size_t before = spans->n, shift = t->begin - begin; /* may wrap around: it is added back */
    for (size_t k = 0; k < f->generation.n; k++) {
        const firn_span mark = f->generation.items[k];
        size_t a = mark.begin < t->begin ? t->begin : mark.begin, b = mark.end < t->end ? mark.end : t->end;
        if (a >= b)
            continue;
        a -= shift;
        b -= shift;
        if (b > from)
            FIRN_TRY(firn_spans_add(spans, a < from ? from : a, b));
    }
    if (spans->n == before && from < sample->size && !shown)
        return firn_finder_refuse(f, t->i, "the {%% generation %%} marks of this chat template leave it out");
    return FIRN_OK;
}

static firn_status put_together(firn_finder *f, turn *t, firn_text *sample, size_t *begin, firn_spans *spans)
{
    firn_text behind;

    FIRN_TRY(find_own(f, t));
    firn_text_init(&behind, f->ctx, 0);
    firn_status s = find_end(f, t, &behind);
    if (s == FIRN_OK) {
        const firn_text *asked = &f->asked;
        if (!asked->data)
            s = begin_of_first(f, t);
        else if (asked->size <= t->own.end &&
                 firn_common_prefix(asked->data, asked->size, f->full.data, f->full.size) == asked->size)
            t->begin = asked->size;
        else
            s = begin_elsewhere(f, t);
        if (s == FIRN_OK && asked->data && !t->as_full && t->begin == asked->size)
            s = fill_thought(f, t);
    }
    if (s == FIRN_OK) {
        sample->size = 0;
        if (t->as_full)
            firn_text_append(sample, f->full.data, t->begin);
        else
            firn_text_append(sample, f->asked.data, f->asked.size);
        *begin = sample->size;
        if (t->follow.size)
            firn_text_append(sample, t->follow.data, t->follow.size);
        else
            firn_text_append(sample, f->full.data + t->begin, t->end - t->begin);
        firn_text_append(sample, firn_text_cstr(&behind), behind.size);
        s = sample->status;
    }
    firn_text_free(&behind);
    return s == FIRN_OK ? put_spans(f, t, sample, *begin, spans) : s;
}

/* The messages, that of the turn with its thought in a block at the start of the content: where the prompt says nothing
 * of thoughts, the answer writes it so. */
static firn_status with_block(firn_finder *f, const turn *t, json_t **list)
{
    const json_t *content = json_object_get(t->message, "content");
    json_t *m = json_copy((json_t *)(uintptr_t)t->message);
    const char *words;
    size_t n;
    firn_text text;

    *list = json_copy(f->messages);
    firn_text_init(&text, f->ctx, 0);
    firn_text_puts(&text, "<think>\n");
    if (reasoning_of(f, t, &words, &n))
        firn_text_append(&text, words, n);
    firn_text_puts(&text, "\n</think>\n\n");
    firn_text_append(&text, json_string_value(content), json_string_length(content));
    const bool ok = text.status == FIRN_OK && m && *list &&
                    json_object_set_new(m, "content", json_stringn(text.data, text.size)) == 0 &&
                    json_array_set(*list, t->i, m) == 0;
    firn_text_free(&text);
    json_decref(m);
    if (ok)
        return FIRN_OK;
    json_decref(*list);
    *list = NULL;
    return firn_fail(f->ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
}

static firn_status render_full(firn_finder *f, const turn *t)
{
    const bool marked = firn_jinja_has_generation(f->t->jinja);
    const size_t n = t->i + 1;

    f->generation.n = 0;
    const firn_status s = firn_finder_render(f, n, false, n, NULL, &f->full, marked ? &f->generation : NULL);
    return s == FIRN_OK || s == FIRN_ERR_MEMORY ? s : firn_fail_in(f->ctx, s, "message %zu", f->marks[t->i].number);
}

static bool shows_thought(const firn_finder *f, const turn *t)
{
    const char *words;
    size_t n;

    return reasoning_of(f, t, &words, &n) && memmem(f->full.data, f->full.size, words, n);
}

firn_status firn_find_turn(firn_finder *f, size_t i, firn_text *sample, size_t *begin, firn_spans *spans, bool *skip)
{
    turn t = {.i = i, .message = json_array_get(f->messages, i)};

    *skip = false;
    firn_status s = firn_finder_render(f, i, true, i, NULL, &f->asked, NULL);
    if (s == FIRN_ERR_MEMORY)
        return s;
    if (s != FIRN_OK && i > 0)
        return firn_fail_in(f->ctx, s, "message %zu: the conversation before it cannot be rendered by itself",
                            f->marks[i].number);
    if (s != FIRN_OK)
        firn_text_free(&f->asked); /* nothing can be asked */
    else if (f->options->fills)
        FIRN_TRY(f->options->fills(f->options->user, f->asked.data, f->asked.size, skip));
    if (*skip)
        return FIRN_OK;
    json_t *kept = f->messages, *list = NULL;
    size_t end;
    if (f->marks[i].thought && f->asked.data && asked_thought(f, &end) == FIRN_THOUGHT_NONE) {
        FIRN_TRY(with_block(f, &t, &list));
        f->messages = list;
        t.message = json_array_get(list, i);
    }
    s = render_full(f, &t);
    if (s == FIRN_OK && list && !shows_thought(f, &t)) { /* then without */
        f->messages = kept;
        t.message = json_array_get(kept, i);
        s = render_full(f, &t);
    }
    if (s == FIRN_OK) {
        firn_text_init(&t.follow, f->ctx, 0);
        s = put_together(f, &t, sample, begin, spans);
        firn_text_free(&t.follow);
    }
    f->messages = kept;
    json_decref(list);
    return s;
}
