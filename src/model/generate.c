/* Generation: tokens go through the blocks with a key/value cache; see firn/model.h.
 *
 * One plan per kind of block for a prompt's whole batches, one for single tokens, one for the last number of tokens
 * that was neither. A token's keys and values go to row `position` of its block's cache, and it sees rows
 * [0, position + 1); in blocks with a window all counted from the cache's first row, see cache.h. */
#include "core/backend.h"
#include "gguf/gguf.h"
#include "model/cache.h"
#include "model/ends.h"
#include "model/handed.h"
#include "model/parameters.h"

#include <string.h>

enum { BATCH = 128, SIZES = 3 /* a whole batch, single tokens, another number */ };

/* Plans for n tokens at a time. */
typedef struct {
    int64_t n;
    firn_embedding *embedding;
    firn_head *head;
    firn_block **kinds;
    firn_exec **execs;
    int n_kinds;
    int *kind_of; /* [n_layer] */
    firn_buffer *arena, *work;
} step;

struct firn_generator {
    firn_context *ctx;
    firn_device *device;
    const firn_model *model;
    firn_adapter *adapter;
    int64_t n_ctx, length, n_layer;
    firn_weights *weights;
    const firn_adapter_entry **entries;
    const firn_adapter_entry *output_entry;
    step *steps[SIZES];
    firn_cache *cache;
    firn_handed handed;
    firn_buffer *x, *numbers, *logits, *ids;
    firn_parameters *store; /* of the adapter, NULL without one */
    int32_t *host_numbers;
    float *host_logits;
};

/* tokens; positions, which are rows too, and ranges (2 each); the same in blocks with a window; what q is multiplied by
 * (floats); where the document begins, from the first of these tokens on; the row that the head picks */
enum {
    AT_POSITION = BATCH,
    AT_RANGE = 2 * BATCH,
    AT_WINDOW_ROW = 4 * BATCH,
    AT_WINDOW = 5 * BATCH,
    AT_TEMPERATURE = 7 * BATCH,
    AT_FIRST = 8 * BATCH,
    AT_PICK = 9 * BATCH,
    N_NUMBERS
};

static void step_destroy(firn_generator *g, step *p)
{
    if (!p)
        return;
    firn_embedding_destroy(g->ctx, p->embedding);
    firn_head_destroy(g->ctx, p->head);
    for (int i = 0; i < p->n_kinds; i++) {
        firn_exec_destroy(p->execs[i]);
        firn_block_destroy(g->ctx, p->kinds[i]);
    }
    firn_free(g->ctx, p->kinds);
    firn_free(g->ctx, p->execs);
    firn_free(g->ctx, p->kind_of);
    firn_buffer_destroy(p->arena);
    firn_buffer_destroy(p->work);
    firn_free(g->ctx, p);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static firn_buffer *values_of(const firn_generator *g)
{
    return g->store ? g->store->part[FIRN_PARAMETERS_VALUES] : NULL;
}

static firn_status step_plan(firn_generator *g, step *p)
{
    const firn_model *m = g->model;
    size_t arena = 64, work = 64;

    p->kinds = firn_alloc_zeroed(g->ctx, (size_t)g->n_layer, sizeof *p->kinds);
    p->execs = firn_alloc_zeroed(g->ctx, (size_t)g->n_layer, sizeof *p->execs);
    p->kind_of = firn_alloc_zeroed(g->ctx, (size_t)g->n_layer, sizeof *p->kind_of);
    if (!p->kinds || !p->execs || !p->kind_of)
        return FIRN_ERR_MEMORY;
    for (int64_t i = 0; i < g->n_layer; i++) {
        const firn_block_kind kind = firn_block_kind_of(m, (int)i, &g->entries[i * FIRN_T_COUNT], p->n,
                                                        firn_cache_rows(g->cache, i), false, false);
        int k = 0;
        while (k < p->n_kinds && memcmp(&p->kinds[k]->kind, &kind, sizeof kind) != 0)
            k++;
        if (k == p->n_kinds) {
            FIRN_TRY(firn_block_create(g->ctx, g->device, m, (int)i, &kind, &p->kinds[k]));
            p->n_kinds++;
            FIRN_TRY(firn_exec_create(p->kinds[k]->plan, &p->execs[k]));
        }
        p->kind_of[i] = k;
        arena = larger(arena, firn_plan_arena_bytes(p->kinds[k]->plan));
        work = larger(work, firn_plan_work_bytes(p->kinds[k]->plan));
    }
    FIRN_TRY(firn_embedding_create(g->ctx, g->device, m, p->n, &p->embedding));
    FIRN_TRY(firn_head_create(g->ctx, g->device, m, g->output_entry, p->n, 1, FIRN_HEAD_LOGITS, false, &p->head));
    const firn_plan *ends[] = {p->embedding->plan, p->head->plan};
    for (int i = 0; i < 2; i++) {
        arena = larger(arena, firn_plan_arena_bytes(ends[i]));
        work = larger(work, firn_plan_work_bytes(ends[i]));
    }
    FIRN_TRY(firn_buffer_create(g->device, arena, &p->arena));
    FIRN_TRY(firn_buffer_create(g->device, work, &p->work));

    FIRN_TRY(firn_exec_memory(p->embedding->exec, p->arena, 0, p->work, 0));
    FIRN_TRY(firn_embedding_bind(p->embedding, g->weights));
    FIRN_TRY(firn_handed_bind_embedding(&g->handed, p->embedding));
    FIRN_TRY(firn_exec_bind(p->embedding->exec, p->embedding->tokens, g->numbers, 0));
    FIRN_TRY(firn_exec_memory(p->head->exec, p->arena, 0, p->work, 0));
    FIRN_TRY(firn_head_bind(p->head, g->weights, values_of(g), NULL));
    FIRN_TRY(firn_exec_bind(p->head->exec, p->head->pick, g->numbers, AT_PICK * sizeof(int32_t)));
    return firn_exec_bind(p->head->exec, p->head->logits, g->logits, 0);
}

static firn_status step_get(firn_generator *g, int64_t n, step **result)
{
    const int i = n == BATCH ? 0 : n == 1 ? 1 : 2;

    if (g->steps[i] && g->steps[i]->n != n) {
        step_destroy(g, g->steps[i]);
        g->steps[i] = NULL;
    }
    if (!g->steps[i]) {
        step *p = firn_alloc_zeroed(g->ctx, 1, sizeof *p);
        if (!p)
            return FIRN_ERR_MEMORY;
        p->n = n;
        const firn_status s = step_plan(g, p);
        if (s != FIRN_OK) {
            step_destroy(g, p);
            return s;
        }
        g->steps[i] = p;
    }
    *result = g->steps[i];
    return FIRN_OK;
}

static size_t row_bytes(const firn_generator *g)
{
    return (size_t)g->model->hp.n_embd * sizeof(float);
}

static firn_status run_block(firn_generator *g, step *p, int64_t layer)
{
    const firn_layer *l = &g->model->layers[layer];
    firn_block *k = p->kinds[p->kind_of[layer]];
    firn_exec *exec = p->execs[p->kind_of[layer]];

    firn_weights_near(g->weights, (layer + 1) % g->n_layer);
    FIRN_TRY(firn_weights_acquire(g->weights, layer));
    FIRN_TRY(firn_exec_memory(exec, p->arena, 0, p->work, 0));
    FIRN_TRY(firn_exec_bind(exec, k->x, g->x, row_bytes(g) * BATCH * (size_t)(layer & 1)));
    FIRN_TRY(firn_exec_bind(exec, k->y, g->x, row_bytes(g) * BATCH * (size_t)((layer + 1) & 1)));
    FIRN_TRY(firn_exec_bind(exec, k->position, g->numbers, AT_POSITION * sizeof(int32_t)));
    if (k->row)
        FIRN_TRY(firn_exec_bind(exec, k->row, g->numbers, (l->window ? AT_WINDOW_ROW : AT_POSITION) * sizeof(int32_t)));
    if (k->first)
        FIRN_TRY(firn_exec_bind(exec, k->first, g->numbers, AT_FIRST * sizeof(int32_t)));
    FIRN_TRY(firn_exec_bind(exec, k->range, g->numbers, (l->window ? AT_WINDOW : AT_RANGE) * sizeof(int32_t)));
    if (k->temperature)
        FIRN_TRY(firn_exec_bind(exec, k->temperature, g->numbers, AT_TEMPERATURE * sizeof(int32_t)));
    FIRN_TRY(firn_cache_bind(g->cache, k, exec, layer));
    FIRN_TRY(firn_handed_bind(&g->handed, k, exec, layer, p->n));
    FIRN_TRY(firn_weights_bind(g->weights, exec, k->factors, firn_model_factors(g->model, g->n_ctx)));
    if (k->ids)
        FIRN_TRY(firn_exec_bind(exec, k->ids, g->ids, 0));
    FIRN_TRY(firn_block_bind(k, exec, g->weights, layer, &g->entries[layer * FIRN_T_COUNT], values_of(g), NULL));
    FIRN_TRY(firn_exec_run(exec, 0, 0));
    return firn_weights_release(g->weights, layer, (layer + 1) % g->n_layer);
}

static firn_status feed(firn_generator *g, const int32_t *tokens, int64_t n)
{
    step *p;

    FIRN_TRY(step_get(g, n, &p));
    FIRN_TRY(firn_cache_make_room(g->cache, g->length, n));
    if (n > 1)
        FIRN_TRY(firn_cache_remember(g->cache, g->length));
    for (int64_t t = 0; t < n; t++) {
        const int32_t at = (int32_t)(g->length + t), row = at - (int32_t)g->cache->first;
        const float factor = firn_model_temperature(g->model, at);
        g->host_numbers[AT_FIRST + t] = -(int32_t)g->length;
        g->host_numbers[t] = tokens[t];
        memcpy(&g->host_numbers[AT_TEMPERATURE + t], &factor, sizeof factor);
        g->host_numbers[AT_POSITION + t] = at;
        g->host_numbers[AT_RANGE + 2 * t] = 0;
        g->host_numbers[AT_RANGE + 2 * t + 1] = at + 1;
        g->host_numbers[AT_WINDOW_ROW + t] = row;
        g->host_numbers[AT_WINDOW + 2 * t] = (int32_t)firn_max_i64(0, row + 1 - g->model->hp.window);
        g->host_numbers[AT_WINDOW + 2 * t + 1] = row + 1;
    }
    g->host_numbers[AT_PICK] = (int32_t)n - 1;
    FIRN_TRY(firn_buffer_write(g->numbers, 0, g->host_numbers, N_NUMBERS * sizeof(int32_t)));
    FIRN_TRY(firn_exec_bind(p->embedding->exec, p->embedding->x, g->x, 0));
    FIRN_TRY(firn_exec_run(p->embedding->exec, 0, 0));
    for (int64_t i = 0; i < g->n_layer; i++)
        FIRN_TRY(run_block(g, p, i));
    g->length += n;
    FIRN_TRY(firn_exec_bind(p->head->exec, p->head->x, g->x, row_bytes(g) * BATCH * (size_t)(g->n_layer & 1)));
    return FIRN_OK;
}

/* In batches; the last token's logits are on the host then. */
static firn_status feed_all(firn_generator *g, const int32_t *tokens, int64_t n)
{
    step *last = NULL;

    for (int64_t at = 0; at < n;) {
        const int64_t left = n - at, take = left >= BATCH ? BATCH : left;
        FIRN_TRY(feed(g, tokens + at, take));
        FIRN_TRY(step_get(g, take, &last));
        at += take;
    }
    FIRN_TRY(firn_exec_run(last->head->exec, 0, 0));
    FIRN_TRY(firn_device_wait(g->device));
    FIRN_TRY(firn_gguf_check(g->ctx, g->model->gguf));
    return firn_buffer_read(g->logits, 0, g->host_logits, (size_t)g->model->hp.n_vocab * sizeof(float));
}

firn_status firn_generator_feed(firn_generator *g, const int32_t *tokens, int64_t n, const float **logits)
{
    FIRN_GIVEN(g ? g->ctx : NULL, g, tokens, logits);
    const int64_t v = g->model->hp.n_vocab;

    FIRN_EXPECT(g->ctx, n >= 1, "there are no tokens to feed");
    FIRN_EXPECT(g->ctx, n <= g->n_ctx - g->length, "%lld more tokens do not fit: the context has %lld, %lld are taken",
                (long long)n, (long long)g->n_ctx, (long long)g->length);
    for (int64_t i = 0; i < n; i++)
        FIRN_EXPECT(g->ctx, tokens[i] >= 0 && tokens[i] < v, "token %lld is %d; the vocabulary has 0 to %lld",
                    (long long)i, tokens[i], (long long)v - 1);
    FIRN_TRY(firn_model_allows(g->ctx, g->model, g->length + n - 1));
    const int64_t before = g->length;
    const firn_status s = feed_all(g, tokens, n);
    if (s != FIRN_OK) { /* some blocks' states are those behind these tokens, others' are not */
        g->length = firn_cache_truncate(g->cache, before);
        return s;
    }
    if (!firn_all_finite(g->host_logits, v))
        return firn_fail(
            g->ctx, FIRN_ERR_DEVICE,
            "the logits after token %lld are not finite: the model's or the adapter's numbers lead to some "
            "that F32 does not hold",
            (long long)g->length - 1);
    *logits = g->host_logits;
    return FIRN_OK;
}

static firn_status prepare(firn_generator *g)
{
    const firn_hparams *hp = &g->model->hp;

    g->entries = firn_alloc_zeroed(g->ctx, (size_t)g->n_layer * FIRN_T_COUNT, sizeof *g->entries);
    g->host_numbers = firn_alloc_zeroed(g->ctx, N_NUMBERS, sizeof *g->host_numbers);
    g->host_logits = firn_alloc(g->ctx, (size_t)hp->n_vocab * sizeof(float));
    if (!g->entries || !g->host_numbers || !g->host_logits)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_entries_find(g->ctx, g->model, g->adapter, g->entries, &g->output_entry));
    const uint64_t others = firn_generator_cache_bytes(g->model, g->n_ctx) + 2 * BATCH * row_bytes(g) +
                            firn_handed_bytes(g->model, BATCH, FIRN_HANDED_INPUTS);
    FIRN_TRY(firn_weights_create(g->ctx, g->device, g->model, g->n_layer, others, &g->weights));
    FIRN_TRY(firn_cache_create(g->ctx, g->device, g->model, g->n_ctx, BATCH, &g->cache));
    FIRN_TRY(firn_handed_create(g->device, g->model, BATCH, FIRN_HANDED_INPUTS, &g->handed));
    FIRN_TRY(firn_buffer_create(g->device, 2 * BATCH * row_bytes(g), &g->x));
    FIRN_TRY(firn_buffer_create(g->device, N_NUMBERS * sizeof(int32_t), &g->numbers));
    FIRN_TRY(firn_buffer_create(g->device, (size_t)hp->n_vocab * sizeof(float), &g->logits));
    if (hp->n_expert)
        FIRN_TRY(firn_buffer_create(g->device, (size_t)hp->n_expert_used * BATCH * sizeof(int32_t), &g->ids));
    if (g->adapter)
        FIRN_TRY(firn_parameters_create(g->ctx, g->device, g->adapter, &g->store));
    return FIRN_OK;
}

firn_status firn_generator_create(firn_context *ctx, firn_device *device, const firn_model *model,
                                  firn_adapter *adapter, int64_t n_ctx, firn_generator **generator)
{
    FIRN_GIVEN(ctx, ctx, device, model, generator);
    *generator = NULL;
    FIRN_TRY(firn_expect_device(ctx, device));
    FIRN_EXPECT(ctx, n_ctx >= 1 && n_ctx <= INT32_MAX, "a context has at least 1 token, not %lld", (long long)n_ctx);
    firn_generator *g = firn_alloc_zeroed(ctx, 1, sizeof *g);
    if (!g)
        return FIRN_ERR_MEMORY;
    g->ctx = ctx;
    g->device = device;
    g->model = model;
    g->adapter = adapter;
    g->n_ctx = n_ctx;
    g->n_layer = model->hp.n_layer;
    const firn_status s = prepare(g);
    if (s != FIRN_OK) {
        firn_generator_destroy(g);
        return s;
    }
    *generator = g;
    return FIRN_OK;
}

void firn_generator_destroy(firn_generator *g)
{
    if (!g)
        return;
    for (int i = 0; i < SIZES; i++)
        step_destroy(g, g->steps[i]);
    firn_cache_destroy(g->cache);
    firn_handed_clear(&g->handed);
    firn_buffer *buffers[] = {g->x, g->numbers, g->logits, g->ids};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        firn_buffer_destroy(buffers[i]);
    firn_parameters_drop(g->store);
    firn_weights_destroy(g->weights);
    firn_free(g->ctx, g->entries);
    firn_free(g->ctx, g->host_numbers);
    firn_free(g->ctx, g->host_logits);
    firn_free(g->ctx, g);
}

int64_t firn_generator_length(const firn_generator *g)
{
    return g ? g->length : 0;
}

void firn_generator_reset(firn_generator *g)
{
    firn_generator_truncate(g, 0);
}

int64_t firn_generator_truncate(firn_generator *g, int64_t n)
{
    if (g && n >= 0 && n < g->length)
        g->length = firn_cache_truncate(g->cache, n);
    return firn_generator_length(g);
}

uint64_t firn_generator_cache_bytes(const firn_model *model, int64_t n_ctx)
{
    return model && n_ctx > 0 && n_ctx <= INT32_MAX ? firn_cache_bytes(model, n_ctx, BATCH) : 0;
}
