/* Tokenizer and chat template of a model, put together as a data set's encoder: see language.h. */
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
    firn_jinja *template;  /* NULL: the model has none */
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

static firn_status render(void *user, const json_t *conversation, firn_take take, void *sink)
{
    firn_language *l = user;
    const firn_chat_options options = {.end_tokens = l->ends, .n_end_tokens = l->n_ends, .now = &clock_of_training};
    json_t *variables;
    firn_chat chat;

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
    firn_string source = {NULL, 0};
    const int32_t *ends = firn_tokenizer_ends(l->tokenizer, &l->n_ends);

    FIRN_TRY(firn_gguf_get_string(l->ctx, gguf, "tokenizer.chat_template", false, &source));
    if (!source.data)
        return FIRN_OK;
    l->ends = firn_alloc(l->ctx, l->n_ends * sizeof *l->ends);
    if (!l->ends)
        return FIRN_ERR_MEMORY;
    for (size_t i = 0; i < l->n_ends; i++)
        l->ends[i] = text_of(l, ends[i]);
    l->bos = text_of(l, firn_tokenizer_bos(l->tokenizer));
    l->eos = text_of(l, firn_tokenizer_eos(l->tokenizer));
    const firn_status s = firn_jinja_compile(l->ctx, source.data, source.size, NULL, &l->template);
    if (s != FIRN_OK)
        return firn_fail_in(l->ctx, s == FIRN_ERR_MEMORY ? s : FIRN_ERR_FORMAT, "the chat template of the model");
    l->encoder.render = render;
    return FIRN_OK;
}

firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf, firn_language **result)
{
    firn_language *l = firn_alloc_zeroed(ctx, 1, sizeof *l);

    *result = NULL;
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
