/* What a person may have meant by an option, a command or a name that is not there. */
#ifndef FIRN_CMD_SUGGEST_H
#define FIRN_CMD_SUGGEST_H

#include "cmd.h"

/* The spelling of the option that `word` ("--lr") may mean, among those of the command: by the names that other tools
 * have for it, else by nearness. NULL: none. It lives until the next call. */
const char *cmd_suggest_option(const cmd_option *options, const char *word, size_t n);

#endif
