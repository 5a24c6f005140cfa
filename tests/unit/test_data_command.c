/* firn data show and check from the command line: JSON that programs read, formats of several files, what people see.
 */
#include "unit/command.h"
#include "unit/unit.h"

#include "firn/data.h"

#include <jansson.h>

#define FIRN FIRN_BIN_DIR "/firn"

static void sh(const char *command)
{
    if (system(command) != 0)
        fail_msg("%s failed", command);
}

static int firn_lines(const char *arguments, json_t **objects)
{
    char command[512], *line = NULL;
    size_t size = 0;
    int n = 0;

    snprintf(command, sizeof command, FIRN " %s 2>err", arguments);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    *objects = json_array();
    for (; getline(&line, &size, p) > 0; n++) {
        json_t *o = json_loads(line, 0, NULL);
        if (!json_is_object(o))
            fail_msg("no object: %s", line);
        json_array_append_new(*objects, o);
    }
    free(line);
    assert_int_equal(pclose(p), 0);
    return n;
}

static void show_prints_an_object_a_sample(void **state)
{
    static const char *const keys[] = {"file", "line", "format", "tokens", "trained", "text"};
    static const char *const formats[] = {"chat", "alpaca", "preference", "preference"};
    static const int lines[] = {1, 2, 1, 1};
    json_t *objects, *o;
    size_t i;

    (void)state;
    write_text("a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                          "\"content\": \"yes\"}]}\n{\"instruction\": \"i\", \"output\": \"o\"}\n");
    write_text("p.jsonl", "{\"prompt\": \"p\", \"chosen\": \" c\", \"rejected\": \" r\"}\n");
    assert_int_equal(firn_lines("data show m.gguf a.jsonl p.jsonl --json --samples 0", &objects), 4);
    json_array_foreach(objects, i, o)
    {
        assert_int_equal(json_object_size(o), 6);
        for (size_t k = 0; k < 6; k++)
            assert_non_null(json_object_get(o, keys[k]));
        assert_string_equal(json_string_value(json_object_get(o, "file")), i < 2 ? "a.jsonl" : "p.jsonl");
        assert_string_equal(json_string_value(json_object_get(o, "format")), formats[i]);
        assert_int_equal(json_integer_value(json_object_get(o, "line")), lines[i]);
        assert_int_equal(json_array_size(json_object_get(o, "tokens")), json_array_size(json_object_get(o, "trained")));
        assert_int_equal(json_integer_value(json_array_get(json_object_get(o, "trained"), 0)), 0);
    }
    assert_non_null(strstr(json_string_value(json_object_get(json_array_get(objects, 0), "text")), "yes<|im_end|>"));
    json_decref(objects);
}

static void check_tells_what_is_there(void **state)
{
    static const char *const keys[] = {"formats", "samples",    "tokens",  "trained_tokens", "cut",
                                       "dropped", "duplicates", "lengths", "steps_per_epoch"};
    json_t *objects;

    (void)state;
    sh("head -1 a.jsonl > twice.jsonl; for i in 1 2 3; do cat a.jsonl >> twice.jsonl; done");
    assert_int_equal(firn_lines("data check m.gguf twice.jsonl --context 16 --json", &objects), 1);
    const json_t *o = json_array_get(objects, 0);
    assert_int_equal(json_object_size(o), 9);
    for (size_t k = 0; k < 9; k++)
        assert_non_null(json_object_get(o, keys[k]));
    assert_int_equal(json_integer_value(json_object_get(o, "duplicates")), 5);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "formats"), "chat")), 4);
    json_decref(objects);
    sh(FIRN " data check m.gguf twice.jsonl > table && grep -q '^formats        chat 4, alpaca 3$' table && "
            "grep -q '^duplicates     5$' table && grep -q 'tokens  ####' table");
}

static void an_option_given_twice_is_refused(void **state)
{
    (void)state;
    sh("! " FIRN " data show m.gguf a.jsonl -n 3 --samples 4 2>err && grep -q 'samples is given twice' err");
    sh(FIRN " data show m.gguf a.jsonl --field messages=x --field role=y --skip-bad 9 --format chat >out 2>&1 || "
            "grep -q 'a.jsonl' out"); /* a list may be */
}

static void the_plan_says_what_is_odd(void **state)
{
    (void)state;
    write_text("odd.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n{\"prompt\": \"p\", "
                            "\"completion\": \" a long answer that does not fit\"}\n{\"text\": \"of words\"}\n");
    sh(FIRN " finetune --model m.gguf --data odd.jsonl --output r --dry-run --context 8 2>plan");
    sh("grep -q 'odd.jsonl:1 has no assistant message (roles: user)' plan");
    sh("grep -q 'are cut at 8 tokens; --context 64 keeps 95 % of them whole and takes' plan");
    sh("grep -q 'tokens  ####' plan");
}

/* The same through firn/data.h. */
static void data_sets_are_public(void **state)
{
    const char *const sources[] = {"a.jsonl:2"};
    firn_context *ctx = firn_context_create(NULL);
    firn_dataset_options o = {.size = sizeof o, .sources = sources, .n_sources = 1, .context = 64};
    firn_dataset_sample s = {.size = sizeof s};
    firn_gguf *file;
    firn_language *l;
    firn_dataset *d;
    int32_t tokens[64];
    uint8_t trained[64];
    int64_t n = 0;

    (void)state;
    assert_int_equal(firn_gguf_open(ctx, "m.gguf", &file), FIRN_OK);
    assert_int_equal(firn_language_create(ctx, file, NULL, &l), FIRN_OK);
    assert_int_equal(firn_dataset_open(l, &o, &d), FIRN_OK);
    assert_int_equal(firn_dataset_count(d), 2);
    assert_int_equal(firn_dataset_at(d, 1, &s), FIRN_OK);
    assert_string_equal(s.file, "a.jsonl");
    assert_string_equal(s.format, "alpaca");
    assert_true(s.line == 2 && s.weight == 2 && s.n <= 64);
    assert_int_equal(firn_dataset_tokens(d, 1, tokens, trained), FIRN_OK);
    for (int64_t i = 0; i < s.n; i++)
        n += trained[i];
    assert_int_equal(n, s.n_trained);
    assert_int_equal(firn_dataset_at(d, 2, &s), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_dataset_tokens(d, -1, NULL, NULL), FIRN_ERR_ARGUMENT);
    firn_dataset_close(d);
    o.format = "xml";
    assert_int_equal(firn_dataset_open(l, &o, &d), FIRN_ERR_ARGUMENT);
    assert_null(d);
    o.n_sources = 0;
    assert_int_equal(firn_dataset_open(l, &o, &d), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_dataset_open(NULL, &o, &d), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_dataset_at(NULL, 0, &s), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_dataset_tokens(NULL, 0, NULL, NULL), FIRN_ERR_ARGUMENT);
    assert_int_equal(firn_dataset_count(NULL), 0);
    firn_dataset_close(NULL);
    firn_language_destroy(l);
    firn_gguf_close(file);
    firn_context_destroy(ctx);
}

static int prepare(void **state)
{
    return make_folder(state) || chdir(folder) != 0 || system(FIRN " init --like tiny-llama m.gguf > /dev/null") != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(show_prints_an_object_a_sample),
        cmocka_unit_test(check_tells_what_is_there),
        cmocka_unit_test(an_option_given_twice_is_refused),
        cmocka_unit_test(the_plan_says_what_is_odd),
        cmocka_unit_test(data_sets_are_public),
    };
    return cmocka_run_group_tests(tests, prepare, remove_folder);
}
