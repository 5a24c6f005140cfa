/* From JSONL to samples. A line is one of
 *
 *     {"messages": [{"role": "user", "content": "..."}, ...], ...}   through the model's template; other keys go to it
 *     {"prompt": "...", "completion": "..."}                         one text; the completion and an end token trained
 *     {"text": "..."}                                                all of it trained, over as many windows as it
 * takes
 *
 * and is tokenized whole with special tokens parsed, BOS before it where the vocabulary asks for it and the text does
 * not begin with it. A token is trained when its bytes meet a trained span; the first token of a piece has nothing
 * before it to be predicted from, and never is. */
#include "train/data.h"

#include "train/jsonl.h"

#include <string.h>

firn_status firn_token_list_add(firn_context *ctx, firn_token_list *list, int32_t id, size_t begin, size_t end)
{
    if (list->n == list->capacity) {
        const size_t wanted = list->capacity ? 2 * list->capacity : 256;
        int32_t *ids = firn_realloc(ctx, list->ids, wanted * sizeof *ids);
        list->ids = ids ? ids : list->ids;
        size_t *b = ids ? firn_realloc(ctx, list->begin, wanted * sizeof *b) : NULL;
        list->begin = b ? b : list->begin;
        size_t *e = b ? firn_realloc(ctx, list->end, wanted * sizeof *e) : NULL;
        list->end = e ? e : list->end;
        if (!e)
            return FIRN_ERR_MEMORY;
        list->capacity = wanted;
    }
    list->ids[list->n] = id;
    list->begin[list->n] = begin;
    list->end[list->n++] = end;
    return FIRN_OK;
}

void firn_token_list_free(firn_context *ctx, firn_token_list *list)
{
    firn_free(ctx, list->ids);
    firn_free(ctx, list->begin);
    firn_free(ctx, list->end);
    *list = (firn_token_list){0};
}

/* What one line goes through; its memory serves all lines. */
typedef struct {
    const firn_encoder *encoder;
    const firn_jsonl *lines;
    int64_t context;
    firn_data *data;
    firn_text text;
    firn_spans spans;
    firn_token_list tokens;
    firn_status taken; /* of the samples that a template gave */
    bool has_text;     /* the line has */
} reader;

static firn_status check_messages(const firn_jsonl *lines, const json_t *messages)
{
    const json_t *message;
    size_t i;

    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return firn_jsonl_fail(lines, "messages", -1, NULL, "expected messages to be a list of at least one message");
    json_array_foreach(messages, i, message)
    {
        const json_t *content = json_object_get(message, "content");
        if (!json_is_object(message))
            return firn_jsonl_fail(lines, "messages", (int64_t)i, NULL,
                                   "expected a message {\"role\": ..., \"content\": ...}");
        if (!json_is_string(json_object_get(message, "role")))
            return firn_jsonl_fail(lines, "messages", (int64_t)i, "role",
                                   "expected the message to have a role, such as \"user\" or \"assistant\"");
        if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
            return firn_jsonl_fail(lines, "messages", (int64_t)i, "content", "expected content to be a string");
        if (!content && !json_object_get(message, "tool_calls"))
            return firn_jsonl_fail(lines, "messages", (int64_t)i, NULL, "expected the message to have content");
    }
    return FIRN_OK;
}

static firn_status expect_string(const firn_jsonl *lines, const json_t *object, const char *key, const char **s,
                                 size_t *n)
{
    const json_t *value = json_object_get(object, key);

    if (!value)
        return firn_jsonl_fail(lines, NULL, -1, NULL, "expected \"%s\" too", key);
    if (!json_is_string(value))
        return firn_jsonl_fail(lines, key, -1, NULL, "expected \"%s\" to be a string", key);
    *s = json_string_value(value);
    *n = json_string_length(value);
    return FIRN_OK;
}

/* What an encoder says of want of memory is not the line's fault, and keeps its status. */
static firn_status memory_at(const firn_jsonl *lines)
{
    return firn_fail_in(lines->ctx, FIRN_ERR_MEMORY, "%s:%lld", lines->name, (long long)lines->line);
}

static bool is_trained(const firn_spans *spans, size_t begin, size_t end)
{
    for (size_t i = 0; i < spans->n; i++)
        if (begin < spans->items[i].end && end > spans->items[i].begin)
            return true;
    return false;
}

/* Makes a sample of tokens [from, from + n) of the line, unless nothing in it is trained. */
static firn_status add_sample(reader *r, const firn_spans *spans, size_t from, size_t n)
{
    firn_data *d = r->data;
    int32_t n_targets = 0;

    FIRN_TRY(firn_grow(d->ctx, (void **)&d->samples, d->n_samples, &d->samples_capacity, sizeof *d->samples));
    const int64_t begin = (int64_t)d->n_tokens;
    for (size_t i = 0; i < n; i++) {
        const size_t t = from + i;
        const bool trained = i > 0 && is_trained(spans, r->tokens.begin[t], r->tokens.end[t]);
        FIRN_TRY(firn_grow(d->ctx, (void **)&d->tokens, d->n_tokens, &d->tokens_capacity, sizeof *d->tokens));
        FIRN_TRY(firn_grow(d->ctx, (void **)&d->trained, d->n_tokens, &d->trained_capacity, sizeof *d->trained));
        d->tokens[d->n_tokens] = r->tokens.ids[t];
        d->trained[d->n_tokens++] = trained;
        n_targets += trained;
    }
    if (n_targets == 0) {
        d->n_tokens = (size_t)begin;
        return FIRN_OK;
    }
    if (d->n_samples >= INT32_MAX)
        return firn_fail(d->ctx, FIRN_ERR_UNSUPPORTED, "a data set has at most %d samples", INT32_MAX);
    d->samples[d->n_samples++] = (firn_sample){r->lines->line, begin, (int32_t)n, n_targets};
    d->n_targets += n_targets;
    return FIRN_OK;
}

/* The samples of a text. spread: over as many windows as it takes; else it is cut. ends: an end token follows, and is
 * trained. tokens: NULL, or of the text. */
static firn_status add_text(reader *r, const firn_text *text, const firn_spans *spans, const firn_token_list *tokens,
                            bool spread, bool ends)
{
    firn_context *ctx = r->data->ctx;
    const firn_encoder *e = r->encoder;

    r->tokens.n = 0;
    if (text->size == 0)
        return FIRN_OK;
    r->has_text = true;
    firn_status status = FIRN_OK;
    for (size_t i = 0; tokens && status == FIRN_OK && i < tokens->n; i++)
        status = firn_token_list_add(ctx, &r->tokens, tokens->ids[i], tokens->begin[i], tokens->end[i]);
    if (!tokens)
        status = e->encode(e->user, text->data, text->size, &r->tokens);
    if (status == FIRN_ERR_MEMORY)
        return memory_at(r->lines);
    if (status != FIRN_OK)
        return firn_jsonl_fail(r->lines, NULL, -1, NULL, "%s", firn_error(ctx));
    if (e->add_bos && e->bos >= 0 && (r->tokens.n == 0 || r->tokens.ids[0] != e->bos)) {
        FIRN_TRY(firn_token_list_add(ctx, &r->tokens, 0, 0, 0));
        memmove(r->tokens.ids + 1, r->tokens.ids, (r->tokens.n - 1) * sizeof *r->tokens.ids);
        memmove(r->tokens.begin + 1, r->tokens.begin, (r->tokens.n - 1) * sizeof *r->tokens.begin);
        memmove(r->tokens.end + 1, r->tokens.end, (r->tokens.n - 1) * sizeof *r->tokens.end);
        r->tokens.ids[0] = e->bos;
        r->tokens.begin[0] = r->tokens.end[0] = 0;
    }
    if (ends && r->tokens.n > 0 && r->tokens.ids[r->tokens.n - 1] != e->eos) /* one byte past the text */
        FIRN_TRY(firn_token_list_add(ctx, &r->tokens, e->eos, text->size, text->size + 1));

    const size_t before = r->data->n_samples, window = (size_t)r->context, n = r->tokens.n;
    if (spread && n > window) {
        /* Each piece starts with the last token of the one before, so that every token is predicted once. */
        for (size_t from = 0; from + 1 < n; from += window - 1)
            FIRN_TRY(add_sample(r, spans, from, n - from < window ? n - from : window));
        r->data->split++;
    } else {
        FIRN_TRY(add_sample(r, spans, 0, n < window ? n : window));
        r->data->cut += n > window && r->data->n_samples > before;
    }
    return FIRN_OK;
}

static firn_status take(void *sink, const firn_text *text, const firn_spans *spans, const firn_token_list *tokens)
{
    reader *r = sink;

    r->taken = add_text(r, text, spans, tokens, false, false);
    return r->taken;
}

static firn_status read_messages(reader *r, const json_t *object)
{
    FIRN_TRY(check_messages(r->lines, json_object_get(object, "messages")));
    if (!r->encoder->render)
        return firn_jsonl_fail(r->lines, "messages", -1, NULL,
                               "messages need a chat template, and the model has none; expected prompt and "
                               "completion, or text");
    r->taken = FIRN_OK;
    const firn_status status = r->encoder->render(r->encoder->user, object, r->context, take, r);
    if (status == FIRN_OK || r->taken != FIRN_OK)
        return r->taken;
    if (status == FIRN_ERR_MEMORY)
        return memory_at(r->lines);
    return firn_jsonl_fail(r->lines, "messages", -1, NULL, "the model's chat template refuses it: %s",
                           firn_error(r->lines->ctx));
}

static firn_status read_completion(reader *r, const json_t *object)
{
    const char *s = "";
    size_t n = 0;

    FIRN_TRY(expect_string(r->lines, object, "prompt", &s, &n));
    firn_text_append(&r->text, s, n);
    const size_t begin = r->text.size;
    FIRN_TRY(expect_string(r->lines, object, "completion", &s, &n));
    firn_text_append(&r->text, s, n);
    const bool ends = n > 0 && r->encoder->eos >= 0;
    FIRN_TRY(firn_spans_add(&r->spans, begin, r->text.size + ends));
    return add_text(r, &r->text, &r->spans, NULL, false, ends);
}

static firn_status read_text(reader *r, const json_t *object)
{
    const char *s = "";
    size_t n = 0;

    FIRN_TRY(expect_string(r->lines, object, "text", &s, &n));
    firn_text_append(&r->text, s, n);
    const bool ends = n > 0 && r->encoder->add_eos && r->encoder->eos >= 0;
    FIRN_TRY(firn_spans_add(&r->spans, 0, n + ends));
    return add_text(r, &r->text, &r->spans, NULL, true, ends);
}

static firn_status read_line(reader *r, const json_t *object)
{
    firn_data *d = r->data;
    const size_t before = d->n_samples;
    firn_status s;

    r->text.size = 0;
    r->spans.n = 0;
    r->has_text = false;
    if (json_object_get(object, "messages"))
        s = read_messages(r, object);
    else if (json_object_get(object, "prompt") || json_object_get(object, "completion"))
        s = read_completion(r, object);
    else if (json_object_get(object, "text"))
        s = read_text(r, object);
    else
        s = firn_jsonl_fail(r->lines, NULL, -1, NULL,
                            "expected messages, prompt and completion, or text among the keys");
    FIRN_TRY(s);
    FIRN_TRY(r->text.status);
    d->lines++;
    d->empty += !r->has_text;
    d->untrained += r->has_text && d->n_samples == before;
    return FIRN_OK;
}

/* one: a line by itself, of which nothing need be left. */
static firn_status read_all(reader *r, firn_jsonl *lines, bool one)
{
    json_t *object;

    for (;;) {
        FIRN_TRY(firn_jsonl_next(lines, &object));
        if (!object)
            break;
        const firn_status s = read_line(r, object);
        json_decref(object);
        FIRN_TRY(s);
    }
    const firn_data *d = r->data;
    if (d->lines == 0)
        return firn_fail(d->ctx, FIRN_ERR_FORMAT, "%s is empty: expected a JSON object on each line", lines->name);
    if (d->n_samples == 0 && !one)
        return firn_fail(d->ctx, FIRN_ERR_FORMAT,
                         "nothing is left to train on in %s: of %lld samples %lld are empty and %lld have no token to "
                         "predict within %lld tokens",
                         lines->name, (long long)d->lines, (long long)d->empty, (long long)d->untrained,
                         (long long)r->context);
    return FIRN_OK;
}

static firn_status load(firn_jsonl *lines, const firn_encoder *encoder, int64_t context, bool one, firn_data **result)
{
    firn_context *ctx = lines->ctx;
    firn_data *d = firn_alloc_zeroed(ctx, 1, sizeof *d);

    *result = NULL;
    if (!d)
        return FIRN_ERR_MEMORY;
    d->ctx = ctx;
    reader r = {.encoder = encoder, .lines = lines, .context = context, .data = d};
    firn_text_init(&r.text, ctx, 0);
    firn_spans_init(&r.spans, ctx);
    const firn_status s = read_all(&r, lines, one);
    firn_text_free(&r.text);
    firn_spans_free(&r.spans);
    firn_token_list_free(ctx, &r.tokens);
    if (s != FIRN_OK) {
        firn_data_destroy(d);
        return s;
    }
    *result = d;
    return FIRN_OK;
}

firn_status firn_data_load(firn_context *ctx, const char *path, const firn_encoder *encoder, int64_t context,
                           firn_data **data)
{
    firn_jsonl lines;

    *data = NULL;
    FIRN_EXPECT(ctx, context >= 2, "a window has at least 2 tokens, not %lld", (long long)context);
    FIRN_TRY(firn_jsonl_open(ctx, path, &lines));
    const firn_status s = load(&lines, encoder, context, false, data);
    firn_jsonl_close(&lines);
    return s;
}

firn_status firn_data_parse_line(firn_context *ctx, const void *bytes, size_t size, const firn_encoder *encoder,
                                 int64_t context, firn_data **data)
{
    firn_jsonl lines;

    *data = NULL;
    FIRN_EXPECT(ctx, context >= 2, "a window has at least 2 tokens, not %lld", (long long)context);
    firn_jsonl_parse(ctx, "line", bytes, size, &lines);
    return load(&lines, encoder, context, true, data);
}

firn_status firn_data_parse(firn_context *ctx, const char *name, const void *bytes, size_t size,
                            const firn_encoder *encoder, int64_t context, firn_data **data)
{
    firn_jsonl lines;

    *data = NULL;
    FIRN_EXPECT(ctx, context >= 2, "a window has at least 2 tokens, not %lld", (long long)context);
    firn_jsonl_parse(ctx, name, bytes, size, &lines);
    return load(&lines, encoder, context, false, data);
}

void firn_data_destroy(firn_data *data)
{
    if (!data)
        return;
    firn_free(data->ctx, data->samples);
    firn_free(data->ctx, data->tokens);
    firn_free(data->ctx, data->trained);
    firn_free(data->ctx, data);
}

uint64_t firn_data_bytes(const firn_data *data)
{
    return data->samples_capacity * sizeof *data->samples + data->tokens_capacity * sizeof *data->tokens +
           data->trained_capacity * sizeof *data->trained;
}

void firn_data_describe(const firn_data *data, firn_text *text)
{
    firn_text_printf(text, "%lld samples, %zu tokens, %lld of them trained", (long long)data->lines, data->n_tokens,
                     (long long)data->n_targets);
    if (data->split)
        firn_text_printf(text, "; %lld spread over %zu windows", (long long)data->split,
                         data->n_samples - (size_t)(data->lines - data->empty - data->untrained - data->split));
    if (data->cut)
        firn_text_printf(text, "; %lld longer than the context were cut at their end", (long long)data->cut);
    if (data->empty)
        firn_text_printf(text, "; %lld empty ones dropped", (long long)data->empty);
    if (data->untrained)
        firn_text_printf(text, "; %lld without anything to train dropped", (long long)data->untrained);
}
