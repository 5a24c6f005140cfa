/* Context, arena, text, threads, files. */
#include "unit/unit.h"

#include "core/arena.h"
#include "core/buffer.h"
#include "core/file.h"
#include "core/leftover.h"
#include "core/pool.h"
#include "core/secret.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void errors_are_kept_and_prefixed(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    assert_string_equal(firn_error(ctx), "");
    assert_int_equal(firn_fail(ctx, FIRN_ERR_FORMAT, "expected %d, got %d", 1, 2), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "expected 1, got 2");
    firn_fail_in(ctx, FIRN_ERR_FORMAT, "a.gguf");
    assert_string_equal(firn_error(ctx), "a.gguf: expected 1, got 2");
    firn_fail(ctx, FIRN_ERR_FORMAT, "key '%s'", "\33[2J\na\x7F\xC3\xA9");
    assert_string_equal(firn_error(ctx), "key '?[2J a?\xC3\xA9'");
    firn_context_destroy(ctx);
}

static void arena_honours_its_limit(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_arena arena;
    firn_arena_init(&arena, ctx, 1 << 20);
    char *a = firn_arena_text(&arena, "abc", 3);
    assert_string_equal(a, "abc");
    assert_null(firn_arena_alloc(&arena, 2 << 20));
    int n = 0;
    while (firn_arena_alloc(&arena, 1000))
        n++;
    assert_in_range(n, 900, 1048);
    assert_string_equal(a, "abc");
    firn_arena_clear(&arena);
    firn_context_destroy(ctx);
}

static void text_grows_and_is_sticky(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_text t;
    firn_text_init(&t, ctx, 10);
    firn_text_printf(&t, "%d-", 12);
    firn_text_codepoint(&t, 0x1F600);
    firn_text_codepoint(&t, 0xE9);
    assert_string_equal(t.data, "12-\xF0\x9F\x98\x80\xC3\xA9");
    firn_text_puts(&t, "xx");
    assert_int_equal(t.status, FIRN_ERR_MEMORY);
    firn_text_puts(&t, "");
    assert_int_equal(t.size, 9);
    firn_text_free(&t);
    firn_context_destroy(ctx);
}

typedef struct {
    atomic_llong counter, sum;
    int64_t slots[64];
    bool good;
} shared_work;

static void add_items(void *arg, firn_team team)
{
    shared_work *w = arg;
    for (int64_t a, b; firn_team_take(&w->counter, 1000, 7, &a, &b);)
        for (; a < b; a++)
            atomic_fetch_add(&w->sum, a);
    w->slots[team.ith] = team.ith + 1;
    firn_team_barrier(team);
    int64_t all = 0; /* everyone sees what everyone wrote before the barrier */
    for (int i = 0; i < team.nth; i++)
        all += w->slots[i];
    firn_team_barrier(team);
    if (all != (int64_t)team.nth * (team.nth + 1) / 2)
        w->good = false;
}

static void pool_does_each_item_once(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = n});
        firn_pool *pool = firn_context_pool(ctx);
        for (int round = 0; round < 200; round++) {
            shared_work w = {.good = true};
            firn_pool_run(pool, add_items, &w);
            assert_int_equal(w.sum, 999 * 1000 / 2);
            assert_true(w.good);
        }
        firn_context_destroy(ctx);
    }
}

static void a_file_appears_whole_or_not_at_all(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    char dir[] = "/tmp/firn-test-XXXXXX", path[64], *data;
    size_t n;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/a", dir);
    assert_int_equal(firn_file_write(ctx, path, "old", 3), FIRN_OK);
    firn_out *out;
    assert_int_equal(firn_out_open(ctx, path, &out), FIRN_OK);
    firn_out_write(out, "new!", 4);
    firn_out_abort(out);
    assert_int_equal(firn_file_read(ctx, path, 0, &data, &n), FIRN_OK);
    assert_int_equal(n, 3);
    assert_string_equal(data, "old");
    firn_free(ctx, data);
    assert_int_equal(firn_file_read(ctx, path, 2, &data, &n), FIRN_ERR_IO);
    assert_int_equal(firn_file_read(ctx, dir, 0, &data, &n), FIRN_ERR_IO);
    char link[64], pipe[64];
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(pipe, sizeof pipe, "%s/pipe", dir);
    assert_int_equal(symlink("a", link), 0);
    assert_int_equal(firn_file_write(ctx, link, "through", 7), FIRN_OK);
    assert_int_equal(firn_file_read(ctx, path, 7, &data, &n), FIRN_OK);
    assert_string_equal(data, "through");
    firn_free(ctx, data);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(firn_file_write(ctx, pipe, "new!", 4), FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(ctx), "/pipe: it is a pipe, not a file"));
    assert_int_equal(unlink(pipe), 0);
    assert_int_equal(firn_file_write(ctx, dir, "new!", 4), FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(ctx), "it is a folder, not a file"));
    assert_int_equal(firn_out_open(ctx, path, &out), FIRN_OK);
    firn_leftovers_remove();
    unlink(path);
    rmdir(dir); /* fails if a temporary file were left */
    assert_int_equal(firn_out_commit(out), FIRN_ERR_IO);
    assert_int_not_equal(access(dir, F_OK), 0);
    assert_int_equal(firn_file_read(ctx, path, 0, &data, &n), FIRN_ERR_IO);
    assert_non_null(strstr(firn_error(ctx), path));
    firn_context_destroy(ctx);
}

/* Texts and numbers that somebody chose spread over a table as others do, whatever was drawn: the fullest of as many
 * places as there are texts has few. */
static void a_secret_spreads_what_was_chosen(void **state)
{
    enum { N = 4096, DRAWS = 8, FULLEST = 16 };
    static uint16_t place[4][N];
    firn_secret before = firn_secret_draw();

    (void)state;
    for (int draw = 0; draw < DRAWS; draw++) {
        const firn_secret secret = firn_secret_draw();
        assert_int_not_equal(secret.start, before.start);
        assert_int_not_equal(secret.factor, before.factor);
        assert_int_equal(secret.factor & 1, 1);
        before = secret;
        memset(place, 0, sizeof place);
        for (uint64_t i = 0; i < N; i++) {
            /* pairs of words that cancel each other in a hash of odd factors and shifts: bit 63, and 63 and 34 behind
             */
            uint64_t text[24];
            for (int k = 0; k < 12; k++) {
                text[2 * k] = i >> k & 1 ? (uint64_t)1 << 63 : 0;
                text[2 * k + 1] = i >> k & 1 ? (uint64_t)1 << 63 | (uint64_t)1 << 34 : 0;
            }
            const uint64_t hashes[] = {firn_secret_hash(&secret, text, sizeof text),
                                       firn_secret_number(&secret, i << 44), firn_secret_pair(&secret, i << 32, i),
                                       firn_secret_hash(&secret, &i, 2)};
            for (int h = 0; h < 4; h++)
                assert_in_range(++place[h][hashes[h] % N], 1, FULLEST);
        }
    }
    assert_int_not_equal(firn_secret_hash(&before, "a", 1), firn_secret_hash(&before, "a\0", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_secret_spreads_what_was_chosen), cmocka_unit_test(errors_are_kept_and_prefixed),
        cmocka_unit_test(arena_honours_its_limit),          cmocka_unit_test(text_grows_and_is_sticky),
        cmocka_unit_test(pool_does_each_item_once),         cmocka_unit_test(a_file_appears_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
