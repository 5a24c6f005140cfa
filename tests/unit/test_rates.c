/* Rates of an adapter's factors: which stretches have which, and that an optimizer steps each by its own. */
#include "unit/model.h"

#include "core/random.h"
#include "model/random_model.h"
#include "train/rates.h"

#include <stdlib.h>

static void open_tiny(fixture *f)
{
    const char *path = in_scratch("model.gguf");
    firn_context *ctx = firn_context_create(NULL);

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find("tiny-qwen3moe"), 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    open_at(f, path, NULL, 1);
    OK(f->ctx, firn_adapter_create(f->ctx, f->model, "attention,experts,router", 3, 6, 1, &f->adapter));
}

static const firn_adapter_entry *entry(const fixture *f, const char *tensor)
{
    for (int i = 0; i < f->adapter->n_entries; i++)
        if (strcmp(f->adapter->entries[i].tensor, tensor) == 0)
            return &f->adapter->entries[i];
    fail_msg("%s has no adapter", tensor);
    return NULL;
}

static float factor_at(const firn_rate_stretch *list, int n, int64_t at)
{
    for (int i = 0; i < n; i++)
        if (at >= list[i].first && at < list[i].first + list[i].n)
            return list[i].factor;
    fail_msg("value %lld is in no stretch", (long long)at);
    return 0;
}

static void stretches_cover_the_adapter(void **state)
{
    static const char *const rate_of[] = {"router=1e-5", "blk.0.attn_*=4e-4", "blk.0.attn_q.weight=0"};
    fixture f;
    firn_rate_stretch *list;
    int n;

    (void)state;
    open_tiny(&f);
    OK(f.ctx, firn_rates_of(f.ctx, f.adapter, &(firn_rates){.learning_rate = 2e-4, .loraplus = 1}, &list, &n));
    assert_int_equal(n, 1);
    assert_true(list[0].first == 0 && list[0].n == f.adapter->n_values && list[0].factor == 1);
    firn_free(f.ctx, list);
    const firn_rates rates = {.rate_of = rate_of, .n_rate_of = 3, .learning_rate = 2e-4, .loraplus = 16};
    OK(f.ctx, firn_rates_of(f.ctx, f.adapter, &rates, &list, &n));
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        assert_int_equal(list[i].first, at);
        assert_true(i == 0 || list[i].factor != list[i - 1].factor);
        at += list[i].n;
    }
    assert_int_equal(at, f.adapter->n_values);
    const firn_adapter_entry *q = entry(&f, "blk.0.attn_q.weight"), *k = entry(&f, "blk.0.attn_k.weight"),
                             *other = entry(&f, "blk.1.attn_k.weight"),
                             *router = entry(&f, "blk.1.ffn_gate_inp.weight");
    assert_true(factor_at(list, n, q->a) == 0 && factor_at(list, n, q->b) == 0);
    assert_true(factor_at(list, n, k->a) == 2 && factor_at(list, n, k->b) == 32);
    assert_true(factor_at(list, n, other->a) == 1 && factor_at(list, n, other->b + 1) == 16);
    assert_true(fabsf(factor_at(list, n, router->a) - 0.05f) < 1e-7f);
    firn_free(f.ctx, list);
    close_fixture(&f);
}

static void refused(fixture *f, const char *item, double learning_rate, const char *words)
{
    firn_rate_stretch *list;
    int n;
    const firn_rates rates = {.rate_of = &item, .n_rate_of = 1, .learning_rate = learning_rate, .loraplus = 1};

    assert_int_equal(firn_rates_of(f->ctx, f->adapter, &rates, &list, &n), FIRN_ERR_ARGUMENT);
    assert_null(list);
    if (!strstr(firn_error(f->ctx), words))
        fail_msg("expected '%s' in: %s", words, firn_error(f->ctx));
}

static void what_is_no_rate_is_refused(void **state)
{
    fixture f;

    (void)state;
    open_tiny(&f);
    refused(&f, "router", 1e-4, "and its rate from 0 to 10, as in experts=1e-4, not 'router'");
    refused(&f, "router=x", 1e-4, "not 'router=x'");
    refused(&f, "router=-1", 1e-4, "not 'router=-1'");
    refused(&f, "router=nan", 1e-4, "not 'router=nan'");
    refused(&f, "output=1", 1e-4, "learning_rate_of 'output=1' matches no tensor that is trained");
    refused(&f, "router=1", 0, "needs a learning_rate above 0");
    close_fixture(&f);
}

/* The same gradient everywhere: what was stepped is each stretch's rate. */
static void each_stretch_is_stepped_by_its_own(void **state)
{
    static const firn_optimizer_kind kinds[] = {FIRN_OPTIMIZER_SGD, FIRN_OPTIMIZER_ADAMW};
    static const char *const rate_of[] = {"router=0.05"};
    fixture f;

    (void)state;
    open_tiny(&f);
    const int64_t n = f.adapter->n_values;
    float *values = malloc((size_t)n * sizeof *values), *ones = malloc((size_t)n * sizeof *ones);
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1;
    for (int k = 0; k < 2; k++) {
        const firn_rates rates = {.rate_of = rate_of, .n_rate_of = 1, .learning_rate = 0.1, .loraplus = 4};
        firn_rate_stretch *list;
        firn_session *session;
        firn_optimizer *o;
        firn_optimizer_params params;
        double norm;
        int n_list;
        OK(f.ctx, firn_rates_of(f.ctx, f.adapter, &rates, &list, &n_list));
        OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter,
                                      &(firn_session_params){.n_tokens = N, .train = true}, &session));
        firn_parameters *store = firn_session_parameters(session);
        firn_optimizer_params_init(&params);
        params.kind = kinds[k];
        OK(f.ctx, firn_optimizer_create_on(store, &params, list, n_list, &o));
        OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_VALUES, 0, n, ones));
        OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_GRADIENTS, 0, n, ones));
        OK(f.ctx, firn_optimizer_step(o, 0.1f, &norm));
        assert_true(fabs(norm - sqrt((double)n)) < 1e-6 * norm);
        OK(f.ctx, firn_parameters_read(store, FIRN_PARAMETERS_VALUES, 0, n, values));
        for (int64_t i = 0; i < n; i++) {
            const float wanted = 1 - 0.1f * factor_at(list, n_list, i);
            if (!(fabsf(values[i] - wanted) < 1e-6f))
                fail_msg("value %lld is %g, not %g", (long long)i, (double)values[i], (double)wanted);
        }
        /* A norm that is not finite leaves every stretch as it was. */
        OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_GRADIENTS, n - 1, 1, &(float){INFINITY}));
        assert_int_equal(firn_optimizer_step(o, 0.1f, &norm), FIRN_ERR_DEVICE);
        OK(f.ctx, firn_parameters_read(store, FIRN_PARAMETERS_VALUES, 0, n, ones));
        assert_memory_equal(ones, values, (size_t)n * sizeof *values);
        for (int64_t i = 0; i < n; i++)
            ones[i] = 1;
        firn_optimizer_destroy(o);
        firn_session_destroy(session);
        firn_free(f.ctx, list);
    }
    free(values);
    free(ones);
    close_fixture(&f);
}

/* Of an [r, n] or [n, r] matrix s U S V', muon's step is U V' about: singular values of the step near one another,
 * whatever S was, so that G = X X' of the short side is near the unit matrix; and it goes down. */
static void check_orthogonal(const float *step, const float *gradient, int64_t ne0, int64_t ne1, bool tall)
{
    const int64_t r = tall ? ne0 : ne1, n = tall ? ne1 : ne0;
    const double size = 0.2 * sqrt((double)firn_max_i64(ne0, ne1));
    double along = 0, trace = 0;

    for (int64_t i = 0; i < ne0 * ne1; i++)
        along += (double)step[i] * (double)gradient[i];
    assert_true(along < 0);
    for (int64_t i = 0; i < r; i++)
        for (int64_t j = 0; j < r; j++) {
            double sum = 0;
            for (int64_t k = 0; k < n; k++)
                sum += (double)step[tall ? k * ne0 + i : i * ne0 + k] * (double)step[tall ? k * ne0 + j : j * ne0 + k];
            sum /= size * size;
            trace += i == j ? sum : 0;
            if (!(i == j ? sum > 0.4 && sum < 1.6 : fabs(sum) < 0.4))
                fail_msg("element [%d, %d] of G is %g", (int)i, (int)j, sum);
        }
    assert_true(trace > 0.4 * (double)r && trace < 1.6 * (double)r); /* squares of about 0.7 to 1.15 */
}

static void muon_steps_are_orthogonal(void **state)
{
    const float lr = 0.5f;
    fixture f;
    firn_session *session;
    firn_optimizer *o;
    firn_optimizer_params params;
    double norm;

    (void)state;
    open_tiny(&f);
    const int64_t n = f.adapter->n_values;
    float *g = malloc((size_t)n * sizeof *g), *before = calloc((size_t)n, sizeof *g),
          *after = malloc((size_t)n * sizeof *g);
    for (int64_t i = 0; i < n; i++)
        g[i] = 1e-3f * (2 * firn_random_unit(5, 1, (uint64_t)i) - 1) * (float)(1 + i % 3);
    for (int i = 0; i < f.adapter->n_entries; i++) { /* singular values from 1 to a hundredth or so */
        const firn_adapter_entry *e = &f.adapter->entries[i];
        for (int64_t k = 0; k < e->n_in * e->rank * e->n_expert; k++)
            g[e->a + k] *= powf(0.1f, (float)(k / e->n_in % e->rank));
        for (int64_t k = 0; k < e->n_out * e->rank * e->n_expert; k++)
            g[e->b + k] *= powf(0.1f, (float)(k % e->rank));
    }
    const firn_adapter_entry *idle = entry(&f, "blk.0.ffn_up_exps.weight"); /* its expert 1 has no gradient */
    memset(g + idle->b + idle->rank * idle->n_out, 0, (size_t)(idle->rank * idle->n_out) * sizeof *g);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter,
                                  &(firn_session_params){.n_tokens = N, .train = true}, &session));
    firn_parameters *store = firn_session_parameters(session);
    firn_optimizer_params_init(&params);
    params.kind = FIRN_OPTIMIZER_MUON;
    params.clip = 1e-3f; /* the size of a gradient does not count */
    OK(f.ctx, firn_optimizer_create_on(store, &params, NULL, 0, &o));
    OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_VALUES, 0, n, before));
    OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_GRADIENTS, 0, n, g));
    OK(f.ctx, firn_optimizer_step(o, lr, &norm));
    OK(f.ctx, firn_parameters_read(store, FIRN_PARAMETERS_VALUES, 0, n, after));
    for (int64_t i = 0; i < n; i++)
        before[i] = after[i] / lr;
    for (int i = 0; i < f.adapter->n_entries; i++) {
        const firn_adapter_entry *e = &f.adapter->entries[i];
        for (int64_t x = 0; x < e->n_expert; x++) {
            const int64_t a = e->a + x * e->n_in * e->rank, b = e->b + x * e->n_out * e->rank;
            check_orthogonal(before + a, g + a, e->n_in, e->rank, false);
            if (e != idle || x != 1)
                check_orthogonal(before + b, g + b, e->rank, e->n_out, true);
            for (int64_t k = 0; e == idle && x == 1 && k < e->n_out * e->rank; k++)
                assert_true(after[b + k] == 0);
        }
    }
    /* A norm that is not finite leaves values and momentum as they were. */
    OK(f.ctx, firn_parameters_write(store, FIRN_PARAMETERS_GRADIENTS, 7, 1, &(float){NAN}));
    assert_int_equal(firn_optimizer_step(o, lr, &norm), FIRN_ERR_DEVICE);
    OK(f.ctx, firn_parameters_read(store, FIRN_PARAMETERS_VALUES, 0, n, before));
    assert_memory_equal(before, after, (size_t)n * sizeof *after);
    OK(f.ctx, firn_parameters_read(store, FIRN_PARAMETERS_M, 0, n, before));
    assert_true(firn_all_finite(before, n));
    firn_optimizer_destroy(o);
    firn_session_destroy(session);
    free(g);
    free(before);
    free(after);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stretches_cover_the_adapter),
        cmocka_unit_test(what_is_no_rate_is_refused),
        cmocka_unit_test(each_stretch_is_stepped_by_its_own),
        cmocka_unit_test(muon_steps_are_orthogonal),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
