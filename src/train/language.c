/* Tokenizer and chat template of a model, put together as a data set's encoder: see language.h. The template is
 * compiled when messages come, so that one that cannot be does not stop who needs none. */
#include "train/language.h"

#include "text/chat.h"

#include <string.h>

/* Templates may print the date. Training sees this one, a Thursday, so that a run gives the same bits on any day. */
static const struct tm clock_of_training = {.tm_year = 2026 - 1900, .tm_mday = 1, .tm_hour = 12, .tm_wday = 4};

struct firn_language {
    firn_context *ctx;
    firn_tokenizer *tokenizer;
    firn_tokens tokens; /* of the text at hand; its memory serves all */
    firn_encoder encoder;
    firn_string source;    /* of the template, in the file; empty: the model has none */
    firn_jinja *template;  /* NULL until it is needed */
    const char *bos, *eos; /* texts; NULL: none */
    const char **ends;     /* texts of the tokens that end a turn */
    size_t n_ends;
};

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
    const firn_status s = firn_jinja_compile(l->ctx, l->source.data, l->source.size, NULL, &l->template);
    return s == FIRN_OK
               ? s
               : firn_fail_in(l->ctx, s == FIRN_ERR_MEMORY ? s : FIRN_ERR_FORMAT, "the chat template of the model");
}

static firn_status render(void *user, const json_t *conversation, firn_take take, void *sink)
{
    firn_language *l = user;
    const firn_chat_options options = {.end_tokens = l->ends, .n_end_tokens = l->n_ends, .now = &clock_of_training};
    json_t *variables;
    firn_chat chat;

    FIRN_TRY(compile(l));
    FIRN_TRY(firn_chat_variables(l->ctx, conversation, l->bos, l->eos, &variables));
    firn_status s = firn_chat_render(l->ctx, l->template, variables, &options, &chat);
    json_decref(variables);
    FIRN_TRY(s);
    s = take(sink, &chat.text, &chat.spans);
    firn_chat_free(&chat);
    return s;
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

firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf, const firn_language_options *options,
                                 firn_language **result)
{
    FIRN_GIVEN(ctx, ctx, gguf, result);
    *result = NULL;
    FIRN_EXPECT(ctx, !options || options->size == sizeof *options,
                "firn_language_options of %zu bytes: expected size to be %zu", options->size, sizeof *options);
    firn_language *l = firn_alloc_zeroed(ctx, 1, sizeof *l);
    if (!l)
        return FIRN_ERR_MEMORY;
    l->ctx = ctx;
    firn_status s = firn_tokenizer_create(ctx, gguf, &l->tokenizer);
    if (s != FIRN_OK) {
        firn_language_destroy(l);
        return s;
    }
    l->encoder = (firn_encoder){.user = l,
                                .encode = encode,
                                .bos = firn_tokenizer_bos(l->tokenizer),
                                .eos = firn_tokenizer_eos(l->tokenizer),
                                .add_bos = firn_tokenizer_adds_bos(l->tokenizer),
                                .add_eos = firn_tokenizer_adds_eos(l->tokenizer)};
    s = read_template(l, gguf);
    if (s != FIRN_OK) {
        firn_language_destroy(l);
        return s;
    }
    *result = l;
    return FIRN_OK;
}

void firn_language_destroy(firn_language *l)
{
    if (!l)
        return;
    firn_tokens_free(l->ctx, &l->tokens);
    firn_jinja_destroy(l->template);
    firn_free(l->ctx, l->ends);
    firn_tokenizer_destroy(l->tokenizer);
    firn_free(l->ctx, l);
}

const firn_encoder *firn_language_encoder(firn_language *language)
{
    return &language->encoder;
}

const firn_tokenizer *firn_language_tokenizer(const firn_language *language)
{
    return language->tokenizer;
}

/* ---- asking ---- */

firn_status firn_language_asked(firn_language *l, const json_t *line, firn_text *text)
{
    const json_t *prompt = json_object_get(line, "prompt");
    json_t *variables;

    if (json_is_string(prompt)) {
        firn_text_append(text, json_string_value(prompt), json_string_length(prompt));
        return text->status;
    }
    if (!json_is_array(line) && !json_object_get(line, "messages"))
        return firn_fail(l->ctx, FIRN_ERR_FORMAT, "expected an object with a text \"prompt\", or with \"messages\"");
    FIRN_TRY(compile(l));
    FIRN_TRY(firn_chat_variables(l->ctx, line, l->bos, l->eos, &variables));
    firn_status s = json_object_set_new(variables, "add_generation_prompt", json_true()) == 0
                        ? firn_jinja_render(l->ctx, l->template, variables, NULL, text, NULL)
                        : firn_fail(l->ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    json_decref(variables);
    return s == FIRN_OK ? text->status : s;
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
    memcpy(out->tokens, data->tokens + sample->begin, n * sizeof *out->tokens);
    memcpy(out->trained, data->trained + sample->begin, n);
    return FIRN_OK;
}

firn_status firn_language_sequences(firn_language *l, const char *json, size_t size, int64_t window,
                                    firn_sequences *sequences)
{
    FIRN_GIVEN(NULL, l);
    FIRN_GIVEN(l->ctx, json, sequences);
    firn_data *data;

    *sequences = (firn_sequences){NULL, 0};
    FIRN_TRY(firn_data_parse_line(l->ctx, json, size, &l->encoder, window, &data));
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
    for (size_t i = 0; i < sequences->n; i++) {
        firn_free(ctx, sequences->items[i].tokens);
        firn_free(ctx, sequences->items[i].trained);
    }
    firn_free(ctx, sequences->items);
    *sequences = (firn_sequences){NULL, 0};
}
