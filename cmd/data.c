/* firn data show: what a model gets to see of a data set, and what of it is trained. firn data check: what is in it. */
#include "cmd.h"
#include "data_options.h"
#include "json.h"
#include "said.h"
#include "train/language.h"
#include "train/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONGEST = 1 << 24, CHECK_CONTEXT = 512 };

typedef struct {
    firn_train_options o;
    firn_gguf *gguf;
    firn_language *language;
    firn_data *data;
} loaded;

static firn_status load(firn_context *ctx, const char *model, firn_strings files, bool keep_empty, loaded *l)
{
    firn_data_spec spec;

    FIRN_TRY(firn_train_data_spec(ctx, &l->o, files, &spec));
    spec.preferences = true;
    spec.keep_empty = keep_empty;
    FIRN_TRY(firn_gguf_open(ctx, model, &l->gguf));
    FIRN_TRY(firn_train_language_create(ctx, &l->o, l->gguf, &l->language));
    return firn_data_load(ctx, &spec, firn_language_encoder(l->language), l->o.context, &l->data);
}

static void unload(loaded *l)
{
    firn_data_destroy(l->data);
    firn_language_destroy(l->language);
    firn_gguf_close(l->gguf);
}

/* ---- show ---- */

/* Trained stretches stand in colour, or between {+ and +} where there is none. */
static firn_status show(firn_context *ctx, const loaded *l, size_t i, bool colour)
{
    const firn_data *data = l->data;
    const firn_sample *s = &data->samples[i];
    bool trained = false, after_special = true;
    cmd_said said = {0};

    printf("---- ");
    if (data->n_files > 1)
        cmd_said_printf(stdout, "%s ", data->files[s->file].name);
    printf("line %lld: %d token%s, %d trained ----\n", (long long)s->line, s->n, firn_plural(s->n), s->n_targets);
    for (int32_t t = 0; t < s->n; t++) {
        const bool now = firn_data_trained(data, s->begin + t);
        const int32_t id = firn_data_token(data, s->begin + t);
        size_t n;
        const char *piece = firn_token_piece(firn_language_tokenizer(l->language), id, &after_special, &n);
        FIRN_EXPECT(ctx, piece, "token id %d is outside the vocabulary", id);
        if (now != trained) {
            cmd_said_end(&said, stdout);
            fputs(now ? colour ? "\033[1;32m" : "{+" : colour ? "\033[0m" : "+}", stdout);
        }
        trained = now;
        cmd_said_put(&said, stdout, piece, n);
    }
    cmd_said_end(&said, stdout);
    puts(!trained ? "" : colour ? "\033[0m" : "+}");
    return FIRN_OK;
}

static firn_status show_json(firn_context *ctx, const loaded *l, size_t i)
{
    const firn_data *data = l->data;
    const firn_sample *s = &data->samples[i];
    json_t *tokens = json_array(), *trained = json_array();
    bool ok = tokens && trained, after_special = true;
    firn_text text;

    firn_text_init(&text, ctx, 0);
    for (int32_t t = 0; ok && t < s->n; t++) {
        const int32_t id = firn_data_token(data, s->begin + t);
        size_t n = 0;
        const char *piece = firn_token_piece(firn_language_tokenizer(l->language), id, &after_special, &n);
        firn_text_append(&text, piece ? piece : "", n);
        ok = json_array_append_new(tokens, json_integer(id)) == 0 &&
             json_array_append_new(trained, json_integer(firn_data_trained(data, s->begin + t))) == 0;
    }
    const char *name = data->files[s->file].name;
    json_t *o = json_pack("{s:o, s:I, s:s, s:o, s:o, s:o}", "file", cmd_json_text(name, strlen(name)), "line",
                          (json_int_t)s->line, "format", firn_data_format_name((firn_data_format)s->format), "tokens",
                          tokens, "trained", trained, "text", cmd_json_text(firn_text_cstr(&text), text.size));
    ok = ok && o && text.status == FIRN_OK && json_dumpf(o, stdout, 0) == 0;
    json_decref(o);
    firn_text_free(&text);
    putchar('\n');
    return ok ? FIRN_OK : firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a sample as JSON");
}

static void say_notes(FILE *out, const firn_data *data)
{
    cmd_said_all(out, firn_text_cstr(&data->notes), data->notes.size);
}

static firn_status show_all(firn_context *ctx, const loaded *l, int64_t n, bool json, bool colour)
{
    firn_text text;

    for (size_t i = 0; i < l->data->n_samples && (n == 0 || (int64_t)i < n); i++)
        FIRN_TRY(json ? show_json(ctx, l, i) : show(ctx, l, i, colour));
    say_notes(json ? stderr : stdout, l->data);
    if (json)
        return FIRN_OK;
    firn_text_init(&text, ctx, 0);
    firn_data_describe(l->data, &text);
    printf("%s\n", firn_text_cstr(&text));
    const firn_status s = text.status;
    firn_text_free(&text);
    return s;
}

/* ---- check ---- */

static firn_status steps_per_epoch(firn_context *ctx, const loaded *l, int64_t *steps)
{
    const int64_t windows_a_step = l->o.batch * l->o.accumulate;
    firn_sample_list all = {NULL, 0}, list = {NULL, 0};
    firn_packing packing = {.ctx = ctx};
    bool drawn = false;

    firn_status s = firn_data_all(l->data, &all);
    if (s == FIRN_OK)
        s = firn_data_weigh(l->data, &all, 1, 0, &list, &drawn);
    if (s == FIRN_OK)
        s = firn_pack(l->data, &list, l->o.context, true, 1, 0, &packing);
    *steps = (packing.n_windows + windows_a_step - 1) / windows_a_step;
    firn_packing_clear(&packing);
    if (drawn)
        firn_sample_list_free(ctx, &list);
    firn_sample_list_free(ctx, &all);
    return s;
}

static json_t *lengths_json(const int64_t *lengths)
{
    json_t *histogram = json_array();

    for (int i = 0; histogram && i < FIRN_LENGTH_BUCKETS; i++)
        if (lengths[i])
            json_array_append_new(histogram,
                                  json_pack("[I, I]", (json_int_t)firn_length_limit(i), (json_int_t)lengths[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:o}", "median", (json_int_t)firn_lengths_quantile(lengths, 0.5), "p95",
                     (json_int_t)firn_lengths_quantile(lengths, 0.95), "p99",
                     (json_int_t)firn_lengths_quantile(lengths, 0.99), "max",
                     (json_int_t)firn_lengths_quantile(lengths, 1), "histogram", histogram);
}

static firn_status check_json(firn_context *ctx, const loaded *l, int64_t steps)
{
    const firn_data_counts *c = &l->data->counts;
    json_t *formats = json_object();

    for (int f = 0; formats && f < FIRN_FORMATS; f++)
        if (c->formats[f])
            json_object_set_new(formats, firn_data_format_name((firn_data_format)f), json_integer(c->formats[f]));
    json_t *o = json_pack("{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:I}", "formats", formats, "samples",
                          (json_int_t)l->data->n_samples, "tokens", (json_int_t)l->data->n_tokens, "trained_tokens",
                          (json_int_t)c->n_targets, "cut", (json_int_t)c->cut, "dropped",
                          (json_int_t)(c->empty + c->untrained + c->bad), "duplicates", (json_int_t)c->duplicates,
                          "lengths", lengths_json(c->lengths), "steps_per_epoch", (json_int_t)steps);
    const bool ok = o && json_dumpf(o, stdout, 0) == 0;
    json_decref(o);
    putchar('\n');
    say_notes(stderr, l->data);
    return ok ? FIRN_OK : firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for JSON");
}

static firn_status check_table(firn_context *ctx, const loaded *l, int64_t steps)
{
    const firn_data_counts *c = &l->data->counts;
    firn_text text;

    firn_text_init(&text, ctx, 0);
    firn_lengths_draw(c->lengths, &text);
    printf("formats        ");
    for (int f = 0, n = 0; f < FIRN_FORMATS; f++)
        if (c->formats[f])
            printf("%s%s %lld", n++ ? ", " : "", firn_data_format_name((firn_data_format)f), (long long)c->formats[f]);
    printf("\nsamples        %zu of %lld lines\n", l->data->n_samples, (long long)c->lines);
    printf("tokens         %zu, %lld of them trained\n", l->data->n_tokens, (long long)c->n_targets);
    printf("cut            %lld at %lld tokens, which loses %lld\n", (long long)c->cut, (long long)l->o.context,
           (long long)c->cut_tokens);
    printf("dropped        %lld: %lld empty, %lld without anything to train, %lld bad\n",
           (long long)(c->empty + c->untrained + c->bad), (long long)c->empty, (long long)c->untrained,
           (long long)c->bad);
    printf("duplicates     %lld\n", (long long)c->duplicates);
    printf("short answers  %lld of one word at most\n", (long long)c->short_answers);
    printf("steps an epoch %lld of %lld x %lld windows\n", (long long)steps, (long long)l->o.accumulate,
           (long long)l->o.batch);
    printf("lengths        half have at most %lld tokens, 95 %% at most %lld, the longest about %lld\n%s",
           (long long)firn_lengths_quantile(c->lengths, 0.5), (long long)firn_lengths_quantile(c->lengths, 0.95),
           (long long)firn_lengths_quantile(c->lengths, 1), firn_text_cstr(&text));
    say_notes(stdout, l->data);
    const firn_status s = text.status;
    firn_text_free(&text);
    return s;
}

static firn_status check(firn_context *ctx, const loaded *l, bool json)
{
    int64_t steps;

    FIRN_TRY(steps_per_epoch(ctx, l, &steps));
    return json ? check_json(ctx, l, steps) : check_table(ctx, l, steps);
}

/* ---- the command ---- */

int cmd_data(int argc, char **argv)
{
    loaded l = {0};
    int64_t limit = 10;
    bool plain = false, json = false;
    int n, status;

    firn_train_options_init(&l.o);
    l.o.context = 0;
    l.o.batch = l.o.accumulate = 1;
    const cmd_option list[] = {
        {"-n,--samples", 'i', &limit, "N", "show: how many samples (default 10; 0: all)", 0, 1e18},
        {"--json", 'b', &json, NULL, "print JSON: show an object for each sample, check one for all", 0, 0},
        {"--plain", 'b', &plain, NULL, "show: mark trained text with {+ +} on a terminal too", 0, 0},
        {"--context", 'i', &l.o.context, "N",
         "cut and spread as training with this context would (default: show none, check 512)", 2, LONGEST},
        {"--batch", 'i', &l.o.batch, "N", "check: windows of a pass (default 1)", 1, 65536},
        {"--accumulate", 'i', &l.o.accumulate, "N", "check: passes of a step (default 1)", 1, 65536},
        CMD_FORMAT_OPTIONS(l.o),
        {NULL, 0, NULL, NULL, NULL, 0, 0},
    };
    const cmd_spec spec = {
        "firn data show|check MODEL FILE... [options]",
        "show: samples of a data set as the model gets them, through its chat template, special tokens as text. What "
        "is\ntrained is green, or stands between {+ and +} where there is no colour.\ncheck: what is in a data set: "
        "formats, tokens, lengths, what is cut, dropped or there twice.\nMODEL may hold a vocabulary alone. FILE is a "
        "file, a folder or - (standard input), packed with gzip or zstd or not,\neach perhaps with a weight: "
        "chats.jsonl:2.",
        list, 3, -1};
    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    const bool checks = strcmp(argv[1], "check") == 0;
    if (!checks && strcmp(argv[1], "show") != 0)
        return cmd_usage(argv[0], "there is no 'data %s': expected show or check", argv[1]);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    l.o.context = l.o.context ? l.o.context : checks ? CHECK_CONTEXT : LONGEST;
    const firn_strings files = {(const char *const *)argv + 3, n - 2};
    firn_status s = load(ctx, argv[2], files, checks, &l);
    if (s == FIRN_OK)
        s = checks ? check(ctx, &l, json) : show_all(ctx, &l, limit, json, !plain && isatty(STDOUT_FILENO));
    status = s == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    unload(&l);
    firn_context_destroy(ctx);
    return status;
}
