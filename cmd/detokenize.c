/* firn detokenize: a JSON array of ids to the text they stand for. */
#include "cmd.h"
#include "said.h"
#include "spoken.h"

#include <jansson.h>

/* The ids of a JSON array of whole numbers, to be freed with firn_free. */
static firn_status read_ids(firn_context *ctx, const char *text, size_t size, int32_t **ids, size_t *n)
{
    json_error_t error;
    json_t *root = json_loadb(text, size, 0, &error), *item;
    size_t i;
    firn_status status = FIRN_OK;

    if (!json_is_array(root)) {
        status = root ? firn_fail(ctx, FIRN_ERR_FORMAT, "expected a JSON array of token ids")
                      : firn_fail(ctx, FIRN_ERR_FORMAT, "expected a JSON array of token ids: line %d column %d: %s",
                                  error.line, error.column, error.text);
        json_decref(root);
        return status;
    }
    *n = json_array_size(root);
    *ids = firn_alloc(ctx, *n * sizeof **ids);
    status = *ids ? FIRN_OK : FIRN_ERR_MEMORY;
    json_array_foreach(root, i, item)
    {
        const json_int_t id = json_integer_value(item);
        if (status != FIRN_OK)
            break;
        if (!json_is_integer(item) || id < INT32_MIN || id > INT32_MAX)
            status = firn_fail(ctx, FIRN_ERR_FORMAT, "element %zu of the array is not a token id", i);
        else
            (*ids)[i] = (int32_t)id;
    }
    json_decref(root);
    return status;
}

int cmd_detokenize(int argc, char **argv)
{
    const char *file = NULL;
    const cmd_option options[] = {
        {"--file", 's', &file, "F", "read the ids from this file", 0, 0},
        {0},
    };
    const cmd_spec spec = {
        .usage = "firn detokenize MODEL IDS|--file F",
        .about = "Writes the text of a JSON array of ids, as firn tokenize prints it: exactly its bytes, without a\n"
                 "newline. Control tokens are written as their text.",
        .options = options,
        .min_args = 1,
        .max_args = 2,
    };
    int n, status;

    if (!cmd_parse(&spec, argc, argv, &n, &status))
        return status;
    if ((n == 2) == (file != NULL))
        return cmd_usage("detokenize", "expected ids or --file F, %s", file ? "not both" : "got neither");

    firn_context *ctx = cmd_context(1);
    if (!ctx)
        return 1;
    cmd_spoken in;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    firn_text text;
    firn_text_init(&text, ctx, 0);
    firn_status done = cmd_spoken_open(ctx, argv[1], argv[2], file, &in);
    if (done == FIRN_OK)
        done = read_ids(ctx, in.text, in.size, &ids, &n_ids);
    if (done == FIRN_OK)
        done = firn_detokenize(ctx, in.tok, ids, n_ids, &text);
    if (done == FIRN_OK && text.size)
        cmd_put(text.data, text.size);
    status = done == FIRN_OK ? 0 : cmd_fail_ctx(ctx);
    firn_text_free(&text);
    firn_free(ctx, ids);
    cmd_spoken_close(ctx, &in);
    firn_context_destroy(ctx);
    return status;
}
