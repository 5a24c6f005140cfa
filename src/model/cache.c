/* The key/value cache, F32: for each block k [k_row, rows] and v [v_row, rows], in the order of the blocks.
 *
 * A block without a window has a row for each of n_ctx tokens. One with a window reads the last window - 1 tokens and
 * those that are fed with it, so it has rows for positions [first, first + n_rows); where the next tokens would not
 * fit, the rows that are still needed move to the front. The keys that a token sees thus follow each other, which is
 * what ATTENTION asks for (op/attention.c), and a row moves once in many tokens.
 *
 * Sums are taken over the same tiles of keys as over a row for each token, and have the same bits: `first` is a
 * multiple of FIRN_ATTENTION_TILE. BACK rows more than needed are kept, so that a few tokens can be taken back.
 *
 * Blocks without keys of their own read those of another, which has gone before them.
 *
 * Blocks with a state keep it and the last tokens that their filters saw, the same bytes however many tokens there
 * were. A copy stays of what all kept before the last tokens that were fed several at a time, which is where a turn of
 * a conversation begins, or the last part of a long prompt: going back behind it is feeding again from there, further
 * back it is feeding all.
 *
 * Called by generate.c. */
#include "model/cache.h"

#include "core/backend.h"
#include "firn/ops.h"

enum { TILE = FIRN_ATTENTION_TILE, BACK = 128 };

/* Rows in front of the next token that stay when rows move. */
static int64_t kept(const firn_model *m)
{
    return m->hp.window - 1 + BACK;
}

static bool any_window(const firn_model *m)
{
    for (int64_t i = 0; i < m->hp.n_layer; i++)
        if (m->layers[i].window)
            return true;
    return false;
}

static int64_t window_rows(const firn_model *m, int64_t n_ctx, int64_t batch)
{
    if (!any_window(m))
        return n_ctx; /* nothing moves */
    const int64_t between_moves = batch + firn_max_i64(m->hp.window / 4, batch);
    const int64_t rows = kept(m) + TILE - 1 + between_moves;

    return firn_min_i64((rows + TILE - 1) / TILE * TILE, n_ctx);
}

static uint64_t bytes_of(int64_t row, int64_t rows)
{
    return (uint64_t)row * (uint64_t)rows * sizeof(float);
}

/* Where block `layer`'s parts begin; for the number of blocks, how large all are. */
static void places(const firn_model *m, int64_t layer, int64_t n_ctx, int64_t n_rows, uint64_t *k, uint64_t *v)
{
    *k = *v = 0;
    for (int64_t i = 0; i < layer; i++) {
        const firn_layer *l = &m->layers[i];
        *k += bytes_of(l->k_row, l->window ? n_rows : n_ctx);
        *v += bytes_of(l->v_row, l->window ? n_rows : n_ctx);
    }
}

/* Where what block `layer` keeps begins. */
static uint64_t state_place(const firn_model *m, int64_t layer)
{
    uint64_t bytes = 0;

    for (int64_t i = 0; i < layer; i++)
        bytes += bytes_of(m->layers[i].kept, 1);
    return bytes;
}

uint64_t firn_cache_bytes(const firn_model *m, int64_t n_ctx, int64_t batch)
{
    uint64_t k, v;

    places(m, m->hp.n_layer, n_ctx, window_rows(m, n_ctx, batch), &k, &v);
    return k + v + 2 * state_place(m, m->hp.n_layer);
}

int64_t firn_cache_rows(const firn_cache *c, int64_t layer)
{
    return c->model->layers[layer].window ? c->n_rows : c->n_ctx;
}

firn_status firn_cache_bind(const firn_cache *c, const firn_block *block, firn_exec *exec, int64_t layer)
{
    uint64_t k, v;

    uint64_t at = state_place(c->model, layer);
    for (size_t i = 0; i < sizeof block->kept / sizeof *block->kept; i++)
        if (block->kept[i]) {
            FIRN_TRY(firn_exec_bind(exec, block->kept[i], c->states, (size_t)at));
            at += (uint64_t)firn_n_bytes(block->kept[i]);
        }
    if (!block->k_cache)
        return FIRN_OK;
    places(c->model, c->model->layers[layer].keys_of, c->n_ctx, c->n_rows, &k, &v);
    FIRN_TRY(firn_exec_bind(exec, block->k_cache, c->k, (size_t)k));
    return block->v_cache ? firn_exec_bind(exec, block->v_cache, c->v, (size_t)v) : FIRN_OK;
}

/* ---- moving ---- */

/* Rows [from, from + n) of the part at `at` to its front, on the device. */
static firn_status move(firn_buffer *buffer, uint64_t at, int64_t row, int64_t from, int64_t n)
{
    return firn_queue_copy(FIRN_QUEUE_COMPUTE, buffer, (size_t)at, buffer, (size_t)(at + bytes_of(row, from)),
                           (size_t)bytes_of(row, n));
}

firn_status firn_cache_make_room(firn_cache *c, int64_t length, int64_t n)
{
    const int64_t first = firn_max_i64(length - kept(c->model), 0) / TILE * TILE;
    uint64_t k, v;

    if (length + n <= c->first + c->n_rows)
        return FIRN_OK;
    FIRN_TRY(firn_device_wait(c->device)); /* what has failed says so before anything moves */
    for (int64_t i = 0; i < c->model->hp.n_layer; i++) {
        const firn_layer *l = &c->model->layers[i];
        if (!l->window)
            continue;
        places(c->model, i, c->n_ctx, c->n_rows, &k, &v);
        FIRN_TRY(move(c->k, k, l->k_row, first - c->first, length - first));
        if (l->v_row)
            FIRN_TRY(move(c->v, v, l->v_row, first - c->first, length - first));
    }
    c->first = first;
    return FIRN_OK;
}

/* ---- going back ---- */

firn_status firn_cache_remember(firn_cache *c, int64_t length)
{
    c->remembered = 0;
    if (!c->states || length == 0)
        return FIRN_OK;
    FIRN_TRY(firn_queue_copy(FIRN_QUEUE_COMPUTE, c->copy, 0, c->states, 0, firn_buffer_size(c->states)));
    c->remembered = length;
    return FIRN_OK;
}

static bool recall(const firn_cache *c)
{
    return firn_queue_copy(FIRN_QUEUE_COMPUTE, c->states, 0, c->copy, 0, firn_buffer_size(c->states)) == FIRN_OK;
}

int64_t firn_cache_truncate(firn_cache *c, int64_t n)
{
    const int64_t left = c->states ? c->remembered : n;
    const bool rows = c->first == 0 || left - (c->model->hp.window - 1) >= c->first;

    if (left > 0 && left <= n && rows && (!c->states || recall(c)))
        return left;
    c->first = c->remembered = 0;
    return 0;
}

/* ---- create ---- */

static firn_status prepare(firn_cache *c, int64_t batch)
{
    uint64_t k, v;

    c->n_rows = window_rows(c->model, c->n_ctx, batch);
    places(c->model, c->model->hp.n_layer, c->n_ctx, c->n_rows, &k, &v);
    FIRN_EXPECT(c->ctx, k <= SIZE_MAX && v <= SIZE_MAX,
                "the cache would have more bytes than this machine can address");
    const uint64_t states = state_place(c->model, c->model->hp.n_layer);
    if (k)
        FIRN_TRY(firn_buffer_create(c->device, (size_t)k, &c->k));
    if (states) {
        FIRN_TRY(firn_buffer_create(c->device, (size_t)states, &c->states));
        FIRN_TRY(firn_buffer_create(c->device, (size_t)states, &c->copy));
    }
    return v ? firn_buffer_create(c->device, (size_t)v, &c->v) : FIRN_OK;
}

firn_status firn_cache_create(firn_context *ctx, firn_device *device, const firn_model *model, int64_t n_ctx,
                              int64_t batch, firn_cache **cache)
{
    firn_cache *c = *cache = firn_alloc_zeroed(ctx, 1, sizeof *c);

    if (!c)
        return FIRN_ERR_MEMORY;
    c->ctx = ctx;
    c->device = device;
    c->model = model;
    c->n_ctx = n_ctx;
    const firn_status s = prepare(c, batch);
    if (s != FIRN_OK) {
        firn_cache_destroy(c);
        *cache = NULL;
    }
    return s;
}

void firn_cache_destroy(firn_cache *c)
{
    if (!c)
        return;
    firn_buffer_destroy(c->k);
    firn_buffer_destroy(c->v);
    firn_buffer_destroy(c->states);
    firn_buffer_destroy(c->copy);
    firn_free(c->ctx, c);
}
