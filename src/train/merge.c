/* Adapters merged into a model: see firn/merge.h.
 *
 * A row of W at a time: decoded, s B[o, :] A added (divided by the tensor's .scale, which multiplies W x and not the
 * update), encoded, decoded again and compared. Weights that come from a packed file lie on that format's grid, and an
 * update below half a step is rounded away when they go back onto it; a finer format has other grid points, so that
 * most of the update survives on average though each weight is rounded. That is measured on some rows of each tensor
 * before anything is written, in types of ever more bits, and again on all rows as they are written.
 *
 * Rows are cut by shape and sums added up row by row in their order: the same file for any number of threads. */
#include "firn/merge.h"

#include "core/pool.h"
#include "core/sha256.h"
#include "core/sized.h"
#include "format/encode.h"
#include "format/fallback.h"
#include "format/format.h"
#include "format/range.h"
#include "gguf/gguf.h"
#include "model/stack.h"
#include "train/adapters.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SAMPLE_ROWS = 96, ROUND_BYTES = 1 << 21 };

static const double LEAST = 0.9;

/* Squares: of W, dW, W + dW, W' - (W + dW); and the product of W' - W and dW. */
typedef struct {
    double w, d, sum, error, product;
} measure;

/* One tensor of the file, changed by an entry from its expert `first` on. */
typedef struct {
    const firn_adapter_entry *entry;
    int64_t first;
    const firn_gguf_tensor *factor; /* .scale of W, or NULL */
    firn_type type;
} change;

typedef struct {
    firn_context *ctx;
    const firn_model *model;
    const firn_adapter *adapter;
    firn_merge_options options;
    firn_merge_report report;
    const firn_gguf *in;
    firn_gguf_writer *out;
    change *changes; /* [tensors of the file]; entry NULL: copied */
    char *packed;    /* rows of a round */
    measure *rows;   /* [rows of a round] */
    float *lines;    /* [threads][3][longest row] */
    int64_t longest, most_rows;
    size_t packed_bytes;
} merging;

/* ---- rows ---- */

typedef struct {
    const merging *m;
    const change *c;
    const firn_gguf_tensor *t;
    firn_type type;
    int64_t first, step, n; /* rows first, first + step, ... */
    atomic_llong next;
    atomic_bool bad;
    _Atomic float lost;
} round_job;

static double factor_of(const change *c, int64_t expert)
{
    const float *f = c->factor ? (const float *)(const void *)c->factor->data : NULL;

    return f ? (double)f[c->factor->ne[0] > 1 ? expert : 0] : 1;
}

/* dW of a row of the tensor. */
static void update_row(const merging *m, const change *c, int64_t row, float *d)
{
    const firn_adapter_entry *e = c->entry;
    const int64_t expert = c->first + row / e->n_out, o = row % e->n_out;
    const float *a = m->adapter->values + e->a + expert * e->rank * e->n_in;
    const float *b = m->adapter->values + e->b + (expert * e->n_out + o) * e->rank;
    const double scale = (double)e->scale / factor_of(c, expert);

    memset(d, 0, (size_t)e->n_in * sizeof *d);
    for (int64_t r = 0; r < e->rank; r++) {
        const float x = (float)(scale * (double)b[r]);
        for (int64_t k = 0; k < e->n_in; k++)
            d[k] += x * a[r * e->n_in + k];
    }
}

static void merge_row(round_job *r, int64_t i, float *w, float *d, float *y)
{
    const int64_t n = r->t->ne[0], row = r->first + i * r->step;
    char *dst = r->m->packed + (size_t)i * firn_row_bytes(r->type, n);
    measure s = {0, 0, 0, 0, 0};

    firn_decode_row(r->t->type, r->t->data + (size_t)row * firn_row_bytes(r->t->type, n), n, w);
    update_row(r->m, r->c, row, d);
    for (int64_t k = 0; k < n; k++)
        y[k] = w[k] + d[k];
    if (!firn_all_finite(y, n)) {
        atomic_store(&r->bad, true);
        return;
    }
    firn_encode_row(r->type, y, n, NULL, dst);
    const float lost = r->type == FIRN_F32 ? 0 : firn_format_lost(r->type, y, n, dst);
    if (lost > 0)
        atomic_store(&r->lost, lost);
    for (int64_t k = 0; k < n; k++) {
        s.w += (double)w[k] * (double)w[k];
        s.d += (double)d[k] * (double)d[k];
        s.sum += (double)y[k] * (double)y[k];
    }
    /* y becomes W'; W + dW is needed as it was in float, which w + d gives again. */
    firn_decode_row(r->type, dst, n, y);
    for (int64_t k = 0; k < n; k++) {
        const double error = (double)y[k] - (double)(w[k] + d[k]);
        s.error += error * error;
        s.product += ((double)y[k] - (double)w[k]) * (double)d[k];
    }
    r->m->rows[i] = s;
}

static void run_round(void *argument, firn_team team)
{
    round_job *r = argument;
    float *line = r->m->lines + team.ith * 3 * r->m->longest;
    int64_t begin, end;

    while (firn_team_take(&r->next, r->n, 1, &begin, &end))
        for (; begin < end; begin++)
            merge_row(r, begin, line, line + r->m->longest, line + 2 * r->m->longest);
}

/* Rows first, first + step ... into packed, and what they measure added to *sum. */
static firn_status do_round(merging *m, const change *c, const firn_gguf_tensor *t, firn_type type, int64_t first,
                            int64_t step, int64_t n, bool sample, measure *sum)
{
    round_job r = {.m = m, .c = c, .t = t, .type = type, .first = first, .step = step, .n = n};
    firn_pool *pool = firn_context_pool(m->ctx);

    if (!pool)
        return FIRN_ERR_MEMORY;
    firn_pool_run(pool, run_round, &r);
    const float lost = atomic_load(&r.lost);
    if (atomic_load(&r.bad))
        return firn_fail(m->ctx, FIRN_ERR_FORMAT, "with the adapter's update %s has weights that are not finite",
                         t->name);
    if (lost > 0 && !sample)
        return firn_fail_lost(m->ctx, t->name, type, lost);
    for (int64_t i = 0; i < n; i++) {
        const measure *s = &m->rows[i];
        sum->w += s->w;
        sum->d += s->d;
        sum->sum += s->sum;
        sum->error += s->error;
        sum->product += s->product;
    }
    if (lost > 0)
        sum->product = -INFINITY; /* not this type */
    return FIRN_OK;
}

static int64_t rows_of(const firn_gguf_tensor *t)
{
    return t->ne[1] * t->ne[2] * t->ne[3];
}

static int64_t round_rows(const merging *m, firn_type type, int64_t n)
{
    return firn_max_i64(1, firn_min_i64(m->most_rows, (int64_t)(m->packed_bytes / firn_row_bytes(type, n))));
}

static double survival(const measure *s)
{
    return s->d > 0 ? s->product / s->d : 1;
}

/* ---- which type ---- */

/* The types that keep a row better than `type` does, in order; false past the last. */
static bool next_type(firn_type type, int64_t n, firn_type *better)
{
    static const firn_type ladder[] = {FIRN_Q4_K, FIRN_Q5_K, FIRN_Q6_K, FIRN_Q8_0, FIRN_F16, FIRN_F32};
    const size_t bytes = firn_row_bytes(type, n);

    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++) {
        const firn_type t = firn_quantize_fallback(ladder[i], n);
        if (n % firn_type_block(t) == 0 && firn_row_bytes(t, n) > bytes) {
            *better = t;
            return true;
        }
    }
    return false;
}

static firn_status choose_type(merging *m, change *c, const firn_gguf_tensor *t)
{
    const int64_t n = t->ne[0], rows = rows_of(t), step = firn_max_i64(1, rows / SAMPLE_ROWS);
    const firn_merge_options *o = &m->options;

    if (o->type) {
        c->type = firn_quantize_keeps_f32(t->name, t->n_dims) && t->type == FIRN_F32
                      ? FIRN_F32
                      : firn_quantize_fallback(*o->type, n);
        return FIRN_OK;
    }
    for (c->type = t->type;;) {
        if (firn_format_encoder(c->type)) {
            measure sum = {0, 0, 0, 0, 0};
            const int64_t count = (rows + step - 1) / step;
            for (int64_t at = 0; at < count;) {
                const int64_t some = firn_min_i64(round_rows(m, c->type, n), count - at);
                FIRN_TRY(do_round(m, c, t, c->type, at * step, step, some, true, &sum));
                at += some;
            }
            if (survival(&sum) >= o->least || c->type == FIRN_F32)
                return FIRN_OK;
        }
        if (!next_type(c->type, n, &c->type))
            c->type = FIRN_F32;
    }
}

/* ---- the tensors of the file ---- */

static firn_status note(merging *m, const firn_gguf_tensor *t, const firn_adapter_entry *e, int64_t first,
                        const firn_gguf_tensor *factor)
{
    const size_t i = (size_t)(t - firn_gguf_tensor_at(m->in, 0));

    assert(firn_gguf_tensor_at(m->in, i) == t);
    m->changes[i] = (change){.entry = e, .first = first, .factor = factor};
    for (int64_t x = 0; factor && x < factor->ne[0]; x++)
        FIRN_EXPECT(m->ctx, isnormal(((const float *)(const void *)factor->data)[x]),
                    "%s is multiplied by %s, of which value %lld is %g: no weight has the adapter's effect", t->name,
                    factor->name, (long long)x, (double)((const float *)(const void *)factor->data)[x]);
    m->longest = firn_max_i64(m->longest, t->ne[0]);
    return FIRN_OK;
}

/* Everything that the entry changes, perhaps one tensor for each expert. Those get one type. */
static firn_status find_changes(merging *m, const firn_adapter_entry *e)
{
    int layer;
    firn_tensor_id id;
    bool bias;
    const firn_model *model = m->model;
    const firn_gguf_tensor *t = firn_model_find(model, e->tensor, &layer, &id, &bias);

    FIRN_EXPECT(m->ctx, t && t->ne[0] == e->n_in && t->ne[1] == e->n_out && t->ne[2] == e->n_expert,
                "the adapter changes %s, which this model does not have in that shape", e->tensor);
    const firn_stack *stack = layer >= 0 ? model->layers[layer].stack[id] : NULL;
    /* The router's own factor belongs to its input, and so to the adapter's too. */
    const bool none = model->arch->own_factors && layer >= 0 && id == FIRN_T_FFN_GATE_INP;
    const firn_gguf_tensor *factor = none ? NULL : layer >= 0 ? model->layers[layer].factor[id] : model->output_factor;
    for (int64_t x = 0; stack && x < e->n_expert; x++)
        FIRN_TRY(note(m, stack->part[x], e, x, factor));
    return stack ? FIRN_OK : note(m, t, e, 0, factor);
}

static firn_status choose_types(merging *m)
{
    const firn_adapter_entry *before = NULL;
    firn_type type = FIRN_F32;

    for (size_t i = 0; i < firn_gguf_n_tensors(m->in); i++) {
        change *c = &m->changes[i];
        if (!c->entry)
            continue;
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->in, i);
        if (t->ne[2] == 1 && c->entry->n_expert > 1) { /* parts of a stack: all as the first one */
            for (size_t k = 0; k < i && c->entry != before; k++)
                if (m->changes[k].entry == c->entry) {
                    before = c->entry;
                    type = m->changes[k].type;
                }
            if (before == c->entry) {
                c->type = type;
                continue;
            }
        }
        FIRN_TRY(choose_type(m, c, t));
    }
    return FIRN_OK;
}

/* ---- the file ---- */

/* firn.merged: what was there, and the SHA-256 of this adapter's tensors and values. */
static firn_status put_merged(merging *m)
{
    const firn_kv *kv = firn_gguf_kv(m->in, "firn.merged");
    const uint64_t n = kv && kv->type == FIRN_KV_ARRAY && kv->strings ? kv->n : 0;
    firn_string *all = firn_alloc(m->ctx, (size_t)(n + 1) * sizeof *all);
    char hex[FIRN_SHA256_HEX];
    firn_sha256 hash;

    if (!all)
        return FIRN_ERR_MEMORY;
    if (n)
        memcpy(all, kv->strings, (size_t)n * sizeof *all);
    firn_sha256_init(&hash);
    for (int i = 0; i < m->adapter->n_entries; i++) {
        const firn_adapter_entry *e = &m->adapter->entries[i];
        firn_sha256_add(&hash, e->tensor, strlen(e->tensor) + 1);
        firn_sha256_add(&hash, &e->scale, sizeof e->scale);
    }
    firn_sha256_add(&hash, m->adapter->values, (size_t)m->adapter->n_values * sizeof(float));
    firn_sha256_hex(&hash, hex);
    all[n] = (firn_string){hex, strlen(hex)};
    const firn_status s = firn_gguf_put_strings(m->out, "firn.merged", all, n + 1);
    firn_free(m->ctx, all);
    return s;
}

static firn_type written(const merging *m, size_t i)
{
    return m->changes[i].entry ? m->changes[i].type : firn_gguf_tensor_at(m->in, i)->type;
}

static firn_status describe(merging *m)
{
    bool packed = false;

    for (size_t i = 0; i < firn_gguf_n_kv(m->in); i++)
        FIRN_TRY(firn_gguf_put_kv(m->out, firn_gguf_kv_at(m->in, i)));
    for (size_t i = 0; i < firn_gguf_n_tensors(m->in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->in, i);
        packed |= firn_type_block(written(m, i)) > 1;
        FIRN_TRY(firn_gguf_add_tensor(m->out, t->name, written(m, i), t->n_dims, t->ne));
    }
    if (packed)
        FIRN_TRY(firn_gguf_put_u32(m->out, "general.quantization_version", 2));
    return put_merged(m);
}

static firn_status write_changed(merging *m, const firn_gguf_tensor *t, const change *c)
{
    const int64_t n = t->ne[0], rows = rows_of(t), most = round_rows(m, c->type, n);
    measure sum = {0, 0, 0, 0, 0};

    for (int64_t at = 0; at < rows; at += most) {
        const int64_t some = firn_min_i64(most, rows - at);
        FIRN_TRY(do_round(m, c, t, c->type, at, 1, some, false, &sum));
        FIRN_TRY(firn_gguf_writer_data(m->out, m->packed, (size_t)some * firn_row_bytes(c->type, n)));
        firn_gguf_release(m->in, t);
    }
    const firn_merge_tensor told = {.size = sizeof told,
                                    .tensor = t,
                                    .type = c->type,
                                    .update = sum.w > 0 ? sqrt(sum.d / sum.w) : 0,
                                    .survives = survival(&sum),
                                    .error = sum.sum > 0 ? sqrt(sum.error / sum.sum) : 0};
    if (m->options.tensor)
        m->options.tensor(m->options.user, &told);
    return FIRN_OK;
}

static firn_status write_all(merging *m)
{
    for (size_t i = 0; i < firn_gguf_n_tensors(m->in); i++) {
        const firn_gguf_tensor *t = firn_gguf_tensor_at(m->in, i);
        const change *c = &m->changes[i];
        FIRN_TRY(c->entry ? write_changed(m, t, c) : firn_gguf_writer_copy(m->out, m->in, t));
        m->report.n_tensors++;
        m->report.n_changed += c->entry != NULL;
        m->report.n_retyped += written(m, i) != t->type;
        m->report.bytes_in += t->size;
        m->report.bytes_out += firn_row_bytes(written(m, i), t->ne[0]) * (uint64_t)rows_of(t);
    }
    return FIRN_OK;
}

static firn_status allocate(merging *m)
{
    const size_t threads = (size_t)firn_context_threads(m->ctx);

    m->packed_bytes = (size_t)firn_max_i64(ROUND_BYTES, m->longest * (int64_t)sizeof(float));
    m->most_rows = 4096;
    m->packed = firn_alloc(m->ctx, m->packed_bytes);
    m->rows = firn_alloc_zeroed(m->ctx, (size_t)m->most_rows, sizeof *m->rows);
    m->lines = firn_alloc_zeroed(m->ctx, threads * 3 * (size_t)m->longest, sizeof *m->lines);
    return m->packed && m->rows && m->lines ? FIRN_OK : FIRN_ERR_MEMORY;
}

static firn_status merge(merging *m, const char *out)
{
    FIRN_TRY(firn_gguf_refuse_part(m->ctx, m->in, out));
    for (int i = 0; i < m->adapter->n_entries; i++)
        FIRN_TRY(find_changes(m, &m->adapter->entries[i]));
    FIRN_TRY(allocate(m));
    FIRN_TRY(choose_types(m));
    FIRN_TRY(firn_gguf_writer_create(m->ctx, &m->out));
    FIRN_TRY(describe(m));
    FIRN_TRY(firn_gguf_writer_begin(m->out, out));
    FIRN_TRY(write_all(m));
    FIRN_TRY(firn_gguf_unchanged(m->ctx, m->in));
    return firn_gguf_writer_finish(m->out);
}

firn_status firn_merge(firn_context *ctx, const firn_model *model, const firn_adapter *adapter, const char *out,
                       const firn_merge_options *options, firn_merge_report *report)
{
    FIRN_GIVEN(ctx, ctx, model, adapter, out);
    merging m = {
        .ctx = ctx, .model = model, .adapter = adapter, .in = model->gguf, .report = {.size = sizeof m.report}};

    FIRN_TRY(options ? FIRN_TAKE(ctx, firn_merge_options, user, options, &m.options) : FIRN_OK);
    FIRN_TRY(report ? FIRN_ROOM(ctx, firn_merge_report, bytes_out, report) : FIRN_OK);
    m.options.least = m.options.least == 0 ? LEAST : m.options.least;
    FIRN_EXPECT(ctx, m.options.least > 0 && m.options.least <= 1,
                "the least share that survives is above 0 and at "
                "most 1, not %g",
                m.options.least);
    FIRN_EXPECT(ctx, !m.options.type || (firn_type_name(*m.options.type) && firn_format_encoder(*m.options.type)),
                "type %d cannot be written", m.options.type ? (int)*m.options.type : 0);
    m.changes = firn_alloc_zeroed(ctx, firn_gguf_n_tensors(m.in), sizeof *m.changes);
    const firn_status s = m.changes ? merge(&m, out) : FIRN_ERR_MEMORY;
    firn_gguf_writer_destroy(m.out);
    firn_free(ctx, m.changes);
    firn_free(ctx, m.packed);
    firn_free(ctx, m.rows);
    firn_free(ctx, m.lines);
    if (report)
        firn_sized_give(report, &m.report);
    return s;
}
