/* Bringing messages and tools to the forms that a template takes: see messages.h. */
#include "text/messages.h"

#include <stdlib.h>
#include <string.h>

static const char *const reasoning_keys[] = {"reasoning_content", "thinking", "reasoning"};
enum { N_REASONING_KEYS = sizeof reasoning_keys / sizeof *reasoning_keys };

static firn_status out_of_memory(firn_context *ctx)
{
    return firn_fail(ctx, FIRN_ERR_MEMORY, "out of memory for a conversation");
}

/* jansson counts references in const objects too. */
static json_t *own(const json_t *v)
{
    return (json_t *)(uintptr_t)v;
}

firn_status firn_chat_variables(firn_context *ctx, const json_t *given, const char *bos_token, const char *eos_token,
                                json_t **variables)
{
    const bool list = json_is_array(given);

    *variables = NULL;
    if (!list && !json_is_object(given))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "expected a list of messages or an object of a template's variables");
    json_t *v = list ? json_object() : json_copy(own(given));
    bool ok = v && (!list || json_object_set(v, "messages", own(given)) == 0);
    const struct {
        const char *key;
        json_t *value;
    } defaults[] = {
        {"tools", json_null()},
        {"documents", json_null()},
        {"add_generation_prompt", json_false()},
        {"bos_token", json_string(bos_token ? bos_token : "")},
        {"eos_token", json_string(eos_token ? eos_token : "")},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) {
        if (ok && !json_object_get(v, defaults[i].key))
            ok = json_object_set(v, defaults[i].key, defaults[i].value) == 0;
        json_decref(defaults[i].value);
    }
    if (!ok) {
        json_decref(v);
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the tokens or messages of a conversation cannot be made JSON");
    }
    *variables = v;
    return FIRN_OK;
}

/* ---- small things ---- */

typedef struct {
    const firn_template *t;
    firn_context *ctx;
    size_t i; /* the message at hand */
} reader;

static firn_status refuse(const reader *r, const char *format, ...) FIRN_PRINTF(2, 3);
static firn_status refuse(const reader *r, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    firn_failv(r->ctx, FIRN_ERR_FORMAT, format, args);
    va_end(args);
    return firn_fail_in(r->ctx, FIRN_ERR_FORMAT, "message %zu", r->i + 1);
}

static void drop_nulls(json_t *object)
{
    const char *key;
    json_t *value;
    void *next;

    json_object_foreach_safe(object, next, key, value)
    {
        if (json_is_null(value))
            json_object_del(object, key);
    }
}

/* JSON text in a string as what it says; NULL: it is none. A text of a text is read twice: some tools write it so. */
static json_t *unpacked(const json_t *text)
{
    json_t *v = json_loadb(json_string_value(text), json_string_length(text), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);

    if (json_is_string(v)) {
        json_t *inner = json_loadb(json_string_value(v), json_string_length(v), JSON_ALLOW_NUL, NULL);
        json_decref(v);
        v = inner;
    }
    return v;
}

/* {"name": ...} in its wrapper {"type": "function", "function": ...}; a new reference, NULL for want of memory. */
static json_t *wrapped(const json_t *call)
{
    json_t *function = json_object_get(call, "function"), *v;

    if (json_is_object(function)) {
        v = json_copy(own(call));
        function = json_copy(function);
    } else {
        v = json_object();
        function = json_copy(own(call));
        json_t *id = json_object_get(call, "id");
        if (id && (json_object_set(v, "id", id) != 0 || json_object_del(function, "id") != 0))
            v = (json_decref(v), NULL);
        json_object_del(function, "type");
    }
    if (!v || !function) {
        json_decref(v);
        json_decref(function);
        return NULL;
    }
    drop_nulls(v);
    drop_nulls(function);
    bool ok = json_object_get(v, "type") || json_object_set_new(v, "type", json_string("function")) == 0;
    ok = json_object_set_new(v, "function", function) == 0 && ok;
    return ok ? v : (json_decref(v), NULL);
}

/* ---- calls ---- */

static firn_status read_arguments(const reader *r, json_t *function)
{
    json_t *given = json_object_get(function, "arguments"), *v;
    const char *name = json_string_value(json_object_get(function, "name"));

    if (!given || (json_is_string(given) && json_string_length(given) == 0))
        v = json_object();
    else
        v = json_is_string(given) ? unpacked(given) : json_incref(given);
    if (!json_is_object(v)) {
        json_decref(v);
        return refuse(r, "the arguments of its call of \"%.100s\" are no JSON object", name);
    }
    if (r->t->forms.text_arguments) {
        json_t *text = NULL;
        if (json_is_string(given)) { /* as it was written */
            text = json_incref(given);
        } else {
            char *dump = json_dumps(v, JSON_ENCODE_ANY);
            text = dump ? json_string(dump) : NULL;
            free(dump);
        }
        json_decref(v);
        v = text;
    }
    return v && json_object_set_new(function, "arguments", v) == 0 ? FIRN_OK : out_of_memory(r->ctx);
}

static firn_status read_call(const reader *r, const json_t *given, json_t *calls)
{
    if (!json_is_object(given))
        return refuse(r, "expected a call {\"type\": \"function\", \"function\": {\"name\": ..., \"arguments\": ...}}");
    json_t *call = wrapped(given), *function = json_object_get(call, "function");
    if (!call || json_array_append_new(calls, call) != 0)
        return out_of_memory(r->ctx);
    if (!json_is_string(json_object_get(function, "name")))
        return refuse(r, "expected its call to have the name of a function");
    return read_arguments(r, function);
}

static firn_status read_calls(const reader *r, json_t *m)
{
    json_t *given = json_object_get(m, "tool_calls"), *old = json_object_get(m, "function_call"), *list = json_array();
    firn_status s = list ? FIRN_OK : out_of_memory(r->ctx);
    const json_t *call;
    size_t k;

    json_incref(old);
    json_object_del(m, "function_call");
    if (s == FIRN_OK && given && !json_is_array(given))
        s = refuse(r, "expected tool_calls to be a list");
    json_array_foreach(given, k, call)
    {
        if (s == FIRN_OK)
            s = read_call(r, call, list);
    }
    if (s == FIRN_OK && old)
        s = read_call(r, old, list);
    json_decref(old);
    if (s == FIRN_OK && json_array_size(list) == 0)
        json_object_del(m, "tool_calls");
    else if (s == FIRN_OK && json_object_set(m, "tool_calls", list) != 0)
        s = out_of_memory(r->ctx);
    json_decref(list);
    return s;
}

/* ---- content ---- */

static firn_status read_parts(const reader *r, const json_t *parts, json_t **content)
{
    firn_text text;
    const json_t *part;
    size_t k;

    *content = NULL;
    firn_text_init(&text, r->ctx, 0);
    json_array_foreach(parts, k, part)
    {
        const json_t *words = json_is_string(part) ? part : json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        if (!json_is_string(words) || (type && strcmp(type, "text") != 0)) {
            firn_text_free(&text);
            return refuse(r, "a part of its content is of type \"%.40s\"; expected \"text\"", type ? type : "?");
        }
        if (k)
            firn_text_putc(&text, '\n');
        firn_text_append(&text, json_string_value(words), json_string_length(words));
    }
    if (r->t->forms.parts && json_array_size(parts) > 0)
        *content = json_incref(own(parts));
    else
        *content = json_stringn(firn_text_cstr(&text), text.size);
    const firn_status s = text.status;
    firn_text_free(&text);
    if (s != FIRN_OK)
        json_decref(*content);
    return s != FIRN_OK ? s : *content ? FIRN_OK : out_of_memory(r->ctx);
}

static firn_status read_content(const reader *r, json_t *m)
{
    const json_t *given = json_object_get(m, "content");
    json_t *content;

    if (json_is_array(given))
        FIRN_TRY(read_parts(r, given, &content));
    else if (!given)
        content = json_string("");
    else if (json_is_string(given))
        content = json_incref(own(given));
    else
        return refuse(r, "expected content to be text, a list of parts, or null");
    if (r->t->forms.only_parts && json_is_string(content))
        content = json_pack("[{s:s,s:o}]", "type", "text", "text", content);
    return json_object_set_new(m, "content", content) == 0 ? FIRN_OK : out_of_memory(r->ctx);
}

/* ---- reasoning ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void trim(const char **s, size_t *n)
{
    while (*n && is_blank(**s)) {
        (*s)++;
        (*n)--;
    }
    while (*n && is_blank((*s)[*n - 1]))
        (*n)--;
}

bool firn_thought_block(const char *s, size_t n, const char **thought, size_t *n_thought, size_t *rest)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t at = 0;

    while (at < n && is_blank(s[at]))
        at++;
    if (n - at < sizeof open - 1 || memcmp(s + at, open, sizeof open - 1) != 0)
        return false;
    at += sizeof open - 1;
    const char *end = memmem(s + at, n - at, close, sizeof close - 1);
    if (!end)
        return false;
    *thought = s + at;
    *n_thought = (size_t)(end - *thought);
    trim(thought, n_thought);
    for (*rest = (size_t)(end - s) + sizeof close - 1; *rest < n && (s[*rest] == '\n' || s[*rest] == '\r');)
        (*rest)++;
    return true;
}

bool firn_message_reasoning(const firn_template *t, const json_t *message, const char **text, size_t *n)
{
    const json_t *v = t->forms.reasoning ? json_object_get(message, t->forms.reasoning) : NULL,
                 *content = json_object_get(message, "content");
    size_t rest;

    *text = json_string_value(v);
    *n = json_string_length(v);
    if (*text)
        trim(text, n);
    if (*text && *n)
        return true;
    return json_is_string(content) &&
           firn_thought_block(json_string_value(content), json_string_length(content), text, n, &rest) && *n;
}

static bool set_text(json_t *m, const char *key, const char *s, size_t n)
{
    return json_object_set_new(m, key, json_stringn(s, n)) == 0;
}

/* The message's reasoning, taken out of its keys; NULL: they hold none. */
static json_t *take_reasoning(json_t *m)
{
    json_t *found = NULL;

    for (int k = 0; k < N_REASONING_KEYS; k++) {
        json_t *v = json_object_get(m, reasoning_keys[k]);
        if (!found && json_is_string(v) && json_string_length(v))
            found = json_incref(v);
        if (v)
            json_object_del(m, reasoning_keys[k]);
    }
    return found;
}

static bool says_nothing(const json_t *m)
{
    const json_t *content = json_object_get(m, "content");
    const char *s = json_string_value(content);
    size_t n = json_string_length(content);

    if (!s || json_object_get(m, "tool_calls"))
        return false;
    trim(&s, &n);
    return n == 0;
}

static firn_status read_reasoning(const reader *r, json_t *m, bool keep, int64_t *left_out, json_t **thought_beside)
{
    const firn_chat_forms *f = &r->t->forms;
    json_t *content = json_incref(json_object_get(m, "content")), *found = take_reasoning(m);
    const char *s = json_string_value(content), *thought;
    size_t n = json_string_length(content), n_thought, rest;
    const int64_t before = *left_out;
    bool ok = true, dropped = false;

    if (!keep && s && firn_thought_block(s, n, &thought, &n_thought, &rest)) {
        dropped = n_thought > 0;
        ok = set_text(m, "content", s + rest, n - rest);
    } else if (keep && found && f->reasoning) {
        ok = json_object_set(m, f->reasoning, found) == 0;
    } else if (keep && found && f->blocks && s && !memmem(s, n, "</think>", 8)) {
        *thought_beside = json_incref(found);
    } else if (keep && found) {
        ++*left_out;
    } else if (keep && f->reasoning && !f->blocks && s && firn_thought_block(s, n, &thought, &n_thought, &rest)) {
        ok = (n_thought == 0 || set_text(m, f->reasoning, thought, n_thought)) &&
             set_text(m, "content", s + rest, n - rest);
    }
    const bool left = keep ? *left_out > before : found || dropped;
    json_decref(found);
    json_decref(content);
    if (!ok)
        return out_of_memory(r->ctx);
    return left && says_nothing(m) ? refuse(r, "its reasoning is left out, and it says nothing else") : FIRN_OK;
}

/* ---- messages ---- */

static firn_status read_weight(const reader *r, json_t *m, bool assistant, bool *trained)
{
    const json_t *train = json_object_get(m, "train"), *weight = json_object_get(m, "weight");

    *trained = true;
    if (json_object_get(m, "train_detail"))
        return refuse(r, "train_detail is not known; expected \"train\" or \"weight\" for the message as a whole");
    if (train && !json_is_boolean(train))
        return refuse(r, "expected train to be true or false");
    if (weight && !(json_is_number(weight) && (json_number_value(weight) == 0 || json_number_value(weight) == 1)))
        return refuse(r, "expected weight to be 0 (not trained) or 1");
    if (train)
        *trained = json_is_true(train);
    if (weight)
        *trained = *trained && json_number_value(weight) == 1;
    if (!assistant && json_is_true(train))
        return refuse(r, "expected an assistant's message where train is true; all messages are trained by --loss all");
    json_object_del(m, "train");
    json_object_del(m, "weight");
    return FIRN_OK;
}

static firn_status read_message(const reader *r, json_t *m, bool keep, firn_conversation *c)
{
    drop_nulls(m);
    const char *role = json_string_value(json_object_get(m, "role")), *to = NULL;
    if (!role)
        return firn_fail(r->ctx, FIRN_ERR_FORMAT, "message %zu must be an object with a role", r->i + 1);
    const bool assistant = strcmp(role, "assistant") == 0;
    if (strcmp(role, "developer") == 0 && !r->t->forms.developer)
        to = "system";
    else if (strcmp(role, "function") == 0)
        to = "tool";
    if (to && json_object_set_new(m, "role", json_string(to)) != 0)
        return out_of_memory(r->ctx);
    FIRN_TRY(read_weight(r, m, assistant, &c->marks[r->i].trained));
    FIRN_TRY(read_content(r, m));
    FIRN_TRY(read_calls(r, m));
    return assistant ? read_reasoning(r, m, keep, &c->left_out, &c->marks[r->i].thought) : FIRN_OK;
}

static bool has_role(const json_t *m, const char *role)
{
    const char *s = json_string_value(json_object_get(m, "role"));
    return s && strcmp(s, role) == 0;
}

/* What a system message says, put in front of the user's words behind it; without such a user it becomes one. */
static firn_status fold_system(const reader *r, json_t *list, firn_message_mark *marks)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *m = json_array_get(list, i), *next = json_array_get(list, i + 1);
        if (!has_role(m, "system"))
            continue;
        const json_t *a = json_object_get(m, "content"), *b = json_object_get(next, "content");
        if (!next || !has_role(next, "user") || !json_is_string(a) || !json_is_string(b)) {
            if (json_object_set_new(m, "role", json_string("user")) != 0)
                return out_of_memory(r->ctx);
            continue;
        }
        firn_text text;
        firn_text_init(&text, r->ctx, 0);
        firn_text_append(&text, json_string_value(a), json_string_length(a));
        if (text.size)
            firn_text_putc(&text, '\n');
        firn_text_append(&text, json_string_value(b), json_string_length(b));
        const bool ok = text.status == FIRN_OK && set_text(next, "content", firn_text_cstr(&text), text.size);
        firn_text_free(&text);
        if (!ok || json_array_remove(list, i) != 0)
            return out_of_memory(r->ctx);
        /* a system message has no thought; the last mark is one too many now */
        memmove(marks + i, marks + i + 1, (json_array_size(list) - i) * sizeof *marks);
        marks[json_array_size(list)].thought = NULL;
        i--;
    }
    return FIRN_OK;
}

static firn_status read_messages(const firn_template *t, json_t *v, bool keep, firn_conversation *c)
{
    reader r = {.t = t, .ctx = t->ctx};
    json_t *given = json_incref(json_object_get(v, "messages")), *list = json_array();
    const json_t *message;
    firn_status s = FIRN_OK;

    if (!json_is_array(given))
        s = firn_fail(t->ctx, FIRN_ERR_FORMAT, "messages must be a list");
    else if (!list || json_object_set(v, "messages", list) != 0)
        s = out_of_memory(t->ctx);
    if (s == FIRN_OK) {
        c->marks = firn_alloc_zeroed(t->ctx, json_array_size(given) + 1, sizeof *c->marks);
        s = c->marks ? FIRN_OK : FIRN_ERR_MEMORY;
        c->n_marks = c->marks ? json_array_size(given) : 0;
    }
    json_array_foreach(given, r.i, message)
    {
        if (s != FIRN_OK)
            break;
        if (!json_is_object(message)) {
            s = firn_fail(t->ctx, FIRN_ERR_FORMAT, "message %zu must be an object with a role", r.i + 1);
            break;
        }
        json_t *m = json_copy(own(message));
        c->marks[r.i].number = r.i + 1;
        s = m && json_array_append_new(list, m) == 0 ? read_message(&r, m, keep, c) : out_of_memory(t->ctx);
    }
    if (s == FIRN_OK && !t->forms.system)
        s = fold_system(&r, list, c->marks);
    json_decref(given);
    json_decref(list);
    return s;
}

/* ---- tools ---- */

static firn_status read_tools(const firn_template *t, json_t *v)
{
    json_t *given = json_object_get(v, "tools"), *list = NULL;
    const json_t *tool;
    size_t k;

    if (json_is_null(given) && json_object_get(v, "functions"))
        given = json_object_get(v, "functions");
    json_incref(given);
    json_object_del(v, "functions");
    if (json_is_string(given) && json_string_length(given)) {
        json_t *inner = unpacked(given);
        json_decref(given);
        given = inner;
        if (!json_is_array(given)) {
            json_decref(given);
            return firn_fail(t->ctx, FIRN_ERR_FORMAT, "tools is text that is no JSON list");
        }
    }
    if (json_is_array(given) && json_array_size(given) > 0) {
        list = json_array();
        bool ok = list != NULL;
        json_array_foreach(given, k, tool)
        {
            json_t *read = json_is_string(tool) ? unpacked(tool) : json_incref(own(tool)), *one;
            if (json_is_object(read) && (json_object_get(read, "function") || json_object_get(read, "name")))
                one = wrapped(read);
            else
                one = json_incref(read ? read : own(tool));
            json_decref(read);
            ok = ok && one && json_array_append(list, one) == 0;
            json_decref(one);
        }
        if (!ok) {
            json_decref(list);
            json_decref(given);
            return out_of_memory(t->ctx);
        }
    } else if (json_is_object(given)) {
        json_decref(given);
        return firn_fail(t->ctx, FIRN_ERR_FORMAT, "expected tools to be a list");
    } else {
        list = t->forms.empty_tools ? json_array() : json_null();
    }
    json_decref(given);
    return list && json_object_set_new(v, "tools", list) == 0 ? FIRN_OK : out_of_memory(t->ctx);
}

/* ---- all of it ---- */

firn_status firn_conversation_read(const firn_template *t, const json_t *given, bool keep_reasoning,
                                   firn_conversation *c)
{
    json_t *plain, *v;

    *c = (firn_conversation){0};
    if (json_is_object(given)) {
        plain = json_copy(own(given));
        if (!plain)
            return out_of_memory(t->ctx);
        drop_nulls(plain);
    } else {
        plain = json_incref(own(given));
    }
    firn_status s = firn_chat_variables(t->ctx, plain, t->tokens.bos, t->tokens.eos, &v);
    json_decref(plain);
    FIRN_TRY(s);
    c->variables = v;
    if (!json_object_get(v, "enable_thinking") && json_object_set_new(v, "enable_thinking", json_true()) != 0)
        s = out_of_memory(t->ctx);
    if (s == FIRN_OK)
        s = read_tools(t, v);
    if (s == FIRN_OK)
        s = read_messages(t, v, keep_reasoning, c);
    if (s != FIRN_OK)
        firn_conversation_free(t->ctx, c);
    return s;
}

void firn_conversation_free(firn_context *ctx, firn_conversation *c)
{
    json_decref(c->variables);
    for (size_t i = 0; i < c->n_marks; i++)
        json_decref(c->marks[i].thought);
    firn_free(ctx, c->marks);
    *c = (firn_conversation){0};
}
