/* Messages as people's data have them, brought to the form that a template takes, and what of them is trained. The
 * lines are those that users of other tools reported as faults, or their like; the templates do what real ones do. */
#include "unit/chat.h"
#include "unit/context.h"

static const char *const ends[] = {"<e>"};

/* ---- templates ---- */

#define PROMPT "{% if add_generation_prompt %}<assistant>{% endif %}"
#define BEGIN  "{% if tools %}<tools>{{ tools | tojson }}<e>{% endif %}{% for m in messages %}{{ '<' ~ m.role ~ '>' }}"
#define CALLS(arguments)                                                                                               \
    "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ '<call>' ~ c.function.name ~ ' ' }}{{ " arguments              \
    " }}</call>{% endfor %}{% endif %}"
#define END "<e>{% endfor %}" PROMPT

/* Content as text, arguments as an object, nothing about reasoning. */
static const char plain[] = BEGIN "{{ m.content }}" CALLS("c.function.arguments | tojson") END;
/* ... that joins content with + and so refuses what is no text, arguments too. */
static const char texts[] = BEGIN "{{ '' + m.content }}" CALLS("'' + c.function.arguments") END;
static const char no_calls[] = BEGIN "{{ m.content }}" END;
static const char no_tool_role[] =
    "{% for m in messages if m.role != 'tool' %}{{ '<' ~ m.role ~ '>' ~ m.content }}" CALLS(
        "c.function.arguments | tojson") END;
static const char first_call_only[] = BEGIN "{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}"
                                            "{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}" END;
static const char call_or_content[] =
    BEGIN "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% else %}{{ m.content }}{% endif %}" END;
static const char parts[] = BEGIN "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                                  "{{ '(' ~ p.text ~ ')' }}{% endfor %}{% endif %}" END;
/* Thoughts under a key of their own, in all turns; in content, dropped from earlier turns; in content, asked for. */
static const char thinking[] =
    BEGIN "{% if m.thinking %}{{ '<think>' ~ m.thinking ~ '</think>' }}{% endif %}{{ m.content }}" END;
#define DROPS "{{ m.content if loop.last else m.content.split('</think>')[-1].lstrip() }}"
static const char blocks[] = BEGIN DROPS END;
static const char opens[] = BEGIN "{{ m.content.split('</think>')[-1].lstrip() }}<e>{% endfor %}"
                                  "{% if add_generation_prompt %}<assistant><think>\n{% if not enable_thinking %}"
                                  "</think>{% endif %}{% endif %}";
/* Opens a thought, and shows an empty one. */
static const char shows_empty[] =
    "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{% if m.role == 'assistant' %}<think></think>"
    "{{ m.content.split('</think>')[-1] }}" CALLS(
        "c.function.arguments | tojson") "{% else %}{{ m.content }}{% endif %}<e>"
                                         "{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}";
static const char no_system[] =
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" BEGIN "{{ m.content }}" END;
static const char wants_tools[] = "{% for t in tools %}{{ t.function.name }}{% endfor %}" BEGIN "{{ m.content }}" END;
static const char no_tools_is_null[] = "{% if tools is not none %}<tools!>{% endif %}" BEGIN "{{ m.content }}" END;
static const char marked[] =
    "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{% if m.role == 'assistant' %}{% generation "
    "%}{{ m.content }}{% endgeneration %}<e>{% else %}{{ m.content }}<e>{% endif %}{% endfor "
    "%}" PROMPT;
static const char marked_wide[] =
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<assistant>{{ "
    "m.content }}<e>\n\n{% endgeneration %}{% else %}{{ '<' ~ m.role ~ '>' ~ m.content }}<e>"
    "{% endif %}{% endfor %}" PROMPT;
static const char marked_never[] = BEGIN "{{ m.content }}{% generation %}{% endgeneration %}" END;

/* ---- lines ---- */

#define USER(text)               "{\"role\":\"user\",\"content\":\"" text "\"}"
#define ASSISTANT(text)          "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define REASONED(text, key, why) "{\"role\":\"assistant\",\"content\":\"" text "\",\"" key "\":\"" why "\"}"
#define CALL(content, arguments)                                                                                       \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[{\"type\":\"function\",\"id\":\"a1b2c3d4e\","     \
    "\"function\":{\"name\":\"get\",\"arguments\":" arguments "}}]}"
#define RESULT "{\"role\":\"tool\",\"name\":\"get\",\"tool_call_id\":\"a1b2c3d4e\",\"content\":\"sunny\"}"
#define TEXT   "\"{\\\"city\\\": \\\"Rome\\\"}\""

typedef struct {
    const char *what, *template, *messages, *expected;
    firn_chat_options options;
    int64_t left_out, asked_otherwise;
} line;

static const line lines[] = {
    {"parts become text",
     plain,
     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"Capital\"},{\"type\":\"text\",\"text\":\"of "
     "F?\"}]},"
     "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"Paris.\"}]}]",
     "<user>Capital\nof F?<e><assistant>[Paris.<e>]",
     {0},
     0,
     0},
    {"parts stay where they are taken",
     parts,
     "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
     "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"Paris.\"}]}]",
     "<user>(a)(b)<e><assistant>[(Paris.)<e>]",
     {0},
     0,
     0},
    {"an image is no text",
     plain,
     "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}}]}," ASSISTANT("y") "]",
     "message 1: a part of its content is of type \"image_url\"; expected \"text\"",
     {0},
     0,
     0},
    {"arguments as text become an object",
     plain,
     "[" USER("w?") "," CALL("\"\"", TEXT) "," RESULT "," ASSISTANT("Sun.") "]",
     "<user>w?<e><assistant>[<call>get {\"city\": \"Rome\"}</call><e>]<tool>sunny<e><assistant>[Sun.<e>]",
     {0},
     0,
     0},
    {"arguments written as text twice",
     plain,
     "[" USER("w?") "," CALL("\"\"", "\"\\\"{}\\\"\"") "]",
     "<user>w?<e><assistant>[<call>get {}</call><e>]",
     {0},
     0,
     0},
    {"an object becomes text where text is wanted",
     texts,
     "[" USER("w?") "," CALL("\"\"", "{\"city\":\"Rome\"}") "]",
     "<user>w?<e><assistant>[<call>get {\"city\": \"Rome\"}</call><e>]",
     {0},
     0,
     0},
    {"arguments that are no object",
     plain,
     "[" USER("w?") "," CALL("\"\"", "\"Rome\"") "]",
     "message 2: the arguments of its call of \"get\" are no JSON object",
     {0},
     0,
     0},
    {"content that is null is empty",
     plain,
     "[" USER("w?") "," CALL("null", TEXT) "," RESULT "," ASSISTANT("Sun.") "]",
     "<user>w?<e><assistant>[<call>get {\"city\": \"Rome\"}</call><e>]<tool>sunny<e><assistant>[Sun.<e>]",
     {0},
     0,
     0},
    {"keys that are null are absent",
     plain,
     "[{\"role\":\"user\",\"content\":\"hi\",\"tool_calls\":null,\"name\":null},{\"role\":\"assistant\",\"content\":"
     "\"hello\",\"tool_calls\":null,\"reasoning_content\":null,\"function_call\":null,\"weight\":null}]",
     "<user>hi<e><assistant>[hello<e>]",
     {0},
     0,
     0},
    {"function_call and role function",
     plain,
     "[" USER("w?") ",{\"role\":\"assistant\",\"content\":null,\"function_call\":{\"name\":\"get\",\"arguments\":" TEXT
                    "}},"
                    "{\"role\":\"function\",\"name\":\"get\",\"content\":\"sunny\"}," ASSISTANT("Sun.") "]",
     "<user>w?<e><assistant>[<call>get {\"city\": \"Rome\"}</call><e>]<tool>sunny<e><assistant>[Sun.<e>]",
     {0},
     0,
     0},
    {"a call without its wrapper",
     plain,
     "[" USER("w?") ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"get\",\"arguments\":{}}]}]",
     "<user>w?<e><assistant>[<call>get {}</call><e>]",
     {0},
     0,
     0},
    {"a call that does not show",
     no_calls,
     "[" USER("w?") "," CALL("\"\"", TEXT) "]",
     "message 2: this chat template does not show its call of \"get\"",
     {0},
     0,
     0},
    {"one call of two shows",
     first_call_only,
     "[" USER("w?") ",{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"a\",\"arguments\":{}},{\"name\":\"b\"}]}]",
     "message 2: this chat template does not show its call of \"b\"",
     {0},
     0,
     0},
    {"words beside a call that do not show",
     call_or_content,
     "[" USER("w?") "," CALL("\"Let me see.\"", TEXT) "]",
     "message 2: this chat template does not show its content beside its calls",
     {0},
     0,
     0},
    {"a result that does not show",
     no_tool_role,
     "[" USER("w?") "," CALL("\"\"", TEXT) "," RESULT "," ASSISTANT("Sun.") "]",
     "message 3: this chat template does not show what a message of role \"tool\" says",
     {0},
     0,
     0},
    {"an empty answer is an end token",
     plain,
     "[" USER("w?") "," ASSISTANT("") "]",
     "<user>w?<e><assistant>[<e>]",
     {0},
     0,
     0},
    {"weight and train",
     plain,
     "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0}," USER(
         "c") ",{\"role\":\"assistant\",\"content\":\"d\",\"train\":false}," USER("e") ",{\"role\":\"assistant\","
                                                                                       "\"content\":\"f\",\"weight\":1,"
                                                                                       "\"train\":true}]",
     "<user>a<e><assistant>b<e><user>c<e><assistant>d<e><user>e<e><assistant>[f<e>]",
     {0},
     0,
     0},
    {"half a weight",
     plain,
     "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"b\",\"weight\":0.5}]",
     "message 2: expected weight to be 0 (not trained) or 1",
     {0},
     0,
     0},
    {"train on what the user says",
     plain,
     "[{\"role\":\"user\",\"content\":\"a\",\"train\":true}," ASSISTANT("b") "]",
     "message 1: expected an assistant's message where train is true; all messages are trained by --loss all",
     {0},
     0,
     0},
    {"train_detail",
     plain,
     "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"b\",\"train_detail\":[]}]",
     "message 2: train_detail is not known; expected \"train\" or \"weight\" for the message as a whole",
     {0},
     0,
     0},
    {"developer is system",
     plain,
     "[{\"role\":\"developer\",\"content\":\"Be kind.\"}," USER("a") "," ASSISTANT("b") "]",
     "<system>Be kind.<e><user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"system goes in front of the user's words",
     no_system,
     "[{\"role\":\"system\",\"content\":\"Be kind.\"}," USER("a") "," ASSISTANT("b") "]",
     "<user>Be kind.\na<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"... and messages keep their numbers",
     no_system,
     "[{\"role\":\"system\",\"content\":\"Be kind.\"}," USER("a") "," CALL("\"\"", TEXT) "]",
     "message 3: this chat template does not show its call of \"get\"",
     {0},
     0,
     0},
    {"tools: none is a list",
     wants_tools,
     "[" USER("a") "," ASSISTANT("b") "]",
     "<user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"tools: an empty list is none",
     no_tools_is_null,
     "{\"tools\":[],\"messages\":[" USER("a") "," ASSISTANT("b") "]}",
     "<user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"tools as text, without wrappers",
     wants_tools,
     "{\"tools\":\"[{\\\"name\\\":\\\"get\\\"}]\",\"messages\":[" USER("a") "," ASSISTANT("b") "]}",
     "get<tools>[{\"type\": \"function\", \"function\": {\"name\": \"get\"}}]<e><user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"functions",
     wants_tools,
     "{\"functions\":[{\"name\":\"get\"}],\"messages\":[" USER("a") "," ASSISTANT("b") "]}",
     "get<tools>[{\"type\": \"function\", \"function\": {\"name\": \"get\"}}]<e><user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"reasoning by the template's name",
     thinking,
     "[" USER("a") "," REASONED("b", "reasoning_content", "why") "]",
     "<user>a<e><assistant>[<think>why</think>b<e>]",
     {0},
     0,
     0},
    {"a block by the template's name",
     thinking,
     "[" USER("a") "," ASSISTANT("<think>\\nwhy\\n</think>\\n\\nb") "]",
     "<user>a<e><assistant>[<think>why</think>b<e>]",
     {0},
     0,
     0},
    {"reasoning without a place",
     plain,
     "[" USER("a") "," REASONED("b", "reasoning", "why") "]",
     "<user>a<e><assistant>[b<e>]",
     {0},
     1,
     0},
    {"reasoning and nothing else, without a place",
     no_calls,
     "[" USER("a") "," REASONED("", "thinking", "why") "]",
     "message 2: its reasoning is left out, and it says nothing else",
     {0},
     0,
     0},
    {"... and dropped",
     thinking,
     "[" USER("a") "," ASSISTANT("<think>why</think>") "]",
     "message 2: its reasoning is left out, and it says nothing else",
     {.reasoning = FIRN_REASONING_DROP},
     0,
     0},
    {"a thought that the prompt opens and the rendering closes",
     shows_empty,
     "[" USER("a") "," REASONED("b", "reasoning_content", "why") "," USER("c") "," ASSISTANT("d") "]",
     "<user>a<e><assistant><think>[why</think>b<e>] / "
     "<user>a<e><assistant><think></think>b<e><user>c<e><assistant><think>["
     "</think>d<e>]",
     {0},
     0,
     0},
    {"... before a call",
     shows_empty,
     "[" USER(
         "a") ",{\"role\":\"assistant\",\"reasoning\":\"why\",\"tool_calls\":[{\"name\":\"get\",\"arguments\":{}}]}]",
     "<user>a<e><assistant><think>[why</think><call>get {}</call><e>]",
     {0},
     0,
     0},
    {"reasoning in a block, earlier dropped",
     blocks,
     "[" USER("a") "," REASONED("b", "reasoning_content", "why") "," USER("c") "," ASSISTANT("<think>x</think>d") "]",
     "<user>a<e><assistant>[<think>\nwhy\n</think>\n\nb<e>] / <user>a<e><assistant>b<e><user>c<e><assistant>["
     "<think>x</think>d<e>]",
     {0},
     0,
     0},
    {"a prompt that opens a thought",
     opens,
     "[" USER("a") "," REASONED("b", "reasoning_content", "why") "]",
     "<user>a<e><assistant><think>\n[why\n</think>\n\nb<e>]",
     {0},
     0,
     0},
    {"... which the answer does not have",
     opens,
     "[" USER("a") "," ASSISTANT("b") "]",
     "<user>a<e><assistant>[b<e>]",
     {0},
     0,
     1},
    {"... and closes it",
     opens,
     "{\"enable_thinking\":false,\"messages\":[" USER("a") "," ASSISTANT("b") "]}",
     "<user>a<e><assistant><think>\n</think>[b<e>]",
     {0},
     0,
     0},
    {"... for an answer with a thought",
     opens,
     "{\"enable_thinking\":false,\"messages\":[" USER("a") "," REASONED("b", "reasoning_content", "why") "]}",
     "<user>a<e><assistant><think>\n</think>[b<e>]",
     {0},
     1,
     0},
    {"... which data left open",
     opens,
     "[" USER("a") "," ASSISTANT("why</think>b") "]",
     "<user>a<e><assistant><think>\n[why</think>b<e>]",
     {0},
     0,
     0},
    {"--reasoning mask",
     thinking,
     "[" USER("a") "," REASONED("b", "thinking", "why") "]",
     "<user>a<e><assistant><think>why</think>[b<e>]",
     {.reasoning = FIRN_REASONING_MASK},
     0,
     0},
    {"--reasoning drop",
     thinking,
     "[" USER("a") "," REASONED("b", "thinking", "why") "," USER("c") "," ASSISTANT("<think>x</think>d") "]",
     "<user>a<e><assistant>[b<e>]<user>c<e><assistant>[d<e>]",
     {.reasoning = FIRN_REASONING_DROP},
     0,
     0},
    {"--loss last",
     plain,
     "[" USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("d") "," USER("e") "]",
     "<user>a<e><assistant>b<e><user>c<e><assistant>[d<e>]",
     {.loss = FIRN_LOSS_LAST},
     0,
     0},
    {"--loss all",
     plain,
     "[" USER("a") "," ASSISTANT("b") "," USER("c") "]",
     "[<user>a<e><assistant>b<e><user>c<e>]",
     {.loss = FIRN_LOSS_ALL},
     0,
     0},
    {"--loss all without some",
     thinking,
     "[{\"role\":\"user\",\"content\":\"a\",\"weight\":0}," REASONED("b", "thinking", "why") "]",
     "[<user>]a[<e><assistant><think>]why[</think>b<e>]",
     {.loss = FIRN_LOSS_ALL, .reasoning = FIRN_REASONING_MASK},
     0,
     0},
    {"marks without the end",
     marked,
     "[" USER("a") "," ASSISTANT("b") "," USER("c") "," ASSISTANT("d") "]",
     "<user>a<e><assistant>[b]<e><user>c<e><assistant>[d]<e>",
     {0},
     0,
     0},
    {"marks around the header and behind the end",
     marked_wide,
     "[" USER("a") "," ASSISTANT("b") "]",
     "<user>a<e><assistant>[b<e>]",
     {0},
     0,
     0},
    {"marks that leave a turn out",
     marked_never,
     "[" USER("a") "," ASSISTANT("b") "]",
     "message 2: the {% generation %} marks of this chat template leave it out",
     {0},
     0,
     0},
};

static void every_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const line *l = &lines[i];
        firn_template *t = compiled(ctx, l->template, strlen(l->template), ends, 1);
        firn_text out;
        firn_chat_counts counts;
        show(ctx, t, l->messages, &l->options, true, &out, &counts);
        if (strcmp(firn_text_cstr(&out), l->expected) != 0)
            fail_msg("%s:\n%s, expected\n%s", l->what, firn_text_cstr(&out), l->expected);
        if (counts.reasoning_left_out != l->left_out || counts.asked_otherwise != l->asked_otherwise)
            fail_msg("%s: %lld left out, %lld asked otherwise", l->what, (long long)counts.reasoning_left_out,
                     (long long)counts.asked_otherwise);
        firn_text_free(&out);
        firn_template_destroy(t);
    }
}

/* Asking goes through the same place. */
static void asking(void **state)
{
    static const char given[] = "{\"tools\":[],\"messages\":[" USER("w?") "," CALL("null", TEXT) "," RESULT "]}";
    json_t *v = json_loads(given, 0, NULL);
    firn_template *t = compiled(ctx, plain, strlen(plain), ends, 1);
    firn_text out;

    (void)state;
    firn_text_init(&out, ctx, 0);
    assert_int_equal(firn_chat_ask(t, v, NULL, true, &out), FIRN_OK);
    assert_string_equal(firn_text_cstr(&out),
                        "<user>w?<e><assistant><call>get {\"city\": \"Rome\"}</call><e><tool>sunny<e><assistant>");
    firn_text_free(&out);
    firn_template_destroy(t);
    json_decref(v);
}

/* What lies behind the window is not rendered: the number of turns looked at does not grow with the conversation. */
static firn_status full_at(void *user, const char *text, size_t size, bool *full)
{
    (void)text;
    ++*(int *)user;
    *full = size >= 100;
    return FIRN_OK;
}

static void long_conversations_end_with_the_window(void **state)
{
    firn_template *t = compiled(ctx, plain, strlen(plain), ends, 1);
    json_t *messages = json_array();
    int asked = 0;
    const firn_chat_options options = {.fills = full_at, .user = &asked};
    firn_renderings r;

    (void)state;
    for (int i = 0; i < 5000; i++) {
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "user", "content", "x"));
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "assistant", "content", "y"));
    }
    assert_int_equal(firn_chat_render(t, messages, &options, &r), FIRN_OK);
    assert_int_equal(r.n, 1);
    assert_int_equal(asked, (int)r.items[0].turns.n + 1);
    assert_in_range(asked, 2, 8);
    assert_int_equal(r.counts.beyond, 5000 - (int)r.items[0].turns.n);
    firn_renderings_free(&r);
    json_decref(messages);
    firn_template_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line),
        cmocka_unit_test(asking),
        cmocka_unit_test(long_conversations_end_with_the_window),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
