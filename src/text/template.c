/* Asking a template which forms of messages it takes: see template.h. */
#include "text/template.h"

#include "text/messages.h"

#include <string.h>

firn_status firn_template_render(const firn_template *t, const json_t *variables, const struct tm *now, firn_text *out,
                                 firn_spans *marks)
{
    const firn_jinja_options options = {.now = now};

    FIRN_TRY(firn_jinja_render(t->ctx, t->jinja, variables, &options, out, marks));
    return out->status;
}

/* ---- asking ---- */

#define WORDS  "0probe8"
#define OTHER  "1other9"
#define THIRD  "2third7"
#define USER   "{\"role\":\"user\",\"content\":\"" WORDS "\"}"
#define CALL_A "{\"role\":\"assistant\",\"content\":\"\","
#define CALL_B                                                                                                         \
    "\"tool_calls\":[{\"id\":\"abcdefgh1\",\"type\":\"function\",\"function\":{\"name\":\"" WORDS "\",\"arguments\":"
#define CALL_C "}}]}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"abcdefgh1\",\"name\":\"" WORDS "\",\"content\":\"x\"}"
#define PARTS  "\"content\":[{\"type\":\"text\",\"text\":\"" OTHER "\"},{\"type\":\"text\",\"text\":\"" THIRD "\"}]"

static const struct tm clock_of_asking = {.tm_year = 2026 - 1900, .tm_mday = 1, .tm_hour = 12, .tm_wday = 4};

typedef struct {
    firn_template *t;
    firn_text text; /* what the last question gave */
    firn_status status;
} asker;

static bool in_parts(json_t *messages)
{
    json_t *m;
    size_t i;

    json_array_foreach(messages, i, m)
    {
        json_t *content = json_object_get(m, "content");
        if (json_is_string(content) &&
            json_object_set_new(m, "content", json_pack("[{s:s,s:O}]", "type", "text", "text", content)) != 0)
            return false;
    }
    return true;
}

/* Renders messages, whose reference it takes; false when the template refuses them. Want of memory is kept in the asker
 * (NULL is that). */
static bool ask_list(asker *a, json_t *list, bool prompt)
{
    if (a->status != FIRN_OK) {
        json_decref(list);
        return false;
    }
    firn_context *ctx = a->t->ctx;
    json_t *variables = NULL;
    firn_status s = FIRN_OK;
    firn_text_free(&a->text);
    firn_text_init(&a->text, ctx, 0);
    if (!list || (a->t->forms.only_parts && !in_parts(list)))
        s = firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    if (s == FIRN_OK)
        s = firn_chat_variables(ctx, list, a->t->tokens.bos, a->t->tokens.eos, &variables);
    json_decref(list);
    if (s == FIRN_OK &&
        (json_object_set_new(variables, "add_generation_prompt", json_boolean(prompt)) != 0 ||
         json_object_set_new(variables, "enable_thinking", json_true()) != 0 ||
         json_object_set_new(variables, "tools", a->t->forms.empty_tools ? json_array() : json_null()) != 0))
        s = firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
    if (s == FIRN_OK)
        s = firn_template_render(a->t, variables, &clock_of_asking, &a->text, NULL);
    json_decref(variables);
    /* a template that passes its limits fails with this status too */
    if (s == FIRN_ERR_MEMORY)
        a->status = s;
    return s == FIRN_OK;
}

/* The same from JSON text. It has no escapes: jansson asserts that it has memory for those. */
static bool ask(asker *a, const char *messages, bool prompt)
{
    return ask_list(a, json_loads(messages, 0, NULL), prompt);
}

static bool shows(const asker *a, const char *words)
{
    return strstr(firn_text_cstr(&a->text), words) != NULL;
}

static bool takes_parts(asker *a)
{
    static const char *const questions[] = {"[{\"role\":\"user\"," PARTS "}]",
                                            "[" USER ",{\"role\":\"assistant\"," PARTS "}," USER "]"};

    for (int i = 0; i < 2; i++)
        if (!ask(a, questions[i], true) || !shows(a, OTHER) || !shows(a, THIRD) || shows(a, "'text'") ||
            shows(a, "\"text\""))
            return false;
    return true;
}

/* As an object, they show as JSON; Python's way to print a dict is no way to call anything. */
static bool wants_text_arguments(asker *a)
{
    static const char object[] = "[" USER "," CALL_A CALL_B "{\"" OTHER "\":\"" THIRD "\"}" CALL_C "," RESULT "]";

    if (ask(a, object, true) && shows(a, OTHER) && shows(a, THIRD) && !shows(a, "'" OTHER "'"))
        return false;
    json_t *list = json_loads(object, 0, NULL), *calls = json_object_get(json_array_get(list, 1), "tool_calls");
    if (json_object_set_new(json_object_get(json_array_get(calls, 0), "function"), "arguments",
                            json_string("{\"" OTHER "\":\"" THIRD "\"}")) != 0)
        list = (json_decref(list), NULL);
    return ask_list(a, list, true) && shows(a, "\"" OTHER "\"") && shows(a, THIRD);
}

static const char *name_of_reasoning(asker *a, const char *source)
{
    static const char *const keys[] = {"reasoning_content", "thinking", "reasoning"};
    static const char *const forms[] = {"[" USER ",{\"role\":\"assistant\",\"content\":\"" OTHER "\",\"%s\":\"" THIRD
                                        "\"}]",
                                        "[" USER "," CALL_A "\"%s\":\"" THIRD "\"," CALL_B "{}" CALL_C "]"};

    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (size_t i = 0; strstr(source, keys[k]) && i < 2; i++) {
            firn_text question;
            firn_text_init(&question, a->t->ctx, 0);
            const char *hole = strstr(forms[i], "%s");
            firn_text_append(&question, forms[i], (size_t)(hole - forms[i]));
            firn_text_puts(&question, keys[k]);
            firn_text_puts(&question, hole + 2);
            if (question.status != FIRN_OK)
                a->status = question.status;
            const bool known = ask(a, firn_text_cstr(&question), false) && shows(a, THIRD);
            firn_text_free(&question);
            if (known)
                return keys[k];
        }
    }
    return NULL;
}

static bool drops_thoughts(asker *a)
{
    json_t *list = json_loads("[" USER ",{\"role\":\"assistant\"}," USER "]", 0, NULL);

    if (json_object_set_new(json_array_get(list, 1), "content",
                            json_string("<think>\n" THIRD "\n</think>\n\n" OTHER)) != 0)
        list = (json_decref(list), NULL);
    return ask_list(a, list, true) && shows(a, OTHER) && !shows(a, THIRD);
}

static firn_status find_forms(firn_template *t, const char *source)
{
    asker a = {.t = t};
    firn_chat_forms *f = &t->forms;

    firn_text_init(&a.text, t->ctx, 0);
    *f = (firn_chat_forms){.system = true};
    f->developer = strstr(source, "'developer'") || strstr(source, "\"developer\"");
    if (!ask(&a, "[" USER "]", true)) {
        f->empty_tools = true;
        f->empty_tools = ask(&a, "[" USER "]", true);
    }
    bool answers = a.text.size && shows(&a, WORDS);
    if (!answers)
        answers = f->only_parts =
            ask(&a, "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"" WORDS "\"}]}]", true) &&
            shows(&a, WORDS) && !shows(&a, "'text'") && !shows(&a, "\"text\"");
    if (answers) {
        f->system = ask(&a, "[{\"role\":\"system\",\"content\":\"" OTHER "\"}," USER "]", true) && shows(&a, OTHER);
        f->parts = takes_parts(&a);
        f->text_arguments = wants_text_arguments(&a);
        f->reasoning = name_of_reasoning(&a, source);
        f->blocks = strstr(source, "</think>") && drops_thoughts(&a);
    }
    firn_text_free(&a.text);
    return a.status;
}

firn_status firn_template_create(firn_context *ctx, const char *source, size_t size, const firn_chat_tokens *tokens,
                                 const firn_jinja_limits *limits, firn_template **result)
{
    *result = NULL;
    firn_template *t = firn_alloc_zeroed(ctx, 1, sizeof *t);
    if (!t)
        return FIRN_ERR_MEMORY;
    t->ctx = ctx;
    t->tokens = *tokens;
    char *text = firn_alloc(ctx, size + 1); /* with a NUL behind it */
    firn_status s = text ? FIRN_OK : FIRN_ERR_MEMORY;

    if (s == FIRN_OK) {
        memcpy(text, source, size);
        text[size] = 0;
        s = firn_jinja_compile(ctx, source, size, limits, &t->jinja);
    }
    if (s == FIRN_OK)
        s = find_forms(t, text);
    firn_free(ctx, text);
    if (s != FIRN_OK) {
        firn_template_destroy(t);
        return s;
    }
    *result = t;
    return FIRN_OK;
}

void firn_template_destroy(firn_template *t)
{
    if (!t)
        return;
    firn_jinja_destroy(t->jinja);
    firn_free(t->ctx, t);
}
