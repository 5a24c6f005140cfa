/* Locks: one writer at a time for a folder and for a file that is being replaced. A second is refused at once, with a
 * sentence that names the first.
 *
 * A lock is a file, DIR/firn.lock or FILE.lock, held with flock(2): the system lets it go when the holder ends, however
 * it ends, so a lock file that a killed process leaves hinders nobody. Over NFS Linux turns flock into a lock on the
 * server, which other machines see. A file system that knows no locks is taken at what the lock file says: "PID HOST"
 * of a process that lives, or of another machine, is believed. */
#ifndef FIRN_CORE_LOCK_H
#define FIRN_CORE_LOCK_H

#include "core/context.h"

typedef struct firn_lock firn_lock;

/* The folder must exist. */
firn_status firn_lock_folder(firn_context *ctx, const char *folder, firn_lock **lock);
/* `path` is the name in sentences, `target` the file itself, where path is a link to it. */
firn_status firn_lock_file(firn_context *ctx, const char *path, const char *target, firn_lock **lock);
/* Takes the lock of a folder again where its file is not there any more, as when the folder was moved away or a clean-up
 * removed the file; fails where another process has taken it since. NULL is fine. */
firn_status firn_lock_keep(firn_lock *lock, const char *folder);
/* Removes the lock file. NULL is fine. */
void firn_lock_drop(firn_lock *lock);

#endif
