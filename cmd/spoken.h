/* What tokenize and detokenize start from: a model's tokenizer, and a text from the command line or a file. */
#ifndef FIRN_CMD_SPOKEN_H
#define FIRN_CMD_SPOKEN_H

#include "text/tokenizer.h"

typedef struct {
    firn_gguf *gguf;
    firn_tokenizer *tok;
    char *content; /* of the file; NULL without one */
    const char *text;
    size_t size;
} cmd_spoken;

/* `file` NULL: `text` is what is taken. Closed with cmd_spoken_close, after a failure too. */
firn_status cmd_spoken_open(firn_context *ctx, const char *model, const char *text, const char *file, cmd_spoken *s);
void cmd_spoken_close(firn_context *ctx, cmd_spoken *s);

#endif
