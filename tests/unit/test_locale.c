/* The library in a program that has set its user's locale, where the point of a number is a comma: what it writes and
 * reads is the same as in one that has not. */
#include "unit/command.h"

#include "core/buffer.h"
#include "core/plain.h"
#include "firn/train.h"
#include "jinja/jinja.h"

#include <ctype.h>
#include <jansson.h>
#include <locale.h>

/* The locale of this machine, or made of its sources, in which numbers have commas. */
static bool set_comma(void)
{
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "ru_RU.UTF-8", "pt_BR.UTF-8", "es_ES.UTF-8"};
    char command[256];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (setlocale(LC_ALL, names[i]))
            return true;
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
    if (system(command) != 0)
        return false;
    setenv("LOCPATH", folder, 1);
    return setlocale(LC_ALL, "de_DE.UTF-8");
}

static bool has_comma; /* the program's locale, where the tests have set it */

static void need_comma(void)
{
    if (!has_comma) {
        print_message("no locale with commas here, and none can be made\n");
        skip();
    }
    assert_string_equal(localeconv()->decimal_point, ",");
}

static int setup(void **state)
{
    if (make_folder(state) != 0 || chdir(folder) != 0 || firn("init --like tiny --seed 1 m.gguf") != 0)
        return -1;
    FILE *f = fopen(path_of("d.jsonl"), "w");
    for (int i = 0; f && i < 30; i++)
        fprintf(f, "{\"prompt\": \"one %d\", \"completion\": \" two %d\"}\n", i % 7, i % 5);
    if (!f || fclose(f) != 0)
        return -1;
    has_comma = set_comma();
    return 0;
}

static void numbers_have_points(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_text text;
    char printed[32], *end;
    uint64_t bytes;

    (void)state;
    need_comma();
    snprintf(printed, sizeof printed, "%g", 1.5);
    assert_string_equal(printed, "1,5"); /* the program's own is left alone */
    firn_text_init(&text, ctx, 0);
    firn_text_printf(&text, "%g %s %.2f", 1.5, "a", 2.25);
    assert_string_equal(firn_text_cstr(&text), "1.5 a 2.25");
    firn_text_free(&text);
    firn_snprintf(printed, sizeof printed, "%.3f", -0.5);
    assert_string_equal(printed, "-0.500");
    assert_true(firn_strtod("2.5x", &end) == 2.5 && *end == 'x');
    assert_int_equal(firn_parse_bytes(ctx, "1.5K", &bytes), FIRN_OK);
    assert_int_equal(bytes, 1536);
    firn_fail(ctx, FIRN_ERR_FORMAT, "%g", 0.25);
    assert_string_equal(firn_error(ctx), "0.25");
    firn_context_destroy(ctx);
}

static void templates_have_points(void **state)
{
    static const char source[] = "{{ 1.5 }} {{ '2.5' | float + 1 }} {{ '%.2f' | format(1.5) }} {{ 3.25 | round(1) }} "
                                 "{{ '{:.1f}'.format(2.5) }} {{ 1500000 | filesizeformat }} {{ {'a': 0.1} | tojson }}";
    firn_context *ctx = firn_context_create(NULL);
    json_t *variables = json_object();
    firn_jinja *jinja;
    firn_text said;

    (void)state;
    need_comma();
    assert_int_equal(firn_jinja_compile(ctx, source, sizeof source - 1, NULL, &jinja), FIRN_OK);
    firn_text_init(&said, ctx, 0);
    assert_int_equal(firn_jinja_render(ctx, jinja, variables, NULL, &said, NULL), FIRN_OK);
    assert_string_equal(firn_text_cstr(&said), "1.5 3.5 1.50 3.2 2.5 1.5 MB {\"a\": 0.1}");
    firn_text_free(&said);
    firn_jinja_destroy(jinja);
    json_decref(variables);
    firn_context_destroy(ctx);
}

static void train(const char *output, int64_t steps, const char *resume)
{
    static const char *const data[] = {"d.jsonl:0.5"};
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_train_result result = {.size = sizeof result};
    firn_train_options o;

    firn_train_options_init(&o);
    o.steps = steps;
    if (!resume) {
        o.model = "m.gguf";
        o.data = (firn_strings){data, 1};
        o.output = output;
        o.context = 64;
        o.rank = 2;
        o.learning_rate = 1.5e-3;
        o.eval_split = 0.25;
        o.schedule = "constant";
        o.warmup = 0;
        o.save_every = 2;
        o.eval_every = 2;
    }
    const firn_status s =
        resume ? firn_train_resume(ctx, resume, &o, 0, NULL, &result) : firn_train(ctx, &o, 0, NULL, &result);
    if (s != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    firn_context_destroy(ctx);
}

/* No number of a file has a comma: none between two digits. */
static void expect_points(const char *name)
{
    static char text[1 << 18];

    slurp(name, text, sizeof text);
    for (const char *c = strchr(text, ','); c; c = strchr(c + 1, ','))
        if (c > text && isdigit((unsigned char)c[-1]) && isdigit((unsigned char)c[1]))
            fail_msg("%s: ...%.40s", name, c - (c - text < 20 ? c - text : 20));
}

static void a_run_is_the_same(void **state)
{
    (void)state;
    need_comma();
    assert_int_equal(firn("finetune --model m.gguf --data d.jsonl:0.5 --output plain --steps 4 --context 64 --rank 2 "
                          "--learning-rate 1.5e-3 --eval-split 0.25 --schedule constant --warmup 0 --save-every 2 "
                          "--eval-every 2 --threads 1"),
                     0);
    train("comma", 4, NULL);
    assert_int_equal(system("cmp plain/adapter.gguf comma/adapter.gguf"), 0);
    expect_points("comma/run.json");
    expect_points("comma/metrics.jsonl");
    /* each goes on with what the other one began */
    train(NULL, 6, "plain");
    assert_int_equal(firn("finetune --resume comma --steps 6 --threads 1"), 0);
    assert_int_equal(system("cmp plain/adapter.gguf comma/adapter.gguf"), 0);
    expect_points("plain/metrics.jsonl");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_have_points),
        cmocka_unit_test(templates_have_points),
        cmocka_unit_test(a_run_is_the_same),
    };
    return cmocka_run_group_tests(tests, setup, remove_folder);
}
