/* firn generate: continues a prompt, or talks through the model's own chat template. Only the continuation goes to
 * standard output, as it comes, and one newline. */
#include "model.h"

#include "core/buffer.h"
#include "model/sample.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHAT_CONTEXT = 8192 };

typedef struct {
    cmd_model m;
    firn_tokenizer *tok;
    firn_generator *generator;
    firn_sampler *sampler;
    int64_t limit, n_ctx; /* tokens to say at most; that fit */
    int32_t *seen;        /* [n_ctx] what lies in the cache */
    int64_t n_seen;
} talk;

/* ---- text to tokens ---- */

static bool prompt_tokens(talk *t, const char *text, size_t size, unsigned flags, firn_tokens *tokens)
{
    if (firn_tokenize(t->m.ctx, t->tok, text, size, FIRN_PARSE_SPECIAL | flags, tokens) != FIRN_OK)
        return cmd_fail_ctx(t->m.ctx), false;
    if (tokens->n == 0)
        return cmd_fail("the prompt is empty, and this vocabulary puts nothing in front of it"), false;
    return true;
}

/* The conversation as the template puts it, up to where the assistant's words begin. */
static bool render(talk *t, const firn_jinja *jinja, json_t *messages, firn_text *text)
{
    firn_context *ctx = t->m.ctx;
    const int32_t ids[2] = {firn_tokenizer_bos(t->tok), firn_tokenizer_eos(t->tok)};
    char *names[2] = {NULL, NULL};
    json_t *variables = NULL;
    firn_status s = FIRN_OK;

    for (int i = 0; s == FIRN_OK && i < 2; i++) {
        size_t n = 0;
        const char *bytes = ids[i] >= 0 ? firn_token_text(t->tok, ids[i], &n) : NULL;
        names[i] = firn_alloc(ctx, n + 1);
        if (!names[i]) {
            s = FIRN_ERR_MEMORY;
            break;
        }
        if (n)
            memcpy(names[i], bytes, n);
        names[i][n] = 0;
    }
    if (s == FIRN_OK)
        s = firn_chat_variables(ctx, messages, names[0], names[1], &variables);
    if (s == FIRN_OK) {
        json_object_set_new(variables, "add_generation_prompt", json_true());
        s = firn_jinja_render(ctx, jinja, variables, NULL, text, NULL);
        json_decref(variables);
    }
    firn_free(ctx, names[0]);
    firn_free(ctx, names[1]);
    return s == FIRN_OK || (cmd_fail_ctx(ctx), false);
}

static firn_status compile(talk *t, firn_jinja **jinja)
{
    const firn_kv *kv = firn_gguf_kv(firn_model_gguf(t->m.model), "tokenizer.chat_template");

    if (!kv || kv->type != FIRN_KV_STRING)
        return firn_fail(t->m.ctx, FIRN_ERR_FORMAT, "the model has no chat template (tokenizer.chat_template)");
    return firn_jinja_compile(t->m.ctx, kv->strings[0].data, kv->strings[0].size, NULL, jinja);
}

/* ---- generating ---- */

static bool prepare(talk *t, int64_t n_ctx, const firn_sample_params *params)
{
    firn_context *ctx = t->m.ctx;

    t->n_ctx = n_ctx;
    t->seen = calloc((size_t)n_ctx, sizeof *t->seen);
    if (!t->seen)
        return cmd_fail("out of memory"), false;
    firn_status s = firn_generator_create(ctx, t->m.device, t->m.model, t->m.adapter, n_ctx, &t->generator);
    if (s == FIRN_OK)
        s = firn_sampler_create(ctx, params, firn_model_get_info(t->m.model)->n_vocab, &t->sampler);
    return s == FIRN_OK || (cmd_fail_ctx(ctx), false);
}

static firn_status feed(talk *t, const int32_t *tokens, int64_t n, const float **logits)
{
    FIRN_TRY(firn_generator_feed(t->generator, tokens, n, logits));
    memcpy(t->seen + t->n_seen, tokens, (size_t)n * sizeof *tokens);
    t->n_seen += n;
    return FIRN_OK;
}

/* Brings the cache to these tokens, keeping what they begin with. At least the last one is fed, for its logits. */
static bool catch_up(talk *t, const firn_tokens *tokens, const float **logits)
{
    int64_t same = 0;
    const int64_t n = (int64_t)tokens->n;

    if (n >= t->n_ctx)
        return cmd_fail("%lld tokens of prompt leave no room in a context of %lld", (long long)n, (long long)t->n_ctx),
               false;
    while (same < t->n_seen && same < n - 1 && t->seen[same] == tokens->ids[same])
        same++;
    if (same < t->n_seen)
        firn_generator_truncate(t->generator, same);
    t->n_seen = same;
    for (int64_t i = same; i < n; i++)
        firn_sampler_saw(t->sampler, tokens->ids[i]);
    return feed(t, tokens->ids + same, n - same, logits) == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false);
}

/* Says what follows the prompt; `said` receives the text too. */
static bool speak(talk *t, const firn_tokens *prompt, firn_text *said)
{
    const float *logits;
    bool after_special = false;

    if (!catch_up(t, prompt, &logits))
        return false;
    for (int64_t i = 0; i < t->limit; i++) {
        const int32_t token = firn_sampler_next(t->sampler, logits);
        if (firn_token_is_end(t->tok, token))
            break;
        size_t n;
        const char *piece = firn_token_piece(t->tok, token, &after_special, &n);
        if (piece) {
            fwrite(piece, 1, n, stdout);
            fflush(stdout);
            firn_text_append(said, piece, n);
        }
        if (i + 1 == t->limit || t->n_seen == t->n_ctx)
            break;
        if (feed(t, &token, 1, &logits) != FIRN_OK)
            return cmd_fail_ctx(t->m.ctx), false;
    }
    putchar('\n');
    fflush(stdout);
    return said->status == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false);
}

static bool continue_prompt(talk *t, const char *prompt, size_t size, bool bos, const firn_sample_params *params)
{
    const int64_t trained = firn_model_get_info(t->m.model)->n_ctx_train;
    firn_tokens tokens = {0};
    firn_text said;

    firn_text_init(&said, t->m.ctx, 0);
    bool ok = prompt_tokens(t, prompt, size, bos ? FIRN_ADD_SPECIAL : FIRN_ADD_SPECIAL | FIRN_BOS_ONCE, &tokens);
    /* EOS behind a prompt would end it. */
    if (ok && tokens.n > 1 && firn_tokenizer_adds_eos(t->tok) && tokens.ids[tokens.n - 1] == firn_tokenizer_eos(t->tok))
        tokens.n--;
    if (ok && (int64_t)tokens.n >= trained)
        ok = (cmd_fail("%zu tokens of prompt are too many: the model knows contexts of %lld", tokens.n,
                       (long long)trained),
              false);
    ok = ok && prepare(t, firn_min_i64((int64_t)tokens.n + t->limit, trained), params) && speak(t, &tokens, &said);
    firn_tokens_free(t->m.ctx, &tokens);
    firn_text_free(&said);
    return ok;
}

static bool one_turn(talk *t, const char *prompt, const firn_sample_params *params)
{
    firn_jinja *jinja = NULL;
    firn_text text;

    firn_text_init(&text, t->m.ctx, 0);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", prompt);
    bool ok = messages || (cmd_fail("the prompt is not valid UTF-8"), false);
    if (ok && compile(t, &jinja) != FIRN_OK)
        ok = (cmd_fail_ctx(t->m.ctx), false);
    ok = ok && render(t, jinja, messages, &text) && continue_prompt(t, firn_text_cstr(&text), text.size, false, params);
    json_decref(messages);
    firn_jinja_destroy(jinja);
    firn_text_free(&text);
    return ok;
}

/* One answer: the conversation so far, rendered again and continued. */
static bool answer(talk *t, const firn_jinja *jinja, json_t *messages)
{
    firn_text text, said;
    firn_tokens tokens = {0};

    firn_text_init(&text, t->m.ctx, 0);
    firn_text_init(&said, t->m.ctx, 0);
    const bool ok = render(t, jinja, messages, &text) &&
                    prompt_tokens(t, firn_text_cstr(&text), text.size, FIRN_ADD_SPECIAL | FIRN_BOS_ONCE, &tokens) &&
                    speak(t, &tokens, &said);
    /* Bytes that are no UTF-8 make no JSON string: then the turn is kept empty. */
    json_t *content = ok ? json_stringn(firn_text_cstr(&said), said.size) : NULL;
    if (ok)
        json_array_append_new(
            messages, json_pack("{s:s, s:o}", "role", "assistant", "content", content ? content : json_string("")));
    firn_tokens_free(t->m.ctx, &tokens);
    firn_text_free(&text);
    firn_text_free(&said);
    return ok;
}

static bool converse(talk *t, const firn_sample_params *params)
{
    firn_jinja *jinja = NULL;
    json_t *messages = json_array();
    char *line = NULL;
    size_t capacity = 0;
    bool ok = messages || (cmd_fail("out of memory"), false);
    const bool terminal = isatty(STDIN_FILENO);

    if (ok && compile(t, &jinja) != FIRN_OK)
        ok = (cmd_fail_ctx(t->m.ctx), false);
    ok = ok && prepare(t, firn_min_i64(firn_model_get_info(t->m.model)->n_ctx_train, CHAT_CONTEXT), params);
    while (ok) {
        if (terminal)
            fputs("> ", stderr);
        const ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0)
            break;
        json_t *content = json_stringn(line, (size_t)n - (n > 0 && line[n - 1] == '\n'));
        if (!content) {
            cmd_fail("that line is not valid UTF-8");
            continue;
        }
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
        ok = answer(t, jinja, messages);
    }
    free(line);
    json_decref(messages);
    firn_jinja_destroy(jinja);
    return ok;
}

int cmd_generate(int argc, char **argv)
{
    const char *prompt = NULL, *adapter = NULL;
    int64_t limit = 256, seed = 0, top_k = 0;
    double temperature = 0, top_p = 1, min_p = 0, penalty = 1;
    bool chat = false;
    cmd_compute compute = {0};
    const cmd_option options[] = {
        {"-p,--prompt", 's', &prompt, "PROMPT", "text to continue; special tokens in it are parsed", 0, 0},
        {"--chat", 'b', &chat, NULL, "with -p: one turn through the chat template; alone: a conversation", 0, 0},
        {"--adapter", 's', &adapter, "A.gguf", "adapter to apply", 0, 0},
        {"-n,--tokens", 'i', &limit, "N", "say at most N tokens (default 256)", 1, 1 << 24},
        {"--temp", 'f', &temperature, "T", "temperature (default 0: the likeliest token each time)", 0, 1000},
        {"--seed", 'i', &seed, "S", "of the draws (default 0)", 0, 9e15},
        {"--top-k", 'i', &top_k, "K", "draw among the K likeliest (default 0: all)", 0, 1 << 24},
        {"--top-p", 'f', &top_p, "P", "draw among the fewest that reach P together (default 1: all)", 0, 1},
        {"--min-p", 'f', &min_p, "P", "draw among those at least P times as likely as the first (default 0)", 0, 1},
        {"--repeat-penalty", 'f', &penalty, "R", "make the last 64 tokens less likely (default 1: not)", 0.01, 100},
        CMD_COMPUTE_OPTIONS(compute),
        {0},
    };
    const cmd_spec spec = {"firn generate MODEL -p PROMPT | --chat [-p PROMPT] [options]",
                           "Continues a prompt until the model ends it; prints the continuation and one newline.",
                           options, 1, 1};
    int n, status;
    talk t = {0};

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!prompt && !chat)
        return cmd_usage("generate", "there is nothing to continue: give -p PROMPT or --chat");
    const firn_sample_params params = {.temperature = (float)temperature,
                                       .top_k = top_k,
                                       .top_p = (float)top_p,
                                       .min_p = (float)min_p,
                                       .repeat_penalty = (float)penalty,
                                       .seed = (uint64_t)seed};
    t.limit = limit;
    if (!cmd_model_open(&t.m, &compute, argv[1], adapter))
        return 1;
    bool ok = firn_tokenizer_create(t.m.ctx, firn_model_gguf(t.m.model), &t.tok) == FIRN_OK;
    if (!ok)
        cmd_fail_ctx(t.m.ctx);
    else if (!prompt)
        ok = converse(&t, &params);
    else
        ok = chat ? one_turn(&t, prompt, &params) : continue_prompt(&t, prompt, strlen(prompt), true, &params);
    firn_sampler_destroy(t.sampler);
    firn_generator_destroy(t.generator);
    firn_tokenizer_destroy(t.tok);
    free(t.seen);
    cmd_model_close(&t.m);
    return ok ? 0 : 1;
}
