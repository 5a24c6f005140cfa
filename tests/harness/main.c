/* test-backend-ops test|grad|perf|support|bugs [-o OP] [-b BACKEND] [-p REGEX] [--precision f32|bf16]
 *                  [--output console|csv|json] [--case ...]
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

typedef struct {
    const char *mode, *op, *backend, *pattern, *custom;
    const char *precision; /* NULL: every kernel set's own */
    style style;
    bool told; /* why a device did not open */
    int passed, failed, skipped;
} options;

static int usage(void)
{
    fputs(
        "usage: test-backend-ops test|grad|perf|support|bugs [-o OP] [-b BACKEND] [-p REGEX]\n"
        "                        [--precision f32|bf16] [--output console|csv|json] [--case NAME=VALUE,...,type=TYPE]\n"
        "  -o OP       one operation; -b CPU every kernel set of the CPU, -b CPU:NAME one of them;\n"
        "              -b Metal every Metal device, -b MTL0 the first\n"
        "  --precision kernel sets and devices of that precision alone; otherwise kernel sets of bf16 run the\n"
        "              matrix products alone, and devices are f32\n"
        "  -p REGEX    cases whose text, as the console shows it, matches (bugs: defects whose name does)\n"
        "  --case      (perf) this case of the operation -o instead of the table's\n"
        "  bugs        plants defects in operations, one at a time, and wants each caught\n",
        stderr);
    return 2;
}

/* ---- what counts ---- */

static bool on_cpu(const target *t)
{
    return strncmp(t->name, "CPU", 3) == 0;
}

/* By design: everything on the CPU; elsewhere the gradients through frozen weights, which training cannot do without.
 */
static bool promised(const target *t, const test_case *c)
{
    const char *op = c->family->op;

    if (!on_cpu(t) && strcmp(op, "OUT_PROD") != 0 && strcmp(op, "MUL_MAT_ID_BACK") != 0)
        return false;
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

/* Which cells the support table shows for a family on a target: its first case of a type says so. */
typedef struct {
    bool known[FIRN_TYPE_LIMIT], yes[FIRN_TYPE_LIMIT];
} cells;

static bool in_table(cells *table, const target *t, const test_case *c)
{
    case_list all = {0};
    char reason[256];

    if (!table->known[c->type]) {
        c->family->cases(&all, c->family);
        for (size_t i = 0; i < all.n && !table->known[c->type]; i++) {
            if (all.items[i].type != c->type)
                continue;
            table->known[c->type] = true;
            table->yes[c->type] = case_supported(t, &all.items[i], reason, sizeof reason);
        }
        free(all.items);
    }
    return table->yes[c->type];
}

/* A skipped case whose cell is promised, by design or by the support table, has failed. A gradient graph holds other
 * operations too, which only the CPU runs all of. */
static void settle(cells *table, const target *t, const test_case *c, bool grad, outcome *r)
{
    char reason[sizeof r->reason];

    if (r->verdict != SKIPPED || no_gradient(r) || (grad && !on_cpu(t)))
        return;
    if (!promised(t, c) && !in_table(table, t, c))
        return;
    r->verdict = FAILED;
    snprintf(reason, sizeof reason, "promised, but not supported: %.460s", r->reason);
    memcpy(r->reason, reason, sizeof reason);
}

static void count(options *o, verdict v)
{
    *(v == PASSED ? &o->passed : v == FAILED ? &o->failed : &o->skipped) += 1;
}

/* ---- choosing ---- */

static const family *const *all_families(void)
{
    static const family *list[160];
    static int n;
    const family *const groups[] = {simple_families, model_families, product_families, back_families, scan_families};

    if (n == 0)
        for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
            for (const family *f = groups[i]; f->op; f++)
                list[n++] = f;
    return list;
}

static bool has_name(const test_case *c, const char *name)
{
    for (int i = 0; i < c->n_args; i++)
        if (strcmp(c->args[i].name, name) == 0)
            return true;
    return false;
}

/* Whether a case of the family has an argument of that name: a misspelt one would be taken for its default. */
static bool is_argument(const family *f, const char *name)
{
    case_list all = {0};
    bool found = false;

    f->cases(&all, f);
    if (f->perf)
        f->perf(&all, f);
    for (size_t i = 0; i < all.n && !found; i++)
        found = has_name(&all.items[i], name);
    free(all.items);
    return found;
}

/* NAME=VALUE of --case; false, having said why, where the family takes no such thing. */
static bool parse_argument(const char *text, test_case *c)
{
    const char *value = strchr(text, '=');
    const size_t n = value ? (size_t)(value - text) : 0;
    const char *name = arg_name(text, n);
    char *end;

    if (n == 0) {
        fprintf(stderr, "test-backend-ops: --case takes NAME=VALUE, not '%s'\n", text);
        return false;
    }
    value++;
    if (strcmp(name, "type") == 0) {
        if (firn_type_from_name(value, &c->type))
            return true;
        fprintf(stderr, "test-backend-ops: there is no type '%s'\n", value);
        return false;
    }
    if (c->n_args == MAX_ARGS || has_name(c, name) || !is_argument(c->family, name)) {
        fprintf(stderr, "test-backend-ops: %s takes no (other) %s\n", c->family->op, name);
        return false;
    }
    c->args[c->n_args++] = (case_arg){name, strtod(value, &end)};
    if (*value && !*end)
        return true;
    fprintf(stderr, "test-backend-ops: %s is a number, not '%s'\n", name, value);
    return false;
}

/* --case k=2048,...,type=q4_K */
static bool parse_case(const char *text, test_case *c)
{
    char *copy = strdup(text), *rest = NULL;
    bool ok = copy != NULL;

    for (char *part = copy ? strtok_r(copy, ",", &rest) : NULL; ok && part; part = strtok_r(NULL, ",", &rest))
        ok = parse_argument(part, c);
    free(copy);
    return ok;
}

static bool matches_text(const regex_t *pattern, const char *text)
{
    return !pattern || regexec(pattern, text, 0, NULL, 0) == 0;
}

static bool matches(const test_case *c, const regex_t *pattern)
{
    char text[300], args[256];

    case_text(c, args, sizeof args);
    snprintf(text, sizeof text, "%s(%s%s%s)", c->family->op, firn_type_name(c->type), args[0] ? "," : "", args);
    return matches_text(pattern, text);
}

static void collect(const options *o, const family *f, case_list *list)
{
    const bool perf = strcmp(o->mode, "perf") == 0;

    if (!perf) {
        f->cases(list, f);
    } else if (o->custom) {
        test_case c = {.family = f, .type = FIRN_F32};
        if (parse_case(o->custom, &c))
            *add_case(list, f, FIRN_F32, "") = c;
    } else if (f->perf) {
        f->perf(list, f);
    }
}

/* One line per operation and type. */
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
        count(o, ok ? PASSED : promised(t, c) ? FAILED : SKIPPED);
        print_support(o->style, c, t->name, ok, reason);
    }
}

static void perf_case(options *o, const target *t, const test_case *c)
{
    const bool cpu = on_cpu(t);
    const limits before = cpu ? limits_of(t->ctx) : (limits){0};
    const timing r = run_perf(t, c);
    const limits after = cpu ? limits_of(t->ctx) : (limits){0};
    const limits best = {fmax(before.flops, after.flops), fmax(before.bandwidth, after.bandwidth)};

    count(o, r.ok ? PASSED : FAILED);
    print_timing(o->style, c, t->name, &r, cpu ? &best : NULL);
}

/* The first of the operation's cases that a planted defect fails, which is what each is there for. */
static bool caught(options *o, const target *t, const char *name, const char *op, bool grad)
{
    bool found = false;

    for (const family *const *f = all_families(); *f && !found; f++) {
        case_list list = {0};
        cells table = {0};
        if (strcmp((*f)->op, op) != 0)
            continue;
        (*f)->cases(&list, *f);
        for (size_t k = 0; k < list.n && !found; k++) {
            outcome r = grad ? run_grad(t, &list.items[k]) : run_test(t, &list.items[k]);
            settle(&table, t, &list.items[k], grad, &r);
            found = r.verdict == FAILED;
            if (found && o->style == CONSOLE) {
                char text[256];
                case_text(&list.items[k], text, sizeof text);
                printf("caught: %s in %s, by %s(%s,%s): %s\n", name, op, grad ? "grad " : "",
                       firn_type_name(list.items[k].type), text, r.reason);
            }
        }
        free(list.items);
    }
    return found;
}

/* Each planted defect against its operation's cases, until one catches it. */
static size_t run_bugs(options *o, const target *t, const regex_t *pattern)
{
    size_t n = 0;

    for (int i = 0; i < bug_count() + cpu_bug_count(); i++) {
        const int own = i - bug_count();
        const char *op = NULL;
        bool grad = false;
        bug_plant(-1, NULL, NULL);
        const char *name = own < 0 ? bug_plant(i, &op, &grad) : cpu_bug_plant(t, own, &op);
        if (!name || (o->op && strcmp(o->op, op) != 0) || !matches_text(pattern, name))
            continue;
        n++;
        const bool found = caught(o, t, name, op, grad);
        count(o, found ? PASSED : FAILED);
        if (!found)
            fprintf(o->style == CONSOLE ? stdout : stderr, "NOT CAUGHT: %s in %s\n", name, op);
    }
    cpu_bug_plant(t, -1, NULL);
    return n;
}

/* Runs all chosen cases on one target; returns how many cases there were. */
static size_t run_target(options *o, const target *t, const regex_t *pattern)
{
    size_t total = 0;

    if (strcmp(o->mode, "bugs") == 0)
        return run_bugs(o, t, pattern);
    for (const family *const *f = all_families(); *f; f++) {
        case_list all = {0}, list = {0};
        cells table = {0};
        if (o->op && strcmp(o->op, (*f)->op) != 0)
            continue;
        if (!o->precision && !is_product(*f) && firn_context_precision(t->ctx) != FIRN_PRECISION_F32)
            continue;
        collect(o, *f, &all);
        for (size_t i = 0; i < all.n; i++)
            if (matches(&all.items[i], pattern))
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
                settle(&table, t, &list.items[i], grad, &r);
                count(o, r.verdict);
                print_outcome(o->style, &list.items[i], t->name, &r);
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

static bool target_open(target *t, const char *device, const char *name, firn_precision precision)
{
    const bool cpu = strcmp(device, "CPU") == 0;
    firn_context_params params = {.n_threads = 2};

    *t = (target){0};
    snprintf(t->name, sizeof t->name, "%s", name);
    t->ctx = firn_context_create(cpu ? &params : NULL);
    if (t->ctx)
        firn_context_set_precision(t->ctx, precision);
    bool ok = t->ctx && firn_device_open(t->ctx, device, &t->device) == FIRN_OK;
    if (ok && cpu) {
        params.n_threads = 1;
        t->ctx1 = firn_context_create(&params);
        if (t->ctx1)
            firn_context_set_precision(t->ctx1, precision);
        ok = t->ctx1 && firn_device_open(t->ctx1, device, &t->device1) == FIRN_OK;
    }
    if (!ok)
        target_close(t);
    return ok;
}

/* perf runs with the machine's threads, and with its best kernel set unless one is named. */
static bool target_open_fast(target *t, options *o, firn_precision precision)
{
    const char *set = o->backend && strncasecmp(o->backend, "CPU:", 4) == 0 ? o->backend + 4 : NULL;

    *t = (target){0};
    for (int i = 0; set && firn_kernel_sets[i]; i++)
        if (strcasecmp(set, firn_kernel_sets[i]->name) == 0 && firn_kernel_sets[i]->usable()) {
            setenv("FIRN_CPU", firn_kernel_sets[i]->name, 1);
            precision = firn_kernel_sets[i]->precision;
        }
    snprintf(t->name, sizeof t->name, "%s%s", "CPU", set && getenv("FIRN_CPU") ? o->backend + 3 : "");
    if (!wanted(o, "CPU", set ? t->name : "CPU0"))
        return false;
    t->ctx = firn_context_create(NULL);
    if (t->ctx)
        firn_context_set_precision(t->ctx, precision);
    const bool ok = t->ctx && firn_device_open(t->ctx, "CPU", &t->device) == FIRN_OK;
    if (!ok) {
        fprintf(stderr, "test-backend-ops: %s\n", t->ctx ? firn_error(t->ctx) : "out of memory");
        o->told = true;
        target_close(t);
    }
    return ok;
}

/* What a target's cases gave. */
typedef struct {
    size_t targets, cases;
    int passed, failed, skipped;
} tally;

static void add_target(options *o, tally *sum, target *t, const regex_t *pattern)
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
static void run_set(options *o, tally *sum, const firn_kernel_set *set, const regex_t *pattern)
{
    char name[32];
    int ends[2];
    tally child = {0};

    snprintf(name, sizeof name, "CPU:%s", set->name);
    if (!wanted(o, "CPU", name) && !(o->backend && strcasecmp(o->backend, "CPU0") == 0))
        return;
    if (o->precision && strcmp(o->precision, firn_precision_name(set->precision)) != 0)
        return;
    fflush(stdout);
    if (pipe(ends) != 0)
        return;
    const pid_t pid = fork();
    if (pid == 0) {
        target t;
        setenv("FIRN_CPU", set->name, 1);
        close(ends[0]);
        if (target_open(&t, "CPU", name, set->precision))
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

/* The devices that are not the CPU: all of a backend (-b Metal), or one by its name. Bf16 only where it is asked for.
 */
static void run_devices(options *o, tally *sum, const regex_t *pattern)
{
    firn_precision precision = FIRN_PRECISION_F32;
    firn_context *ctx = firn_context_create(NULL);
    const bool cpu = o->backend && strncasecmp(o->backend, "CPU", 3) == 0;
    const int n = ctx && !cpu ? firn_device_count() : 0;

    if (o->precision)
        firn_precision_from_name(o->precision, &precision);
    for (int i = 1; i < n; i++) {
        firn_device_info d = {.size = sizeof d};
        target t;
        if (firn_device_describe(ctx, i, &d) == FIRN_OK && wanted(o, d.backend, d.name) &&
            target_open(&t, d.name, d.name, precision))
            add_target(o, sum, &t, pattern);
    }
    firn_context_destroy(ctx);
}

static int run_all(options *o)
{
    regex_t compiled;
    const regex_t *pattern = o->pattern ? &compiled : NULL;
    tally sum = {0};

    if (o->pattern && regcomp(&compiled, o->pattern, REG_EXTENDED | REG_NOSUB) != 0) {
        fprintf(stderr, "test-backend-ops: '%s' is no regular expression\n", o->pattern);
        return 2;
    }
    if (strcmp(o->mode, "perf") == 0) {
        firn_precision precision = FIRN_PRECISION_F32;
        target t;
        if (o->precision)
            firn_precision_from_name(o->precision, &precision);
        if (target_open_fast(&t, o, precision))
            add_target(o, &sum, &t, pattern);
        run_devices(o, &sum, pattern);
    } else {
        /* Defects take the references' place, which are the same in every set. */
        const bool one = strcmp(o->mode, "bugs") == 0;
        for (int i = 0; firn_kernel_sets[i] && !(one && sum.targets); i++)
            if (firn_kernel_sets[i]->usable())
                run_set(o, &sum, firn_kernel_sets[i], pattern);
        if (!one)
            run_devices(o, &sum, pattern);
    }
    if (o->pattern)
        regfree(&compiled);
    if (sum.targets == 0 && o->told)
        return 2;
    if (sum.targets == 0) {
        fprintf(stderr, "test-backend-ops: no backend or device is called '%s'%s%s\n", o->backend ? o->backend : "CPU",
                o->precision ? " with kernels of precision " : "", o->precision ? o->precision : "");
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
    firn_precision precision;
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
        else if (strcmp(argv[i], "--precision") == 0 && firn_precision_from_name(value, &precision))
            o.precision = value;
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
    if (o.custom && (strcmp(o.mode, "perf") != 0 || !o.op || o.pattern)) {
        fputs("test-backend-ops: --case is a case of perf, of the operation that -o names\n", stderr);
        return 2;
    }
    return run_all(&o);
}
