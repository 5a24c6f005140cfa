/* The files of a run's folder: see record.h. run.json is
 *
 *     {"firn": "0.1.0", "version": 2, "options": {...}, "steps": 60, "trained_values": 24772608, "finished": false,
 * "last_step": 0, "adapter_step": 0, "model": {"path": ..., "sha256": ..., "bytes": ...}, "data": {...}, "eval_data":
 * {...} or null, "adapter": ... , "architecture": "qwen3moe", "kernels": "avx2"} */
#include "train/record.h"

#include "core/file.h"
#include "core/sha256.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SAMPLE = 4096, SAMPLE_EVERY = 1 << 24 }; /* bytes of a model's tensor that its fingerprint looks at */
enum { RUN_VERSION = 2, JSON_BYTES = 256 << 20 };

firn_status firn_run_path(firn_context *ctx, const char *folder, const char *name, char *path)
{
    if (snprintf(path, FIRN_PATH_BYTES, "%s/%s", folder, name) >= FIRN_PATH_BYTES)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", folder);
    return FIRN_OK;
}

firn_status firn_full_path(firn_context *ctx, const char *name, char *path)
{
    char *full = realpath(name, NULL);

    if (!full)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot open %s: %s", name, strerror(errno));
    if (firn_expect_utf8_name(ctx, full) != FIRN_OK) {
        free(full);
        return FIRN_ERR_IO;
    }
    const bool fits = strlen(full) < FIRN_PATH_BYTES;
    if (fits)
        strcpy(path, full);
    free(full);
    return fits ? FIRN_OK : firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", name);
}

/* ---- fingerprints ---- */

static firn_status print_end(firn_context *ctx, const char *path, firn_sha256 *hash, uint64_t bytes, firn_print *print)
{
    *print = (firn_print){.bytes = bytes};
    firn_sha256_hex(hash, print->sha256);
    return firn_full_path(ctx, path, print->path);
}

firn_status firn_print_file(firn_context *ctx, const char *path, firn_print *print)
{
    firn_sha256 hash;
    firn_map map;

    FIRN_TRY(firn_map_open(ctx, path, &map));
    firn_sha256_init(&hash);
    firn_sha256_add(&hash, map.data, map.size);
    firn_status s = print_end(ctx, path, &hash, map.size, print);
    if (s == FIRN_OK)
        s = firn_map_check(ctx, &map);
    firn_map_close(&map);
    return s;
}

firn_status firn_print_gguf(firn_context *ctx, const char *path, const firn_gguf *gguf, firn_print *print)
{
    size_t size;
    const void *header = firn_gguf_header(gguf, &size);
    firn_sha256 hash;

    firn_sha256_init(&hash);
    firn_sha256_add(&hash, header, size);
    for (size_t i = 0; i < firn_gguf_n_tensors(gguf); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(gguf, i);
        const uint8_t *data = t->data;
        for (size_t at = 0; at < t->size; at += SAMPLE_EVERY)
            firn_sha256_add(&hash, data + at, t->size - at < SAMPLE ? t->size - at : SAMPLE);
        if (t->size > SAMPLE)
            firn_sha256_add(&hash, data + t->size - SAMPLE, SAMPLE);
    }
    FIRN_TRY(firn_gguf_check(ctx, gguf));
    return print_end(ctx, path, &hash, firn_gguf_file_bytes(gguf), print);
}

firn_status firn_print_expect(firn_context *ctx, const char *what, const firn_print *was, const firn_print *is)
{
    if (was->bytes == is->bytes && strcmp(was->sha256, is->sha256) == 0)
        return FIRN_OK;
    return firn_fail(ctx, FIRN_ERR_FORMAT,
                     "%s %s is not the one that the run was started with: expected %llu bytes, SHA-256 %.16s..., got "
                     "%llu bytes, SHA-256 %.16s...",
                     what, is->path, (unsigned long long)was->bytes, was->sha256, (unsigned long long)is->bytes,
                     is->sha256);
}

/* ---- JSON files ---- */

firn_status firn_json_write(firn_context *ctx, const char *path, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;

    json_decref(json);
    if (!text)
        return firn_fail(ctx, FIRN_ERR_MEMORY, "%s cannot be written as JSON: a text is not UTF-8, or memory is short",
                         path);
    const firn_status s = firn_file_write(ctx, path, text, strlen(text));
    json_free_t release; /* the application may have given jansson other memory than malloc's */
    json_get_alloc_funcs(NULL, &release);
    release(text);
    return s;
}

firn_status firn_json_read(firn_context *ctx, const char *path, json_t **json)
{
    char *text;
    size_t n;
    json_error_t error;

    *json = NULL;
    FIRN_TRY(firn_file_read(ctx, path, JSON_BYTES, &text, &n));
    *json = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    firn_free(ctx, text);
    if (!*json && !error.text[0]) /* jansson's way to say it */
        return firn_fail(ctx, FIRN_ERR_MEMORY, "%s: out of memory while reading JSON", path);
    if (!*json)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "%s:%d:%d: expected JSON: %s", path, error.line, error.column,
                         error.text);
    return FIRN_OK;
}

/* ---- run.json ---- */

static json_t *print_json(const firn_print *print)
{
    if (!print->path[0])
        return json_null();
    return json_pack("{s:s, s:s, s:I}", "path", print->path, "sha256", print->sha256, "bytes",
                     (json_int_t)print->bytes);
}

firn_status firn_run_record_write(firn_context *ctx, const char *folder, const firn_run_record *record)
{
    char path[FIRN_PATH_BYTES];
    json_t *options = firn_train_options_to_json(ctx, &record->options);

    if (!options)
        return FIRN_ERR_MEMORY;
    json_t *json = json_pack("{s:s, s:i, s:o, s:I, s:I, s:b, s:I, s:I, s:o, s:o, s:o, s:o, s:s, s:s}", "firn",
                             firn_version(), "version", RUN_VERSION, "options", options, "steps",
                             (json_int_t)record->steps, "trained_values", (json_int_t)record->n_values, "finished",
                             record->finished, "last_step", (json_int_t)record->last_step, "adapter_step",
                             (json_int_t)record->adapter_step, "model", print_json(&record->model), "data",
                             print_json(&record->data), "eval_data", print_json(&record->eval_data), "adapter",
                             print_json(&record->adapter), "architecture", record->arch, "kernels", record->kernels);
    const firn_status s = firn_run_path(ctx, folder, "run.json", path);
    if (s != FIRN_OK) {
        json_decref(json);
        return s;
    }
    return firn_json_write(ctx, path, json);
}

static bool get_text(const json_t *json, const char *key, char *text, size_t limit)
{
    const char *value = json_string_value(json_object_get(json, key));

    if (!value || strlen(value) >= limit)
        return false;
    strcpy(text, value);
    return true;
}

static bool get_print(const json_t *json, const char *key, firn_print *print)
{
    const json_t *p = json_object_get(json, key), *bytes = json_object_get(p, "bytes");

    *print = (firn_print){.bytes = (uint64_t)json_integer_value(bytes)};
    if (json_is_null(p))
        return true;
    return get_text(p, "path", print->path, sizeof print->path) &&
           get_text(p, "sha256", print->sha256, sizeof print->sha256) && json_is_integer(bytes);
}

static firn_status from_json(firn_arena *arena, const char *path, const json_t *json, firn_run_record *r)
{
    const json_t *steps = json_object_get(json, "steps"), *values = json_object_get(json, "trained_values");

    if (json_integer_value(json_object_get(json, "version")) != RUN_VERSION)
        return firn_fail(arena->ctx, FIRN_ERR_UNSUPPORTED, "%s: expected the run of a firn that writes version %d",
                         path, RUN_VERSION);
    FIRN_TRY(firn_train_options_from_json(arena, path, json_object_get(json, "options"), &r->options));
    r->steps = json_integer_value(steps);
    r->n_values = json_integer_value(values);
    r->finished = json_is_true(json_object_get(json, "finished"));
    r->last_step = json_integer_value(json_object_get(json, "last_step"));
    r->adapter_step = json_integer_value(json_object_get(json, "adapter_step"));
    if (r->steps < 1 || r->n_values < 1 || !get_print(json, "model", &r->model) || !get_print(json, "data", &r->data) ||
        !get_print(json, "eval_data", &r->eval_data) || !get_print(json, "adapter", &r->adapter) ||
        !get_text(json, "architecture", r->arch, sizeof r->arch) ||
        !get_text(json, "kernels", r->kernels, sizeof r->kernels))
        return firn_fail(arena->ctx, FIRN_ERR_FORMAT, "%s is no whole description of a run", path);
    return FIRN_OK;
}

firn_status firn_run_record_read(firn_arena *arena, const char *folder, firn_run_record *record)
{
    char path[FIRN_PATH_BYTES];
    json_t *json;

    *record = (firn_run_record){0};
    FIRN_TRY(firn_run_path(arena->ctx, folder, "run.json", path));
    if (access(path, F_OK) < 0)
        return firn_fail(arena->ctx, FIRN_ERR_IO, "%s holds no run: there is no run.json in it", folder);
    FIRN_TRY(firn_json_read(arena->ctx, path, &json));
    const firn_status s = from_json(arena, path, json, record);
    json_decref(json);
    return s;
}

/* ---- metrics.jsonl ---- */

static firn_status fail_metrics(firn_metrics *m)
{
    return firn_fail(m->ctx, FIRN_ERR_IO, "cannot write %s: %s", m->path, strerror(errno));
}

/* Bytes of the whole lines among the first n of the file. */
static uint64_t whole_lines(int fd, uint64_t n)
{
    char piece[4096];

    while (n) {
        const uint64_t begin = n > sizeof piece ? n - sizeof piece : 0;
        const ssize_t got = pread(fd, piece, (size_t)(n - begin), (off_t)begin);
        for (ssize_t i = got; i > 0; i--)
            if (piece[i - 1] == '\n')
                return begin + (uint64_t)i;
        n = begin;
    }
    return 0;
}

static void repair(firn_metrics *m, uint64_t size)
{
    const uint64_t knows = m->bytes;

    m->bytes = whole_lines(m->fd, size < knows ? size : knows);
    if (size == 0)
        snprintf(m->note, sizeof m->note, "%s is lost and begun anew; the report will show what comes", m->path);
    else if (m->bytes < knows)
        snprintf(
            m->note, sizeof m->note,
            "%s is damaged: %llu of the %llu bytes that the checkpoint knows are whole lines; the report will show "
            "what there is",
            m->path, (unsigned long long)m->bytes, (unsigned long long)knows);
}

firn_status firn_metrics_open(firn_context *ctx, const char *folder, uint64_t keep, firn_metrics *m)
{
    struct stat st;

    *m = (firn_metrics){.ctx = ctx, .fd = -1, .bytes = keep};
    FIRN_TRY(firn_run_path(ctx, folder, "metrics.jsonl", m->path));
    m->fd = firn_open(m->path, O_RDWR | O_CREAT | O_NONBLOCK, 0666);
    if (m->fd >= 0 && fstat(m->fd, &st) == 0 && !S_ISREG(st.st_mode)) {
        firn_metrics_close(m);
        return firn_no_file(ctx, "write", m->path, st.st_mode);
    }
    const off_t size = m->fd < 0 ? -1 : lseek(m->fd, 0, SEEK_END);
    if (size >= 0 && keep)
        repair(m, (uint64_t)size);
    if (size < 0 || ftruncate(m->fd, (off_t)m->bytes) < 0 || lseek(m->fd, (off_t)m->bytes, SEEK_SET) < 0) {
        const firn_status s = fail_metrics(m);
        firn_metrics_close(m);
        return s;
    }
    firn_sync_parent(m->path); /* a checkpoint counts on it */
    return FIRN_OK;
}

firn_status firn_metrics_line(firn_metrics *m, const firn_text *line)
{
    FIRN_TRY(line->status);
    if (m->fd < 0)
        return FIRN_OK;
    for (size_t done = 0; done < line->size;) {
        const ssize_t w = write(m->fd, line->data + done, line->size - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0) {
            const firn_status s = fail_metrics(m);
            if (ftruncate(m->fd, (off_t)m->bytes) < 0 || lseek(m->fd, (off_t)m->bytes, SEEK_SET) < 0)
                firn_metrics_close(m); /* half a line stands there: the next resume repairs it */
            return s;
        }
        done += (size_t)w;
    }
    m->bytes += line->size;
    return FIRN_OK;
}

firn_status firn_metrics_sync(firn_metrics *m)
{
    return m->fd >= 0 && fsync(m->fd) < 0 ? fail_metrics(m) : FIRN_OK;
}

void firn_metrics_close(firn_metrics *m)
{
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
}
