/* Sampling (firn/sample.h) and what firn generate prints. */
#include "unit/unit.h"

#include "core/random.h"
#include "firn/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL FIRN_SOURCE_DIR "/tests/data/cases/llama/model.gguf"

enum { V = 6, DRAWS = 20000 };

/* Probabilities at temperature 1: 0.4, 0.3, 0.2, 0.1, none, none. */
static const float logits[V] = {-1.2039728f, -0.9162907f, -2.3025851f, -1.6094379f, -INFINITY, NAN};

static void count(firn_sample_params p, int hits[V])
{
    firn_context *ctx = firn_context_create(NULL);
    firn_sampler *s;

    memset(hits, 0, V * sizeof *hits);
    assert_int_equal(firn_sampler_create(ctx, &p, V, &s), FIRN_OK);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t t = firn_sampler_next(s, logits);
        assert_in_range(t, 0, V - 1);
        hits[t]++;
    }
    firn_sampler_destroy(s);
    firn_context_destroy(ctx);
}

static void near(int hits, double p)
{
    assert_true(fabs(hits / (double)DRAWS - p) < 0.02);
}

static void test_draws(void **state)
{
    (void)state;
    int hits[V], again[V];
    const firn_sample_params plain = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};

    count(plain, hits);
    near(hits[0], 0.3);
    near(hits[1], 0.4);
    near(hits[2], 0.1);
    near(hits[3], 0.2);
    assert_int_equal(hits[4] + hits[5], 0);
    count(plain, again);
    assert_memory_equal(hits, again, sizeof hits);

    firn_sample_params p = plain;
    p.temperature = 0.5f; /* squares: 9, 16, 1, 4 of 30 */
    count(p, hits);
    near(hits[1], 16 / 30.0);
    near(hits[2], 1 / 30.0);

    p = plain;
    p.top_k = 2;
    count(p, hits);
    near(hits[1], 4 / 7.0);
    assert_int_equal(hits[2] + hits[3], 0);

    p = plain;
    p.top_p = 0.75f; /* 0.4 + 0.3 fall short: a third is needed */
    count(p, hits);
    near(hits[3], 2 / 9.0);
    assert_int_equal(hits[2], 0);

    p = plain;
    p.min_p = 0.6f; /* at least 0.24 */
    count(p, hits);
    near(hits[1], 4 / 7.0);
    assert_int_equal(hits[2] + hits[3], 0);
}

/* ---- many candidates, against sorting them all ---- */

enum { MANY = 3000 };

typedef struct {
    int32_t id;
    double logit, p;
} sorted;

static int falling(const void *a, const void *b)
{
    const sorted *p = a, *q = b;

    return p->logit != q->logit ? (p->logit < q->logit ? 1 : -1) : p->id - q->id;
}

static int32_t by_sorting(const firn_sample_params *p, const float *many, uint64_t step)
{
    static sorted c[MANY];
    double sum = 0, kept = 0;
    int n = p->top_k > 0 ? p->top_k : MANY, m = 0;

    for (int i = 0; i < MANY; i++)
        c[i] = (sorted){i, many[i], 0};
    qsort(c, MANY, sizeof *c, falling);
    for (int i = 0; i < n; i++)
        sum += c[i].p = exp((c[i].logit - c[0].logit) / (double)p->temperature);
    while (m < n && (m == 0 || (kept < (double)p->top_p * sum && c[m].p >= (double)p->min_p)))
        kept += c[m++].p;
    double x = (double)(firn_random(p->seed, 0, step) >> 11) * 0x1p-53 * kept;
    int i = 0;
    for (; i < m - 1 && x >= c[i].p; i++)
        x -= c[i].p;
    return c[i].id;
}

static void test_many(void **state)
{
    static float many[MANY];
    const firn_sample_params params[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 3, .top_p = 0.9f},
        {.temperature = 1, .top_p = 1, .top_k = 7},
        {.temperature = 2, .top_p = 1, .min_p = 0.05f},
        {.temperature = 1.5f, .top_p = 0.8f, .top_k = 400, .min_p = 0.001f},
    };
    firn_context *ctx = firn_context_create(NULL);

    (void)state;
    for (int i = 0; i < MANY; i++) /* many are equal */
        many[i] = (float)(firn_random(3, 1, (uint64_t)i) % 64) / 8;
    for (size_t k = 0; k < sizeof params / sizeof *params; k++) {
        firn_sample_params p = params[k];
        firn_sampler *s;
        p.repeat_penalty = 1;
        p.seed = 11 + k;
        assert_int_equal(firn_sampler_create(ctx, &p, MANY, &s), FIRN_OK);
        for (uint64_t step = 0; step < 300; step++)
            assert_int_equal(firn_sampler_next(s, many), by_sorting(&p, many, step));
        firn_sampler_destroy(s);
    }
    firn_context_destroy(ctx);
}

static void test_greedy(void **state)
{
    (void)state;
    firn_context *ctx = firn_context_create(NULL);
    firn_sampler *s;
    const float tie[4] = {NAN, 2, 2, -1};
    firn_sample_params p = {.top_p = 1, .repeat_penalty = 1};

    assert_int_equal(firn_sampler_create(ctx, &p, 4, &s), FIRN_OK);
    assert_int_equal(firn_sampler_next(s, tie), 1);
    assert_int_equal(firn_sampler_next(s, tie), 1);
    firn_sampler_destroy(s);

    p.repeat_penalty = 1.5f;
    assert_int_equal(firn_sampler_create(ctx, &p, 4, &s), FIRN_OK);
    assert_int_equal(firn_sampler_next(s, tie), 1);
    assert_int_equal(firn_sampler_next(s, tie), 2); /* 2 / 1.5 against 2 */
    assert_int_equal(firn_sampler_next(s, tie), 1);
    firn_sampler_destroy(s);

    p.repeat_penalty = 0;
    assert_int_equal(firn_sampler_create(ctx, &p, 4, &s), FIRN_ERR_ARGUMENT);
    assert_null(s);
    firn_context_destroy(ctx);
}

/* Runs `firn generate MODEL args`; its exit status, and what it printed on both streams. */
static int generate(const char *args, char *out, size_t capacity)
{
    char command[1024];

    snprintf(command, sizeof command, "%s/firn generate " MODEL " %s 2>&1", FIRN_BIN_DIR, args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    const size_t n = fread(out, 1, capacity - 1, f);
    out[n] = 0;
    return pclose(f) >> 8 & 255;
}

static void test_command(void **state)
{
    (void)state;
    char a[4096], b[4096];

    assert_int_equal(generate("-p hello -n 8", a, sizeof a), 0);
    assert_true(a[0] && a[strlen(a) - 1] == '\n');
    assert_int_equal(generate("-p hello -n 8 --threads 1", b, sizeof b), 0);
    assert_string_equal(a, b);
    assert_int_equal(generate("-p hello -n 8 --temp 1 --top-k 1", b, sizeof b), 0);
    assert_string_equal(a, b);
    assert_int_equal(generate("-p hello -n 12 --temp 2 --seed 1", a, sizeof a), 0);
    assert_int_equal(generate("-p hello -n 12 --temp 2 --seed 2", b, sizeof b), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(generate("--chat -p hello -n 4", a, sizeof a), 0);
    assert_int_equal(generate("--chat -n 4 < /dev/null", a, sizeof a), 0);
    assert_string_equal(a, "");
    assert_int_equal(generate("", a, sizeof a), 2);
    assert_int_equal(generate("-p ''", a, sizeof a), 1);
    assert_non_null(strstr(a, "firn: the prompt is empty"));
    assert_int_equal(generate("-p \"$(yes a | head -c 1000)\"", a, sizeof a), 1);
    assert_non_null(strstr(a, "the model knows contexts of 256"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
