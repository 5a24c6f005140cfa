/* firn data show: what a model gets to see of a data set, and what of it is trained. */
#include "cmd.h"
#include "said.h"
#include "train/language.h"

#include <string.h>
#include <unistd.h>

enum { SHOW_CONTEXT = 1 << 24 };

/* Trained stretches stand in colour, or between {+ and +} where there is none. */
static firn_status show(firn_context *ctx, const firn_language *language, const firn_data *data, size_t i, bool colour)
{
    const firn_sample *s = &data->samples[i];
    const firn_tokenizer *tokenizer = firn_language_tokenizer(language);
    bool trained = false, after_special = true;
    cmd_said said = {0};

    printf("---- line %lld: %d token%s, %d trained ----\n", (long long)s->line, s->n, firn_plural(s->n), s->n_targets);
    for (int32_t t = 0; t < s->n; t++) {
        const bool now = data->trained[s->begin + t];
        size_t n;
        const char *piece = firn_token_piece(tokenizer, data->tokens[s->begin + t], &after_special, &n);
        FIRN_EXPECT(ctx, piece, "token id %d is outside the vocabulary", data->tokens[s->begin + t]);
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

static firn_status show_all(firn_context *ctx, const char *model, const char *file, int64_t context, int64_t n,
                            bool colour)
{
    firn_gguf *gguf = NULL;
    firn_language *language = NULL;
    firn_data *data = NULL;
    firn_text text;

    firn_status s = firn_gguf_open(ctx, model, &gguf);
    if (s == FIRN_OK)
        s = firn_language_create(ctx, gguf, NULL, &language);
    if (s == FIRN_OK)
        s = firn_data_load(ctx, file, firn_language_encoder(language), context, &data);
    for (size_t i = 0; s == FIRN_OK && i < data->n_samples && (n == 0 || (int64_t)i < n); i++)
        s = show(ctx, language, data, i, colour);
    if (s == FIRN_OK) {
        firn_text_init(&text, ctx, 0);
        firn_data_describe(data, &text);
        printf("%s\n", firn_text_cstr(&text));
        firn_text_free(&text);
    }
    firn_data_destroy(data);
    firn_language_destroy(language);
    firn_gguf_close(gguf);
    return s;
}

int cmd_data(int argc, char **argv)
{
    int64_t limit = 10, context = SHOW_CONTEXT;
    bool plain = false;
    int n, status;
    const cmd_option list[] = {
        {"-n,--samples", 'i', &limit, "N", "samples to show (default 10; 0: all)", 0, 1e18},
        {"--context", 'i', &context, "N", "cut and spread as training with this context would", 2, SHOW_CONTEXT},
        {"--plain", 'b', &plain, NULL, "mark trained text with {+ +} on a terminal too", 0, 0},
        {NULL, 0, NULL, NULL, NULL, 0, 0},
    };
    const cmd_spec spec = {
        "firn data show MODEL FILE.jsonl [-n N]",
        "Shows samples of a data set as the model gets them: through its chat template, special tokens "
        "as text.\nWhat is trained is green, or stands between {+ and +} where there is no colour.",
        list, 3, 3};
    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (strcmp(argv[1], "show") != 0)
        return cmd_usage(argv[0], "there is no 'data %s': expected show", argv[1]);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    const bool colour = !plain && isatty(STDOUT_FILENO);
    status = show_all(ctx, argv[2], argv[3], context, limit, colour) == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_context_destroy(ctx);
    return status;
}
