/* JSON of bytes that may be no text; see json.h. */
#include "json.h"

#include "text/unicode.h"

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
