/* Files that are written whole or not at all; see file.h. */
#include "core/file.h"
#include "core/leftover.h"
#include "core/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OUT_BUFFER = 1 << 20 };

struct firn_out {
    firn_context *ctx;
    int fd;
    uint64_t offset; /* with what is still buffered */
    size_t buffered;
    firn_status status;
    char *path, *target, *temporary; /* target: what path leads to, where that is a link */
    int place;                       /* of `temporary` among the leftovers */
    firn_lock *lock;
    uint8_t buffer[OUT_BUFFER];
};

static const char mark[] = ".tmp";

/* Removes `base`.tmp<digits> from a folder. */
static void sweep(const char *target)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(target, '/'), *base = slash ? slash + 1 : target;
    const size_t n = slash ? (size_t)(slash - target) : 0, length = strlen(base);

    if (n >= sizeof folder)
        return;
    memcpy(folder, target, n);
    folder[n] = 0;
    DIR *dir = opendir(slash ? (n ? folder : "/") : ".");
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const char *rest = e->d_name + length;
        if (strncmp(e->d_name, base, length) == 0 && strncmp(rest, mark, sizeof mark - 1) == 0 &&
            rest[sizeof mark - 1] && !rest[sizeof mark - 1 + strspn(rest + sizeof mark - 1, "0123456789")])
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
    if (dir)
        closedir(dir);
}

firn_status firn_out_sweep(firn_context *ctx, const char *path)
{
    char target[PATH_MAX];
    firn_lock *lock;

    if (!realpath(path, target))
        snprintf(target, sizeof target, "%s", path);
    const firn_status s = firn_lock_file(ctx, path, target, &lock);
    if (s != FIRN_OK) /* it is being written, or cannot be */
        return s == FIRN_ERR_MEMORY ? s : FIRN_OK;
    sweep(target);
    firn_lock_drop(lock);
    return FIRN_OK;
}

static void out_free(firn_out *out)
{
    if (out->fd >= 0)
        close(out->fd);
    firn_free(out->ctx, out->path);
    firn_free(out->ctx, out->target);
    if (firn_leftover_unlist(out->place))
        firn_free(out->ctx, out->temporary);
    firn_lock_drop(out->lock);
    firn_free(out->ctx, out);
}

firn_status firn_out_open(firn_context *ctx, const char *path, firn_out **result)
{
    char target[PATH_MAX];
    struct stat st;

    *result = NULL;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in a device's place */
        return firn_no_file(ctx, "write", path, st.st_mode);
    firn_out *out = firn_alloc(ctx, sizeof *out);
    if (!out)
        return FIRN_ERR_MEMORY;
    out->ctx = ctx;
    out->fd = -1;
    out->offset = 0;
    out->buffered = 0;
    out->status = FIRN_OK;
    out->place = -1;
    out->lock = NULL;
    out->path = firn_strdup(ctx, path);
    out->target = firn_strdup(ctx, realpath(path, target) ? target : path);
    const size_t n = out->target ? strlen(out->target) + 32 : 0;
    out->temporary = firn_alloc(ctx, n);
    if (!out->path || !out->target || !out->temporary) {
        out_free(out);
        return FIRN_ERR_MEMORY;
    }
    firn_status s = firn_lock_file(ctx, path, out->target, &out->lock);
    if (s == FIRN_OK) {
        sweep(out->target);
        snprintf(out->temporary, n, "%s%s%ld", out->target, mark, (long)getpid());
        out->place = firn_leftover_list(out->temporary);
        out->fd = firn_open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (out->fd < 0)
            s = firn_fail_errno(ctx, "write", path);
    }
    if (s != FIRN_OK) {
        out_free(out);
        return s;
    }
    *result = out;
    return FIRN_OK;
}

static firn_status write_all(firn_out *out, const uint8_t *data, size_t size)
{
    while (size) {
        const ssize_t w = write(out->fd, data, size);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return out->status = firn_fail_errno(out->ctx, "write", out->path);
        data += w;
        size -= (size_t)w;
    }
    return FIRN_OK;
}

static firn_status flush(firn_out *out)
{
    const size_t n = out->buffered;

    out->buffered = 0;
    return write_all(out, out->buffer, n);
}

firn_status firn_out_write(firn_out *out, const void *data, size_t size)
{
    FIRN_TRY(out->status);
    out->offset += size;
    if (size > OUT_BUFFER - out->buffered)
        FIRN_TRY(flush(out));
    if (size >= OUT_BUFFER)
        return write_all(out, data, size);
    if (size)
        memcpy(out->buffer + out->buffered, data, size);
    out->buffered += size;
    return FIRN_OK;
}

uint64_t firn_out_offset(const firn_out *out)
{
    return out->offset;
}

void firn_sync_parent(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;

    if (n >= sizeof folder)
        return;
    memcpy(folder, path, n);
    folder[n] = 0;
    const int fd = firn_open(slash ? (n ? folder : "/") : ".", O_RDONLY, 0);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

firn_status firn_out_commit(firn_out *out)
{
    firn_status s = out->status == FIRN_OK ? flush(out) : out->status;

    if (s == FIRN_OK)
        s = firn_maps_check(out->ctx); /* nothing is written that was computed from what could not be read */
    if (s == FIRN_OK && fsync(out->fd) < 0)
        s = firn_fail_errno(out->ctx, "write", out->path);
    if (s == FIRN_OK) {
        const int closed = close(out->fd);
        out->fd = -1;
        if (closed < 0 || rename(out->temporary, out->target) < 0)
            s = firn_fail_errno(out->ctx, "write", out->path);
    }
    if (s == FIRN_OK)
        firn_sync_parent(out->target);
    else
        unlink(out->temporary);
    out_free(out);
    return s;
}

void firn_out_abort(firn_out *out)
{
    if (!out)
        return;
    unlink(out->temporary);
    out_free(out);
}

firn_status firn_file_write(firn_context *ctx, const char *path, const void *data, size_t size)
{
    firn_out *out;

    FIRN_TRY(firn_out_open(ctx, path, &out));
    firn_out_write(out, data, size);
    return firn_out_commit(out);
}
