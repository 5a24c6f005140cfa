/* Any bytes as the file of a data set: plain, gzip or zstd, as JSON lines, an array, CSV or text, found by looking or
 * named by the first byte. Records come out in order, or a sentence, never more; every record brought to one form keeps
 * the promises of train/canon.h. */
#include "train/canon.h"
#include "train/source.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(bool good)
{
    if (!good)
        abort();
}

static bool is_message(const json_t *m)
{
    const json_t *content = json_object_get(m, "content");

    return json_is_string(json_object_get(m, "role")) &&
           (!content || json_is_string(content) || json_is_array(content) || json_is_null(content));
}

static void check_object(const json_t *o)
{
    const json_t *messages = json_object_get(o, "messages"), *message, *ids = json_object_get(o, "input_ids");
    size_t i;

    if (messages) {
        expect(json_is_array(messages));
        json_array_foreach(messages, i, message)
        {
            expect(is_message(message));
        }
    } else if (ids) {
        expect(json_is_array(ids));
        expect(!json_object_get(o, "labels") || json_array_size(json_object_get(o, "labels")) == json_array_size(ids));
    } else if (!json_is_string(json_object_get(o, "text"))) {
        expect(json_is_string(json_object_get(o, "prompt")) && json_is_string(json_object_get(o, "completion")));
    }
}

static void read_all(firn_context *ctx, firn_jsonl *lines, firn_data_format format)
{
    static const char *const fields[] = {"messages=m", "content=c"};
    const firn_canon_options options = {.format = format, .fields = fields, .n_fields = format ? 0 : 2};
    json_t *object;
    int64_t line = 0;
    firn_example e;

    for (int bad = 0; bad < 8;) {
        const firn_status s = firn_jsonl_next(lines, &object);
        if (s == FIRN_OK && !object)
            return;
        if (s != FIRN_OK) {
            expect(!object && firn_error(ctx)[0]);
            if (!firn_jsonl_goes_on(lines))
                return;
            bad++;
            continue;
        }
        expect(lines->line >= line && lines->line > 0 && lines->n <= lines->size);
        line = lines->line;
        if (firn_canon(lines, &options, object, &e) == FIRN_OK) {
            check_object(e.object);
            if (e.rejected)
                check_object(e.rejected);
            expect((e.format == FIRN_FORMAT_PREFERENCE) == (e.rejected != NULL));
        } else
            expect(!e.object && !e.rejected && firn_error(ctx)[0]);
        firn_example_clear(&e);
        json_decref(object);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"d", "d.jsonl", "d.csv", "d.txt"};
    firn_context *ctx = firn_context_create(&(firn_context_params){.n_threads = 1});
    const unsigned how = size ? data[0] : 0;
    firn_source *source;
    firn_jsonl lines;

    if (size && firn_source_memory(ctx, data + 1, size - 1, names[how % 4], &source) == FIRN_OK) {
        if (firn_jsonl_begin(ctx, names[how % 4], source, (int)(how / 4 % 5) - 1, &lines) == FIRN_OK) {
            read_all(ctx, &lines, (firn_data_format)(how / 20 % FIRN_FORMATS));
            firn_jsonl_close(&lines);
        }
        firn_source_close(source);
    }
    firn_context_destroy(ctx);
    return 0;
}
