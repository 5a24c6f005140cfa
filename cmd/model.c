/* Models and token ids for the commands; see model.h. */
#include "model.h"

#include "json.h"
#include "said.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool cmd_model_open(cmd_model *m, const cmd_compute *compute, const char *model, const char *adapter)
{
    memset(m, 0, sizeof *m);
    m->ctx = cmd_compute_context(compute);
    if (!m->ctx)
        return false;
    firn_status s = firn_device_open(m->ctx, compute->device ? compute->device : "CPU", &m->device);
    if (s == FIRN_OK)
        s = firn_model_open(m->ctx, model, &m->model);
    if (s == FIRN_OK && adapter)
        s = (compute->force ? firn_adapter_load_forced : firn_adapter_load)(m->ctx, m->model, adapter, &m->adapter);
    for (int i = 0; s == FIRN_OK && firn_model_warning(m->model, i); i++)
        cmd_said_printf(stderr, "firn: warning: %s\n", firn_model_warning(m->model, i));
    if (s == FIRN_OK)
        return true;
    cmd_fail_ctx(m->ctx);
    cmd_model_close(m);
    return false;
}

void cmd_model_close(cmd_model *m)
{
    firn_adapter_destroy(m->adapter);
    firn_model_close(m->model);
    if (m->device)
        firn_device_close(m->device);
    firn_context_destroy(m->ctx);
    memset(m, 0, sizeof *m);
}

/* A list of ids behind what is there. */
static bool append(const char *path, const json_t *list, cmd_sequences *s)
{
    const size_t n = json_array_size(list);
    int32_t *tokens = realloc(s->tokens, ((size_t)s->n_tokens + n + 1) * sizeof *tokens);

    if (tokens)
        s->tokens = tokens;
    int64_t *length = realloc(s->length, ((size_t)s->n + 1) * sizeof *length);
    if (length)
        s->length = length;
    if (!tokens || !length)
        return cmd_fail("out of memory"), false;
    if (n == 0)
        return cmd_fail("%s: sequence %d is empty", path, s->n), false;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(list, i);
        const json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
        if (v < 0 || v > INT32_MAX)
            return cmd_fail("%s: entry %zu of sequence %d is no token id", path, i, s->n), false;
        s->tokens[s->n_tokens++] = (int32_t)v;
    }
    s->length[s->n++] = (int64_t)n;
    if ((int64_t)n > s->longest)
        s->longest = (int64_t)n;
    return true;
}

static bool append_all(const char *path, const json_t *root, cmd_sequences *s)
{
    if (json_is_object(root))
        root = json_object_get(root, "tokens");
    if (!json_is_array(root))
        return cmd_fail("%s: expected a list of token ids, a list of lists, or an object with such under \"tokens\"",
                        path),
               false;
    if (!json_is_array(json_array_get(root, 0)))
        return append(path, root, s);
    for (size_t i = 0; i < json_array_size(root); i++) {
        if (!json_is_array(json_array_get(root, i)))
            return cmd_fail("%s: entry %zu should be a list of token ids, as the first one is", path, i), false;
        if (!append(path, json_array_get(root, i), s))
            return false;
    }
    return true;
}

bool cmd_sequences_read(const char *path, cmd_sequences *s)
{
    json_t *root = cmd_json_file(path);

    memset(s, 0, sizeof *s);
    if (!root)
        return false;
    const bool ok = append_all(path, root, s);
    json_decref(root);
    if (!ok)
        cmd_sequences_free(s);
    return ok;
}

void cmd_sequences_free(cmd_sequences *s)
{
    free(s->length);
    free(s->tokens);
    memset(s, 0, sizeof *s);
}
