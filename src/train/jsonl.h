/* The records of a data file, one at a time, with errors that point: "file:line:column: what was expected". A record is
 *
 *     JSON lines     an object on each line (https://jsonlines.org)
 *     a JSON array   an object of [ {...}, ... ], over as many lines as it takes; objects without the brackets too
 *     CSV            a row (RFC 4180; commas, semicolons or tabs), its fields as strings under the header's names
 *     text           a stretch of a plain text of at most FIRN_TEXT_BYTES that ends at a line break, as {"text": ...}
 *
 * The file is read as it goes; no more of it than a record is in memory. */
#ifndef FIRN_TRAIN_JSONL_H
#define FIRN_TRAIN_JSONL_H

#include "core/buffer.h"
#include "core/file.h"

#include <jansson.h>

enum {
    FIRN_LINE_BYTES = 64 << 20, /* a longer record is refused: it is not a sample, but a file of another kind */
    FIRN_TEXT_BYTES = 1 << 20,
    FIRN_LOST_KEYS = 8
};

typedef enum { FIRN_RECORDS_LINES, FIRN_RECORDS_ARRAY, FIRN_RECORDS_CSV, FIRN_RECORDS_TEXT } firn_records;

/* A number that no 64 bits hold, or NaN, under a key: the key was left out of the object. */
typedef struct {
    size_t key, n_key, number; /* offsets in the record's text, the key without its quotes */
} firn_lost;

struct firn_source;

typedef struct {
    firn_context *ctx;
    const char *name; /* for errors; the caller keeps it */
    firn_records records;
    struct firn_source *source; /* NULL: everything is in data */
    firn_map map;               /* of firn_jsonl_open */
    char *buffer;               /* data, where it is ours */
    const char *data;           /* [offset, size) is still to be given */
    size_t size, offset, capacity;
    bool ended;       /* nothing is to come behind data */
    bool begun, done; /* an array's "[" was seen; nothing more can be given */
    bool bare;        /* objects that follow each other without brackets */
    char separator;   /* CSV */
    json_t *names;    /* CSV: the header */
    int64_t next;     /* line of `offset`, from 1 */
    size_t here;      /* characters before `offset` on its line, in an array */
    size_t column;    /* characters before the record on its line */
    int64_t line;     /* where the record that firn_jsonl_next gave last begins, from 1 */
    const char *text; /* its bytes, without the end of line; until the next call */
    size_t n;
    firn_lost lost[FIRN_LOST_KEYS];
    int n_lost;
} firn_jsonl;

/* JSON lines of a file; of one, a pipe or standard input (core/file.h); of memory that the caller keeps. */
firn_status firn_jsonl_open(firn_context *ctx, const char *path, firn_jsonl *lines);
firn_status firn_jsonl_stream(firn_context *ctx, const char *path, firn_jsonl *lines);
void firn_jsonl_parse(firn_context *ctx, const char *name, const void *data, size_t size, firn_jsonl *lines);
/* Records of a source, which the caller closes after them. `records`: what they are; -1: found by looking at the first
 * bytes and, for CSV and text, at the name's ending. */
firn_status firn_jsonl_begin(firn_context *ctx, const char *name, struct firn_source *source, int records,
                             firn_jsonl *lines);
void firn_jsonl_close(firn_jsonl *lines);

/* The next object; NULL at the end. Blank lines are passed over. The caller owns it (json_decref). */
firn_status firn_jsonl_next(firn_jsonl *lines, json_t **object);
/* Whether, after a bad record, those behind it can be found. */
bool firn_jsonl_goes_on(const firn_jsonl *lines);

/* Fails with "file:line:column: " and the sentence. The column is that of the value at `key` of the record's object;
 * with index >= 0 of that element of it; with `sub` of that element's value at `sub`. Where a part is missing, the
 * nearest one around it is shown. key NULL: the object itself. Records that are no JSON have no columns. */
firn_status firn_jsonl_fail(const firn_jsonl *lines, const char *key, int64_t index, const char *sub,
                            const char *format, ...) FIRN_PRINTF(5, 6);
/* The same at a byte of the record. */
firn_status firn_jsonl_fail_byte(const firn_jsonl *lines, size_t offset, const char *format, ...) FIRN_PRINTF(3, 4);

/* ---- for csv.c ---- */

/* Makes at least one byte more be in data behind what is there, moving it; false in *more at the end. */
firn_status firn_jsonl_more(firn_jsonl *lines, bool *more);
/* A row as an object; NULL at the end. */
firn_status firn_csv_next(firn_jsonl *lines, json_t **object);

/* ---- python_json.c ---- */

/* Reads the record's text as JSON. What Python writes and JSON does not have (NaN, Infinity, integers past 64 bits) is
 * left out with its key of the object, and listed in lines->lost. */
json_t *firn_json_load(firn_jsonl *lines, json_error_t *error);

#endif
