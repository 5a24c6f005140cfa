/* A checkpoint is a GGUF file (general.type "firn.checkpoint") with three F32 tensors [n_values] in the layout of the
 * adapter's flat buffer: `adapter`, `adam.m`, `adam.v`; keys firn.step, firn.epoch, firn.window, firn.metrics_bytes
 * (i64 each, as arrays of one), firn.seconds and the losses (f64, likewise), and firn.layout: a text that names every
 * adapted tensor with its shape, so that a checkpoint is never read into another adapter. */
#include "train/checkpoint.h"

#include "core/buffer.h"
#include "core/file.h"
#include "firn/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static void layout(firn_context *ctx, const firn_adapter *adapter, firn_text *text)
{
    firn_text_init(text, ctx, 0);
    for (int i = 0; i < adapter->n_entries; i++) {
        const firn_adapter_entry *e = &adapter->entries[i];
        firn_text_printf(text, "%s %lld %lld %lld %lld %lld %lld\n", e->tensor, (long long)e->n_in, (long long)e->n_out,
                         (long long)e->n_expert, (long long)e->rank, (long long)e->a, (long long)e->b);
    }
}

static firn_status path_of(firn_context *ctx, const char *folder, int64_t step, char *path)
{
    if (snprintf(path, PATH_BYTES, "%s/step-%08lld.gguf", folder, (long long)step) >= PATH_BYTES)
        return firn_fail(ctx, FIRN_ERR_IO, "the path %.60s... is too long", folder);
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
    return firn_gguf_put_array(w, "firn.eval_loss", FIRN_KV_F64, &p->eval_loss, 1);
}

static firn_status write_file(firn_gguf_writer *w, const char *path, const firn_adapter *adapter,
                              const firn_text *described, const float *m, const float *v, const firn_position *position)
{
    static const char *const names[] = {"adapter", "adam.m", "adam.v"};
    const float *const values[] = {adapter->values, m, v};

    FIRN_TRY(firn_gguf_put_string(w, "general.type", "firn.checkpoint", strlen("firn.checkpoint")));
    FIRN_TRY(firn_gguf_put_string(w, "firn.layout", firn_text_cstr(described), described->size));
    FIRN_TRY(put_numbers(w, position));
    for (int i = 0; i < 3; i++)
        FIRN_TRY(firn_gguf_add_tensor(w, names[i], FIRN_F32, 1, &adapter->n_values));
    FIRN_TRY(firn_gguf_writer_begin(w, path));
    for (int i = 0; i < 3; i++)
        FIRN_TRY(firn_gguf_writer_data(w, values[i], (size_t)adapter->n_values * sizeof *m));
    return firn_gguf_writer_finish(w);
}

static bool step_of(const char *name, int64_t *step)
{
    char *end;

    if (strncmp(name, "step-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return false;
    *step = strtoll(name + 5, &end, 10);
    return strcmp(end, ".gguf") == 0;
}

void firn_checkpoint_sweep(const char *folder)
{
    DIR *dir = opendir(folder);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, "step-", 5) == 0 && (strstr(e->d_name, ".gguf.tmp") || strstr(e->d_name, ".gguf.lock")))
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
        if (path_of(ctx, folder, step, path) != FIRN_OK || unlink(path) < 0)
            return;
    }
}

firn_status firn_checkpoint_write(firn_context *ctx, const char *folder, const firn_adapter *adapter, const float *m,
                                  const float *v, const firn_position *position, int64_t keep)
{
    char path[PATH_BYTES];
    firn_gguf_writer *w;
    firn_text described;

    FIRN_TRY(firn_make_folder(ctx, folder, NULL));
    FIRN_TRY(path_of(ctx, folder, position->step, path));
    FIRN_TRY(firn_gguf_writer_create(ctx, &w));
    layout(ctx, adapter, &described);
    firn_status s = described.status;
    if (s == FIRN_OK)
        s = write_file(w, path, adapter, &described, m, v, position);
    firn_text_free(&described);
    firn_gguf_writer_destroy(w);
    if (s == FIRN_OK)
        clean(ctx, folder, keep);
    return s;
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
        if (step_of(e->d_name, &s) && s < below && s > *step)
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

static firn_status get_numbers(firn_context *ctx, const firn_gguf *g, firn_position *p)
{
    FIRN_TRY(get(ctx, g, "firn.step", FIRN_KV_I64, &p->step));
    FIRN_TRY(get(ctx, g, "firn.epoch", FIRN_KV_I64, &p->epoch));
    FIRN_TRY(get(ctx, g, "firn.window", FIRN_KV_I64, &p->window));
    FIRN_TRY(get(ctx, g, "firn.metrics_bytes", FIRN_KV_I64, &p->metrics_bytes));
    FIRN_TRY(get(ctx, g, "firn.seconds", FIRN_KV_F64, &p->seconds));
    FIRN_TRY(get(ctx, g, "firn.eval_loss_before", FIRN_KV_F64, &p->eval_loss_before));
    FIRN_TRY(get(ctx, g, "firn.eval_loss", FIRN_KV_F64, &p->eval_loss));
    if (p->epoch < 0 || p->window < 0 || p->metrics_bytes < 0 || !(p->seconds >= 0))
        return firn_fail(ctx, FIRN_ERR_FORMAT, "the position in it is no position");
    return FIRN_OK;
}

static firn_status read_file(firn_context *ctx, const firn_gguf *g, firn_adapter *adapter, float *m, float *v,
                             firn_position *position)
{
    static const char *const names[] = {"adapter", "adam.m", "adam.v"};
    float *const values[] = {adapter->values, m, v};
    firn_string type, described;
    firn_text expected;

    FIRN_TRY(firn_gguf_get_string(ctx, g, "general.type", true, &type));
    FIRN_TRY(firn_gguf_get_string(ctx, g, "firn.layout", true, &described));
    FIRN_TRY(get_numbers(ctx, g, position));
    layout(ctx, adapter, &expected);
    const firn_status s = expected.status;
    const bool same = s == FIRN_OK && expected.size == described.size &&
                      memcmp(firn_text_cstr(&expected), described.data, described.size) == 0;
    firn_text_free(&expected);
    FIRN_TRY(s);
    if (!same)
        return firn_fail(ctx, FIRN_ERR_FORMAT, "it belongs to an adapter of other tensors or shapes");
    for (int i = 0; i < 3; i++) {
        const firn_gguf_tensor *t = firn_gguf_find(g, names[i]);
        if (!t || t->type != FIRN_F32 || t->n_dims != 1 || t->ne[0] != adapter->n_values)
            return firn_fail(ctx, FIRN_ERR_FORMAT, "expected a tensor %s of %lld F32 values", names[i],
                             (long long)adapter->n_values);
        memcpy(values[i], t->data, t->size);
    }
    return FIRN_OK;
}

firn_status firn_checkpoint_read(firn_context *ctx, const char *folder, int64_t step, firn_adapter *adapter, float *m,
                                 float *v, firn_position *position)
{
    char path[PATH_BYTES];
    firn_gguf *g;

    FIRN_TRY(path_of(ctx, folder, step, path));
    FIRN_TRY(firn_gguf_open(ctx, path, &g));
    firn_status s = read_file(ctx, g, adapter, m, v, position);
    firn_gguf_close(g);
    if (s == FIRN_OK && position->step != step)
        s = firn_fail(ctx, FIRN_ERR_FORMAT, "it says that it is of step %lld", (long long)position->step);
    return s == FIRN_OK ? s : firn_fail_in(ctx, s, "%s", path);
}
