/* Ranks and scales: which rank each tensor gets, that what is written computes at llama.cpp's scale what was trained at
 * another, and that a run keeps both when it goes on. */
#include "unit/model.h"

#include "core/file.h"
#include "firn/export.h"
#include "firn/train.h"
#include "model/random_model.h"
#include "train/low_rank.h"

#include <jansson.h>
#include <stdlib.h>

static void open_tiny(fixture *f)
{
    const char *path = in_scratch("model.gguf");
    firn_context *ctx = firn_context_create(NULL);

    OK(ctx, firn_random_model_write(ctx, firn_random_shape_find("tiny-qwen3moe"), 0, FIRN_F32, 3, path, NULL));
    firn_context_destroy(ctx);
    open_at(f, path, NULL, 1);
}

static int64_t rank_of(const firn_adapter *ad, const char *tensor)
{
    for (int i = 0; i < ad->n_entries; i++)
        if (strcmp(ad->entries[i].tensor, tensor) == 0)
            return ad->entries[i].rank;
    return 0;
}

static void the_last_that_matches_says_the_rank(void **state)
{
    static const char *const rank_of_list[] = {"attention=3", "blk.*.attn_q.weight=5", "blk.1.attn_q.weight=1"};
    const firn_adapter_spec spec = {.rank = 8, .expert_rank = 2, .rank_of = rank_of_list, .n_rank_of = 3, .alpha = 16};
    fixture f;

    (void)state;
    open_tiny(&f);
    OK(f.ctx, firn_adapter_describe(f.ctx, f.model, &spec, &f.adapter));
    assert_int_equal(rank_of(f.adapter, "blk.0.attn_k.weight"), 3);
    assert_int_equal(rank_of(f.adapter, "blk.0.attn_q.weight"), 5);
    assert_int_equal(rank_of(f.adapter, "blk.1.attn_q.weight"), 1);
    assert_int_equal(rank_of(f.adapter, "blk.0.ffn_up_exps.weight"), 2);
    for (int i = 0; i < f.adapter->n_entries; i++) /* of whatever rank, one scale */
        assert_true(f.adapter->entries[i].scale == 2);
    close_fixture(&f);
}

static void the_rank_of_experts_follows_how_many_are_used(void **state)
{
    fixture f;

    (void)state;
    open_tiny(&f);
    const int64_t used = f.model->hp.n_expert_used;
    assert_true(used > 1);
    assert_int_equal(firn_rank_of_experts(f.model, 16 * used), 16);
    assert_int_equal(firn_rank_of_experts(f.model, 4 * used - 1), 4);
    assert_int_equal(firn_rank_of_experts(f.model, 3), 3);
    close_fixture(&f);
}

static void refused(fixture *f, const char *item, const char *words)
{
    const firn_adapter_spec spec = {.rank = 4, .rank_of = &item, .n_rank_of = 1, .alpha = 8};
    firn_adapter *ad;

    assert_int_equal(firn_adapter_describe(f->ctx, f->model, &spec, &ad), FIRN_ERR_ARGUMENT);
    if (!strstr(firn_error(f->ctx), words))
        fail_msg("expected '%s' in: %s", words, firn_error(f->ctx));
}

static void what_is_no_rank_is_refused(void **state)
{
    fixture f;

    (void)state;
    open_tiny(&f);
    refused(&f, "experts", "and its rank from 1 to 4096, as in experts=8");
    refused(&f, "experts=0", "and its rank from 1 to 4096");
    refused(&f, "experts=4097", "and its rank from 1 to 4096");
    refused(&f, "experts=4x", "not 'experts=4x'");
    refused(&f, "=4", "and its rank");
    refused(&f, "output=4", "rank_of 'output=4' matches no tensor that is trained");
    refused(&f, "attn_q=4", "rank_of 'attn_q=4' matches no tensor that is trained");
    close_fixture(&f);
}

/* Logits of a batch with the adapter. */
static void logits_with(fixture *f, firn_adapter *ad, float *logits, int64_t n)
{
    const firn_batch batch = batch_of(f, N);
    firn_session *session;

    OK(f->ctx, firn_session_create(f->ctx, f->device, f->model, ad, &(firn_session_params){.n_tokens = N}, &session));
    OK(f->ctx, firn_session_logits(session, &batch, logits));
    firn_session_destroy(session);
    assert_true(firn_all_finite(logits, n));
}

/* Saved and loaded, and loaded by what llama.cpp knows, the update is the one that was trained. */
static void saved_and_loaded(bool rslora)
{
    static const char *const rank_of_list[] = {"blk.*.attn_q.weight=7"};
    const firn_adapter_spec spec = {
        .rank = 8, .expert_rank = 3, .rank_of = rank_of_list, .n_rank_of = 1, .alpha = 12, .rslora = rslora};
    fixture f;
    firn_adapter *again;

    open_tiny(&f);
    OK(f.ctx, firn_adapter_describe(f.ctx, f.model, &spec, &f.adapter));
    OK(f.ctx, firn_adapter_start(f.adapter, 1));
    for (int64_t i = 0; i < f.adapter->n_values; i++)
        f.adapter->values[i] = 0.1f * sinf(0.7f * (float)i);
    OK(f.ctx, firn_adapter_save(f.ctx, f.adapter, NULL, in_scratch("a.gguf")));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, in_scratch("a.gguf"), &again));
    assert_true(firn_adapter_is_saved_as(f.adapter, again));
    for (int i = 0; i < again->n_entries; i++) {
        const firn_adapter_entry *e = &f.adapter->entries[i], *l = &again->entries[i];
        const double wanted = rslora ? 12 / sqrt((double)e->rank) : 12.0 / 8;
        assert_true(fabs((double)e->scale - wanted) < 1e-6);
        assert_true(l->scale == 12 / (float)l->rank); /* all that llama.cpp goes by */
        for (int k = 0; k < 5; k++) {
            const double is = (double)l->scale * (double)again->values[l->b + k];
            const double was = wanted * (double)f.adapter->values[e->b + k];
            if (!(fabs(is - was) < 1e-6 * (fabs(was) + 1e-6)))
                fail_msg("%s: %g in place of %g", e->tensor, is, was);
        }
    }
    const int64_t n = N * firn_model_get_info(f.model)->n_vocab;
    float *x = malloc((size_t)n * sizeof *x), *y = malloc((size_t)n * sizeof *y), *base = malloc((size_t)n * sizeof *y);
    logits_with(&f, f.adapter, x, n);
    logits_with(&f, again, y, n);
    logits_with(&f, NULL, base, n);
    assert_true(nmse(y, x, n) < 1e-11);
    assert_true(nmse(base, x, n) > 1e-4);
    again->values[again->entries[0].b] = 7;
    assert_false(firn_adapter_is_saved_as(f.adapter, again));
    free(x);
    free(y);
    free(base);
    firn_adapter_destroy(again);
    close_fixture(&f);
}

static void mixed_ranks_are_written_at_llamas_scale(void **state)
{
    (void)state;
    saved_and_loaded(false);
}

static void rslora_is_written_at_llamas_scale(void **state)
{
    (void)state;
    saved_and_loaded(true);
}

/* PEFT's own: alpha / r of the module, each from its pattern or the default. */
static void peft_gets_ranks_and_alphas(void **state)
{
    static const char *const rank_of_list[] = {"blk.*.attn_q.weight=7"};
    const firn_adapter_spec spec = {
        .rank = 8, .expert_rank = 3, .rank_of = rank_of_list, .n_rank_of = 1, .alpha = 12, .rslora = true};
    fixture f;

    (void)state;
    open_tiny(&f);
    OK(f.ctx, firn_adapter_describe(f.ctx, f.model, &spec, &f.adapter));
    OK(f.ctx, firn_adapter_start(f.adapter, 1));
    OK(f.ctx, firn_adapter_export_peft(f.ctx, f.model, f.adapter, in_scratch("peft"), NULL));
    json_t *config = json_load_file(in_scratch("peft/adapter_config.json"), 0, NULL);
    assert_non_null(config);
    const json_t *ranks = json_object_get(config, "rank_pattern"), *alphas = json_object_get(config, "alpha_pattern");
    static const struct {
        const char *name;
        int parts; /* gate and up are one module there, of the ranks' sum */
        int64_t rank;
    } modules[] = {{"q_proj", 1, 7}, {"k_proj", 1, 8}, {"mlp.experts.gate_up_proj", 2, 3}};
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        const json_t *r = json_object_get(ranks, modules[i].name), *a = json_object_get(alphas, modules[i].name);
        r = r ? r : json_object_get(config, "r");
        a = a ? a : json_object_get(config, "lora_alpha");
        assert_int_equal(json_integer_value(r), modules[i].parts * modules[i].rank);
        const double scale = json_number_value(a) / (double)json_integer_value(r);
        assert_true(fabs(scale - 12 / sqrt((double)modules[i].rank)) < 1e-5);
    }
    json_decref(config);
    close_fixture(&f);
}

/* ---- runs ---- */

typedef struct {
    int steps, stop_at;
    char said[8192];
} watcher;

static void say(void *user, const char *line)
{
    watcher *w = user;
    const size_t n = strlen(w->said);

    snprintf(w->said + n, sizeof w->said - n, "%s\n", line);
}

static void progress(void *user, const firn_progress *p)
{
    (void)p;
    ((watcher *)user)->steps++;
}

static bool stop(void *user)
{
    watcher *w = user;

    return w->stop_at > 0 && w->steps >= w->stop_at;
}

static void train(firn_context *ctx, const firn_train_options *o, const char *resume, int stop_at, char *said)
{
    watcher w = {.stop_at = stop_at};
    const firn_watch watch = {.size = sizeof watch, .user = &w, .say = say, .progress = progress, .stop = stop};
    firn_train_result result = {.size = sizeof result};

    if (resume)
        OK(ctx, firn_train_resume(ctx, resume, o, 0, &watch, &result));
    else
        OK(ctx, firn_train(ctx, o, 0, &watch, &result));
    assert_int_equal(result.finished, stop_at == 0);
    if (said)
        snprintf(said, sizeof w.said, "%s", w.said);
}

static void a_run_keeps_them_when_it_goes_on(void **state)
{
    fixture f;
    firn_train_options o, none;
    firn_adapter *whole, *part, *checkpoint;
    char said[sizeof((watcher *)NULL)->said];

    (void)state;
    open_tiny(&f);
    FILE *data = fopen(in_scratch("d.jsonl"), "w");
    for (int i = 0; i < 24; i++)
        fprintf(data, "{\"prompt\": \"north %d\", \"completion\": \" south %d\"}\n", i, i * 7 % 5);
    fclose(data);
    firn_train_options_init(&none);
    firn_train_options_init(&o);
    o.model = in_scratch("model.gguf");
    o.data = FIRN_STRINGS(in_scratch("d.jsonl"));
    char output[2][256];
    snprintf(output[0], sizeof output[0], "%s", in_scratch("whole"));
    snprintf(output[1], sizeof output[1], "%s", in_scratch("part"));
    o.steps = 4;
    o.context = 32;
    o.learning_rate = 1e-2;
    o.rank = 8;
    o.rank_of = FIRN_STRINGS("blk.1.attn_q.weight=5");
    o.rslora = true;
    o.output = output[0];
    train(f.ctx, &o, NULL, 0, said);
    if (!strstr(said, " of ranks 4 to 8, alpha 5.65685, rslora: "))
        fail_msg("%s", said);
    o.output = output[1];
    train(f.ctx, &o, NULL, 2, NULL);
    char path[3][300];
    snprintf(path[0], sizeof path[0], "%s/adapter.gguf", output[0]);
    snprintf(path[1], sizeof path[1], "%s/adapter.gguf", output[1]);
    snprintf(path[2], sizeof path[2], "%s/checkpoints/step-00000004.gguf", output[1]);
    train(f.ctx, &none, output[1], 0, NULL);
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, path[0], &whole));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, path[1], &part));
    OK(f.ctx, firn_adapter_load(f.ctx, f.model, path[2], &checkpoint));
    assert_int_equal(rank_of(whole, "blk.1.attn_q.weight"), 5);
    assert_int_equal(rank_of(whole, "blk.0.attn_q.weight"), 8);
    assert_int_equal(rank_of(whole, "blk.0.ffn_down_exps.weight"), 4);
    assert_memory_equal(whole->values, part->values, (size_t)whole->n_values * sizeof(float));
    assert_true(firn_adapter_is_saved_as(checkpoint, whole)); /* a checkpoint knows what was trained with */
    assert_true(fabs((double)checkpoint->entries[0].scale - 2) < 1e-6);
    firn_adapter_destroy(whole);
    firn_adapter_destroy(part);
    firn_adapter_destroy(checkpoint);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_that_matches_says_the_rank),
        cmocka_unit_test(the_rank_of_experts_follows_how_many_are_used),
        cmocka_unit_test(what_is_no_rank_is_refused),
        cmocka_unit_test(mixed_ranks_are_written_at_llamas_scale),
        cmocka_unit_test(rslora_is_written_at_llamas_scale),
        cmocka_unit_test(peft_gets_ranks_and_alphas),
        cmocka_unit_test(a_run_keeps_them_when_it_goes_on),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
