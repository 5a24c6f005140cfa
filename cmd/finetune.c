/* firn finetune: the options, what a person sees while it runs, and Ctrl-C. The run itself is train/run.c. */
#include "cmd.h"
#include "core/leftover.h"
#include "core/machine.h"
#include "train/options.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ---- stopping: the first signal ends the run with a checkpoint, a second Ctrl-C or SIGTERM at once ---- */

static volatile sig_atomic_t stop_signal;
static bool terminal;

static void on_signal(int signal)
{
    static const char words[] = "\nstopping: a checkpoint is being written (once more Ctrl-C stops at once)\n";
    const bool wanted = signal == SIGINT || signal == SIGTERM;
    const int error = errno;

    if (stop_signal && wanted) {
        firn_leftovers_remove();
        _exit(128 + signal);
    }
    /* A hang-up may come twice, from terminal and shell, and a broken pipe comes with every line. */
    if (!stop_signal) {
        stop_signal = signal;
        if (wanted)
            (void)!write(STDERR_FILENO, words + !terminal, sizeof words - 1 - !terminal);
    }
    errno = error;
}

/* What was ignored at the start stays ignored (nohup, `trap '' INT`). */
static void catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXCPU};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, old;

    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

static bool stop(void *user)
{
    (void)user;
    return stop_signal != 0;
}

/* ---- what a person sees ---- */

typedef struct {
    firn_context *ctx;
    bool bar;           /* a progress bar stands on the last line */
    firn_progress last; /* what it shows */
} screen;

static void clear_bar(screen *s)
{
    if (s->bar)
        fputs("\r\033[K", stderr);
    s->bar = false;
}

static void figures(firn_text *t, const firn_progress *p)
{
    firn_text_printf(t, "loss %.4f", p->loss);
    if (!isnan(p->eval_loss))
        firn_text_printf(t, "  eval %.4f", p->eval_loss);
    if (!isnan(p->router_aux_loss))
        firn_text_printf(t, "  router %.3f, z %.3g", p->router_aux_loss, p->router_z_loss);
    firn_text_printf(t, "  %.0f tokens/s  ", p->tokens_per_second);
    firn_text_duration(t, p->seconds_left);
    firn_text_puts(t, " left");
    if (p->memory) {
        firn_text_puts(t, "  ");
        firn_text_bytes(t, p->memory);
    }
}

static void draw_bar(const firn_progress *p, const char *right)
{
    char left[48];
    const int n = snprintf(left, sizeof left, "%lld/%lld ", (long long)p->step, (long long)p->steps);
    const int room = cmd_columns(STDERR_FILENO) - n - (int)strlen(right) - 4, width = room < 8    ? 0
                                                                                      : room > 40 ? 40
                                                                                                  : room;

    fprintf(stderr, "\r%s", left);
    if (width) {
        const int full = (int)((double)width * (double)p->step / (double)p->steps);
        fputc('[', stderr);
        for (int i = 0; i < width; i++)
            fputc(i < full ? '=' : i == full ? '>' : ' ', stderr);
        fputs("] ", stderr);
    }
    fprintf(stderr, "%s\033[K", right);
    fflush(stderr);
}

static void show(screen *s, const firn_progress *p)
{
    firn_text t;

    firn_text_init(&t, s->ctx, 0);
    figures(&t, p);
    if (terminal) {
        draw_bar(p, firn_text_cstr(&t));
        s->bar = true;
    } else {
        fprintf(stderr, "step %lld/%lld  %s  lr %.3g  |g| %.3g\n", (long long)p->step, (long long)p->steps,
                firn_text_cstr(&t), p->learning_rate, p->grad_norm);
    }
    firn_text_free(&t);
}

static void say(void *user, const char *line)
{
    screen *s = user;

    clear_bar(s);
    fprintf(stderr, "%s\n", line);
    if (terminal && s->last.step)
        show(s, &s->last);
}

static void progress(void *user, const firn_progress *p)
{
    screen *s = user;

    s->last = *p;
    show(s, p);
}

/* ---- options ---- */

enum { MAX_OPTIONS = 64, NAME_BYTES = 32 };

/* "learning_rate" -> "--learning-rate" */
static void spell(char *out, const char *name)
{
    *out++ = '-';
    *out++ = '-';
    for (; *name; name++)
        *out++ = *name == '_' ? '-' : *name;
    *out = 0;
}

static int add_options(cmd_option *list, char names[][NAME_BYTES], firn_train_options *options)
{
    int n = 0;

    for (; n < firn_n_train_options; n++) {
        const firn_train_option *o = &firn_train_option_table[n];
        spell(names[n], o->name);
        list[n] = (cmd_option){names[n], o->kind, (char *)options + o->offset, o->meta, o->help, o->min, o->max};
    }
    return n;
}

static int finish(const firn_train_result *r, const char *folder)
{
    if (r->rank > 0) /* rank 0 says it */
        return r->finished || r->was_finished ? 0 : 128 + (int)stop_signal;
    if (r->was_finished) {
        printf("the run in %s is finished: %lld step%s, %s\n", folder, (long long)r->step, firn_plural(r->step),
               r->adapter);
        return 0;
    }
    if (!r->finished) {
        fprintf(stderr, "stopped after step %lld; go on with: firn finetune --resume %s\n", (long long)r->step, folder);
        return 128 + (int)stop_signal;
    }
    if (!isnan(r->eval_loss_before))
        printf("evaluation loss %.4f -> %.4f\n", r->eval_loss_before, r->eval_loss);
    printf("adapter  %s\nreport   %s\n", r->adapter, r->report);
    return 0;
}

/* What the command line leaves unset is taken from the file. Its texts stay in `kept`, with a context of its own. */
static bool read_config(const char *path, firn_arena *kept, firn_train_options *options)
{
    firn_train_options theirs;
    firn_context *ctx = cmd_context(1);

    if (!ctx)
        return false;
    firn_arena_init(kept, ctx, 0);
    if (firn_train_options_read(kept, path, &theirs) != FIRN_OK)
        return cmd_fail_ctx(ctx), false;
    firn_train_options_fill(options, &theirs);
    return true;
}

static int finetune(int argc, char **argv, firn_train_options *options, firn_arena *kept)
{
    cmd_option list[MAX_OPTIONS];
    char names[MAX_OPTIONS][NAME_BYTES];
    const char *resume = NULL;
    int64_t threads = 0;
    bool profile = false, dry_run = false;
    const char *config = NULL;
    int n = add_options(list, names, options), status;
    const cmd_option more[] = {
        {"--config", 's', &config, "F.json",
         "options from a file: an object of them by name, or a run's run.json; those on the command line win", 0, 0},
        {"--threads", 'i', &threads, "N", "threads (default: all processors; no more than these)", 1, 1024},
        {"--resume", 's', &resume, "DIR",
         "go on with the run in DIR; only --steps --epochs --threads --memory-limit --weights --cache --save-every "
         "--eval-every --patience --final --on-divergence may be given beside it",
         0, 0},
        {"--dry-run", 'b', &dry_run, NULL, "say the plan, its memory and the time it may take; train nothing", 0, 0},
        {"--profile", 'b', &profile, NULL, "print the time by operation at the end", 0, 0},
        {NULL, 0, NULL, NULL, NULL, 0, 0},
    };
    memcpy(list + n, more, sizeof more);
    const cmd_spec spec = {
        "firn finetune --model M.gguf --data D.jsonl --output DIR [options] | firn finetune --resume DIR",
        "Trains a LoRA adapter on a model that stays as it is, quantized in its file. DIR gets adapter.gguf (for "
        "llama.cpp),\nreport.html, metrics.jsonl, run.json and checkpoints. Ctrl-C writes a checkpoint; --resume goes "
        "on "
        "from it with the\nsame bits.",
        list, 0, 0};
    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (config && !read_config(config, kept, options))
        return 1;

    for (int i = 0; resume && i < firn_n_train_options; i++)
        if (!firn_train_option_table[i].resumable && firn_train_option_is_set(options, &firn_train_option_table[i]))
            return cmd_usage(argv[0], "%s cannot be changed for a run that is resumed", names[i]);
    if (!resume && (!options->model || !options->data.n || !options->output))
        return cmd_usage(argv[0], "%s is missing",
                         !options->model    ? "--model M.gguf"
                         : !options->data.n ? "--data D.jsonl"
                                            : "--output DIR");
    firn_context *ctx = cmd_context(threads);
    if (!ctx)
        return 1;
    screen s = {.ctx = ctx};
    const firn_watch watch = {.size = sizeof watch, .user = &s, .say = say, .progress = progress, .stop = stop};
    const int flags = (dry_run ? FIRN_TRAIN_DRY_RUN : 0) | (profile ? FIRN_TRAIN_PROFILE : 0);
    firn_train_result result = {.size = sizeof result};
    terminal = isatty(STDERR_FILENO);
    catch_signals();
    const firn_status done = resume ? firn_train_resume(ctx, resume, options, flags, &watch, &result)
                                    : firn_train(ctx, options, flags, &watch, &result);
    clear_bar(&s);
    status = done != FIRN_OK ? cmd_fail_ctx(ctx) : dry_run ? 0 : finish(&result, resume ? resume : options->output);
    firn_context_destroy(ctx);
    return status;
}

int cmd_finetune(int argc, char **argv)
{
    firn_train_options options;
    firn_arena kept = {0};

    firn_train_options_init(&options);
    const int status = finetune(argc, argv, &options, &kept);
    if (kept.ctx) {
        firn_context *ctx = kept.ctx;
        firn_arena_clear(&kept);
        firn_context_destroy(ctx);
    }
    return status;
}
