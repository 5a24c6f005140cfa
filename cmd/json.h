/* JSON of bytes that may be no text. */
#ifndef FIRN_CMD_JSON_H
#define FIRN_CMD_JSON_H

#include <jansson.h>

/* A JSON string is UTF-8: U+FFFD for each byte that is not, as where a limit cut the last character. NULL: memory was
 * short. */
json_t *cmd_json_text(const char *bytes, size_t n);

#endif
