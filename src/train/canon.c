/* Lines of all formats to one form: see canon.h. Formats as their tools document them:
 *   OpenAI         platform.openai.com/docs/guides/fine-tuning: messages, tools, weight; functions; preferred_output
 *   TRL            huggingface.co/docs/trl/dataset_formats: messages, prompt + completion, text, chosen + rejected
 *   axolotl        docs.axolotl.ai/docs/dataset-formats: chat_template, alpaca, input_ids + attention_mask + labels
 *   LLaMA-Factory  its data/README.md: alpaca with history and system; sharegpt with system, tools, observations */
#include "train/canon.h"

#include <stdio.h>
#include <string.h>

/* ---- names ---- */

static const char *const format_names[FIRN_FORMATS] = {"auto", "chat",   "sharegpt", "alpaca",    "completion",
                                                       "text", "tokens", "csv",      "preference"};

const char *firn_data_format_name(firn_data_format format)
{
    return format_names[format];
}

firn_status firn_data_format_from_name(firn_context *ctx, const char *name, firn_data_format *format)
{
    for (int i = 0; i < FIRN_FORMATS; i++) {
        *format = (firn_data_format)i;
        if (strcmp(name, format_names[i]) == 0)
            return FIRN_OK;
    }
    return firn_fail(
        ctx, FIRN_ERR_ARGUMENT,
        "there is no data format '%.40s': expected auto, chat, sharegpt, alpaca, completion, text, tokens, "
        "csv or preference",
        name);
}

/* Every key that is read here, and so may be mapped. The first ones are of the line, the last four of a message. */
static const char *const keys[] = {"messages",
                                   "conversations",
                                   "prompt",
                                   "completion",
                                   "text",
                                   "instruction",
                                   "input",
                                   "output",
                                   "system",
                                   "history",
                                   "tools",
                                   "input_ids",
                                   "labels",
                                   "completion_mask",
                                   "assistant_masks",
                                   "loss_mask",
                                   "attention_mask",
                                   "chosen",
                                   "rejected",
                                   "role",
                                   "content",
                                   "from",
                                   "value",
                                   NULL};

static bool is_key(const char *name, size_t n)
{
    for (const char *const *k = keys; *k; k++)
        if (strlen(*k) == n && memcmp(*k, name, n) == 0)
            return true;
    return false;
}

firn_status firn_canon_check(firn_context *ctx, const firn_canon_options *options)
{
    firn_text text;

    for (int i = 0; i < options->n_fields; i++) {
        const char *field = options->fields[i], *equal = strchr(field, '=');
        if (equal && equal[1] && is_key(field, (size_t)(equal - field)))
            continue;
        firn_text_init(&text, ctx, 0);
        for (const char *const *k = keys; *k; k++)
            firn_text_printf(&text, "%s%s", k == keys ? "" : ", ", *k);
        firn_fail(ctx, FIRN_ERR_ARGUMENT,
                  "'%.80s' maps no field: expected NAME=THEIRS, as in messages=dialog, with NAME "
                  "one of %s",
                  field, firn_text_cstr(&text));
        firn_text_free(&text);
        return FIRN_ERR_ARGUMENT;
    }
    return FIRN_OK;
}

const char *firn_canon_key(const firn_canon_options *o, const char *name)
{
    const size_t n = strlen(name);

    for (int i = 0; i < o->n_fields; i++)
        if (strncmp(o->fields[i], name, n) == 0 && o->fields[i][n] == '=')
            return o->fields[i] + n + 1;
    return name;
}

/* ---- what a line goes through ---- */

typedef struct {
    const firn_jsonl *lines;
    const firn_canon_options *o;
    json_t *object;
} canon;

static firn_status memory(const canon *c)
{
    return firn_fail(c->lines->ctx, FIRN_ERR_MEMORY, "%s:%lld: out of memory for JSON", c->lines->name,
                     (long long)c->lines->line);
}

#define FAIL(c, key, ...) firn_jsonl_fail((c)->lines, firn_canon_key((c)->o, key), -1, NULL, __VA_ARGS__)

static json_t *get(const canon *c, const char *key)
{
    json_t *value = json_object_get(c->object, firn_canon_key(c->o, key));

    return json_is_null(value) ? NULL : value;
}

/* Takes the value out of the line: the caller's reference, NULL when there is none. */
static json_t *take(canon *c, const char *key)
{
    json_t *value = json_incref(json_object_get(c->object, firn_canon_key(c->o, key)));

    json_object_del(c->object, firn_canon_key(c->o, key));
    if (!json_is_null(value))
        return value;
    json_decref(value);
    return NULL;
}

/* Numbers that could not be read matter under a key that is read. */
static firn_status check_lost(const canon *c)
{
    const firn_jsonl *lines = c->lines;

    for (int i = 0; i < lines->n_lost; i++) {
        const firn_lost *lost = &lines->lost[i];
        for (const char *const *k = keys; *k; k++) {
            const char *name = firn_canon_key(c->o, *k);
            if (strlen(name) == lost->n_key && memcmp(name, lines->text + lost->key, lost->n_key) == 0)
                return firn_jsonl_fail_byte(lines, lost->number,
                                            "expected a number that JSON and 64 bits hold under \"%s\"", name);
        }
    }
    return FIRN_OK;
}

/* A text that holds the JSON of a list becomes the list: tables and older tools keep lists so. */
static firn_status unfold(canon *c, const char *key)
{
    json_t *value = get(c, key);

    if (!json_is_string(value))
        return FIRN_OK;
    const char *text = json_string_value(value);
    json_t *list = json_loads(text, 0, NULL);
    if (!list && !text[strspn(text, " \t\r\n")]) { /* no tools */
        json_object_del(c->object, firn_canon_key(c->o, key));
        return FIRN_OK;
    }
    if (!json_is_array(list)) {
        json_decref(list);
        return FAIL(c, key, "expected %s to be a list, or the JSON of one", key);
    }
    return json_object_set_new(c->object, firn_canon_key(c->o, key), list) == 0 ? FIRN_OK : memory(c);
}

/* ---- messages ---- */

static const char *role_of(const char *role)
{
    static const char *const names[][2] = {{"human", "user"},        {"gpt", "assistant"},     {"bot", "assistant"},
                                           {"chatgpt", "assistant"}, {"model", "assistant"},   {"function", "tool"},
                                           {"observation", "tool"},  {"tool_response", "tool"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(role, names[i][0]) == 0)
            return names[i][1];
    return role;
}

static bool is_role(const canon *c, const char *role)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return c->o->knows_role && c->o->knows_role(c->o->user, role);
}

/* ShareGPT's call of a function: its value is the JSON of {"name": ..., "arguments": ...}, or of a list of them. */
static firn_status make_call(const canon *c, const char *key, size_t i, json_t *message)
{
    const char *text = json_string_value(json_object_get(message, "content"));
    json_t *calls = json_array(), *given = text ? json_loads(text, 0, NULL) : NULL, *call;
    json_t *list = json_is_object(given) ? json_pack("[o]", given) : given;
    bool ok = calls != NULL;
    size_t k;

    json_array_foreach(list, k, call)
    {
        if (!json_is_string(json_object_get(call, "name"))) {
            json_array_clear(calls);
            break;
        }
        ok = ok && json_array_append_new(calls, json_pack("{s:s, s:O}", "type", "function", "function", call)) == 0;
    }
    json_decref(list);
    if (ok && json_array_size(calls) == 0) {
        json_decref(calls);
        return firn_jsonl_fail(c->lines, firn_canon_key(c->o, key), (int64_t)i, NULL,
                               "expected a function call as JSON, {\"name\": ..., \"arguments\": ...}");
    }
    ok = ok && json_object_set_new(message, "role", json_string("assistant")) == 0 &&
         json_object_set_new(message, "content", json_null()) == 0;
    if (!ok) {
        json_decref(calls);
        return memory(c);
    }
    return json_object_set_new(message, "tool_calls", calls) == 0 ? FIRN_OK : memory(c);
}

/* Renames `theirs` of a message to `ours`. */
static bool rename_key(json_t *message, const char *from, const char *to)
{
    json_t *value = json_object_get(message, from);

    if (!value || strcmp(from, to) == 0)
        return true;
    if (json_object_set(message, to, value) != 0)
        return false;
    json_object_del(message, from);
    return true;
}

static firn_status check_message(const canon *c, const char *key, size_t i, json_t *message)
{
    const char *list = firn_canon_key(c->o, key), *role_key = firn_canon_key(c->o, "role"),
               *content_key = firn_canon_key(c->o, "content");
    const json_t *role = json_object_get(message, "role");
    const json_t *content = json_object_get(message, "content");

    if (!json_is_string(role))
        return firn_jsonl_fail(c->lines, list, (int64_t)i, role_key,
                               "expected the message to have a role, such as \"user\" or \"assistant\"");
    if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
        return firn_jsonl_fail(c->lines, list, (int64_t)i, content_key,
                               "expected content to be a string or a list of parts");
    if (!content && !json_object_get(message, "tool_calls") && !json_object_get(message, "function_call"))
        return firn_jsonl_fail(c->lines, list, (int64_t)i, NULL, "expected the message to have content");
    if (!is_role(c, json_string_value(role)))
        return firn_jsonl_fail(c->lines, list, (int64_t)i, role_key,
                               "expected the role system, developer, user, assistant or tool (or human, gpt, bot, "
                               "function), got \"%.40s\"",
                               json_string_value(role));
    return FIRN_OK;
}

/* Appends copies of the messages under `key` to `out`, with one name for each thing. train: whether what the assistant
 * says in them may be trained. */
static firn_status add_messages(const canon *c, const char *key, const json_t *list, bool train, json_t *out)
{
    json_t *given;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)list, i, given)
    {
        if (!json_is_object(given))
            return firn_jsonl_fail(c->lines, firn_canon_key(c->o, key), (int64_t)i, NULL,
                                   "expected a message {\"role\": ..., \"content\": ...}");
        json_t *message = json_copy(given);
        if (!message || json_array_append_new(out, message) != 0)
            return memory(c);
        bool ok = rename_key(message, firn_canon_key(c->o, "role"), "role") &&
                  rename_key(message, firn_canon_key(c->o, "content"), "content");
        if (!json_object_get(message, "role"))
            ok = ok && rename_key(message, firn_canon_key(c->o, "from"), "role");
        if (!json_object_get(message, "content"))
            ok = ok && rename_key(message, firn_canon_key(c->o, "value"), "content");
        const char *role = json_string_value(json_object_get(message, "role"));
        const bool call = role && (strcmp(role, "function_call") == 0 || strcmp(role, "tool_call") == 0);
        if (ok && call)
            FIRN_TRY(make_call(c, key, i, message));
        else if (ok && role && role_of(role) != role)
            ok = json_object_set_new(message, "role", json_string(role_of(role))) == 0;
        if (!ok)
            return memory(c);
        FIRN_TRY(check_message(c, key, i, message));
        role = json_string_value(json_object_get(message, "role"));
        if (!train && strcmp(role, "assistant") == 0 && json_object_set_new(message, "train", json_false()) != 0)
            return memory(c);
    }
    return FIRN_OK;
}

static bool add(json_t *messages, const char *role, const json_t *content)
{
    return json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", content)) == 0;
}

/* A `system` of the line becomes the first message. */
static firn_status add_system(canon *c, json_t *messages)
{
    json_t *system = get(c, "system");
    firn_status s = FIRN_OK;

    if (!system)
        return FIRN_OK;
    if (!json_is_string(system))
        return FAIL(c, "system", "expected \"system\" to be a string");
    if (json_string_length(system) > 0 && !add(messages, "system", system))
        s = memory(c);
    json_object_del(c->object, firn_canon_key(c->o, "system"));
    return s;
}

static firn_status check_one_system(const canon *c, const json_t *messages)
{
    int n = 0;

    for (size_t i = 0; i < 2; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
        n += role && strcmp(role, "system") == 0;
    }
    return n < 2 ? FIRN_OK
                 : FAIL(c, "system", "the line has a system message and a \"system\" key; expected one of the two");
}

/* Puts the finished messages and what belongs to them under the keys that templates know. */
static firn_status put_messages(canon *c, json_t *messages)
{
    json_t *functions = json_object_get(c->object, "functions"), *function;
    size_t i;

    if (json_object_set(c->object, "messages", messages) != 0)
        return memory(c);
    FIRN_TRY(unfold(c, "tools"));
    json_t *tools = take(c, "tools");
    if (tools && json_object_set_new(c->object, "tools", tools) != 0)
        return memory(c);
    if (!json_is_array(functions) || tools)
        return FIRN_OK;
    json_t *list = json_array();
    bool ok = list && json_object_set_new(c->object, "tools", list) == 0;
    json_array_foreach(functions, i, function)
    {
        ok = ok && json_array_append_new(list, json_pack("{s:s, s:O}", "type", "function", "function", function)) == 0;
    }
    json_object_del(c->object, "functions");
    return ok ? FIRN_OK : memory(c);
}

static firn_status expect_list(canon *c, const char *key, json_t **list)
{
    FIRN_TRY(unfold(c, key));
    *list = get(c, key);
    if (!json_is_array(*list) || json_array_size(*list) == 0)
        return FAIL(c, key, "expected %s to be a list of at least one message", key);
    return FIRN_OK;
}

static firn_status from_messages(canon *c, const char *key, json_t *messages)
{
    json_t *list;

    FIRN_TRY(expect_list(c, key, &list));
    const bool system = get(c, "system") != NULL;
    FIRN_TRY(add_system(c, messages));
    FIRN_TRY(add_messages(c, key, list, true, messages));
    if (system)
        FIRN_TRY(check_one_system(c, messages));
    json_object_del(c->object, firn_canon_key(c->o, key));
    return put_messages(c, messages);
}

/* ---- the other formats ---- */

static firn_status expect_text(const canon *c, const char *key, json_t **text)
{
    *text = get(c, key);
    if (!*text)
        return firn_jsonl_fail(c->lines, NULL, -1, NULL, "expected \"%s\" too", firn_canon_key(c->o, key));
    if (!json_is_string(*text))
        return FAIL(c, key, "expected \"%s\" to be a string", firn_canon_key(c->o, key));
    return FIRN_OK;
}

/* What the user asks: the instruction, and the input on a line of its own below it. */
static firn_status add_instruction(const canon *c, json_t *messages)
{
    json_t *instruction, *input = get(c, "input");

    FIRN_TRY(expect_text(c, "instruction", &instruction));
    if (input && !json_is_string(input))
        return FAIL(c, "input", "expected \"%s\" to be a string", firn_canon_key(c->o, "input"));
    json_t *text = json_incref(instruction);
    if (input && json_string_length(input) > 0) {
        json_decref(text);
        text = json_string_length(instruction) == 0
                   ? json_incref(input)
                   : json_pack("s++", json_string_value(instruction), "\n", json_string_value(input));
    }
    const bool ok = text && add(messages, "user", text);
    json_decref(text);
    return ok ? FIRN_OK : memory(c);
}

static firn_status add_history(const canon *c, json_t *messages)
{
    json_t *history = get(c, "history"), *pair;
    size_t i;

    if (history && !json_is_array(history))
        return FAIL(c, "history", "expected history to be a list of pairs [question, answer]");
    json_array_foreach(history, i, pair)
    {
        json_t *question = json_array_get(pair, 0), *answer = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || !json_is_string(question) || !json_is_string(answer))
            return firn_jsonl_fail(c->lines, firn_canon_key(c->o, "history"), (int64_t)i, NULL,
                                   "expected a pair [question, answer]");
        if (!add(messages, "user", question) || !add(messages, "assistant", answer))
            return memory(c);
    }
    return FIRN_OK;
}

static void drop(canon *c, const char *const *names)
{
    for (; *names; names++)
        json_object_del(c->object, firn_canon_key(c->o, *names));
}

/* All of an Alpaca line but its answer. */
static firn_status start_alpaca(canon *c, json_t *messages)
{
    static const char *const used[] = {"instruction", "input", "history", NULL};

    FIRN_TRY(add_system(c, messages));
    FIRN_TRY(add_history(c, messages));
    FIRN_TRY(add_instruction(c, messages));
    drop(c, used);
    return FIRN_OK;
}

static firn_status from_alpaca(canon *c, json_t *messages)
{
    json_t *output;

    FIRN_TRY(expect_text(c, "output", &output));
    FIRN_TRY(start_alpaca(c, messages));
    if (!add(messages, "assistant", output))
        return memory(c);
    json_object_del(c->object, firn_canon_key(c->o, "output"));
    return put_messages(c, messages);
}

/* An answer that must not be learned is marked by these; firn would train on it. */
static firn_status refuse_labels(const canon *c)
{
    const json_t *label = json_object_get(c->object, "label"), *kto = json_object_get(c->object, "kto_tag");

    if (json_is_boolean(label) || json_is_boolean(kto))
        return firn_jsonl_fail(c->lines, label ? "label" : "kto_tag", -1, NULL,
                               "answers marked good or bad (\"%s\") are not trained on yet; expected the good ones "
                               "alone, without the mark",
                               label ? "label" : "kto_tag");
    return FIRN_OK;
}

static firn_status from_completion(canon *c, json_t *messages)
{
    static const char *const used[] = {"prompt", "completion", NULL};
    json_t *prompt = get(c, "prompt"), *completion = get(c, "completion");

    FIRN_TRY(refuse_labels(c));
    if (json_is_array(prompt) && json_is_array(completion)) {
        FIRN_TRY(add_system(c, messages));
        FIRN_TRY(add_messages(c, "prompt", prompt, false, messages));
        FIRN_TRY(add_messages(c, "completion", completion, true, messages));
        drop(c, used);
        return put_messages(c, messages);
    }
    FIRN_TRY(expect_text(c, "prompt", &prompt));
    FIRN_TRY(expect_text(c, "completion", &completion));
    json_t *text = json_pack("{s:O, s:O}", "prompt", prompt, "completion", completion);
    if (!text)
        return memory(c);
    json_object_clear(c->object);
    const bool ok = json_object_update(c->object, text) == 0;
    json_decref(text);
    return ok ? FIRN_OK : memory(c);
}

static firn_status from_text(canon *c)
{
    json_t *text;

    FIRN_TRY(expect_text(c, "text", &text));
    json_incref(text);
    json_object_clear(c->object);
    return json_object_set_new(c->object, "text", text) == 0 ? FIRN_OK : memory(c);
}

/* A mask of zeros and ones under the first of the names that is there. */
static json_t *find_mask(const canon *c, const char **name)
{
    static const char *const masks[] = {"completion_mask", "assistant_masks", "loss_mask"};

    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        json_t *mask = get(c, masks[i]);
        *name = masks[i];
        if (mask)
            return mask;
    }
    return NULL;
}

static firn_status expect_as_many(const canon *c, const char *key, const json_t *list, size_t n)
{
    if (!list || (json_is_array(list) && json_array_size(list) == n))
        return FIRN_OK;
    return FAIL(c, key, "expected \"%s\" to be a list of %zu numbers, one for each of input_ids",
                firn_canon_key(c->o, key), n);
}

/* Labels from a mask; what attention_mask pads away is left out. */
static firn_status from_tokens(canon *c)
{
    const char *name;
    json_t *ids, *labels = get(c, "labels"), *attention = get(c, "attention_mask"), *mask = find_mask(c, &name);

    FIRN_TRY(unfold(c, "input_ids"));
    ids = get(c, "input_ids");
    if (!json_is_array(ids))
        return FAIL(c, "input_ids", "expected input_ids to be a list of token ids");
    const size_t n = json_array_size(ids);
    FIRN_TRY(expect_as_many(c, "labels", labels, n));
    FIRN_TRY(expect_as_many(c, name, mask, n));
    FIRN_TRY(expect_as_many(c, "attention_mask", attention, n));
    json_t *kept = json_array(), *targets = json_array();
    bool ok = kept && targets;
    for (size_t i = 0; ok && i < n; i++) {
        json_t *id = json_array_get(ids, i), *label = json_array_get(labels, i), *m = json_array_get(mask, i);
        const json_t *seen = json_array_get(attention, i);
        if (seen && json_is_integer(seen) && json_integer_value(seen) == 0)
            continue;
        const bool trained =
            (!label || json_integer_value(label) != -100) && (!m || json_integer_value(m) != 0 || json_is_true(m));
        if (!json_is_integer(id) || (label && !json_is_integer(label)) ||
            (label && trained && json_integer_value(label) != json_integer_value(id))) {
            json_decref(kept);
            json_decref(targets);
            return firn_jsonl_fail(
                c->lines, firn_canon_key(c->o, json_is_integer(id) ? "labels" : "input_ids"), (int64_t)i, NULL,
                json_is_integer(id) ? "expected a label to be -100 or the token id beside it" : "expected a token id");
        }
        ok = json_array_append(kept, id) == 0 &&
             json_array_append_new(targets, trained ? json_incref(id) : json_integer(-100)) == 0;
    }
    json_object_clear(c->object);
    ok = ok && json_object_set(c->object, "input_ids", kept) == 0;
    if (labels || mask)
        ok = ok && json_object_set(c->object, "labels", targets) == 0;
    json_decref(kept);
    json_decref(targets);
    return ok ? FIRN_OK : memory(c);
}

/* ---- preference pairs ---- */

/* One side: a text behind the prompt's text, or messages behind the prompt's. `shared`: how many of its first messages
 * the two sides have in common, which are the prompt where there is none. */
static firn_status one_side(const canon *c, const char *key, const json_t *prompt, size_t shared, json_t **object)
{
    json_t *side = get(c, key);

    if (json_is_string(side) && (!prompt || json_is_string(prompt))) {
        *object = json_pack("{s:s, s:O}", "prompt", prompt ? json_string_value(prompt) : "", "completion", side);
        return *object ? FIRN_OK : memory(c);
    }
    json_t *messages = json_array(), *o = json_copy(c->object);
    firn_status s = messages && o ? FIRN_OK : memory(c);
    if (s == FIRN_OK && json_is_array(prompt))
        s = add_messages(c, "prompt", prompt, false, messages);
    else if (s == FIRN_OK && json_is_string(prompt) && !add(messages, "user", prompt))
        s = memory(c);
    if (s == FIRN_OK && json_is_string(side))
        s = add(messages, "assistant", side) ? FIRN_OK : memory(c);
    else if (s == FIRN_OK && json_is_object(side)) {
        json_t *list = json_pack("[O]", side);
        s = list ? add_messages(c, key, list, true, messages) : memory(c);
        json_decref(list);
    } else if (s == FIRN_OK && json_is_array(side))
        s = add_messages(c, key, side, true, messages);
    else if (s == FIRN_OK)
        s = FAIL(c, key, "expected \"%s\" to be a text, a message or a list of messages", firn_canon_key(c->o, key));
    for (size_t i = 0; s == FIRN_OK && i < shared; i++)
        s = json_object_set_new(json_array_get(messages, i), "train", json_false()) == 0 ? FIRN_OK : memory(c);
    canon half = {c->lines, c->o, o};
    static const char *const used[] = {"prompt", "chosen", "rejected", "conversations", NULL};
    if (s == FIRN_OK) {
        drop(&half, used);
        s = put_messages(&half, messages);
    }
    json_decref(messages);
    if (s == FIRN_OK)
        *object = o;
    else
        json_decref(o);
    return s;
}

/* OpenAI's names for the same: {"input": {"messages": ..., "tools": ...}, "preferred_output": [...], ...} */
static firn_status rename_preference(canon *c)
{
    json_t *input = json_object_get(c->object, "input");

    if (!json_object_get(c->object, "preferred_output"))
        return FIRN_OK;
    bool ok = rename_key(c->object, "preferred_output", firn_canon_key(c->o, "chosen")) &&
              rename_key(c->object, "non_preferred_output", firn_canon_key(c->o, "rejected"));
    if (json_is_object(input)) {
        json_t *messages = json_object_get(input, "messages"), *tools = json_object_get(input, "tools");
        ok = ok && (!messages || json_object_set(c->object, firn_canon_key(c->o, "prompt"), messages) == 0);
        ok = ok && (!tools || json_object_set(c->object, firn_canon_key(c->o, "tools"), tools) == 0);
        json_object_del(c->object, "input");
    }
    return ok ? FIRN_OK : memory(c);
}

static firn_status from_preference(canon *c, firn_example *e)
{
    FIRN_TRY(rename_preference(c));
    json_t *chosen = get(c, "chosen"), *rejected = get(c, "rejected"), *made = NULL;
    if (!chosen || !rejected)
        return firn_jsonl_fail(c->lines, NULL, -1, NULL, "expected \"%s\" too",
                               firn_canon_key(c->o, chosen ? "rejected" : "chosen"));
    const json_t *prompt = get(c, "prompt") ? get(c, "prompt") : get(c, "conversations");
    if (!prompt && get(c, "instruction")) {
        made = json_array();
        if (!made)
            return memory(c);
        const firn_status started = start_alpaca(c, made);
        if (started != FIRN_OK) {
            json_decref(made);
            return started;
        }
        prompt = made;
    }
    size_t shared = 0;
    if (!prompt && json_is_array(chosen) && json_is_array(rejected)) {
        const size_t n = json_array_size(chosen), m = json_array_size(rejected);
        while (shared + 1 < n && shared + 1 < m &&
               json_equal(json_array_get(chosen, shared), json_array_get(rejected, shared)))
            shared++;
    }
    json_t *first = NULL;
    firn_status s = one_side(c, "chosen", prompt, shared, &first);
    if (s == FIRN_OK)
        s = one_side(c, "rejected", prompt, shared, &e->rejected);
    json_decref(made);
    json_decref(c->object);
    c->object = first;
    return s;
}

/* ---- which format ---- */

static bool is_sharegpt(const json_t *list)
{
    const json_t *first = json_array_get(list, 0);

    return json_object_get(first, "from") && !json_object_get(first, "role");
}

static firn_data_format find_format(const canon *c)
{
    if (get(c, "chosen") || get(c, "rejected") || json_object_get(c->object, "preferred_output"))
        return FIRN_FORMAT_PREFERENCE;
    if (json_object_get(c->object, firn_canon_key(c->o, "messages")))
        return is_sharegpt(get(c, "messages")) ? FIRN_FORMAT_SHAREGPT : FIRN_FORMAT_CHAT;
    if (get(c, "conversations"))
        return FIRN_FORMAT_SHAREGPT;
    if (get(c, "input_ids"))
        return FIRN_FORMAT_TOKENS;
    if (get(c, "instruction"))
        return FIRN_FORMAT_ALPACA;
    if (get(c, "prompt") || get(c, "completion"))
        return FIRN_FORMAT_COMPLETION;
    return get(c, "text") ? FIRN_FORMAT_TEXT : FIRN_FORMAT_AUTO;
}

static firn_status refuse(const canon *c)
{
    const char *key;
    json_t *value;
    firn_text text;
    int n = 0;

    firn_text_init(&text, c->lines->ctx, 0);
    json_object_foreach(c->object, key, value)
    {
        if (n++ < 8)
            firn_text_printf(&text, "%s%.40s", n > 1 ? ", " : "", key);
    }
    firn_jsonl_fail(
        c->lines, NULL, -1, NULL,
        "expected messages, conversations, prompt and completion, instruction and output, text, input_ids, "
        "or chosen and rejected among the keys, got %s%s (--field messages=%s says that messages are called "
        "so here)",
        n ? firn_text_cstr(&text) : "none", n > 8 ? ", ..." : "", "NAME");
    firn_text_free(&text);
    return FIRN_ERR_FORMAT;
}

static firn_status convert(canon *c, firn_example *e, json_t *messages)
{
    switch (e->format) {
    case FIRN_FORMAT_CHAT:
        return from_messages(c, "messages", messages);
    case FIRN_FORMAT_SHAREGPT:
        return from_messages(c, get(c, "conversations") ? "conversations" : "messages", messages);
    case FIRN_FORMAT_ALPACA:
        return from_alpaca(c, messages);
    case FIRN_FORMAT_COMPLETION:
        return from_completion(c, messages);
    case FIRN_FORMAT_TEXT:
        return from_text(c);
    case FIRN_FORMAT_TOKENS:
        return from_tokens(c);
    case FIRN_FORMAT_PREFERENCE:
        return from_preference(c, e);
    default:
        return refuse(c);
    }
}

firn_status firn_canon(const firn_jsonl *lines, const firn_canon_options *options, json_t *object,
                       firn_example *example)
{
    canon c = {lines, options, json_incref(object)};

    *example = (firn_example){.format = options->format};
    if (example->format == FIRN_FORMAT_AUTO || example->format == FIRN_FORMAT_CSV)
        example->format = find_format(&c);
    json_t *messages = json_array();
    firn_status s = messages ? check_lost(&c) : memory(&c);
    if (s == FIRN_OK)
        s = convert(&c, example, messages);
    json_decref(messages);
    example->object = c.object;
    if (s != FIRN_OK)
        firn_example_clear(example);
    return s;
}

void firn_example_clear(firn_example *example)
{
    json_decref(example->object);
    json_decref(example->rejected);
    example->object = example->rejected = NULL;
}
