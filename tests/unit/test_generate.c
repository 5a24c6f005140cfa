/* firn generate, run as a user runs it: prompts from a file, conversations with history, sampling, what stops it. */
#include "unit/command.h"

#include "core/context.h"
#include "firn/gguf.h"
#include "model/random_model.h"

#include <jansson.h>
#include <math.h>

static int make_models(void **state)
{
    return make_folder(state) || firn("init --like tiny-qwen3moe --seed 5 m.gguf") ||
           firn("init --like tiny-qwen2 --seed 5 q.gguf");
}

/* The object on line i of out. */
static json_t *object(int i)
{
    const char *s = out;
    for (; i > 0 && s; i--)
        s = strchr(s, '\n') ? strchr(s, '\n') + 1 : NULL;
    assert_non_null(s);
    json_t *j = json_loadb(s, strcspn(s, "\n"), 0, NULL);
    assert_non_null(j);
    return j;
}

static const char *const prompts[] = {"the people of the water", "snow and ice", "{ took their time"};

static void prompts_from_a_file_are_as_each_alone(void **state)
{
    (void)state;
    json_t *alone[3];
    static char expected[4 * sizeof out];
    char args[256];

    for (int i = 0; i < 3; i++) {
        snprintf(args, sizeof args, "generate m.gguf -p '%s' -n 20 --temp 0.9 --seed 4", prompts[i]);
        assert_int_equal(firn(args), 0);
        strcat(strcat(strcat(expected, "> "), prompts[i]), "\n");
        strcat(expected, out);
        strcat(args, " --json");
        assert_int_equal(firn(args), 0);
        alone[i] = object(0);
        assert_int_equal(json_array_size(json_object_get(alone[i], "tokens")), 20);
        assert_string_equal(json_string_value(json_object_get(alone[i], "stopped")), "limit");
    }
    snprintf(args, sizeof args, "%s\n\n%s\r\n%s", prompts[0], prompts[1], prompts[2]);
    write_text("p.txt", args);
    assert_int_equal(firn("generate m.gguf --prompts p.txt -n 20 --temp 0.9 --seed 4"), 0);
    assert_string_equal(out, expected);
    assert_string_equal(err, "");
    assert_int_equal(firn("generate m.gguf --prompts p.txt -n 20 --temp 0.9 --seed 4 --json --stats"), 0);
    for (const char *s = err; *s; s += strcspn(s, "\n") + 1) {
        long long n, m, n_ctx;
        double in, said, megabytes;
        assert_int_equal(sscanf(s,
                                "prompt %lld tokens, %lf tokens/s; said %lld, %lf tokens/s; cache for %lld, %lf MB\n",
                                &n, &in, &m, &said, &n_ctx, &megabytes),
                         6);
        assert_true(n > 0 && m == 20 && in > 0 && said > 0 && n_ctx == n + m);
        assert_true(fabs(megabytes - (double)n_ctx * 2 * 2 * 128 * 4 / 1e6) < 0.051); /* blocks, k and v, values */
    }
    for (int i = 0; i < 3; i++) {
        json_t *j = object(i);
        assert_true(json_equal(j, alone[i]));
        json_decref(j);
    }
    write_text("p.jsonl", "{\"prompt\": \"snow and ice\"}\n"
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"snow and ice\"}]}\n");
    assert_int_equal(firn("generate m.gguf --prompts p.jsonl -n 20 --temp 0.9 --seed 4 --json"), 0);
    json_t *plain = object(0), *turn = object(1);
    assert_true(json_equal(plain, alone[1]));
    assert_int_equal(firn("generate m.gguf --chat -p 'snow and ice' -n 20 --temp 0.9 --seed 4 --json"), 0);
    json_t *chat = object(0);
    assert_true(json_equal(turn, chat));
    assert_false(json_equal(turn, plain));
    json_decref(plain);
    json_decref(turn);
    json_decref(chat);
    for (int i = 0; i < 3; i++)
        json_decref(alone[i]);
}

static char *said(const char *options)
{
    char args[256];
    snprintf(args, sizeof args, "generate m.gguf -p 'the people of the water' -n 24 %s", options);
    assert_int_equal(firn(args), 0);
    return strdup(out);
}

static void sampling_does_what_its_options_say(void **state)
{
    (void)state;
    static const char *const greedy_too[] = {"--temp 2 --top-k 1", "--temp 2 --top-p 0.0001", "--temp 2 --min-p 1",
                                             "--threads 2"};
    char *greedy = said("");
    for (size_t i = 0; i < sizeof greedy_too / sizeof *greedy_too; i++) {
        char *s = said(greedy_too[i]);
        assert_string_equal(s, greedy);
        free(s);
    }
    char *a = said("--temp 1.2 --seed 1"), *b = said("--temp 1.2 --seed 1"), *c = said("--temp 1.2 --seed 2");
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    assert_string_not_equal(a, greedy);
    free(a);
    free(b);
    free(c);
    /* A penalty that large never lets one of the last 64 tokens come again. */
    char *p = said("--repeat-penalty 100 --json");
    json_t *j = object(0), *tokens = json_object_get(j, "tokens");
    for (size_t i = 0; i < json_array_size(tokens); i++)
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(json_integer_value(json_array_get(tokens, i)),
                                 json_integer_value(json_array_get(tokens, k)));
    json_decref(j);
    free(p);
    free(greedy);
}

/* A model with another chat template, or with an output bias [n]; NULL: as it is. */
static void rewrite(const char *from, const char *to, const char *template, const float *bias, int64_t n)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_gguf *in;
    firn_gguf_writer *w;

    assert_int_equal(firn_gguf_open(ctx, path_of(from), &in), FIRN_OK);
    assert_int_equal(firn_gguf_writer_create(ctx, &w), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_kv(in); i++) {
        const firn_kv *kv = firn_gguf_kv_at(in, i);
        if (template && strcmp(kv->key, "tokenizer.chat_template") == 0)
            assert_int_equal(firn_gguf_put_string(w, kv->key, template, strlen(template)), FIRN_OK);
        else
            assert_int_equal(firn_gguf_put_kv(w, kv), FIRN_OK);
    }
    for (size_t i = 0; i < firn_gguf_n_tensors(in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(in, i);
        assert_int_equal(firn_gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne), FIRN_OK);
    }
    if (bias)
        assert_int_equal(firn_gguf_add_tensor(w, "output.bias", FIRN_F32, 1, &n), FIRN_OK);
    assert_int_equal(firn_gguf_writer_begin(w, path_of(to)), FIRN_OK);
    for (size_t i = 0; i < firn_gguf_n_tensors(in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(in, i);
        assert_int_equal(firn_gguf_writer_data(w, t->data, t->size), FIRN_OK);
    }
    if (bias)
        assert_int_equal(firn_gguf_writer_data(w, bias, (size_t)n * sizeof *bias), FIRN_OK);
    assert_int_equal(firn_gguf_writer_finish(w), FIRN_OK);
    firn_gguf_writer_destroy(w);
    firn_gguf_close(in);
    firn_context_destroy(ctx);
}

/* q.gguf with an output bias that makes one token certain. */
static void favour(int32_t token)
{
    enum { V = 512 };
    static float bias[V];

    for (int i = 0; i < V; i++)
        bias[i] = i == token ? 1e4f : 0;
    rewrite("q.gguf", "biased.gguf", NULL, bias, V);
}

static void expect_stop(const char *options, const char *why, size_t n)
{
    char args[256];
    snprintf(args, sizeof args, "generate biased.gguf -p 'the people' --json %s", options);
    assert_int_equal(firn(args), 0);
    json_t *j = object(0);
    assert_string_equal(json_string_value(json_object_get(j, "stopped")), why);
    assert_int_equal(json_array_size(json_object_get(j, "tokens")), n);
    json_decref(j);
}

static void the_end_tokens_end_it(void **state)
{
    (void)state;
    /* The last three tokens are <|endoftext|>, <|im_start|>, <|im_end|>: the first and the last end. */
    favour(509);
    expect_stop("", "end", 0);
    favour(511);
    expect_stop("", "end", 0);
    assert_int_equal(firn("generate biased.gguf -p 'the people'"), 0);
    assert_string_equal(out, "\n");
    favour(510);
    expect_stop("-n 7", "limit", 7);
    favour(65);
    assert_int_equal(firn("generate biased.gguf -p 'the people' -n 3"), 0);
    assert_string_equal(out, "AAA\n");
}

static void a_full_context_stops(void **state)
{
    (void)state;
    favour(65);
    char args[4096] = "generate biased.gguf --json -n 100 -p '";
    for (int i = 0; i < 500; i++)
        strcat(args, "B");
    strcat(args, "'");
    assert_int_equal(firn(args), 0);
    json_t *j = object(0);
    const size_t n = json_array_size(json_object_get(j, "prompt_tokens"));
    assert_string_equal(json_string_value(json_object_get(j, "stopped")), "context");
    assert_int_equal(n + json_array_size(json_object_get(j, "tokens")), 512 + 1);
    json_decref(j);
    args[strlen(args) - 1] = 0;
    for (int i = 0; i < 100; i++)
        strcat(args, "B");
    strcat(args, "'");
    assert_int_equal(firn(args), 1);
    assert_non_null(strstr(err, "tokens of prompt are too many: the model knows contexts of 512"));
}

static void a_conversation_goes_on_where_it_was(void **state)
{
    (void)state;
    char whole[2][4096], first[2048];

    write_text("in", "the people\nand ice\nof the water\n");
    assert_int_equal(firn("generate m.gguf --chat -n 6 --system 'be short' --history whole.json"), 0);
    strcpy(whole[0], out);
    slurp("whole.json", whole[1], sizeof whole[1]);
    write_text("in", "the people\nand ice\n");
    assert_int_equal(firn("generate m.gguf --chat -n 6 --system 'be short' --history parts.json"), 0);
    strcpy(first, out);
    write_text("in", "of the water\n");
    assert_int_equal(firn("generate m.gguf --chat -n 6 --history parts.json"), 0);
    strcat(first, out);
    assert_string_equal(first, whole[0]);
    slurp("parts.json", first, sizeof first);
    assert_string_equal(first, whole[1]);
    json_t *j = json_loads(first, 0, NULL);
    assert_int_equal(json_array_size(j), 7);
    assert_string_equal(json_string_value(json_object_get(json_array_get(j, 0), "role")), "system");
    json_decref(j);
    write_text("parts.json", "[{\"role\": \"user\", \"content\": \"a\"}, null]");
    assert_int_equal(firn("generate m.gguf --chat --history parts.json"), 1);
    assert_non_null(strstr(err, "parts.json holds no conversation"));
    write_text("parts.json", "{}");
    assert_int_equal(firn("generate m.gguf --chat --history parts.json"), 1);
    assert_string_equal(err, "firn: parts.json holds no conversation: expected a list of messages, as --history writes "
                             "it\n");
    write_text("in", "");
}

static void bytes_that_are_no_text(void **state)
{
    (void)state;
    static const char two_lines[] = "snow\0ice\nthe people\n", first[] = "> snow?ice\n";
    FILE *f = fopen(path_of("nul.txt"), "wb");
    assert_non_null(f);
    fwrite(two_lines, 1, sizeof two_lines - 1, f);
    fclose(f);
    assert_int_equal(firn("generate m.gguf --prompts nul.txt -n 1"), 0);
    assert_memory_equal(out, first, sizeof first - 1);

    /* One token says a byte that is no character: in JSON it is U+FFFD, not nothing at all. */
    remove(path_of("bytes.json"));
    write_text("in", "hi\n");
    assert_int_equal(firn("generate m.gguf --chat -n 3 --json --history bytes.json"), 0);
    json_t *j = object(0), *history = json_load_file(path_of("bytes.json"), 0, NULL);
    const char *text = json_string_value(json_object_get(j, "text"));
    assert_non_null(strstr(text, "\xef\xbf\xbd"));
    assert_string_equal(json_string_value(json_object_get(json_array_get(history, 1), "content")), text);
    json_decref(j);
    json_decref(history);
    write_text("in", "");
}

/* Blocks with a window have let go of what a template's new beginning goes back to: it is fed again. */
static void a_conversation_may_leave_a_window(void **state)
{
    (void)state;
    static const char *const says[] = {"the people", "and ice", "of the water"};
    firn_context *ctx = firn_context_create(NULL);
    firn_random_shape shape = *firn_random_shape_find("tiny-gpt-oss");
    char args[4096] = "generate window.gguf --chat --json -n 40 --system '";
    json_t *alone[3];

    shape.n_ctx = 2048;
    assert_int_equal(firn_random_model_write(ctx, &shape, 0, FIRN_F32, 5, path_of("w.gguf"), NULL), FIRN_OK);
    firn_context_destroy(ctx);
    rewrite("w.gguf", "window.gguf",
            "{{ messages[0].content }}{{ messages[-1].content }}{{ messages[0].content }}{{ messages[-1].content }}",
            NULL, 0);
    for (int i = 0; i < 70; i++)
        sprintf(args + strlen(args), "snow %d ", i);
    strcat(args, "' --history parts.json");
    remove(path_of("parts.json"));
    for (int i = 0; i < 3; i++) {
        write_text("in", says[i]);
        assert_int_equal(firn(args), 0);
        alone[i] = object(0);
        assert_in_range(json_array_size(json_object_get(alone[i], "prompt_tokens")), 900, 1100);
        assert_int_equal(json_array_size(json_object_get(alone[i], "tokens")), 40);
    }
    write_text("in", "the people\nand ice\nof the water\n");
    strcpy(strstr(args, " --history"), "");
    assert_int_equal(firn(args), 0);
    for (int i = 0; i < 3; i++) {
        json_t *j = object(i);
        assert_true(json_equal(j, alone[i]));
        json_decref(j);
        json_decref(alone[i]);
    }
    write_text("in", "");
}

/* A line of a data set asks with all that it holds, as it is trained. */
static void lines_ask_as_they_are_trained(void **state)
{
    static const char template[] = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}"
                                   "{{ m.content }}{% endfor %}";
    size_t n[4];

    (void)state;
    rewrite("m.gguf", "tools.gguf", template, NULL, 0);
    write_text(
        "tools.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"snow\"}]}], "
        "\"tools\": [{\"name\": \"the people of the water\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"snow\"}], \"tools\": null}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"snow\"}, {\"role\": \"assistant\", \"content\": "
        "\"ice\"}]}\n"
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"snow\"}, {\"from\": \"gpt\", \"value\": \"ice\"}]}\n");
    assert_int_equal(firn("generate tools.gguf --prompts tools.jsonl -n 1 --json"), 0);
    for (int i = 0; i < 4; i++) {
        json_t *j = object(i);
        n[i] = json_array_size(json_object_get(j, "prompt_tokens"));
        json_decref(j);
    }
    assert_int_equal(n[2], n[1]); /* what comes before the answer */
    assert_int_equal(n[3], n[1]);
    assert_in_range(n[1], 1, n[0] - 1);
    assert_in_range(n[0], 3, 30);
}

static void it_refuses_in_words(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {"generate m.gguf", 2,
         "firn: there is nothing to continue: give -p PROMPT, --prompts FILE or --chat (firn generate --help)\n"},
        {"generate m.gguf -p a --prompts b", 2, "firn: give either --prompt or --prompts (firn generate --help)\n"},
        {"generate m.gguf -p a --system b", 2, "firn: --system needs --chat (firn generate --help)\n"},
        {"generate m.gguf --chat -p a --history b", 2,
         "firn: --history is for a conversation: --chat without prompts (firn generate --help)\n"},
        {"generate m.gguf --prompts none", 1, "firn: cannot open none: No such file or directory\n"},
        {"generate m.gguf --prompts bad.jsonl", 1,
         "firn: bad.jsonl:2:1: expected a JSON object { ... } with messages, prompt and completion, or text\n"},
        {"generate m.gguf --prompts none.jsonl", 1,
         "firn: none.jsonl:1: expected an object with a text \"prompt\", or with \"messages\"\n"},
        {"generate m.gguf --prompts broken.jsonl", 1,
         "firn: broken.jsonl:1:14: expected one JSON object: '}' expected near end of file\n"},
        {"generate m.gguf --chat -p a --system '\xff'", 2,
         "firn: --system is not valid UTF-8 (firn generate --help)\n"},
        {"generate m.gguf -p ''", 1, "firn: the prompt is empty, and this vocabulary puts nothing in front of it\n"},
    };
    write_text("broken.jsonl", "{\"prompt\": \"a\"\n");
    write_text("none.jsonl", "{\"text\": \"a\"}\n");
    write_text("bad.jsonl", "{\"prompt\": \"a\"}\n[]\n");
    check_refusals(cases, sizeof cases / sizeof *cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_from_a_file_are_as_each_alone),
        cmocka_unit_test(lines_ask_as_they_are_trained),
        cmocka_unit_test(sampling_does_what_its_options_say),
        cmocka_unit_test(the_end_tokens_end_it),
        cmocka_unit_test(a_full_context_stops),
        cmocka_unit_test(a_conversation_goes_on_where_it_was),
        cmocka_unit_test(bytes_that_are_no_text),
        cmocka_unit_test(a_conversation_may_leave_a_window),
        cmocka_unit_test(it_refuses_in_words),
    };
    return cmocka_run_group_tests(tests, make_models, remove_folder);
}
