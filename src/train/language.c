/* Tokenizer and chat template of a model, put together as a data set's encoder: see language.h. */
#include "train/language.h"

struct firn_language {
    firn_context *ctx;
    firn_tokenizer *tokenizer;
    firn_tokens tokens; /* of the text at hand; its memory serves all */
    firn_encoder encoder;
};

static firn_status encode(void *user, const char *text, size_t size, firn_token_list *out)
{
    firn_language *l = user;

    FIRN_TRY(firn_tokenize(l->ctx, l->tokenizer, text, size, FIRN_PARSE_SPECIAL, &l->tokens));
    for (size_t i = 0; i < l->tokens.n; i++)
        FIRN_TRY(firn_token_list_add(l->ctx, out, l->tokens.ids[i], l->tokens.spans[i].begin, l->tokens.spans[i].end));
    return FIRN_OK;
}

firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf, firn_language **result)
{
    firn_language *l = firn_alloc_zeroed(ctx, 1, sizeof *l);

    *result = NULL;
    if (!l)
        return FIRN_ERR_MEMORY;
    l->ctx = ctx;
    const firn_status s = firn_tokenizer_create(ctx, gguf, &l->tokenizer);
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
    *result = l;
    return FIRN_OK;
}

void firn_language_destroy(firn_language *l)
{
    if (!l)
        return;
    firn_tokens_free(l->ctx, &l->tokens);
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
