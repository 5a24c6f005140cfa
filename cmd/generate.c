/* firn generate: continues prompts, or talks through the model's own chat template. Only what the model says goes to
 * standard output, as it comes, and one newline; with --json an object for each prompt. */
#include "json.h"
#include "model.h"
#include "said.h"

#include "core/buffer.h"
#include "core/file.h"
#include "core/lock.h"
#include "core/machine.h"
#include "firn/sample.h"
#include "text/unicode.h"
#include "train/canon.h"
#include "train/language.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *prompt, *prompts, *system, *history; /* NULL: not given */
    bool chat, json, stats;
    int64_t limit; /* tokens to say at most */
    firn_sample_params sample;
} wishes;

typedef struct {
    const wishes *w;
    cmd_model m;
    firn_language *language;
    const firn_tokenizer *tok; /* the language's */
    firn_generator *generator;
    firn_sampler *sampler;
    int64_t n_ctx; /* tokens that fit */
    int32_t *seen; /* [n_ctx] what lies in the cache */
    int64_t n_seen;
    bool terminal;   /* is what standard output goes to */
    firn_lock *lock; /* of the conversation's file */
} talk;

/* What came of a prompt. */
typedef struct {
    firn_text text;
    int32_t *tokens; /* [n] without the end token */
    int64_t n;
    const char *stopped; /* "end": the model ended it; "limit"; "context": it is full */
} answer;

/* ---- text to tokens ---- */

static bool checked(talk *t, firn_status status, const firn_tokens *tokens)
{
    if (status != FIRN_OK)
        return cmd_fail_ctx(t->m.ctx), false;
    if (tokens->n == 0)
        return cmd_fail("the prompt is empty, and this vocabulary puts nothing in front of it"), false;
    return true;
}

/* The tokens of a text as --prompt gives it: BOS in front, even where the text brings its own. */
static bool plain_tokens(talk *t, const char *text, size_t size, firn_tokens *tokens)
{
    const firn_status s = firn_tokenize(t->m.ctx, t->tok, text, size, FIRN_PARSE_SPECIAL | FIRN_ADD_SPECIAL, tokens);

    /* EOS behind a prompt would end it. */
    if (s == FIRN_OK && tokens->n > 1 && firn_tokenizer_adds_eos(t->tok) &&
        tokens->ids[tokens->n - 1] == firn_tokenizer_eos(t->tok))
        tokens->n--;
    return checked(t, s, tokens);
}

/* The tokens that a line of a data set, or a list of messages, is asked with: as training has them. */
static firn_status ask(talk *t, const json_t *line, firn_tokens *tokens)
{
    firn_text text;

    firn_text_init(&text, t->m.ctx, 0);
    firn_status s = firn_language_asked(t->language, line, &text);
    if (s == FIRN_OK)
        s = firn_language_asked_tokens(t->language, firn_text_cstr(&text), text.size, tokens);
    firn_text_free(&text);
    return s;
}

/* ---- generating ---- */

/* An empty cache of n_ctx tokens. */
static bool prepare(talk *t, int64_t n_ctx)
{
    if (t->generator && t->n_ctx == n_ctx) {
        firn_generator_reset(t->generator);
        t->n_seen = 0;
        return true;
    }
    free(t->seen);
    firn_generator_destroy(t->generator);
    t->generator = NULL;
    t->n_seen = 0;
    t->n_ctx = n_ctx;
    t->seen = calloc((size_t)n_ctx, sizeof *t->seen);
    if (!t->seen)
        return cmd_fail("out of memory"), false;
    return firn_generator_create(t->m.ctx, t->m.device, t->m.model, t->m.adapter, n_ctx, &t->generator) == FIRN_OK ||
           (cmd_fail_ctx(t->m.ctx), false);
}

/* A sampler that has seen nothing. */
static bool fresh_sampler(talk *t)
{
    firn_sampler_destroy(t->sampler);
    return firn_sampler_create(t->m.ctx, &t->w->sample, firn_model_get_info(t->m.model)->n_vocab, &t->sampler) ==
               FIRN_OK ||
           (cmd_fail_ctx(t->m.ctx), false);
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
    for (int64_t i = same; i < n; i++)
        firn_sampler_saw(t->sampler, tokens->ids[i]);
    t->n_seen = firn_generator_truncate(t->generator, same);
    return feed(t, tokens->ids + t->n_seen, n - t->n_seen, logits) == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false);
}

static void answer_begin(talk *t, answer *a)
{
    *a = (answer){.stopped = "limit"};
    firn_text_init(&a->text, t->m.ctx, 0);
}

static void answer_end(answer *a)
{
    firn_text_free(&a->text);
    free(a->tokens);
}

/* False after a printed sentence: more need not be said where nobody can read it. */
static bool is_heard(void)
{
    return (fflush(stdout) == 0 && !ferror(stdout)) || (cmd_fail("cannot write to standard output"), false);
}

/* Says what follows the prompt; without --json it is printed as it comes. */
static bool speak(talk *t, const firn_tokens *prompt, answer *a)
{
    const bool print = !t->w->json;
    const double begin = firn_seconds();
    const float *logits;
    bool after_special = false;
    cmd_said said = {0};

    a->tokens = calloc((size_t)firn_min_i64(t->w->limit, t->n_ctx), sizeof *a->tokens);
    if (!a->tokens)
        return cmd_fail("out of memory"), false;
    if (!catch_up(t, prompt, &logits))
        return false;
    const double ready = firn_seconds();
    while (a->n < t->w->limit) {
        const int32_t token = firn_sampler_next(t->sampler, logits);
        if (firn_token_is_end(t->tok, token)) {
            a->stopped = "end";
            break;
        }
        a->tokens[a->n++] = token;
        size_t n;
        const char *piece = firn_token_piece(t->tok, token, &after_special, &n);
        if (piece) {
            if (print) {
                if (t->terminal)
                    cmd_said_put(&said, stdout, piece, n);
                else
                    fwrite(piece, 1, n, stdout);
                if (!is_heard())
                    return false;
            }
            firn_text_append(&a->text, piece, n);
        }
        if (a->n == t->w->limit)
            break;
        if (t->n_seen == t->n_ctx) {
            a->stopped = "context";
            break;
        }
        if (feed(t, &token, 1, &logits) != FIRN_OK)
            return cmd_fail_ctx(t->m.ctx), false;
    }
    if (print) {
        cmd_said_end(&said, stdout);
        putchar('\n');
        fflush(stdout);
    }
    if (t->w->stats)
        fprintf(stderr, "prompt %zu tokens, %.1f tokens/s; said %lld, %.1f tokens/s; cache for %lld, %.1f MB\n",
                prompt->n, (double)prompt->n / (ready - begin), (long long)a->n,
                (double)a->n / (firn_seconds() - ready), (long long)t->n_ctx,
                (double)firn_generator_cache_bytes(t->m.model, t->n_ctx) / 1e6);
    return a->text.status == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false);
}

static json_t *json_bytes(const firn_text *text)
{
    return cmd_json_text(firn_text_cstr(text), text->size);
}

static json_t *json_ids(const int32_t *ids, int64_t n)
{
    json_t *list = json_array();

    for (int64_t i = 0; list && i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static void print_json(const firn_tokens *prompt, const answer *a)
{
    json_t *j = json_pack("{so ss so so}", "text", json_bytes(&a->text), "stopped", a->stopped, "tokens",
                          json_ids(a->tokens, a->n), "prompt_tokens", json_ids(prompt->ids, (int64_t)prompt->n));

    if (j)
        json_dumpf(j, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    putchar('\n');
    fflush(stdout);
    json_decref(j);
}

/* ---- prompts ---- */

/* Continues a prompt from an empty cache. */
static bool go_on(talk *t, firn_tokens *tokens)
{
    const int64_t trained = firn_model_get_info(t->m.model)->n_ctx_train;
    answer a;

    if ((int64_t)tokens->n >= trained)
        return cmd_fail("%zu tokens of prompt are too many: the model knows contexts of %lld", tokens->n,
                        (long long)trained),
               false;
    answer_begin(t, &a);
    const bool ok =
        prepare(t, firn_min_i64((int64_t)tokens->n + t->w->limit, trained)) && fresh_sampler(t) && speak(t, tokens, &a);
    if (ok && t->w->json)
        print_json(tokens, &a);
    answer_end(&a);
    return ok && is_heard();
}

static json_t *first_messages(const talk *t)
{
    json_t *messages = json_array();

    if (t->w->system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", t->w->system));
    return messages;
}

static bool one_prompt(talk *t, const char *prompt, size_t size)
{
    firn_tokens tokens = {0};
    bool ok;

    if (t->w->chat) {
        json_t *messages = first_messages(t), *content = json_stringn(prompt, size);
        const bool utf8 = content != NULL;
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
        ok = utf8 ? checked(t, ask(t, messages, &tokens), &tokens) : (cmd_fail("the prompt is not valid UTF-8"), false);
        json_decref(messages);
    } else {
        ok = plain_tokens(t, prompt, size, &tokens);
    }
    ok = ok && go_on(t, &tokens);
    firn_tokens_free(t->m.ctx, &tokens);
    return ok;
}

/* A line of a file of prompts, shown first. */
static void show_line(const talk *t, const char *line, size_t n)
{
    if (t->w->json)
        return;
    fputs("> ", stdout);
    cmd_said_all(stdout, line, n);
    putchar('\n');
    fflush(stdout);
}

/* A prompt on each line that is not blank. */
static bool each_line(talk *t, const char *path)
{
    char *data;
    size_t size;
    bool ok = true;

    if (firn_stream_read(t->m.ctx, path, 0, &data, &size) != FIRN_OK)
        return cmd_fail_ctx(t->m.ctx), false;
    for (const char *s = data, *end = data + size; ok && s < end;) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t n = (size_t)((stop ? stop : end) - s);
        const size_t next = n + (stop != NULL);
        n -= n > 0 && s[n - 1] == '\r';
        if (n > 0) {
            show_line(t, s, n);
            ok = one_prompt(t, s, n);
        }
        s += next;
    }
    firn_free(t->m.ctx, data);
    return ok;
}

/* A conversation asks what comes before its last answer. */
static void drop_answer(json_t *messages)
{
    for (size_t n; (n = json_array_size(messages)) > 1; json_array_remove(messages, n - 1)) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, n - 1), "role"));
        if (!role || strcmp(role, "assistant") != 0)
            break;
    }
}

/* An object of a .jsonl: what a line of a data set, in any of its formats, asks. A prompt goes through the template
 * with
 * --chat. */
static bool one_object(talk *t, const firn_jsonl *lines, json_t *object)
{
    const json_t *prompt = json_object_get(object, "prompt");
    const firn_encoder *encoder = firn_language_encoder(t->language);
    const firn_canon_options canon = {.knows_role = encoder->knows_role, .user = encoder->user};
    firn_example example = {0};
    firn_tokens tokens = {0};

    show_line(t, lines->text, lines->n);
    if (t->w->chat && json_is_string(prompt))
        return one_prompt(t, json_string_value(prompt), json_string_length(prompt));
    if (!json_is_string(prompt)) {
        if (firn_canon(lines, &canon, object, &example) != FIRN_OK)
            return cmd_fail_ctx(t->m.ctx), false;
        drop_answer(json_object_get(example.object, "messages"));
    }
    const firn_status s = ask(t, example.object ? example.object : object, &tokens);
    if (s != FIRN_OK)
        firn_fail_in(t->m.ctx, s, "%s:%lld", lines->name, (long long)lines->line);
    const bool ok = checked(t, s, &tokens) && go_on(t, &tokens);
    firn_tokens_free(t->m.ctx, &tokens);
    firn_example_clear(&example);
    return ok;
}

static bool each_object(talk *t, const char *path)
{
    firn_jsonl lines;
    json_t *object = NULL;
    bool ok = true;

    if (firn_jsonl_stream(t->m.ctx, path, &lines) != FIRN_OK)
        return cmd_fail_ctx(t->m.ctx), false;
    while (ok) {
        if (firn_jsonl_next(&lines, &object) != FIRN_OK)
            ok = (cmd_fail_ctx(t->m.ctx), false);
        if (!object)
            break;
        ok = one_object(t, &lines, object);
        json_decref(object);
    }
    firn_jsonl_close(&lines);
    return ok;
}

static bool each_prompt(talk *t)
{
    const char *path = t->w->prompts;
    const size_t n = strlen(path);

    return n >= 6 && strcmp(path + n - 6, ".jsonl") == 0 ? each_object(t, path) : each_line(t, path);
}

/* ---- conversation ---- */

/* One answer: the conversation so far, rendered again and continued. *too_long: false is returned because it does not
 * fit, which was said. */
static bool reply(talk *t, json_t *messages, bool *too_long)
{
    firn_tokens tokens = {0};
    answer a;

    answer_begin(t, &a);
    bool ok = checked(t, ask(t, messages, &tokens), &tokens);
    *too_long = ok && (int64_t)tokens.n >= t->n_ctx;
    if (*too_long)
        cmd_fail("with this line the conversation has %zu tokens, and the context %lld: the line is left out", tokens.n,
                 (long long)t->n_ctx);
    ok = ok && !*too_long && speak(t, &tokens, &a);
    if (ok && t->w->json)
        print_json(&tokens, &a);
    if (ok)
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "assistant", "content", json_bytes(&a.text)));
    firn_tokens_free(t->m.ctx, &tokens);
    answer_end(&a);
    return ok;
}

/* A list of objects with a "role" in words, each; what else a message must hold is the template's affair. */
static bool are_messages(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_object_get(json_array_get(list, i), "role")))
            return false;
    return json_is_array(list);
}

/* A conversation is its file's alone until it ends: of two that went on from the same messages, the one that spoke last
 * would take what the other one said away. (FILE.lock is held only while it is written, by the writing itself.) */
static bool hold_history(talk *t)
{
    char target[PATH_MAX + 8], *path;

    if (!t->w->history)
        return true;
    path = realpath(t->w->history, NULL);
    const bool fits = snprintf(target, sizeof target, "%s.chat", path ? path : t->w->history) < (int)sizeof target;
    free(path);
    if (!fits)
        return cmd_fail("the path %.60s... is too long", t->w->history), false;
    return firn_lock_file(t->m.ctx, t->w->history, target, &t->lock) == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false);
}

/* The messages so far; NULL after a printed sentence. */
static json_t *load_history(talk *t)
{
    if (!hold_history(t))
        return NULL;
    if (!t->w->history || access(t->w->history, F_OK) != 0)
        return first_messages(t);
    json_t *messages = cmd_json_read(t->m.ctx, t->w->history);
    if (are_messages(messages))
        return messages;
    json_decref(messages);
    cmd_fail("%s holds no conversation: expected a list of messages, as --history writes it", t->w->history);
    return NULL;
}

static bool save_history(talk *t, const json_t *messages)
{
    if (!t->w->history)
        return true;
    char *text = json_dumps(messages, JSON_INDENT(1));
    const bool ok = text && firn_file_write(t->m.ctx, t->w->history, text, strlen(text)) == FIRN_OK;
    free(text);
    return ok || (text ? cmd_fail_ctx(t->m.ctx) : cmd_fail("out of memory"), false);
}

enum { LINE_BYTES = 16 << 20 };

/* Bytes of the next line, without its end; LINE_BYTES + 1 where it has more, which are passed over; -1: there is none.
 */
static ssize_t read_line(char *line)
{
    ssize_t n = 0;
    int c;

    while ((c = getc(stdin)) != EOF && c != '\n') {
        if (n < LINE_BYTES)
            line[n] = (char)c;
        n = n <= LINE_BYTES ? n + 1 : n;
    }
    return c == EOF && n == 0 ? -1 : n;
}

static bool converse(talk *t)
{
    json_t *messages = load_history(t);
    char *line = malloc(LINE_BYTES);
    const bool terminal = isatty(STDIN_FILENO);

    if (!messages || !line) {
        json_decref(messages);
        free(line);
        return messages ? cmd_fail("out of memory"), false : false;
    }
    bool ok = (firn_language_has_template(t->language) == FIRN_OK || (cmd_fail_ctx(t->m.ctx), false)) &&
              prepare(t, firn_min_i64(firn_model_get_info(t->m.model)->n_ctx_train, CMD_CHAT_CONTEXT)) &&
              fresh_sampler(t);
    while (ok) {
        if (terminal)
            fputs("> ", stderr);
        const ssize_t n = read_line(line);
        if (n < 0)
            break;
        if (n > LINE_BYTES) {
            cmd_fail("that line has more than %d bytes: it is left out", LINE_BYTES);
            continue;
        }
        json_t *content = json_stringn(line, (size_t)n);
        if (!content) {
            cmd_fail("that line is not valid UTF-8");
            continue;
        }
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
        bool too_long;
        ok = reply(t, messages, &too_long) && save_history(t, messages);
        if (too_long)
            ok = json_array_remove(messages, json_array_size(messages) - 1) == 0;
    }
    free(line);
    json_decref(messages);
    return ok;
}

int cmd_generate(int argc, char **argv)
{
    const char *adapter = NULL;
    int64_t seed = 0, top_k = 0;
    double temperature = 0, top_p = 1, min_p = 0, penalty = 1;
    cmd_compute compute = {0};
    wishes w = {.limit = 256};
    const cmd_option options[] = {
        {"-p,--prompt", 's', &w.prompt, "PROMPT", "text to continue; special tokens in it are parsed", 0, 0},
        {"--prompts", 's', &w.prompts, "FILE", "a prompt on each line; .jsonl: objects with prompt or messages", 0, 0},
        {"--chat", 'b', &w.chat, NULL, "prompts go through the chat template; without any: a conversation", 0, 0},
        {"--system", 's', &w.system, "TEXT", "with --chat: what the system says first", 0, 0},
        {"--history", 's', &w.history, "F.json", "conversation: go on from here, and keep it here", 0, 0},
        {"--adapter", 's', &adapter, "A.gguf", "adapter to apply", 0, 0},
        {"--force", 'b', &compute.force, NULL, "also where the adapter was made for another model", 0, 0},
        {"-n,--tokens", 'i', &w.limit, "N", "say at most N tokens (default 256)", 1, 1 << 24},
        {"--temp", 'f', &temperature, "T", "temperature (default 0: the likeliest token each time)", 0, 1000},
        {"--seed", 'i', &seed, "S", "of the draws (default 0)", 0, 9e15},
        {"--top-k", 'i', &top_k, "K", "draw among the K likeliest (default 0: all)", 0, 1 << 24},
        {"--top-p", 'f', &top_p, "P",
         "nucleus sampling: smallest set of tokens with total probability P (default 1: all)", 0, 1},
        {"--min-p", 'f', &min_p, "P", "draw among those at least P times as likely as the first (default 0)", 0, 1},
        {"--repeat-penalty", 'f', &penalty, "R", "make the last 64 tokens less likely (default 1: not)", 0.01, 100},
        {"--json", 'b', &w.json, NULL, "an object for each prompt: text, tokens, why it stopped", 0, 0},
        {"--stats", 'b', &w.stats, NULL, "tell speed and memory of each prompt on standard error", 0, 0},
        CMD_COMPUTE_OPTIONS(compute),
        {0},
    };
    const cmd_spec spec = {"firn generate MODEL -p PROMPT | --prompts FILE | --chat [-p PROMPT] [options]",
                           "Continues a prompt until the model ends it; prints the continuation and one newline.",
                           options, 1, 1};
    int n, status;
    talk t = {.w = &w, .terminal = isatty(STDOUT_FILENO)};

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if (!w.prompt && !w.prompts && !w.chat)
        return cmd_usage("generate", "there is nothing to continue: give -p PROMPT, --prompts FILE or --chat");
    if (w.prompt && w.prompts)
        return cmd_usage("generate", "give either --prompt or --prompts");
    if (w.system && !w.chat)
        return cmd_usage("generate", "--system needs --chat");
    size_t bad;
    if (w.system && !firn_utf8_valid(w.system, strlen(w.system), &bad))
        return cmd_usage("generate", "--system is not valid UTF-8");
    if (w.history && (w.prompt || w.prompts || !w.chat))
        return cmd_usage("generate", "--history is for a conversation: --chat without prompts");
    w.sample = (firn_sample_params){.temperature = (float)temperature,
                                    .top_k = top_k,
                                    .top_p = (float)top_p,
                                    .min_p = (float)min_p,
                                    .repeat_penalty = (float)penalty,
                                    .seed = (uint64_t)seed};
    if (!cmd_model_open(&t.m, &compute, argv[1], adapter))
        return 1;
    bool ok = firn_language_create(t.m.ctx, firn_model_gguf(t.m.model), NULL, &t.language) == FIRN_OK;
    if (ok)
        t.tok = firn_language_tokenizer(t.language);
    if (!ok)
        cmd_fail_ctx(t.m.ctx);
    else if (w.prompts)
        ok = each_prompt(&t);
    else
        ok = w.prompt ? one_prompt(&t, w.prompt, strlen(w.prompt)) : converse(&t);
    firn_sampler_destroy(t.sampler);
    firn_generator_destroy(t.generator);
    firn_language_destroy(t.language);
    free(t.seen);
    firn_lock_drop(t.lock);
    cmd_model_close(&t.m);
    return ok ? 0 : 1;
}
