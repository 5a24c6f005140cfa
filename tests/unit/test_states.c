/* Generating with blocks that carry a state, every architecture that has them: token by token, in parts and at once is
 * the same, and going back does not show. */
#include "unit/model.h"

#include "model/cache.h"
#include "model/random_model.h"

#include <stdlib.h>

enum { T = 256, VOCAB = 512, BATCH = 128 /* of the generator */, CHUNK = 32 /* of the scans */ };

static int32_t tokens[T], position[T], first[T];

/* All tokens choose all experts, so that how many rows a product has is how many tokens there are: kernels are chosen
 * by it. */
static void open_shape(fixture *f, const firn_random_shape *shape, firn_type type)
{
    firn_context *ctx = firn_context_create(NULL);
    const char *path = in_scratch("model.gguf");
    firn_random_shape s = *shape;

    if (s.n_expert) {
        s.n_expert_used = s.n_expert;
        s.n_group = s.n_group_used = 0;
    }
    OK(ctx, firn_random_model_write(ctx, &s, 0, type, 7, path, NULL));
    firn_context_destroy(ctx);
    open_at(f, path, NULL, 1);
}

static firn_generator *generator_of(fixture *f)
{
    firn_generator *g;

    OK(f->ctx, firn_generator_create(f->ctx, f->device, f->model, NULL, T, &g));
    return g;
}

static const float *feed(fixture *f, firn_generator *g, int from, int to, int step)
{
    const float *logits = NULL;

    for (int t = from; t < to; t += step)
        OK(f->ctx, firn_generator_feed(g, tokens + t, t + step < to ? step : to - t, &logits));
    return logits;
}

/* Each shape whose blocks have a state. */
static void each(void (*check)(fixture *f, const char *name))
{
    const firn_random_shape *s;
    int n = 0;

    for (int i = 0; (s = firn_random_shape_at(i)); i++) {
        fixture f;
        if (strncmp(s->name, "tiny", 4) != 0 || !s->n_taps)
            continue;
        open_shape(&f, s, FIRN_F32);
        assert_true(f.model->hp.recurrent);
        check(&f, s->name);
        close_fixture(&f);
        n++;
    }
    assert_true(n >= 12);
}

/* ---- feeding ---- */

/* Rounding differs with the kernels that few rows and many get, and some models weigh it: next to a gated delta net's
 * (q . k) v, brought to length 1, it counts as much more as q . k is smaller. */
static double bound = 1e-8;

static void tokens_are_as_all_at_once(fixture *f, const char *name)
{
    enum { N_AT_ONCE = 70 };
    const firn_batch batch = {.n_tokens = N_AT_ONCE, .tokens = tokens, .position = position, .first = first};
    const firn_session_params params = {.n_tokens = N_AT_ONCE};
    float *expected = malloc(sizeof(float) * N_AT_ONCE * VOCAB);
    firn_generator *g = generator_of(f);
    firn_session *session;
    double worst = 0;

    OK(f->ctx, firn_session_create(f->ctx, f->device, f->model, NULL, &params, &session));
    OK(f->ctx, firn_session_logits(session, &batch, expected));
    for (int t = 0; t < N_AT_ONCE; t++)
        worst = fmax(worst, nmse(feed(f, g, t, t + 1, 1), expected + t * VOCAB, VOCAB));
    firn_generator_reset(g);
    worst = fmax(worst, nmse(feed(f, g, 0, N_AT_ONCE, 37), expected + (N_AT_ONCE - 1) * VOCAB, VOCAB));
    if (!(worst < bound))
        fail_msg("%s: off by %.1e from all at once", name, worst);
    firn_session_destroy(session);
    firn_generator_destroy(g);
    free(expected);
}

static void whole_chunks_have_the_same_bits(fixture *f, const char *name)
{
    static const int steps[] = {CHUNK, 3 * CHUNK, BATCH};
    firn_generator *g = generator_of(f);
    float expected[VOCAB];

    memcpy(expected, feed(f, g, 0, T, T), sizeof expected);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        firn_generator_reset(g);
        const float *logits = feed(f, g, 0, T, steps[i]);
        if (memcmp(logits, expected, sizeof expected) != 0)
            fail_msg("%s: other bits in parts of %d: %.1e", name, steps[i], nmse(logits, expected, VOCAB));
    }
    firn_generator_destroy(g);
}

static void test_tokens(void **state)
{
    (void)state;
    each(tokens_are_as_all_at_once);
}

/* Kernels that do the same whatever the number of rows: what is left is the states' own doing. */
static void test_same_kernels(void **state)
{
    char *before = getenv("FIRN_CPU") ? strdup(getenv("FIRN_CPU")) : NULL;

    (void)state;
    setenv("FIRN_CPU", "vector", 1);
    bound = 1e-12;
    each(tokens_are_as_all_at_once);
    before ? setenv("FIRN_CPU", before, 1) : unsetenv("FIRN_CPU");
    free(before);
}

static void test_chunks(void **state)
{
    (void)state;
    each(whole_chunks_have_the_same_bits);
}

/* ---- going back ---- */

/* A turn of `n` tokens in one feed, and `said` one by one. */
static void turn(fixture *f, firn_generator *g, int n, int said)
{
    const int at = (int)firn_generator_length(g);

    feed(f, g, at, at + n, n);
    feed(f, g, at + n, at + n + said, 1);
}

/* g goes back to n tokens, has `left` of them, and goes on as one that was never elsewhere. */
static void goes_back(fixture *f, firn_generator *g, int n, int left, const char *name)
{
    enum { MORE = 9 };
    firn_generator *fresh = generator_of(f);

    assert_int_equal(firn_generator_truncate(g, n), left);
    assert_int_equal(firn_generator_length(g), left);
    const float *a = feed(f, g, left, n + MORE, 1), *b = feed(f, fresh, 0, n + MORE, 1);
    const double error = nmse(a, b, VOCAB);
    if (!(error < 1e-8))
        fail_msg("%s: back at token %d from %d off by %.1e", name, n, left, error);
    firn_generator_destroy(fresh);
}

static void going_back_does_not_show(fixture *f, const char *name)
{
    firn_generator *g = generator_of(f);
    float before[VOCAB];

    turn(f, g, 20, 10);
    turn(f, g, 12, 8);
    goes_back(f, g, 44, 30, name); /* within what was said since the turn began */
    goes_back(f, g, 30, 30, name); /* the same place again */
    goes_back(f, g, 29, 0, name);  /* before it */
    goes_back(f, g, 35, 0, name);  /* what was remembered is no longer this text's */
    firn_generator_reset(g);
    turn(f, g, 170, 3); /* a whole batch, and 42 tokens */
    goes_back(f, g, 165, BATCH, name);
    assert_int_equal(firn_generator_truncate(g, 1000), firn_generator_length(g));

    /* What is fed again in the same parts has the same bits. */
    firn_generator_reset(g);
    turn(f, g, 20, 10);
    memcpy(before, feed(f, g, 30, 42, 12), sizeof before);
    feed(f, g, 42, 50, 1);
    assert_int_equal(firn_generator_truncate(g, 40), 30);
    assert_memory_equal(feed(f, g, 30, 42, 12), before, sizeof before);
    firn_generator_destroy(g);
}

static void test_going_back(void **state)
{
    (void)state;
    each(going_back_does_not_show);
}

/* As many bytes as it says, whatever the context. */
static void test_bytes(void **state)
{
    fixture f;

    (void)state;
    open_shape(&f, firn_random_shape_find("tiny-qwen35"), FIRN_F32);
    const firn_hparams *hp = &f.model->hp;
    const uint64_t state_of_a_block = ((uint64_t)hp->ssm.state * (uint64_t)hp->ssm.state * (uint64_t)hp->ssm.n_head +
                                       (uint64_t)(hp->ssm.taps - 1) * (uint64_t)hp->ssm.channels) *
                                      sizeof(float);
    const uint64_t keys = firn_generator_cache_bytes(f.model, 2000) - firn_generator_cache_bytes(f.model, 1000);
    assert_int_equal(firn_generator_cache_bytes(f.model, 1000) - keys, 2 * 3 * state_of_a_block);
    for (int64_t n_ctx = 100; n_ctx <= 10000; n_ctx *= 10) {
        firn_cache *c;
        OK(f.ctx, firn_cache_create(f.ctx, f.device, f.model, n_ctx, 128, &c));
        assert_int_equal(firn_buffer_size(c->k) + firn_buffer_size(c->v) + firn_buffer_size(c->states) +
                             firn_buffer_size(c->copy),
                         firn_generator_cache_bytes(f.model, n_ctx));
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
        cmocka_unit_test(test_tokens),     cmocka_unit_test(test_same_kernels), cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_going_back), cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, begin, tear_down);
}
