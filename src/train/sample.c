/* Lines to tokens: see sample.h. A text is tokenized whole with special tokens parsed, BOS before it where the
 * vocabulary asks for it and the text does not begin with it. A token is trained when its bytes meet a trained span;
 * the first token of a piece has nothing before it to be predicted from, and never is.
 *
 *     messages               the samples that the template gives
 *     prompt + completion    one text; the completion and an end token are trained
 *     text                   all of it is trained, over as many windows as it takes
 *     input_ids              as they are, nothing added; with labels what these name, else like a text */
#include "train/sample.h"

#include "core/plain.h"
#include "core/random.h"

#include <string.h>

void firn_sampler_init(firn_sampler *s, firn_data *data, firn_store *store, const firn_encoder *encoder,
                       const firn_canon_options *canon, int64_t context, bool preferences)
{
    *s = (firn_sampler){.ctx = data->ctx,
                        .encoder = encoder,
                        .canon = canon,
                        .data = data,
                        .store = store,
                        .context = context,
                        .preferences = preferences};
    firn_text_init(&s->text, s->ctx, 0);
    firn_spans_init(&s->spans, s->ctx);
}

void firn_sampler_free(firn_sampler *s)
{
    firn_seen_free(s->ctx, &s->seen);
    firn_text_free(&s->text);
    firn_spans_free(&s->spans);
    firn_token_list_free(s->ctx, &s->encoded);
    firn_free(s->ctx, s->packed.tokens);
    firn_free(s->ctx, s->pieces);
    firn_free(s->ctx, s->lengths);
}

/* ---- pieces ---- */

static firn_status pack_token(firn_sampler *s, int32_t id, bool trained)
{
    firn_packed *p = &s->packed;

    FIRN_TRY(firn_grow(s->ctx, (void **)&p->tokens, p->n, &p->capacity, sizeof *p->tokens));
    p->tokens[p->n++] = (uint32_t)id | (trained ? FIRN_TRAINED : 0);
    return FIRN_OK;
}

/* Makes a piece of packed tokens [from, from + n), unless nothing in it is trained but its first. */
static firn_status add_piece(firn_sampler *s, size_t from, size_t n)
{
    int32_t n_targets = 0;

    for (size_t i = from + 1; i < from + n; i++)
        n_targets += (s->packed.tokens[i] & FIRN_TRAINED) != 0;
    if (n_targets == 0)
        return FIRN_OK;
    FIRN_TRY(firn_grow(s->ctx, (void **)&s->pieces, s->n_pieces, &s->pieces_capacity, sizeof *s->pieces));
    s->pieces[s->n_pieces++] = (firn_piece){from, (int32_t)n, n_targets};
    return FIRN_OK;
}

/* The packed tokens from `from` on, one text, as pieces. spread: over as many windows as it takes; else it is cut. */
static firn_status add_pieces(firn_sampler *s, size_t from, bool spread)
{
    const size_t n = s->packed.n - from, window = (size_t)s->context, before = s->n_pieces;

    FIRN_TRY(firn_grow(s->ctx, (void **)&s->lengths, s->n_lengths, &s->lengths_capacity, sizeof *s->lengths));
    s->lengths[s->n_lengths++] = (int64_t)n;
    if (spread && n > window) {
        /* Each piece starts with the last token of the one before, so that every token is predicted once. */
        for (size_t at = 0; at + 1 < n; at += window - 1)
            FIRN_TRY(add_piece(s, from + at, n - at < window ? n - at : window));
        s->split++;
        return FIRN_OK;
    }
    FIRN_TRY(add_piece(s, from, n < window ? n : window));
    if (n > window && s->n_pieces > before) {
        s->cut++;
        s->cut_tokens += (int64_t)(n - window);
    }
    return FIRN_OK;
}

/* ---- texts ---- */

/* What an encoder says of want of memory is not the line's fault, and keeps its status. */
static firn_status memory_at(const firn_jsonl *lines)
{
    return firn_fail_in(lines->ctx, FIRN_ERR_MEMORY, "%s:%lld", lines->name, (long long)lines->line);
}

static firn_status encode(firn_sampler *s, const firn_text *text)
{
    s->encoded.n = 0;
    const firn_status status = s->encoder->encode(s->encoder->user, text->data, text->size, &s->encoded);
    if (status == FIRN_ERR_MEMORY)
        return memory_at(s->lines);
    return status == FIRN_OK ? FIRN_OK : firn_jsonl_fail(s->lines, NULL, -1, NULL, "%s", firn_error(s->ctx));
}

/* border: where a prompt ends; 0: there is none. ends: an end token follows, and is trained. */
static firn_status add_text(firn_sampler *s, const firn_text *text, const firn_spans *spans,
                            const firn_token_list *tokens, size_t border, bool spread, bool ends)
{
    const firn_encoder *e = s->encoder;
    const size_t from = s->packed.n;
    size_t k = 0;

    if (text->size == 0)
        return FIRN_OK;
    s->has_text = true;
    if (!tokens) {
        FIRN_TRY(encode(s, text));
        tokens = &s->encoded;
    }
    if (e->add_bos && e->bos >= 0 && (tokens->n == 0 || tokens->ids[0] != e->bos))
        FIRN_TRY(pack_token(s, e->bos, false));
    for (size_t i = 0; i < tokens->n; i++) {
        const size_t begin = tokens->begin[i], end = tokens->end[i];
        while (k < spans->n && spans->items[k].end <= begin)
            k++;
        FIRN_TRY(pack_token(s, tokens->ids[i], k < spans->n && spans->items[k].begin < end));
        s->joined |= border && begin < border && end > border;
    }
    if (ends && tokens->n > 0 && tokens->ids[tokens->n - 1] != e->eos)
        FIRN_TRY(pack_token(s, e->eos, true));
    return add_pieces(s, from, spread);
}

static firn_status take(void *sink, const firn_text *text, const firn_spans *spans, const firn_token_list *tokens)
{
    firn_sampler *s = sink;

    s->taken = add_text(s, text, spans, tokens, 0, false, false);
    return s->taken;
}

static firn_status read_messages(firn_sampler *s, const json_t *object)
{
    const char *key = firn_canon_key(s->canon, "messages");

    if (!s->encoder->render)
        return firn_jsonl_fail(s->lines, key, -1, NULL,
                               "messages need a chat template, and the model has none; expected prompt and "
                               "completion, or text");
    s->taken = FIRN_OK;
    const firn_status status = s->encoder->render(s->encoder->user, object, s->context, take, s);
    if (status == FIRN_OK || s->taken != FIRN_OK)
        return s->taken;
    if (status == FIRN_ERR_MEMORY)
        return memory_at(s->lines);
    return firn_jsonl_fail(s->lines, key, -1, NULL, "the model's chat template refuses it: %s", firn_error(s->ctx));
}

static firn_status read_completion(firn_sampler *s, const json_t *object)
{
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");
    const size_t n = json_string_length(completion);
    const bool ends = n > 0 && s->encoder->eos >= 0;

    firn_text_append(&s->text, json_string_value(prompt), json_string_length(prompt));
    const size_t border = s->text.size;
    firn_text_append(&s->text, json_string_value(completion), n);
    FIRN_TRY(firn_spans_add(&s->spans, border, s->text.size));
    FIRN_TRY(s->text.status);
    return add_text(s, &s->text, &s->spans, NULL, border, false, ends);
}

static firn_status read_text(firn_sampler *s, const json_t *object)
{
    const json_t *text = json_object_get(object, "text");
    const size_t n = json_string_length(text);
    const bool ends = n > 0 && s->encoder->add_eos && s->encoder->eos >= 0;

    firn_text_append(&s->text, json_string_value(text), n);
    FIRN_TRY(firn_spans_add(&s->spans, 0, n));
    FIRN_TRY(s->text.status);
    return add_text(s, &s->text, &s->spans, NULL, 0, true, ends);
}

static firn_status read_tokens(firn_sampler *s, const json_t *object)
{
    const json_t *ids = json_object_get(object, "input_ids"), *labels = json_object_get(object, "labels"), *id;
    const int64_t limit = s->encoder->n_vocab > 0 ? s->encoder->n_vocab : INT32_MAX;
    const size_t from = s->packed.n;
    size_t i;

    json_array_foreach(ids, i, id)
    {
        const json_int_t value = json_integer_value(id);
        if (value < 0 || value >= limit)
            return firn_jsonl_fail(s->lines, firn_canon_key(s->canon, "input_ids"), (int64_t)i, NULL,
                                   "expected a token id from 0 to %lld, got %lld", (long long)limit - 1,
                                   (long long)value);
        FIRN_TRY(pack_token(s, (int32_t)value, !labels || json_integer_value(json_array_get(labels, i)) != -100));
    }
    if (i == 0)
        return FIRN_OK;
    s->has_text = true;
    return add_pieces(s, from, !labels);
}

static firn_status read_object(firn_sampler *s, const json_t *object)
{
    s->text.size = 0;
    s->spans.n = 0;
    if (json_object_get(object, "messages"))
        return read_messages(s, object);
    if (json_object_get(object, "input_ids"))
        return read_tokens(s, object);
    return json_object_get(object, "text") ? read_text(s, object) : read_completion(s, object);
}

/* ---- what is left of a line ---- */

static void note(firn_sampler *s, const char *format, ...) FIRN_PRINTF(2, 3);
static void note(firn_sampler *s, const char *format, ...)
{
    char sentence[512];
    va_list args;

    va_start(args, format);
    firn_vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    firn_text_printf(&s->data->notes, "%s:%lld %s\n", s->lines->name, (long long)s->lines->line, sentence);
}

/* Says of the first line of its kind why it is dropped. */
static void explain(firn_sampler *s, const json_t *object)
{
    firn_data_counts *c = &s->data->counts;
    const json_t *messages = json_object_get(object, "messages"), *message;
    bool assistant = !messages;
    firn_text roles;
    size_t i;

    firn_text_init(&roles, s->ctx, 0);
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        assistant |= strcmp(role, "assistant") == 0;
        if (i < 6)
            firn_text_printf(&roles, "%s%s", i ? ", " : "", role);
    }
    if (!assistant && c->no_assistant++ == 0)
        note(s, "has no assistant message (roles: %s%s)", firn_text_cstr(&roles), i > 6 ? ", ..." : "");
    else if (assistant && c->untrained - c->no_assistant == 1 && (int64_t)s->packed.n < s->context)
        note(s, "has nothing to train on: what is to be said is empty");
    else if (assistant && c->untrained - c->no_assistant == 1)
        note(s, "has nothing to train on within %lld tokens", (long long)s->context);
    firn_text_free(&roles);
}

static uint64_t hash_of(const firn_sampler *s)
{
    uint64_t h = s->packed.n;

    for (size_t i = 0; i < s->packed.n; i++)
        h = firn_mix64(h + 0x9E3779B97F4A7C15u) ^ s->packed.tokens[i];
    return firn_mix64(h);
}

static firn_status keep(firn_sampler *s)
{
    firn_data_counts *c = &s->data->counts;
    int64_t targets = 0;
    bool again = false;

    for (size_t i = 0; i < s->n_pieces; i++) {
        const firn_piece *p = &s->pieces[i];
        const firn_sample sample = {.line = (uint64_t)s->lines->line,
                                    .file = s->file,
                                    .format = s->format,
                                    .n = p->n,
                                    .n_targets = p->n_targets};
        FIRN_TRY(firn_store_add(s->store, sample, s->packed.tokens + p->begin));
        targets += p->n_targets;
    }
    if (s->has_text)
        FIRN_TRY(firn_seen_add(s->ctx, &s->seen, hash_of(s), &again));
    for (size_t i = 0; i < s->n_lengths; i++)
        c->lengths[firn_length_bucket(s->lengths[i])]++;
    c->lines++;
    c->n_targets += targets;
    c->duplicates += again;
    c->short_answers += targets > 0 && targets < FIRN_SHORT_ANSWER;
    c->joined += s->joined;
    c->cut += s->cut;
    c->cut_tokens += s->cut_tokens;
    c->split += s->split;
    c->empty += !s->has_text;
    c->untrained += s->has_text && s->n_pieces == 0;
    return FIRN_OK;
}

static firn_status refuse_pair(const firn_sampler *s, const firn_example *example)
{
    const bool chat = json_object_get(example->object, "messages") != NULL;
    const char *chosen = firn_canon_key(s->canon, "chosen");

    return firn_jsonl_fail(s->lines, chosen, -1, NULL,
                           "a preference pair is not trained on yet (firn data show shows it); --format %s --field "
                           "%s=%s trains on the chosen answers alone",
                           chat ? "chat" : "completion", chat ? "messages" : "completion", chosen);
}

firn_status firn_sampler_line(firn_sampler *s, firn_example *example)
{
    firn_data_counts *c = &s->data->counts;
    int64_t before[FIRN_ENCODER_COUNTS];

    memcpy(before, s->encoder->counts, sizeof before);
    s->packed.n = s->n_pieces = s->n_lengths = 0;
    s->cut = s->cut_tokens = s->split = 0;
    s->joined = s->has_text = false;
    if (example->format == FIRN_FORMAT_PREFERENCE && !s->preferences)
        return refuse_pair(s, example);
    s->format = example->format;
    FIRN_TRY(read_object(s, example->object));
    if (example->rejected)
        FIRN_TRY(read_object(s, example->rejected));
    FIRN_TRY(keep(s));
    c->formats[example->format]++;
    for (int i = 0; i < FIRN_ENCODER_COUNTS; i++)
        c->encoder[i] += s->encoder->counts[i] - before[i];
    if (s->has_text && s->n_pieces == 0)
        explain(s, example->object);
    return FIRN_OK;
}
