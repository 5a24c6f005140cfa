/* Before and after: see witness.h. Answers are greedy, so that both times the same is asked in the same way. */
#include "train/witness.h"

#include "train/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOAD_WINDOWS = 4 };

void firn_witness_clear(firn_witness *w)
{
    for (int i = 0; w->ctx && i < w->n_talks; i++) {
        firn_free(w->ctx, w->talks[i].prompt);
        firn_free(w->ctx, w->talks[i].expected);
        firn_free(w->ctx, w->talks[i].answer);
    }
    if (w->ctx)
        firn_free(w->ctx, w->load);
    *w = (firn_witness){0};
}

/* ---- answers ---- */

/* Where the last trained stretch of a sample begins and ends; of one that is trained from its start (text), all but the
 * first tokens. */
static void last_stretch(const firn_data *data, const firn_sample *s, int32_t *begin, int32_t *end)
{
    *end = s->n;
    while (*end > 1 && !firn_data_trained(data, s->begin + *end - 1))
        --*end;
    *begin = *end;
    while (*begin > 1 && firn_data_trained(data, s->begin + *begin - 1))
        --*begin;
    if (*begin == 1 && *end > 2)
        *begin = *end / 2 < 16 ? *end / 2 : 16;
}

/* cut: it goes on. */
static firn_status text_of(firn_run *run, const int32_t *ids, size_t n, bool cut, char **text)
{
    firn_text t;

    firn_text_init(&t, run->ctx, 0);
    firn_status s = firn_detokenize(run->ctx, firn_language_tokenizer(run->language), ids, n, &t);
    if (cut)
        firn_text_puts(&t, "...");
    s = s == FIRN_OK ? t.status : s;
    *text = s == FIRN_OK ? firn_strdup(run->ctx, firn_text_cstr(&t)) : NULL;
    firn_text_free(&t);
    return s == FIRN_OK && !*text ? FIRN_ERR_MEMORY : s;
}

static int32_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static firn_status answer(firn_run *run, firn_generator *generator, const int32_t *prompt, int64_t n, char **text)
{
    const firn_tokenizer *tokenizer = firn_language_tokenizer(run->language);
    const int64_t n_vocab = firn_model_get_info(run->model)->n_vocab;
    int32_t out[FIRN_TALK_TOKENS];
    size_t n_out = 0;
    const float *logits;

    firn_generator_reset(generator);
    FIRN_TRY(firn_generator_feed(generator, prompt, n, &logits));
    for (;;) {
        const int32_t id = largest(logits, n_vocab);
        if (id >= firn_tokenizer_size(tokenizer) || firn_token_is_end(tokenizer, id))
            break;
        out[n_out++] = id;
        if (n_out == FIRN_TALK_TOKENS)
            break;
        FIRN_TRY(firn_generator_feed(generator, &id, 1, &logits));
    }
    return text_of(run, out, n_out, n_out == FIRN_TALK_TOKENS, text);
}

firn_status firn_witness_talk(firn_run *run, firn_witness *w, bool last)
{
    const firn_data *data = run->held.n && run->eval_data ? run->eval_data : run->data;
    const firn_sample_list *from = run->held.n ? &run->held : &run->train;
    const int64_t n_ctx = run->record.options.context + FIRN_TALK_TOKENS;
    firn_generator *generator;
    firn_status s;

    const long long asked = firn_min_i64((int64_t)from->n, FIRN_TALKS);

    w->ctx = run->ctx;
    firn_run_say(run, "answers  asking the model %lld prompt%s, for up to %d tokens each", asked, firn_plural(asked),
                 FIRN_TALK_TOKENS);
    FIRN_TRY(firn_generator_create(run->ctx, run->device, run->model, run->adapter, n_ctx, &generator));
    int32_t *tokens = firn_alloc(run->ctx, (size_t)run->record.options.context * sizeof *tokens);
    s = tokens ? FIRN_OK : FIRN_ERR_MEMORY;
    for (size_t i = 0; s == FIRN_OK && i < from->n && w->n_talks < FIRN_TALKS && !firn_run_stop_wanted(run); i++) {
        const firn_sample *sample = &data->samples[from->items[i]];
        firn_talk *talk = &w->talks[w->n_talks++];
        int32_t begin, end;
        *talk = (firn_talk){0};
        firn_data_ids(data, sample, tokens);
        last_stretch(data, sample, &begin, &end);
        s = text_of(run, tokens, (size_t)begin, false, &talk->prompt);
        if (s == FIRN_OK)
            s = text_of(run, tokens + begin, (size_t)(end - begin), false, &talk->expected);
        if (s == FIRN_OK)
            s = answer(run, generator, tokens, begin, &talk->answer);
    }
    firn_free(run->ctx, tokens);
    firn_generator_destroy(generator);
    if (s == FIRN_ERR_DEVICE && !last) { /* not finite: training will stop with step and sample, which says more */
        firn_talk *talk = &w->talks[--w->n_talks];
        firn_free(run->ctx, talk->prompt);
        firn_free(run->ctx, talk->expected);
        s = FIRN_OK;
    }
    return s;
}

/* ---- expert load ---- */

/* The first windows of the first epoch stand in for evaluation data. */
static firn_status pass_over_training(firn_run *run, bool last)
{
    firn_loss_sum sum;

    FIRN_TRY(firn_run_pack(run, 0));
    firn_packing some = run->packing;
    some.n_windows = firn_min_i64(some.n_windows, LOAD_WINDOWS);
    const firn_status s =
        firn_packing_loss(run->session, run->group, run->data, &some, run->record.options.batch, &run->pass, &sum);
    return s == FIRN_ERR_DEVICE && !last ? FIRN_OK : s; /* as above */
}

firn_status firn_witness_evaluate(firn_run *run, firn_witness *w, bool last, double *loss)
{
    const firn_model_info *info = firn_model_get_info(run->model);
    int64_t *load = firn_session_expert_load(run->session);
    const size_t n = (size_t)(info->n_layer * info->n_expert);

    w->ctx = run->ctx;
    if (load)
        memset(load, 0, n * sizeof *load);
    FIRN_TRY(firn_run_evaluate(run, loss));
    if (isnan(*loss) && (load || last))
        FIRN_TRY(pass_over_training(run, last));
    FIRN_TRY(firn_run_sum_load(run));
    if (!load)
        return FIRN_OK;
    w->n_layer = info->n_layer;
    w->n_expert = info->n_expert;
    if (!w->load)
        w->load = firn_alloc(run->ctx, n * sizeof *w->load);
    if (!w->load)
        return FIRN_ERR_MEMORY;
    memcpy(w->load, load, n * sizeof *w->load);
    return FIRN_OK;
}

/* ---- JSON ---- */

/* A string of any bytes: what is no UTF-8 (a token may be half a character) becomes '?'. */
static json_t *text_json(const char *bytes)
{
    json_t *json = json_string(bytes);
    char *copy = json ? NULL : strdup(bytes);

    if (!copy)
        return json;
    for (char *c = copy; *c; c++)
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    json = json_string(copy);
    free(copy);
    return json;
}

/* NULL when memory is short. */
json_t *firn_witness_to_json(const firn_witness *w)
{
    json_t *talks = json_array(), *load = json_array();
    bool ok = true;

    for (int i = 0; i < w->n_talks; i++) {
        const firn_talk *t = &w->talks[i];
        json_t *talk = json_pack("{s:o, s:o, s:o}", "prompt", text_json(t->prompt), "expected", text_json(t->expected),
                                 "answer", text_json(t->answer));
        ok &= json_array_append_new(talks, talk) == 0;
    }
    for (int64_t l = 0; l < w->n_layer; l++) {
        json_t *row = json_array();
        for (int64_t e = 0; e < w->n_expert; e++)
            ok &= json_array_append_new(row, json_integer(w->load[l * w->n_expert + e])) == 0;
        ok &= json_array_append_new(load, row) == 0;
    }
    json_t *json = json_pack("{s:o, s:o}", "talks", talks, "expert_load", load);
    if (ok)
        return json;
    json_decref(json);
    return NULL;
}

static firn_status talk_from_json(firn_context *ctx, const json_t *json, firn_talk *talk)
{
    const char *const keys[] = {"prompt", "expected", "answer"};
    char **const texts[] = {&talk->prompt, &talk->expected, &talk->answer};

    for (int i = 0; i < 3; i++) {
        const char *text = json_string_value(json_object_get(json, keys[i]));
        *texts[i] = firn_strdup(ctx, text ? text : "");
        if (!*texts[i])
            return FIRN_ERR_MEMORY;
    }
    return FIRN_OK;
}

firn_status firn_witness_from_json(firn_context *ctx, const json_t *json, firn_witness *w)
{
    const json_t *talks = json_object_get(json, "talks"), *load = json_object_get(json, "expert_load");

    *w = (firn_witness){.ctx = ctx};
    for (size_t i = 0; i < json_array_size(talks) && w->n_talks < FIRN_TALKS; i++) {
        w->talks[w->n_talks] = (firn_talk){0};
        FIRN_TRY(talk_from_json(ctx, json_array_get(talks, i), &w->talks[w->n_talks++]));
    }
    const int64_t n_layer = (int64_t)json_array_size(load);
    const int64_t n_expert = (int64_t)json_array_size(json_array_get(load, 0));
    if (n_layer == 0 || n_expert == 0)
        return FIRN_OK;
    w->load = firn_alloc_zeroed(ctx, (size_t)(n_layer * n_expert), sizeof *w->load);
    if (!w->load)
        return FIRN_ERR_MEMORY;
    w->n_layer = n_layer;
    w->n_expert = n_expert;
    for (int64_t l = 0; l < n_layer; l++)
        for (int64_t e = 0; e < n_expert; e++)
            w->load[l * n_expert + e] = json_integer_value(json_array_get(json_array_get(load, (size_t)l), (size_t)e));
    return FIRN_OK;
}
