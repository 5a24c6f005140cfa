/* Where data comes from: files, folders, pipes, weights; the token cache; a run that goes on from them to the bit. */
#include "unit/unit.h"

#include "core/file.h"
#include "firn/train.h"
#include "model/random_model.h"
#include "unit/byte_encoder.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static firn_context *ctx;
static char folder[64];
static int encoded; /* texts that were tokenized */

static void sh(const char *command)
{
    if (system(command) != 0)
        fail_msg("%s failed", command);
}

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    strcpy(folder, "/tmp/firn-sources-XXXXXX");
    return !ctx || !mkdtemp(folder) || chdir(folder) != 0;
}

static int teardown(void **state)
{
    char command[96];

    (void)state;
    firn_context_destroy(ctx);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") != 0 || system(command) != 0;
}

static firn_status count_encode(void *user, const char *text, size_t size, firn_token_list *list)
{
    encoded++;
    return byte_encode(user, text, size, list);
}

static void key(void *user, char hex[FIRN_SHA256_HEX])
{
    (void)user;
    memset(hex, 'a', FIRN_SHA256_HEX - 1);
    hex[FIRN_SHA256_HEX - 1] = 0;
}

static firn_status load(const char *const *sources, int n, const char *cache, firn_data **data)
{
    firn_encoder encoder = byte_encoder(&ctx, false);
    const firn_data_spec spec = {.sources = sources, .n_sources = n, .cache = cache, .skip_bad = 1};

    encoder.encode = count_encode;
    encoder.key = key;
    encoded = 0;
    return firn_data_load(ctx, &spec, &encoder, 64, data);
}

#define LOAD(data, cache, ...)                                                                                         \
    load((const char *const[]){__VA_ARGS__}, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),       \
         cache, data)

static void loads(firn_data **data, firn_status status)
{
    if (status != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    assert_non_null(*data);
}

static void write_lines(const char *path, char letter, int n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    for (int i = 0; i < n; i++)
        fprintf(f, "{\"text\": \"%c%d\"}\n", letter, i);
    fclose(f);
}

static void files_and_weights(void **state)
{
    static const struct {
        const char *source, *name;
        double weight;
    } good[] = {{"a.jsonl", "a.jsonl", 1},
                {"a.jsonl:2", "a.jsonl", 2},
                {"a.jsonl:0.5", "a.jsonl", 0.5},
                {"with:3", "with:3", 1},
                {"with:3:2", "with:3", 2}};
    static const struct {
        const char *source, *error;
    } bad[] = {{"a.jsonl:0", "a.jsonl:0: expected a weight above 0 and up to 1000 behind the colon"},
               {"a.jsonl:1001", "expected a weight above 0"},
               {"a.jsonl:x", "cannot open a.jsonl:x: No such file"},
               {"a.jsonl:", "cannot open a.jsonl:: No such file"},
               {"none", "cannot open none: No such file"},
               {"empty", "the folder empty holds no data: expected files that end in .jsonl"}};
    firn_data *data;

    (void)state;
    write_lines("a.jsonl", 'a', 10);
    sh("cp a.jsonl with:3; mkdir -p empty; echo x > empty/README.md");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        /* "with:3" has no ending that says what it is: found by its first byte */
        loads(&data, LOAD(&data, "none", good[i].source));
        assert_string_equal(data->files[0].name, good[i].name);
        assert_true(data->files[0].weight == good[i].weight);
        assert_int_equal(data->n_samples, 10);
        firn_data_destroy(data);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_not_equal(LOAD(&data, "none", bad[i].source), FIRN_OK);
        if (!strstr(firn_error(ctx), bad[i].error))
            fail_msg("%s\n  instead of\n%s", firn_error(ctx), bad[i].error);
    }
    assert_int_equal(LOAD(&data, "none", "-", "-:2"), FIRN_ERR_ARGUMENT);
}

static void folders(void **state)
{
    firn_data *data;

    (void)state;
    sh("mkdir -p f/sub/.git; cp a.jsonl f/b.jsonl; cp a.jsonl f/.hidden.jsonl; cp a.jsonl f/sub/.git/x.jsonl");
    sh("printf 'text\\nzz\\nyy\\n' > f/sub/c.csv; gzip -c a.jsonl > f/a.json.gz; echo no > f/LICENSE; ln -s . f/loop");
    assert_int_not_equal(LOAD(&data, "none", "f"), FIRN_OK); /* a loop of links ends in a sentence */
    sh("rm f/loop");
    loads(&data, LOAD(&data, "none", "f:3"));
    assert_int_equal(data->n_files, 3);
    assert_string_equal(data->files[0].name, "f/a.json.gz");
    assert_string_equal(data->files[1].name, "f/b.jsonl");
    assert_string_equal(data->files[2].name, "f/sub/c.csv");
    assert_true(data->files[2].weight == 3);
    assert_int_equal(data->n_samples, 22);
    assert_int_equal(data->samples[21].file, 2);
    assert_string_equal(firn_text_cstr(&data->notes), "not read, because nothing says that they are data: f/LICENSE\n");
    firn_data_destroy(data);
}

/* Which lines an epoch takes, by the byte that they begin with and their number. */
static void count(const firn_data *data, const firn_sample_list *list, int seen[2][10])
{
    memset(seen, 0, 2 * 10 * sizeof(int));
    for (size_t i = 0; i < list->n; i++)
        seen[data->samples[list->items[i]].file][data->samples[list->items[i]].line - 1]++;
}

static void weights_decide_an_epoch(void **state)
{
    firn_sample_list all, list;
    int seen[2][10], other[2][10], extra = 0, part = 0, moved = 0;
    firn_data *data;
    bool drawn;

    (void)state;
    write_lines("b.jsonl", 'b', 10);
    loads(&data, LOAD(&data, "none", "a.jsonl:2.3", "b.jsonl:0.5"));
    assert_int_equal(firn_data_all(data, &all), FIRN_OK);
    assert_int_equal(firn_data_weigh(data, &all, 1, 0, &list, &drawn), FIRN_OK);
    assert_true(drawn);
    assert_int_equal(list.n, 23 + 5);
    count(data, &list, seen);
    for (int i = 0; i < 10; i++) {
        assert_in_range(seen[0][i], 2, 3);
        assert_in_range(seen[1][i], 0, 1);
        extra += seen[0][i] - 2;
        part += seen[1][i];
    }
    assert_int_equal(extra, 3);
    assert_int_equal(part, 5);
    firn_sample_list_free(ctx, &list);
    for (int k = 0; k < 2; k++) { /* the same again; other lines in another epoch */
        assert_int_equal(firn_data_weigh(data, &all, 1, k, &list, &drawn), FIRN_OK);
        count(data, &list, other);
        moved = memcmp(seen, other, sizeof seen) != 0;
        assert_int_equal(moved, k);
        firn_sample_list_free(ctx, &list);
    }
    firn_sample_list_free(ctx, &all);
    firn_data_destroy(data);
    loads(&data, LOAD(&data, "none", "a.jsonl", "b.jsonl"));
    assert_int_equal(firn_data_all(data, &all), FIRN_OK);
    assert_int_equal(firn_data_weigh(data, &all, 1, 0, &list, &drawn), FIRN_OK);
    assert_true(!drawn && list.items == all.items);
    firn_sample_list_free(ctx, &all);
    firn_data_destroy(data);
}

static void lines_of_two_files_are_two_lines(void **state)
{
    firn_sample_list train, held;
    firn_data *data;

    (void)state;
    sh("head -1 a.jsonl > one.jsonl; head -1 b.jsonl > two.jsonl");
    loads(&data, LOAD(&data, "none", "one.jsonl", "two.jsonl"));
    assert_int_equal(firn_data_split(data, 0.5, 1, &train, &held), FIRN_OK);
    assert_int_equal(train.n, 1);
    assert_int_equal(held.n, 1);
    firn_sample_list_free(ctx, &train);
    firn_sample_list_free(ctx, &held);
    firn_data_destroy(data);
}

/* ---- pipes ---- */

static void pipes_are_read_once(void **state)
{
    const int saved = dup(STDIN_FILENO);
    firn_data *data;

    (void)state;
    FILE *p = popen("cat a.jsonl b.jsonl", "r");
    assert_non_null(p);
    assert_true(dup2(fileno(p), STDIN_FILENO) >= 0);
    loads(&data, LOAD(&data, "none", "-:2"));
    pclose(p);
    assert_string_equal(data->files[0].name, "standard input");
    assert_true(data->files[0].weight == 2);
    assert_int_equal(data->n_samples, 20);
    firn_data_destroy(data);
    dup2(saved, STDIN_FILENO);
    close(saved);
    sh("mkfifo p; cat a.jsonl > p &");
    loads(&data, LOAD(&data, "none", "p"));
    assert_int_equal(data->n_samples, 10);
    firn_data_destroy(data);
    assert_int_not_equal(LOAD(&data, "none", "p"), FIRN_OK); /* nobody writes */
    assert_non_null(strstr(firn_error(ctx), "it is a pipe, and nobody writes to it"));
    assert_int_not_equal(LOAD(&data, "none", "/dev/zero"), FIRN_OK);
    assert_non_null(strstr(firn_error(ctx), "a device"));
}

/* ---- the cache ---- */

static bool same(const firn_data *a, const firn_data *b)
{
    return a->n_samples == b->n_samples && a->n_tokens == b->n_tokens &&
           memcmp(a->samples, b->samples, a->n_samples * sizeof *a->samples) == 0 &&
           memcmp(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens) == 0 &&
           memcmp(&a->counts, &b->counts, sizeof a->counts) == 0 &&
           strcmp(firn_text_cstr(&a->notes), firn_text_cstr(&b->notes)) == 0;
}

static void tokens_are_cached(void **state)
{
    firn_data *plain, *first, *again, *changed;

    (void)state;
    FILE *f = fopen("big.jsonl", "w");
    assert_non_null(f);
    for (int i = 0; i < 20000; i++)
        fprintf(f, "{\"prompt\": \"number %d and some words that make it long\", \"completion\": \" %d\"}\n", i,
                i % 100);
    fputs("{\"prompt\": 3}\n", f);
    fclose(f);
    loads(&plain, LOAD(&plain, "none", "big.jsonl"));
    assert_int_equal(encoded, 20000);
    assert_true(access("cache", F_OK) != 0);
    loads(&first, LOAD(&first, "cache", "big.jsonl"));
    assert_int_equal(encoded, 20000);
    assert_true(same(plain, first));
    assert_true(firn_data_bytes(first) < 4096); /* its tokens lie in the file */
    loads(&again, LOAD(&again, "cache", "big.jsonl"));
    assert_int_equal(encoded, 0);
    assert_true(same(plain, again));
    firn_data_destroy(again);
    loads(&again, LOAD(&again, "cache", "big.jsonl:2")); /* a weight changes no token */
    assert_int_equal(encoded, 0);
    firn_data_destroy(again);
    firn_data_destroy(first);

    sh("for f in cache/*.tokens; do truncate -s -5 $f; done"); /* not whole: as if it were not there */
    loads(&again, LOAD(&again, "cache", "big.jsonl"));
    assert_int_equal(encoded, 20000);
    assert_true(same(plain, again));
    firn_data_destroy(again);

    sh("echo '{\"text\": \"more\"}' >> big.jsonl");
    loads(&changed, LOAD(&changed, "cache", "big.jsonl"));
    assert_int_equal(encoded, 20001);
    firn_data_destroy(changed);

    sh("touch -d '40 days ago' cache/*; echo >> big.jsonl; touch file"); /* old ones go when one is written */
    loads(&changed, LOAD(&changed, "cache", "big.jsonl"));
    firn_data_destroy(changed);
    sh("test $(ls cache/*.tokens | wc -l) = 1");
    loads(&changed, LOAD(&changed, "file/cache", "big.jsonl")); /* where there can be none, memory */
    assert_true(firn_data_bytes(changed) > 1000000);
    firn_data_destroy(changed);
    firn_data_destroy(plain);
}

/* ---- a run ---- */

static bool stop_after(void *user)
{
    int *calls = user;

    return (*calls)-- <= 0;
}

static void run(const char *output, int steps_before_stop)
{
    firn_train_options o;
    firn_train_result result = {.size = sizeof result};
    int calls = steps_before_stop;
    const firn_watch watch = {.size = sizeof watch, .user = &calls, .stop = stop_after};

    firn_train_options_init(&o);
    o.model = "m.gguf";
    o.data = FIRN_STRINGS("f:0.5", "big.jsonl:0.01", "a.jsonl:2");
    o.skip_bad = 1;
    o.cache = "cache";
    o.output = output;
    o.steps = 6;
    o.context = 32;
    o.rank = 2;
    o.eval_split = 0.01;
    firn_status s = firn_train(ctx, &o, 0, steps_before_stop ? &watch : NULL, &result);
    if (s == FIRN_OK && !result.finished) {
        sh("mv big.jsonl moved; printf ' ' >> moved; mv moved big.jsonl");
        firn_train_options none;
        firn_train_options_init(&none);
        assert_int_not_equal(firn_train_resume(ctx, output, &none, 0, NULL, &result), FIRN_OK);
        assert_non_null(strstr(firn_error(ctx), "is not the one that the run was started with"));
        sh("truncate -s -1 big.jsonl");
        none.cache = "none"; /* and without the cache too */
        s = firn_train_resume(ctx, output, &none, 0, NULL, &result);
    }
    if (s != FIRN_OK)
        fail_msg("%s", firn_error(ctx));
    assert_true(result.finished);
}

static void a_run_goes_on_to_the_bit(void **state)
{
    (void)state;
    assert_int_equal(
        firn_random_model_write(ctx, firn_random_shape_find("tiny-llama"), 1, FIRN_Q8_0, 1, "m.gguf", NULL), FIRN_OK);
    run("whole", 0);
    run("parts", 4);
    sh("cmp whole/adapter.gguf parts/adapter.gguf");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_weights),        cmocka_unit_test(folders),
        cmocka_unit_test(weights_decide_an_epoch),  cmocka_unit_test(lines_of_two_files_are_two_lines),
        cmocka_unit_test(pipes_are_read_once),      cmocka_unit_test(tokens_are_cached),
        cmocka_unit_test(a_run_goes_on_to_the_bit),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
