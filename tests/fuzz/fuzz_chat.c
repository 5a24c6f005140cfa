/* Any bytes as a chat template, and the assistant's turns sought in what it renders. What must hold: a sentence, or
 * spans in order inside of the text. */
#include "text/chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static json_t *variables;
    static const char *const ends[] = {"<e>", "}"};
    const firn_jinja_limits limits = {.steps = 20000, .depth = 60, .output = 1 << 16, .memory = 1 << 20};
    const firn_chat_options options = {.end_tokens = ends, .n_end_tokens = 2};
    firn_jinja *jinja;
    firn_chat chat;

    if (!ctx) {
        ctx = firn_context_create(NULL);
        variables = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content",
                              "a", "role", "assistant", "content", "b\xC3\xA9", "role", "user", "content", "", "role",
                              "assistant", "content", "<t>c</t>d");
        if (!ctx || !variables)
            abort();
    }
    if (firn_jinja_compile(ctx, (const char *)data, size, &limits, &jinja) != FIRN_OK)
        return 0;
    if (firn_chat_render(ctx, jinja, variables, &options, &chat) == FIRN_OK) {
        size_t floor = 0;
        for (size_t i = 0; i < chat.spans.n; i++) {
            const firn_span s = chat.spans.items[i];
            if (s.begin < floor || s.end < s.begin || s.end > chat.text.size)
                abort();
            floor = s.end;
        }
        firn_chat_free(&chat);
    }
    firn_jinja_destroy(jinja);
    return 0;
}
