/* A checkpoint is a GGUF file (general.type "firn.checkpoint") with F32 tensors [n_values] in the layout of the
 * adapter's flat buffer: `adapter`, and `adam.m` and `adam.v` where the optimizer has moments; keys firn.step,
 * firn.epoch, firn.window, firn.metrics_bytes (i64 each, as arrays of one), firn.seconds and the losses (f64,
 * likewise), firn.course: how the run has gone (f64, firn_course), firn.layout: a text that names every adapted tensor
 * with its shape, rank and place, and its scale where that is not alpha / rank, so that a checkpoint is never read into
 * another adapter, firn.settings: the options that decide the result, and firn.sha256: over all of these.
 * general.architecture and adapter.lora.alpha let it be loaded as an adapter too (adapter.c). */
#include "train/checkpoint.h"

#include "core/buffer.h"
#include "core/file.h"
#include "core/plain.h"
#include "core/sha256.h"
#include "firn/gguf.h"
#include "train/low_rank.h"
#include "train/origin.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, PIECE = 1 << 18 /* values that come from the device at a time */ };

static void layout(firn_context *ctx, const firn_adapter *adapter, firn_text *text)
{
    firn_text_init(text, ctx, 0);
    for (int i = 0; i < adapter->n_entries; i++) {
        const firn_adapter_entry *e = &adapter->entries[i];
        firn_text_printf(text, "%s %lld %lld %lld %lld %lld %lld", e->tensor, (long long)e->n_in, (long long)e->n_out,
                         (long long)e->n_expert, (long long)e->rank, (long long)e->a, (long long)e->b);
        if (firn_rank_factor(adapter, e) != 1)
            firn_text_printf(text, " %.9g", (double)e->scale);
        firn_text_puts(text, "\n");
    }
}

bool firn_checkpoint_layout_next(firn_string layout, size_t *at, char *tensor, int64_t *rank, float *scale)
{
    while (*at < layout.size) {
        const char *line = layout.data + *at, *stop = memchr(line, '\n', layout.size - *at);
        const size_t n = stop ? (size_t)(stop - line) : layout.size - *at;
        const char *blank = memchr(line, ' ', n);
        const size_t name = blank ? (size_t)(blank - line) : n;
        long long n_in, n_out, n_expert, r, a, b;
        char numbers[192];
        *at += n + 1;
        if (name == 0 || name >= FIRN_MAX_NAME || n - name >= sizeof numbers)
            continue;
        memcpy(numbers, line + name, n - name);
        numbers[n - name] = 0;
        int read = 0;
        if (sscanf(numbers, "%lld %lld %lld %lld %lld %lld%n", &n_in, &n_out, &n_expert, &r, &a, &b, &read) < 6)
            continue;
        *scale = (float)firn_strtod(numbers + read, NULL); /* 0 where nothing follows */
        memcpy(tensor, line, name);
        tensor[name] = 0;
        *rank = r;
        return true;
    }
    return false;
}

/* kind: "step-" or "best-". */
static firn_status path_of(firn_context *ctx, const char *folder, const char *kind, int64_t step, char *path)
{
    if (snprintf(path, PATH_BYTES, "%s/%s%08lld.gguf", folder, kind, (long long)step) >= PATH_BYTES)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", folder);
    return FIRN_OK;
}

static const struct {
    const char *name;
    firn_parameters_part part;
} parts[] = {{"adapter", FIRN_PARAMETERS_VALUES}, {"adam.m", FIRN_PARAMETERS_M}, {"adam.v", FIRN_PARAMETERS_V}};
enum { N_PARTS = 3 };

static bool has(const firn_parameters *store, int i)
{
    return store->part[parts[i].part] != NULL;
}

/* A checkpoint of an older firn has none, and its hash is without it. */
static bool knows_course(const firn_position *p)
{
    static const firn_course none;

    return memcmp(&p->course, &none, sizeof none) != 0;
}

/* Every text with its length before it, then the position; the values of all parts follow. */
static void begin_hash(firn_sha256 *hash, firn_string layout, firn_string settings, const firn_position *p,
                       int64_t n_values)
{
    const int64_t whole[] = {
        (int64_t)layout.size, (int64_t)settings.size, p->step, p->epoch, p->window, p->metrics_bytes, n_values};
    const double real[] = {p->seconds, p->eval_loss_before, p->eval_loss};

    firn_sha256_init(hash);
    firn_sha256_add(hash, whole, sizeof whole);
    firn_sha256_add(hash, real, sizeof real);
    if (knows_course(p))
        firn_sha256_add(hash, &p->course, sizeof p->course);
    firn_sha256_add(hash, layout.data, layout.size);
    firn_sha256_add(hash, settings.data, settings.size);
}

/* values[0..n) are those from `first` on of part i. */
static firn_status check_values(firn_context *ctx, int i, int64_t first, int64_t n, const float *values)
{
    for (int64_t k = 0; k < n; k++)
        if (!isfinite(values[k]) || (parts[i].part == FIRN_PARAMETERS_V && values[k] < 0))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "value %lld of %s is %g; expected a finite number%s",
                             (long long)(first + k), parts[i].name, (double)values[k],
                             parts[i].part == FIRN_PARAMETERS_V ? " that is not negative" : "");
    return FIRN_OK;
}

/* ---- writing ---- */

static firn_status put_numbers(firn_gguf_writer *w, const firn_position *p)
{
    FIRN_TRY(firn_gguf_put_array(w, "firn.step", FIRN_KV_I64, &p->step, 1));
    FIRN_TRY(firn_gguf_put_array(w, "firn.epoch", FIRN_KV_I64, &p->epoch, 1));
    FIRN_TRY(firn_gguf_put_array(w, "firn.window", FIRN_KV_I64, &p->window, 1));
    FIRN_TRY(firn_gguf_put_array(w, "firn.metrics_bytes", FIRN_KV_I64, &p->metrics_bytes, 1));
    FIRN_TRY(firn_gguf_put_array(w, "firn.seconds", FIRN_KV_F64, &p->seconds, 1));
    FIRN_TRY(firn_gguf_put_array(w, "firn.eval_loss_before", FIRN_KV_F64, &p->eval_loss_before, 1));
    if (knows_course(p))
        FIRN_TRY(firn_gguf_put_array(w, "firn.course", FIRN_KV_F64, &p->course, FIRN_COURSE_NUMBERS));
    return firn_gguf_put_array(w, "firn.eval_loss", FIRN_KV_F64, &p->eval_loss, 1);
}

/* The first n_parts parts of the store, piece by piece: into the hash, after a look at them, or where that is NULL into
 * the file. */
static firn_status each_piece(firn_parameters *store, int n_parts, firn_sha256 *hash, firn_gguf_writer *w)
{
    float *piece = firn_alloc(store->ctx, PIECE * sizeof *piece);
    firn_status s = piece ? FIRN_OK : FIRN_ERR_MEMORY;

    for (int i = 0; i < n_parts; i++)
        for (int64_t at = 0; s == FIRN_OK && has(store, i) && at < store->n; at += PIECE) {
            const int64_t n = firn_min_i64(PIECE, store->n - at);
            s = firn_parameters_read(store, parts[i].part, at, n, piece);
            if (s == FIRN_OK)
                s = hash ? check_values(store->ctx, i, at, n, piece)
                         : firn_gguf_writer_data(w, piece, (size_t)n * sizeof *piece);
            if (s == FIRN_OK && hash)
                firn_sha256_add(hash, piece, (size_t)n * sizeof *piece);
        }
    firn_free(store->ctx, piece);
    return s;
}

static firn_status write_file(firn_gguf_writer *w, const char *path, firn_parameters *store, int n_parts,
                              const firn_text *described, firn_string settings, const firn_position *position)
{
    char hex[FIRN_SHA256_HEX];
    firn_sha256 hash;

    begin_hash(&hash, (firn_string){firn_text_cstr(described), described->size}, settings, position, store->n);
    const firn_status sane = each_piece(store, n_parts, &hash, NULL);
    if (sane != FIRN_OK)
        return firn_fail_in(store->ctx, sane, "no checkpoint is written after step %lld", (long long)position->step);
    firn_sha256_hex(&hash, hex);
    FIRN_TRY(firn_gguf_put_string(w, "general.type", "firn.checkpoint", strlen("firn.checkpoint")));
    FIRN_TRY(firn_gguf_put_string(w, "general.architecture", store->adapter->arch, strlen(store->adapter->arch)));
    FIRN_TRY(firn_gguf_put_f32(w, "adapter.lora.alpha", store->adapter->alpha));
    FIRN_TRY(firn_origin_put(w, &store->adapter->origin));
    FIRN_TRY(firn_gguf_put_string(w, "firn.sha256", hex, strlen(hex)));
    FIRN_TRY(firn_gguf_put_string(w, "firn.layout", firn_text_cstr(described), described->size));
    FIRN_TRY(firn_gguf_put_string(w, "firn.settings", settings.data, settings.size));
    FIRN_TRY(put_numbers(w, position));
    for (int i = 0; i < n_parts; i++)
        if (has(store, i))
            FIRN_TRY(firn_gguf_add_tensor(w, parts[i].name, FIRN_F32, 1, &store->n));
    FIRN_TRY(firn_gguf_writer_begin(w, path));
    FIRN_TRY(each_piece(store, n_parts, NULL, w));
    return firn_gguf_writer_finish(w);
}

/* kind: "step-" or "best-". */
static bool step_of(const char *name, const char *kind, int64_t *step)
{
    char *end;

    if (strncmp(name, kind, 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *step = strtoll(name + 5, &end, 10);
    return strcmp(end, ".gguf") == 0;
}

void firn_checkpoint_sweep(const char *folder)
{
    DIR *dir = opendir(folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if ((strncmp(e->d_name, "step-", 5) == 0 || strncmp(e->d_name, "best-", 5) == 0) &&
            (strstr(e->d_name, ".gguf.tmp") || strstr(e->d_name, ".gguf.lock")))
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
}

/* Removes what is older than the `keep` newest. Failing to is no failure. */
static void clean(firn_context *ctx, const char *folder, int64_t keep)
{
    char path[PATH_BYTES];
    int64_t limit = INT64_MAX, step;

    firn_checkpoint_sweep(folder);
    for (int64_t i = 0; i < keep; i++) {
        if (firn_checkpoint_newest(ctx, folder, limit, &step) != FIRN_OK || step < 0)
            return;
        limit = step;
    }
    while (firn_checkpoint_newest(ctx, folder, limit, &step) == FIRN_OK && step >= 0) {
        if (path_of(ctx, folder, "step-", step, path) != FIRN_OK || unlink(path) < 0)
            return;
    }
}

static firn_status write_parts(firn_context *ctx, const char *folder, const char *kind, firn_parameters *store,
                               int n_parts, const firn_position *position, const char *settings)
{
    char path[PATH_BYTES];
    firn_gguf_writer *w;
    firn_text described;

    FIRN_TRY(firn_make_folder(ctx, folder, NULL));
    FIRN_TRY(path_of(ctx, folder, kind, position->step, path));
    FIRN_TRY(firn_gguf_writer_create(ctx, &w));
    layout(ctx, store->adapter, &described);
    firn_status s = described.status;
    if (s == FIRN_OK)
        s = write_file(w, path, store, n_parts, &described, (firn_string){settings, strlen(settings)}, position);
    firn_text_free(&described);
    firn_gguf_writer_destroy(w);
    return s;
}

firn_status firn_checkpoint_write(firn_context *ctx, const char *folder, firn_parameters *store,
                                  const firn_position *position, const char *settings, int64_t keep)
{
    FIRN_TRY(write_parts(ctx, folder, "step-", store, N_PARTS, position, settings));
    clean(ctx, folder, keep);
    return FIRN_OK;
}

/* Removes the best of all steps but these two. Failing to is no failure. */
static void clean_best(const char *folder, int64_t step, int64_t other)
{
    DIR *dir = opendir(folder);
    int64_t s;

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (step_of(e->d_name, "best-", &s) && s != step && s != other)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
}

firn_status firn_checkpoint_write_best(firn_context *ctx, const char *folder, firn_parameters *store,
                                       const firn_position *position, const char *settings, int64_t other)
{
    FIRN_TRY(write_parts(ctx, folder, "best-", store, 1, position, settings));
    clean_best(folder, position->step, other);
    return FIRN_OK;
}

void firn_checkpoint_keep_best(const char *folder, int64_t step)
{
    clean_best(folder, step, step);
}

firn_status firn_checkpoint_drop_behind(firn_context *ctx, const char *folder, int64_t step)
{
    char path[PATH_BYTES];
    int64_t newest;

    for (;;) {
        FIRN_TRY(firn_checkpoint_newest(ctx, folder, INT64_MAX, &newest));
        if (newest <= step)
            return FIRN_OK;
        FIRN_TRY(path_of(ctx, folder, "step-", newest, path));
        if (unlink(path) < 0)
            return firn_fail(ctx, FIRN_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    }
}

/* ---- reading ---- */

firn_status firn_checkpoint_newest(firn_context *ctx, const char *folder, int64_t below, int64_t *step)
{
    DIR *dir = opendir(folder);
    int64_t s;

    *step = -1;
    if (!dir && errno == ENOENT)
        return FIRN_OK;
    if (!dir)
        return firn_fail(ctx, FIRN_ERR_IO, "cannot look into %s: %s", folder, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        if (step_of(e->d_name, "step-", &s) && s < below && s > *step)
            *step = s;
    closedir(dir);
    return FIRN_OK;
}

static firn_status get(firn_context *ctx, const firn_gguf *g, const char *key, firn_kv_type type, void *value)
{
    const firn_kv *kv = firn_gguf_kv(g, key);

    if (!kv || kv->type != FIRN_KV_ARRAY || kv->element != type || kv->n != 1)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "expected a number under %s", key);
    memcpy(value, kv->data, 8);
    return FIRN_OK;
}

static firn_status get_course(firn_context *ctx, const firn_gguf *g, firn_course *course)
{
    const firn_kv *kv = firn_gguf_kv(g, "firn.course");

    *course = (firn_course){0};
    if (!kv)
        return FIRN_OK;
    if (kv->type != FIRN_KV_ARRAY || kv->element != FIRN_KV_F64 || kv->n != FIRN_COURSE_NUMBERS)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "expected %d numbers under firn.course", (int)FIRN_COURSE_NUMBERS);
    memcpy(course, kv->data, sizeof *course);
    if (!(course->best_step >= 0 && course->best_step <= 1e15) || !(course->stale >= 0) || !(course->rewinds >= 0))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the numbers under firn.course are none of a run");
    return FIRN_OK;
}

static firn_status get_numbers(firn_context *ctx, const firn_gguf *g, firn_position *p)
{
    FIRN_TRY(get(ctx, g, "firn.step", FIRN_KV_I64, &p->step));
    FIRN_TRY(get(ctx, g, "firn.epoch", FIRN_KV_I64, &p->epoch));
    FIRN_TRY(get(ctx, g, "firn.window", FIRN_KV_I64, &p->window));
    FIRN_TRY(get(ctx, g, "firn.metrics_bytes", FIRN_KV_I64, &p->metrics_bytes));
    FIRN_TRY(get(ctx, g, "firn.seconds", FIRN_KV_F64, &p->seconds));
    FIRN_TRY(get(ctx, g, "firn.eval_loss_before", FIRN_KV_F64, &p->eval_loss_before));
    FIRN_TRY(get(ctx, g, "firn.eval_loss", FIRN_KV_F64, &p->eval_loss));
    FIRN_TRY(get_course(ctx, g, &p->course));
    if (p->epoch < 0 || p->window < 0 || p->metrics_bytes < 0 || !(p->seconds >= 0))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the position in it is no position");
    return FIRN_OK;
}

/* Moves behind a line that says of an option that it was not given: a firn that does not have it says nothing. */
static bool skip_unset(const char **text, const char *end)
{
    static const char *const endings[] = {": not given", ": no"};
    const char *newline = memchr(*text, '\n', (size_t)(end - *text));
    const size_t n = newline ? (size_t)(newline - *text) : 0;

    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t k = strlen(endings[i]);
        if (n < k || memcmp(newline - k, endings[i], k) != 0)
            continue;
        *text = newline + 1;
        return true;
    }
    return false;
}

/* Names the first line in which the settings of the checkpoint and of the run differ. */
static firn_status compare_settings(firn_context *ctx, firn_string was, const char *is)
{
    const char *a = was.data, *const end = was.data + was.size, *const is_end = is + strlen(is);

    for (;;) {
        while (skip_unset(&a, end))
            continue;
        while (skip_unset(&is, is_end))
            continue;
        if (a >= end && is >= is_end)
            return FIRN_OK;
        if (a >= end || is >= is_end)
            break;
        const char *newline = memchr(a, '\n', (size_t)(end - a));
        const size_t n = newline ? (size_t)(newline - a) : (size_t)(end - a), m = strcspn(is, "\n");
        if (n != m || memcmp(a, is, n) != 0)
            return firn_fail(ctx, FIRN_ERR_ARGUMENT,
                             "the run was started with \"%.*s\", and run.json now says \"%.*s\": the result would be "
                             "neither's",
                             (int)n, a, (int)m, is);
        a += n + (newline != NULL);
        is += m + (is[m] == '\n');
    }
    return firn_fail(ctx, FIRN_ERR_ARGUMENT, "the run was started with other options than run.json now says");
}

/* Where part i lies in the file; NULL where it has none. */
static firn_status find_part(firn_context *ctx, const firn_gguf *g, int64_t n_values, int i, const float **values)
{
    const firn_gguf_tensor *t = firn_gguf_find(g, parts[i].name);

    *values = NULL;
    if (!t && parts[i].part != FIRN_PARAMETERS_VALUES)
        return FIRN_OK;
    if (!t || t->type != FIRN_F32 || t->n_dims != 1 || t->ne[0] != n_values)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "expected a tensor %s of %lld F32 values", parts[i].name,
                         (long long)n_values);
    *values = (const float *)(const void *)t->data; /* aligned: a GGUF tensor begins at a multiple of 32 */
    return FIRN_OK;
}

/* All that the file says of an adapter of this layout, whole: values[i] [n_values] lie in it. */
static firn_status look(firn_context *ctx, const firn_gguf *g, const firn_adapter *adapter,
                        const float *values[N_PARTS], firn_position *position, firn_string *settings)
{
    firn_string type, described, hash;
    firn_sha256 sum;
    char hex[FIRN_SHA256_HEX];
    firn_text expected;

    FIRN_TRY(firn_gguf_get_string(ctx, g, "general.type", true, &type));
    FIRN_TRY(firn_gguf_get_string(ctx, g, "firn.sha256", true, &hash));
    FIRN_TRY(firn_gguf_get_string(ctx, g, "firn.layout", true, &described));
    FIRN_TRY(firn_gguf_get_string(ctx, g, "firn.settings", true, settings));
    FIRN_TRY(get_numbers(ctx, g, position));
    layout(ctx, adapter, &expected);
    const firn_status s = expected.status;
    const bool same = s == FIRN_OK && expected.size == described.size &&
                      memcmp(firn_text_cstr(&expected), described.data, described.size) == 0;
    firn_text_free(&expected);
    FIRN_TRY(s);
    if (!same)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "it belongs to an adapter of other tensors or shapes");
    for (int i = 0; i < N_PARTS; i++)
        FIRN_TRY(find_part(ctx, g, adapter->n_values, i, &values[i]));
    begin_hash(&sum, described, *settings, position, adapter->n_values);
    for (int i = 0; i < N_PARTS; i++)
        if (values[i])
            firn_sha256_add(&sum, values[i], (size_t)adapter->n_values * sizeof(float));
    firn_sha256_hex(&sum, hex);
    if (hash.size != strlen(hex) || memcmp(hash.data, hex, hash.size) != 0)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "its content does not have the SHA-256 that it names: it is damaged");
    for (int i = 0; i < N_PARTS; i++)
        if (values[i])
            FIRN_TRY(check_values(ctx, i, 0, adapter->n_values, values[i]));
    return FIRN_OK;
}

firn_status firn_checkpoint_adapter(firn_context *ctx, const firn_gguf *g, firn_adapter *adapter)
{
    const float *values[N_PARTS];
    firn_position position;
    firn_string settings;

    FIRN_TRY(look(ctx, g, adapter, values, &position, &settings));
    memcpy(adapter->values, values[0], (size_t)adapter->n_values * sizeof(float));
    return FIRN_OK;
}

static firn_status read_file(firn_context *ctx, const firn_gguf *g, int64_t step, firn_parameters *store,
                             firn_position *position, const char *now)
{
    const float *values[N_PARTS];
    firn_string settings;

    FIRN_TRY(look(ctx, g, store->adapter, values, position, &settings));
    if (position->step != step)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "it says that it is of step %lld", (long long)position->step);
    for (int i = 0; i < N_PARTS; i++)
        if ((values[i] != NULL) != has(store, i))
            return firn_fail(ctx, FIRN_ERR_FORMAT, "it %s a tensor %s, and this run's optimizer %s",
                             values[i] ? "has" : "lacks", parts[i].name, values[i] ? "has no moments" : "needs it");
    FIRN_TRY(compare_settings(ctx, settings, now));
    for (int i = 0; i < N_PARTS; i++)
        if (values[i])
            FIRN_TRY(firn_parameters_write(store, parts[i].part, 0, store->n, values[i]));
    return FIRN_OK;
}

firn_status firn_checkpoint_read(firn_context *ctx, const char *folder, int64_t step, firn_parameters *store,
                                 firn_position *position, const char *settings)
{
    firn_position at;
    char path[PATH_BYTES];
    firn_gguf *g;

    FIRN_TRY(path_of(ctx, folder, "step-", step, path));
    FIRN_TRY(firn_gguf_open(ctx, path, &g));
    firn_status s = read_file(ctx, g, step, store, &at, settings);
    firn_gguf_close(g);
    if (s != FIRN_OK)
        return firn_fail_in(ctx, s, "%s", path);
    *position = at;
    return FIRN_OK;
}

static firn_status read_best(firn_context *ctx, const firn_gguf *g, int64_t step, firn_parameters *store)
{
    const float *values[N_PARTS];
    firn_position position;
    firn_string settings;

    FIRN_TRY(look(ctx, g, store->adapter, values, &position, &settings));
    if (position.step != step)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "it says that it is of step %lld", (long long)position.step);
    return firn_parameters_write(store, FIRN_PARAMETERS_VALUES, 0, store->n, values[0]);
}

firn_status firn_checkpoint_read_best(firn_context *ctx, const char *folder, int64_t step, firn_parameters *store)
{
    char path[PATH_BYTES];
    firn_gguf *g;

    FIRN_TRY(path_of(ctx, folder, "best-", step, path));
    FIRN_TRY(firn_gguf_open(ctx, path, &g));
    const firn_status s = read_best(ctx, g, step, store);
    firn_gguf_close(g);
    return s == FIRN_OK ? FIRN_OK : firn_fail_in(ctx, s, "%s", path);
}
