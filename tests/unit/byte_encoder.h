/* A tokenizer and a chat template for tests without a model: a token is a byte, BOS is 256, EOS 257; a message is
 * "<role>content\n", what an assistant says is trained through its newline. The content "bad" is refused as a template
 * would, and one that is no string shows nothing. */
#ifndef FIRN_TEST_BYTE_ENCODER_H
#define FIRN_TEST_BYTE_ENCODER_H

#include "train/data.h"

#include <string.h>

static firn_status byte_encode(void *user, const char *text, size_t size, firn_token_list *tokens)
{
    firn_context *ctx = *(firn_context **)user;

    for (size_t i = 0; i < size; i++)
        FIRN_TRY(firn_token_list_add(ctx, tokens, (unsigned char)text[i], i, i + 1));
    return FIRN_OK;
}

static firn_status byte_messages(firn_context *ctx, const json_t *messages, firn_text *text, firn_spans *spans)
{
    const json_t *message;
    size_t i;

    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const char *content = json_string_value(json_object_get(message, "content"));
        if (content && strcmp(content, "bad") == 0)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "there is a bad word");
        firn_text_printf(text, "<%s>", role);
        const size_t begin = text->size;
        firn_text_puts(text, content ? content : "");
        firn_text_putc(text, '\n');
        if (strcmp(role, "assistant") == 0 && !json_is_false(json_object_get(message, "train")))
            FIRN_TRY(firn_spans_add(spans, begin, text->size));
    }
    return text->status;
}

static firn_status byte_render(void *user, const json_t *conversation, int64_t window, firn_take take, void *sink)
{
    (void)window;
    firn_context *ctx = *(firn_context **)user;
    firn_text text;
    firn_spans spans;

    (void)window;
    firn_text_init(&text, ctx, 0);
    firn_spans_init(&spans, ctx);
    firn_status s = byte_messages(ctx, json_object_get(conversation, "messages"), &text, &spans);
    if (s == FIRN_OK)
        s = take(sink, &text, &spans, NULL);
    firn_text_free(&text);
    firn_spans_free(&spans);
    return s;
}

/* `ctx` must outlive the encoder. */
static inline firn_encoder byte_encoder(firn_context **ctx, bool add_bos)
{
    return (firn_encoder){
        .user = ctx, .encode = byte_encode, .render = byte_render, .bos = 256, .eos = 257, .add_bos = add_bos};
}

#endif
