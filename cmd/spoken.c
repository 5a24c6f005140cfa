#include "spoken.h"

#include "core/file.h"

#include <string.h>

firn_status cmd_spoken_open(firn_context *ctx, const char *model, const char *text, const char *file, cmd_spoken *s)
{
    *s = (cmd_spoken){0};
    FIRN_TRY(firn_gguf_open(ctx, model, &s->gguf));
    const firn_status status = firn_tokenizer_create(ctx, s->gguf, &s->tok);
    if (status != FIRN_OK)
        return firn_fail_in(ctx, status, "%s", model);
    if (file)
        FIRN_TRY(firn_stream_read(ctx, file, 0, &s->content, &s->size));
    s->text = file ? s->content : text;
    if (!file)
        s->size = strlen(text);
    return FIRN_OK;
}

void cmd_spoken_close(firn_context *ctx, cmd_spoken *s)
{
    firn_free(ctx, s->content);
    firn_tokenizer_destroy(s->tok);
    firn_gguf_close(s->gguf);
}
