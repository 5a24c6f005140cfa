/* Completion of command lines: one answer for every shell (cmake/firn-completion.bash, _firn.zsh, firn.fish).
 *
 *     firn --complete WORD...     the words behind "firn", the last one being typed (perhaps empty)
 *
 * prints a line for each word that may stand there and begins so, with a tab and a short text behind it where there is
 * one; nothing where a file is to be named. */
#ifndef FIRN_CMD_COMPLETE_H
#define FIRN_CMD_COMPLETE_H

#include "cmd.h"

/* While a command line is completed cmd_parse prints what could follow, and returns false with status 0. */
extern bool cmd_completing;
void cmd_complete(const cmd_spec *spec, int argc, char **argv);
/* Prints `word` if it begins with `typed`; about may be NULL. */
void cmd_complete_word(const char *word, const char *typed, const char *about);

#endif
