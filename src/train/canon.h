/* One form for lines of all formats. What data sets hold comes in the shapes that the tools around it have (OpenAI,
 * TRL, axolotl, LLaMA-Factory, ShareGPT, Stanford's Alpaca); the rest of firn knows these four:
 *
 *     {"messages": [{"role": ..., "content": ...}, ...], ...}    other keys stay, for the chat template
 *     {"prompt": "...", "completion": "..."}
 *     {"text": "..."}
 *     {"input_ids": [...], "labels": [...]}                      labels: -100 where nothing is trained; may be missing
 *
 * A preference pair gives two of them. Messages keep what they say as it came (text, parts, calls); only their names
 * are brought to one form: from/value to role/content, roles to system, developer, user, assistant, tool. */
#ifndef FIRN_TRAIN_CANON_H
#define FIRN_TRAIN_CANON_H

#include "train/jsonl.h"

typedef enum {
    FIRN_FORMAT_AUTO,
    FIRN_FORMAT_CHAT,       /* messages */
    FIRN_FORMAT_SHAREGPT,   /* conversations */
    FIRN_FORMAT_ALPACA,     /* instruction, output; input, system, history */
    FIRN_FORMAT_COMPLETION, /* prompt, completion: texts, or lists of messages */
    FIRN_FORMAT_TEXT,       /* text, or a file that is plain text */
    FIRN_FORMAT_TOKENS,     /* input_ids; labels or a mask */
    FIRN_FORMAT_CSV,        /* rows; what they are is found by the header */
    FIRN_FORMAT_PREFERENCE, /* chosen, rejected; prompt */
    FIRN_FORMATS
} firn_data_format;

const char *firn_data_format_name(firn_data_format format); /* "chat" */
firn_status firn_data_format_from_name(firn_context *ctx, const char *name, firn_data_format *format);

typedef struct {
    firn_data_format format;
    const char *const *fields; /* "messages=dialog": what firn calls messages is called dialog here */
    int n_fields;
    bool (*knows_role)(void *user, const char *role); /* the chat template does; NULL: it knows no others */
    void *user;
} firn_canon_options;

typedef struct {
    firn_data_format format;   /* what the line turned out to be; never AUTO or CSV */
    json_t *object, *rejected; /* the caller's (json_decref); rejected: of a preference pair only */
} firn_example;

/* Whether every field is NAME=OTHER with a NAME that firn has. */
firn_status firn_canon_check(firn_context *ctx, const firn_canon_options *options);
/* `object` is the record that `lines` gave last; it is changed. */
firn_status firn_canon(const firn_jsonl *lines, const firn_canon_options *options, json_t *object,
                       firn_example *example);
/* What the data calls a key of firn's: "dialog" for messages with messages=dialog. */
const char *firn_canon_key(const firn_canon_options *options, const char *name);
void firn_example_clear(firn_example *example);

#endif
