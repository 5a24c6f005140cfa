/* Any bytes as a line with messages, through templates that take them in different forms. What must hold: a sentence,
 * or samples whose spans lie in order inside of their texts, the same when the line is read again. */
#include "text/chat.h"

#include <stdlib.h>
#include <string.h>

#define CALLS                                                                                                          \
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
#define END "<e>{% endfor %}{% if add_generation_prompt %}<assistant>"

static const char *const sources[] = {
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}" CALLS END "{% endif %}",
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ '' + m.content }}" CALLS END "<think>\n{% endif %}",
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}" END
    "<think>{% if not enable_thinking %}</think>{% endif %}{% endif %}",
    "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}" END "{% endif %}",
};
enum { N = sizeof sources / sizeof *sources };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static firn_template *templates[N];
    static const char *const ends[] = {"<e>"};
    const firn_jinja_limits limits = {.steps = 200000, .depth = 60, .output = 1 << 16, .memory = 1 << 22};
    const firn_chat_tokens tokens = {.ends = ends, .n_ends = 1};

    if (!ctx) {
        ctx = firn_context_create(NULL);
        for (int k = 0; k < N; k++)
            if (!ctx || firn_template_create(ctx, sources[k], strlen(sources[k]), &tokens, &limits, &templates[k]))
                abort();
    }
    json_t *line = json_loadb((const char *)data, size, JSON_ALLOW_NUL, NULL);
    if (!line)
        return 0;
    for (int k = 0; k < 3 * N; k++) {
        const firn_chat_options options = {.reasoning = (firn_reasoning)(k / N), .loss = (firn_loss)(size % 3)};
        firn_renderings a, b;
        const firn_status s = firn_chat_render(templates[k % N], line, &options, &a);
        if (s != firn_chat_render(templates[k % N], line, &options, &b))
            abort();
        if (s != FIRN_OK)
            continue;
        if (a.n != b.n || a.n == 0)
            abort();
        for (size_t n = 0; n < a.n; n++) {
            size_t floor = 0;
            if (a.items[n].text.size != b.items[n].text.size)
                abort();
            for (size_t i = 0; i < a.items[n].spans.n; i++) {
                const firn_span x = a.items[n].spans.items[i];
                if (x.begin < floor || x.end < x.begin || x.end > a.items[n].text.size)
                    abort();
                floor = x.end;
            }
        }
        firn_renderings_free(&a);
        firn_renderings_free(&b);
    }
    json_decref(line);
    return 0;
}
