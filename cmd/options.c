/* Command lines: see cmd.h. */
#include "cmd.h"
#include "complete.h"
#include "said.h"
#include "suggest.h"

#include "core/pool.h"
#include "train/cadence.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

int cmd_columns(int fd)
{
    struct winsize size;

    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

int cmd_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("firn: ", stderr);
    cmd_said_vprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return 1;
}

int cmd_fail_ctx(const firn_context *ctx)
{
    return cmd_fail("%s", firn_error(ctx));
}

int cmd_usage(const char *command, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fputs("firn: ", stderr);
    cmd_said_vprintf(stderr, format, args);
    fprintf(stderr, " (firn %s --help)\n", command);
    va_end(args);
    return 2;
}

firn_context *cmd_context(int64_t threads)
{
    const int64_t processors = firn_cpu_count();

    /* Threads that share a processor wait for each other at every node: more of them than processors take minutes over
     * what takes a second. The bits are the same for any number. */
    if (threads > processors) {
        fprintf(stderr, "firn: note: %lld threads on %lld processor%s that this process may use: taking %lld\n",
                (long long)threads, (long long)processors, processors == 1 ? "" : "s", (long long)processors);
        threads = processors;
    }
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = (int)threads});

    if (!ctx)
        cmd_fail("out of memory");
    return ctx;
}

firn_context *cmd_compute_context(const cmd_compute *compute)
{
    firn_precision precision = FIRN_PRECISION_F32;

    if (compute->precision && !firn_precision_from_name(compute->precision, &precision)) {
        cmd_fail("--precision is f32 or bf16, not '%s'", compute->precision);
        return NULL;
    }
    firn_context *ctx = cmd_context(compute->threads);
    if (!ctx)
        return NULL;
    firn_context_set_precision(ctx, precision);
    if (!compute->weights || firn_context_set_weights_text(ctx, compute->weights) == FIRN_OK)
        return ctx;
    cmd_fail("--%s", firn_error(ctx));
    firn_context_destroy(ctx);
    return NULL;
}

enum { PAGE_COLUMNS = 80, PAGE_INDENT = 29 };

/* Words broken into lines of a page, each after the first indented; `at`: the column where the first begins. A line
 * break in the text is kept where a blank or another one follows it. */
static void wrap(const char *text, int at, int indent)
{
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        const bool breaks = *text == '\n' && (text[1] == ' ' || text[1] == '\n');
        if (n > 0 && at > indent && at + 1 + n > PAGE_COLUMNS) {
            printf("\n%*s", indent, "");
            at = indent;
        } else if (n > 0 && at > indent) {
            putchar(' ');
            at++;
        }
        printf("%.*s", n, text);
        at += n;
        text += n;
        if (breaks) {
            printf("\n%*s", indent, "");
            at = indent;
        }
        for (text += *text != 0; breaks && *text == ' '; text++, at++)
            putchar(' ');
    }
    putchar('\n');
}

static void row(const char *name, const char *meta, const char *help)
{
    const int n = printf("  %s%s%s", name, meta ? " " : "", meta ? meta : "");

    if (n + 1 < PAGE_INDENT)
        printf("%*s", PAGE_INDENT - n, "");
    else
        printf("\n%*s", PAGE_INDENT, "");
    wrap(help, PAGE_INDENT, PAGE_INDENT);
}

/* "A | B" on two lines. */
static void usage(const char *text)
{
    const char *between = strstr(text, " | firn ");

    printf("usage: ");
    for (; between; text = between + 3, between = strstr(text, " | firn ")) {
        char one[512];
        snprintf(one, sizeof one, "%.*s", (int)(between - text), text);
        wrap(one, 7, 7);
        printf("       ");
    }
    wrap(text, 7, 7);
}

static void page(const cmd_spec *spec)
{
    usage(spec->usage);
    putchar('\n');
    wrap(spec->about, 0, 0);
    putchar('\n');
    for (const cmd_option *o = spec->options; o && o->name; o++)
        row(o->name, o->meta, o->help);
    row("--help", NULL, "this page");
}

bool cmd_option_named(const cmd_option *o, const char *name, size_t n)
{
    for (const char *s = o->name; *s;) {
        const size_t length = strcspn(s, ",");
        if (length == n && strncmp(s, name, n) == 0)
            return true;
        s += length + (s[length] == ',');
    }
    return false;
}

static bool in_range(const cmd_option *o, double x)
{
    return !(o->min < o->max) || (x >= o->min && x <= o->max);
}

/* Items of the lists that were given: they belong to the command line, and live as long as the command. */
enum { MOST_LISTS = 8 };
static const char **lists[MOST_LISTS];
static int n_lists;

void cmd_forget_lists(void)
{
    while (n_lists > 0)
        free((void *)(uintptr_t)lists[--n_lists]);
}

static bool append(cmd_list *list, const char *text)
{
    int k = 0;

    while (k < n_lists && lists[k] != list->items)
        k++;
    if (k == MOST_LISTS)
        return false;
    const char **items = realloc((void *)(uintptr_t)list->items, ((size_t)list->n + 1) * sizeof *items);
    if (!items)
        return false;
    items[list->n++] = text;
    list->items = lists[k] = items;
    n_lists += k == n_lists;
    return true;
}

/* 0, or the exit status after a printed sentence. */
static int store(const char *command, const cmd_option *o, const char *name, const char *text)
{
    char *end;

    switch (o->kind) {
    case 's':
        *(const char **)o->value = text;
        return 0;
    case 'l':
        return append(o->value, text) ? 0 : cmd_fail("out of memory");
    case 'i': {
        errno = 0;
        const long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno)
            return cmd_usage(command, "%s takes a whole number, not '%s'", name, text);
        if (!in_range(o, (double)v))
            return cmd_usage(command, "%s takes a number from %.10g to %.10g, not %s", name, o->min, o->max, text);
        *(int64_t *)o->value = v;
        return 0;
    }
    case 'd':
        return firn_cadence_read(text, o->value)
                   ? 0
                   : cmd_usage(command, "%s takes a number of steps, or a time such as 90s, 10m, 2h, not '%s'", name,
                               text);
    default: {
        const double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v))
            return cmd_usage(command, "%s takes a number, not '%s'", name, text);
        if (!in_range(o, v))
            return cmd_usage(command, "%s takes a number from %.10g to %.10g, not %s", name, o->min, o->max, text);
        *(double *)o->value = v;
        return 0;
    }
    }
}

bool cmd_parse(const cmd_spec *spec, int argc, char **argv, int *n, int *status)
{
    const char *command = argv[0];
    bool options_end = false;
    uint64_t given = 0; /* options, a bit each */

    *n = 0;
    *status = 0;
    if (cmd_completing) {
        cmd_complete(spec, argc, argv);
        return false;
    }
    for (int i = 1; i < argc; i++) {
        char *arg = argv[i];
        if (options_end || arg[0] != '-' || arg[1] == 0) {
            argv[++*n] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            options_end = true;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            page(spec);
            return false;
        }
        const size_t length = strcspn(arg, "=");
        const cmd_option *o = spec->options;
        while (o && o->name && !cmd_option_named(o, arg, length))
            o++;
        if (!o || !o->name) {
            const char *near = cmd_suggest_option(spec->options, arg, length);
            *status = near ? cmd_usage(command, "there is no option %.*s; did you mean %s?", (int)length, arg, near)
                           : cmd_usage(command, "there is no option %.*s", (int)length, arg);
            return false;
        }
        const uint64_t bit = (uint64_t)1 << ((o - spec->options) % 64);
        if (o->kind != 'l' && (given & bit)) {
            *status = cmd_usage(command, "%.*s is given twice; it can be given once", (int)length, arg);
            return false;
        }
        given |= bit;
        if (o->kind == 'b') {
            if (arg[length]) {
                *status = cmd_usage(command, "%.*s takes no value", (int)length, arg);
                return false;
            }
            *(bool *)o->value = true;
            continue;
        }
        char *text = arg[length] ? arg + length + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!text) {
            *status = cmd_usage(command, "%s needs a value (%s)", arg, o->meta);
            return false;
        }
        arg[length] = 0;
        *status = store(command, o, arg, text);
        if (*status)
            return false;
    }
    if (*n < spec->min_args)
        *status = cmd_usage(command, "an argument is missing: %s", spec->usage);
    else if (spec->max_args >= 0 && *n > spec->max_args)
        *status = cmd_usage(command, "one argument too many: '%s'", argv[spec->max_args + 1]);
    return *status == 0;
}
