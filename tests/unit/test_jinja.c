/* The Jinja engine: the features one by one (tests/data/jinja/features.json: ours, made by scripts/gen-jinja-cases.py
 * with jinja2), the templates of real models where ../shared lies beside the repository, limits, and failing
 * allocations. */
#include "unit/context.h"
#include "unit/unit.h"

#include "core/file.h"
#include "jinja/jinja.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct tm fixed_time = {
    .tm_year = 126, .tm_mon = 0, .tm_mday = 2, .tm_hour = 3, .tm_min = 4, .tm_sec = 5, .tm_wday = 5, .tm_yday = 1};

static firn_status render(const char *source, size_t size, const json_t *variables, const firn_jinja_limits *limits,
                          firn_text *out)
{
    firn_jinja *jinja;

    firn_text_init(out, ctx, 0);
    firn_status status = firn_jinja_compile(ctx, source, size, limits, &jinja);
    if (status == FIRN_OK)
        status = firn_jinja_render(ctx, jinja, variables, &(firn_jinja_options){.now = &fixed_time}, out, NULL);
    firn_jinja_destroy(jinja);
    return status;
}

/* One case: {name, template?, variables?, expected | error, error_kind}. Returns 1 when it does not hold. */
static int check(const char *file, const json_t *c, const char *source, size_t size, const json_t *variables)
{
    firn_text out;
    const json_t *expected = json_object_get(c, "expected");
    const char *name = json_string_value(json_object_get(c, "name"));
    const firn_status status = render(source, size, variables, NULL, &out);
    int bad = 0;

    if (expected) {
        bad = status != FIRN_OK || out.size != json_string_length(expected) ||
              memcmp(firn_text_cstr(&out), json_string_value(expected), out.size) != 0;
        if (bad)
            print_message("%s: %s:\n  expected: %s\n  got:      %s\n", file, name, json_string_value(expected),
                          status == FIRN_OK ? firn_text_cstr(&out) : firn_error(ctx));
    } else {
        const char *kind = json_string_value(json_object_get(c, "error_kind"));
        const char *error = json_string_value(json_object_get(c, "error"));
        bad = status == FIRN_OK || (strcmp(kind, "raised") == 0 && !strstr(firn_error(ctx), error));
        if (bad)
            print_message("%s: %s:\n  expected error: %s\n  got:            %s\n", file, name, error,
                          status == FIRN_OK ? firn_text_cstr(&out) : firn_error(ctx));
    }
    firn_text_free(&out);
    return bad;
}

static int check_all(const char *file, const char *template_file)
{
    json_error_t error;
    json_t *all = json_load_file(file, JSON_ALLOW_NUL, &error);
    const json_t *cases = json_is_object(all) ? json_object_get(all, "cases") : all;
    char *source = NULL;
    size_t size = 0;
    int n_bad = 0;

    assert_non_null(cases);
    assert_true(json_array_size(cases) > 0);
    if (template_file)
        assert_int_equal(firn_file_read(ctx, template_file, 0, &source, &size), FIRN_OK);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *own = json_object_get(c, "template");
        const json_t *variables = json_object_get(json_is_object(all) ? all : c, "variables");
        n_bad += check(file, c, own ? json_string_value(own) : source, own ? json_string_length(own) : size, variables);
    }
    const size_t n = json_array_size(cases);
    unit_record("template %s %zu %zu\n", strrchr(file, '/') + 1, n, n - (size_t)n_bad);
    firn_free(ctx, source);
    json_decref(all);
    return n_bad;
}

static void features(void **state)
{
    (void)state;
    assert_int_equal(check_all(FIRN_SOURCE_DIR "/tests/data/jinja/features.json", NULL), 0);
}

static void shared_features(void **state)
{
    const char *file = FIRN_SOURCE_DIR "/../shared/ref/chat/jinja_features.json";
    FILE *f = fopen(file, "rb");

    (void)state;
    if (!f)
        skip();
    fclose(f);
    assert_int_equal(check_all(file, NULL), 0);
}

static void shared_templates(void **state)
{
    static const char *const names[] = {
        "command-r7b", "deepseek-r1", "deepseek-v2",  "deepseek-v3.1", "gemma-2", "glm-4.6",
        "gpt-oss",     "granite-3.3", "granite-4.0",  "hermes-3",      "kimi-k2", "lfm2",
        "llama-3.3",   "minimax-m2",  "mistral-nemo", "mixtral-8x7b",  "phi-3.5", "qwen2.5",
        "qwen3-coder", "qwen3.5",     "qwen3",        "qwq",
    };
    int n = 0, n_bad = 0;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char cases[512], template[512];
        snprintf(cases, sizeof cases, FIRN_SOURCE_DIR "/../shared/ref/chat/%s.cases.json", names[i]);
        snprintf(template, sizeof template, FIRN_SOURCE_DIR "/../shared/ref/chat/%s.jinja", names[i]);
        FILE *f = fopen(cases, "rb");
        if (!f)
            continue;
        fclose(f);
        n++;
        n_bad += check_all(cases, template);
    }
    if (!n)
        skip();
    assert_int_equal(n, sizeof names / sizeof *names);
    assert_int_equal(n_bad, 0);
}

/* What a stranger's template may try: each must end in one sentence, quickly. */
static void hostile_templates_end(void **state)
{
    static const struct {
        const char *source, *says;
    } cases[] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "levels deep"},
        {"{% macro f(x) %}{% for i in [1] %}{{ f(x ~ 'a') }}{% endfor %}{% endmacro %}{{ f('') }}", "levels deep"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "levels deep"},
        {"{{ 'a' * 10 ** 12 }}", "passes the limit"},
        {"{{ [0] * 10 ** 12 }}", "passes the limit"},
        {"{{ range(10 ** 12) | list }}", "range too big"},
        {"{{ 'a' | center(10 ** 12) }}", "passes the limit"},
        {"{{ '%999999999999d' % 1 }}", "passes the limit"},
        {"{{ '%.999999999f' % 1 }}", "precision"},
        {"{{ '{:>99999999999}'.format(1) }}", "passes the limit"},
        {"{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
         "limit"},
        {"{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"
         "{{ ns.s | tojson }}",
         "steps"},
        {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"},
        {"{% for i in range(100000) %}{% for j in range(100) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
         "{% endfor %}{% endfor %}",
         "grows past"},
        {"{{ 9223372036854775807 + 1 }}", "64 bits"},
        {"{{ 2 ** 64 }}", "64 bits"},
        {"{{ -9223372036854775807 - 1 - 1 }}", "64 bits"},
        {"{{ 99999999999999999999 }}", "64 bits"},
        {"{{ 'x'.foo.bar }}", "has no attribute 'foo'"},
        {"{{ '\\ud800' }}", "names no character"},
        {"\xff", "not UTF-8"},
        {"{{ (((", "expected"},
        {"{{ 'abc", "not closed"},
        {"{# abc", "not closed"},
        {"{% raw %}abc", "not closed"},
        {"{% for x in [1] %}", "not closed"},
        {"{% endfor %}", "unexpected tag"},
        {"{% break %}", "outside of a loop"},
        {"{% set a.b.c = 1 %}", "expected"},
        {"{% set 1 = 1 %}", "cannot assign"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_text out;
        json_t *variables = json_object();
        const firn_status status = render(cases[i].source, strlen(cases[i].source), variables, NULL, &out);
        if (status == FIRN_OK || !strstr(firn_error(ctx), cases[i].says))
            fail_msg("%s: %s", cases[i].source, status == FIRN_OK ? firn_text_cstr(&out) : firn_error(ctx));
        firn_text_free(&out);
        json_decref(variables);
    }
}

/* n times `open`, a middle, n times `close`. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    const size_t a = strlen(open), b = strlen(middle), c = strlen(close);
    char *s = malloc(n * (a + c) + b + 1), *p = s;

    assert_non_null(s);
    for (size_t i = 0; i < n; i++, p += a)
        memcpy(p, open, a);
    memcpy(p, middle, b);
    p += b;
    for (size_t i = 0; i < n; i++, p += c)
        memcpy(p, close, c);
    *p = 0;
    return s;
}

static void deep_nesting_ends(void **state)
{
    static const char *const cases[][3] = {
        {"{% if 1 %}", "x", "{% endif %}"},
        {"{% for i in [1] %}", "x", "{% endfor %}"},
        {"{% macro m() %}", "x", "{% endmacro %}"},
        {"{% if 0 %}{% else %}", "x", "{% endif %}"},
    };
    static const char *const expressions[][3] = {
        {"(", "1", ")"},   {"[", "1", "]"},    {"{1:", "1", "}"},         {"-", "1", ""},
        {"not ", "1", ""}, {"1 + ", "1", ""},  {"1 if 1 else ", "1", ""}, {"x[", "1", "]"},
        {"f(", "1", ")"},  {"1 ** ", "1", ""}, {"1 and ", "1", ""},       {"1 is sameas(", "1", ")"},
        {"", "x", ".a"},   {"", "x", "|list"}, {"", "x", "()"},           {"", "x", "[0]"},
        {"1 ~ ", "1", ""}, {"1 < ", "2", ""},
    };
    json_t *variables = json_object();

    (void)state;
    for (size_t n = 10; n <= 100000; n *= 100) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            char *source = nested(cases[i][0], cases[i][1], cases[i][2], n);
            firn_text out;
            const firn_status status = render(source, strlen(source), variables, NULL, &out);
            assert_true(n == 10 ? status == FIRN_OK : status == FIRN_ERR_MEMORY);
            firn_text_free(&out);
            free(source);
        }
        for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
            char *inner = nested(expressions[i][0], expressions[i][1], expressions[i][2], n);
            char *source = nested("{{ ", inner, " }}", 1);
            firn_text out;
            render(source, strlen(source), variables, NULL, &out); /* whatever it says, it comes back */
            firn_text_free(&out);
            free(source);
            free(inner);
        }
    }
    json_decref(variables);
}

static void limits_can_be_set(void **state)
{
    static const struct {
        firn_jinja_limits limits;
        const char *source;
    } cases[] = {
        {{.steps = 1000}, "{% for i in range(1000) %}{% endfor %}"},
        {{.depth = 10}, "{{ ((((((((((1)))))))))) }}"},
        {{.output = 10}, "{% for i in range(11) %}x{% endfor %}"},
        {{.memory = 200000}, "{{ range(50000) | list | length }}"},
    };
    json_t *variables = json_object();

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        firn_text out;
        const size_t size = strlen(cases[i].source);
        assert_int_equal(render(cases[i].source, size, variables, &cases[i].limits, &out), FIRN_ERR_MEMORY);
        firn_text_free(&out);
        assert_int_equal(render(cases[i].source, size, variables, NULL, &out), FIRN_OK);
        firn_text_free(&out);
    }
    json_decref(variables);
}

static void generation_blocks_give_spans(void **state)
{
    const char *source = "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
                         "{{ m.content }}!{% endgeneration %}{% else %}{{ m.content }}{% endif %};{% endfor %}";
    const char *inside = "{% macro m() %}{% generation %}x{% endgeneration %}{% endmacro %}{{ m() }}";
    json_t *variables = json_pack("{s:[{s:s,s:s},{s:s,s:s},{s:s,s:s}]}", "messages", "role", "user", "content", "a",
                                  "role", "assistant", "content", "bc", "role", "assistant", "content", "");
    firn_jinja *jinja;
    firn_text out;
    firn_spans spans;

    (void)state;
    firn_text_init(&out, ctx, 0);
    firn_text_puts(&out, "...");
    firn_spans_init(&spans, ctx);
    assert_int_equal(firn_jinja_compile(ctx, source, strlen(source), NULL, &jinja), FIRN_OK);
    assert_true(firn_jinja_has_generation(jinja));
    assert_int_equal(firn_jinja_render(ctx, jinja, variables, NULL, &out, &spans), FIRN_OK);
    assert_string_equal(firn_text_cstr(&out), "...<user>a;<assistant>bc!;<assistant>!;");
    assert_int_equal(spans.n, 2);
    assert_int_equal(spans.items[0].begin, 22);
    assert_int_equal(spans.items[0].end, 25);
    assert_int_equal(spans.items[1].begin, 37);
    assert_int_equal(spans.items[1].end, 38);
    firn_jinja_destroy(jinja);

    assert_int_equal(firn_jinja_compile(ctx, inside, strlen(inside), NULL, &jinja), FIRN_OK);
    assert_int_equal(firn_jinja_render(ctx, jinja, variables, NULL, &out, &spans), FIRN_ERR_UNSUPPORTED);
    assert_int_equal(firn_jinja_render(ctx, jinja, variables, NULL, &out, NULL), FIRN_OK);
    firn_jinja_destroy(jinja);
    firn_spans_free(&spans);
    firn_text_free(&out);
    json_decref(variables);
}

/* ---- allocation failures ---- */

static long allocations_left;

static void *failing_alloc(void *user, size_t size)
{
    (void)user;
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

static void *failing_realloc(void *user, void *old, size_t size)
{
    (void)user;
    return allocations_left-- > 0 ? realloc(old, size) : NULL;
}

static void plain_free(void *user, void *memory)
{
    (void)user;
    free(memory);
}

static void failed_allocations_are_reported(void **state)
{
    const char *source = "{% macro m(a) %}{{ a | upper }}{% endmacro %}{% set x %}{{ m('\\u00e9') }}{% endset %}"
                         "{% for i in [1, 2] %}{{ [x, {'a': i}] | tojson(indent=2) }}{% endfor %}{{ 'a' ~ x }}";
    json_t *variables = json_pack("{s:s}", "v", "w");
    firn_context *const before = ctx;
    firn_status status = FIRN_ERR_MEMORY;

    (void)state;
    for (long n = 2; status != FIRN_OK; n++) {
        allocations_left = 1000;
        ctx = firn_context_create(
            &(firn_context_params){.allocator = {failing_alloc, failing_realloc, plain_free, NULL}});
        assert_non_null(ctx);
        firn_text out;
        allocations_left = n;
        status = render(source, strlen(source), variables, NULL, &out);
        assert_true(status == FIRN_OK || status == FIRN_ERR_MEMORY);
        assert_true(n < 1000);
        firn_text_free(&out);
        firn_context_destroy(ctx);
    }
    ctx = before;
    json_decref(variables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features),
        cmocka_unit_test(shared_features),
        cmocka_unit_test(shared_templates),
        cmocka_unit_test(hostile_templates_end),
        cmocka_unit_test(deep_nesting_ends),
        cmocka_unit_test(limits_can_be_set),
        cmocka_unit_test(generation_blocks_give_spans),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
