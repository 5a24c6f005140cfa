/* JSON of bytes that may be no text; see json.h. */
#include "json.h"

#include "cmd.h"

#include "core/file.h"
#include "core/utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

json_t *cmd_json_text(const char *bytes, size_t n)
{
    char *utf8 = malloc(3 * n + 1);
    size_t size = 0;

    for (size_t at = 0, width; utf8 && at < n; at += width) {
        uint32_t code;
        width = firn_utf8_decode(bytes + at, n - at, &code);
        const bool good = code != UINT32_MAX;
        memcpy(utf8 + size, good ? bytes + at : "\xef\xbf\xbd", good ? width : 3);
        size += good ? width : 3;
    }
    json_t *text = utf8 ? json_stringn(utf8, size) : NULL;
    free(utf8);
    return text;
}

json_t *cmd_json_read(firn_context *ctx, const char *path)
{
    json_error_t error;
    char *data;
    size_t size;

    if (firn_stream_read(ctx, path, 0, &data, &size) != FIRN_OK)
        return NULL;
    json_t *json = json_loadb(data, size, JSON_REJECT_DUPLICATES, &error);
    firn_free(ctx, data);
    if (!json)
        firn_fail(ctx, FIRN_ERR_FORMAT, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    return json;
}

json_t *cmd_json_file(const char *path)
{
    firn_context *ctx = cmd_context(1);
    json_t *json = ctx ? cmd_json_read(ctx, path) : NULL;

    if (ctx && !json)
        cmd_fail_ctx(ctx);
    firn_context_destroy(ctx);
    return json;
}
