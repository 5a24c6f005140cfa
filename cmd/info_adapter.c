/* What an adapter or a checkpoint of a run is: its rank, scale and tensors, the model below it, how far it was trained.
 * See info_adapter.h. */
#include "info_adapter.h"

#include "core/graph.h"
#include "json.h"
#include "said.h"
#include "train/checkpoint.h"
#include "train/origin.h"
#include "train/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_text(const firn_gguf *g, const char *key, const char *wanted)
{
    const firn_kv *kv = firn_gguf_kv(g, key);

    return kv && kv->type == FIRN_KV_STRING && kv->strings[0].size == strlen(wanted) &&
           memcmp(kv->strings[0].data, wanted, strlen(wanted)) == 0;
}

static void add_rank(cmd_adapter *a, int64_t rank)
{
    a->rank_min = a->n_tensors == 0 || rank < a->rank_min ? rank : a->rank_min;
    a->rank_max = rank > a->rank_max ? rank : a->rank_max;
    a->n_tensors++;
}

static bool number(const firn_gguf *g, const char *key, firn_kv_type type, void *value)
{
    const firn_kv *kv = firn_gguf_kv(g, key);

    if (!kv || kv->type != FIRN_KV_ARRAY || kv->element != type || kv->n != 1)
        return false;
    memcpy(value, kv->data, 8);
    return true;
}

/* The file `name` in the folder of `path`, or in the one around it. */
static json_t *read_beside(firn_context *ctx, const char *path, const char *name, bool above)
{
    json_t *json = NULL;
    const char *slash = strrchr(path, '/');
    char file[4096];

    if (snprintf(file, sizeof file, "%.*s%s%s", slash ? (int)(slash + 1 - path) : 0, path, above ? "../" : "", name) >=
        (int)sizeof file)
        return NULL;
    return firn_json_read(ctx, file, &json) == FIRN_OK ? json : NULL;
}

static void copy(char *to, size_t size, const json_t *text)
{
    snprintf(to, size, "%s", json_is_string(text) ? json_string_value(text) : "");
}

bool cmd_adapter_read(firn_context *ctx, const char *path, const firn_gguf *g, cmd_adapter *a)
{
    *a = (cmd_adapter){.step = -1, .eval_loss_before = NAN, .eval_loss = NAN};
    a->checkpoint = is_text(g, "general.type", "firn.checkpoint");
    if (!a->checkpoint && !is_text(g, "general.type", "adapter"))
        return false;
    char tensor[FIRN_MAX_NAME];
    int64_t rank;
    float scale;
    const firn_kv *alpha = firn_gguf_kv(g, "adapter.lora.alpha"), *layout = firn_gguf_kv(g, "firn.layout");
    if (alpha && alpha->type == FIRN_KV_F32)
        memcpy(&a->alpha, alpha->data, sizeof a->alpha);
    if (a->checkpoint && layout && layout->type == FIRN_KV_STRING)
        for (size_t at = 0; firn_checkpoint_layout_next(layout->strings[0], &at, tensor, &rank, &scale);)
            add_rank(a, rank);
    for (size_t i = 0; !a->checkpoint && i < firn_gguf_n_tensors(g); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(g, i);
        const size_t n = strlen(t->name);
        if (n > 7 && strcmp(t->name + n - 7, ".lora_a") == 0)
            add_rank(a, t->ne[1]);
    }
    if (a->checkpoint) {
        number(g, "firn.step", FIRN_KV_I64, &a->step);
        number(g, "firn.eval_loss_before", FIRN_KV_F64, &a->eval_loss_before);
        number(g, "firn.eval_loss", FIRN_KV_F64, &a->eval_loss);
    }
    (void)firn_origin_get(ctx, g, &a->origin); /* a key of another type says nothing */
    json_t *run = read_beside(ctx, path, "run.json", a->checkpoint);
    const json_t *steps = json_object_get(run, "steps");
    a->steps = json_integer_value(steps);
    if (!a->checkpoint && json_is_true(json_object_get(run, "finished"))) {
        const int64_t step = json_integer_value(json_object_get(run, "adapter_step"));
        a->step = step ? step : a->steps;
    }
    copy(a->base, sizeof a->base, json_object_get(json_object_get(run, "model"), "path"));
    json_decref(run);
    return true;
}

void cmd_adapter_print(const char *path, const cmd_adapter *a)
{
    const char *slash = strrchr(path, '/');

    printf("  %-14s LoRA of rank %" PRId64, a->checkpoint ? "checkpoint" : "adapter", a->rank_min);
    if (a->rank_max != a->rank_min)
        printf(" to %" PRId64, a->rank_max);
    printf(", alpha %g, on %d tensor%s\n", (double)a->alpha, a->n_tensors, a->n_tensors == 1 ? "" : "s");
    if (a->step >= 0) {
        printf("  %-14s %" PRId64 " step%s", "trained", a->step, a->step == 1 ? "" : "s");
        if (a->steps > a->step)
            printf(" of %" PRId64, a->steps);
        if (!isnan(a->eval_loss))
            printf(", evaluation loss %.4f -> %.4f", a->eval_loss_before, a->eval_loss);
        putchar('\n');
    }
    const firn_adapter_origin *o = &a->origin;
    if (a->base[0])
        cmd_said_printf(stdout, "  %-14s %s\n", "base", a->base);
    if (o->base_fingerprint[0])
        cmd_said_printf(stdout, "  %-14s %s, fingerprint %.8s\n", "made for",
                        o->base_name[0] ? o->base_name : "a model without a name", o->base_fingerprint);
    if (o->version[0])
        cmd_said_printf(stdout, "  %-14s firn %s\n", "by", o->version);
    if (o->data[0])
        cmd_said_printf(stdout, "  %-14s SHA-256 %s\n", "data", o->data);
    cmd_said_printf(stdout, "  %-14s firn generate %s --adapter %s --chat\n", "use",
                    a->base[0] ? a->base : "MODEL.gguf", path);
    if (a->checkpoint)
        cmd_said_printf(stdout, "  %-14s firn finetune --resume %.*s%s\n", "go on", slash ? (int)(slash + 1 - path) : 0,
                        path, "..");
}

json_t *cmd_adapter_json(const cmd_adapter *a)
{
    json_t *j = json_pack("{sb sI sI sf si}", "checkpoint", a->checkpoint, "rank", (json_int_t)a->rank_max,
                          "rank_least", (json_int_t)a->rank_min, "alpha", (double)a->alpha, "tensors", a->n_tensors);

    if (a->step >= 0)
        json_object_set_new(j, "step", json_integer(a->step));
    if (a->steps > 0)
        json_object_set_new(j, "steps", json_integer(a->steps));
    if (!isnan(a->eval_loss))
        json_object_set_new(j, "eval_loss", json_real(a->eval_loss));
    if (a->base[0])
        json_object_set_new(j, "base", cmd_json_text(a->base, strlen(a->base)));
    const struct {
        const char *key, *text;
    } origin[] = {{"base_name", a->origin.base_name},
                  {"base_fingerprint", a->origin.base_fingerprint},
                  {"version", a->origin.version},
                  {"data_sha256", a->origin.data}};
    for (size_t i = 0; i < sizeof origin / sizeof *origin; i++)
        if (origin[i].text[0])
            json_object_set_new(j, origin[i].key, cmd_json_text(origin[i].text, strlen(origin[i].text)));
    return j;
}
