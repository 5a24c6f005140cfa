/* firn verify: reference cases (tests/data/cases, layout in docs/models.md) through the block-wise step: logits,
 * losses, the gradient of every adapter tensor, ten steps of AdamW.
 *
 * Measures and bounds are those of the cases' makers: logits by normalized mean squared error, gradients and the
 * trained adapter by the relative L2 error of the worst tensor, losses by absolute error; each at most ten times what
 * the reference itself loses in float32, and at least a floor. What is exactly zero in the reference must be so here.
 * With --precision bf16, whose operands keep 8 bits and whose routers choose otherwise where they were undecided, the
 * floors are wide: they tell a wrong formula, not a lost digit. Some cases lose more than others, in whatever precision
 * they are computed: what the reference's gradient loses with the 24 bits of float32 it may lose 2^16 times with 8. (A
 * run of the reference in float64 whose products' operands were rounded to 8 bits lost as much as this one does, tensor
 * by tensor, and less with each bit more.) */
#include "json.h"
#include "model.h"

#include "core/file.h"
#include "core/lock.h"
#include "train/optimizer.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, PATH_BYTES = 4096 };

/* By firn_precision: the least bounds, and how many times the reference's float32 loss a gradient may lose. */
static const struct {
    double nmse, gradient, loss, step, gradient_factor;
} floors[] = {{1e-12, 1e-5, 1e-5, 1e-3, 10}, {2e-2, 0.15, 0.6, 0.4, 0x1p16}};

typedef struct {
    const char *folder, *write; /* write: a folder of this case, or NULL */
    json_t *json;
    int n_seq, n_tok;
    int64_t n_vocab, n_targets;
    int32_t *tokens, *targets, *position, *first;
    firn_optimizer_params adamw;
    float learning_rate;
    bool failed;
    cmd_model m;
    firn_session *session;
    firn_lock *lock; /* of the folder `write` */
} verify;

/* ---- judging ---- */

static void say(verify *v, const char *what, double error, double bound, const char *where)
{
    const bool ok = error <= bound; /* false for NaN */

    v->failed |= !ok;
    printf("%s %-12s %.2e  bound %.1e%s%s\n", ok ? "ok  " : "FAIL", what, error, bound, *where ? "  " : "", where);
}

static double bound_of(const verify *v, const char *key, double floor)
{
    const double drift = json_number_value(json_object_get(json_object_get(v->json, "float32"), key));
    const double factor =
        strcmp(key, "gradient_rel") == 0 ? floors[firn_context_precision(v->m.ctx)].gradient_factor : 10;

    return factor * drift > floor ? factor * drift : floor;
}

static void judge_logits(verify *v, const char *what, const char *key, const float *x, const float *reference)
{
    const int64_t n = (int64_t)v->n_seq * v->n_tok * v->n_vocab;
    double error = 0, norm = 0, worst = 0;
    char where[64];

    for (int64_t i = 0; i < n; i++) {
        const double e = (double)x[i] - (double)reference[i];
        error += e * e;
        norm += (double)reference[i] * (double)reference[i];
        worst = fabs(e) > worst ? fabs(e) : worst;
    }
    snprintf(where, sizeof where, "max abs %.2e", worst);
    say(v, what, error / norm, bound_of(v, key, floors[firn_context_precision(v->m.ctx)].nmse), where);
}

/* One factor, `groups` experts of n values. False when something is not zero that should be. */
static bool judge_factor(const float *x, const float *r, int64_t groups, int64_t n, double *error)
{
    double difference = 0, norm = 0;

    for (int64_t g = 0; g < groups; g++) {
        bool any_r = false, any_x = false;
        for (int64_t i = g * n; i < (g + 1) * n; i++) {
            const double d = (double)x[i] - (double)r[i];
            difference += d * d;
            norm += (double)r[i] * (double)r[i];
            any_r |= r[i] != 0;
            any_x |= x[i] != 0;
        }
        if (any_x && !any_r)
            return false;
    }
    *error = norm > 0 ? sqrt(difference / norm) : 0;
    return true;
}

static void judge_adapter(verify *v, const char *what, double bound, const float *values, const firn_adapter *reference)
{
    double worst = 0;
    char where[128] = "";

    for (int i = 0; i < reference->n_entries; i++) {
        const firn_adapter_entry *e = &reference->entries[i];
        for (int f = 0; f < 2; f++) {
            const int64_t at = f ? e->b : e->a, n = e->rank * (f ? e->n_out : e->n_in);
            double error;
            if (!judge_factor(values + at, reference->values + at, e->n_expert, n, &error)) {
                snprintf(where, sizeof where, "%s.lora_%c: not zero where the reference is", e->tensor, f ? 'b' : 'a');
                say(v, what, INFINITY, bound, where);
                return;
            }
            if (worst == worst && !(error <= worst)) {
                worst = error;
                snprintf(where, sizeof where, "%s.lora_%c", e->tensor, f ? 'b' : 'a');
            }
        }
    }
    say(v, what, worst, bound, where);
}

/* ---- reading a case ---- */

static const char *path_in(char path[PATH_BYTES], const char *folder, const char *name)
{
    snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

static bool read_case(verify *v)
{
    char path[PATH_BYTES];

    v->json = cmd_json_file(path_in(path, v->folder, "case.json"));
    if (!v->json)
        return false;
    const json_t *adamw = json_object_get(v->json, "adamw"), *tokens = json_object_get(v->json, "tokens"),
                 *mask = json_object_get(v->json, "loss_mask"), *losses = json_object_get(v->json, "losses");
    v->n_seq = (int)json_integer_value(json_object_get(v->json, "n_seq"));
    v->n_tok = (int)json_integer_value(json_object_get(v->json, "n_tok"));
    v->n_vocab = json_integer_value(json_object_get(v->json, "n_vocab"));
    const size_t n = (size_t)v->n_seq * (size_t)v->n_tok;
    if (v->n_seq < 1 || v->n_tok < 1 || v->n_seq > 4096 || v->n_tok > 4096 ||
        json_array_size(tokens) != (size_t)v->n_seq || json_array_size(mask) != (size_t)v->n_seq ||
        json_array_size(losses) != STEPS + 1 || !json_is_object(adamw) ||
        json_integer_value(json_object_get(adamw, "steps")) != STEPS)
        return cmd_fail("%s is no reference case: n_seq, n_tok, tokens, loss_mask, eleven losses, ten steps of adamw",
                        path),
               false;
    v->tokens = calloc(4 * n, sizeof *v->tokens);
    if (!v->tokens)
        return cmd_fail("out of memory"), false;
    v->targets = v->tokens + n;
    v->position = v->targets + n;
    v->first = v->position + n;
    for (int s = 0; s < v->n_seq; s++)
        for (int t = 0; t < v->n_tok; t++) {
            const size_t i = (size_t)(s * v->n_tok + t), at = (size_t)t;
            v->tokens[i] = (int32_t)json_integer_value(json_array_get(json_array_get(tokens, (size_t)s), at));
            v->position[i] = t;
            v->first[i] = s * v->n_tok;
            /* The mask is on the token that is predicted; a target stands where it is predicted from. */
            const json_t *next = json_array_get(json_array_get(mask, (size_t)s), at + 1);
            const bool target = t + 1 < v->n_tok && (json_is_true(next) || json_number_value(next) != 0);
            v->targets[i] =
                target ? (int32_t)json_integer_value(json_array_get(json_array_get(tokens, (size_t)s), at + 1)) : -1;
            v->n_targets += target;
        }
    if (v->n_targets == 0)
        return cmd_fail("%s has no targets", path), false;
    v->adamw = (firn_optimizer_params){
        .size = sizeof v->adamw,
        .kind = FIRN_OPTIMIZER_ADAMW,
        .beta1 = (float)json_number_value(json_object_get(adamw, "beta1")),
        .beta2 = (float)json_number_value(json_object_get(adamw, "beta2")),
        .eps = (float)json_number_value(json_object_get(adamw, "eps")),
        .weight_decay = (float)json_number_value(json_object_get(adamw, "weight_decay")),
    };
    v->learning_rate = (float)json_number_value(json_object_get(adamw, "learning_rate"));
    return true;
}

/* ---- the parts ---- */

static firn_batch batch_of(const verify *v)
{
    return (firn_batch){.n_tokens = (int64_t)v->n_seq * v->n_tok,
                        .tokens = v->tokens,
                        .targets = v->targets,
                        .position = v->position,
                        .first = v->first};
}

static firn_status write_file(verify *v, const char *name, const void *data, size_t size)
{
    char path[PATH_BYTES];

    return v->write ? firn_file_write(v->m.ctx, path_in(path, v->write, name), data, size) : FIRN_OK;
}

static firn_status check_logits(verify *v, firn_session *session, const char *which)
{
    const size_t bytes = (size_t)v->n_seq * (size_t)v->n_tok * (size_t)v->n_vocab * sizeof(float);
    const firn_batch batch = batch_of(v);
    char path[PATH_BYTES], name[64], what[64], key[64], *reference = NULL;
    size_t size;
    float *logits = firn_alloc(v->m.ctx, bytes);

    snprintf(name, sizeof name, "logits_%s.f32", which);
    snprintf(what, sizeof what, "logits %s", which);
    snprintf(key, sizeof key, "nmse_%s", which);
    firn_status s = logits ? firn_session_logits(session, &batch, logits) : FIRN_ERR_MEMORY;
    if (s == FIRN_OK)
        s = write_file(v, name, logits, bytes);
    if (s == FIRN_OK)
        s = firn_file_read(v->m.ctx, path_in(path, v->folder, name), 0, &reference, &size);
    if (s == FIRN_OK && size != bytes)
        s = firn_fail(v->m.ctx, FIRN_ERR_FORMAT, "%s has %zu bytes, expected %zu", path, size, bytes);
    if (s == FIRN_OK)
        judge_logits(v, what, key, logits, (const float *)(const void *)reference);
    firn_free(v->m.ctx, reference);
    firn_free(v->m.ctx, logits);
    return s;
}

static firn_status check_base(verify *v)
{
    const firn_session_params params = {.n_tokens = (int64_t)v->n_seq * v->n_tok};
    firn_session *session;

    FIRN_TRY(firn_session_create(v->m.ctx, v->m.device, v->m.model, NULL, &params, &session));
    const firn_status s = check_logits(v, session, "base");
    firn_session_destroy(session);
    return s;
}

/* Saves values in the adapter's layout, and judges them by the file of that name in the case. */
static firn_status check_adapter(verify *v, const char *what, const char *name, const char *key, double floor,
                                 const float *values)
{
    char path[PATH_BYTES];
    firn_adapter *reference;

    if (v->write)
        FIRN_TRY(firn_adapter_save(v->m.ctx, v->m.adapter, values, path_in(path, v->write, name)));
    FIRN_TRY(firn_adapter_load(v->m.ctx, v->m.model, path_in(path, v->folder, name), &reference));
    firn_status s = FIRN_OK;
    if (reference->n_values != v->m.adapter->n_values || reference->n_entries != v->m.adapter->n_entries)
        s = firn_fail(v->m.ctx, FIRN_ERR_FORMAT, "%s holds other tensors than lora_start.gguf", path);
    else
        judge_adapter(v, what, bound_of(v, key, floor), values, reference);
    firn_adapter_destroy(reference);
    return s;
}

static firn_status check_losses(verify *v, const double losses[STEPS + 1])
{
    const json_t *reference = json_object_get(v->json, "losses");
    double worst = 0;
    int at = 0;
    char where[64], text[1024] = "[";

    for (int i = 0; i <= STEPS; i++) {
        const double error = fabs(losses[i] - json_number_value(json_array_get(reference, (size_t)i)));
        if (worst == worst && !(error <= worst)) {
            worst = error;
            at = i;
        }
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%.17g", i ? ", " : "", losses[i]);
    }
    snprintf(where, sizeof where, "worst at step %d", at);
    say(v, "losses", worst, bound_of(v, "loss_abs", floors[firn_context_precision(v->m.ctx)].loss), where);
    snprintf(text + strlen(text), sizeof text - strlen(text), "]\n");
    return write_file(v, "losses.json", text, strlen(text));
}

static firn_status check_training(verify *v)
{
    const firn_batch batch = batch_of(v);
    firn_adapter *ad = v->m.adapter;
    double losses[STEPS + 1];
    int64_t n;
    firn_optimizer *optimizer;
    double norm;

    FIRN_TRY(firn_optimizer_create(v->session, &v->adamw, &optimizer));
    firn_status s = FIRN_OK;
    for (int i = 0; s == FIRN_OK && i < STEPS; i++) {
        firn_session_zero_gradients(v->session);
        s = firn_session_gradient(v->session, &batch, 1.0f / (float)v->n_targets, &losses[i], &n);
        if (s == FIRN_OK && i == 0)
            s = check_adapter(v, "gradient", "lora_grad.gguf", "gradient_rel",
                              floors[firn_context_precision(v->m.ctx)].gradient, firn_session_gradients(v->session));
        if (s == FIRN_OK)
            s = firn_optimizer_step(optimizer, v->learning_rate, &norm);
    }
    if (s == FIRN_OK)
        s = firn_session_pull(v->session);
    if (s == FIRN_OK)
        s = check_adapter(v, "step 10", "lora_step10.gguf", "step10_rel", floors[firn_context_precision(v->m.ctx)].step,
                          ad->values);
    if (s == FIRN_OK)
        s = firn_session_loss(v->session, &batch, &losses[STEPS], &n);
    for (int i = 0; i <= STEPS; i++)
        losses[i] /= (double)v->n_targets;
    if (s == FIRN_OK)
        s = check_losses(v, losses);
    firn_optimizer_destroy(optimizer);
    return s;
}

static firn_status check_all(verify *v)
{
    const firn_session_params params = {.n_tokens = (int64_t)v->n_seq * v->n_tok, .train = true};

    if (v->write) {
        FIRN_TRY(firn_make_folder(v->m.ctx, v->write, NULL));
        FIRN_TRY(firn_lock_folder(v->m.ctx, v->write, &v->lock));
    }
    if (firn_model_get_info(v->m.model)->n_vocab != v->n_vocab)
        return firn_fail(v->m.ctx, FIRN_ERR_FORMAT, "%s: the model's vocabulary is not the case's", v->folder);
    FIRN_TRY(check_base(v));
    FIRN_TRY(firn_session_create(v->m.ctx, v->m.device, v->m.model, v->m.adapter, &params, &v->session));
    FIRN_TRY(check_logits(v, v->session, "lora"));
    return check_training(v);
}

/* 0, or 1 when the case fails or cannot be read. */
static int verify_case(const char *folder, const char *write, const cmd_compute *compute)
{
    char model[PATH_BYTES], adapter[PATH_BYTES], out[PATH_BYTES];
    size_t end = strlen(folder);
    verify v = {.folder = folder};

    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    printf("%.*s\n", (int)(end - begin), folder + begin);
    if (write) {
        snprintf(out, sizeof out, "%s/%.*s", write, (int)(end - begin), folder + begin);
        v.write = out;
    }
    if (!cmd_model_open(&v.m, compute, path_in(model, folder, "model.gguf"),
                        path_in(adapter, folder, "lora_start.gguf"))) {
        v.failed = true;
    } else {
        if (!read_case(&v))
            v.failed = true;
        else if (check_all(&v) != FIRN_OK)
            v.failed = cmd_fail_ctx(v.m.ctx);
        firn_session_destroy(v.session);
        firn_lock_drop(v.lock);
        cmd_model_close(&v.m);
    }
    free(v.tokens);
    json_decref(v.json);
    return v.failed;
}

int cmd_verify(int argc, char **argv)
{
    const char *write = NULL;
    cmd_compute compute = {0};
    const cmd_option options[] = {
        {"--write", 's', &write, "DIR", "leave logits, gradient, trained adapter and losses in DIR/<case>/", 0, 0},
        CMD_COMPUTE_OPTIONS(compute),
        {0},
    };
    const cmd_spec spec = {"firn verify CASE_DIR... [options]",
                           "Computes reference cases and compares: logits without and with the adapter, the gradient "
                           "of every adapter tensor, losses and adapter over ten steps of AdamW.",
                           options, 1, -1};
    int n, status, failed = 0;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    for (int i = 1; i <= n; i++) {
        failed += verify_case(argv[i], write, &compute);
        fflush(stdout);
    }
    printf("%d of %d cases failed\n", failed, n);
    return failed > 0;
}
