/* firn adapter: what adapters are, how far two are apart, sums and multiples of them. Needs no model. */
#include "cmd.h"
#include "info_adapter.h"
#include "json.h"
#include "said.h"
#include "train/adapters.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static double norm(const firn_adapter *ad, const firn_adapter_entry *e)
{
    return e ? sqrt(fmax(firn_updates_product(ad, e, ad, e), 0)) : 0;
}

static int print_json(json_t *json)
{
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;

    json_decref(json);
    if (!text)
        return cmd_fail("out of memory");
    puts(text);
    free(text);
    return 0;
}

/* ---- info ---- */

static json_t *entry_json(const firn_adapter *ad, const firn_adapter_entry *e)
{
    return json_pack("{so ss sI sf sI sI sI sf}", "tensor", cmd_json_text(e->tensor, strlen(e->tensor)), "class",
                     firn_class_name(e->class_), "rank", (json_int_t)e->rank, "scale", (double)e->scale, "inputs",
                     (json_int_t)e->n_in, "outputs", (json_int_t)e->n_out, "experts", (json_int_t)e->n_expert, "norm",
                     norm(ad, e));
}

static int say_info(firn_context *ctx, const char *path, bool json)
{
    cmd_adapter about;
    firn_adapter *ad;
    firn_gguf *g;

    if (firn_gguf_open(ctx, path, &g) != FIRN_OK)
        return cmd_fail_ctx(ctx);
    const bool known = cmd_adapter_read(ctx, path, g, &about);
    firn_gguf_close(g);
    if (!known)
        return cmd_fail("%s is neither an adapter nor a checkpoint (firn info shows models)", path);
    if (firn_adapter_open(ctx, path, &ad) != FIRN_OK)
        return cmd_fail_ctx(ctx);
    int status = 0;
    if (json) {
        json_t *all = cmd_adapter_json(&about), *list = json_array();
        json_object_set_new(all, "architecture", cmd_json_text(ad->arch, strlen(ad->arch)));
        for (int i = 0; i < ad->n_entries; i++)
            json_array_append_new(list, entry_json(ad, &ad->entries[i]));
        json_object_set_new(all, "updates", list);
        status = print_json(all);
    } else {
        cmd_said_printf(stdout, "%s: for %s models, %lld values\n", path, ad->arch, (long long)ad->n_values);
        cmd_adapter_print(path, &about);
        printf("\n  %-34s %-10s %5s %9s %18s %12s\n", "tensor", "class", "rank", "scale", "in x out", "|update|");
        for (int i = 0; i < ad->n_entries; i++) {
            const firn_adapter_entry *e = &ad->entries[i];
            char shape[64];
            snprintf(shape, sizeof shape, "%lld x %lld%s", (long long)e->n_in, (long long)e->n_out,
                     e->n_expert > 1 ? " each" : "");
            cmd_said_printf(stdout, "  %-34s %-10s %5lld %9.4g %18s %12.6g\n", e->tensor, firn_class_name(e->class_),
                            (long long)e->rank, (double)e->scale, shape, norm(ad, e));
        }
    }
    firn_adapter_destroy(ad);
    return status;
}

/* ---- diff ---- */

typedef struct {
    double one, other, both; /* squares of the norms, and the product */
} distance;

static double cosine(const distance *d)
{
    return d->one > 0 && d->other > 0 ? d->both / sqrt(d->one * d->other) : 0;
}

static double apart(const distance *d)
{
    return sqrt(fmax(d->one + d->other - 2 * d->both, 0));
}

static json_t *distance_json(const char *tensor, const distance *d)
{
    return json_pack("{ss* sf sf sf sf}", "tensor", tensor, "norm", sqrt(d->one), "other_norm", sqrt(d->other),
                     "cosine", cosine(d), "difference", apart(d));
}

static void distance_line(const char *what, const distance *d)
{
    cmd_said_printf(stdout, "  %-34s %12.6g %12.6g %9.4f %12.6g\n", what, sqrt(d->one), sqrt(d->other), cosine(d),
                    apart(d));
}

/* One tensor, which either of the two may lack; adds to the whole. */
static firn_status measure(firn_context *ctx, const firn_adapter *ad[2], const firn_adapter_entry *e[2], distance *d,
                           distance *whole)
{
    *d = (distance){0, 0, 0};
    if (e[0] && e[1])
        FIRN_EXPECT(ctx, e[0]->n_in == e[1]->n_in && e[0]->n_out == e[1]->n_out && e[0]->n_expert == e[1]->n_expert,
                    "the two adapters have %s in different shapes", e[0]->tensor);
    d->one = e[0] ? firn_updates_product(ad[0], e[0], ad[0], e[0]) : 0;
    d->other = e[1] ? firn_updates_product(ad[1], e[1], ad[1], e[1]) : 0;
    d->both = e[0] && e[1] ? firn_updates_product(ad[0], e[0], ad[1], e[1]) : 0;
    whole->one += d->one;
    whole->other += d->other;
    whole->both += d->both;
    return FIRN_OK;
}

static firn_status compare(firn_context *ctx, const firn_adapter *ad[2], json_t *list, distance *whole)
{
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < ad[which]->n_entries; i++) {
            const firn_adapter_entry *mine = &ad[which]->entries[i], *e[2];
            distance d;
            e[which] = mine;
            e[!which] = firn_adapter_find(ad[!which], mine->tensor);
            if (which && e[0])
                continue; /* seen */
            FIRN_TRY(measure(ctx, ad, e, &d, whole));
            if (list)
                json_array_append_new(list, distance_json(mine->tensor, &d));
            else
                distance_line(mine->tensor, &d);
        }
    return FIRN_OK;
}

static int say_diff(firn_context *ctx, char **paths, bool json, bool force)
{
    firn_adapter *ad[2] = {NULL, NULL};
    json_t *list = json ? json_array() : NULL;
    distance whole = {0, 0, 0};
    int status = 0;

    firn_status s = firn_adapter_open(ctx, paths[0], &ad[0]);
    if (s == FIRN_OK)
        s = firn_adapter_open(ctx, paths[1], &ad[1]);
    if (s == FIRN_OK && !force)
        s = firn_adapters_expect_one_base(ctx, ad[0], ad[1], (const char *const *)paths);
    if (s == FIRN_OK && !json)
        printf("  %-34s %12s %12s %9s %12s\n", "tensor", "|A|", "|B|", "cosine", "|A - B|");
    if (s == FIRN_OK)
        s = compare(ctx, (const firn_adapter *[]){ad[0], ad[1]}, list, &whole);
    if (s == FIRN_OK && json) {
        json_t *all = distance_json(NULL, &whole);
        json_object_set(all, "updates", list);
        status = print_json(all);
    } else if (s == FIRN_OK) {
        distance_line("all", &whole);
    }
    json_decref(list);
    firn_adapter_destroy(ad[0]);
    firn_adapter_destroy(ad[1]);
    return s == FIRN_OK ? status : cmd_fail_ctx(ctx);
}

/* ---- merge and scale ---- */

/* "A.gguf:0.5" into its parts, as for data: only where no file has the whole name. */
static bool split_weight(char *source, double *weight)
{
    char *colon = strrchr(source, ':'), *end;

    *weight = 1;
    if (!colon || access(source, F_OK) == 0)
        return true;
    *weight = strtod(colon + 1, &end);
    if (colon[1] == 0 || *end || !isfinite(*weight))
        return cmd_fail("%s: expected a number behind the colon, as in a.gguf:0.5", source), false;
    *colon = 0;
    return true;
}

static firn_status merge_all(firn_context *ctx, const char *out, char **paths, const double *weights, int n, bool force,
                             firn_adapter **ads)
{
    firn_adapter *sum;

    for (int i = 0; i < n; i++) {
        FIRN_TRY(firn_adapter_open(ctx, paths[i], &ads[i]));
        for (int k = 0; k < i && !force; k++) /* not with the first alone: that may not say */
            FIRN_TRY(firn_adapters_expect_one_base(ctx, ads[k], ads[i], (const char *const[]){paths[k], paths[i]}));
    }
    FIRN_TRY(firn_adapters_add(ctx, n, (const firn_adapter *const *)ads, weights, &sum));
    const firn_status s = firn_adapter_save(ctx, sum, NULL, out);
    int64_t most = 0;
    for (int i = 0; i < sum->n_entries; i++)
        most = sum->entries[i].rank > most ? sum->entries[i].rank : most;
    if (s == FIRN_OK)
        cmd_said_printf(stdout, "%s: the sum of %d adapters on %d tensors, of rank %lld at most\n", out, n,
                        sum->n_entries, (long long)most);
    firn_adapter_destroy(sum);
    return s;
}

static int merge(firn_context *ctx, const char *out, char **paths, int n, bool force)
{
    double *weights = calloc((size_t)n, sizeof *weights);
    firn_adapter **ads = calloc((size_t)n, sizeof *ads);
    bool good = weights && ads;
    int status = 1;

    if (!good)
        cmd_fail("out of memory");
    for (int i = 0; good && i < n; i++)
        good = split_weight(paths[i], &weights[i]);
    if (good)
        status = merge_all(ctx, out, paths, weights, n, force, ads) == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    for (int i = 0; ads && i < n; i++)
        firn_adapter_destroy(ads[i]);
    free(ads);
    free(weights);
    return status;
}

static int scale(firn_context *ctx, const char *in, const char *factor, const char *out)
{
    firn_adapter *ad = NULL;
    char *end;
    const double x = strtod(factor, &end);

    if (end == factor || *end)
        return cmd_usage("adapter", "the factor is a number, not '%s'", factor);
    firn_status s = firn_adapter_open(ctx, in, &ad);
    if (s == FIRN_OK)
        s = firn_adapter_scale(ctx, ad, x);
    if (s == FIRN_OK)
        s = firn_adapter_save(ctx, ad, NULL, out);
    if (s == FIRN_OK)
        cmd_said_printf(stdout, "%s: the updates of %s times %g\n", out, in, x);
    firn_adapter_destroy(ad);
    return s == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
}

int cmd_adapter_command(int argc, char **argv)
{
    bool json = false, force = false;
    const cmd_option options[] = {
        {"--json", 'b', &json, NULL, "info, diff: print JSON", 0, 0},
        {"--force", 'b', &force, NULL, "diff, merge: also adapters that were made for different models", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        "firn adapter info A | diff A B | merge OUT A[:WEIGHT]... | scale A X OUT",
        "info: where an adapter comes from; rank, scale and size (Frobenius norm) of each tensor's update.\n"
        "diff: how far two adapters are apart, tensor by tensor: sizes, cosine, size of the difference.\n"
        "merge: one adapter whose update is the weighted sum of others', exactly: ranks add up.\n"
        "scale: an adapter whose update is X times another's (a negative X behind --).",
        options, 2, -1};
    static const struct {
        const char *name;
        int least, most;
    } verbs[] = {{"info", 1, 1}, {"diff", 2, 2}, {"merge", 2, 1 << 20}, {"scale", 3, 3}};
    int n, status, verb = -1;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    for (int i = 0; i < 4; i++)
        if (strcmp(argv[1], verbs[i].name) == 0)
            verb = i;
    if (verb < 0)
        return cmd_usage(argv[0], "there is no 'adapter %s': expected info, diff, merge or scale", argv[1]);
    if (n - 1 < verbs[verb].least || n - 1 > verbs[verb].most)
        return cmd_usage(argv[0], "'adapter %s' takes %s", argv[1],
                         verb == 0   ? "one adapter"
                         : verb == 1 ? "two adapters"
                         : verb == 2 ? "the result and then the adapters"
                                     : "an adapter, a factor and the result");
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    status = verb == 0   ? say_info(ctx, argv[2], json)
             : verb == 1 ? say_diff(ctx, argv + 2, json, force)
             : verb == 2 ? merge(ctx, argv[2], argv + 3, n - 2, force)
                         : scale(ctx, argv[2], argv[3], argv[4]);
    firn_context_destroy(ctx);
    return status;
}
