#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { OUT_BUFFER = 1 << 20 };

static firn_status fail_errno(firn_context *ctx, const char *what, const char *path)
{
    return firn_fail(ctx, FIRN_ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static firn_status no_file(firn_context *ctx, const char *what, const char *path, mode_t mode)
{
    return firn_fail(ctx, FIRN_ERR_IO, "cannot %s %s: it is %s, not a file", what, path,
                     S_ISDIR(mode) ? "a folder" : "a device or pipe");
}

static firn_status open_regular(firn_context *ctx, const char *path, int *fd, struct stat *st)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return fail_errno(ctx, "open", path);
    if (fstat(*fd, st) < 0) {
        const firn_status s = fail_errno(ctx, "look at", path);
        close(*fd);
        return s;
    }
    if (!S_ISREG(st->st_mode)) {
        close(*fd);
        return no_file(ctx, "read", path, st->st_mode);
    }
    return FIRN_OK;
}

firn_status firn_map_open(firn_context *ctx, const char *path, firn_map *map)
{
    struct stat st;
    int fd;

    *map = (firn_map){0};
    FIRN_TRY(open_regular(ctx, path, &fd, &st));
    if (st.st_size == 0) {
        close(fd);
        return FIRN_OK;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    const firn_status s = p == MAP_FAILED ? fail_errno(ctx, "map", path) : FIRN_OK;
    close(fd);
    if (s == FIRN_OK)
        *map = (firn_map){p, (size_t)st.st_size};
    return s;
}

void firn_map_close(firn_map *map)
{
    if (map->data)
        munmap((void *)map->data, map->size);
    *map = (firn_map){0};
}

/* madvise over the whole pages inside [offset, offset + size) (outward: also the pages that it touches). */
static void advise(const firn_map *map, size_t offset, size_t size, int advice, bool outward)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t from = offset, to = offset + size;

    if (!map->data || offset > map->size || size > map->size - offset)
        return;
    if (outward) {
        from = from / page * page;
    } else {
        from = (from + page - 1) / page * page;
        to = to / page * page;
    }
    if (from < to)
        (void)madvise((uint8_t *)map->data + from, to - from, advice); /* a wish, not a need */
}

void firn_map_will_need(const firn_map *map, size_t offset, size_t size)
{
    advise(map, offset, size, MADV_WILLNEED, true);
}

void firn_map_release(const firn_map *map, size_t offset, size_t size)
{
    advise(map, offset, size, MADV_DONTNEED, false);
}

firn_status firn_file_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size)
{
    struct stat st;
    int fd;

    *data = NULL;
    *size = 0;
    FIRN_TRY(open_regular(ctx, path, &fd, &st));
    const size_t n = (size_t)st.st_size;
    char *bytes = NULL;
    firn_status s = FIRN_OK;
    if (limit && n > limit)
        s = firn_fail(ctx, FIRN_ERR_IO, "%s has %zu bytes, more than the %zu that are read", path, n, limit);
    else if (!(bytes = firn_alloc(ctx, n + 1)))
        s = FIRN_ERR_MEMORY;
    size_t got = 0;
    while (s == FIRN_OK && got < n) {
        const ssize_t r = read(fd, bytes + got, n - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            s = fail_errno(ctx, "read", path);
        else if (r == 0)
            break; /* the file shrank while it was read */
        else
            got += (size_t)r;
    }
    close(fd);
    if (s != FIRN_OK) {
        firn_free(ctx, bytes);
        return s;
    }
    bytes[got] = 0;
    *data = bytes;
    *size = got;
    return FIRN_OK;
}

struct firn_out {
    firn_context *ctx;
    int fd;
    uint64_t offset; /* with what is still buffered */
    size_t buffered;
    firn_status status;
    char *path, *target, *temporary; /* target: what path leads to, where that is a link */
    _Atomic(char *) *listed;         /* where firn_out_discard finds `temporary`; NULL: it does not */
    uint8_t buffer[OUT_BUFFER];
};

/* Temporary files that are being written. Who takes a name out of here owns it. */
static _Atomic(char *) unfinished[8];

static void list(firn_out *out)
{
    for (size_t i = 0; i < sizeof unfinished / sizeof *unfinished && !out->listed; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &none, out->temporary))
            out->listed = &unfinished[i];
    }
}

void firn_out_discard(void)
{
    for (size_t i = 0; i < sizeof unfinished / sizeof *unfinished; i++) {
        char *path = atomic_exchange(&unfinished[i], NULL), *none = NULL;
        if (path)
            unlink(path);
        atomic_compare_exchange_strong(&unfinished[i], &none, path);
    }
}

static void out_free(firn_out *out)
{
    if (out->fd >= 0)
        close(out->fd);
    firn_free(out->ctx, out->path);
    firn_free(out->ctx, out->target);
    if (!out->listed || atomic_exchange(out->listed, NULL))
        firn_free(out->ctx, out->temporary);
    firn_free(out->ctx, out);
}

firn_status firn_out_open(firn_context *ctx, const char *path, firn_out **result)
{
    char target[PATH_MAX];
    struct stat st;

    *result = NULL;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* the rename would put a file in a device's place */
        return no_file(ctx, "write", path, st.st_mode);
    firn_out *out = firn_alloc(ctx, sizeof *out);
    if (!out)
        return FIRN_ERR_MEMORY;
    out->ctx = ctx;
    out->fd = -1;
    out->offset = 0;
    out->buffered = 0;
    out->status = FIRN_OK;
    out->listed = NULL;
    out->path = firn_strdup(ctx, path);
    out->target = firn_strdup(ctx, realpath(path, target) ? target : path);
    const size_t n = out->target ? strlen(out->target) + 32 : 0;
    out->temporary = firn_alloc(ctx, n);
    if (!out->path || !out->target || !out->temporary) {
        out_free(out);
        return FIRN_ERR_MEMORY;
    }
    snprintf(out->temporary, n, "%s.tmp%ld", out->target, (long)getpid());
    out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (out->fd < 0) {
        const firn_status s = fail_errno(ctx, "write", path);
        out_free(out);
        return s;
    }
    list(out);
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
            return out->status = fail_errno(out->ctx, "write", out->path);
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

/* The rename itself must survive a crash too. A file system that cannot sync folders is taken as it is. */
static void sync_parent(const char *path)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;

    if (n >= sizeof folder)
        return;
    memcpy(folder, path, n);
    folder[n] = 0;
    const int fd = open(slash ? (n ? folder : "/") : ".", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

firn_status firn_out_commit(firn_out *out)
{
    firn_status s = out->status == FIRN_OK ? flush(out) : out->status;

    if (s == FIRN_OK && fsync(out->fd) < 0)
        s = fail_errno(out->ctx, "write", out->path);
    if (s == FIRN_OK) {
        const int closed = close(out->fd);
        out->fd = -1;
        if (closed < 0 || rename(out->temporary, out->target) < 0)
            s = fail_errno(out->ctx, "write", out->path);
    }
    if (s == FIRN_OK)
        sync_parent(out->target);
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

firn_status firn_file_space(firn_context *ctx, const char *path, uint64_t *bytes)
{
    char at[4096];
    struct statvfs fs;

    if (strlen(path) >= sizeof at)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", path);
    strcpy(at, path);
    while (statvfs(at[0] ? at : ".", &fs) < 0) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || !at[0])
            return fail_errno(ctx, "look at the file system of", path);
        if (slash == at && at[1])
            at[1] = 0;
        else
            *(slash ? slash : at) = 0;
    }
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return FIRN_OK;
}

firn_status firn_make_folder(firn_context *ctx, const char *path)
{
    char at[4096];
    const size_t n = strlen(path);
    struct stat st;

    if (n == 0 || n >= sizeof at)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot make the folder '%.60s': its name is %s", path,
                         n ? "too long" : "empty");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(at, path, i);
        at[i] = 0;
        if (mkdir(at, 0777) < 0 && errno != EEXIST)
            return fail_errno(ctx, "make the folder", at);
    }
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return firn_fail(ctx, FIRN_ERR_IO, "cannot make the folder %s: a file of that name is there", path);
    return FIRN_OK;
}
