/* Things by their names in one text, "cosine|linear|constant": what a table of rows gives options and errors. */
#ifndef FIRN_TRAIN_NAMED_H
#define FIRN_TRAIN_NAMED_H

#include "core/context.h"

/* Which of the names it is; -1: none. */
int firn_name_index(const char *name, const char *names);
/* Fails with "there is no <what> '<name>': expected cosine, linear or constant". */
firn_status firn_not_named(firn_context *ctx, const char *what, const char *name, const char *names);

#endif
