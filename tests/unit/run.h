/* What tests of whole runs share: a tiny model and data in the scratch folder, and runs that are watched and stopped.
 */
#ifndef FIRN_TEST_RUN_H
#define FIRN_TEST_RUN_H

#include "unit/model.h"

#include "firn/train.h"
#include "model/random_model.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int steps, stop_at;
    firn_train_result result;
    firn_status status;
    char said[16384], error[1024];
} outcome;

UNUSED void outcome_say(void *user, const char *line)
{
    outcome *w = user;
    const size_t n = strlen(w->said);

    snprintf(w->said + n, sizeof w->said - n, "%s\n", line);
}

UNUSED void outcome_progress(void *user, const firn_progress *p)
{
    (void)p;
    ((outcome *)user)->steps++;
}

UNUSED bool outcome_stop(void *user)
{
    const outcome *w = user;

    return w->stop_at > 0 && w->steps >= w->stop_at;
}

/* A new run, or where `resume` is a folder the run in it; stopped after stop_at steps, 0: not. */
UNUSED outcome run_it(const firn_train_options *o, const char *resume, int stop_at)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    outcome w = {.stop_at = stop_at, .result.size = sizeof w.result};
    const firn_watch watch = {
        .size = sizeof watch, .user = &w, .say = outcome_say, .progress = outcome_progress, .stop = outcome_stop};

    w.status =
        resume ? firn_train_resume(ctx, resume, o, 0, &watch, &w.result) : firn_train(ctx, o, 0, &watch, &w.result);
    snprintf(w.error, sizeof w.error, "%s", firn_error(ctx));
    firn_context_destroy(ctx);
    return w;
}

UNUSED outcome run_well(const firn_train_options *o, const char *resume, int stop_at)
{
    const outcome w = run_it(o, resume, stop_at);

    if (w.status != FIRN_OK)
        fail_msg("%s", w.error);
    assert_int_equal(w.result.finished, stop_at == 0);
    return w;
}

UNUSED outcome resume_well(const char *folder, int stop_at)
{
    firn_train_options none;

    firn_train_options_init(&none);
    return run_well(&none, folder, stop_at);
}

/* n lines of few words; other seeds say other things. */
UNUSED void write_lines(const char *name, int n, int seed)
{
    static const char *const words[] = {"red", "green", "blue", "north", "south", "one", "two"};
    FILE *f = fopen(in_scratch(name), "w");

    assert_non_null(f);
    for (int i = 0; i < n; i++)
        fprintf(f, "{\"prompt\": \"%s %s\", \"completion\": \" %s %s\"}\n", words[(i + seed) % 7],
                words[i * (3 + seed) % 7], words[(i * 2 + seed) % 5], words[(i + seed * 3) % 4]);
    fclose(f);
}

UNUSED void make_model(void)
{
    firn_context *ctx = firn_context_create(NULL);

    OK(ctx,
       firn_random_model_write(ctx, firn_random_shape_find("tiny"), 0, FIRN_F32, 3, in_scratch("model.gguf"), NULL));
    firn_context_destroy(ctx);
}

/* Folders and files of the options: they live as long as the program. */
UNUSED char *kept(const char *name)
{
    static char paths[64][256];
    static int n;

    assert_true(n < 64);
    snprintf(paths[n], sizeof paths[n], "%s/%s", scratch, name);
    return paths[n++];
}

UNUSED json_t *record_of(const char *folder)
{
    char path[512];

    snprintf(path, sizeof path, "%s/run.json", folder);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

/* The values of the adapter or checkpoint in a file, [*n]; the caller frees them. */
UNUSED float *values_of(const char *folder, const char *name, int64_t *n)
{
    char path[512];
    fixture f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    open_at(&f, in_scratch("model.gguf"), path, 1);
    float *values = malloc((size_t)f.adapter->n_values * sizeof *values);
    *n = f.adapter->n_values;
    memcpy(values, f.adapter->values, (size_t)*n * sizeof *values);
    close_fixture(&f);
    return values;
}

UNUSED bool same_values(const char *a, const char *in_a, const char *b, const char *in_b)
{
    int64_t n, m;
    float *x = values_of(a, in_a, &n), *y = values_of(b, in_b, &m);
    const bool same = n == m && memcmp(x, y, (size_t)n * sizeof *x) == 0;

    free(x);
    free(y);
    return same;
}

#endif
