/* From sources to files: see sources.h. */
#include "train/sources.h"

#include "core/file.h"
#include "core/plain.h"
#include "train/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_LIMIT = 4096, DEPTH_LIMIT = 32, FILE_LIMIT = (1 << 24) - 1 };

typedef struct {
    firn_context *ctx;
    firn_data_file *files;
    size_t n, capacity;
    firn_text *ignored;
    int depth;
} finder;

/* ---- weights ---- */

/* Cuts "PATH:WEIGHT" in two; a path without a weight has weight 1. */
static firn_status read_weight(firn_context *ctx, const char *source, char path[PATH_LIMIT], double *weight)
{
    const char *colon = strrchr(source, ':');
    struct stat st;
    char *end;

    *weight = 1;
    if (snprintf(path, PATH_LIMIT, "%s", source) >= PATH_LIMIT)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", source);
    if (!colon || colon == source || stat(source, &st) == 0 || !colon[1] ||
        strspn(colon + 1, "0123456789.") != strlen(colon + 1))
        return FIRN_OK;
    const double w = firn_strtod(colon + 1, &end);
    if (*end)
        return FIRN_OK;
    if (!(w > 0) || w > FIRN_MAX_WEIGHT)
        return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                         "%s: expected a weight above 0 and up to %d behind the colon (to leave a file out, do not "
                         "name it)",
                         source, FIRN_MAX_WEIGHT);
    path[colon - source] = 0;
    *weight = w;
    return FIRN_OK;
}

firn_status firn_source_absolute(firn_context *ctx, const char *source, char *absolute, size_t capacity)
{
    char path[PATH_LIMIT];
    double weight;

    FIRN_TRY(read_weight(ctx, source, path, &weight));
    struct stat st; /* standard input and pipes (/dev/fd/63) have no other name */
    const bool lasts = strcmp(path, "-") != 0 && (stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
    char *full = lasts ? realpath(path, NULL) : strdup(path);
    if (!full)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    if (firn_expect_utf8_name(ctx, full) != FIRN_OK) {
        free(full);
        return FIRN_ERR_IO;
    }
    const int n = snprintf(absolute, capacity, "%s%s", full, source + strlen(path));
    free(full);
    return n >= 0 && (size_t)n < capacity ? FIRN_OK
                                          : firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", source);
}

/* ---- files and folders ---- */

/* .jsonl, .json, .ndjson, .csv, .tsv, .txt, packed or not; and what is refused with a sentence rather than passed over.
 */
static bool is_data(const char *name)
{
    static const char *const endings[] = {".jsonl", ".json", ".ndjson",  ".csv",   ".tsv",
                                          ".txt",   ".text", ".parquet", ".arrow", NULL};

    return firn_source_ends(name, endings);
}

static firn_status add_file(finder *f, const char *path, double weight)
{
    const bool standard = strcmp(path, "-") == 0;

    if (f->n >= FILE_LIMIT)
        return firn_fail(f->ctx, FIRN_ERR_UNSUPPORTED, "a data set has at most %d files", FILE_LIMIT);
    FIRN_TRY(firn_grow(f->ctx, (void **)&f->files, f->n, &f->capacity, sizeof *f->files));
    firn_data_file *file = &f->files[f->n];
    *file = (firn_data_file){.weight = weight, .fd = -1};
    file->name = firn_strdup(f->ctx, standard ? "standard input" : path);
    if (!file->name)
        return FIRN_ERR_MEMORY;
    f->n++;
    int fd;
    FIRN_TRY(firn_source_descriptor(f->ctx, path, &fd));
    struct stat now, there;
    const bool lasts = !standard && fstat(fd, &now) == 0 && stat(path, &there) == 0 && now.st_ino == there.st_ino &&
                       now.st_dev == there.st_dev;
    const firn_status s = firn_source_print(f->ctx, fd, file->name, &file->bytes, file->sha256);
    if (lasts || s != FIRN_OK)
        close(fd);
    else
        file->fd = fd;
    return s;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static firn_status add_path(finder *f, const char *path, double weight);

static firn_status list_folder(finder *f, const char *path, char ***names, size_t *n)
{
    size_t capacity = 0;
    DIR *dir = opendir(path);
    firn_status s = FIRN_OK;

    if (!dir)
        return firn_fail(f->ctx, FIRN_ERR_IO, "cannot look into %s: %s", path, strerror(errno));
    for (struct dirent *e; s == FIRN_OK && (e = readdir(dir));) {
        if (e->d_name[0] == '.')
            continue;
        s = firn_grow(f->ctx, (void **)names, *n, &capacity, sizeof **names);
        if (s == FIRN_OK && !((*names)[*n] = firn_strdup(f->ctx, e->d_name)))
            s = FIRN_ERR_MEMORY;
        *n += s == FIRN_OK;
    }
    closedir(dir);
    return s;
}

static firn_status add_folder(finder *f, const char *path, double weight)
{
    char **names = NULL, inner[PATH_LIMIT];
    size_t n = 0;
    struct stat st;

    if (f->depth >= DEPTH_LIMIT)
        return firn_fail(f->ctx, FIRN_ERR_IO, "%s lies more than %d folders deep", path, DEPTH_LIMIT);
    f->depth++;
    firn_status s = list_folder(f, path, &names, &n);
    if (s == FIRN_OK && n)
        qsort(names, n, sizeof *names, by_name);
    for (size_t i = 0; s == FIRN_OK && i < n; i++) {
        if (snprintf(inner, sizeof inner, "%s/%s", path, names[i]) >= (int)sizeof inner)
            s = firn_fail(f->ctx, FIRN_ERR_IO, "the path %.60s... is too long", path);
        else if (stat(inner, &st) == 0 && (S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && is_data(names[i]))))
            s = add_path(f, inner, weight);
        else
            firn_text_printf(f->ignored, "%s%s", f->ignored->size ? ", " : "", inner);
    }
    f->depth--;
    for (size_t i = 0; i < n; i++)
        firn_free(f->ctx, names[i]);
    firn_free(f->ctx, names);
    return s;
}

static firn_status add_path(finder *f, const char *path, double weight)
{
    struct stat st;

    if (strcmp(path, "-") == 0 || stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
        return add_file(f, path, weight);
    const size_t before = f->n;
    FIRN_TRY(add_folder(f, path, weight));
    if (f->n == before && f->depth == 0)
        return firn_fail(
            f->ctx, FIRN_ERR_FORMAT,
            "the folder %s holds no data: expected files that end in .jsonl, .json, .ndjson, .csv, .tsv or "
            ".txt, packed with gzip or zstd or not",
            path);
    return FIRN_OK;
}

firn_status firn_sources_find(firn_context *ctx, const char *const *sources, int n, firn_data_file **files,
                              int *n_files, firn_text *ignored)
{
    finder f = {.ctx = ctx, .ignored = ignored};
    char path[PATH_LIMIT];
    double weight;
    int inputs = 0;
    firn_status s = FIRN_OK;

    *files = NULL;
    *n_files = 0;
    for (int i = 0; s == FIRN_OK && i < n; i++) {
        s = read_weight(ctx, sources[i], path, &weight);
        inputs += s == FIRN_OK && strcmp(path, "-") == 0;
        if (s == FIRN_OK && inputs > 1)
            s = firn_fail(ctx, FIRN_ERR_ARGUMENT, "standard input can be read once, and was named twice");
        if (s == FIRN_OK)
            s = add_path(&f, path, weight);
    }
    if (s != FIRN_OK) {
        firn_data_files_free(ctx, f.files, (int)f.n);
        return s;
    }
    *files = f.files;
    *n_files = (int)f.n;
    return ignored->status;
}

void firn_data_files_free(firn_context *ctx, firn_data_file *files, int n)
{
    for (int i = 0; i < n; i++) {
        firn_free(ctx, files[i].name);
        if (files[i].fd >= 0)
            close(files[i].fd);
    }
    firn_free(ctx, files);
}

firn_status firn_data_file_open(firn_context *ctx, const firn_data_file *file, int *fd)
{
    *fd = file->fd;
    return file->fd >= 0 ? FIRN_OK : firn_source_descriptor(ctx, file->name, fd);
}

void firn_data_file_close(const firn_data_file *file, int fd)
{
    if (fd >= 0 && fd != file->fd)
        close(fd);
}
