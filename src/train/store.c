/* Samples and tokens in memory or in a mapped file: see store.h. */
#include "train/store.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_LIMIT = 4096, SPILL_TOKENS = 16 << 20, KEPT_SECONDS = 30 * 24 * 3600 };

#define MAGIC "firntok1"

typedef struct {
    uint64_t n_tokens, n_samples, n_notes, sample_bytes;
    firn_data_counts counts;
    char magic[8];
} trailer;

struct firn_store {
    firn_context *ctx;
    char folder[PATH_LIMIT], path[PATH_LIMIT]; /* empty: memory alone */
    firn_out *out;                             /* tokens go there, once there are many */
    firn_map map;
    uint32_t *tokens; /* [n_tokens - written] */
    firn_sample *samples;
    size_t n_tokens, written, tokens_capacity, n_samples, samples_capacity;
};

/* The folder of the cache into path; false where there is to be none. */
static bool find_folder(const char *cache, char path[PATH_LIMIT])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n;

    if (cache && strcmp(cache, "none") == 0)
        return false;
    if (cache)
        n = snprintf(path, PATH_LIMIT, "%s", cache);
    else if (base && base[0] == '/')
        n = snprintf(path, PATH_LIMIT, "%s/firn", base);
    else if (home && home[0] == '/')
        n = snprintf(path, PATH_LIMIT, "%s/.cache/firn", home);
    else
        return false;
    return n > 0 && n < PATH_LIMIT - 80;
}

firn_status firn_store_create(firn_context *ctx, const char *cache, const char *key, firn_store **store)
{
    firn_store *s = firn_alloc_zeroed(ctx, 1, sizeof *s);

    *store = s;
    if (!s)
        return FIRN_ERR_MEMORY;
    s->ctx = ctx;
    if (key[0] && find_folder(cache, s->folder) &&
        snprintf(s->path, PATH_LIMIT, "%s/%s.tokens", s->folder, key) >= PATH_LIMIT)
        s->path[0] = 0;
    return FIRN_OK;
}

void firn_store_destroy(firn_store *s)
{
    if (!s)
        return;
    firn_out_abort(s->out);
    firn_map_close(&s->map);
    firn_free(s->ctx, s->tokens);
    firn_free(s->ctx, s->samples);
    firn_free(s->ctx, s);
}

/* ---- the file ---- */

/* Points `data` into the map; false where that is no cache file of ours. */
static bool use_map(firn_store *s, firn_data *data)
{
    trailer t;

    if (s->map.size < sizeof t)
        return false;
    memcpy(&t, s->map.data + s->map.size - sizeof t, sizeof t);
    const uint64_t limit = s->map.size;
    if (memcmp(t.magic, MAGIC, sizeof t.magic) != 0 || t.sample_bytes != sizeof(firn_sample) || t.n_tokens > limit ||
        t.n_samples > limit || t.n_notes > limit)
        return false;
    const uint64_t samples = (t.n_tokens * sizeof(uint32_t) + 7) / 8 * 8;
    const uint64_t notes = samples + t.n_samples * sizeof(firn_sample);
    if (notes + t.n_notes + sizeof t != limit)
        return false;
    const firn_sample *list = (const firn_sample *)(s->map.data + samples);
    for (uint64_t i = 0; i < t.n_samples; i++)
        if (list[i].begin < 0 || list[i].n < 2 || (uint64_t)list[i].begin + (uint64_t)list[i].n > t.n_tokens ||
            list[i].file >= (uint64_t)data->n_files)
            return false;
    data->tokens = (const uint32_t *)s->map.data;
    data->n_tokens = (size_t)t.n_tokens;
    data->samples = list;
    data->n_samples = (size_t)t.n_samples;
    data->counts = t.counts;
    if (!data->notes.size)
        firn_text_append(&data->notes, s->map.data + notes, (size_t)t.n_notes);
    return true;
}

firn_status firn_store_find(firn_store *s, firn_data *data, bool *found)
{
    *found = false;
    if (!s->path[0] || access(s->path, R_OK) != 0)
        return FIRN_OK;
    const firn_status status = firn_map_open(s->ctx, s->path, &s->map);
    if (status != FIRN_OK)
        return status == FIRN_ERR_MEMORY ? status : FIRN_OK;
    *found = use_map(s, data);
    if (*found)
        (void)utimensat(AT_FDCWD, s->path, NULL, 0); /* it was used today */
    else
        firn_map_close(&s->map);
    return data->notes.status;
}

/* Removes what nobody has used for long. Failing to is no failure. */
static void clean(const firn_store *s)
{
    DIR *dir = opendir(s->folder);
    struct stat st;

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strlen(e->d_name) == 64 + strlen(".tokens") && strcmp(e->d_name + 64, ".tokens") == 0 &&
            fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && time(NULL) - st.st_mtime > KEPT_SECONDS)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
}

/* Starts the file. Where that fails, everything stays in memory from now on. */
static void begin(firn_store *s)
{
    if (!s->path[0] || s->out)
        return;
    if (firn_make_folder(s->ctx, s->folder, NULL) != FIRN_OK || firn_out_open(s->ctx, s->path, &s->out) != FIRN_OK)
        s->path[0] = 0;
    else
        clean(s);
}

static firn_status spill(firn_store *s)
{
    const size_t n = s->n_tokens - s->written;

    begin(s);
    if (!s->out)
        return FIRN_OK;
    FIRN_TRY(firn_out_write(s->out, s->tokens, n * sizeof *s->tokens));
    s->written = s->n_tokens;
    return FIRN_OK;
}

/* ---- adding ---- */

firn_status firn_store_add(firn_store *s, firn_sample sample, const uint32_t *tokens)
{
    const size_t n = (size_t)sample.n;

    if (s->n_samples >= INT32_MAX)
        return firn_fail(s->ctx, FIRN_ERR_UNSUPPORTED, "a data set has at most %d samples", INT32_MAX);
    if (s->n_tokens - s->written >= SPILL_TOKENS)
        FIRN_TRY(spill(s));
    FIRN_TRY(firn_grow(s->ctx, (void **)&s->samples, s->n_samples, &s->samples_capacity, sizeof *s->samples));
    for (size_t held = s->n_tokens - s->written; held + n > s->tokens_capacity;)
        FIRN_TRY(firn_grow(s->ctx, (void **)&s->tokens, s->tokens_capacity, &s->tokens_capacity, sizeof *s->tokens));
    sample.begin = (int64_t)s->n_tokens;
    s->samples[s->n_samples++] = sample;
    uint32_t *to = s->tokens + (s->n_tokens - s->written);
    memcpy(to, tokens, n * sizeof *tokens);
    to[0] &= ~FIRN_TRAINED; /* there is nothing before it to predict it from */
    s->n_tokens += n;
    return FIRN_OK;
}

static firn_status write_rest(firn_store *s, const firn_data *data)
{
    const trailer t = {.n_tokens = s->n_tokens,
                       .n_samples = s->n_samples,
                       .n_notes = data->notes.size,
                       .sample_bytes = sizeof(firn_sample),
                       .counts = data->counts,
                       .magic = MAGIC};
    static const char zeros[8];

    FIRN_TRY(spill(s));
    FIRN_TRY(firn_out_write(s->out, zeros, (8 - s->n_tokens * sizeof *s->tokens % 8) % 8));
    FIRN_TRY(firn_out_write(s->out, s->samples, s->n_samples * sizeof *s->samples));
    FIRN_TRY(firn_out_write(s->out, firn_text_cstr(&data->notes), data->notes.size));
    FIRN_TRY(firn_out_write(s->out, &t, sizeof t));
    firn_out *out = s->out;
    s->out = NULL;
    return firn_out_commit(out);
}

firn_status firn_store_finish(firn_store *s, firn_data *data, bool keep)
{
    const bool needed = s->out != NULL; /* its tokens are not in memory any more */

    if (keep)
        begin(s);
    if (s->out) {
        firn_status status = write_rest(s, data);
        if (status == FIRN_OK)
            status = firn_map_open(s->ctx, s->path, &s->map);
        if (status == FIRN_OK && !use_map(s, data))
            status = firn_fail(s->ctx, FIRN_ERR_IO, "%s does not hold what was written to it", s->path);
        if (status == FIRN_OK) {
            firn_free(s->ctx, s->tokens);
            firn_free(s->ctx, s->samples);
            s->tokens = NULL;
            s->samples = NULL;
            s->tokens_capacity = s->samples_capacity = 0;
            return FIRN_OK;
        }
        if (needed || s->written || status == FIRN_ERR_MEMORY)
            return firn_fail_in(s->ctx, status, "the token cache (--cache names another folder, or none)");
        firn_out_abort(s->out);
        s->out = NULL;
    }
    data->samples = s->samples;
    data->n_samples = s->n_samples;
    data->tokens = s->tokens;
    data->n_tokens = s->n_tokens;
    return FIRN_OK;
}

uint64_t firn_store_bytes(const firn_store *s)
{
    return s->samples_capacity * sizeof *s->samples + s->tokens_capacity * sizeof *s->tokens;
}
