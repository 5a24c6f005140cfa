/* What the commands that compute with a model share: opening one, token ids from JSON. */
#ifndef FIRN_CMD_MODEL_H
#define FIRN_CMD_MODEL_H

#include "cmd.h"
#include "firn/model.h"

typedef struct {
    firn_context *ctx;
    firn_device *device;
    firn_model *model;
    firn_adapter *adapter; /* NULL when no path was given */
} cmd_model;

/* Opens all four; adapter may be NULL. Prints and returns false on failure. */
bool cmd_model_open(cmd_model *m, const cmd_compute *compute, const char *model, const char *adapter);
void cmd_model_close(cmd_model *m);

/* Sequences of token ids, one behind the other. */
typedef struct {
    int n;
    int64_t *length; /* [n] */
    int32_t *tokens;
    int64_t n_tokens, longest;
} cmd_sequences;

/* From a JSON file: a list of ids, a list of lists, or an object with such under "tokens". Prints and returns false on
 * failure. */
bool cmd_sequences_read(const char *path, cmd_sequences *sequences);
void cmd_sequences_free(cmd_sequences *sequences);

#endif
