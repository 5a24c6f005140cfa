/* Whole runs on a tiny model: that they learn, that they survive, and what they say to bad input. */
#include "unit/unit.h"

#include "core/buffer.h"
#include "core/file.h"
#include "train/checkpoint.h"
#include "train/options.h"
#include "train/proof.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FIRN FIRN_BIN_DIR "/firn"
enum { STEPS = 6 };

static char folder[] = "/tmp/firn-train-XXXXXX";

/* ---- helpers ---- */

static void sh(const char *format, ...) FIRN_PRINTF(1, 2);
static void sh(const char *format, ...)
{
    char command[4096];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(name, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void write_data(const char *name, int n)
{
    static const char *const words[] = {"red", "green", "blue", "north", "south", "one", "two"};
    FILE *f = fopen(name, "w");

    assert_non_null(f);
    for (int i = 0; i < n; i++)
        fprintf(f, "{\"prompt\": \"%s %s\", \"completion\": \" %s %s\"}\n", words[i % 7], words[i * 3 % 7],
                words[i % 5], words[i % 4]);
    fclose(f);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(folder) || chdir(folder) != 0)
        return 1;
    sh(FIRN " init --like tiny --seed 1 m.gguf >/dev/null");
    write_data("d.jsonl", 30);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    sh("rm -rf %s", folder);
    return 0;
}

/* A few words of text that the run said, the number of steps that it showed, and when to stop. */
typedef struct {
    int steps, stop_at;
    int calls, stop_call; /* of the function that says when to stop; 0: never */
    double loss;          /* of the last step */
    char said[16384];
} watcher;

static void say(void *user, const char *line)
{
    watcher *w = user;
    const size_t n = strlen(w->said);

    snprintf(w->said + n, sizeof w->said - n, "%s\n", line);
}

static void progress(void *user, const firn_progress *p)
{
    ((watcher *)user)->steps++;
    ((watcher *)user)->loss = p->loss;
    assert_true(p->step >= 1 && p->step <= p->steps && isfinite(p->loss));
}

static bool stop(void *user)
{
    watcher *w = user;
    w->calls++;
    return (w->stop_at > 0 && w->steps >= w->stop_at) || (w->stop_call > 0 && w->calls >= w->stop_call);
}

static firn_train_options options_for(const char *output)
{
    static const char *const data[] = {"d.jsonl"};
    firn_train_options o;

    firn_train_options_init(&o);
    o.model = "m.gguf";
    o.data = (firn_strings){data, 1};
    o.output = output;
    o.steps = STEPS;
    o.context = 64;
    o.learning_rate = 1e-2;
    o.accumulate = 2;
    o.save_every = 2;
    o.eval_every = 3;
    o.rank = 4;
    return o;
}

typedef struct {
    firn_status status;
    firn_train_result result;
    watcher watcher;
    char error[1024];
} outcome;

/* resume NULL: a new run. */
static outcome go(const firn_train_options *o, const char *resume, int threads, int stop_at)
{
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = threads});
    outcome out = {.watcher.stop_at = stop_at, .result.size = sizeof out.result};
    const firn_watch watch = {
        .size = sizeof watch, .user = &out.watcher, .say = say, .progress = progress, .stop = stop};

    out.status =
        resume ? firn_train_resume(ctx, resume, o, 0, &watch, &out.result) : firn_train(ctx, o, 0, &watch, &out.result);
    snprintf(out.error, sizeof out.error, "%s", firn_error(ctx));
    firn_context_destroy(ctx);
    return out;
}

static void go_well(const firn_train_options *o, const char *resume, int threads, int stop_at)
{
    const outcome out = go(o, resume, threads, stop_at);

    if (out.status != FIRN_OK)
        fail_msg("%s", out.error);
    assert_int_equal(out.result.finished, stop_at == 0);
    if (out.watcher.steps > 0)
        assert_true(out.result.loss == out.watcher.loss);
    else
        assert_true(isnan(out.result.loss));
}

static firn_train_options unset(void)
{
    firn_train_options o;

    firn_train_options_init(&o);
    return o;
}

static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 24);

    if (!f)
        fail_msg("%s is not there", path);
    *n = fread(text, 1, (1 << 24) - 1, f);
    fclose(f);
    return text;
}

static void expect_same_file(const char *a, const char *b, const char *name)
{
    char path[2][256];
    size_t n[2];

    snprintf(path[0], sizeof path[0], "%s/%s", a, name);
    snprintf(path[1], sizeof path[1], "%s/%s", b, name);
    char *x = slurp(path[0], &n[0]), *y = slurp(path[1], &n[1]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(x, y, n[0]);
    free(x);
    free(y);
}

/* metrics.jsonl as a list, without what a clock or the system says. */
static json_t *metrics_of(const char *run)
{
    static const char *const machine[] = {"tokens_per_second", "seconds", "memory"};
    char path[256];
    size_t n;
    json_t *all = json_array();

    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *text = slurp(path, &n);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        for (int i = 0; i < 3; i++)
            json_object_del(o, machine[i]);
        json_array_append_new(all, o);
    }
    free(text);
    return all;
}

static void expect_same_run(const char *a, const char *b)
{
    json_t *x = metrics_of(a), *y = metrics_of(b);

    assert_int_equal(json_array_size(x), STEPS + 1);
    assert_true(json_equal(x, y));
    json_decref(x);
    json_decref(y);
    expect_same_file(a, b, "adapter.gguf");
}

/* The run that others are compared with. */
static const char *whole(void)
{
    static bool done;
    const firn_train_options o = options_for("whole");

    if (!done)
        go_well(&o, NULL, 1, 0);
    done = true;
    return "whole";
}

/* ---- learning ---- */

static void a_run_learns_and_leaves_its_files(void **state)
{
    static const char *const files[] = {"adapter.gguf", "report.html", "metrics.jsonl", "run.json"};
    char path[256];

    (void)state;
    json_t *m = metrics_of(whole());
    const json_t *first = json_array_get(m, 0), *one = json_array_get(m, 1), *last = json_array_get(m, STEPS);
    assert_int_equal(json_integer_value(json_object_get(first, "step")), 0);
    const double before = json_number_value(json_object_get(first, "eval_loss"));
    const double after = json_number_value(json_object_get(last, "eval_loss"));
    assert_true(after < 0.8 * before);
    static const char *const keys[] = {"loss", "learning_rate", "grad_norm", "tokens", "target_tokens"};
    for (int i = 0; i < 5; i++)
        assert_true(json_number_value(json_object_get(one, keys[i])) > 0);
    assert_null(json_object_get(one, "eval_loss"));
    assert_non_null(json_object_get(json_array_get(m, 3), "eval_loss"));
    json_decref(m);
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "whole/%s", files[i]);
        assert_int_equal(access(path, R_OK), 0);
    }
    sh("test $(ls whole/checkpoints | wc -l) = 2");
    sh("! grep -E 'https?://|<script|<img|<link' whole/report.html");
}

static void conversations_go_through_the_template(void **state)
{
    firn_train_options o = options_for("chat");

    (void)state;
    write_text("chat.jsonl",
               "{\"messages\": [{\"role\": \"user\", \"content\": \"north?\"}, {\"role\": \"assistant\", \"content\": "
               "\"red\"}, {\"role\": \"user\", \"content\": \"south?\"}, {\"role\": \"assistant\", \"content\": "
               "\"blue\"}]}\n");
    sh(FIRN " data show m.gguf chat.jsonl --plain > shown");
    sh("grep -q '{+red<|im_end|>+}' shown && grep -q '{+blue<|im_end|>+}' shown && grep -q '^north?<|im_end|>' shown");
    o.data = FIRN_STRINGS("chat.jsonl");
    o.steps = 2;
    go_well(&o, NULL, 1, 0);
    json_t *m = metrics_of("chat");
    assert_null(json_object_get(json_array_get(m, 0), "eval_loss")); /* a single sample: nothing is held back */
    assert_int_equal(json_array_size(m), 3);
    json_decref(m);
    sh(FIRN " eval m.gguf --data chat.jsonl --json > a && " FIRN
            " eval m.gguf --data chat.jsonl --adapter chat/adapter.gguf --json > b && ! cmp -s a b");
}

static void the_loss_of_a_step_counts_tokens(void **state)
{
    firn_train_options a = options_for("two-passes"), b = options_for("one-pass");

    (void)state;
    a.steps = b.steps = 1;
    a.context = b.context = 24; /* windows with unequal numbers of targets */
    b.accumulate = 1;
    b.batch = 2;
    go_well(&a, NULL, 1, 0);
    go_well(&b, NULL, 1, 0);
    json_t *x = metrics_of("two-passes"), *y = metrics_of("one-pass");
    const json_t *p = json_array_get(x, 1), *q = json_array_get(y, 1);
    assert_true(fabs(json_number_value(json_object_get(p, "loss")) - json_number_value(json_object_get(q, "loss"))) <
                1e-5);
    const double n = json_number_value(json_object_get(p, "grad_norm"));
    assert_true(fabs(n - json_number_value(json_object_get(q, "grad_norm"))) < 1e-4 * n);
    assert_true(json_equal(json_object_get(p, "target_tokens"), json_object_get(q, "target_tokens")));
    json_decref(x);
    json_decref(y);
}

static void gradients_that_are_missing_are_named(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_model *model;
    firn_adapter *adapter;
    firn_text found;

    (void)state;
    assert_int_equal(firn_model_open(ctx, "m.gguf", &model), FIRN_OK);
    assert_int_equal(firn_adapter_create(ctx, model, "attention,experts", 2, 4, 1, &adapter), FIRN_OK);
    const firn_model_info *info = firn_model_get_info(model);
    const int64_t n_load = info->n_layer * info->n_expert;
    float *g = calloc((size_t)adapter->n_values, sizeof *g);
    int64_t *load = calloc((size_t)n_load, sizeof *load);
    for (int64_t i = 0; i < adapter->n_values; i++)
        g[i] = 1e-30f;
    for (int64_t i = 0; i < n_load; i++)
        load[i] = 5;
    firn_text_init(&found, ctx, 0);
    assert_int_equal(firn_proof(model, adapter, g, load, 'b', 1, &found), 0);
    assert_string_equal(found.data, "step 1: 14 of 14 lora_b tensors receive a gradient\n");

    /* one attention tensor without, and an expert that no token reached */
    int dense = -1, experts = -1;
    for (int i = 0; i < adapter->n_entries; i++)
        *(adapter->entries[i].n_expert > 1 ? &experts : &dense) = i;
    const firn_adapter_entry *d = &adapter->entries[dense], *e = &adapter->entries[experts];
    memset(g + d->b, 0, (size_t)(d->rank * d->n_out) * sizeof *g);
    for (int i = 0; i < adapter->n_entries; i++)
        if (adapter->entries[i].n_expert > 1 && adapter->entries[i].layer == e->layer)
            memset(g + adapter->entries[i].b, 0, (size_t)(e->rank * adapter->entries[i].n_out) * sizeof *g);
    load[e->layer * info->n_expert] = 0;
    found.size = 0;
    assert_int_equal(firn_proof(model, adapter, g, load, 'b', 1, &found), 1);
    assert_non_null(strstr(found.data,
                           "step 1: 13 of 14 lora_b tensors receive a gradient\n1 of 12 experts got no gradient this "
                           "step; normal early on\n"));
    assert_non_null(strstr(found.data, d->tensor));
    assert_non_null(strstr(found.data, "receives no gradient: no reason is known"));
    found.size = 0;
    assert_int_equal(firn_proof(model, adapter, g, load, 'a', 2, &found), 0);
    firn_text_free(&found);
    free(g);
    free(load);
    firn_adapter_destroy(adapter);
    firn_model_close(model);
    firn_context_destroy(ctx);
}

/* ---- surviving ---- */

static void stopped_and_resumed_is_the_same(void **state)
{
    firn_train_options o = options_for("stopped"), none = unset();

    (void)state;
    go_well(&o, NULL, 1, 1);
    go_well(&none, "stopped", 2, 2); /* stops in the middle between two checkpoints */
    none.memory_limit = "1G";
    go_well(&none, "stopped", 1, 0);
    expect_same_run(whole(), "stopped");
    const outcome again = go(&none, "stopped", 1, 0);
    assert_int_equal(again.status, FIRN_OK);
    assert_true(again.result.was_finished && again.result.finished && again.watcher.steps == 0);
}

static void stopped_within_a_step_is_the_same(void **state)
{
    firn_train_options o = options_for("within"), none = unset();
    int resumed = 0;

    (void)state;
    for (int call = 3; resumed < 4; call += 1 + call / 2) { /* in evaluations, forward, backward, at the end */
        firn_context *ctx = firn_context_create(NULL);
        outcome out = {.watcher.stop_call = call, .result.size = sizeof out.result};
        const firn_watch watch = {
            .size = sizeof watch, .user = &out.watcher, .say = say, .progress = progress, .stop = stop};
        sh("rm -rf within");
        assert_int_equal(firn_train(ctx, &o, 0, &watch, &out.result), FIRN_OK);
        firn_context_destroy(ctx);
        if (out.result.finished) /* it was never asked so often */
            break;
        resumed++;
        sh("test $(ls within/checkpoints 2>/dev/null | grep -c step) -le 2");
        go_well(&none, "within", 1, 0);
        expect_same_run(whole(), "within");
    }
    assert_true(resumed >= 3);
}

static void lines_after_the_checkpoint_are_cut_off(void **state)
{
    firn_train_options o = options_for("cut"), none = unset();

    (void)state;
    go_well(&o, NULL, 1, 2);
    sh("echo '{\"step\": 3, \"loss\": 7}' >> cut/metrics.jsonl; printf '{\"step\": 4, \"lo' >> cut/metrics.jsonl");
    go_well(&none, "cut", 1, 0);
    expect_same_run(whole(), "cut");
}

static void a_damaged_checkpoint_is_passed_over(void **state)
{
    firn_train_options o = options_for("damaged"), none = unset();

    (void)state;
    go_well(&o, NULL, 1, 4);
    sh("ls damaged/checkpoints/step-00000004.gguf damaged/checkpoints/step-00000002.gguf >/dev/null");
    sh("truncate -s 1000 damaged/checkpoints/step-00000004.gguf");
    const outcome out = go(&none, "damaged", 1, 0);
    assert_int_equal(out.status, FIRN_OK);
    assert_non_null(strstr(out.watcher.said, "warning: the checkpoint of step 4 cannot be used: "));
    assert_non_null(strstr(out.watcher.said, "going on after step 2"));
    expect_same_run(whole(), "damaged");
}

static pid_t start_firn(char *const *argv)
{
    const pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        execv(FIRN, argv);
        _exit(127);
    }
    return pid;
}

/* The exit status; -1 when a signal ended it. */
static int status_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void killed_at_any_moment_is_the_same(void **state)
{
    char *const start[] = {"firn",
                           "finetune",
                           "--model",
                           "m.gguf",
                           "--data",
                           "d.jsonl",
                           "--output",
                           "killed",
                           "--steps",
                           "6",
                           "--context",
                           "64",
                           "--learning-rate",
                           "1e-2",
                           "--accumulate",
                           "2",
                           "--save-every",
                           "2",
                           "--eval-every",
                           "3",
                           "--rank",
                           "4",
                           NULL};
    char *const resume[] = {"firn", "finetune", "--resume", "killed", "--threads", "2", NULL};

    (void)state;
    for (int trial = 0; trial < 3; trial++) {
        int status = -1, kills = 0;
        sh("rm -rf killed");
        for (unsigned ms = 30u + 37u * (unsigned)trial; status != 0; ms = 20 + (ms * 7 + 13) % 900, kills++) {
            const bool begun = access("killed/run.json", F_OK) == 0;
            const pid_t pid = start_firn(begun ? resume : start);
            if (kills < 8) {
                usleep(ms * 1000);
                kill(pid, SIGKILL);
            }
            status = status_of(pid);
            assert_true(status == -1 || status == 0);
        }
        expect_same_run(whole(), "killed");
        sh("test $(ls killed/checkpoints | grep -vc 'step-0000000[46].gguf') = 0");
    }
}

static void signals_end_with_a_checkpoint(void **state)
{
    char *const start[] = {"firn",         "finetune", "--model",      "m.gguf", "--data",    "d.jsonl",
                           "--output",     "signal",   "--steps",      "100000", "--context", "64",
                           "--save-every", "0",        "--eval-every", "0",      NULL};
    static const int signals[] = {SIGINT, SIGTERM};

    (void)state;
    for (int i = 0; i < 2; i++) {
        sh("rm -rf signal");
        const pid_t pid = start_firn(start);
        for (int wait = 0; wait < 12000 && system("grep -qs 'step.: 1,' signal/metrics.jsonl") != 0; wait++)
            usleep(10000);
        kill(pid, signals[i]);
        assert_int_equal(status_of(pid), 128 + signals[i]);
        sh("test $(ls signal/checkpoints | wc -l) = 1");
    }
}

static void a_changed_run_is_refused(void **state)
{
    firn_train_options o = options_for("changed"), none = unset();

    (void)state;
    sh("cp d.jsonl c.jsonl; cp m.gguf c.gguf");
    o.data = FIRN_STRINGS("c.jsonl");
    o.model = "c.gguf";
    go_well(&o, NULL, 1, 1);
    outcome out = go(&o, NULL, 1, 0);
    assert_string_equal(out.error,
                        "changed holds a run already: go on with it (firn finetune --resume changed), or take "
                        "another folder");
    o = unset();
    o.rank = 8;
    out = go(&o, "changed", 1, 0);
    assert_string_equal(out.error, "a resumed run cannot change rank");
    o = unset();
    o.steps = 1;
    out = go(&o, "changed", 1, 0);
    assert_int_equal(out.status, FIRN_OK); /* step 1 is done, the run ends with it */
    sh("echo '{\"text\": \"one more\"}' >> c.jsonl");
    out = go(&none, "changed", 1, 0);
    assert_int_equal(out.status, FIRN_ERR_FORMAT);
    assert_non_null(strstr(out.error, "c.jsonl is not the one that the run was started with: expected "));
    sh("cp d.jsonl c.jsonl; " FIRN " init --like tiny --seed 2 c.gguf >/dev/null; printf x >> c.gguf");
    out = go(&none, "changed", 1, 0);
    assert_non_null(strstr(out.error, "the model "));
    assert_non_null(strstr(out.error, "c.gguf is not the one that the run was started with: expected "));
}

static long file_size(const char *name)
{
    struct stat st;

    assert_int_equal(stat(name, &st), 0);
    return (long)st.st_size;
}

static void flip(const char *name, long at)
{
    FILE *f = fopen(name, "r+b");

    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    const int c = fgetc(f) ^ 4;
    fseek(f, at, SEEK_SET);
    fputc(c, f);
    fclose(f);
}

static void put_value(firn_parameters *store, firn_parameters_part part, int64_t at, float v)
{
    assert_int_equal(firn_parameters_write(store, part, at, 1, &v), FIRN_OK);
}

static float value(firn_parameters *store, firn_parameters_part part, int64_t at)
{
    float v;

    assert_int_equal(firn_parameters_read(store, part, at, 1, &v), FIRN_OK);
    return v;
}

static void checkpoints_are_checked(void **state)
{
    firn_context *ctx = firn_context_create(NULL);
    firn_model *model;
    firn_adapter *a, *b;
    firn_device *device;
    firn_parameters *x, *y;
    firn_position p = {.step = 3, .epoch = 1, .window = 2, .metrics_bytes = 99, .seconds = 1.5, .eval_loss = 2}, q;
    int64_t step;

    (void)state;
    assert_int_equal(firn_model_open(ctx, "m.gguf", &model), FIRN_OK);
    assert_int_equal(firn_adapter_create(ctx, model, "attention", 2, 4, 1, &a), FIRN_OK);
    assert_int_equal(firn_adapter_create(ctx, model, "attention", 4, 4, 1, &b), FIRN_OK);
    assert_int_equal(firn_device_open(ctx, "CPU", &device), FIRN_OK);
    assert_int_equal(firn_parameters_create(ctx, device, a, &x), FIRN_OK);
    assert_int_equal(firn_parameters_create(ctx, device, b, &y), FIRN_OK);
    for (firn_parameters_part part = FIRN_PARAMETERS_M; part <= FIRN_PARAMETERS_V; part++)
        assert_true(firn_parameters_add(x, part) == FIRN_OK && firn_parameters_add(y, part) == FIRN_OK);
    put_value(x, FIRN_PARAMETERS_M, 1, 0.5f);
    assert_int_equal(firn_checkpoint_newest(ctx, "ck", INT64_MAX, &step), FIRN_OK);
    assert_int_equal(step, -1);
    for (p.step = 1; p.step <= 3; p.step++)
        assert_int_equal(firn_checkpoint_write(ctx, "ck", x, &p, "seed: 1\n", 2), FIRN_OK);
    sh("touch ck/step-00000009.gguf.tmp1 ck/other");
    assert_int_equal(firn_checkpoint_newest(ctx, "ck", INT64_MAX, &step), FIRN_OK);
    assert_int_equal(step, 3);
    assert_int_equal(firn_checkpoint_newest(ctx, "ck", 2, &step), FIRN_OK);
    assert_int_equal(step, -1); /* 1 was removed */
    put_value(x, FIRN_PARAMETERS_M, 1, 0);
    const float kept = a->values[0];
    a->values[0] = 0;
    assert_int_equal(firn_checkpoint_read(ctx, "ck", 3, x, &q, "seed: 1\n"), FIRN_OK);
    assert_true(value(x, FIRN_PARAMETERS_M, 1) == 0.5f && a->values[0] == kept && q.window == 2 &&
                q.metrics_bytes == 99 && q.eval_loss == 2);
    assert_int_equal(firn_checkpoint_read(ctx, "ck", 3, y, &q, "seed: 1\n"), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "ck/step-00000003.gguf: it belongs to an adapter of other tensors or shapes");
    sh("cp ck/step-00000003.gguf ck/step-00000004.gguf");
    assert_int_equal(firn_checkpoint_read(ctx, "ck", 4, x, &q, "seed: 1\n"), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "ck/step-00000004.gguf: it says that it is of step 3");
    /* every flipped bit is found, or lies where nothing is read */
    for (long at = 0, size = file_size("ck/step-00000003.gguf"); at < size; at += 1 + size / 400) {
        flip("ck/step-00000003.gguf", at);
        put_value(x, FIRN_PARAMETERS_M, 1, 9);
        a->values[0] = 9;
        if (firn_checkpoint_read(ctx, "ck", 3, x, &q, "seed: 1\n") == FIRN_OK)
            assert_true(value(x, FIRN_PARAMETERS_M, 1) == 0.5f && a->values[0] == kept);
        else
            assert_true(value(x, FIRN_PARAMETERS_M, 1) == 9 && a->values[0] == 9);
        flip("ck/step-00000003.gguf", at);
    }
    assert_int_equal(firn_checkpoint_read(ctx, "ck", 3, x, &q, "seed: 2\n"), FIRN_ERR_ARGUMENT);
    assert_string_equal(firn_error(ctx),
                        "ck/step-00000003.gguf: the run was started with \"seed: 1\", and run.json now "
                        "says \"seed: 2\": the result would be neither's");
    put_value(x, FIRN_PARAMETERS_V, 7, -1);
    assert_int_equal(firn_checkpoint_write(ctx, "ck", x, &p, "", 2), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "no checkpoint is written after step 4: value 7 of adam.v is -1; expected a "
                                         "finite number that is not negative");
    put_value(x, FIRN_PARAMETERS_V, 7, 0);
    put_value(x, FIRN_PARAMETERS_M, 7, NAN);
    assert_int_equal(firn_checkpoint_write(ctx, "ck", x, &p, "", 2), FIRN_ERR_FORMAT);
    put_value(x, FIRN_PARAMETERS_M, 7, 0);
    p.step = 5;
    assert_int_equal(firn_checkpoint_write(ctx, "ck", x, &p, "seed: 1\n", 1), FIRN_OK);
    sh("test \"$(ls ck | tr '\\n' ' ')\" = 'other step-00000005.gguf '");
    /* A run without moments reads no checkpoint with some. */
    firn_parameters_drop(x);
    assert_int_equal(firn_parameters_create(ctx, device, a, &x), FIRN_OK);
    assert_int_equal(firn_checkpoint_read(ctx, "ck", 5, x, &q, "seed: 1\n"), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx),
                        "ck/step-00000005.gguf: it has a tensor adam.m, and this run's optimizer has no moments");
    firn_parameters_drop(x);
    firn_parameters_drop(y);
    firn_device_close(device);
    firn_adapter_destroy(a);
    firn_adapter_destroy(b);
    firn_model_close(model);
    firn_context_destroy(ctx);
}

/* ---- bad input ---- */

static void expect_error(const firn_train_options *o, const char *part)
{
    const outcome out = go(o, NULL, 1, 0);

    assert_int_not_equal(out.status, FIRN_OK);
    if (!strstr(out.error, part))
        fail_msg("expected '%s' in: %s", part, out.error);
    assert_int_not_equal(access("bad/run.json", F_OK), 0); /* nothing was begun */
}

static void bad_input_gets_a_sentence(void **state)
{
    firn_train_options o;

    (void)state;
#define CASE(change, part)                                                                                             \
    do {                                                                                                               \
        o = options_for("bad");                                                                                        \
        change;                                                                                                        \
        expect_error(&o, part);                                                                                        \
    } while (0)

    CASE(o.model = "none.gguf", "none.gguf: No such file or directory");
    sh("head -c 100000 m.gguf > short.gguf; echo hello > text.gguf; sed s/llama/lxama/g m.gguf > other.gguf");
    CASE(o.model = "short.gguf", "short.gguf");
    CASE(o.model = "text.gguf", "text.gguf");
    CASE(o.model = "other.gguf", "llama"); /* the supported ones are listed */
    CASE(o.data = FIRN_STRINGS("none.jsonl"), "none.jsonl: No such file or directory");
    write_text("empty.jsonl", "");
    CASE(o.data = FIRN_STRINGS("empty.jsonl"), "empty.jsonl is empty: expected a JSON object on each line");
    write_text("untrained.jsonl", "{\"text\": \"\"}\n");
    CASE(o.data = FIRN_STRINGS("untrained.jsonl"), "nothing is left to train on in");
    write_text("bad.jsonl", "{\"text\": \"ok ok\"}\n{\"text\": }\n");
    CASE(o.data = FIRN_STRINGS("bad.jsonl"), "bad.jsonl:2:10: expected one JSON object");
    CASE(o.context = 1 << 20, "a context of 1048576 tokens is longer than the model's ");
    CASE(o.targets = "shared", "shared");
    CASE(o.targets = "blk.9*", "blk.9*");
    CASE(o.schedule = "sine", "there is no schedule 'sine'");
    CASE(o.memory_limit = "6X", "'6X' is no size");
    CASE(o.memory_limit = "1M", "the memory limit is 1.00 MiB; even --targets attention --rank 2 needs ");
    CASE(o.rank = 0, "rank is a number from 1 to 4096, not 0");
    CASE(o.adapter = "none.gguf", "rank, alpha and targets are those of the adapter");
    CASE((o.eval_data = "d.jsonl", o.eval_split = 0.1), "expected one of the two");
    CASE(o.device = "CUDA7", "CUDA7");
    CASE(o.model = NULL, "a run needs a model, data and an output folder");
    write_text("file", "");
    CASE(o.output = "file/x", "cannot make the folder");
    CASE(o.output = "/proc/x", "/proc/x");
    if (geteuid() != 0) {
        mkdir("locked", 0500);
        CASE(o.output = "locked", "cannot write into locked");
    }
    firn_train_options none = unset();
    const outcome out = go(&none, "nowhere", 1, 0);
    assert_string_equal(out.error, "nowhere holds no run: there is no run.json in it");
#undef CASE
}

static void a_full_disk_loses_nothing(void **state)
{
    (void)state;
    /* A limit on file sizes stands in for a full disk: checkpoints do not fit, run.json does. */
    sh("rm -rf full; (trap '' XFSZ; ulimit -f 64; " FIRN
       " finetune --model m.gguf --data d.jsonl --output full --steps 4 "
       "--context 64 --rank 4 --save-every 2 >/dev/null 2>err; test $? = 1)");
    sh("grep -q 'cannot write .*full/checkpoints/best-00000001.gguf: File too large' err");
    sh("test \"$(ls full/checkpoints)\" = ''");
    sh(FIRN " finetune --resume full >/dev/null 2>&1"); /* there is room now */
    sh("test -s full/adapter.gguf");
}

static void what_is_not_finite_is_named(void **state)
{
    firn_train_options o = options_for("nan");
    firn_context *ctx = firn_context_create(NULL);
    firn_model *model;
    firn_adapter *a;

    (void)state;
    assert_int_equal(firn_model_open(ctx, "m.gguf", &model), FIRN_OK);
    assert_int_equal(firn_adapter_create(ctx, model, "attention", 2, 4, 1, &a), FIRN_OK);
    a->values[a->entries[0].b] = NAN; /* is not written, and a file that has it is not read */
    assert_int_equal(firn_adapter_save(ctx, a, NULL, "nan.gguf"), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "blk.0.attn_q.weight.lora_b is not finite: value 0 is nan");
    a->values[a->entries[0].b] = 12345;
    assert_int_equal(firn_adapter_save(ctx, a, NULL, "nan.gguf"), FIRN_OK);
    sh("LC_ALL=C sed -i 's/\\x00\\xe4\\x40\\x46/\\x00\\x00\\xc0\\x7f/' nan.gguf");
    firn_adapter *again;
    assert_int_equal(firn_adapter_load(ctx, model, "nan.gguf", &again), FIRN_ERR_FORMAT);
    assert_string_equal(firn_error(ctx), "nan.gguf: blk.0.attn_q.weight.lora_b is not finite: value 0 is nan");
    a->values[a->entries[0].b] = a->values[a->entries[0].a] = 1e30f; /* finite, and their product is not */
    assert_int_equal(firn_adapter_save(ctx, a, NULL, "large.gguf"), FIRN_OK);
    firn_adapter_destroy(a);
    firn_model_close(model);
    firn_context_destroy(ctx);
    o.adapter = "large.gguf";
    o.rank = FIRN_UNSET;
    o.eval_split = 0;
    outcome out = go(&o, NULL, 1, 0);
    assert_int_not_equal(out.status, FIRN_OK);
    assert_memory_equal(out.error, "step 1, sample at /", 19);
    assert_non_null(strstr(out.error, "/d.jsonl:"));
    assert_non_null(strstr(out.error, "block 0, forward: MUL_MAT"));
    assert_non_null(strstr(out.error, "is not finite"));
    o.output = "nan2";
    o.eval_split = 0.2;
    out = go(&o, NULL, 1, 0);
    assert_memory_equal(out.error, "evaluation after step 0: block 0", 32);
}

/* Each step multiplies the values by -99 here, so that one of them is the first to lead to numbers which nothing holds.
 * A run that ends with it finds it although no step follows, with evaluation data and without, and again on resume. */
static void the_last_step_is_looked_at(void **state)
{
    firn_train_options o = options_for("wild");
    outcome out = {.status = FIRN_OK};
    const firn_train_options more = unset();

    (void)state;
    o.context = 16;
    o.rank = 1;
    o.learning_rate = o.weight_decay = 10;
    o.warmup = 0;
    o.schedule = "constant";
    o.eval_split = 0;
    for (o.steps = 0; out.status == FIRN_OK && o.steps < 12;) {
        o.steps++;
        sh("rm -rf wild");
        out = go(&o, NULL, 1, 0);
    }
    assert_int_equal(out.status, FIRN_ERR_DEVICE);
    assert_true(o.steps > 1);
    char expected[64];
    snprintf(expected, sizeof expected, "the adapter after step %lld is not saved: ", (long long)o.steps);
    assert_memory_equal(out.error, expected, strlen(expected));
    assert_int_not_equal(access("wild/adapter.gguf", F_OK), 0);
    out = go(&more, "wild", 1, 0);
    assert_memory_equal(out.error, expected, strlen(expected));
    assert_int_not_equal(access("wild/adapter.gguf", F_OK), 0);
    o.eval_split = 0.2;
    sh("rm -rf wild");
    out = go(&o, NULL, 1, 0);
    assert_int_equal(out.status, FIRN_ERR_DEVICE);
    assert_int_not_equal(access("wild/adapter.gguf", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_step_is_looked_at),
        cmocka_unit_test(a_run_learns_and_leaves_its_files),
        cmocka_unit_test(conversations_go_through_the_template),
        cmocka_unit_test(the_loss_of_a_step_counts_tokens),
        cmocka_unit_test(gradients_that_are_missing_are_named),
        cmocka_unit_test(stopped_and_resumed_is_the_same),
        cmocka_unit_test(stopped_within_a_step_is_the_same),
        cmocka_unit_test(lines_after_the_checkpoint_are_cut_off),
        cmocka_unit_test(a_damaged_checkpoint_is_passed_over),
        cmocka_unit_test(killed_at_any_moment_is_the_same),
        cmocka_unit_test(signals_end_with_a_checkpoint),
        cmocka_unit_test(a_changed_run_is_refused),
        cmocka_unit_test(checkpoints_are_checked),
        cmocka_unit_test(bad_input_gets_a_sentence),
        cmocka_unit_test(a_full_disk_loses_nothing),
        cmocka_unit_test(what_is_not_finite_is_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
