/* Files that nobody should find when this process ends: temporary files and locks. A signal handler removes them; what
 * SIGKILL leaves, the next writer of the same file does. */
#ifndef FIRN_CORE_LEFTOVER_H
#define FIRN_CORE_LEFTOVER_H

#include <stdbool.h>

/* Lists a path, which stays the caller's; where it is listed, -1 when too many are (it is then not removed). A file
 * that is about to be made is listed first, so that no signal finds it unlisted. */
int firn_leftover_list(char *path);
/* False: a handler holds the path at this moment, and the caller must not free it. */
bool firn_leftover_unlist(int place);
/* Unlinks what is listed. For the handler of a signal that ends the process: async-signal-safe. */
void firn_leftovers_remove(void);

#endif
