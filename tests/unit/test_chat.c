/* The assistant's turns, on small templates that do what real ones do. */
#include "unit/unit.h"

#include "unit/chat.h"
#include "unit/context.h"

static const char *const end_tokens[] = {"<e>", "</s>"};

static void turns(const char *source, size_t size, const char *messages, const char *const *ends, size_t n_ends,
                  firn_text *out, firn_chat_counts *counts)
{
    static const firn_chat_options options = {0};
    firn_template *t = compiled(ctx, source, size, ends, n_ends);

    show(ctx, t, messages, &options, false, out, counts);
    firn_template_destroy(t);
}

#define TWO                                                                                                            \
    "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello\"},"                          \
    "{\"role\":\"user\",\"content\":\"1+1\"},{\"role\":\"assistant\",\"content\":\"2\"}]"
#define THINK                                                                                                          \
    "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"<think>a</think>Hello\"},"          \
    "{\"role\":\"user\",\"content\":\"1+1\"},{\"role\":\"assistant\",\"content\":\"<think>b</think>2\"}]"
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
         ROUND("{{ '<a>\\n' ~ (m.content if loop.last else m.content.split('</think>')[-1]) ~ '<e>\\n' }}")
             PROMPT("<a>\\n"),
         THINK, "[<think>a</think>Hello<e>] / [<think>b</think>2<e>]", 0},
        {"reasoning dropped everywhere, but prompted for",
         ROUND("{{ '<a>\\n' ~ m.content.split('</think>')[-1] ~ '<e>\\n' }}") PROMPT("<a>\\n<think>\\n"), THINK,
         "[a</think>Hello<e>] / [b</think>2<e>]", 0},
        {"the prompt's reasoning kept in the last turn",
         ROUND("{{ '<a>\\n' ~ ('<t>\\n\\n</t>' if loop.last else '') ~ m.content ~ '<e>\\n' }}") PROMPT("<a>\\n<t>\\n"),
         TWO, "[\n</t>Hello<e>] / [\n</t>2<e>]", 0},
        {"a header that shares the begin of the content", ROUND("{{ '<a>' ~ m.content ~ '<e>' }}") PROMPT("<a><think>"),
         "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"<thing>\"}]", "[<thing><e>]", 0},
        {"no header at all",
         "{% for m in messages %}{{ '[I]' ~ m.content ~ '[/I]' if m.role == 'user' else m.content ~ "
         "eos_token }}{% endfor %}",
         TWO, "[Hello</s>][2</s>]", 0},
        {"the prompt always there", ROUND("{{ '<a><r>' ~ m.content ~ '</r><e>' }}") "<a><t></t>", TWO,
         "[<r>Hello</r><e>] / [<r>2</r><e>]", 0},
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
        {"content in parts alone",
         "{% for m in messages %}{{ '<' ~ m.role ~ '>' ~ m.content[0].text ~ '<e>' }}{% endfor %}" PROMPT(
             "<assistant>"),
         "[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":"
         "\"y\"}]}]",
         "[y<e>]", 0},
        {"no turn", ROUND("") PROMPT("<a>"), "[{\"role\":\"user\",\"content\":\"x\"}]", "", 0},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_text out;
        firn_chat_counts counts;
        turns(cases[i].source, strlen(cases[i].source), cases[i].messages, end_tokens, 2, &out, &counts);
        if (strcmp(firn_text_cstr(&out), cases[i].expected) != 0 || counts.open != (int64_t)cases[i].n_open)
            fail_msg("%s: %s, expected %s (%zu open)", cases[i].what, firn_text_cstr(&out), cases[i].expected,
                     (size_t)counts.open);
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
         TWO, "closed"},
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
        firn_chat_counts counts;
        turns(cases[i].source, strlen(cases[i].source), cases[i].messages, end_tokens, 2, &out, &counts);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_templates),
        cmocka_unit_test(refusals),
        cmocka_unit_test(variables_get_their_defaults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
