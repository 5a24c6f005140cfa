/* The course of a run: the best adapter is the one that is left, patience ends, a run that diverges stops or goes back,
 * and all of it is the same bits when the run is interrupted. */
#include "unit/run.h"

#include "train/cadence.h"
#include "train/neftune.h"

enum { STEPS = 24 };

static int prepare(void **state)
{
    if (set_up(state))
        return -1;
    make_model();
    write_lines("d.jsonl", 4, 0);
    write_lines("f.jsonl", 1, 0);
    write_lines("e.jsonl", 8, 2); /* what helps with the one soon harms with the other */
    return 0;
}

static firn_train_options options_for(char *output)
{
    static const char *data[1];
    firn_train_options o;

    if (!data[0])
        data[0] = kept("d.jsonl");
    firn_train_options_init(&o);
    o.model = kept("model.gguf");
    o.data = (firn_strings){data, 1};
    o.output = output;
    o.steps = STEPS;
    o.context = 32;
    o.learning_rate = 1e-2;
    o.schedule = "constant";
    o.warmup = 0;
    o.rank = 4;
    o.save_every = 2;
    o.eval_every = 2;
    return o;
}

static int64_t number(const char *folder, const char *key)
{
    json_t *j = record_of(folder);
    const int64_t n = json_integer_value(json_object_get(j, key));

    json_decref(j);
    return n;
}

/* The step of the least evaluation loss in metrics.jsonl, behind the first line; *end: that of the evaluation after
 * which `patience` in a row were no better, where the run would have ended with the best so far. 0: it would not. */
static int64_t best_in_metrics(const char *folder, int patience, int64_t *end)
{
    char path[512], line[1024];
    double least = INFINITY;
    int64_t best = 0;
    int stale = 0;

    *end = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (!*end && fgets(line, sizeof line, f)) {
        json_t *j = json_loads(line, 0, NULL);
        const int64_t step = json_integer_value(json_object_get(j, "step"));
        const json_t *loss = json_object_get(j, "eval_loss");
        if (step > 0 && loss && json_number_value(loss) < least) {
            least = json_number_value(loss);
            best = step;
            stale = 0;
        } else if (step > 0 && loss && ++stale == patience) {
            *end = step;
        }
        json_decref(j);
    }
    fclose(f);
    return best;
}

static char *whole(void)
{
    static char *folder;

    if (folder)
        return folder;
    firn_train_options o = options_for(kept("whole"));
    o.eval_data = kept("e.jsonl");
    run_well(&o, NULL, 0);
    return folder = (char *)(uintptr_t)o.output;
}

static void the_best_is_left(void **state)
{
    char name[256];
    int64_t end;

    (void)state;
    const int64_t best = best_in_metrics(whole(), 0, &end);
    assert_true(best > 0 && best < STEPS); /* or this tests nothing */
    assert_int_equal(number(whole(), "adapter_step"), best);
    assert_int_equal(number(whole(), "last_step"), STEPS);
    snprintf(name, sizeof name, "checkpoints/best-%08d.gguf", (int)best);
    assert_true(same_values(whole(), "adapter.gguf", whole(), name));
    assert_false(same_values(whole(), "adapter.gguf", whole(), "checkpoints/step-00000024.gguf"));

    firn_train_options o = options_for(kept("last"));
    o.eval_data = kept("e.jsonl");
    o.final = "last";
    const outcome last = run_well(&o, NULL, 0);
    assert_int_equal(last.result.adapter_step, STEPS);
    assert_true(same_values(o.output, "adapter.gguf", whole(), "checkpoints/step-00000024.gguf"));
    snprintf(name, sizeof name, "%s/checkpoints/best-%08d.gguf", o.output, (int)best);
    assert_int_not_equal(access(name, F_OK), 0);
}

static void it_is_the_same_when_interrupted(void **state)
{
    int64_t none;

    (void)state;
    firn_train_options o = options_for(kept("parts"));
    o.eval_data = kept("e.jsonl");
    const int64_t best = best_in_metrics(whole(), 0, &none);
    run_well(&o, NULL, (int)best); /* just behind the evaluation that chose it */
    resume_well(o.output, 1);
    resume_well(o.output, 3);
    const outcome end = resume_well(o.output, 0);
    assert_int_equal(end.result.adapter_step, best);
    assert_true(same_values(o.output, "adapter.gguf", whole(), "adapter.gguf"));
    const outcome again = resume_well(o.output, 0);
    assert_true(again.result.was_finished && again.result.step == STEPS && again.result.adapter_step == best);
}

static void patience_ends(void **state)
{
    int64_t end;

    (void)state;
    firn_train_options o = options_for(kept("patient"));
    o.eval_data = kept("e.jsonl");
    o.patience = 2;
    const int64_t best = best_in_metrics(whole(), 2, &end);
    assert_true(end > 0 && end < STEPS);
    const outcome w = run_well(&o, NULL, 0);
    assert_int_equal(w.result.step, end);
    assert_int_equal(w.result.adapter_step, best);
    assert_non_null(strstr(w.said, "enough   after step "));

    o.output = kept("patient-parts"); /* stopped where one of the two is counted */
    run_well(&o, NULL, (int)end - 2);
    assert_int_equal(resume_well(o.output, 0).result.step, end);
    assert_true(same_values(o.output, "adapter.gguf", kept("patient"), "adapter.gguf"));

    o = options_for(kept("nothing"));
    o.patience = 2;
    o.eval_split = 0;
    assert_int_equal(run_it(&o, NULL, 0).status, FIRN_ERR_ARGUMENT);
    o.eval_split = NAN;
    o.eval_data = kept("e.jsonl");
    o.eval_every = FIRN_SECONDS(600);
    const outcome clock = run_it(&o, NULL, 0);
    if (!strstr(clock.error, "patience counts evaluations that come by steps"))
        fail_msg("%s", clock.error);
}

/* What a clock calls for changes neither values nor choice, however often it does. */
static void a_clock_chooses_nothing(void **state)
{
    (void)state;
    firn_train_options o = options_for(kept("clock"));
    o.eval_data = kept("e.jsonl");
    o.eval_every = FIRN_SECONDS(1);
    o.save_every = FIRN_SECONDS(60);
    const outcome w = run_well(&o, NULL, 0);
    assert_int_equal(w.result.adapter_step, STEPS);
    assert_true(same_values(o.output, "adapter.gguf", whole(), "checkpoints/step-00000024.gguf"));
    json_t *j = record_of(o.output);
    const json_t *options = json_object_get(j, "options");
    assert_string_equal(json_string_value(json_object_get(options, "eval_every")), "1s");
    assert_string_equal(json_string_value(json_object_get(options, "save_every")), "1m");
    json_decref(j);
    resume_well(o.output, 0);
}

static void cadences_are_read_and_written(void **state)
{
    static const struct {
        const char *text;
        int64_t every;
        const char *written;
    } good[] = {{"0", 0, "0"},        {"50", 50, "50"},    {"90s", -90, "90s"},
                {"10m", -600, "10m"}, {"2h", -7200, "2h"}, {"120m", -7200, "2h"}};
    static const char *const bad[] = {"", "m", "-1", "10x", "10mm", "0s", "1.5h", "99999999999", "10 m"};
    char text[FIRN_CADENCE_BYTES];
    int64_t every;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(firn_cadence_read(good[i].text, &every) && every == good[i].every);
        firn_cadence_write(every, text);
        assert_string_equal(text, good[i].written);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(firn_cadence_read(bad[i], &every));
}

/* The rate rises until the weight decay is more than twice its inverse, and every value grows with each step. */
static firn_train_options diverging(char *output)
{
    static const char *few[1];
    firn_train_options o = options_for(output);

    few[0] = few[0] ? few[0] : kept("f.jsonl");
    o.steps = 60;
    o.warmup = 60;
    o.data = (firn_strings){few, 1};
    o.optimizer = "sgd";
    o.learning_rate = 0.5;
    o.weight_decay = 10;
    o.save_every = 5;
    o.eval_every = 0;
    o.eval_split = 0;
    return o;
}

static void a_run_that_diverges_stops(void **state)
{
    (void)state;
    const firn_train_options o = diverging(kept("stops"));
    const outcome w = run_it(&o, NULL, 0);
    assert_int_equal(w.status, FIRN_ERR_DEVICE);
    if (!strstr(w.error, ": the run diverges: the mean loss of its steps was "))
        fail_msg("%s", w.error);
}

static void or_goes_back(void **state)
{
    (void)state;
    firn_train_options o = diverging(kept("back"));
    o.on_divergence = "rewind";
    const outcome w = run_it(&o, NULL, 0);
    if (w.status != FIRN_OK)
        fail_msg("%s\n%s", w.error, w.said);
    const char *at = strstr(w.said, " back from step ");
    assert_non_null(at);
    long long from, to;
    assert_int_equal(sscanf(at, " back from step %lld to step %lld,", &from, &to), 2);
    assert_true(to < from && to % 5 == 0);
    /* Every step once in the metrics, the last rates lower than they would have been. */
    char path[512], line[1024];
    int64_t step = -1;
    double rate = 0;
    snprintf(path, sizeof path, "%s/metrics.jsonl", o.output);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        json_t *j = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(j, "step")), step + 1);
        rate = json_number_value(json_object_get(j, "learning_rate"));
        json_decref(j);
        step++;
    }
    fclose(f);
    assert_int_equal(step, 60);
    assert_true(rate > 0 && rate <= 0.25);

    firn_train_options parts = diverging(kept("back-parts"));
    parts.on_divergence = "rewind";
    run_well(&parts, NULL, (int)from - 2);
    resume_well(parts.output, 4);
    resume_well(parts.output, 0);
    assert_true(same_values(parts.output, "adapter.gguf", o.output, "adapter.gguf"));
}

/* Of alpha / sqrt(L d) at most and nearly so, by the length of each sample; nothing behind the pass. */
static void noise_has_its_size(void **state)
{
    enum { D = 64, ROOM = 6 };
    int32_t first[] = {0, 0, 0, 0, 4};
    const firn_pass pass = {.n = 5, .first = first};
    float noise[ROOM * D], other[ROOM * D];

    (void)state;
    firn_neftune_fill(&pass, 8, 1, 3, 0, D, ROOM, noise);
    for (int t = 0; t < ROOM; t++) {
        const double most = t < 4 ? 8 / sqrt(4.0 * D) : t == 4 ? 8 / sqrt(1.0 * D) : 0;
        double size = 0, sum = 0;
        for (int i = 0; i < D; i++) {
            size = fmax(size, fabs((double)noise[t * D + i]));
            sum += (double)noise[t * D + i];
        }
        assert_true(size <= most * 1.000001 && size >= 0.8 * most && fabs(sum) <= 0.4 * D * most);
    }
    firn_neftune_fill(&pass, 8, 1, 3, 0, D, ROOM, other);
    assert_memory_equal(noise, other, sizeof noise);
    firn_neftune_fill(&pass, 8, 1, 3, 1, D, ROOM, other);
    assert_true(other[0] != noise[0] && other[1] != noise[1]);
    firn_neftune_fill(&pass, 8, 1, 4, 0, D, ROOM, other);
    assert_true(other[0] != noise[0] && other[1] != noise[1]);
}

/* Noise of training passes: other values than without, the same when interrupted, and none in evaluations. */
static void noise_is_drawn_by_step(void **state)
{
    (void)state;
    firn_train_options o = options_for(kept("noisy")), parts = options_for(kept("noisy-parts"));
    o.eval_data = parts.eval_data = kept("e.jsonl");
    o.steps = parts.steps = 5;
    o.neftune = parts.neftune = 5;
    o.accumulate = parts.accumulate = 2;
    const outcome w = run_well(&o, NULL, 0);
    run_well(&parts, NULL, 3);
    const outcome resumed = resume_well(parts.output, 0);
    assert_true(same_values(o.output, "adapter.gguf", parts.output, "adapter.gguf"));
    assert_true(w.result.eval_loss == resumed.result.eval_loss);
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    firn_train_options eval;
    firn_eval_result without = {.size = sizeof without};
    char adapter[512];
    firn_train_options_init(&eval);
    snprintf(adapter, sizeof adapter, "%s/adapter.gguf", o.output);
    eval.model = o.model;
    eval.data = FIRN_STRINGS(o.eval_data);
    eval.adapter = adapter;
    eval.context = o.context;
    OK(ctx, firn_eval(ctx, &eval, NULL, &without));
    firn_context_destroy(ctx);
    if (!(fabs(without.loss - w.result.eval_loss) < 1e-5))
        fail_msg("the evaluation loss is %g in the run and %g by itself", w.result.eval_loss, without.loss);
    o.output = kept("quiet");
    o.neftune = NAN;
    const outcome quiet = run_well(&o, NULL, 0);
    assert_false(same_values(o.output, "adapter.gguf", parts.output, "adapter.gguf"));
    assert_true(quiet.result.eval_loss_before == w.result.eval_loss_before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cadences_are_read_and_written),
        cmocka_unit_test(the_best_is_left),
        cmocka_unit_test(it_is_the_same_when_interrupted),
        cmocka_unit_test(patience_ends),
        cmocka_unit_test(a_clock_chooses_nothing),
        cmocka_unit_test(a_run_that_diverges_stops),
        cmocka_unit_test(or_goes_back),
        cmocka_unit_test(noise_has_its_size),
        cmocka_unit_test(noise_is_drawn_by_step),
    };

    return cmocka_run_group_tests(tests, prepare, tear_down);
}
