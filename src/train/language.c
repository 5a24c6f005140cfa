/* Tokenizer and chat template of a model, put together as a data set's encoder: see language.h. The template is
 * compiled when messages come, so that one that cannot be does not stop who needs none. */
#include "train/language.h"

#include "core/sized.h"
#include "gguf/gguf.h"
#include "text/chat.h"

#include <string.h>

/* Templates may print the date. Training sees this one, a Thursday, so that a run gives the same bits on any day. */
static const struct tm clock_of_training = {.tm_year = 2026 - 1900, .tm_mday = 1, .tm_hour = 12, .tm_wday = 4};

struct firn_language {
    firn_context *ctx;
    const firn_gguf *gguf;
    firn_tokenizer *tokenizer;
    firn_tokens tokens, part; /* of the text at hand, and of a part of it; their memory serves all */
    firn_token_list list;     /* what is given on */
    firn_encoder encoder;
    firn_string source;      /* of the template, in the file; empty: the model has none */
    firn_template *template; /* NULL until it is needed */
    firn_reasoning reasoning;
    firn_loss loss;
    const char *bos, *eos; /* texts; NULL: none */
    const char **ends;     /* texts of the tokens that end a turn */
    size_t n_ends;
};

/* For `fills`. */
typedef struct {
    firn_language *language;
    int64_t window;
} span_of;

static firn_status encode(void *user, const char *text, size_t size, firn_token_list *out)
{
    firn_language *l = user;

    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text, size, FIRN_PARSE_SPECIAL, &l->tokens));
    for (size_t i = 0; i < l->tokens.n; i++)
        FIRN_TRY(firn_token_list_add(l->ctx, out, l->tokens.ids[i], l->tokens.spans[i].begin, l->tokens.spans[i].end));
    return FIRN_OK;
}

static firn_status compile(firn_language *l)
{
    if (l->template)
        return FIRN_OK;
    if (!l->source.data)
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "the model has no chat template (tokenizer.chat_template)");
    const firn_chat_tokens tokens = {.bos = l->bos, .eos = l->eos, .ends = l->ends, .n_ends = l->n_ends};
    const firn_status s = firn_template_create(l->ctx, l->source.data, l->source.size, &tokens, NULL, &l->template);
    return s == FIRN_OK
               ? s
               : firn_fail_in(l->ctx, s == FIRN_ERR_MEMORY ? s : FIRN_ERR_FORMAT, "the chat template of the model");
}

/* ---- training ---- */

/* True where what is asked takes all of the window: no token of the answer lies within. */
static firn_status fills(void *user, const char *text, size_t size, bool *full)
{
    firn_language *l = ((const span_of *)user)->language;
    const size_t window = (size_t)((const span_of *)user)->window;

    *full = false;
    if (size < window) /* a token has at least one byte */
        return FIRN_OK;
    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text, size, FIRN_PARSE_SPECIAL, &l->part));
    *full = l->part.n >= window;
    return FIRN_OK;
}

/* Whether the tokens of `text` up to `at` are those of that part by itself. Special tokens cut a text: what lies before
 * the last one need not be looked at. */
static firn_status parts_at(firn_language *l, const firn_text *text, size_t at, bool *parts)
{
    const firn_tokens *all = &l->tokens;
    size_t first = 0, n = 0;

    for (size_t i = 0; i < all->n && all->spans[i].end <= at; i++) {
        const firn_token_type kind = firn_token_kind(l->tokenizer, all->ids[i]);
        n = i + 1;
        if (kind == FIRN_TOKEN_CONTROL || kind == FIRN_TOKEN_USER_DEFINED)
            first = i;
    }
    *parts = n == all->n || all->spans[n].begin >= at;
    if (!*parts || n == 0)
        return FIRN_OK;
    const size_t begin = first ? all->spans[first].begin : 0;
    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text->data + begin, at - begin, FIRN_PARSE_SPECIAL, &l->part));
    *parts = l->part.n == n - first && memcmp(l->part.ids, all->ids + first, l->part.n * sizeof *l->part.ids) == 0;
    return FIRN_OK;
}

static firn_status list_tokens(firn_language *l, const firn_tokens *tokens, size_t shift)
{
    for (size_t i = 0; i < tokens->n; i++)
        FIRN_TRY(firn_token_list_add(l->ctx, &l->list, tokens->ids[i], tokens->spans[i].begin + shift,
                                     tokens->spans[i].end + shift));
    return FIRN_OK;
}

/* A turn whose begin joins with what is asked: as the model sees it, the one ends in a token of its own there. */
static firn_status give_apart(firn_language *l, const firn_rendering *r, firn_span turn, firn_take take, void *sink)
{
    firn_text text = r->text; /* up to the turn's end; not freed */
    firn_spans spans;

    text.size = turn.end;
    firn_spans_init(&spans, l->ctx);
    l->list.n = 0;
    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text.data, turn.begin, FIRN_PARSE_SPECIAL, &l->part));
    FIRN_TRY(list_tokens(l, &l->part, 0));
    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text.data + turn.begin, turn.end - turn.begin,
                           FIRN_PARSE_SPECIAL | FIRN_GOES_ON, &l->part));
    FIRN_TRY(list_tokens(l, &l->part, turn.begin));
    firn_status s = FIRN_OK;
    for (size_t k = 0; s == FIRN_OK && k < r->spans.n; k++)
        if (r->spans.items[k].begin >= turn.begin && r->spans.items[k].end <= turn.end)
            s = firn_spans_add(&spans, r->spans.items[k].begin, r->spans.items[k].end);
    if (s == FIRN_OK)
        s = take(sink, &text, &spans, &l->list);
    firn_spans_free(&spans);
    return s;
}

static void drop_spans(firn_spans *spans, firn_span turn)
{
    size_t kept = 0;

    for (size_t k = 0; k < spans->n; k++)
        if (spans->items[k].begin < turn.begin || spans->items[k].end > turn.end)
            spans->items[kept++] = spans->items[k];
    spans->n = kept;
}

static firn_status give(firn_language *l, firn_rendering *r, firn_take take, void *sink)
{
    const size_t before = r->spans.n;

    FIRN_TRY(
        firn_tokenize(l->ctx, l->tokenizer, firn_text_cstr(&r->text), r->text.size, FIRN_PARSE_SPECIAL, &l->tokens));
    for (size_t k = 0; k < r->turns.n; k++) {
        bool parts;
        FIRN_TRY(parts_at(l, &r->text, r->turns.items[k].begin, &parts));
        if (parts)
            continue;
        FIRN_TRY(give_apart(l, r, r->turns.items[k], take, sink));
        drop_spans(&r->spans, r->turns.items[k]);
    }
    if (before && r->spans.n == 0)
        return FIRN_OK;
    l->list.n = 0;
    FIRN_TRY(list_tokens(l, &l->tokens, 0));
    return take(sink, &r->text, &r->spans, &l->list);
}

static const char *const count_texts[] = {
    "%lld turns are asked otherwise than trained: the template opens a thought for the answer that they do not have "
    "(\"enable_thinking\": false in their lines, where the template knows it, asks as they are trained)",
    "%lld turns have reasoning that the template does not show; it is left out",
    "%lld turns lie behind the context and are not trained",
    "%lld turns end the conversation without an end token, as the template has it",
    "%lld samples more than conversations, because the template shows earlier turns otherwise later on",
    NULL,
};

static firn_status render(void *user, const json_t *conversation, int64_t window, firn_take take, void *sink)
{
    firn_language *l = user;
    span_of span = {l, window};
    const firn_chat_options options = {.now = &clock_of_training,
                                       .reasoning = l->reasoning,
                                       .loss = l->loss,
                                       .fills = window > 0 ? fills : NULL,
                                       .user = &span};
    firn_renderings r;

    FIRN_TRY(compile(l));
    FIRN_TRY(firn_chat_render(l->template, conversation, &options, &r));
    firn_status s = FIRN_OK;
    for (size_t k = 0; s == FIRN_OK && k < r.n; k++)
        s = give(l, &r.items[k], take, sink);
    const int64_t counts[] = {r.counts.asked_otherwise, r.counts.reasoning_left_out, r.counts.beyond, r.counts.open,
                              (int64_t)r.n - 1};
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        l->encoder.counts[k] += counts[k];
    firn_renderings_free(&r);
    return s;
}

/* A template knows a role that stands in it in quotes. */
static bool knows_role(void *user, const char *role)
{
    const firn_language *l = user;
    const size_t n = strlen(role);
    const char *end = l->source.data + l->source.size;

    for (const char *at = l->source.data; at && n; at++) {
        at = memmem(at, (size_t)(end - at), role, n);
        if (at && at > l->source.data && at + n < end && at[-1] == at[n] && (at[n] == '\'' || at[n] == '"'))
            return true;
        if (!at)
            break;
    }
    return false;
}

static void hash_key(firn_sha256 *hash, const firn_kv *kv)
{
    const firn_kv_type type = kv->type == FIRN_KV_ARRAY ? kv->element : kv->type;

    firn_sha256_add(hash, kv->key, strlen(kv->key) + 1);
    firn_sha256_add(hash, &kv->n, sizeof kv->n);
    if (kv->data)
        firn_sha256_add(hash, kv->data, (size_t)kv->n * firn_kv_size(type));
    for (uint64_t i = 0; kv->strings && i < kv->n; i++) {
        firn_sha256_add(hash, &kv->strings[i].size, sizeof kv->strings[i].size);
        firn_sha256_add(hash, kv->strings[i].data, kv->strings[i].size);
    }
}

/* Everything that decides the tokens and spans of a text: the vocabulary and the template as the file has them, and the
 * name, by which tokenizers of one kind are told apart (src/text/vocab.c). */
static void make_key(void *user, char hex[FIRN_SHA256_HEX])
{
    const firn_language *l = user;
    const int options[] = {(int)l->reasoning, (int)l->loss};
    firn_sha256 hash;

    firn_sha256_init(&hash);
    firn_sha256_add(&hash, options, sizeof options);
    for (size_t i = 0; i < firn_gguf_n_kv(l->gguf); i++) {
        const firn_kv *kv = firn_gguf_kv_at(l->gguf, i);
        if (strncmp(kv->key, "tokenizer.", 10) == 0 || strcmp(kv->key, "general.name") == 0)
            hash_key(&hash, kv);
    }
    firn_sha256_hex(&hash, hex);
}

/* The text of a token as a string; NULL for no token. It belongs to the tokenizer. */
static const char *text_of(const firn_language *l, int32_t id)
{
    size_t n;
    return id < 0 ? NULL : firn_token_text(l->tokenizer, id, &n);
}

static firn_status read_template(firn_language *l, const firn_gguf *gguf)
{
    const int32_t *ends = firn_tokenizer_ends(l->tokenizer, &l->n_ends);

    FIRN_TRY(firn_gguf_get_string(l->ctx, gguf, "tokenizer.chat_template", false, &l->source));
    if (!l->source.data)
        return FIRN_OK;
    l->ends = firn_alloc(l->ctx, l->n_ends * sizeof *l->ends);
    if (!l->ends)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < l->n_ends; i++)
        l->ends[i] = text_of(l, ends[i]);
    l->bos = text_of(l, firn_tokenizer_bos(l->tokenizer));
    l->eos = text_of(l, firn_tokenizer_eos(l->tokenizer));
    l->encoder.render = render;
    return FIRN_OK;
}

/* Which of three names an option has; NULL: the first. */
static firn_status choose(firn_context *ctx, const char *option, const char *given, const char *const *names, int *k)
{
    for (*k = 0; given && *k < 3; ++*k)
        if (strcmp(given, names[*k]) == 0)
            break;
    FIRN_EXPECT(ctx, *k < 3, "%s is %s, %s or %s, not '%s'", option, names[0], names[1], names[2], given);
    return FIRN_OK;
}

firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf, const firn_language_options *options,
                                 firn_language **result)
{
    FIRN_GIVEN(ctx, ctx, gguf, result);
    *result = NULL;
    firn_language_options o = {0};
    if (options)
        FIRN_TRY(FIRN_TAKE(ctx, firn_language_options, loss, options, &o));
    static const char *const reasonings[] = {"train", "mask", "drop"}, *const losses[] = {"assistant", "all", "last"};
    int reasoning, loss;
    FIRN_TRY(choose(ctx, "reasoning", o.reasoning, reasonings, &reasoning));
    FIRN_TRY(choose(ctx, "loss", o.loss, losses, &loss));
    firn_language *l = firn_alloc_zeroed(ctx, 1, sizeof *l);
    if (!l)
        return FIRN_ERR_MEMORY;
    l->ctx = ctx;
    l->reasoning = (firn_reasoning)reasoning;
    l->loss = (firn_loss)loss;
    l->gguf = gguf;
    firn_status s = firn_tokenizer_create(ctx, gguf, &l->tokenizer);
    if (s != FIRN_OK) {
        firn_language_destroy(l);
        return s;
    }
    l->encoder = (firn_encoder){.user = l,
                                .encode = encode,
                                .count_texts = count_texts,
                                .bos = firn_tokenizer_bos(l->tokenizer),
                                .eos = firn_tokenizer_eos(l->tokenizer),
                                .add_bos = firn_tokenizer_adds_bos(l->tokenizer),
                                .add_eos = firn_tokenizer_adds_eos(l->tokenizer),
                                .knows_role = knows_role,
                                .key = make_key,
                                .n_vocab = firn_tokenizer_size(l->tokenizer)};
    s = read_template(l, gguf);
    if (s != FIRN_OK) {
        firn_language_destroy(l);
        return s;
    }
    *result = l;
    return FIRN_OK;
}

firn_status firn_train_language_create(firn_context *ctx, const firn_train_options *o, const firn_gguf *gguf,
                                       firn_language **language)
{
    const firn_language_options options = {.size = sizeof options, .reasoning = o->reasoning, .loss = o->loss};

    return firn_language_create(ctx, gguf, &options, language);
}

void firn_language_destroy(firn_language *l)
{
    if (!l)
        return;
    firn_tokens_free(l->ctx, &l->tokens);
    firn_tokens_free(l->ctx, &l->part);
    firn_token_list_free(l->ctx, &l->list);
    firn_template_destroy(l->template);
    firn_free(l->ctx, l->ends);
    firn_tokenizer_destroy(l->tokenizer);
    firn_free(l->ctx, l);
}

firn_context *firn_language_context(const firn_language *language)
{
    return language->ctx;
}

const firn_encoder *firn_language_encoder(firn_language *language)
{
    return &language->encoder;
}

const firn_tokenizer *firn_language_tokenizer(const firn_language *language)
{
    return language ? language->tokenizer : NULL;
}

/* ---- asking ---- */

firn_status firn_language_has_template(firn_language *l)
{
    return compile(l);
}

firn_status firn_language_asked(firn_language *l, const json_t *line, firn_text *text)
{
    const json_t *prompt = json_object_get(line, "prompt");

    if (json_is_string(prompt)) {
        firn_text_append(text, json_string_value(prompt), json_string_length(prompt));
        return text->status;
    }
    if (!json_is_array(line) && !json_object_get(line, "messages"))
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "expected an object with a text \"prompt\", or with \"messages\"");
    FIRN_TRY(compile(l));
    return firn_chat_ask(l->template, line, NULL, true, text);
}

firn_status firn_language_asked_tokens(firn_language *l, const char *text, size_t size, firn_tokens *tokens)
{
    FIRN_TRY(
        firn_tokenize(l->ctx, l->tokenizer, text, size, FIRN_ADD_SPECIAL | FIRN_PARSE_SPECIAL | FIRN_BOS_ONCE, tokens));
    /* EOS behind a prompt would end it. */
    if (tokens->n > 1 && l->encoder.add_eos && tokens->ids[tokens->n - 1] == l->encoder.eos)
        tokens->n--;
    return FIRN_OK;
}

firn_status firn_language_prompt(firn_language *l, const char *json, size_t size, firn_tokens *prompt)
{
    FIRN_GIVEN(NULL, l);
    FIRN_GIVEN(l->ctx, json, prompt);
    json_error_t error;
    json_t *line = json_loadb(json, size, JSON_ALLOW_NUL, &error);
    firn_text text;

    prompt->n = 0;
    if (!line)
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "column %d: expected JSON: %s", error.column, error.text);
    firn_text_init(&text, l->ctx, 0);
    firn_status s = firn_language_asked(l, line, &text);
    if (s == FIRN_OK)
        s = firn_language_asked_tokens(l, firn_text_cstr(&text), text.size, prompt);
    firn_text_free(&text);
    json_decref(line);
    return s;
}

/* ---- sequences ---- */

static firn_status take_sample(firn_language *l, const firn_data *data, const firn_sample *sample, firn_sequence *out)
{
    const size_t n = (size_t)sample->n;

    *out = (firn_sequence){.tokens = firn_alloc(l->ctx, n * sizeof *out->tokens),
                           .trained = firn_alloc(l->ctx, n),
                           .n = sample->n,
                           .n_trained = sample->n_targets};
    if (!out->tokens || !out->trained)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        out->tokens[i] = firn_data_token(data, sample->begin + (int64_t)i);
        out->trained[i] = firn_data_trained(data, sample->begin + (int64_t)i);
    }
    return FIRN_OK;
}

firn_status firn_language_sequences(firn_language *l, const char *json, size_t size, int64_t window,
                                    firn_sequences *sequences)
{
    FIRN_GIVEN(NULL, l);
    FIRN_GIVEN(l->ctx, json, sequences);
    firn_data *data;

    *sequences = (firn_sequences){NULL, 0};
    const firn_data_spec spec = {.keep_empty = true};
    FIRN_TRY(firn_data_parse(l->ctx, "line", json, size, &spec, &l->encoder, window, &data));
    sequences->items = firn_alloc_zeroed(l->ctx, data->n_samples + 1, sizeof *sequences->items);
    firn_status s = sequences->items ? FIRN_OK : FIRN_ERR_MEMORY;
    for (size_t i = 0; s == FIRN_OK && i < data->n_samples; i++) {
        sequences->n = i + 1;
        s = take_sample(l, data, &data->samples[i], &sequences->items[i]);
    }
    firn_data_destroy(data);
    if (s != FIRN_OK)
        firn_sequences_free(l->ctx, sequences);
    return s;
}

void firn_sequences_free(firn_context *ctx, firn_sequences *sequences)
{
    if (!ctx || !sequences)
        return;
    for (size_t i = 0; i < sequences->n; i++) {
        firn_free(ctx, sequences->items[i].tokens);
        firn_free(ctx, sequences->items[i].trained);
    }
    firn_free(ctx, sequences->items);
    *sequences = (firn_sequences){NULL, 0};
}
