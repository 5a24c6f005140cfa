/* firn merge: a model with adapters in its weights. */
#include "firn/merge.h"
#include "firn/kernels.h"

#include "core/random.h"
#include "json.h"
#include "model.h"
#include "said.h"
#include "train/adapters.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBES = 32 }; /* tokens whose logits are compared */

typedef struct {
    bool json;
    json_t *list;
    double least;   /* survival */
    double d, kept; /* to sum up: |dW|^2 relative to W's, and what survives of it */
    int n;
} telling;

static void tell(void *user, const firn_merge_tensor *t)
{
    telling *s = user;
    const char *was = firn_type_name(t->tensor->type), *is = firn_type_name(t->type);

    s->d += t->update * t->update;
    s->kept += t->update * t->update * t->survives;
    s->least = s->n == 0 || t->survives < s->least ? t->survives : s->least;
    s->n++;
    if (s->json) {
        json_array_append_new(s->list,
                              json_pack("{so ss ss sf sf sf}", "tensor",
                                        cmd_json_text(t->tensor->name, strlen(t->tensor->name)), "from", was, "type",
                                        is, "update", t->update, "survives", t->survives, "error", t->error));
        return;
    }
    char types[64];
    snprintf(types, sizeof types, t->type == t->tensor->type ? "%s" : "%s -> %s", was, is);
    cmd_said_printf(stdout, "  %-34s %-14s %9.2f %% %9.1f %% %9.2f %%\n", t->tensor->name, types, 100 * t->update,
                    100 * t->survives, 100 * t->error);
    fflush(stdout);
}

/* ---- what the merged model says ---- */

typedef struct {
    double kl,
        moved; /* mean Kullback-Leibler divergence from the adapter's: of the merged model; of the model itself */
    double nmse;
    int same; /* of PROBES: the likeliest token is the same */
} comparison;

static firn_status logits_of(firn_context *ctx, firn_device *device, const firn_model *model, firn_adapter *adapter,
                             float *logits)
{
    int32_t tokens[PROBES], targets[PROBES], position[PROBES], first[PROBES] = {0};
    const int64_t n_vocab = firn_model_get_info(model)->n_vocab;
    firn_session *session;

    for (int i = 0; i < PROBES; i++) {
        tokens[i] = (int32_t)firn_random_below(1, 0, (uint64_t)i, (uint64_t)n_vocab);
        targets[i] = -1;
        position[i] = i;
    }
    const firn_batch batch = {.size = sizeof batch,
                              .n_tokens = PROBES,
                              .tokens = tokens,
                              .targets = targets,
                              .position = position,
                              .first = first};
    const firn_session_params params = {.size = sizeof params, .n_tokens = PROBES};
    FIRN_TRY(firn_session_create(ctx, device, model, adapter, &params, &session));
    const firn_status s = firn_session_logits(session, &batch, logits);
    firn_session_destroy(session);
    return s;
}

static double log_sum(const float *x, int64_t n)
{
    double most = (double)x[0], sum = 0;

    for (int64_t i = 1; i < n; i++)
        most = fmax(most, (double)x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - most);
    return most + log(sum);
}

static double divergence(const float *p, const float *q, int64_t n)
{
    const double lp = log_sum(p, n), lq = log_sum(q, n);
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += exp((double)p[i] - lp) * ((double)p[i] - lp - (double)q[i] + lq);
    return fmax(sum, 0);
}

static int64_t likeliest(const float *x, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static comparison compare(const float *adapted, const float *merged, const float *base, int64_t n)
{
    comparison c = {0, 0, 0, 0};
    double error = 0, square = 0;

    for (int i = 0; i < PROBES; i++, adapted += n, merged += n, base += n) {
        c.kl += divergence(adapted, merged, n) / PROBES;
        c.moved += divergence(adapted, base, n) / PROBES;
        c.same += likeliest(adapted, n) == likeliest(merged, n);
        for (int64_t k = 0; k < n; k++) {
            error += pow((double)merged[k] - (double)adapted[k], 2);
            square += pow((double)adapted[k], 2);
        }
    }
    c.nmse = square > 0 ? error / square : 0;
    return c;
}

static firn_status check(const cmd_model *m, firn_adapter *adapter, const char *out, comparison *c)
{
    const int64_t n = firn_model_get_info(m->model)->n_vocab;
    float *logits = firn_alloc(m->ctx, (size_t)(3 * PROBES * n) * sizeof *logits);
    firn_model *merged = NULL;
    firn_status s = logits ? FIRN_OK : FIRN_ERR_MEMORY;

    if (s == FIRN_OK)
        s = logits_of(m->ctx, m->device, m->model, adapter, logits);
    if (s == FIRN_OK)
        s = logits_of(m->ctx, m->device, m->model, NULL, logits + 2 * PROBES * n);
    if (s == FIRN_OK)
        s = firn_model_open(m->ctx, out, &merged);
    if (s == FIRN_OK)
        s = logits_of(m->ctx, m->device, merged, NULL, logits + PROBES * n);
    if (s == FIRN_OK)
        *c = compare(logits, logits + PROBES * n, logits + 2 * PROBES * n, n);
    firn_model_close(merged);
    firn_free(m->ctx, logits);
    return s;
}

/* ---- the command ---- */

static firn_status load_sum(const cmd_model *m, char **paths, int n, double scale, bool force, firn_adapter **sum)
{
    firn_adapter **ads = firn_alloc_zeroed(m->ctx, (size_t)n, sizeof *ads);
    double *weights = firn_alloc(m->ctx, (size_t)n * sizeof *weights);
    firn_status s = ads && weights ? FIRN_OK : FIRN_ERR_MEMORY;

    for (int i = 0; s == FIRN_OK && i < n; i++) {
        weights[i] = scale;
        s = (force ? firn_adapter_load_forced : firn_adapter_load)(m->ctx, m->model, paths[i], &ads[i]);
    }
    if (s == FIRN_OK)
        s = firn_adapters_add(m->ctx, n, (const firn_adapter *const *)ads, weights, sum);
    for (int i = 0; ads && i < n; i++)
        firn_adapter_destroy(ads[i]);
    firn_free(m->ctx, ads);
    firn_free(m->ctx, weights);
    return s;
}

static int print_json(const telling *t, const char *out, const firn_merge_report *r, const comparison *c)
{
    json_t *all =
        json_pack("{so sI sI sI sI sI sO}", "out", cmd_json_text(out, strlen(out)), "tensors", (json_int_t)r->n_tensors,
                  "changed", (json_int_t)r->n_changed, "retyped", (json_int_t)r->n_retyped, "bytes_in",
                  (json_int_t)r->bytes_in, "bytes_out", (json_int_t)r->bytes_out, "updates", t->list);

    if (all && c)
        json_object_set_new(all, "logits",
                            json_pack("{sf sf sf sf}", "kl", c->kl, "kl_of_update", c->moved, "nmse", c->nmse,
                                      "same_likeliest", (double)c->same / PROBES));
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    json_decref(all);
    if (!text)
        return cmd_fail("out of memory");
    puts(text);
    free(text);
    return 0;
}

static void say(const telling *t, const char *out, const firn_merge_report *r, const comparison *c)
{
    cmd_said_printf(stdout,
                    "%s: %" PRId64 " tensors, the update is in %" PRId64 " of them, %" PRId64
                    " in another type; %.1f MB of weights became %.1f MB\n",
                    out, r->n_tensors, r->n_changed, r->n_retyped, (double)r->bytes_in * 1e-6,
                    (double)r->bytes_out * 1e-6);
    printf("of the update %.1f %% survives; of a tensor's at least %.1f %%\n", t->d > 0 ? 100 * t->kept / t->d : 100,
           100 * t->least);
    if (c)
        printf("logits of %d tokens against those with the adapter: KL divergence %.3g (of the model without it %.3g), "
               "NMSE %.3g, the same likeliest token %d times\n",
               PROBES, c->kl, c->moved, c->nmse, c->same);
}

int cmd_merge(int argc, char **argv)
{
    const char *type_name = "keep";
    cmd_compute compute = {0};
    bool unchecked = false;
    double scale = 1;
    telling t = {0};
    const cmd_option options[] = {
        {"--type", 's', &type_name, "TYPE",
         "of tensors that change: keep (default: their own, or a better one where less than 90 % would survive), or "
         "one for all",
         0, 0},
        {"--scale", 'f', &scale, "X", "the update times X (default 1)", -1e6, 1e6},
        {"--force", 'b', &compute.force, NULL, "also where an adapter was made for another model", 0, 0},
        {"--no-check", 'b', &unchecked, NULL, "do not compute logits of the result to compare", 0, 0},
        {"--json", 'b', &t.json, NULL, "print a JSON object", 0, 0},
        CMD_COMPUTE_OPTIONS(compute),
        {0},
    };
    const cmd_spec spec = {
        "firn merge MODEL ADAPTER... OUT [--type keep|TYPE] [--scale X]",
        "Writes the model with the adapters' updates in its weights. For each tensor that changes: the size of the "
        "update,\nhow much of it survives encoding, and what encoding adds, both in percent; at the end how far the "
        "result's\nlogits are from the adapter's. Everything else is copied.",
        options, 3, -1};
    firn_merge_options o = {.size = sizeof o, .tensor = tell, .user = &t};
    firn_merge_report r = {.size = sizeof r};
    firn_adapter *sum = NULL;
    firn_type type;
    comparison c;
    cmd_model m;
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (strcmp(type_name, "keep") != 0) {
        if (!firn_type_from_name(type_name, &type) || !firn_type_can_encode(type))
            return cmd_usage(argv[0], "--type is keep or a type that can be written, not '%s'", type_name);
        o.type = &type;
    }
    if (scale == 0)
        return cmd_usage(argv[0], "with --scale 0 there is nothing to merge");
    const char *out = argv[n];
    if (!cmd_model_open(&m, &compute, argv[1], NULL))
        return 1;
    t.list = t.json ? json_array() : NULL;
    firn_status s = load_sum(&m, argv + 2, n - 2, scale, compute.force, &sum);
    if (s == FIRN_OK && !t.json)
        printf("  %-34s %-14s %11s %11s %11s\n", "tensor", "type", "update", "survives", "encoding");
    if (s == FIRN_OK)
        s = firn_merge(m.ctx, m.model, sum, out, &o, &r);
    if (s == FIRN_OK && !unchecked)
        s = check(&m, sum, out, &c);
    status = s != FIRN_OK ? cmd_fail_ctx(m.ctx) : t.json ? print_json(&t, out, &r, unchecked ? NULL : &c) : 0;
    if (s == FIRN_OK && !t.json)
        say(&t, out, &r, unchecked ? NULL : &c);
    json_decref(t.list);
    firn_adapter_destroy(sum);
    cmd_model_close(&m);
    return status;
}
