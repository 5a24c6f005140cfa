/* JSON of bytes that may be no text, and of files. */
#ifndef FIRN_CMD_JSON_H
#define FIRN_CMD_JSON_H

#include "core/context.h"

#include <jansson.h>

/* A JSON string is UTF-8: U+FFFD for each byte that is not, as where a limit cut the last character. NULL: memory was
 * short. */
json_t *cmd_json_text(const char *bytes, size_t n);
/* The JSON of a file, of a pipe or of "-"; NULL with the context's sentence set. */
json_t *cmd_json_read(firn_context *ctx, const char *path);
/* The same where there is no context yet; NULL after a printed sentence. */
json_t *cmd_json_file(const char *path);

#endif
