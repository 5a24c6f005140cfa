/* Documents packed into one window are alone there: for every architecture (`firn init --like tiny-...`) each has the
 * loss and the gradient that it has by itself, and not a bit of them depends on what its neighbours say. Documents are
 * as long as what could reach over their borders: 1, 2, a filter's taps less one, a scan's chunk and one less and more.
 */
#include "unit/model.h"

#include "model/random_model.h"

#include <stdlib.h>

static const int lengths[] = {1, 2, 3, 31, 32, 33};
enum { N_DOCS = 6, TOTAL = 102 };

typedef struct {
    int32_t tokens[TOTAL], targets[TOTAL], position[TOTAL], first[TOTAL];
} window;

/* Document `doc` has targets, the others have none; their words are those of `seed`. */
static void fill(window *w, int doc, int seed)
{
    int at = 0;

    for (int d = 0; d < N_DOCS; d++)
        for (int i = 0, begin = at; i < lengths[d]; i++, at++) {
            const int s = d == doc ? 1 : seed;
            w->tokens[at] = (at * 37 * s + 11 * s + d) % 256;
            w->targets[at] = d == doc ? (at * 53 + 7) % 256 : -1;
            w->position[at] = i;
            w->first[at] = begin;
        }
}

typedef struct {
    double loss;
    float *gradient;
} result;

static result run(fixture *f, firn_session *session, window *w, int begin, int n)
{
    firn_batch batch = {.n_tokens = n, .tokens = w->tokens + begin, .targets = w->targets + begin};
    result r = {.gradient = malloc((size_t)f->adapter->n_values * sizeof(float))};
    int64_t n_targets;

    for (int i = 0; i < n; i++)
        w->first[begin + i] -= begin;
    batch.position = w->position + begin;
    batch.first = w->first + begin;
    firn_session_zero_gradients(session);
    OK(f->ctx, firn_session_gradient(session, &batch, 1, &r.loss, &n_targets));
    for (int i = 0; i < n; i++)
        w->first[begin + i] += begin;
    memcpy(r.gradient, firn_session_gradients(session), (size_t)f->adapter->n_values * sizeof(float));
    return r;
}

/* Kernels are chosen by the number of rows that they get, which for an expert is how many tokens chose it, whoever they
 * belong to; so bits can only be compared where all tokens choose all experts. */
static void check(const char *shape, bool all_experts)
{
    const char *path = in_scratch("model.gguf");
    firn_context *ctx = firn_context_create(NULL);
    firn_random_shape s = *firn_random_shape_find(shape);
    firn_session *session;
    fixture f;

    if (s.rope_scaling && strcmp(s.rope_scaling, "longrope") == 0)
        s.n_ctx_orig = s.n_ctx; /* one document's length chooses the factors of all */
    if (all_experts) {
        s.n_expert_used = s.n_expert;
        s.n_group = s.n_group_used = 0;
    }
    OK(ctx, firn_random_model_write(ctx, &s, 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    open_at(&f, path, NULL, 2);
    OK(f.ctx, firn_adapter_create(f.ctx, f.model, "attention", 2, 4, 1, &f.adapter));
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        if (f.adapter->values[i] == 0)
            f.adapter->values[i] = 0.02f * sinf((float)i);
    OK(f.ctx, firn_session_create(f.ctx, f.device, f.model, f.adapter,
                                  &(firn_session_params){.n_tokens = TOTAL, .train = true}, &session));
    const size_t bytes = (size_t)f.adapter->n_values * sizeof(float);
    const bool exact = all_experts || s.n_expert == 0;
    for (int doc = 0, begin = 0; doc < N_DOCS; begin += lengths[doc++]) {
        window w;
        if (doc % 2 == 0 && doc != 2)
            continue; /* these are neighbours only: time */
        fill(&w, doc, 3);
        const result packed = run(&f, session, &w, 0, TOTAL);
        if (!all_experts) {
            const result alone = run(&f, session, &w, begin, lengths[doc]);
            const double error = nmse(packed.gradient, alone.gradient, f.adapter->n_values);
            if (!(fabs(packed.loss - alone.loss) <= (s.n_state ? 1e-5 : 1e-6) * alone.loss) || !(error < 1e-7))
                fail_msg("%s: document %d has a loss of %.9g packed, %.9g alone, and gradients apart by %.1e", shape,
                         doc, packed.loss, alone.loss, error);
            free(alone.gradient);
        }
        fill(&w, doc, 5);
        const result beside = exact ? run(&f, session, &w, 0, TOTAL) : packed;
        if (packed.loss != beside.loss || memcmp(packed.gradient, beside.gradient, bytes) != 0)
            fail_msg("%s: document %d sees its neighbours: loss %.17g and %.17g, gradients apart by %.1e", shape, doc,
                     packed.loss, beside.loss, nmse(packed.gradient, beside.gradient, f.adapter->n_values));
        if (exact)
            free(beside.gradient);
        free(packed.gradient);
    }
    firn_session_destroy(session);
    close_fixture(&f);
}

static void test_documents(void **state)
{
    (void)state;
    for (int i = 0; firn_random_shape_at(i); i++)
        if (strncmp(firn_random_shape_at(i)->name, "tiny", 4) == 0)
            for (int all = 0; all < (firn_random_shape_at(i)->n_expert ? 2 : 1); all++)
                check(firn_random_shape_at(i)->name, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents)};

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
