/* The key/value cache where blocks have windows: as small as it says, and no logits tell. */
#include "unit/model.h"

#include "model/cache.h"
#include "model/random_model.h"

#include <stdlib.h>

enum { T = 2000, VOCAB = 512, WINDOW = 8, ROWS = 512 /* of a block with a window, for batches of 128 */ };

static int32_t tokens[T], position[T], first[T];

/* tiny-gpt-oss: four blocks, every other with a window; its cache has 64 values of k and of v in a row. */
static void open_shape(fixture *f, const char *shape, firn_type type)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *path = in_scratch("model.gguf");

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find(shape), 0, type, 7, path, NULL));
    firn_context_destroy(ctx);
    open_at(f, path, NULL, 2);
    assert_int_equal(f->model->hp.window, WINDOW);
}

static void open_model(fixture *f, firn_type type)
{
    open_shape(f, "tiny-gpt-oss", type);
}

/* A generator whose blocks have a row for each token: made for a longer window, which the tokens do not see. */
static firn_generator *whole(fixture *f)
{
    const int64_t window = f->model->hp.window;
    firn_generator *g;

    f->model->hp.window = T;
    OK(f->ctx, firn_generator_create(f->ctx, f->device, f->model, NULL, T, &g));
    f->model->hp.window = window;
    return g;
}

static firn_generator *windowed(fixture *f)
{
    firn_generator *g;

    OK(f->ctx, firn_generator_create(f->ctx, f->device, f->model, NULL, T, &g));
    return g;
}

static const float *feed(fixture *f, firn_generator *g, int from, int n)
{
    const float *logits;

    OK(f->ctx, firn_generator_feed(g, tokens + from, n, &logits));
    return logits;
}

/* Tokens [from, to), some one by one, some in batches that are longer than the window: the same bits from both. */
static void expect_equal(fixture *f, firn_generator *a, firn_generator *b, int from, int to)
{
    static const int sizes[] = {300, 1, 1, 1, 100, 1, 128, 7};

    for (int t = from, i = 0; t < to; i++) {
        const int n = sizes[i % 8] < to - t ? sizes[i % 8] : to - t;
        const float *x = feed(f, a, t, n), *y = feed(f, b, t, n);
        t += n;
        if (memcmp(x, y, VOCAB * sizeof *x) != 0)
            fail_msg("other bits behind %d tokens: %.1e", t, nmse(x, y, VOCAB));
    }
}

/* Of all tokens in one pass, without a cache: [VOCAB, T]. */
static float *logits_at_once(fixture *f)
{
    const firn_batch batch = {.n_tokens = T, .tokens = tokens, .position = position, .first = first};
    const firn_session_params params = {.n_tokens = T};
    float *logits = malloc(sizeof(float) * T * VOCAB);
    firn_session *session;

    OK(f->ctx, firn_session_create(f->ctx, f->device, f->model, NULL, &params, &session));
    OK(f->ctx, firn_session_logits(session, &batch, logits));
    firn_session_destroy(session);
    return logits;
}

static void expect_near(fixture *f, firn_generator *g, const float *expected, int from, int to, int step, double bound)
{
    for (int t = from; t < to;) {
        const int n = step < to - t ? step : to - t;
        const float *logits = feed(f, g, t, n);
        t += n;
        const double error = nmse(logits, expected + (t - 1) * VOCAB, VOCAB);
        if (!(error < bound))
            fail_msg("behind %d tokens off by %.1e", t, error);
    }
}

static void test_logits(void **state)
{
    (void)state;
    static const char *const shapes[] = {"tiny-gpt-oss", "tiny-gpt-oss", "tiny-gpt-oss", "tiny-gemma4-e"};
    static const firn_type types[] = {FIRN_F32, FIRN_Q8_0, FIRN_F32, FIRN_F32};
    static const int64_t windows[] = {WINDOW, WINDOW, 300, WINDOW}; /* shorter and longer than a batch */

    for (int i = 0; i < 4; i++) {
        fixture f;
        open_shape(&f, shapes[i], types[i]);
        f.model->hp.window = windows[i];
        firn_generator *a = windowed(&f), *b = whole(&f);
        expect_equal(&f, a, b, 0, T);
        firn_generator_reset(a);
        firn_generator_reset(b);
        expect_equal(&f, a, b, 0, 600);
        firn_generator_reset(a);
        float *expected = logits_at_once(&f);
        const double bound = f.model->hp.attention_scale == 1 ? 1e-8 : 1e-10; /* rounding weighs more in large scores */
        expect_near(&f, a, expected, 0, 700, 700, bound);                     /* one prompt, past all rows */
        expect_near(&f, a, expected, 700, 1300, 1, bound);
        expect_near(&f, a, expected, 1300, T, 300, bound);
        free(expected);
        firn_generator_destroy(a);
        firn_generator_destroy(b);
        close_fixture(&f);
    }
}

/* Kernels without attention of their own run its reference, whose tiles are counted from a cache's first row. */
static void test_reference(void **state)
{
    (void)state;
    char *before = getenv("FIRN_CPU") ? strdup(getenv("FIRN_CPU")) : NULL;
    fixture f;

    setenv("FIRN_CPU", "vector", 1);
    open_model(&f, FIRN_F32);
    firn_generator *a = windowed(&f), *b = whole(&f);
    expect_equal(&f, a, b, 0, 800);
    firn_generator_destroy(a);
    firn_generator_destroy(b);
    close_fixture(&f);
    before ? setenv("FIRN_CPU", before, 1) : unsetenv("FIRN_CPU");
    free(before);
}

static void test_truncation(void **state)
{
    (void)state;
    fixture f;

    open_model(&f, FIRN_F32);
    firn_generator *a = windowed(&f), *b = whole(&f);
    /* Whenever it comes, 128 tokens can be taken back. */
    for (int t = 0, turn = 0; t < T - 200; turn++) {
        const int n = turn % 2 ? 128 : 37, to = t + n + 128;
        expect_equal(&f, a, b, t, to);
        assert_int_equal(firn_generator_length(a), to);
        t = to - (t + n > 128 ? 128 : 5);
        assert_int_equal(firn_generator_truncate(a, t), t);
        assert_int_equal(firn_generator_truncate(b, t), t);
    }
    assert_int_equal(firn_generator_truncate(a, T), firn_generator_length(a));
    /* What is gone is not made up. */
    assert_int_equal(firn_generator_truncate(b, 400), 400);
    assert_int_equal(firn_generator_truncate(a, 400), 0);
    assert_int_equal(firn_generator_length(a), 0);
    const float *x = feed(&f, a, 0, 700), *y = feed(&f, b, 400, 300);
    assert_true(nmse(x, y, VOCAB) < 1e-10);
    /* What a truncation leaves is all that the next one has: rows moved last when 512 tokens were there. */
    assert_int_equal(firn_generator_truncate(a, 700 - 128), 700 - 128);
    assert_int_equal(firn_generator_truncate(a, 320 + WINDOW - 1), 320 + WINDOW - 1);
    assert_int_equal(firn_generator_truncate(a, 320 + WINDOW - 2), 0);
    firn_generator_destroy(a);
    firn_generator_destroy(b);
    close_fixture(&f);
}

static void test_bytes(void **state)
{
    (void)state;
    fixture f;
    const uint64_t row = 2 * 64 * sizeof(float);

    open_model(&f, FIRN_F32);
    assert_int_equal(firn_generator_cache_bytes(f.model, T), row * 2 * (T + ROWS));
    assert_int_equal(firn_generator_cache_bytes(f.model, 100000), row * 2 * (100000 + ROWS));
    assert_int_equal(firn_generator_cache_bytes(f.model, 100), row * 4 * 100);
    f.model->hp.window = 4096;
    const uint64_t long_window = firn_generator_cache_bytes(f.model, 100000) - row * 2 * 100000;
    assert_in_range(long_window, row * 2 * (4096 + 128), row * 2 * 4096 * 3 / 2);
    f.model->hp.window = WINDOW;
    for (int64_t n_ctx = 100; n_ctx <= 10000; n_ctx *= 10) {
        firn_cache *c;
        OK(f.ctx, firn_cache_create(f.ctx, f.device, f.model, n_ctx, 128, &c));
        assert_int_equal(firn_buffer_size(c->k) + firn_buffer_size(c->v), firn_generator_cache_bytes(f.model, n_ctx));
        firn_cache_destroy(c);
    }
    close_fixture(&f);
}

static int begin(void **state)
{
    for (int t = 0; t < T; t++) {
        tokens[t] = (t * 37 + t / 11 * 5 + 11) % 500;
        position[t] = t;
    }
    return set_up(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
