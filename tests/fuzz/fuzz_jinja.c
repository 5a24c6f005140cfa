/* Any bytes as a chat template, rendered with variables of every kind under small limits. What must hold: it comes
 * back, with text that is UTF-8 or with a sentence. */
#include "jinja/eval.h"
#include "text/unicode.h"

#include <stdlib.h>

static const char variables_json[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be kind.\"}, {\"role\": \"user\", \"content\": \"h\\u00e9 "
    "<b> \\n x\"}, {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c1\", \"function\": "
    "{\"name\": "
    "\"f\", \"arguments\": {\"a\": [1, 2.5, {}], \"b\": \"\\ud83d\\ude00\"}}}]}, {\"role\": \"tool\", \"content\": "
    "[{\"type\": \"text\", \"text\": \"7\"}]}], \"tools\": null, \"add_generation_prompt\": true, \"bos_token\": "
    "\"<s>\", "
    "\"s\": \"a,b  C\\n\\u65e5\", \"n\": -3, \"f\": 1e16, \"xs\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": \"x\"}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static firn_context *ctx;
    static json_t *variables;
    static const struct tm now = {.tm_year = 126, .tm_mday = 2, .tm_wday = 5, .tm_yday = 1};
    const firn_jinja_limits limits = {.steps = 20000, .depth = 60, .output = 1 << 16, .memory = 1 << 20};
    firn_jinja *jinja;
    firn_text out;
    size_t bad;

    if (!ctx) {
        ctx = firn_context_create(NULL);
        variables = json_loads(variables_json, 0, NULL);
        if (!ctx || !variables)
            abort();
    }
    if (firn_jinja_compile(ctx, (const char *)data, size, &limits, &jinja) != FIRN_OK)
        return 0;
    firn_text_init(&out, ctx, 0);
    if (firn_jinja_render(ctx, jinja, variables, &(firn_jinja_options){.now = &now}, &out, NULL) == FIRN_OK &&
        !firn_utf8_valid(firn_text_cstr(&out), out.size, &bad))
        abort();
    firn_text_free(&out);
    firn_jinja_destroy(jinja);
    return 0;
}
