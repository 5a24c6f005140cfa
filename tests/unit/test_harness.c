/* What test-backend-ops prints and how it ends, run as a user runs it; and that it knows every operation. */
#include "unit/unit.h"

#include "op/op.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static char out[1 << 20], err[1 << 14];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/firn-harness-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void slurp(const char *name, char *to, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    const size_t n = fread(to, 1, size - 1, f);
    to[n] = 0;
    fclose(f);
    assert_true(n < size - 1);
}

/* The exit status of "test-backend-ops ARGS"; what it says is in out and err. */
static int harness(const char *args)
{
    char command[1024];
    snprintf(command, sizeof command, "%s/test-backend-ops %s >%s/out 2>%s/err", FIRN_BIN_DIR, args, folder, folder);
    const int status = system(command);
    slurp("out", out, sizeof out);
    slurp("err", err, sizeof err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *last_line(char *text)
{
    const size_t n = strlen(text);
    if (n && text[n - 1] == '\n')
        text[n - 1] = 0;
    const char *line = strrchr(text, '\n');
    return line ? line + 1 : text;
}

static void expect_total(char *text)
{
    int passed, failed, skipped, end = 0;
    const char *line = last_line(text);
    if (sscanf(line, "%d passed, %d failed, %d skipped%n", &passed, &failed, &skipped, &end) != 3 || line[end])
        fail_msg("the last line is '%s'", line);
    assert_int_equal(failed, 0);
    assert_true(passed > 0);
}

/* ---- exit statuses ---- */

static void nothing_matched_is_an_error(void **state)
{
    (void)state;
    static const char *const args[] = {
        "",
        "tests",
        "test -o ADDD",
        "test -o ADD -p no_such_case",
        "test -o ADD -p '('",
        "test -b Metall -o ADD",
        "test -b CPU:none -o ADD",
        "grad -o ADD --output xml",
        "support -o ADDD",
        "bugs -o ADDD",
        "perf -o GET_ROWS_NONE",
        "perf -b GPU -o ADD",
        "perf --case n=4",
        "test -o ADD --case n=4",
        "perf -o ADD --case n=4,m=3",
        "perf -o ADD --case n=4,n=3",
        "perf -o ADD --case n=four",
        "perf -o ADD --case n",
        "perf -o MUL_MAT --case k=256,m=4,n=4,type=q9_K",
    };
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        const int status = harness(args[i]);
        if (status != 2 || !err[0] || out[0])
            fail_msg("'%s' ended with %d, '%s' and '%s'", args[i], status, out, err);
    }
}

static void a_failure_shows_in_the_status(void **state)
{
    (void)state;
    /* A case that cannot be built. */
    assert_int_equal(harness("perf -o MUL_MAT --case k=100,m=4,n=4,type=q4_K"), 1);
    assert_string_equal(last_line(out), "0 passed, 1 failed, 0 skipped");
    /* An input that no memory holds, and a kernel set that is none: each in a sentence. */
    assert_int_equal(setenv("ASAN_OPTIONS", "allocator_may_return_null=1", 0), 0);
    assert_int_equal(harness("perf -o MUL_MAT --case k=256,m=99999999999,n=1,type=q4_K"), 1);
    assert_non_null(strstr(err, "test-backend-ops: out of memory: an input has "));
    assert_int_equal(setenv("FIRN_CPU", "none", 1), 0);
    assert_int_equal(harness("perf -o MUL_MAT --case k=256,m=4,n=4,type=q4_K"), 2);
    assert_int_equal(unsetenv("FIRN_CPU"), 0);
    assert_non_null(strstr(err, "FIRN_CPU names the kernel set 'none'"));
    assert_null(strstr(err, "no backend"));
    assert_int_equal(harness("bugs -p 'ignored|declines'"), 0);
    assert_non_null(strstr(out, "promised, but not supported: "));
    expect_total(out);
}

static void the_total_is_where_records_are_not(void **state)
{
    (void)state;
    assert_int_equal(harness("test -o SQR"), 0);
    assert_string_equal(err, "");
    expect_total(out);
    assert_int_equal(harness("test -o SQR --output csv"), 0);
    expect_total(err);
    assert_null(strstr(out, " passed, "));
    assert_int_equal(harness("test -o SQR -b cpu0"), 0);
    assert_int_equal(harness("test -o TOP_K -b CPU:scalar"), 0);
    assert_null(strstr(out, "CPU:vector"));
    /* A deliberate "none" is skipped, and counted. */
    assert_int_equal(harness("grad -o TOP_K -b CPU:scalar"), 0);
    assert_string_equal(last_line(out), "0 passed, 0 failed, 1 skipped");
}

/* ---- records ---- */

/* Each line of out is an object with just these keys ("name:kind": s, n, o, b; ? may be null). Returns the lines. */
static int expect_objects(const char *const *keys)
{
    int lines = 0;

    for (char *rest = NULL, *line = strtok_r(out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest), lines++) {
        json_error_t e;
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &e);
        size_t n = 0;
        if (!object)
            fail_msg("'%s': %s", line, e.text);
        for (; keys[n]; n++) {
            char name[32];
            const char *colon = strchr(keys[n], ':');
            snprintf(name, sizeof name, "%.*s", (int)(colon - keys[n]), keys[n]);
            const json_t *v = json_object_get(object, name);
            const bool fits = colon[1] == 's'   ? json_is_string(v)
                              : colon[1] == 'o' ? json_is_object(v)
                              : colon[1] == 'b' ? json_is_boolean(v)
                                                : json_is_number(v) || (colon[2] == '?' && json_is_null(v));
            if (!fits)
                fail_msg("'%s' of %s", name, line);
        }
        assert_int_equal(json_object_size(object), n);
        json_decref(object);
    }
    return lines;
}

static void objects_have_their_keys(void **state)
{
    (void)state;
    static const char *const outcomes[] = {"op:s",     "backend:s", "type:s",   "case:o", "status:s",
                                           "error:n?", "bound:n?",  "reason:s", NULL};
    static const char *const cells[] = {"op:s", "backend:s", "type:s", "supported:b", "reason:s", NULL};
    static const char *const times[] = {"op:s",       "backend:s", "type:s",       "case:o",    "time_us:n", "gflops:n",
                                        "gb_per_s:n", "limit:n",   "limit_unit:s", "percent:n", NULL};

    assert_int_equal(harness("test -o ADD_ID --output json"), 0);
    expect_total(err);
    assert_true(expect_objects(outcomes) >= 61);
    assert_int_equal(harness("grad -o GLU_BACK --output json"), 0);
    assert_non_null(strstr(out, "\"status\": \"skipped\", \"error\": null"));
    assert_true(expect_objects(outcomes) >= 1);
    assert_int_equal(harness("support -o MUL_MAT_ID_BACK --output json -b CPU:scalar"), 0);
    assert_int_equal(expect_objects(cells), 17 + 11);
    assert_int_equal(harness("perf -o MUL_MAT_ID --output json --case "
                             "k=256,m=8,n_expert=4,n_used=2,n_tokens=5,type=q4_K"),
                     0);
    static const char *const names[] = {"\"k\": 256", "\"m\": 8", "\"n_expert\": 4", "\"n_used\": 2",
                                        "\"n_tokens\": 5"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_non_null(strstr(out, names[i]));
    assert_int_equal(expect_objects(times), 1);
}

/* Every operation has cases, and a row of the generated table. */
static void every_operation_is_tried(void **state)
{
    (void)state;
    char command[512];

    assert_int_equal(harness("support --output csv"), 0);
    for (int i = 0; firn_ops[i]; i++) {
        char begin[64];
        snprintf(begin, sizeof begin, "%s,CPU", firn_ops[i]->name);
        const char *at = strstr(out, begin);
        while (at && at != out && at[-1] != '\n')
            at = strstr(at + 1, begin);
        if (!at)
            fail_msg("%s has no cases", firn_ops[i]->name);
        assert_true(firn_ops[i]->gradient || firn_ops[i]->no_gradient);
        assert_true(firn_ops[i]->view || firn_ops[i]->reference);
    }
    snprintf(command, sizeof command,
             "cd %s && TEST_BACKEND_OPS=%s/test-backend-ops scripts/make_support --check >%s/out", FIRN_SOURCE_DIR,
             FIRN_BIN_DIR, folder);
    const int status = system(command);
    slurp("out", out, sizeof out);
    if (status != 0)
        fail_msg("docs/support.md is out of date: %s", out);
}

/* What the issue asks for, counted on one kernel set. */
static void there_are_enough_cases(void **state)
{
    (void)state;
    int passed = 0;

    assert_int_equal(harness("grad -o MUL_MAT_ID -b CPU:vector"), 0);
    assert_int_equal(sscanf(last_line(out), "%d passed", &passed), 1);
    assert_true(passed >= 877);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_matched_is_an_error),        cmocka_unit_test(a_failure_shows_in_the_status),
        cmocka_unit_test(the_total_is_where_records_are_not), cmocka_unit_test(objects_have_their_keys),
        cmocka_unit_test(every_operation_is_tried),           cmocka_unit_test(there_are_enough_cases),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
