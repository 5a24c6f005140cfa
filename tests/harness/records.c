/* What is printed: a record for each outcome, time or cell of the support table. With json one object a line, with csv
 * the same values in the same order; the console shows what did not pass. */
#include "harness.h"

#include <math.h>
#include <string.h>

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
        printf("%s\"%s\": %.10g", i ? ", " : "", c->args[i].name, c->args[i].value);
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

/* What every record begins with. */
static void head(style how, const test_case *c, const char *backend)
{
    char text[256];

    case_text(c, text, sizeof text);
    if (how == JSON) {
        printf("{\"op\": \"%s\", \"backend\": \"%s\", \"type\": \"%s\", \"case\": ", c->family->op, backend,
               firn_type_name(c->type));
        json_case(c);
    } else if (how == CSV) {
        printf("%s,%s,%s,", c->family->op, backend, firn_type_name(c->type));
        csv_field(text);
    } else {
        printf("  %s(%s%s%s) on %s: ", c->family->op, firn_type_name(c->type), text[0] ? "," : "", text, backend);
    }
}

static const char *const verdict_names[] = {"passed", "failed", "skipped"};

void print_outcome(style how, const test_case *c, const char *backend, const outcome *r)
{
    if (how == CONSOLE && r->verdict == PASSED)
        return;
    head(how, c, backend);
    if (how == JSON) {
        printf(", \"status\": \"%s\", \"error\": ", verdict_names[r->verdict]);
        number(r->error);
        fputs(", \"bound\": ", stdout);
        number(r->bound);
        fputs(", \"reason\": ", stdout);
        quoted(r->reason);
        fputs("}\n", stdout);
    } else if (how == CSV) {
        printf(",%s,%.6g,%.6g,", verdict_names[r->verdict], r->error, r->bound);
        csv_field(r->reason);
        putchar('\n');
    } else {
        printf("%s: %s\n", verdict_names[r->verdict], r->reason);
    }
}

void print_timing(style how, const test_case *c, const char *backend, const timing *r, const limits *l)
{
    if (!r->ok) {
        outcome failure = {.verdict = FAILED, .error = NAN, .bound = NAN};
        snprintf(failure.reason, sizeof failure.reason, "%s", r->reason);
        print_outcome(how, c, backend, &failure);
        return;
    }
    const double gflops = r->flops / r->seconds * 1e-9, gbs = r->bytes / r->seconds * 1e-9;
    const bool compute = l && r->flops / l->flops > r->bytes / l->bandwidth;
    const double limit = l ? (compute ? l->flops : l->bandwidth) * 1e-9 : NAN;
    const double percent = 100 * (compute ? gflops : gbs) / limit;
    const char *unit = compute ? "GFLOP/s" : "GB/s";
    char reason[64];
    snprintf(reason, sizeof reason, "no limit is measured on %s", backend);
    head(how, c, backend);
    if (how == CONSOLE) {
        printf("%.1f us, %.2f GFLOP/s, %.2f GB/s, ", r->seconds * 1e6, gflops, gbs);
        if (l)
            printf("%.1f %% of %.1f %s\n", percent, limit, unit);
        else
            puts(reason);
    } else if (how == CSV) {
        printf(l ? ",%.3f,%.4g,%.4g,%.4g,%.4g\n" : ",%.3f,%.4g,%.4g,,\n", r->seconds * 1e6, gflops, gbs, limit,
               percent);
    } else {
        printf(", \"time_us\": %.3f, \"gflops\": %.4g, \"gb_per_s\": %.4g, \"limit\": ", r->seconds * 1e6, gflops, gbs);
        if (l)
            printf("%.4g, \"limit_unit\": \"%s\", \"percent\": %.4g}\n", limit, unit, percent);
        else
            printf("null, \"limit_unit\": null, \"percent\": null, \"reason\": \"%s\"}\n", reason);
    }
    fflush(stdout);
}

void print_support(style how, const test_case *c, const char *backend, bool yes, const char *reason)
{
    const char *op = c->family->op, *type = firn_type_name(c->type);

    if (how == JSON) {
        printf("{\"op\": \"%s\", \"backend\": \"%s\", \"type\": \"%s\", \"supported\": %s, \"reason\": ", op, backend,
               type, yes ? "true" : "false");
        quoted(reason);
        fputs("}\n", stdout);
    } else if (how == CSV) {
        printf("%s,%s,%s,%s,", op, backend, type, yes ? "yes" : "no");
        csv_field(reason);
        putchar('\n');
    } else {
        printf("  %-20s %-8s %-8s %s%s%s\n", op, backend, type, yes ? "yes" : "no", yes ? "" : ": ", reason);
    }
}
