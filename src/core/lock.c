#include "core/lock.h"

#include "core/file.h"
#include "core/leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HOST_BYTES = 256 };

struct firn_lock {
    firn_context *ctx;
    char *path;
    int fd, place; /* of path among the leftovers */
};

typedef struct {
    long pid; /* 0: it has not said yet */
    char host[HOST_BYTES];
} holder;

static holder this_process(void)
{
    holder h = {.pid = (long)getpid()};

    if (gethostname(h.host, sizeof h.host - 1) < 0 || !h.host[0])
        snprintf(h.host, sizeof h.host, "?");
    return h;
}

static holder read_holder(int fd)
{
    char text[HOST_BYTES + 32];
    holder h = {0};
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);

    if (n > 0) {
        text[n] = 0;
        if (sscanf(text, "%ld %255s", &h.pid, h.host) != 2 || h.pid < 1)
            h.pid = 0;
        for (char *c = h.host; *c; c++) /* whoever can write the folder could have written this */
            if (*c <= ' ' || *c > '~')
                *c = '?';
    }
    return h;
}

static void write_holder(int fd)
{
    const holder me = this_process();
    char text[HOST_BYTES + 32];
    const int n = snprintf(text, sizeof text, "%ld %s\n", me.pid, me.host);

    /* On a full disk it stays empty: the lock holds all the same, and only the name is missing from the sentence. */
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) < n)
        return;
}

static firn_status refuse(firn_context *ctx, int fd, const char *path, bool folder)
{
    const holder me = this_process();
    holder h = read_holder(fd);
    char who[HOST_BYTES + 64] = "another process";

    for (int tries = 0; h.pid == 0 && tries < 20; tries++) { /* it holds the lock, and is about to write its name */
        usleep(1000);
        h = read_holder(fd);
    }
    if (h.pid)
        snprintf(who, sizeof who, "process %ld%s%s", h.pid, strcmp(h.host, me.host) ? " on " : "",
                 strcmp(h.host, me.host) ? h.host : "");
    return firn_fail(ctx, FIRN_ERR_IO,
                     folder ? "%s is being written by %s: wait until that ends, or take another folder"
                            : "cannot write %s: %s is writing it",
                     path, who);
}

typedef enum { HELD, TAKEN_BY_ANOTHER, GONE, FAILED } attempt;

/* The file of that name is the one that is open. */
static bool is_still(const char *path, int fd)
{
    struct stat mine, there;

    return fstat(fd, &mine) == 0 && stat(path, &there) == 0 && there.st_ino == mine.st_ino &&
           there.st_dev == mine.st_dev;
}

static attempt try_lock(int fd, const char *path)
{
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EINTR)
            continue;
        if (errno == EWOULDBLOCK)
            return TAKEN_BY_ANOTHER;
        /* no locks on this file system */
        const holder h = read_holder(fd), me = this_process();
        if (h.pid == 0)
            break;
        if (strcmp(h.host, me.host) == 0 && (h.pid == me.pid || (kill((pid_t)h.pid, 0) < 0 && errno != EPERM)))
            break; /* left by one that died */
        return TAKEN_BY_ANOTHER;
    }
    /* The holder before may have removed the file between open and flock: then this one locks nothing. */
    return is_still(path, fd) ? HELD : GONE;
}

/* Opens the file and locks it; *fd is open where it was tried. */
static attempt open_and_lock(const char *file, int *fd)
{
    attempt a = GONE;

    while (a == GONE) {
        *fd = firn_open(file, O_RDWR | O_CREAT, 0666);
        a = *fd < 0 ? FAILED : try_lock(*fd, file);
        if (a == GONE)
            close(*fd);
    }
    return a;
}

static firn_status take(firn_context *ctx, const char *path, bool folder, const char *at, const char *name,
                        firn_lock **result)
{
    const size_t n = strlen(at) + strlen(name) + 1;

    *result = NULL;
    firn_lock *lock = firn_alloc(ctx, sizeof *lock);
    char *file = firn_alloc(ctx, n);
    if (!lock || !file) {
        firn_free(ctx, lock);
        firn_free(ctx, file);
        return FIRN_ERR_MEMORY;
    }
    snprintf(file, n, "%s%s", at, name);
    *lock = (firn_lock){.ctx = ctx, .path = file, .fd = -1};
    const attempt a = open_and_lock(file, &lock->fd);
    firn_status s = FIRN_OK;
    if (a == FAILED)
        s = firn_fail(ctx, FIRN_ERR_IO, folder ? "cannot write into %s: %s" : "cannot write %s: %s", path,
                      strerror(errno));
    else if (a == TAKEN_BY_ANOTHER)
        s = refuse(ctx, lock->fd, path, folder);
    if (s != FIRN_OK) {
        if (lock->fd >= 0)
            close(lock->fd);
        firn_free(ctx, file);
        firn_free(ctx, lock);
        return s;
    }
    lock->place = firn_leftover_list(file); /* not before it is ours to remove */
    write_holder(lock->fd);
    *result = lock;
    return FIRN_OK;
}

firn_status firn_lock_folder(firn_context *ctx, const char *folder, firn_lock **lock)
{
    return take(ctx, folder, true, folder, "/firn.lock", lock);
}

firn_status firn_lock_file(firn_context *ctx, const char *path, const char *target, firn_lock **lock)
{
    return take(ctx, path, false, target, ".lock", lock);
}

firn_status firn_lock_keep(firn_lock *lock, const char *folder)
{
    int fd;

    if (!lock || is_still(lock->path, lock->fd))
        return FIRN_OK;
    const attempt a = open_and_lock(lock->path, &fd);
    if (a == FAILED) /* as where the folder went: who writes there next finds it out */
        return FIRN_OK;
    if (a == TAKEN_BY_ANOTHER) {
        const firn_status s = refuse(lock->ctx, fd, folder, true);
        close(fd);
        return s;
    }
    close(lock->fd);
    lock->fd = fd;
    write_holder(fd);
    return FIRN_OK;
}

void firn_lock_drop(firn_lock *lock)
{
    if (!lock)
        return;
    if (is_still(lock->path, lock->fd)) /* not another's */
        unlink(lock->path);
    close(lock->fd);
    if (firn_leftover_unlist(lock->place))
        firn_free(lock->ctx, lock->path);
    firn_free(lock->ctx, lock);
}
