/* Conversations to samples: turn after turn, those that are each other's prefix together. See chat.h. */
#include "text/chat.h"

#include <string.h>

static firn_status out_of_memory(firn_context *ctx)
{
    return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
}

firn_status firn_finder_refuse(firn_finder *f, size_t i, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    firn_failv(f->ctx, FIRN_ERR_UNSUPPORTED, format, args);
    va_end(args);
    return firn_fail_in(f->ctx, FIRN_ERR_UNSUPPORTED, "message %zu", f->marks[i].number);
}

firn_status firn_finder_render(firn_finder *f, size_t n, bool prompt, size_t replaced, json_t *other, firn_text *out,
                               firn_spans *marks)
{
    json_t *v = json_copy(f->variables), *list = json_array();
    bool ok = v && list;

    for (size_t i = 0; ok && i < n; i++)
        ok = json_array_append(list, i == replaced ? other : json_array_get(f->messages, i)) == 0;
    ok = ok && json_object_set(v, "messages", list) == 0 &&
         json_object_set_new(v, "add_generation_prompt", json_boolean(prompt)) == 0;
    out->size = 0;
    firn_status status = ok ? firn_template_render(f->t, v, f->options->now, out, marks) : out_of_memory(f->ctx);
    json_decref(v);
    json_decref(list);
    firn_text_puts(out, ""); /* so that an empty text has an address too */
    if (status == FIRN_OK)
        status = out->status;
    if (status != FIRN_OK)
        firn_text_free(out);
    return status;
}

static bool is_assistant(const json_t *message)
{
    return strcmp(json_string_value(json_object_get(message, "role")), "assistant") == 0;
}

/* ---- samples ---- */

static firn_status add_rendering(firn_renderings *r, const firn_text *text, firn_rendering **added)
{
    FIRN_TRY(text->status);
    FIRN_TRY(firn_grow(r->ctx, (void **)&r->items, r->n, &r->capacity, sizeof *r->items));
    firn_rendering *x = &r->items[r->n++];
    firn_text_init(&x->text, r->ctx, 0);
    firn_spans_init(&x->turns, r->ctx);
    firn_spans_init(&x->spans, r->ctx);
    firn_text_append(&x->text, firn_text_cstr(text), text->size);
    *added = x;
    return x->text.status;
}

/* The sample that this text goes on from; NULL: none. */
static firn_rendering *begun_in(firn_renderings *r, const firn_text *text, size_t begin)
{
    for (size_t k = r->n; k-- > 0;) {
        firn_rendering *x = &r->items[k];
        if (x->text.size <= begin && memcmp(x->text.data, text->data, x->text.size) == 0)
            return x;
    }
    return NULL;
}

static firn_status add_turn(firn_renderings *r, const firn_text *text, size_t begin, const firn_spans *spans)
{
    firn_rendering *x = begun_in(r, text, begin);

    if (x)
        firn_text_append(&x->text, text->data + x->text.size, text->size - x->text.size);
    else
        FIRN_TRY(add_rendering(r, text, &x));
    FIRN_TRY(x->text.status);
    FIRN_TRY(firn_spans_add(&x->turns, begin, text->size));
    for (size_t k = 0; k < spans->n; k++)
        FIRN_TRY(firn_spans_add(&x->spans, spans->items[k].begin, spans->items[k].end));
    return FIRN_OK;
}

void firn_renderings_free(firn_renderings *r)
{
    for (size_t k = 0; k < r->n; k++) {
        firn_text_free(&r->items[k].text);
        firn_spans_free(&r->items[k].turns);
        firn_spans_free(&r->items[k].spans);
    }
    firn_free(r->ctx, r->items);
    *r = (firn_renderings){0};
}

/* ---- --loss ---- */

/* The whole text, but what messages say that are not to be trained, and masked reasoning. */
static firn_status render_all(firn_finder *f, firn_renderings *r)
{
    firn_rendering *x;
    size_t at = 0;

    FIRN_TRY(firn_finder_render(f, f->n, false, f->n, NULL, &f->full, NULL));
    FIRN_TRY(firn_check_asked(f, f->n));
    FIRN_TRY(add_rendering(r, &f->full, &x));
    for (size_t i = 0; i < f->n; i++) {
        const json_t *m = json_array_get(f->messages, i);
        const char *words;
        size_t n;
        firn_region region = {0};
        if (!f->marks[i].trained) {
            FIRN_TRY(firn_find_region(f, f->n, false, i, &f->full, &region));
        } else if (f->options->reasoning == FIRN_REASONING_MASK && is_assistant(m) &&
                   firn_message_reasoning(f->t, m, &words, &n)) {
            const char *place = memmem(f->full.data + at, f->full.size - at, words, n);
            if (place)
                region = (firn_region){(size_t)(place - f->full.data), (size_t)(place - f->full.data) + n, true};
        }
        if (!region.exists || region.begin < at)
            continue;
        if (region.begin > at)
            FIRN_TRY(firn_spans_add(&x->spans, at, region.begin));
        at = region.end;
    }
    return at < f->full.size ? firn_spans_add(&x->spans, at, f->full.size) : FIRN_OK;
}

/* ---- turns ---- */

static firn_status render_turns(firn_finder *f, firn_renderings *r)
{
    const bool only_last = f->options->loss == FIRN_LOSS_LAST;
    size_t first = 0, last = 0, checked = 0;
    firn_text sample;
    firn_spans spans;
    firn_status s = FIRN_OK;

    for (size_t i = 0; i < f->n; i++)
        if (is_assistant(json_array_get(f->messages, i)) && f->marks[i].trained)
            last = i + 1;
    first = only_last && last ? last - 1 : 0;
    firn_text_init(&sample, f->ctx, 0);
    firn_spans_init(&spans, f->ctx);
    for (size_t i = first; s == FIRN_OK && i < last; i++) {
        size_t begin;
        bool skip;
        if (!is_assistant(json_array_get(f->messages, i)) || !f->marks[i].trained)
            continue;
        spans.n = 0;
        s = firn_find_turn(f, i, &sample, &begin, &spans, &skip);
        if (s != FIRN_OK)
            break;
        if (!skip) {
            s = add_turn(r, &sample, begin, &spans);
            checked = i;
            continue;
        }
        f->counts->beyond++;
        /* An answer to a user: what a template leaves out of earlier turns, it has left out here. */
        if (i > 0 &&
            strcmp(json_string_value(json_object_get(json_array_get(f->messages, i - 1), "role")), "user") == 0) {
            for (i++; i < last; i++)
                f->counts->beyond += is_assistant(json_array_get(f->messages, i)) && f->marks[i].trained;
        }
    }
    if (s == FIRN_OK && checked)
        s = firn_check_asked(f, checked);
    if (s == FIRN_OK && r->n == 0) { /* nothing to train, or not within the window */
        firn_rendering *x;
        s = f->asked.data ? FIRN_OK : firn_finder_render(f, f->n, false, f->n, NULL, &f->asked, NULL);
        if (s == FIRN_OK)
            s = add_rendering(r, &f->asked, &x);
    }
    firn_text_free(&sample);
    firn_spans_free(&spans);
    return s;
}

firn_status firn_chat_render(const firn_template *t, const json_t *given, const firn_chat_options *options,
                             firn_renderings *r)
{
    firn_conversation c;

    *r = (firn_renderings){.ctx = t->ctx};
    FIRN_TRY(firn_conversation_read(t, given, options->reasoning != FIRN_REASONING_DROP, &c));
    firn_finder f = {.ctx = t->ctx,
                     .t = t,
                     .options = options,
                     .variables = c.variables,
                     .messages = json_object_get(c.variables, "messages"),
                     .marks = c.marks,
                     .n = json_array_size(json_object_get(c.variables, "messages")),
                     .counts = &r->counts};
    firn_text_init(&f.asked, t->ctx, 0);
    firn_text_init(&f.full, t->ctx, 0);
    firn_text_init(&f.tail, t->ctx, 0);
    firn_spans_init(&f.generation, t->ctx);
    r->counts.reasoning_left_out = c.left_out;
    const firn_status s = options->loss == FIRN_LOSS_ALL ? render_all(&f, r) : render_turns(&f, r);
    firn_text_free(&f.asked);
    firn_text_free(&f.full);
    firn_text_free(&f.tail);
    firn_spans_free(&f.generation);
    firn_conversation_free(t->ctx, &c);
    if (s != FIRN_OK)
        firn_renderings_free(r);
    return s;
}

firn_status firn_chat_ask(const firn_template *t, const json_t *given, const struct tm *now, bool prompt,
                          firn_text *out)
{
    firn_conversation c;

    FIRN_TRY(firn_conversation_read(t, given, true, &c));
    firn_status s = !prompt || json_object_set_new(c.variables, "add_generation_prompt", json_true()) == 0
                        ? firn_template_render(t, c.variables, now, out, NULL)
                        : out_of_memory(t->ctx);
    firn_conversation_free(t->ctx, &c);
    return s;
}
