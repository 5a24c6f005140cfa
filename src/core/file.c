#include "core/file.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

firn_status firn_fail_errno(firn_context *ctx, const char *what, const char *path)
{
    return firn_fail(ctx, FIRN_ERR_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

firn_status firn_expect_utf8_name(firn_context *ctx, const char *name)
{
    size_t bad;

    return firn_utf8_valid(name, strlen(name), &bad)
               ? FIRN_OK
               : firn_fail(ctx, FIRN_ERR_IO,
                           "the name %s is not UTF-8 (from its byte %zu on), and run.json cannot hold it", name, bad);
}

int firn_open(const char *path, int flags, mode_t mode)
{
    int fd = open(path, flags | O_CLOEXEC, mode);

    if (fd >= 0 && fd <= STDERR_FILENO) {
        const int higher = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
        close(fd);
        fd = higher;
        errno = error;
    }
    return fd;
}

firn_status firn_no_file(firn_context *ctx, const char *what, const char *path, mode_t mode)
{
    return firn_fail(ctx, FIRN_ERR_IO, "cannot %s %s: it is %s, not a file", what, path,
                     S_ISDIR(mode)                      ? "a folder"
                     : S_ISFIFO(mode) || S_ISSOCK(mode) ? "a pipe"
                                                        : "a device");
}

/* The one place where inputs are opened: O_NONBLOCK, since opening a pipe that nobody writes would wait for ever. */
static firn_status open_input(firn_context *ctx, const char *path, int *fd, struct stat *st)
{
    *fd = firn_open(path, O_RDONLY | O_NONBLOCK, 0);
    if (*fd < 0)
        return firn_fail_errno(ctx, "open", path);
    if (fstat(*fd, st) < 0) {
        const firn_status s = firn_fail_errno(ctx, "look at", path);
        close(*fd);
        return s;
    }
    return FIRN_OK;
}

firn_status firn_open_regular(firn_context *ctx, const char *path, int *fd, struct stat *st)
{
    FIRN_TRY(open_input(ctx, path, fd, st));
    if (!S_ISREG(st->st_mode)) {
        close(*fd);
        return firn_no_file(ctx, "read", path, st->st_mode);
    }
    return FIRN_OK;
}

enum { PIPE_BYTES = 65536, WRITER_MS = 2000 };

/* A pipe that has a name may lie there without anybody who writes to it; who was started together with us gets some
 * seconds. *first: a byte that was read meanwhile, -1 where none was. From here on reading waits. */
static firn_status await_writer(firn_context *ctx, const char *path, int fd, int *first)
{
    enum { TURN_MS = 50 };
    unsigned char byte;

    for (int waited = 0; waited < WRITER_MS; waited += TURN_MS) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const ssize_t r = read(fd, &byte, 1);
        if (r < 0 && errno != EAGAIN && errno != EINTR)
            return firn_fail_errno(ctx, "read", path);
        const bool over = r == 0 && poll(&p, 1, TURN_MS) > 0 && !(p.revents & POLLIN); /* one was there, and left */
        if (r > 0)
            *first = byte;
        if (r == 0 && !over)
            continue;
        return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0 ? FIRN_OK : firn_fail_errno(ctx, "read", path);
    }
    return firn_fail(ctx, FIRN_ERR_IO, "cannot read %s: it is a pipe, and nobody writes to it", path);
}

firn_status firn_open_stream(firn_context *ctx, const char *path, int *fd, struct stat *st, int *first)
{
    *first = -1;
    if (strcmp(path, "-") == 0) {
        *fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (*fd >= 0 && fstat(*fd, st) == 0 && !S_ISDIR(st->st_mode))
            return FIRN_OK;
        if (*fd >= 0)
            close(*fd);
        return firn_fail(ctx, FIRN_ERR_IO, "cannot read standard input");
    }
    FIRN_TRY(open_input(ctx, path, fd, st));
    if (S_ISREG(st->st_mode))
        return FIRN_OK;
    const firn_status s =
        S_ISFIFO(st->st_mode) ? await_writer(ctx, path, *fd, first) : firn_no_file(ctx, "read", path, st->st_mode);
    if (s != FIRN_OK)
        close(*fd);
    return s;
}

/* To the end of fd, which is closed; `expected` bytes are likely. first: a byte that was read already, or -1. */
static firn_status read_all(firn_context *ctx, const char *path, int fd, int first, size_t expected, size_t limit,
                            char **data, size_t *size)
{
    size_t room = expected + 2, got = 0;
    char *bytes = firn_alloc(ctx, room);
    firn_status s = bytes ? FIRN_OK : FIRN_ERR_MEMORY;

    if (bytes && first >= 0)
        bytes[got++] = (char)first;
    while (s == FIRN_OK) {
        if (limit && got > limit) {
            s = firn_fail(ctx, FIRN_ERR_IO, "%s has more than the %zu bytes that are read", path, limit);
            break;
        }
        if (got == room) { /* a byte is left for the NUL behind the text */
            char *more = room > SIZE_MAX / 2 ? NULL : firn_realloc(ctx, bytes, 2 * room);
            s = more ? FIRN_OK : FIRN_ERR_MEMORY;
            bytes = more ? more : bytes;
            room *= 2;
            continue;
        }
        const ssize_t r = read(fd, bytes + got, room - got);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            s = firn_fail_errno(ctx, "read", path);
        else if (r == 0)
            break;
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

firn_status firn_file_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size)
{
    struct stat st;
    int fd;

    *data = NULL;
    *size = 0;
    FIRN_TRY(firn_open_regular(ctx, path, &fd, &st));
    const size_t n = (size_t)st.st_size;
    if (limit && n > limit) {
        close(fd);
        return firn_fail(ctx, FIRN_ERR_IO, "%s has %zu bytes, more than the %zu that are read", path, n, limit);
    }
    return read_all(ctx, path, fd, -1, n, limit, data, size);
}

firn_status firn_stream_read(firn_context *ctx, const char *path, size_t limit, char **data, size_t *size)
{
    struct stat st;
    int fd, first;

    *data = NULL;
    *size = 0;
    FIRN_TRY(firn_open_stream(ctx, path, &fd, &st, &first));
    return read_all(ctx, path, fd, first, S_ISREG(st.st_mode) ? (size_t)st.st_size : PIPE_BYTES, limit, data, size);
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
            return firn_fail_errno(ctx, "look at the file system of", path);
        if (slash == at && at[1])
            at[1] = 0;
        else
            *(slash ? slash : at) = 0;
    }
    *bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    return FIRN_OK;
}

firn_status firn_make_folder(firn_context *ctx, const char *path, size_t *made)
{
    char at[4096];
    const size_t n = strlen(path);
    struct stat st;

    if (made)
        *made = 0;
    if (n == 0 || n >= sizeof at)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot make the folder '%.60s': its name is %s", path,
                         n ? "too long" : "empty");
    for (size_t i = 1; i <= n; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(at, path, i);
        at[i] = 0;
        if (mkdir(at, 0777) == 0) {
            firn_sync_parent(at);
            if (made && !*made)
                *made = i;
        } else if (errno != EEXIST) {
            const firn_status s = firn_fail_errno(ctx, "make the folder", at);
            firn_unmake_folder(at, made ? *made : 0);
            return s;
        }
    }
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return firn_fail(ctx, FIRN_ERR_IO, "cannot make the folder %s: a file of that name is there", path);
    return FIRN_OK;
}

void firn_unmake_folder(const char *path, size_t made)
{
    char at[4096];
    if (!made || strlen(path) >= sizeof at)
        return;
    size_t n = strlen(path);
    memcpy(at, path, n + 1);
    for (; n >= made; n--) {
        if (n == strlen(path) || at[n] == '/') {
            at[n] = 0;
            if (rmdir(at) < 0 && errno != ENOENT)
                return;
        }
    }
}
