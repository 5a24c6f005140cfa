/* What commands print of a file: tamed (core/utf8.h), so that no file steers a terminal. */
#ifndef FIRN_CMD_SAID_H
#define FIRN_CMD_SAID_H

#include "core/context.h"

#include <stdio.h>

/* A text that comes in pieces, which may end inside of a character. */
typedef struct {
    char rest[4];
    size_t n;
} cmd_said;

/* Tamed; the bytes of a character that is not complete wait for the next piece. */
void cmd_said_put(cmd_said *said, FILE *out, const char *bytes, size_t n);
/* What waits for no more. */
void cmd_said_end(cmd_said *said, FILE *out);
/* A whole text. */
void cmd_said_all(FILE *out, const char *bytes, size_t n);
/* To standard output: exactly, but tamed where that is a terminal. */
void cmd_put(const char *bytes, size_t n);
/* printf, tamed. */
void cmd_said_printf(FILE *out, const char *format, ...) FIRN_PRINTF(2, 3);
void cmd_said_vprintf(FILE *out, const char *format, va_list args);

#endif
