/* firn watch: a run that another firn is at, in the terminal: curve, expert load, last answers. It reads the run's
 * folder alone: run.json, metrics.jsonl, latest.json (before it before.json); and ends with the run. */
#include "cmd.h"
#include "said.h"

#include "core/file.h"
#include "core/utf8.h"
#include "train/jsonl.h"
#include "train/record.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { CURVE_ROWS = 12, MOST_COLUMNS = 110, LEAST_COLUMNS = 40, LABEL = 10, MOST_LOAD_ROWS = 12, ANSWER_LINES = 3 };

typedef struct {
    double *step, *loss, *eval; /* [n]; NAN: none */
    size_t n, capacity[3];
    double rate, speed, epoch;
} numbers;

typedef struct {
    firn_context *ctx;
    const char *folder;
    int64_t steps;
    bool finished, held; /* a firn is at work on it */
    numbers seen;
    json_t *witness; /* of latest.json or before.json; NULL: none */
} run_seen;

/* ---- reading ---- */

static double number(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

static firn_status add_line(firn_context *ctx, numbers *s, const json_t *line)
{
    double **const lists[] = {&s->step, &s->loss, &s->eval};
    const double values[] = {number(line, "step"), number(line, "loss"), number(line, "eval_loss")};

    if (isnan(values[0]) || (isnan(values[1]) && isnan(values[2])))
        return FIRN_OK;
    for (int i = 0; i < 3; i++) {
        FIRN_TRY(firn_grow(ctx, (void **)lists[i], s->n, &s->capacity[i], sizeof **lists[i]));
        (*lists[i])[s->n] = values[i];
    }
    s->n++;
    s->rate = number(line, "learning_rate");
    s->speed = number(line, "tokens_per_second");
    s->epoch = number(line, "epoch");
    return FIRN_OK;
}

/* The last line may be half written, and others damaged: they are passed over. */
static firn_status read_metrics(run_seen *r)
{
    char path[FIRN_PATH_BYTES];
    firn_jsonl lines;
    json_t *line;
    firn_status s;

    r->seen.n = 0;
    FIRN_TRY(firn_run_path(r->ctx, r->folder, "metrics.jsonl", path));
    if (access(path, R_OK) < 0)
        return FIRN_OK;
    FIRN_TRY(firn_jsonl_open(r->ctx, path, &lines));
    while ((s = firn_jsonl_next(&lines, &line)) == FIRN_ERR_FORMAT || (s == FIRN_OK && line)) {
        if (s != FIRN_OK)
            continue;
        s = add_line(r->ctx, &r->seen, line);
        json_decref(line);
        if (s != FIRN_OK)
            break;
    }
    firn_jsonl_close(&lines);
    return s;
}

/* NULL: it is not there, or is no JSON. */
static json_t *read_json(const run_seen *r, const char *name)
{
    char path[FIRN_PATH_BYTES];
    json_t *json = NULL;

    if (firn_run_path(r->ctx, r->folder, name, path) == FIRN_OK && firn_json_read(r->ctx, path, &json) != FIRN_OK)
        return NULL;
    return json;
}

/* Whoever works on a run holds the lock of its folder (core/lock.h). */
static bool is_held(const run_seen *r)
{
    char path[FIRN_PATH_BYTES];
    bool held = false;

    if (firn_run_path(r->ctx, r->folder, "firn.lock", path) != FIRN_OK)
        return false;
    const int fd = firn_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (fd >= 0) {
        held = flock(fd, LOCK_SH | LOCK_NB) < 0;
        close(fd);
    }
    return held;
}

static firn_status look(run_seen *r)
{
    firn_arena arena;
    firn_run_record *record = firn_alloc(r->ctx, sizeof *record);

    if (!record)
        return FIRN_ERR_MEMORY;
    r->held = is_held(r); /* before run.json: it says that the run is finished before the lock goes */
    firn_arena_init(&arena, r->ctx, 0);
    firn_status s = firn_run_record_read(&arena, r->folder, record);
    r->steps = record->steps;
    r->finished = record->finished;
    firn_arena_clear(&arena);
    firn_free(r->ctx, record);
    if (s == FIRN_OK)
        s = read_metrics(r);
    json_decref(r->witness);
    r->witness = s == FIRN_OK ? read_json(r, "latest.json") : NULL;
    if (s == FIRN_OK && !r->witness)
        r->witness = read_json(r, "before.json");
    return s;
}

/* ---- showing ---- */

static int columns(void)
{
    const int n = cmd_columns(STDOUT_FILENO);

    return n > MOST_COLUMNS ? MOST_COLUMNS : n < LEAST_COLUMNS ? LEAST_COLUMNS : n;
}

/* Which of n cells between low and high v lies in; what a file says may lie anywhere. */
static int cell(double v, double low, double high, int n)
{
    const double along = (v / 2 - low / 2) / (high / 2 - low / 2); /* halves: the span of doubles is none */

    return along > 0 ? (int)lround(fmin(along, 1) * (n - 1)) : 0;
}

/* Losses over steps: '.' each step's, 'o' evaluations; a scale that spans more than a factor of 20 is logarithmic. */
static void show_curve(const numbers *s, int width)
{
    char grid[CURVE_ROWS][MOST_COLUMNS];
    double least = INFINITY, most = -INFINITY;
    const double *const lists[] = {s->loss, s->eval};

    for (size_t i = 0; i < 2 * s->n; i++) {
        const double v = lists[i / s->n][i % s->n];
        if (isfinite(v)) {
            least = fmin(least, v);
            most = fmax(most, v);
        }
    }
    if (!(most >= least))
        return;
    const bool in_log = least > 0 && most > 20 * least;
    const double low = in_log ? log(least) : least, high = in_log ? log(most) : most;
    double first = s->step[0], last = s->step[0];
    for (size_t i = 0; i < s->n; i++) {
        first = fmin(first, s->step[i]);
        last = fmax(last, s->step[i]);
    }
    memset(grid, ' ', sizeof grid);
    for (size_t i = 0; i < 2 * s->n; i++) {
        const double v = lists[i / s->n][i % s->n], x = s->step[i % s->n];
        if (!isfinite(v))
            continue;
        const int up = high > low ? cell(in_log ? log(v) : v, low, high, CURVE_ROWS) : CURVE_ROWS / 2;
        grid[CURVE_ROWS - 1 - up][cell(x, first, last, width)] = i < s->n ? '.' : 'o';
    }
    for (int r = 0; r < CURVE_ROWS; r++) {
        const double up = 1 - (double)r / (CURVE_ROWS - 1), v = low + up * (high - low);
        if (r % 3 == 0 || r == CURVE_ROWS - 1)
            printf("%*.4g |", LABEL - 2, in_log ? exp(v) : v);
        else
            printf("%*s |", LABEL - 2, "");
        printf("%.*s\n", width, grid[r]);
    }
    printf("%*s +", LABEL - 2, "");
    for (int i = 0; i < width; i++)
        putchar('-');
    printf("\n%*s%-*.0f%*.0f\n", LABEL, "", width / 2, first, width - width / 2, last);
    printf("%*sloss by step%s: . training  o evaluation\n\n", LABEL, "", in_log ? " (log scale)" : "");
}

/* A row for each layer, or for several; a character for each expert, or for several of which the busiest is shown. */
static void show_load(const json_t *load, int width)
{
    static const char shades[] = " .:-=+*#%@";
    const size_t n_layer = json_array_size(load), n_expert = json_array_size(json_array_get(load, 0));
    const size_t rows = n_layer < MOST_LOAD_ROWS ? n_layer : MOST_LOAD_ROWS;
    const size_t across = n_expert < (size_t)width ? n_expert : (size_t)width;

    if (n_layer == 0 || n_expert == 0)
        return;
    printf("%*sexpert load: darker = more tokens; darkest = 3x average or more\n", LABEL, "");
    for (size_t r = 0; r < rows; r++) {
        const size_t layer = r * n_layer / rows;
        const json_t *row = json_array_get(load, layer);
        double sum = 0;
        for (size_t e = 0; e < n_expert; e++)
            sum += json_number_value(json_array_get(row, e));
        if (!(sum > 0 && isfinite(sum)))
            continue;
        printf("%*s %3zu |", LABEL - 6, "", layer);
        for (size_t c = 0; c < across; c++) {
            double most = 0;
            for (size_t e = c * n_expert / across; e < (c + 1) * n_expert / across; e++)
                most = fmax(most, json_number_value(json_array_get(row, e)));
            const double share = most * (double)n_expert / sum;
            putchar(shades[share >= 3 ? 9 : (int)(share * 3)]);
        }
        puts("|");
    }
    putchar('\n');
}

/* The text on at most ANSWER_LINES lines; nothing of it plays with the terminal. */
static void show_text(const char *name, const char *text, int width)
{
    int lines = 1, at = 0;
    char *tame = strdup(text ? text : "");

    if (tame)
        firn_tame_line(tame);
    printf("%*s: ", LABEL - 2, name);
    for (const char *c = tame ? tame : ""; *c; c++) {
        const bool begins = (*c & 0xC0) != 0x80;
        if (begins && at == width) {
            if (lines++ == ANSWER_LINES) {
                fputs("...", stdout);
                break;
            }
            printf("\n%*s", LABEL, "");
            at = 0;
        }
        at += begins;
        putchar(*c);
    }
    putchar('\n');
    free(tame);
}

static void show_answers(const json_t *talks, int width)
{
    static const char *const names[][2] = {{"prompt", "prompt"}, {"expected", "in data"}, {"answer", "answer"}};

    for (size_t i = 0; i < json_array_size(talks); i++) {
        for (int k = 0; k < 3; k++) {
            show_text(names[k][1], json_string_value(json_object_get(json_array_get(talks, i), names[k][0])), width);
        }
        putchar('\n');
    }
}

static void show_head(const run_seen *r)
{
    const numbers *s = &r->seen;
    const int64_t step = s->n ? (int64_t)s->step[s->n - 1] : 0;
    double loss = NAN, eval = NAN;

    for (size_t i = 0; i < s->n; i++) {
        loss = isnan(s->loss[i]) ? loss : s->loss[i];
        eval = isnan(s->eval[i]) ? eval : s->eval[i];
    }
    cmd_said_printf(stdout, "%s: step %lld of %lld", r->folder, (long long)step, (long long)r->steps);
    if (s->n && !isnan(s->epoch))
        printf(", epoch %.2f", s->epoch);
    if (!isnan(loss))
        printf(", loss %.4f", loss);
    if (!isnan(eval))
        printf(", evaluation %.4f", eval);
    if (s->n && !isnan(s->rate))
        printf(", rate %.3g, %.0f tokens/s", s->rate, s->speed);
    printf("%s\n\n", r->finished ? "; finished" : r->held ? "" : "; not running");
}

static void show(const run_seen *r, bool terminal)
{
    const int width = columns() - LABEL - 1;
    const json_t *talks = json_object_get(r->witness, "talks");
    json_t *before = NULL;

    if (terminal)
        fputs("\033[H\033[2J", stdout);
    show_head(r);
    if (r->seen.n)
        show_curve(&r->seen, width);
    show_load(json_object_get(r->witness, "expert_load"), width);
    if (json_array_size(talks) == 0) { /* answers come at the end: until then those from before */
        before = read_json(r, "before.json");
        talks = json_object_get(before, "talks");
    }
    show_answers(talks, width);
    json_decref(before);
    fflush(stdout);
}

/* ---- following ---- */

static void rest(double seconds)
{
    const struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - floor(seconds)))};

    nanosleep(&t, NULL);
}

/* 0: the run finished; 1: it stopped or failed, or cannot be read. */
static int follow(run_seen *r, double interval, bool once, bool terminal)
{
    int64_t shown = -1;

    for (;;) {
        if (look(r) != FIRN_OK)
            return cmd_fail_ctx(r->ctx);
        const bool over = once || r->finished || !r->held;
        const int64_t now = (int64_t)r->seen.n;
        if (terminal || over)
            show(r, terminal && !once);
        else if (now != shown)
            show_head(r); /* a log: a line where something came */
        shown = now;
        if (once)
            return 0;
        if (r->finished && !r->held)
            return 0;
        if (!r->held)
            return cmd_fail(
                "the run in %s has stopped after step %lld of %lld; firn finetune --resume %s goes on with it",
                r->folder, (long long)(r->seen.n ? r->seen.step[r->seen.n - 1] : 0), (long long)r->steps, r->folder);
        rest(interval);
    }
}

int cmd_watch(int argc, char **argv)
{
    double interval = 2;
    bool once = false;
    const cmd_option options[] = {
        {"--interval", 'f', &interval, "SECONDS", "look again after so long (default 2)", 0.01, 86400},
        {"--once", 'b', &once, NULL, "show how it stands, and end", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        "firn watch DIR [--interval SECONDS] [--once]",
        "Follows the run in DIR: loss curve, expert load, answers. Ends with the run, with status 0 when "
        "it is finished and 1 when it stopped before its last step. Where standard output is no "
        "terminal, a line for each look that saw something new.",
        options, 1, 1};
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    run_seen r = {.ctx = cmd_context(1), .folder = argv[1]};
    if (!r.ctx)
        return 1;
    status = follow(&r, interval, once, isatty(STDOUT_FILENO));
    firn_free(r.ctx, r.seen.step);
    firn_free(r.ctx, r.seen.loss);
    firn_free(r.ctx, r.seen.eval);
    json_decref(r.witness);
    firn_context_destroy(r.ctx);
    return status;
}
