/* firn chat-template: renders messages through a model's own template, exactly. */
#include "cmd.h"
#include "said.h"

#include "core/file.h"
#include "firn/gguf.h"
#include "text/chat.h"

#include <string.h>

typedef struct {
    const char *model, *template, *messages, *now;
    bool exact;
} arguments;

/* "2026-01-02T03:04:05"; the weekday and the day of the year follow from the date. */
static bool read_time(const char *text, struct tm *out)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int y, mo, d, h, mi, s, n = 0;

    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d%n", &y, &mo, &d, &h, &mi, &s, &n) != 6 || text[n] || n != 19)
        return false;
    const bool leap = (y % 4 == 0 && y % 100 != 0) || y % 400 == 0;
    if (y < 1 || mo < 1 || mo > 12 || d < 1 || h < 0 || h > 23 || mi < 0 || mi > 59 || s < 0 || s > 59)
        return false;
    const int days = mo == 12 ? 31 : before[mo] - before[mo - 1] + (mo == 2 && leap);
    if (d > days)
        return false;
    const int yday = before[mo - 1] + (mo > 2 && leap) + d - 1, last = y - 1;
    *out = (struct tm){.tm_year = y - 1900, .tm_mon = mo - 1, .tm_mday = d, .tm_hour = h, .tm_min = mi, .tm_sec = s};
    out->tm_yday = yday;
    out->tm_wday = (1 + last * 365 + last / 4 - last / 100 + last / 400 + yday) % 7; /* 1 January of year 1: a Monday */
    return true;
}

/* The text of the token that `key` names; "" when the model has none. `text` is NUL-terminated, from the context. */
static firn_status token_text(firn_context *ctx, const firn_gguf *gguf, const char *key, char **text)
{
    const firn_kv *tokens = firn_gguf_kv(gguf, "tokenizer.ggml.tokens");
    uint32_t id = UINT32_MAX;

    FIRN_TRY(firn_gguf_get_u32(ctx, gguf, key, false, &id));
    firn_string s = {"", 0};
    if (id != UINT32_MAX && tokens && tokens->type == FIRN_KV_ARRAY && tokens->element == FIRN_KV_STRING) {
        if (id >= tokens->n)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s is %u, but there are only %llu tokens", key, id,
                             (unsigned long long)tokens->n);
        s = tokens->strings[id];
    }
    *text = firn_alloc(ctx, s.size + 1);
    if (!*text)
        return FIRN_ERR_MEMORY;
    memcpy(*text, s.data, s.size);
    (*text)[s.size] = 0;
    return FIRN_OK;
}

typedef struct {
    firn_gguf *gguf;
    char *source; /* of --template */
    json_t *given, *variables;
    char *bos, *eos;
    firn_template *chat;
    firn_text out;
} state;

static firn_status run(firn_context *ctx, const arguments *a, const struct tm *now, state *s)
{
    firn_string source = {NULL, 0};
    char *data;
    size_t size;
    json_error_t error;

    if (a->model) {
        FIRN_TRY(firn_gguf_open(ctx, a->model, &s->gguf));
        if (!firn_gguf_kv(s->gguf, "tokenizer.chat_template"))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "%s has no chat template", a->model);
        FIRN_TRY(firn_gguf_get_string(ctx, s->gguf, "tokenizer.chat_template", true, &source));
        FIRN_TRY(token_text(ctx, s->gguf, "tokenizer.ggml.bos_token_id", &s->bos));
        FIRN_TRY(token_text(ctx, s->gguf, "tokenizer.ggml.eos_token_id", &s->eos));
    } else {
        FIRN_TRY(firn_stream_read(ctx, a->template, 0, &s->source, &source.size));
        source.data = s->source;
    }
    FIRN_TRY(firn_stream_read(ctx, a->messages, 0, &data, &size));
    s->given = json_loadb(data, size, JSON_ALLOW_NUL, &error);
    firn_free(ctx, data);
    if (!s->given)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s, line %d, column %d: %s", a->messages, error.line, error.column,
                         error.text);
    const firn_chat_tokens tokens = {.bos = s->bos, .eos = s->eos};
    FIRN_TRY(firn_template_create(ctx, source.data, source.size, &tokens, NULL, &s->chat));
    if (!a->exact)
        return firn_chat_ask(s->chat, s->given, now, false, &s->out);
    FIRN_TRY(firn_chat_variables(ctx, s->given, s->bos, s->eos, &s->variables));
    return firn_template_render(s->chat, s->variables, now, &s->out, NULL);
}

int cmd_chat_template(int argc, char **argv)
{
    arguments a = {0};
    struct tm now;
    int n, status;
    const cmd_option options[] = {
        {"--model", 's', &a.model, "FILE", "take the template and its tokens from this GGUF file", 0, 0},
        {"--template", 's', &a.template, "FILE", "take the template from this file (tokens are empty)", 0, 0},
        {"--messages", 's', &a.messages, "FILE", "JSON: a list of messages, or an object of variables", 0, 0},
        {"--exact", 'b', &a.exact, NULL, "give the template the variables as they are in the file", 0, 0},
        {"--now", 's', &a.now, "TIME", "the clock that the template sees: 2026-01-02T03:04:05", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        .usage = "firn chat-template (--model M | --template F.jinja) --messages F.json [--exact] [--now TIME]",
        .about =
            "Renders messages through a chat template and writes the text exactly, without a newline of its own.\n"
            "The JSON file holds a list of messages, or an object whose keys are the template's variables: where not\n"
            "given, tools and documents are null, add_generation_prompt is false, enable_thinking is true, and\n"
            "bos_token and eos_token come from the model. Messages and tools are brought to the form that the "
            "template\n"
            "takes, as training and generate --chat do; --exact leaves them, and enable_thinking, as they are.",
        .options = options,
    };

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!a.model == !a.template)
        return cmd_usage("chat-template", "either --model or --template is needed");
    if (!a.messages)
        return cmd_usage("chat-template", "--messages is needed");
    if (a.now && !read_time(a.now, &now))
        return cmd_usage("chat-template", "--now takes a time like 2026-01-02T03:04:05, not '%s'", a.now);
    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    state s = {0};
    firn_text_init(&s.out, ctx, 0);
    if (run(ctx, &a, a.now ? &now : NULL, &s) != FIRN_OK)
        status = cmd_fail_ctx(ctx);
    else
        cmd_put(firn_text_cstr(&s.out), s.out.size);
    firn_text_free(&s.out);
    firn_template_destroy(s.chat);
    json_decref(s.variables);
    json_decref(s.given);
    firn_free(ctx, s.bos);
    firn_free(ctx, s.eos);
    firn_free(ctx, s.source);
    firn_gguf_close(s.gguf);
    firn_context_destroy(ctx);
    return status;
}
