/* The assistant's turns: on small templates that do what real ones do, and on the real ones where ../shared is. */
#include "unit/unit.h"

#include "core/file.h"
#include "text/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static firn_context *ctx;

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
    return ctx == NULL;
}

static int teardown(void **state)
{
    (void)state;
    firn_context_destroy(ctx);
    return 0;
}

static const char *const end_tokens[] = {"<e>", "</s>"};

/* Renders and writes the turns as "begin|end|..." texts into `out`: "[turn][turn]", or the sentence of a refusal. */
static void turns(const char *source, size_t size, const char *messages, const char *const *ends, size_t n_ends,
                  firn_text *out, size_t *n_open)
{
    json_t *given = json_loads(messages, 0, NULL), *variables;
    firn_jinja *jinja;
    firn_chat chat;
    const firn_chat_options options = {.end_tokens = ends, .n_end_tokens = n_ends};

    assert_non_null(given);
    firn_text_init(out, ctx, 0);
    *n_open = 0;
    assert_int_equal(firn_chat_variables(ctx, given, "<s>", "</s>", &variables), FIRN_OK);
    if (firn_jinja_compile(ctx, source, size, NULL, &jinja) != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    if (firn_chat_render(ctx, jinja, variables, &options, &chat) == FIRN_OK) {
        for (size_t i = 0; i < chat.spans.n; i++) {
            const firn_span s = chat.spans.items[i];
            assert_true(s.begin <= s.end && s.end <= chat.text.size);
            assert_true(i == 0 || chat.spans.items[i - 1].end <= s.begin);
            firn_text_putc(out, '[');
            firn_text_append(out, chat.text.data + s.begin, s.end - s.begin);
            firn_text_putc(out, ']');
        }
        *n_open = chat.n_open;
        firn_chat_free(&chat);
    } else {
        firn_text_puts(out, firn_error(ctx));
    }
    firn_jinja_destroy(jinja);
    json_decref(variables);
    json_decref(given);
}

#define TWO                                                                                                            \
    "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello\"},"                          \
    "{\"role\":\"user\",\"content\":\"1+1\"},{\"role\":\"assistant\",\"content\":\"2\"}]"
#define THINK                                                                                                          \
    "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"<t>a</t>Hello\"},"                  \
    "{\"role\":\"user\",\"content\":\"1+1\"},{\"role\":\"assistant\",\"content\":\"<t>b</t>2\"}]"
#define TOOL                                                                                                           \
    "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":"  \
    "{\"name\":\"f\",\"arguments\":{\"x\":1}}}]},{\"role\":\"tool\",\"content\":\"7\"},"                               \
    "{\"role\":\"assistant\",\"content\":\"Seven\"}]"

/* One round of the usual kind, with `turn` for how an assistant's message shows. */
#define ROUND(turn)                                                                                                    \
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}" turn                                        \
    "{% else %}{{ '<' ~ m.role ~ '>\\n' ~ m.content ~ '<e>\\n' }}{% endif %}{% endfor %}"
#define PROMPT(text) "{% if add_generation_prompt %}{{ '" text "' }}{% endif %}"

static void small_templates(void **state)
{
    static const struct {
        const char *what, *source, *messages, *expected;
        size_t n_open;
    } cases[] = {
        {"plain", ROUND("{{ '<a>\\n' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n"), TWO, "[Hello<e>][2<e>]", 0},
        {"an empty turn", ROUND("{{ '<a>\\n' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n"),
         "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":\"\"}]", "[<e>]", 0},
        {"the assistant begins", ROUND("{{ '<a>\\n' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n"),
         "[{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]", "[x<e>]", 0},
        {"... and the template cannot render nothing",
         "{% if messages[0].role == 's' %}{% endif %}" ROUND("{{ '<a>\\n' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n"),
         "[{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"user\",\"content\":\"y\"}]", "[x<e>]", 0},
        {"a text that closes the whole",
         ROUND("{{ '<a>' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>") "{% if not "
                                                                   "add_generation_prompt %}</s>{% endif %}",
         TWO, "[Hello<e>][2<e>]", 0},
        {"the content says what the header says", ROUND("{{ '<a>\\n' ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n"),
         "[{\"role\":\"user\",\"content\":\"<a>\\n<e>\"},{\"role\":\"assistant\",\"content\":\"<a>\\n<e>\"}]",
         "[<a>\n<e><e>]", 0},
        {"reasoning dropped from earlier turns",
         ROUND("{{ '<a>\\n' ~ (m.content if loop.last else m.content.split('</t>')[-1]) ~ '<e>\\n' }}")
             PROMPT("<a>\\n"),
         THINK, "[Hello<e>][<t>b</t>2<e>]", 0},
        {"reasoning dropped everywhere, but prompted for",
         ROUND("{{ '<a>\\n' ~ m.content.split('</t>')[-1] ~ '<e>\\n' }}") PROMPT("<a>\\n<t>\\n"), THINK,
         "[Hello<e>][2<e>]", 0},
        {"the prompt's reasoning kept in the last turn",
         ROUND("{{ '<a>\\n' ~ ('<t>\\n\\n</t>' if loop.last else '') ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n<t>\\n"),
         TWO, "[Hello<e>][\n</t>2<e>]", 0},
        {"a header that shares the begin of the content", ROUND("{{ '<a>' ~ m.content ~ '<e>' }}") PROMPT("<a><t>"),
         "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"<table>\"}]", "[<table><e>]", 0},
        {"no header at all",
         "{% for m in messages %}{{ '[I]' ~ m.content ~ '[/I]' if m.role == 'user' else m.content ~ "
         "eos_token }}{% endfor %}",
         TWO, "[Hello</s>][2</s>]", 0},
        {"the prompt always there", ROUND("{{ '<a><r>' ~ m.content ~ '</r><e>' }}") "<a><t></t>", TWO,
         "[<r>Hello</r><e>][<r>2</r><e>]", 0},
        {"tool calls",
         ROUND("{{ '<a>\\n' }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ "
               "m.content }}{% endif %}{{ '<e>\\n' }}") PROMPT("<a>\\n"),
         TOOL, "[{\"name\": \"f\", \"arguments\": {\"x\": 1}}<e>][Seven<e>]", 0},
        {"the next header as end token",
         "{% for m in messages %}{{ ('<a>' if m.role == 'assistant' else '<e>') ~ m.content }}{% endfor %}" PROMPT(
             "<a>"),
         TWO, "[Hello<e>][2]", 1},
        {"generation blocks", ROUND("<a>{% generation %}{{ m.content }}<e>{% endgeneration %}") PROMPT("<a>"), TWO,
         "[Hello<e>][2<e>]", 0},
        {"content in parts", ROUND("{{ '<a>' ~ m.content[0].text ~ '<e>' }}") PROMPT("<a>"),
         "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":"
         "\"y\"}]}]",
         "[y<e>]", 0},
        {"no turn", ROUND("") PROMPT("<a>"), "[{\"role\":\"user\",\"content\":\"x\"}]", "", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_text out;
        size_t n_open;
        turns(cases[i].source, strlen(cases[i].source), cases[i].messages, end_tokens, 2, &out, &n_open);
        if (strcmp(firn_text_cstr(&out), cases[i].expected) != 0 || n_open != cases[i].n_open)
            fail_msg("%s: %s, expected %s (%zu open)", cases[i].what, firn_text_cstr(&out), cases[i].expected, n_open);
        firn_text_free(&out);
    }
}

static void refusals(void **state)
{
    static const struct {
        const char *source, *messages, *says;
    } cases[] = {
        /* the turn ends in what is no end token */
        {ROUND("{{ '<a>' ~ m.content ~ '<x>' }}") PROMPT("<a>"), TWO, "end tokens"},
        /* the turn does not show */
        {ROUND("") PROMPT("<a>"), TWO, "one place"},
        /* it shows twice, around the next message */
        {ROUND("{{ '<a>' ~ m.content ~ '<e>' }}") "{% for m in messages if m.role == 'assistant' %}{{ m.content }}"
                                                  "{% endfor %}" PROMPT("<a>"),
         TWO, "told from"},
        /* another header than the prompt's */
        {"{% for m in messages %}{{ '<' ~ m.role ~ loop.index ~ '/' ~ messages | length ~ '>' ~ m.content ~ '<e>' }}"
         "{% endfor %}" PROMPT("<zzz>"),
         TWO, "header"},
        {"{{ messages[0].content }}", "[{\"role\":1}]", "message 1 must be an object with a role"},
        {"{{ messages[0].content }}", "{\"messages\":5}", "must be a list"},
        {"{{ raise_exception('no way') }}", TWO, "no way"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_text out;
        size_t n_open;
        turns(cases[i].source, strlen(cases[i].source), cases[i].messages, end_tokens, 2, &out, &n_open);
        if (!strstr(firn_text_cstr(&out), cases[i].says))
            fail_msg("%s: %s, expected %s", cases[i].source, firn_text_cstr(&out), cases[i].says);
        firn_text_free(&out);
    }
}

static void variables_get_their_defaults(void **state)
{
    json_t *list = json_pack("[{s:s}]", "role", "user"),
           *object = json_pack("{s:b,s:s}", "add_generation_prompt", 1, "eos_token", "E");
    json_t *v;

    (void)state;
    assert_int_equal(firn_chat_variables(ctx, list, NULL, NULL, &v), FIRN_OK);
    char *text = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text,
                        "{\"add_generation_prompt\":false,\"bos_token\":\"\",\"documents\":null,\"eos_token\":\"\","
                        "\"messages\":[{\"role\":\"user\"}],\"tools\":null}");
    free(text);
    json_decref(v);
    assert_int_equal(firn_chat_variables(ctx, object, "B", "X", &v), FIRN_OK);
    text = json_dumps(v, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(
        text,
        "{\"add_generation_prompt\":true,\"bos_token\":\"B\",\"documents\":null,\"eos_token\":\"E\",\"tools\":null}");
    free(text);
    assert_int_equal(json_object_size(object), 2);
    json_decref(v);
    json_decref(list);
    json_decref(object);
    assert_int_equal(firn_chat_variables(ctx, json_null(), NULL, NULL, &v), FIRN_ERR_FORMAT);
}

/* Real templates: two turns with reasoning in `reasoning_content`, and a round with a tool. */
static void shared_templates(void **state)
{
    static const char *const ends[] = {
        "<|im_end|>", "</s>",          "<|eot_id|>", "<|end_of_text|>",       "<|return|>",
        "<|call|>",   "<end_of_turn>", "[e~[",       "<|END_OF_TURN_TOKEN|>", "<|endoftext|>"};
    static const char *const glm[] = {"<|user|>", "<|observation|>", "<|endoftext|>"};
    static const char *const deepseek[] = {"<｜end▁of▁sentence｜>"};
    static const char *const phi[] = {"<|end|>", "<|endoftext|>"};
    static const char *const reasoning = "{\"tools\":[],\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":"
                                         "\"assistant\",\"content\":\"Hello\","
                                         "\"reasoning_content\":\"hm\"},{\"role\":\"user\",\"content\":\"1+1\"},{"
                                         "\"role\":\"assistant\",\"content\":\"2\","
                                         "\"reasoning_content\":\"add\"}]}";
    static const struct {
        const char *name;
        const char *const *ends;
        size_t n_ends;
        const char *expected;
    } cases[] = {
        {"command-r7b", ends, 10,
         "[<|START_RESPONSE|>Hello<|END_RESPONSE|><|END_OF_TURN_TOKEN|>][<|START_RESPONSE|>2<|END_RESPONSE|>"
         "<|END_OF_TURN_TOKEN|>]"},
        {"deepseek-r1", deepseek, 1, "[Hello<｜end▁of▁sentence｜>][2<｜end▁of▁sentence｜>]"},
        {"deepseek-v3.1", deepseek, 1, "[Hello<｜end▁of▁sentence｜>][2<｜end▁of▁sentence｜>]"},
        {"deepseek-v2", ends, 10, "[ Hello</s>][ 2</s>]"},
        {"gemma-2", ends, 10, "[Hello<end_of_turn>][2<end_of_turn>]"},
        {"glm-4.6", glm, 3, "[\n<think></think>\nHello<|user|>][\n<think>add</think>\n2]"},
        {"gpt-oss", ends, 10, "!end tokens"}, /* earlier turns end in <|end|>, which ends no generation */
        {"granite-3.3", ends, 10, "[Hello<|end_of_text|>][2<|end_of_text|>]"},
        {"granite-4.0", ends, 10, "[Hello<|end_of_text|>][2<|end_of_text|>]"},
        {"hermes-3", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
        {"kimi-k2", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
        {"lfm2", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
        {"llama-3.3", ends, 10, "[Hello<|eot_id|>][2<|eot_id|>]"},
        {"minimax-m2", ends, 10, "[Hello[e~[][add\n</think>\n\n2[e~[]"},
        {"mistral-nemo", ends, 10, "[Hello</s>][2</s>]"},
        {"mixtral-8x7b", ends, 10, "[Hello</s>][2</s>]"},
        {"phi-3.5", phi, 2, "[Hello<|end|>][2<|end|>]"},
        {"qwen2.5", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
        {"qwen3", ends, 10, "[Hello<|im_end|>][<think>\nadd\n</think>\n\n2<|im_end|>]"},
        {"qwen3-coder", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
        {"qwen3.5", ends, 10, "[Hello<|im_end|>][add\n</think>\n\n2<|im_end|>]"},
        {"qwq", ends, 10, "[Hello<|im_end|>][2<|im_end|>]"},
    };
    int n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512], *source;
        size_t size, n_open;
        firn_text out;
        snprintf(path, sizeof path, FIRN_SOURCE_DIR "/../shared/ref/chat/%s.jinja", cases[i].name);
        if (firn_file_read(ctx, path, 0, &source, &size) != FIRN_OK)
            continue;
        n++;
        turns(source, size, reasoning, cases[i].ends, cases[i].n_ends, &out, &n_open);
        const bool refused = cases[i].expected[0] == '!';
        if (refused ? !strstr(firn_text_cstr(&out), cases[i].expected + 1)
                    : strcmp(firn_text_cstr(&out), cases[i].expected) != 0)
            fail_msg("%s: %s, expected %s", cases[i].name, firn_text_cstr(&out), cases[i].expected);
        firn_text_free(&out);
        firn_free(ctx, source);
    }
    if (!n)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_templates),
        cmocka_unit_test(refusals),
        cmocka_unit_test(variables_get_their_defaults),
        cmocka_unit_test(shared_templates),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
