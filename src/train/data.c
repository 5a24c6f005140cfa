/* A data set from its sources: see data.h. This file goes through files and lines, passes over bad ones, and tells
 * people what came of it; what a line becomes is sample.c's. */
#include "train/data.h"

#include "train/sample.h"
#include "train/source.h"

#include <string.h>

firn_status firn_token_list_add(firn_context *ctx, firn_token_list *list, int32_t id, size_t begin, size_t end)
{
    if (list->n == list->capacity) {
        const size_t wanted = list->capacity ? 2 * list->capacity : 256;
        int32_t *ids = firn_realloc(ctx, list->ids, wanted * sizeof *ids);
        list->ids = ids ? ids : list->ids;
        size_t *b = ids ? firn_realloc(ctx, list->begin, wanted * sizeof *b) : NULL;
        list->begin = b ? b : list->begin;
        size_t *e = b ? firn_realloc(ctx, list->end, wanted * sizeof *e) : NULL;
        list->end = e ? e : list->end;
        if (!e)
            return FIRN_ERR_MEMORY;
        list->capacity = wanted;
    }
    list->ids[list->n] = id;
    list->begin[list->n] = begin;
    list->end[list->n++] = end;
    return FIRN_OK;
}

void firn_token_list_free(firn_context *ctx, firn_token_list *list)
{
    firn_free(ctx, list->ids);
    firn_free(ctx, list->begin);
    firn_free(ctx, list->end);
    *list = (firn_token_list){0};
}

/* ---- reading ---- */

typedef struct {
    const firn_data_spec *spec;
    const firn_encoder *encoder;
    int64_t context;
    firn_canon_options canon;
    firn_sampler sampler;
} reader;

static firn_status start(firn_context *ctx, const firn_data_spec *spec, const firn_encoder *encoder, int64_t context,
                         const char *key, reader *r, firn_data **data)
{
    *data = NULL;
    FIRN_EXPECT(ctx, context >= 2, "a window has at least 2 tokens, not %lld", (long long)context);
    *r = (reader){.spec = spec,
                  .encoder = encoder,
                  .context = context,
                  .canon = {.format = spec->format,
                            .fields = spec->fields,
                            .n_fields = spec->n_fields,
                            .knows_role = encoder->knows_role,
                            .user = encoder->user}};
    FIRN_TRY(firn_canon_check(ctx, &r->canon));
    firn_data *d = firn_alloc_zeroed(ctx, 1, sizeof *d);
    if (!d)
        return FIRN_ERR_MEMORY;
    d->ctx = ctx;
    d->texts = encoder->count_texts;
    firn_text_init(&d->notes, ctx, 0);
    const firn_status s = firn_store_create(ctx, spec->cache, key, &d->store);
    if (s != FIRN_OK) {
        firn_data_destroy(d);
        return s;
    }
    *data = d;
    return FIRN_OK;
}

static firn_status read_record(reader *r, const firn_jsonl *lines, json_t *object)
{
    firn_example example;

    FIRN_TRY(firn_canon(lines, &r->canon, object, &example));
    const firn_status s = firn_sampler_line(&r->sampler, &example);
    firn_example_clear(&example);
    return s;
}

/* A bad line: passed over while that many are allowed, with its sentence kept. */
static firn_status pass_over(reader *r, const firn_jsonl *lines, firn_status failed)
{
    firn_data *d = r->sampler.data;

    if (failed != FIRN_ERR_FORMAT || !firn_jsonl_goes_on(lines))
        return failed;
    if (d->counts.bad >= r->spec->skip_bad)
        return r->spec->skip_bad == 0
                   ? failed
                   : firn_fail_in(d->ctx, failed, "more than %lld bad lines", (long long)r->spec->skip_bad);
    d->counts.bad++;
    firn_text_printf(&d->notes, "passed over: %s\n", firn_error(d->ctx));
    return FIRN_OK;
}

static firn_status read_lines(reader *r, firn_jsonl *lines)
{
    json_t *object;

    r->sampler.lines = lines;
    for (;;) {
        firn_status s = firn_jsonl_next(lines, &object);
        if (s == FIRN_OK && !object)
            return FIRN_OK;
        if (s == FIRN_OK)
            s = read_record(r, lines, object);
        json_decref(object);
        if (s != FIRN_OK)
            FIRN_TRY(pass_over(r, lines, s));
    }
}

static int records_of(firn_data_format format)
{
    return format == FIRN_FORMAT_CSV ? FIRN_RECORDS_CSV : format == FIRN_FORMAT_TEXT ? FIRN_RECORDS_TEXT : -1;
}

static firn_status read_source(reader *r, firn_source *source, const char *name)
{
    firn_jsonl lines;

    FIRN_TRY(firn_jsonl_begin(r->sampler.ctx, name, source, records_of(r->spec->format), &lines));
    const int64_t before = r->sampler.data->counts.lines + r->sampler.data->counts.bad;
    firn_status s = read_lines(r, &lines);
    if (s == FIRN_OK && r->sampler.data->counts.lines + r->sampler.data->counts.bad == before)
        s = firn_fail(r->sampler.ctx, FIRN_ERR_FORMAT, "%s is empty: expected a JSON object on each line", name);
    firn_jsonl_close(&lines);
    return s;
}

static firn_status read_file(reader *r, const firn_data_file *file)
{
    firn_source *source;
    int fd;

    FIRN_TRY(firn_data_file_open(r->sampler.ctx, file, &fd));
    firn_status s = firn_source_open(r->sampler.ctx, fd, file->name, &source);
    if (s == FIRN_OK) {
        s = read_source(r, source, file->name);
        firn_source_close(source);
    }
    firn_data_file_close(file, fd);
    return s;
}

/* "a.jsonl", or "a.jsonl and 3 more files". */
static void name_files(const firn_data *d, firn_text *text)
{
    firn_text_puts(text, d->n_files ? d->files[0].name : "the data");
    if (d->n_files > 1)
        firn_text_printf(text, " and %d more file%s", d->n_files - 1, d->n_files > 2 ? "s" : "");
}

static firn_status expect_samples(const firn_data *d, int64_t context)
{
    const firn_data_counts *c = &d->counts;
    firn_text text;

    if (d->n_samples)
        return FIRN_OK;
    firn_text_init(&text, d->ctx, 0);
    firn_text_puts(&text, "nothing is left to train on in ");
    name_files(d, &text);
    if (c->untrained && d->notes.size)
        firn_text_printf(&text, ": %.*s", (int)strcspn(d->notes.data, "\n"), d->notes.data);
    else if (c->bad)
        firn_text_puts(&text, ": every line is bad");
    else if (c->untrained)
        firn_text_printf(&text, ": no line has a token to predict within %lld tokens", (long long)context);
    else
        firn_text_puts(&text, ": every line is empty");
    const firn_status s = text.status == FIRN_OK ? FIRN_ERR_FORMAT : text.status;
    firn_fail(d->ctx, s, "%s", firn_text_cstr(&text));
    firn_text_free(&text);
    return s;
}

enum { CACHED_BYTES = 1 << 20 }; /* less is read anew each time */

/* Everything that decides samples, tokens, counts and notes; empty where nothing is to be cached. */
static void make_key(const reader *r, const firn_data *d, char key[FIRN_SHA256_HEX])
{
    const firn_data_spec *spec = r->spec;
    const int64_t numbers[] = {r->context,        spec->format, spec->skip_bad,
                               spec->preferences, d->n_files,   (int64_t)sizeof(firn_data_counts)};
    char language[FIRN_SHA256_HEX];
    uint64_t bytes = 0;
    firn_sha256 hash;

    for (int i = 0; i < d->n_files; i++)
        bytes += d->files[i].bytes;
    key[0] = 0;
    if (!r->encoder->key || bytes < CACHED_BYTES)
        return;
    r->encoder->key(r->encoder->user, language);
    firn_sha256_init(&hash);
    firn_sha256_add(&hash, firn_version(), strlen(firn_version()) + 1);
    firn_sha256_add(&hash, language, sizeof language);
    firn_sha256_add(&hash, numbers, sizeof numbers);
    for (int i = 0; i < spec->n_fields; i++)
        firn_sha256_add(&hash, spec->fields[i], strlen(spec->fields[i]) + 1);
    for (int i = 0; i < d->n_files; i++) {
        firn_sha256_add(&hash, d->files[i].sha256, FIRN_SHA256_HEX);
        firn_sha256_add(&hash, d->files[i].name, strlen(d->files[i].name) + 1);
    }
    firn_sha256_hex(&hash, key);
}

static firn_status read_files(reader *r, firn_data *d)
{
    bool found;

    FIRN_TRY(firn_store_find(d->store, d, &found));
    if (found)
        return FIRN_OK;
    for (int i = 0; i < d->n_files; i++) {
        r->sampler.file = (uint32_t)i;
        FIRN_TRY(read_file(r, &d->files[i]));
    }
    firn_seen_free(d->ctx, &r->sampler.seen);
    FIRN_TRY(d->notes.status);
    return firn_store_finish(d->store, d, true);
}

static void say_ignored(firn_data *d, const firn_text *ignored)
{
    if (ignored->size)
        firn_text_printf(&d->notes, "not read, because nothing says that they are data: %s\n", firn_text_cstr(ignored));
}

/* What was read becomes the caller's, or goes when something failed or it leaves nothing to train on. */
static firn_status hand_over(firn_data *d, firn_status s, const firn_data_spec *spec, int64_t context, firn_data **data)
{
    if (s == FIRN_OK && !spec->keep_empty)
        s = expect_samples(d, context);
    if (s != FIRN_OK)
        firn_data_destroy(d);
    else
        *data = d;
    return s;
}

firn_status firn_data_load(firn_context *ctx, const firn_data_spec *spec, const firn_encoder *encoder, int64_t context,
                           firn_data **data)
{
    firn_data_file *files;
    int n_files;
    firn_text ignored;
    firn_data *d = NULL;
    reader r;

    *data = NULL;
    firn_text_init(&ignored, ctx, 0);
    firn_status s = firn_sources_find(ctx, spec->sources, spec->n_sources, &files, &n_files, &ignored);
    if (s == FIRN_OK) {
        const firn_data listed = {.files = files, .n_files = n_files};
        char key[FIRN_SHA256_HEX];
        make_key(&(reader){.spec = spec, .encoder = encoder, .context = context}, &listed, key);
        s = start(ctx, spec, encoder, context, key, &r, &d);
        if (s != FIRN_OK)
            firn_data_files_free(ctx, files, n_files);
    }
    if (s == FIRN_OK) {
        d->files = files;
        d->n_files = n_files;
        firn_sampler_init(&r.sampler, d, d->store, encoder, &r.canon, context, spec->preferences);
        say_ignored(d, &ignored);
        s = read_files(&r, d);
        firn_sampler_free(&r.sampler);
    }
    firn_text_free(&ignored);
    return hand_over(d, s, spec, context, data);
}

static firn_status name_memory(firn_data *d, const char *name, size_t size)
{
    d->files = firn_alloc_zeroed(d->ctx, 1, sizeof *d->files);
    if (!d->files)
        return FIRN_ERR_MEMORY;
    d->n_files = 1;
    d->files[0] = (firn_data_file){.weight = 1, .bytes = size, .fd = -1, .name = firn_strdup(d->ctx, name)};
    return d->files[0].name ? FIRN_OK : FIRN_ERR_MEMORY;
}

firn_status firn_data_parse(firn_context *ctx, const char *name, const void *bytes, size_t size,
                            const firn_data_spec *spec, const firn_encoder *encoder, int64_t context, firn_data **data)
{
    const firn_data_spec none = {0};
    firn_source *source;
    firn_data *d;
    reader r;

    spec = spec ? spec : &none;
    FIRN_TRY(start(ctx, spec, encoder, context, "", &r, data));
    d = *data;
    *data = NULL;
    firn_sampler_init(&r.sampler, d, d->store, encoder, &r.canon, context, spec->preferences);
    firn_status s = name_memory(d, name, size);
    if (s == FIRN_OK)
        s = firn_source_memory(ctx, bytes, size, name, &source);
    if (s == FIRN_OK) {
        s = read_source(&r, source, name);
        firn_source_close(source);
    }
    firn_sampler_free(&r.sampler);
    if (s == FIRN_OK)
        s = d->notes.status;
    if (s == FIRN_OK)
        s = firn_store_finish(d->store, d, false);
    return hand_over(d, s, spec, context, data);
}

void firn_data_destroy(firn_data *data)
{
    if (!data)
        return;
    firn_store_destroy(data->store);
    firn_text_free(&data->notes);
    firn_data_files_free(data->ctx, data->files, data->n_files);
    firn_free(data->ctx, data);
}

uint64_t firn_data_bytes(const firn_data *data)
{
    return firn_store_bytes(data->store);
}

void firn_data_ids(const firn_data *data, const firn_sample *sample, int32_t *ids)
{
    for (int32_t i = 0; i < sample->n; i++)
        ids[i] = firn_data_token(data, sample->begin + i);
}

/* ---- for people ---- */

static void add_count(firn_text *text, int64_t n, const char *one, const char *many)
{
    if (n)
        firn_text_printf(text, "; %lld %s", (long long)n, n == 1 ? one : many);
}

void firn_data_describe(const firn_data *data, firn_text *text)
{
    const firn_data_counts *c = &data->counts;
    int kinds = 0;

    firn_text_printf(text, "%lld line%s", (long long)c->lines, firn_plural(c->lines));
    for (int f = 0; f < FIRN_FORMATS; f++)
        kinds += c->formats[f] > 0;
    for (int f = 0, n = 0; f < FIRN_FORMATS; f++) {
        if (!c->formats[f])
            continue;
        firn_text_puts(text, n++ ? ", " : " (");
        if (kinds > 1)
            firn_text_printf(text, "%lld ", (long long)c->formats[f]);
        firn_text_puts(text, firn_data_format_name((firn_data_format)f));
        firn_text_puts(text, n == kinds ? ")" : "");
    }
    firn_text_printf(text, ", %zu sample%s, %zu token%s, %lld of them trained", data->n_samples,
                     firn_plural((int64_t)data->n_samples), data->n_tokens, firn_plural((int64_t)data->n_tokens),
                     (long long)c->n_targets);
    add_count(text, c->split, "is longer than the context and spread over windows",
              "are longer than the context and spread over windows");
    if (c->cut)
        firn_text_printf(text, "; %lld longer than the context %s cut at the end (%lld tokens lost)", (long long)c->cut,
                         c->cut == 1 ? "is" : "are", (long long)c->cut_tokens);
    add_count(text, c->empty, "empty line dropped", "empty lines dropped");
    add_count(text, c->untrained, "line without anything to train dropped", "lines without anything to train dropped");
    add_count(text, c->bad, "bad line passed over", "bad lines passed over");
    add_count(text, c->duplicates, "duplicate of an earlier line", "duplicates of earlier lines");
    add_count(text, c->short_answers, "line with an answer of one word at most",
              "lines with answers of one word at most");
    add_count(text, c->joined, "line whose prompt and completion join to one token (begin the completion with a space)",
              "lines whose prompt and completion join to one token (begin completions with a space)");
    for (int i = 0; i < FIRN_ENCODER_COUNTS && data->texts && data->texts[i]; i++) {
        if (!c->encoder[i])
            continue;
        firn_text_puts(text, "; ");
        const char *at = strstr(data->texts[i], "%lld"); /* the count stands where the sentence says */
        if (at)
            firn_text_printf(text, "%.*s%lld%s", (int)(at - data->texts[i]), data->texts[i], (long long)c->encoder[i],
                             at + 4);
    }
}

void firn_data_print(const firn_data *data, char sha256[FIRN_SHA256_HEX], uint64_t *bytes, firn_text *names)
{
    firn_sha256 hash;

    firn_sha256_init(&hash);
    *bytes = 0;
    for (int i = 0; i < data->n_files; i++) {
        firn_text_printf(names, "%s%s", i ? ", " : "", data->files[i].name);
        firn_sha256_add(&hash, data->files[i].sha256, FIRN_SHA256_HEX);
        firn_sha256_add(&hash, &data->files[i].weight, sizeof data->files[i].weight);
        *bytes += data->files[i].bytes;
    }
    if (data->n_files == 1 && data->files[0].weight == 1)
        memcpy(sha256, data->files[0].sha256, FIRN_SHA256_HEX);
    else
        firn_sha256_hex(&hash, sha256);
}
