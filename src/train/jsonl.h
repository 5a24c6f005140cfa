/* JSON lines: one object a line, read one at a time, with errors that point: "file:line:column: what was expected". */
#ifndef FIRN_TRAIN_JSONL_H
#define FIRN_TRAIN_JSONL_H

#include "core/file.h"

#include <jansson.h>

enum { FIRN_LINE_BYTES = 64 << 20 }; /* a longer line is refused: it is not a sample, but a file of another kind */

typedef struct {
    firn_context *ctx;
    const char *name; /* for errors; the caller keeps it */
    firn_map map;     /* of firn_jsonl_open */
    const char *data;
    size_t size, offset;
    int64_t line;     /* of the object that firn_jsonl_next gave last, from 1 */
    const char *text; /* its bytes, without the end of line */
    size_t n;
} firn_jsonl;

firn_status firn_jsonl_open(firn_context *ctx, const char *path, firn_jsonl *lines);
/* The same from memory that the caller keeps. */
void firn_jsonl_parse(firn_context *ctx, const char *name, const void *data, size_t size, firn_jsonl *lines);
void firn_jsonl_close(firn_jsonl *lines);

/* The next object; NULL at the end. Blank lines are passed over. The caller owns it (json_decref). */
firn_status firn_jsonl_next(firn_jsonl *lines, json_t **object);

/* Fails with "file:line:column: " and the sentence. The column is that of the value at `key` of the line's object; with
 * index >= 0 of that element of it; with `sub` of that element's value at `sub`. Where a part is missing, the nearest
 * one around it is shown. key NULL: the object itself. */
firn_status firn_jsonl_fail(const firn_jsonl *lines, const char *key, int64_t index, const char *sub,
                            const char *format, ...) FIRN_PRINTF(5, 6);

#endif
