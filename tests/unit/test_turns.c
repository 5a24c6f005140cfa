/* Every template in ../shared/ref/chat: each turn is trained on what the model is asked, and on what the template adds
 * to it. What is expected comes from renderings of prefixes made here, with messages written in each template's own
 * form; nothing is shared with the code that finds the turns but the Jinja engine. */
#include "unit/context.h"
#include "unit/unit.h"

#include "core/file.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the templates ---- */

#define MAX_ENDS 6

typedef struct {
    const char *name;
    const char *ends[MAX_ENDS];
    const char *reasoning; /* the key that the template knows, "block": <think> in the content, NULL: none */
    const char *no_calls;  /* what the refusal of a call says; NULL: calls show */
    bool empty_tools;      /* it must have a list */
    bool no_system;
} known;

static const known templates[] = {
    {"command-r7b", {"<|END_OF_TURN_TOKEN|>"}, "reasoning_content", NULL, false, false},
    {"deepseek-r1", {"<｜end▁of▁sentence｜>"}, "block", NULL, false, false},
    {"deepseek-v2", {"</s>"}, NULL, "message 2: this chat template does not show its call of \"get\"", false, false},
    {"deepseek-v3.1", {"<｜end▁of▁sentence｜>"}, "block", NULL, false, false},
    {"gemma-2", {"<end_of_turn>"}, NULL, "message 2", false, true},
    {"glm-4.6", {"<|user|>", "<|observation|>", "<|endoftext|>"}, "reasoning_content", NULL, false, false},
    {"gpt-oss", {"<|return|>", "<|call|>", "<|endoftext|>"}, "thinking", NULL, false, false},
    {"granite-3.3",
     {"<|end_of_text|>"},
     NULL,
     "message 2: this chat template does not show its call of \"get\"",
     false,
     false},
    {"granite-4.0", {"<|end_of_text|>"}, NULL, NULL, false, false},
    {"hermes-3", {"<|im_end|>"}, NULL, NULL, true, false},
    {"kimi-k2", {"<|im_end|>"}, NULL, "append", false, false}, /* changes a list, which no template may here */
    {"lfm2", {"<|im_end|>"}, NULL, "message 2: this chat template does not show its call of \"get\"", false, false},
    {"llama-3.3", {"<|eot_id|>", "<|eom_id|>"}, NULL, NULL, false, false},
    {"minimax-m2", {"[e~["}, "reasoning_content", NULL, false, false},
    {"mistral-nemo", {"</s>"}, NULL, NULL, false, false},
    {"mixtral-8x7b", {"</s>"}, NULL, "message 2", false, true},
    {"phi-3.5",
     {"<|end|>", "<|endoftext|>"},
     NULL,
     "message 2: this chat template does not show its call of \"get\"",
     false,
     false},
    {"qwen2.5", {"<|im_end|>"}, NULL, NULL, false, false},
    {"qwen3-coder", {"<|im_end|>"}, NULL, NULL, false, false},
    {"qwen3.5", {"<|im_end|>"}, "reasoning_content", NULL, false, false},
    {"qwen3", {"<|im_end|>"}, "reasoning_content", NULL, false, false},
    {"qwq", {"<|im_end|>"}, "block", NULL, false, false},
};

/* ---- conversations, with every turn's expectation where the prompt is no prefix ---- */

#define U(text)         "{\"role\":\"user\",\"content\":\"" text "\"}"
#define A(text)         "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define R(text, reason) "{\"role\":\"assistant\",\"content\":\"" text "\",\"reasoning_content\":\"" reason "\"}"
#define ARGUMENTS       "{\"city\":\"Rome\"}"
#define CALL(reason)                                                                                                   \
    "{\"role\":\"assistant\",\"content\":\"\"" reason ",\"tool_calls\":[{\"type\":\"function\",\"id\":\"a1b2c3d4e\","  \
    "\"function\":{\"name\":\"get\",\"arguments\":" ARGUMENTS "}}]}"
#define RESULT "{\"role\":\"tool\",\"name\":\"get\",\"tool_call_id\":\"a1b2c3d4e\",\"content\":\"sunny\"}"
#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"description\":\"Get weather\",\"parameters\":{\"type\":" \
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"description\":\"the city\"}},\"required\":[\"city\"]}" \
    "}}]"

typedef struct {
    const char *name, *messages;
    bool tools;
} conversation;

static const conversation conversations[] = {
    {"plain", "[" U("Hi") "," A("Hello") "," U("1+1") "," A("2") "]", false},
    {"reasoning", "[" U("Hi") "," R("Hello", "hm") "," U("1+1") "," R("2", "add one") "]", false},
    {"system", "[{\"role\":\"system\",\"content\":\"Be kind.\"}," U("Hi") "," A("Hello") "," U("1+1") "," A("2") "]",
     false},
    {"call", "[" U("weather?") "," CALL("") "," RESULT "," A("It is sunny.") "," U("thanks") "," A("Bye") "]", true},
    {"call with reasoning",
     "[" U("weather?") "," CALL(",\"reasoning_content\":\"look it up\"") "," RESULT "," R("It is sunny.", "so") "," U(
         "thanks") "," A("Bye") "]",
     true},
    {"call at the end", "[" U("weather?") "," CALL("") "]", true},
};

#define R1_CALL                                                                                                                \
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"city\": \"Rome\"}\n```" \
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"

#define QWQ_CALL "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call><|im_end|>"
#define MINIMAX_CALL                                                                                                   \
    "\n<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"city\">Rome</parameter>\n</invoke>\n"             \
    "</minimax:tool_call>[e~["

/* Turns whose prompt is no prefix of their rendering: what is trained, behind what is asked, or (full) as the template
 * has it. turn: the assistant's, from 1; 0: all. */
static const struct {
    const char *template, *conversation;
    int turn;
    bool full;
    const char *trained;
} parting[] = {
    {"deepseek-r1", "plain", 1, true, "Hello<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "plain", 2, true, "2<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "system", 1, true, "Hello<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "system", 2, true, "2<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "reasoning", 1, false, "hm\n</think>\n\nHello<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "reasoning", 2, false, "add one\n</think>\n\n2<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "call", 1, true, R1_CALL},
    {"deepseek-r1", "call at the end", 1, true, R1_CALL},
    {"deepseek-r1", "call with reasoning", 1, false, "look it up\n</think>\n\n" R1_CALL},
    {"deepseek-r1", "call", 3, true, "Bye<｜end▁of▁sentence｜>"},
    {"deepseek-r1", "call with reasoning", 3, true, "Bye<｜end▁of▁sentence｜>"},
    /* asked with the thought before the call, rendered without */
    {"gpt-oss", "call with reasoning", 2, false,
     "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>"},
    /* a line break behind the last message's result only */
    {"hermes-3", "call", 2, false, "It is sunny.<|im_end|>"},
    {"hermes-3", "call with reasoning", 2, false, "It is sunny.<|im_end|>"},
    {"qwq", "plain", 1, true, "Hello<|im_end|>"},
    {"qwq", "plain", 2, true, "2<|im_end|>"},
    {"qwq", "system", 1, true, "Hello<|im_end|>"},
    {"qwq", "system", 2, true, "2<|im_end|>"},
    {"qwq", "reasoning", 1, false, "hm\n</think>\n\nHello<|im_end|>"},
    {"qwq", "reasoning", 2, false, "add one\n</think>\n\n2<|im_end|>"},
    {"qwq", "call with reasoning", 1, false, "look it up\n</think>\n\n" QWQ_CALL},
    {"qwq", "call with reasoning", 2, false, "so\n</think>\n\nIt is sunny.<|im_end|>"},
    {"deepseek-v3.1", "reasoning", 1, false, "hm</think>Hello<｜end▁of▁sentence｜>"},
    {"deepseek-v3.1", "reasoning", 2, false, "add one</think>2<｜end▁of▁sentence｜>"},
    {"deepseek-v3.1", "call with reasoning", 1, false,
     "look it up</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"city\": "
     "\"Rome\"}<｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"},
    {"qwq", "call", 1, true, QWQ_CALL},
    {"qwq", "call at the end", 1, true, QWQ_CALL},
    {"qwq", "call", 2, true, "It is sunny.<|im_end|>"},
    {"qwq", "call", 3, true, "Bye<|im_end|>"},
    {"qwq", "call with reasoning", 3, true, "Bye<|im_end|>"},
    {"minimax-m2", "call", 1, true, MINIMAX_CALL},
    {"minimax-m2", "call at the end", 1, true, MINIMAX_CALL},
    {"minimax-m2", "call", 2, true, "It is sunny.[e~["},
    {"minimax-m2", "call", 3, true, "Bye[e~["},
    {"minimax-m2", "call with reasoning", 3, true, "Bye[e~["},
    {"minimax-m2", "plain", 1, true, "Hello[e~["},
    {"minimax-m2", "plain", 2, true, "2[e~["},
    {"minimax-m2", "system", 1, true, "Hello[e~["},
    {"minimax-m2", "system", 2, true, "2[e~["},
};

/* ---- prefixes ---- */

static char *render(const firn_jinja *jinja, const known *k, const conversation *c, const json_t *messages, size_t n,
                    bool prompt)
{
    json_t *list = json_array(), *m;
    firn_text text;
    char *out = NULL;
    static const struct tm now = {.tm_year = 126, .tm_mday = 1};

    for (size_t i = 0; i < n; i++)
        json_array_append(list, json_array_get(messages, i));
    m = json_pack("{s:o,s:b,s:b,s:s,s:s,s:n,s:o}", "messages", list, "add_generation_prompt", prompt, "enable_thinking",
                  1, "bos_token", "<s>", "eos_token", "</s>", "documents", "tools",
                  c->tools         ? json_loads(TOOLS, 0, NULL)
                  : k->empty_tools ? json_array()
                                   : json_null());
    firn_text_init(&text, ctx, 0);
    if (firn_jinja_render(ctx, jinja, m, &(firn_jinja_options){.now = &now}, &text, NULL) == FIRN_OK) {
        out = malloc(text.size + 1);
        memcpy(out, firn_text_cstr(&text), text.size + 1);
    }
    firn_text_free(&text);
    json_decref(m);
    return out;
}

/* Messages in the template's own form, written by hand here. */
static json_t *own_form(const known *k, const conversation *c)
{
    json_t *messages = json_loads(c->messages, 0, NULL), *m;
    size_t i;

    if (k->no_system && json_object_get(json_array_get(messages, 0), "role") &&
        strcmp(json_string_value(json_object_get(json_array_get(messages, 0), "role")), "system") == 0) {
        char both[256];
        m = json_array_get(messages, 1);
        snprintf(both, sizeof both, "%s\n%s",
                 json_string_value(json_object_get(json_array_get(messages, 0), "content")),
                 json_string_value(json_object_get(m, "content")));
        json_object_set_new(m, "content", json_string(both));
        json_array_remove(messages, 0);
    }
    json_array_foreach(messages, i, m)
    {
        const char *reason = json_string_value(json_object_get(m, "reasoning_content"));
        if (!reason || (k->reasoning && strcmp(k->reasoning, "reasoning_content") == 0))
            continue;
        if (k->reasoning && strcmp(k->reasoning, "block") == 0) {
            json_object_set_new(m, "thought", json_string(reason)); /* for `expected` */
        } else if (k->reasoning) {
            json_object_set_new(m, k->reasoning, json_string(reason));
        }
        json_object_del(m, "reasoning_content");
    }
    return messages;
}

typedef struct {
    char *text;
    size_t begin; /* of what is trained */
} sample;

static sample concat(const char *a, size_t n, const char *b, size_t m)
{
    sample s = {malloc(n + m + 1), n};

    memcpy(s.text, a, n);
    memcpy(s.text + n, b, m);
    s.text[n + m] = 0;
    return s;
}

/* The end of what is trained of an answer: behind the first end token; all of it where there is none. */
static size_t closed(const known *k, const char *answer, bool *open)
{
    const char *first = NULL;
    size_t n = 0;

    for (int e = 0; e < MAX_ENDS && k->ends[e]; e++) {
        const char *at = strstr(answer, k->ends[e]);
        if (at && (!first || at < first)) {
            first = at;
            n = strlen(k->ends[e]);
        }
    }
    *open = !first;
    return first ? (size_t)(first - answer) + n : strlen(answer);
}

/* By the rule; NULL text: what is asked is no prefix. */
static sample by_prefix(const known *k, const conversation *c, const json_t *messages, size_t i, const char *asked,
                        const char *full)
{
    const size_t n = strlen(asked);
    bool open;

    (void)c;
    if (strncmp(full, asked, n) != 0)
        return (sample){NULL, 0};
    const size_t m = closed(k, full + n, &open);
    sample s = concat(asked, n, full + n, m);
    if (open && i + 1 < json_array_size(messages)) { /* GLM: the next message's header ends it */
        const char *role = json_string_value(json_object_get(json_array_get(messages, i + 1), "role"));
        char *text = s.text;
        const char *header = strcmp(role, "tool") == 0 ? "<|observation|>" : "<|user|>";
        s = concat(text, strlen(text), header, strlen(header));
        s.begin = n;
        free(text);
    }
    return s;
}

static sample expected(const firn_jinja *jinja, const known *k, const conversation *c, const json_t *messages, size_t i,
                       int turn)
{
    char *asked = render(jinja, k, c, messages, i, true);
    json_t *m = json_array_get(messages, i), *bare = json_copy(m);
    const char *thought = json_string_value(json_object_get(m, "thought"));
    if (thought && !strstr(asked + strlen(asked) - 9, "<think>")) { /* the answer writes its thought itself */
        char both[256];
        snprintf(both, sizeof both, "<think>\n%s\n</think>\n\n%s", thought,
                 json_string_value(json_object_get(m, "content")));
        json_object_set_new(m, "content", json_string(both));
    }
    char *full = render(jinja, k, c, messages, i + 1, false);
    json_object_set(m, "content", json_object_get(bare, "content"));
    json_decref(bare);

    if (!asked || !full)
        fail_msg("%s, %s: message %zu: %s", k->name, c->name, i + 1, firn_error(ctx));
    sample s = {NULL, 0};
    for (size_t p = 0; !s.text && p < sizeof parting / sizeof *parting; p++) {
        if (strcmp(parting[p].template, k->name) != 0 || strcmp(parting[p].conversation, c->name) != 0 ||
            parting[p].turn != turn)
            continue;
        const size_t n = strlen(parting[p].trained);
        if (parting[p].full) {
            const char *at = strstr(full, parting[p].trained), *next;
            while (at && (next = strstr(at + 1, parting[p].trained)))
                at = next;
            assert_non_null(at);
            s = concat(full, (size_t)(at - full), at, n);
        } else {
            s = concat(asked, strlen(asked), parting[p].trained, n);
        }
    }
    if (!s.text)
        s = by_prefix(k, c, messages, i, asked, full);
    if (!s.text && strcmp(k->name, "mistral-nemo") == 0) { /* a system message stands before the last user's words */
        const char *answer = strstr(full, "[/INST]"), *next;
        while ((next = strstr(answer + 1, "[/INST]")))
            answer = next;
        s = concat(asked, strlen(asked), answer + strlen("[/INST]"), strlen(answer + strlen("[/INST]")));
    }
    if (!s.text)
        fail_msg("%s, %s, turn %d: the prompt is no prefix:\n%s\n--- but\n%s", k->name, c->name, turn, asked, full);
    free(asked);
    free(full);
    return s;
}

static void compare(const known *k, const conversation *c, const firn_jinja *jinja, const firn_renderings *r)
{
    json_t *messages = own_form(k, c), *m;
    sample samples[16] = {{NULL, 0}};
    size_t i, n = 0, n_turns = 0, n_samples = 0;

    json_array_foreach(messages, i, m)
    {
        if (strcmp(json_string_value(json_object_get(m, "role")), "assistant") == 0) {
            samples[n] = expected(jinja, k, c, messages, i, (int)n + 1);
            n++;
        }
    }
    for (size_t a = 0; a < n; a++) {
        const size_t size = strlen(samples[a].text);
        bool found = false, goes_on = false;
        for (size_t x = 0; x < r->n; x++)
            for (size_t t = 0; t < r->items[x].turns.n; t++)
                found |=
                    r->items[x].turns.items[t].begin == samples[a].begin && r->items[x].turns.items[t].end == size &&
                    r->items[x].spans.items[t].begin == samples[a].begin && r->items[x].spans.items[t].end == size &&
                    memcmp(r->items[x].text.data, samples[a].text, size) == 0;
        if (!found) {
            for (size_t x = 0; x < r->n; x++)
                for (size_t t = 0; t < r->items[x].turns.n; t++)
                    print_error("got %zu.%zu: ...%.*s{%.*s}\n", x, t, (int)r->items[x].turns.items[t].begin,
                                r->items[x].text.data,
                                (int)(r->items[x].turns.items[t].end - r->items[x].turns.items[t].begin),
                                r->items[x].text.data + r->items[x].turns.items[t].begin);
            fail_msg("%s, %s: turn %zu is not trained as it is asked: expected %.*s{%s}", k->name, c->name, a + 1,
                     (int)samples[a].begin, samples[a].text, samples[a].text + samples[a].begin);
        }
        for (size_t b = a + 1; b < n; b++)
            goes_on |= strncmp(samples[a].text, samples[b].text, size) == 0;
        n_samples += !goes_on;
    }
    for (size_t x = 0; x < r->n; x++)
        n_turns += r->items[x].turns.n;
    assert_int_equal(n_turns, n);
    if (r->n != n_samples)
        fail_msg("%s, %s: %zu samples, expected %zu", k->name, c->name, r->n, n_samples);
    for (size_t a = 0; a < n; a++)
        free(samples[a].text);
    json_decref(messages);
}

/* ---- what users of other tools reported (../shared/tried): what each template trains of it ---- */

static void trained_text(const firn_template *t, const char *file, firn_text *out)
{
    char path[512], *bytes;
    size_t size;
    const firn_chat_options options = {0};
    firn_renderings r;

    snprintf(path, sizeof path, FIRN_SOURCE_DIR "/../shared/tried/%s.jsonl", file);
    firn_text_init(out, ctx, 0);
    if (firn_file_read(ctx, path, 0, &bytes, &size) != FIRN_OK)
        return;
    json_t *line = json_loadb(bytes, strcspn(bytes, "\n"), 0, NULL);
    firn_free(ctx, bytes);
    if (firn_chat_render(t, line, &options, &r) != FIRN_OK) {
        firn_text_puts(out, firn_error(ctx));
    } else {
        for (size_t k = 0; k < r.n; k++) {
            for (size_t i = 0; i < r.items[k].spans.n; i++) {
                const firn_span x = r.items[k].spans.items[i];
                firn_text_putc(out, '{');
                firn_text_append(out, r.items[k].text.data + x.begin, x.end - x.begin);
                firn_text_putc(out, '}');
            }
        }
        firn_renderings_free(&r);
    }
    json_decref(line);
}

static void tried(const known *k, const firn_template *t)
{
    static const char *const files[] = {"parts",     "call-alone", "arguments-text", "content-null",
                                        "null-keys", "weight",     "tools-asking"};
    static const char *const never[] = {"None", "null", "\\\"city", "'type'", "\"type\": \"text\""};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const bool calls = i >= 1 && i <= 3;
        firn_text out;
        trained_text(t, files[i], &out);
        const char *text = firn_text_cstr(&out);
        bool good = true;
        if (calls && k->no_calls) {
            good = strstr(text, k->no_calls) != NULL;
        } else if (out.size) {
            for (size_t n = 0; n < sizeof never / sizeof *never; n++)
                good &= !strstr(text, never[n]);
            if (i == 0)
                good &= strstr(text, "Paris.") != NULL;
            if (calls)
                good &= strstr(text, "Rome") && strstr(text, "get") && text[0] == '{';
            if (calls && strcmp(k->name, "glm-4.6") == 0)
                good &= strstr(text, "{\n<think></think>\n<tool_call>get\n") == text;
            if (i == 4)
                good &= strstr(text, "hello") != NULL;
            if (i == 5)
                good &= strstr(text, "y") && !strstr(text, "hello");
            if (i == 6)
                good &= !strchr(text, '{');
        }
        if (!good)
            fail_msg("%s, %s: %s", k->name, files[i], text);
        firn_text_free(&out);
    }
}

static void check(const known *k, const char *source, size_t size)
{
    size_t n_ends = 0;
    static const struct tm now = {.tm_year = 126, .tm_mday = 1};

    while (n_ends < MAX_ENDS && k->ends[n_ends])
        n_ends++;
    const firn_chat_tokens tokens = {.bos = "<s>", .eos = "</s>", .ends = k->ends, .n_ends = n_ends};
    const firn_chat_options options = {.now = &now};
    firn_template *t;
    firn_jinja *jinja;
    assert_int_equal(firn_template_create(ctx, source, size, &tokens, NULL, &t), FIRN_OK);
    assert_int_equal(firn_jinja_compile(ctx, source, size, NULL, &jinja), FIRN_OK);
    assert_true(t->forms.system == !k->no_system);
    for (size_t i = 0; i < sizeof conversations / sizeof *conversations; i++) {
        const conversation *c = &conversations[i];
        json_t *line = json_pack("{s:o,s:o?}", "messages", json_loads(c->messages, 0, NULL), "tools",
                                 c->tools ? json_loads(TOOLS, 0, NULL) : NULL);
        firn_renderings r;
        const firn_status s = firn_chat_render(t, line, &options, &r);
        if (c->tools && k->no_calls) {
            if (s == FIRN_OK || !strstr(firn_error(ctx), k->no_calls))
                fail_msg("%s, %s: %s, expected %s", k->name, c->name, s ? firn_error(ctx) : "taken", k->no_calls);
        } else {
            if (s != FIRN_OK)
                fail_msg("%s, %s: %s", k->name, c->name, firn_error(ctx));
            compare(k, c, jinja, &r);
        }
        if (s == FIRN_OK)
            firn_renderings_free(&r);
        json_decref(line);
    }
    tried(k, t);
    firn_jinja_destroy(jinja);
    firn_template_destroy(t);
}

static void every_template(void **state)
{
    int n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        char path[512], *source;
        size_t size;
        snprintf(path, sizeof path, FIRN_SOURCE_DIR "/../shared/ref/chat/%s.jinja", templates[i].name);
        if (firn_file_read(ctx, path, 0, &source, &size) != FIRN_OK)
            continue;
        n++;
        check(&templates[i], source, size);
        firn_free(ctx, source);
    }
    if (!n)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_template),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
