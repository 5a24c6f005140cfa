/* Any bytes as a chat template, and the assistant's turns sought in what it renders, with every way to train them. What
 * must hold: a sentence, or samples whose spans lie in order inside of their texts. */
#include "text/chat.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static json_t *variables;
    static const char *const ends[] = {"<e>", "}"};
    const firn_jinja_limits limits = {.steps = 20000, .depth = 60, .output = 1 << 16, .memory = 1 << 20};
    const firn_chat_tokens tokens = {.bos = "<s>", .eos = "</s>", .ends = ends, .n_ends = 2};
    firn_template *template;
    firn_renderings r;

    if (!ctx) {
        ctx = firn_context_create(NULL);
        variables = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content",
                              "a", "role", "assistant", "content", "b\xC3\xA9", "role", "user", "content", "", "role",
                              "assistant", "content", "<think>c</think>d");
        if (!ctx || !variables)
            abort();
    }
    if (firn_template_create(ctx, (const char *)data, size, &tokens, &limits, &template) != FIRN_OK)
        return 0;
    for (int k = 0; k < 9; k++) {
        const firn_chat_options options = {.reasoning = (firn_reasoning)(k % 3), .loss = (firn_loss)(k / 3)};
        if (firn_chat_render(template, variables, &options, &r) != FIRN_OK)
            continue;
        for (size_t n = 0; n < r.n; n++) {
            size_t floor = 0;
            for (size_t i = 0; i < r.items[n].spans.n; i++) {
                const firn_span s = r.items[n].spans.items[i];
                if (s.begin < floor || s.end < s.begin || s.end > r.items[n].text.size)
                    abort();
                floor = s.end;
            }
        }
        firn_renderings_free(&r);
    }
    firn_template_destroy(template);
    return 0;
}
