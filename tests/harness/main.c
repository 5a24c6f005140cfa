/* test-backend-ops test|grad|perf|support|bugs [-o OP] [-b BACKEND] [-p REGEX] [--output console|csv|json] [--case ...]
 *
 * Exit status 0; 1 when anything failed, or a cell that is promised was skipped; 2 when -o, -b or -p match nothing, and
 * for usage. The last line is `N passed, N failed, N skipped`: on standard output with console, on standard error with
 * csv and json, whose standard output holds records alone. */
#include "harness.h"

#include "cpu/kernel_set.h"

#include <math.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef enum { CONSOLE, CSV, JSON } style;

typedef struct {
    const char *mode, *op, *backend, *pattern, *custom;
    style style;
    int passed, failed, skipped;
    double flops, bandwidth; /* limits, for perf */
} options;

static int usage(void)
{
    fputs("usage: test-backend-ops test|grad|perf|support|bugs [-o OP] [-b BACKEND] [-p REGEX]\n"
          "                        [--output console|csv|json] [--case NAME=VALUE,...,type=TYPE]\n"
          "  -o OP       one operation; -b CPU every kernel set of the CPU, -b CPU:NAME one of them\n"
          "  -p REGEX    cases whose text, as the console shows it, matches\n"
          "  bugs        plants defects in operations, one at a time, and wants each caught\n"
          "  --case      (perf) this case of the operation instead of the table's\n",
          stderr);
    return 2;
}

/* ---- records ---- */

static void quoted(const char *s)
{
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            putchar('\\');
        putchar((unsigned char)*s < ' ' ? ' ' : *s);
    }
    putchar('"');
}

/* A number, or null where there is none. */
static void number(double v)
{
    if (isfinite(v))
        printf("%.6g", v);
    else
        fputs("null", stdout);
}

static void json_case(const test_case *c)
{
    fputs("{", stdout);
    for (int i = 0; i < c->n_args; i++) {
        printf("%s\"%s\": ", i ? ", " : "", c->args[i].name);
        number(c->args[i].value);
    }
    fputs("}", stdout);
}

/* csv: fields that hold a comma or a quote are quoted. */
static void csv_field(const char *s)
{
    if (!strpbrk(s, ",\"\n")) {
        fputs(s, stdout);
        return;
    }
    putchar('"');
    for (; *s; s++) {
        if (*s == '"')
            putchar('"');
        putchar(*s == '\n' ? ' ' : *s);
    }
    putchar('"');
}

static void head(const options *o, const test_case *c, const char *backend)
{
    char text[256];

    case_text(c, text, sizeof text);
    if (o->style == JSON) {
        printf("{\"op\": \"%s\", \"backend\": \"%s\", \"type\": \"%s\", \"case\": ", c->family->op, backend,
               firn_type_name(c->type));
        json_case(c);
    } else if (o->style == CSV) {
        printf("%s,%s,%s,", c->family->op, backend, firn_type_name(c->type));
        csv_field(text);
    } else {
        printf("  %s(%s%s%s) on %s: ", c->family->op, firn_type_name(c->type), text[0] ? "," : "", text, backend);
    }
}

static const char *const verdict_names[] = {"passed", "failed", "skipped"};

static bool promised(const test_case *c)
{
    if (c->type == FIRN_F32)
        return true;
    for (int i = 0; c->family->formats && i < n_promised_types; i++)
        if (promised_types[i] == c->type)
            return true;
    return false;
}

/* The operation has none on purpose. */
static bool no_gradient(const outcome *r)
{
    return strncmp(r->reason, "no gradient", 11) == 0;
}

/* Counts and prints one outcome; the console shows what did not pass. */
static void record(options *o, const test_case *c, const char *backend, outcome *r)
{
    if (r->verdict == SKIPPED && !no_gradient(r) && promised(c)) {
        r->verdict = FAILED;
        char reason[sizeof r->reason];
        snprintf(reason, sizeof reason, "promised, but not supported: %.460s", r->reason);
        memcpy(r->reason, reason, sizeof reason);
    }
    *(r->verdict == PASSED ? &o->passed : r->verdict == FAILED ? &o->failed : &o->skipped) += 1;
    if (o->style == CONSOLE) {
        if (r->verdict != PASSED) {
            head(o, c, backend);
            printf("%s: %s\n", verdict_names[r->verdict], r->reason);
        }
        return;
    }
    head(o, c, backend);
    if (o->style == JSON) {
        printf(", \"status\": \"%s\", \"error\": ", verdict_names[r->verdict]);
        number(r->error);
        fputs(", \"bound\": ", stdout);
        number(r->bound);
        fputs(", \"reason\": ", stdout);
        quoted(r->reason);
        fputs("}\n", stdout);
    } else {
        printf(",%s,%.6g,%.6g,", verdict_names[r->verdict], r->error, r->bound);
        csv_field(r->reason);
        putchar('\n');
    }
}

static void perf_case(options *o, const target *t, const test_case *c)
{
    const timing r = run_perf(t, c);

    if (!r.ok) {
        outcome failure = {.verdict = FAILED, .error = NAN, .bound = NAN};
        snprintf(failure.reason, sizeof failure.reason, "%s", r.reason);
        record(o, c, t->name, &failure);
        return;
    }
    o->passed++;
    const double gflops = r.flops / r.seconds * 1e-9, gbs = r.bytes / r.seconds * 1e-9;
    const bool compute = r.flops / o->flops > r.bytes / o->bandwidth;
    const double limit = (compute ? o->flops : o->bandwidth) * 1e-9, percent = 100 * (compute ? gflops : gbs) / limit;
    head(o, c, t->name);
    if (o->style == CONSOLE)
        printf("%.1f us, %.2f GFLOP/s, %.2f GB/s, %.1f %% of %.1f %s\n", r.seconds * 1e6, gflops, gbs, percent, limit,
               compute ? "GFLOP/s" : "GB/s");
    else if (o->style == CSV)
        printf(",%.3f,%.4g,%.4g,%.4g,%.4g\n", r.seconds * 1e6, gflops, gbs, limit, percent);
    else
        printf(", \"time_us\": %.3f, \"gflops\": %.4g, \"gb_per_s\": %.4g, \"limit\": %.4g, \"limit_unit\": \"%s\", "
               "\"percent\": %.4g}\n",
               r.seconds * 1e6, gflops, gbs, limit, compute ? "GFLOP/s" : "GB/s", percent);
    fflush(stdout);
}

/* ---- choosing ---- */

static const family *const *all_families(void)
{
    static const family *list[160];
    static int n;
    const family *const groups[] = {simple_families, model_families, product_families, back_families};

    if (n == 0)
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            for (const family *f = groups[i]; f->op; f++)
                list[n++] = f;
    return list;
}

/* --case k=2048,...,type=q4_K */
static bool parse_case(const char *text, test_case *c)
{
    char *copy = strdup(text), *rest = NULL;
    bool ok = true;

    for (char *part = strtok_r(copy, ",", &rest); ok && part; part = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(part, '='), *end;
        ok = value && c->n_args < MAX_ARGS;
        if (!ok)
            break;
        *value++ = 0;
        if (strcmp(part, "type") == 0) {
            ok = firn_type_from_name(value, &c->type);
            continue;
        }
        c->args[c->n_args++] = (case_arg){part, strtod(value, &end)};
        ok = *value && !*end;
    }
    return ok; /* copy lives as long as the case: the program */
}

static bool matches(const options *o, const test_case *c, regex_t *pattern)
{
    char text[300], args[256];

    if (!o->pattern)
        return true;
    case_text(c, args, sizeof args);
    snprintf(text, sizeof text, "%s(%s%s%s)", c->family->op, firn_type_name(c->type), args[0] ? "," : "", args);
    return regexec(pattern, text, 0, NULL, 0) == 0;
}

static void collect(const options *o, const family *f, case_list *list)
{
    const bool perf = strcmp(o->mode, "perf") == 0;

    if (!perf) {
        f->cases(list, f);
    } else if (o->custom) {
        test_case c = {.family = f, .type = FIRN_F32};
        if (parse_case(o->custom, &c)) {
            *add_case(list, f, FIRN_F32, "") = c;
        }
    } else if (f->perf) {
        f->perf(list, f);
    }
}

/* One line per operation and type: the first case that has it says whether it is supported. */
static void support_family(options *o, const target *t, const case_list *list)
{
    bool seen[FIRN_TYPE_LIMIT] = {false};
    char reason[256];

    for (size_t i = 0; i < list->n; i++) {
        const test_case *c = &list->items[i];
        if (seen[c->type])
            continue;
        seen[c->type] = true;
        const bool ok = case_supported(t, c, reason, sizeof reason);
        *(ok ? &o->passed : promised(c) ? &o->failed : &o->skipped) += 1;
        if (o->style == JSON) {
            printf("{\"op\": \"%s\", \"backend\": \"%s\", \"type\": \"%s\", \"supported\": %s, \"reason\": ",
                   c->family->op, t->name, firn_type_name(c->type), ok ? "true" : "false");
            quoted(reason);
            fputs("}\n", stdout);
        } else if (o->style == CSV) {
            printf("%s,%s,%s,%s,", c->family->op, t->name, firn_type_name(c->type), ok ? "yes" : "no");
            csv_field(reason);
            putchar('\n');
        } else {
            printf("  %-20s %-8s %-8s %s%s%s\n", c->family->op, t->name, firn_type_name(c->type), ok ? "yes" : "no",
                   ok ? "" : ": ", reason);
        }
    }
}

/* Each planted defect against its operation's cases, until one catches it. */
static size_t run_bugs(options *o, const target *t)
{
    const int n = bug_count();

    for (int i = 0; i < n; i++) {
        const char *op = NULL;
        bool grad = false, caught = false;
        const char *name = bug_plant(i, &op, &grad);
        for (const family *const *f = all_families(); *f && !caught; f++) {
            case_list list = {0};
            if (strcmp((*f)->op, op) != 0)
                continue;
            (*f)->cases(&list, *f);
            for (size_t k = 0; k < list.n && !caught; k++) {
                const outcome r = grad ? run_grad(t, &list.items[k]) : run_test(t, &list.items[k]);
                caught = r.verdict == FAILED;
                if (caught && o->style == CONSOLE) {
                    char text[256];
                    case_text(&list.items[k], text, sizeof text);
                    printf("caught: %s in %s, by %s(%s,%s): %s\n", name, op, grad ? "grad " : "",
                           firn_type_name(list.items[k].type), text, r.reason);
                }
            }
            free(list.items);
        }
        *(caught ? &o->passed : &o->failed) += 1;
        if (!caught)
            fprintf(o->style == CONSOLE ? stdout : stderr, "NOT CAUGHT: %s in %s\n", name, op);
    }
    bug_plant(-1, NULL, NULL);
    return (size_t)n;
}

/* Runs all chosen cases on one target; returns how many cases there were. */
static size_t run_target(options *o, const target *t, regex_t *pattern)
{
    size_t total = 0;

    if (strcmp(o->mode, "bugs") == 0)
        return run_bugs(o, t);
    for (const family *const *f = all_families(); *f; f++) {
        case_list all = {0}, list = {0};
        if (o->op && strcmp(o->op, (*f)->op) != 0)
            continue;
        collect(o, *f, &all);
        for (size_t i = 0; i < all.n; i++)
            if (matches(o, &all.items[i], pattern))
                *add_case(&list, *f, FIRN_F32, "") = all.items[i];
        const int passed = o->passed, failed = o->failed, skipped = o->skipped;
        total += list.n;
        if (strcmp(o->mode, "support") == 0) {
            support_family(o, t, &list);
        } else {
            for (size_t i = 0; i < list.n; i++) {
                if (strcmp(o->mode, "perf") == 0) {
                    perf_case(o, t, &list.items[i]);
                    continue;
                }
                const bool grad = strcmp(o->mode, "grad") == 0;
                outcome r = grad ? run_grad(t, &list.items[i]) : run_test(t, &list.items[i]);
                record(o, &list.items[i], t->name, &r);
                if (grad && r.verdict == SKIPPED && no_gradient(&r))
                    break; /* none of the others has one either */
            }
            if (o->style == CONSOLE && list.n && strcmp(o->mode, "perf") != 0)
                printf("%-20s %-10s %5d passed %5d failed %5d skipped\n", (*f)->op, t->name, o->passed - passed,
                       o->failed - failed, o->skipped - skipped);
        }
        free(all.items);
        free(list.items);
    }
    return total;
}

/* ---- targets ---- */

static bool wanted(const options *o, const char *backend, const char *device)
{
    return !o->backend || strcasecmp(o->backend, backend) == 0 || strcasecmp(o->backend, device) == 0;
}

static void target_close(target *t)
{
    firn_device_close(t->device1);
    firn_context_destroy(t->ctx1);
    firn_device_close(t->device);
    firn_context_destroy(t->ctx);
}

static bool target_open(target *t, const char *device, const char *name)
{
    const bool cpu = strcmp(device, "CPU") == 0;
    firn_context_params params = {.n_threads = 2};

    *t = (target){0};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->ctx = firn_context_create(cpu ? &params : NULL);
    bool ok = t->ctx && firn_device_open(t->ctx, device, &t->device) == FIRN_OK;
    if (ok && cpu) {
        params.n_threads = 1;
        t->ctx1 = firn_context_create(&params);
        ok = t->ctx1 && firn_device_open(t->ctx1, device, &t->device1) == FIRN_OK;
    }
    if (!ok)
        target_close(t);
    return ok;
}

/* perf runs with the machine's threads and the best kernel set. */
static bool target_open_fast(target *t, const char *device)
{
    *t = (target){0};
    snprintf(t->name, sizeof t->name, "%s", device);
    t->ctx = firn_context_create(NULL);
    const bool ok = t->ctx && firn_device_open(t->ctx, device, &t->device) == FIRN_OK;
    if (!ok)
        target_close(t);
    return ok;
}

/* What a target's cases gave. */
typedef struct {
    size_t targets, cases;
    int passed, failed, skipped;
} tally;

static void add_target(options *o, tally *sum, target *t, regex_t *pattern)
{
    const tally before = *sum;

    o->passed = o->failed = o->skipped = 0;
    sum->targets++;
    sum->cases += run_target(o, t, pattern);
    sum->passed = before.passed + o->passed;
    sum->failed = before.failed + o->failed;
    sum->skipped = before.skipped + o->skipped;
    target_close(t);
}

/* A process chooses its kernel set once, so each set has a process of its own. One that dies counts as a failure. */
static void run_set(options *o, tally *sum, const char *set, regex_t *pattern)
{
    char name[32];
    int ends[2];
    tally child = {0};

    snprintf(name, sizeof name, "CPU:%s", set);
    if (!wanted(o, "CPU", name) && !(o->backend && strcasecmp(o->backend, "CPU0") == 0))
        return;
    fflush(stdout);
    if (pipe(ends) != 0)
        return;
    const pid_t pid = fork();
    if (pid == 0) {
        target t;
        setenv("FIRN_CPU", set, 1);
        close(ends[0]);
        if (target_open(&t, "CPU", name))
            add_target(o, &child, &t, pattern);
        fflush(stdout);
        _exit(write(ends[1], &child, sizeof child) == sizeof child ? 0 : 1);
    }
    close(ends[1]);
    const bool told = pid > 0 && read(ends[0], &child, sizeof child) == sizeof child;
    close(ends[0]);
    if (pid > 0)
        waitpid(pid, NULL, 0);
    if (!told) {
        fprintf(stderr, "test-backend-ops: the run on %s died\n", name);
        child = (tally){.targets = 1, .cases = 1, .failed = 1};
    }
    sum->targets += child.targets;
    sum->cases += child.cases;
    sum->passed += child.passed;
    sum->failed += child.failed;
    sum->skipped += child.skipped;
}

static int run_all(options *o)
{
    regex_t pattern;
    tally sum = {0};

    if (o->pattern && regcomp(&pattern, o->pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        fprintf(stderr, "test-backend-ops: '%s' is no regular expression\n", o->pattern);
        return 2;
    }
    if (strcmp(o->mode, "perf") == 0) {
        target t;
        if (wanted(o, "CPU", "CPU0") && target_open_fast(&t, "CPU")) {
            o->flops = limit_flops(t.ctx);
            o->bandwidth = limit_bandwidth(t.ctx);
            add_target(o, &sum, &t, &pattern);
        }
    } else {
        /* Defects take the references' place, which are the same in every set. */
        const bool one = strcmp(o->mode, "bugs") == 0;
        for (int i = 0; firn_kernel_sets[i] && !(one && sum.targets); i++)
            if (firn_kernel_sets[i]->usable())
                run_set(o, &sum, firn_kernel_sets[i]->name, &pattern);
    }
    if (o->pattern)
        regfree(&pattern);
    if (sum.targets == 0) {
        fprintf(stderr, "test-backend-ops: no backend or device is called '%s'\n", o->backend ? o->backend : "CPU");
        return 2;
    }
    if (sum.cases == 0) {
        fprintf(stderr, "test-backend-ops: no case matches%s%s%s%s%s\n", o->op ? " -o " : "", o->op ? o->op : "",
                o->pattern ? " -p " : "", o->pattern ? o->pattern : "", o->custom ? " --case" : "");
        return 2;
    }
    fprintf(o->style == CONSOLE ? stdout : stderr, "%d passed, %d failed, %d skipped\n", sum.passed, sum.failed,
            sum.skipped);
    return sum.failed ? 1 : 0;
}

int main(int argc, char **argv)
{
    options o = {.style = CONSOLE};

    if (argc < 2)
        return usage();
    o.mode = argv[1];
    if (strcmp(o.mode, "test") != 0 && strcmp(o.mode, "grad") != 0 && strcmp(o.mode, "perf") != 0 &&
        strcmp(o.mode, "support") != 0 && strcmp(o.mode, "bugs") != 0)
        return usage();
    for (int i = 2; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            return usage();
        if (strcmp(argv[i], "-o") == 0)
            o.op = value;
        else if (strcmp(argv[i], "-b") == 0)
            o.backend = value;
        else if (strcmp(argv[i], "-p") == 0)
            o.pattern = value;
        else if (strcmp(argv[i], "--case") == 0)
            o.custom = value;
        else if (strcmp(argv[i], "--output") == 0 && strcmp(value, "console") == 0)
            o.style = CONSOLE;
        else if (strcmp(argv[i], "--output") == 0 && strcmp(value, "csv") == 0)
            o.style = CSV;
        else if (strcmp(argv[i], "--output") == 0 && strcmp(value, "json") == 0)
            o.style = JSON;
        else
            return usage();
    }
    return run_all(&o);
}
