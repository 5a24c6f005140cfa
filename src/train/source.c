/* Data files as bytes: see source.h. zlib and libzstd unpack; this file finds out which, and says what went wrong. */
#include "train/source.h"

#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { INPUT_BYTES = 256 << 10, PIECE_BYTES = 1 << 30 };

typedef enum { PLAIN, GZIP, ZSTD } packing;

struct firn_source {
    firn_context *ctx;
    const char *name;
    int fd;               /* -1: memory */
    off_t at;             /* of the file */
    const uint8_t *input; /* what was read and not yet used: [used, filled) */
    uint8_t *buffer;      /* of a file */
    size_t used, filled;
    bool ended;  /* the file is */
    bool inside; /* of a gzip member or zstd frame that is not complete */
    packing packed;
    z_stream gzip;
    bool gzip_begun;
    ZSTD_DStream *zstd;
};

/* ---- bytes as they lie there ---- */

static firn_status fill(firn_source *s)
{
    if (s->used < s->filled || s->ended)
        return FIRN_OK;
    if (s->fd < 0) {
        s->ended = true;
        return FIRN_OK;
    }
    s->used = s->filled = 0;
    ssize_t n;
    do
        n = pread(s->fd, s->buffer, INPUT_BYTES, s->at);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return firn_fail(s->ctx, FIRN_ERR_IO, "cannot read %s: %s", s->name, strerror(errno));
    s->filled = (size_t)n;
    s->at += n;
    s->ended = n == 0;
    return FIRN_OK;
}

/* ---- unpacking ---- */

static firn_status broken(firn_source *s, const char *what, const char *why)
{
    return firn_fail(s->ctx, FIRN_ERR_FORMAT, "%s is no whole %s file: %s", s->name, what, why);
}

static firn_status read_gzip(firn_source *s, void *bytes, size_t size, size_t *n)
{
    z_stream *z = &s->gzip;

    z->next_out = bytes;
    z->avail_out = (uInt)size;
    while (z->avail_out == size) {
        FIRN_TRY(fill(s));
        if (s->ended && !s->inside)
            break;
        if (s->ended)
            return broken(s, "gzip", "it ends too early");
        if (!s->inside && inflateReset(z) != Z_OK)
            return broken(s, "gzip", "its state is lost");
        s->inside = true;
        const size_t left = s->filled - s->used;
        const uInt given = left < PIECE_BYTES ? (uInt)left : PIECE_BYTES;
        z->next_in = (Bytef *)(uintptr_t)(s->input + s->used);
        z->avail_in = given;
        const int status = inflate(z, Z_NO_FLUSH);
        s->used += given - z->avail_in;
        if (status == Z_MEM_ERROR)
            return firn_fail(s->ctx, FIRN_ERR_MEMORY, "out of memory while unpacking %s", s->name);
        if (status == Z_STREAM_END)
            s->inside = false;
        else if (status != Z_OK && status != Z_BUF_ERROR)
            return broken(s, "gzip", z->msg ? z->msg : "its bytes make no sense");
    }
    *n = size - z->avail_out;
    return FIRN_OK;
}

static firn_status read_zstd(firn_source *s, void *bytes, size_t size, size_t *n)
{
    ZSTD_outBuffer out = {bytes, size, 0};

    while (out.pos == 0) {
        FIRN_TRY(fill(s));
        if (s->ended && !s->inside)
            break;
        ZSTD_inBuffer in = {s->input, s->filled, s->used};
        const size_t left = ZSTD_decompressStream(s->zstd, &out, &in);
        if (ZSTD_isError(left))
            return broken(s, "zstd", ZSTD_getErrorName(left));
        if (s->ended && out.pos == 0)
            return broken(s, "zstd", "it ends too early");
        s->used = in.pos;
        s->inside = left != 0;
    }
    *n = out.pos;
    return FIRN_OK;
}

firn_status firn_source_read(firn_source *s, void *bytes, size_t size, size_t *n)
{
    *n = 0;
    if (s->packed != PLAIN)
        return s->packed == GZIP ? read_gzip(s, bytes, size, n) : read_zstd(s, bytes, size, n);
    FIRN_TRY(fill(s));
    *n = s->filled - s->used < size ? s->filled - s->used : size;
    memcpy(bytes, s->input + s->used, *n);
    s->used += *n;
    return FIRN_OK;
}

/* ---- what it is ---- */

static bool begins(const firn_source *s, const char *magic, size_t n)
{
    return s->filled >= n && memcmp(s->input, magic, n) == 0;
}

/* There is no well-kept C library for the columns of these two, and Python has one that many have installed. */
static firn_status refuse_columns(firn_source *s, const char *what, const char *reader)
{
    return firn_fail(s->ctx, FIRN_ERR_UNSUPPORTED,
                     "%s is a%s file, which firn does not read; make JSON lines of it:  python3 -c 'import pandas; "
                     "pandas.%s(\"%s\").to_json(\"data.jsonl\", orient=\"records\", lines=True)'",
                     s->name, what, reader, s->name);
}

static firn_status refuse_packed(firn_source *s, const char *what, const char *program)
{
    return firn_fail(s->ctx, FIRN_ERR_UNSUPPORTED,
                     "%s is packed with %s; expected it plain, or packed with gzip or zstd:  %s -dc %s | firn ... "
                     "--data -",
                     s->name, what, program, s->name);
}

static firn_status look(firn_source *s)
{
    FIRN_TRY(fill(s));
    if (begins(s, "PAR1", 4))
        return refuse_columns(s, " Parquet", "read_parquet");
    if (begins(s, "ARROW1", 6))
        return refuse_columns(s, "n Arrow", "read_feather");
    if (begins(s, "\xFF\xFF\xFF\xFF", 4)) /* the stream form, as `datasets` keeps it */
        return firn_fail(s->ctx, FIRN_ERR_UNSUPPORTED,
                         "%s is an Arrow stream, which firn does not read; make JSON lines of it:  python3 -c 'import "
                         "datasets; datasets.Dataset.from_file(\"%s\").to_json(\"data.jsonl\")'",
                         s->name, s->name);
    if (begins(s, "BZh", 3))
        return refuse_packed(s, "bzip2", "bzip2");
    if (begins(s,
               "\xFD"
               "7zXZ",
               5))
        return refuse_packed(s, "xz", "xz");
    if (begins(s, "PK\3\4", 4))
        return firn_fail(s->ctx, FIRN_ERR_UNSUPPORTED, "%s is a ZIP archive; expected what is in it (unzip it)",
                         s->name);
    if (begins(s, "\x1F\x8B", 2)) {
        s->packed = GZIP;
        if (inflateInit2(&s->gzip, 15 + 16) != Z_OK)
            return firn_fail(s->ctx, FIRN_ERR_MEMORY, "out of memory while unpacking %s", s->name);
        s->gzip_begun = true;
    } else if (begins(s, "\x28\xB5\x2F\xFD", 4)) {
        s->packed = ZSTD;
        s->zstd = ZSTD_createDStream();
        if (!s->zstd)
            return firn_fail(s->ctx, FIRN_ERR_MEMORY, "out of memory while unpacking %s", s->name);
    }
    return FIRN_OK;
}

static firn_status create(firn_context *ctx, firn_source given, firn_source **source)
{
    firn_source *s = firn_alloc(ctx, sizeof *s);

    *source = NULL;
    if (!s)
        return FIRN_ERR_MEMORY;
    *s = given;
    s->ctx = ctx;
    firn_status status = FIRN_OK;
    if (s->fd >= 0) {
        s->input = s->buffer = firn_alloc(ctx, INPUT_BYTES);
        status = s->buffer ? FIRN_OK : FIRN_ERR_MEMORY;
    }
    if (status == FIRN_OK)
        status = look(s);
    if (status == FIRN_OK)
        *source = s;
    else
        firn_source_close(s);
    return status;
}

firn_status firn_source_open(firn_context *ctx, int fd, const char *name, firn_source **source)
{
    return create(ctx, (firn_source){.fd = fd, .name = name}, source);
}

firn_status firn_source_memory(firn_context *ctx, const void *data, size_t size, const char *name, firn_source **source)
{
    return create(ctx, (firn_source){.fd = -1, .name = name, .input = data, .filled = size}, source);
}

void firn_source_close(firn_source *s)
{
    if (!s)
        return;
    if (s->gzip_begun)
        inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    firn_free(s->ctx, s->buffer);
    firn_free(s->ctx, s);
}

/* ---- files ---- */

bool firn_source_ends(const char *name, const char *const *endings)
{
    size_t n = strlen(name);

    n -= n > 3 && strcasecmp(name + n - 3, ".gz") == 0 ? 3 : n > 4 && strcasecmp(name + n - 4, ".zst") == 0 ? 4 : 0;
    for (; *endings; endings++) {
        const size_t k = strlen(*endings);
        if (n > k && strncasecmp(name + n - k, *endings, k) == 0)
            return true;
    }
    return false;
}

/* first: a byte that was read already, or -1. */
static firn_status copy_into(firn_context *ctx, int from, const char *name, int first, int to)
{
    char bytes[64 << 10];

    for (;;) {
        const ssize_t n = first >= 0 ? 1 : read(from, bytes, sizeof bytes);
        if (first >= 0)
            bytes[0] = (char)first;
        first = -1;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return firn_fail(ctx, FIRN_ERR_IO, "cannot read %s: %s", name, strerror(errno));
        if (n == 0)
            return FIRN_OK;
        for (ssize_t done = 0; done < n;) {
            const ssize_t w = write(to, bytes + done, (size_t)(n - done));
            if (w < 0 && errno == EINTR)
                continue;
            if (w < 0)
                return firn_fail(ctx, FIRN_ERR_IO, "cannot keep %s in a temporary file: %s", name, strerror(errno));
            done += w;
        }
    }
}

/* A file without a name in the folder for temporary files. */
static int nameless(void)
{
    const char *folder = getenv("TMPDIR");
    char path[4096];

    if (snprintf(path, sizeof path, "%s/firn-XXXXXX", folder && *folder ? folder : "/tmp") >= (int)sizeof path)
        return -1;
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0)
        unlink(path);
    return fd;
}

firn_status firn_source_descriptor(firn_context *ctx, const char *path, int *fd)
{
    const bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    struct stat st;
    int from, first;

    *fd = -1;
    FIRN_TRY(firn_open_stream(ctx, path, &from, &st, &first));
    if (S_ISREG(st.st_mode) && (!standard || lseek(from, 0, SEEK_CUR) == 0)) {
        *fd = from;
        return FIRN_OK;
    }
    const int copy = nameless();
    firn_status s = copy < 0
                        ? firn_fail(ctx, FIRN_ERR_IO, "cannot make a temporary file for %s: %s", name, strerror(errno))
                        : copy_into(ctx, from, name, first, copy);
    close(from);
    if (s != FIRN_OK && copy >= 0)
        close(copy);
    else
        *fd = copy;
    return s;
}

firn_status firn_source_print(firn_context *ctx, int fd, const char *name, uint64_t *bytes,
                              char sha256[FIRN_SHA256_HEX])
{
    uint8_t *buffer = firn_alloc(ctx, INPUT_BYTES);
    firn_sha256 hash;

    if (!buffer)
        return FIRN_ERR_MEMORY;
    *bytes = 0;
    firn_sha256_init(&hash);
    for (;;) {
        const ssize_t n = pread(fd, buffer, INPUT_BYTES, (off_t)*bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            const int reason = errno;
            firn_free(ctx, buffer);
            firn_sha256_hex(&hash, sha256);
            return n == 0 ? FIRN_OK : firn_fail(ctx, FIRN_ERR_IO, "cannot read %s: %s", name, strerror(reason));
        }
        firn_sha256_add(&hash, buffer, (size_t)n);
        *bytes += (uint64_t)n;
    }
}
