/* Sessions: the block-wise pass. See firn/model.h.
 *
 * Forward keeps each block's input [d, n_tokens] and runs one block after the other. Backward goes from the head to the
 * first adapted block. A block's activations live in its arena from forward to backward where memory has room for one
 * (`slot` below), nearest to the head first; the others share one arena and are run forward again just before their
 * backward. The last block needs no arena of its own: its backward follows its forward, in the shared one.
 *
 * Weights are read in the mapped file. Plans are made once, for the largest number of tokens, and run on fewer where
 * the device plans nodes again (core/shrink.h); elsewhere per number of tokens, kept for the last few. Memory is one
 * set of buffers, sized for params.n_tokens. Nothing here depends on how many blocks are kept but time: a rebuilt
 * forward is the same launches on the same bytes.
 *
 * Called by train/step.c and the commands; calls block.h (one block), ends.h (embedding, head), weights.h. */
#include "core/backend.h"
#include "core/graph.h"
#include "core/shrink.h"
#include "core/sized.h"
#include "gguf/gguf.h"
#include "model/block.h"
#include "model/ends.h"
#include "model/handed.h"
#include "model/noise.h"
#include "model/parameters.h"

#include <math.h>
#include <string.h>

enum { MAX_PASSES = 3, ALIGN = 64 };

/* Plans for one number of tokens. */
typedef struct {
    int64_t n_tokens;
    uint64_t used; /* when last */
    firn_embedding *embedding;
    firn_head *loss, *logits;
    firn_block **kinds;
    firn_exec **execs;           /* [n_kinds] */
    firn_shrink **shrink;        /* [n_kinds] of the largest pass, where it runs on fewer tokens; else NULL */
    firn_shrink *shrink_ends[3]; /* embedding, loss, logits */
    int64_t planned, chunk;      /* tokens, and rows of the head's chunks, that it was planned for */
    int n_kinds;
    int *kind_of;  /* [n_layer] */
    size_t *arena; /* [n_layer] where in the arenas; blocks that do not keep theirs: the shared one, at 0 */
    bool *kept;    /* [n_layer] activations stay from forward to backward */
    size_t shared, arenas, work, head;
    uint64_t structure; /* bytes of graphs, plans and execs themselves */
    double flops;
} pass;

struct firn_session {
    firn_context *ctx;
    firn_device *device;
    const firn_model *model;
    firn_adapter *adapter;
    firn_session_params params;
    firn_session_memory memory;
    firn_weights *weights;
    int64_t n_layer, d;
    int64_t lowest;                     /* first block that is adapted; n_layer: none is. Backward ends there. */
    const firn_adapter_entry **entries; /* [n_layer][FIRN_T_COUNT] */
    const firn_adapter_entry *output_entry;
    bool scarce; /* the mapped weights do not fit beside the rest: pages go when a block is done */

    pass *passes[MAX_PASSES];
    uint64_t clock;

    firn_buffer *arenas, *work, *head, *inputs, *dx, *numbers, *loss, *ids, *router;
    firn_handed handed;
    firn_noise *noise;      /* NULL: not asked for */
    bool noisy;             /* the next passes get it */
    firn_parameters *store; /* of the adapter, NULL without one */
    float *gradients;       /* the host's copy, made when it is asked for */
    int64_t *expert_load;
    int64_t longest;         /* tokens of the longest document of this pass */
    double router_losses[2]; /* of the last pass, summed over router_blocks */
    int64_t router_blocks;
    int32_t *host_numbers; /* staging: what goes to `numbers` */
    float *host_weights;   /* staging: the loss's slopes, those of the router's losses behind them */
    float *host_loss;      /* staging: losses of tokens, router's losses of blocks */
    int32_t *host_ids;     /* staging: `ids` */
};

/* ---- layout of the small integers of a pass, in int32_t ---- */

static int64_t padded(const firn_session *s)
{
    const int64_t n = s->params.n_tokens;
    return (n + firn_head_chunk(s->model, n) - 1 + 128);
}
static int64_t at_tokens(void)
{
    return 0;
}
static int64_t at_position(const firn_session *s)
{
    return padded(s);
}
static int64_t at_range(const firn_session *s)
{
    return 2 * padded(s);
}
static int64_t at_window(const firn_session *s)
{
    return 4 * padded(s);
}
static int64_t at_pick(const firn_session *s)
{
    return 6 * padded(s);
}
static int64_t at_targets(const firn_session *s)
{
    return 7 * padded(s);
}
static int64_t at_temperature(const firn_session *s) /* floats */
{
    return 8 * padded(s);
}
static int64_t at_first(const firn_session *s)
{
    return 9 * padded(s);
}
static int64_t n_numbers(const firn_session *s)
{
    return 10 * padded(s);
}

/* The router's losses of each block, two floats; behind them their slopes. */
static size_t router_bytes(const firn_session *s)
{
    return s->params.router_losses ? 2 * (size_t)(s->n_layer + 1) * sizeof(float) : 0;
}

/* Block inputs have one row more than tokens: what the head's last chunk picks to fill up. */
static size_t input_bytes(const firn_session *s)
{
    return ((size_t)(s->params.n_tokens + 1) * (size_t)s->d * sizeof(float) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t input_offset(const firn_session *s, int64_t layer)
{
    return input_bytes(s) * (size_t)(s->params.train ? layer : layer & 1);
}

static size_t ids_bytes(const firn_session *s)
{
    return (size_t)s->params.n_tokens * (size_t)s->model->hp.n_expert_used * sizeof(int32_t);
}

/* ---- plans ---- */

static void shrink_destroy(firn_session *s, pass *p)
{
    for (int i = 0; p->shrink && i < p->n_kinds; i++)
        firn_shrink_destroy(p->shrink[i]);
    for (int i = 0; i < 3; i++) {
        firn_shrink_destroy(p->shrink_ends[i]);
        p->shrink_ends[i] = NULL;
    }
    firn_free(s->ctx, p->shrink);
    p->shrink = NULL;
}

static void pass_destroy(firn_session *s, pass *p)
{
    if (!p)
        return;
    firn_embedding_destroy(s->ctx, p->embedding);
    firn_head_destroy(s->ctx, p->loss);
    firn_head_destroy(s->ctx, p->logits);
    shrink_destroy(s, p);
    for (int i = 0; i < p->n_kinds; i++) {
        firn_exec_destroy(p->execs[i]);
        firn_block_destroy(s->ctx, p->kinds[i]);
    }
    firn_free(s->ctx, p->kinds);
    firn_free(s->ctx, p->execs);
    firn_free(s->ctx, p->kind_of);
    firn_free(s->ctx, p->arena);
    firn_free(s->ctx, p->kept);
    firn_free(s->ctx, p);
}

/* n_layer: no block is differentiated. */
static int64_t first_backward(const firn_session *s)
{
    return s->params.train ? s->lowest : s->n_layer;
}

static bool has_backward(const firn_session *s, int64_t layer)
{
    return layer >= first_backward(s);
}

static firn_handed_parts handed_parts(const firn_session *s)
{
    return s->params.train ? FIRN_HANDED_GRADIENTS : FIRN_HANDED_KEYS;
}

/* A graph, and what its plan and exec keep for each tensor. */
static uint64_t structure_bytes(const firn_graph *g)
{
    return g->arena.total + 128 * (uint64_t)g->n;
}

static firn_status plan_blocks(firn_session *s, pass *p)
{
    for (int64_t i = 0; i < s->n_layer; i++) {
        firn_block_kind kind = firn_block_kind_of(s->model, (int)i, &s->entries[i * FIRN_T_COUNT], p->n_tokens, 0,
                                                  has_backward(s, i), s->params.train && i > s->lowest);
        kind.router_losses = s->params.router_losses && kind.experts;
        kind.dkeys = (kind.lends || kind.borrows) && has_backward(s, s->model->layers[i].keys_of);
        int k = 0;
        while (k < p->n_kinds && memcmp(&p->kinds[k]->kind, &kind, sizeof kind) != 0)
            k++;
        if (k == p->n_kinds) {
            FIRN_TRY(firn_block_create(s->ctx, s->device, s->model, (int)i, &kind, &p->kinds[k]));
            p->n_kinds++;
            p->structure += structure_bytes(p->kinds[k]->graph);
            FIRN_TRY(firn_exec_create(p->kinds[k]->plan, &p->execs[k]));
        }
        p->kind_of[i] = k;
        const firn_plan *plan = p->kinds[k]->plan;
        p->flops += firn_plan_flops(plan, 0) + (has_backward(s, i) ? firn_plan_flops(plan, 1) : 0);
        if (firn_plan_arena_bytes(plan) > p->shared)
            p->shared = firn_plan_arena_bytes(plan);
        if (firn_plan_work_bytes(plan) > p->work)
            p->work = firn_plan_work_bytes(plan);
    }
    p->shared = (p->shared + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    return FIRN_OK;
}

static firn_plan *end_plan(const pass *p, int i)
{
    return i == 0 ? p->embedding->plan : i == 1 ? p->loss->plan : p->logits->plan;
}

static firn_graph *end_graph(const pass *p, int i)
{
    return firn_plan_graph(end_plan(p, i));
}

static firn_status plan_ends(firn_session *s, pass *p, int64_t chunk)
{
    const bool train = s->params.train;

    FIRN_TRY(firn_embedding_create(s->ctx, s->device, s->model, p->n_tokens, &p->embedding));
    FIRN_TRY(firn_head_create(s->ctx, s->device, s->model, s->output_entry, p->n_tokens + 1, chunk,
                              train ? FIRN_HEAD_GRADIENT : FIRN_HEAD_LOSS, s->lowest < s->n_layer, &p->loss));
    FIRN_TRY(firn_head_create(s->ctx, s->device, s->model, s->output_entry, p->n_tokens + 1, chunk, FIRN_HEAD_LOGITS,
                              false, &p->logits));
    const firn_plan *plans[] = {p->embedding->plan, p->loss->plan, p->logits->plan};
    for (int i = 0; i < 3; i++) {
        size_t arena = firn_plan_arena_bytes(plans[i]);
        if (i == 2) /* its result is an output, kept behind the arena */
            arena = ((arena + ALIGN - 1) & ~(size_t)(ALIGN - 1)) + firn_n_bytes(p->logits->logits);
        if (arena > p->head)
            p->head = arena;
        if (firn_plan_work_bytes(plans[i]) > p->work)
            p->work = firn_plan_work_bytes(plans[i]);
    }
    p->structure +=
        structure_bytes(p->embedding->graph) + structure_bytes(p->loss->graph) + structure_bytes(p->logits->graph);
    const double chunks = (double)p->n_tokens / (double)chunk;
    p->flops += chunks * (firn_plan_flops(p->loss->plan, 0) + (train ? firn_plan_flops(p->loss->plan, 1) : 0));
    return FIRN_OK;
}

/* Which blocks keep an arena of their own within `room` bytes of arenas, the shared one included. */
static void keep_blocks(firn_session *s, pass *p, uint64_t room)
{
    p->arenas = p->shared;
    for (int64_t i = s->n_layer - 1; i >= 0; i--) {
        p->arena[i] = 0;
        p->kept[i] = s->params.train && i == s->n_layer - 1;
        if (!has_backward(s, i) || p->kept[i])
            continue;
        const size_t own = (firn_plan_arena_bytes(p->kinds[p->kind_of[i]]->plan) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
        if (own > room || p->arenas > room - own) {
            p->flops += firn_plan_flops(p->kinds[p->kind_of[i]]->plan, 0);
            continue;
        }
        p->kept[i] = true;
        p->arena[i] = p->arenas;
        p->arenas += own;
    }
}

static firn_buffer *stored(const firn_session *s, firn_parameters_part part)
{
    return s->store ? s->store->part[part] : NULL;
}

static firn_status bind_ends(firn_session *s, pass *p)
{
    const size_t word = sizeof(int32_t);

    FIRN_TRY(firn_exec_memory(p->embedding->exec, s->head, 0, s->work, 0));
    FIRN_TRY(firn_embedding_bind(p->embedding, s->weights));
    FIRN_TRY(firn_handed_bind_embedding(&s->handed, p->embedding));
    FIRN_TRY(firn_exec_bind(p->embedding->exec, p->embedding->tokens, s->numbers, (size_t)at_tokens() * word));
    FIRN_TRY(firn_exec_bind(p->embedding->exec, p->embedding->x, s->inputs, input_offset(s, 0)));
    firn_head *heads[] = {p->loss, p->logits};
    for (int i = 0; i < 2; i++) {
        FIRN_TRY(firn_exec_memory(heads[i]->exec, s->head, 0, s->work, 0));
        FIRN_TRY(firn_head_bind(heads[i], s->weights, stored(s, FIRN_PARAMETERS_VALUES),
                                stored(s, FIRN_PARAMETERS_GRADIENTS)));
        FIRN_TRY(firn_exec_bind(heads[i]->exec, heads[i]->x, s->inputs, input_offset(s, s->n_layer)));
    }
    const size_t behind = (firn_plan_arena_bytes(p->logits->plan) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    FIRN_TRY(firn_exec_bind(p->logits->exec, p->logits->logits, s->head, behind));
    if (p->loss->dloss)
        FIRN_TRY(firn_exec_bind(p->loss->exec, p->loss->dloss, s->loss, 0));
    if (p->loss->dx)
        FIRN_TRY(firn_exec_bind(p->loss->exec, p->loss->dx, s->dx, input_bytes(s) * (size_t)(s->n_layer & 1)));
    return FIRN_OK;
}

static firn_status pass_plan(firn_session *s, int64_t n_tokens, int64_t chunk, pass **result)
{
    firn_context *ctx = s->ctx;
    const size_t layers = (size_t)s->n_layer;
    pass *p = *result = firn_alloc_zeroed(ctx, 1, sizeof *p);

    if (!p)
        return FIRN_ERR_MEMORY;
    p->n_tokens = p->planned = n_tokens;
    p->chunk = chunk;
    p->kinds = firn_alloc_zeroed(ctx, layers, sizeof *p->kinds);
    p->execs = firn_alloc_zeroed(ctx, layers, sizeof *p->execs);
    p->kind_of = firn_alloc_zeroed(ctx, layers, sizeof *p->kind_of);
    p->arena = firn_alloc_zeroed(ctx, layers, sizeof *p->arena);
    p->kept = firn_alloc_zeroed(ctx, layers, sizeof *p->kept);
    firn_status status = p->kinds && p->execs && p->kind_of && p->arena && p->kept ? FIRN_OK : FIRN_ERR_MEMORY;
    if (status == FIRN_OK)
        status = plan_blocks(s, p);
    if (status == FIRN_OK)
        status = plan_ends(s, p, chunk);
    if (status != FIRN_OK) {
        pass_destroy(s, p);
        *result = NULL;
    }
    return status;
}

/* Lets the largest pass run on fewer tokens: learns how its graphs depend on their number from passes of one and two
 * less, and how the head's depend on its chunk. Where that cannot be, p->shrink stays NULL. */
static firn_status learn_sizes(firn_session *s, pass *p)
{
    pass *one = NULL, *chunk = NULL, *two = NULL;
    const int64_t n = p->n_tokens, c = p->chunk;

    if (c < 3 || !firn_plan_replans(p->embedding->plan))
        return FIRN_OK;
    firn_status status = pass_plan(s, n - 1, c, &one);
    if (status == FIRN_OK)
        status = pass_plan(s, n, c - 1, &chunk);
    if (status == FIRN_OK)
        status = pass_plan(s, n - 2, c - 2, &two);
    if (status == FIRN_OK) {
        p->shrink = firn_alloc_zeroed(s->ctx, (size_t)p->n_kinds, sizeof *p->shrink);
        status = p->shrink ? FIRN_OK : FIRN_ERR_MEMORY;
    }
    bool all = status == FIRN_OK && one->n_kinds == p->n_kinds && two->n_kinds == p->n_kinds;
    for (int i = 0; status == FIRN_OK && all && i < p->n_kinds; i++) {
        status = firn_shrink_create(p->kinds[i]->plan, (firn_graph *[]){one->kinds[i]->graph, NULL},
                                    two->kinds[i]->graph, &p->shrink[i]);
        all = p->shrink[i] != NULL;
    }
    for (int i = 0; status == FIRN_OK && all && i < 3; i++) {
        firn_graph *const smaller[] = {end_graph(one, i), i ? end_graph(chunk, i) : NULL};
        status = firn_shrink_create(end_plan(p, i), smaller, end_graph(two, i), &p->shrink_ends[i]);
        all = p->shrink_ends[i] != NULL;
    }
    pass_destroy(s, one);
    pass_destroy(s, chunk);
    pass_destroy(s, two);
    if (status != FIRN_OK || !all)
        shrink_destroy(s, p);
    return status;
}

/* The largest pass on n_tokens. */
static firn_status shrink_to(firn_session *s, pass *p, int64_t n_tokens)
{
    const int64_t chunk = firn_min_i64(firn_head_chunk(s->model, n_tokens), p->chunk);
    const int64_t less[FIRN_SHRINK_SIZES] = {p->planned - n_tokens, p->chunk - chunk}, tokens[] = {less[0], 0};
    firn_status status = FIRN_OK;

    for (int i = 0; status == FIRN_OK && i < p->n_kinds; i++)
        status = firn_shrink_to(p->shrink[i], tokens);
    for (int i = 0; status == FIRN_OK && i < 3; i++)
        status = firn_shrink_to(p->shrink_ends[i], i ? less : tokens);
    p->n_tokens = status == FIRN_OK ? n_tokens : 0; /* 0: not all of it has one size */
    p->loss->rows = p->logits->rows = n_tokens + 1;
    p->loss->chunk = p->logits->chunk = chunk;
    return status;
}

/* Once through sizes on both sides of what kernels choose by: each choice has its kernels compiled and its launches
 * room, so that no step is where that happens. What fails here fails again where it is wanted. */
static firn_status rehearse(firn_session *s, pass *p)
{
    if (!p->shrink)
        return FIRN_OK;
    for (int64_t n = 1; n < p->planned; n *= 2) {
        (void)shrink_to(s, p, n);
        (void)shrink_to(s, p, firn_min_i64(n + 1, p->planned));
    }
    return shrink_to(s, p, p->planned);
}

/* The plans for n_tokens: the largest pass's, on fewer; or from the last few, or made now and bound. */
static firn_status pass_get(firn_session *s, int64_t n_tokens, pass **result)
{
    int oldest = 0;

    FIRN_EXPECT(s->ctx, n_tokens >= 1 && n_tokens <= s->params.n_tokens,
                "a pass of this session has 1 to %lld tokens, "
                "not %lld",
                (long long)s->params.n_tokens, (long long)n_tokens);
    const bool shrinks = s->passes[0] && s->passes[0]->shrink;
    if (shrinks && shrink_to(s, s->passes[0], n_tokens) == FIRN_OK) {
        *result = s->passes[0];
        return FIRN_OK;
    }
    if (shrinks)
        oldest = 1;
    for (int i = oldest; i < MAX_PASSES; i++) {
        if (s->passes[i] && s->passes[i]->n_tokens == n_tokens) {
            *result = s->passes[i];
            (*result)->used = ++s->clock;
            return FIRN_OK;
        }
        if (!s->passes[i] || (s->passes[oldest] && s->passes[i]->used < s->passes[oldest]->used))
            oldest = i;
    }
    pass_destroy(s, s->passes[oldest]);
    s->passes[oldest] = NULL;
    pass *p;
    FIRN_TRY(pass_plan(s, n_tokens, firn_head_chunk(s->model, n_tokens), &p));
    keep_blocks(s, p, s->memory.arenas);
    firn_status status = FIRN_OK;
    if (p->shared > s->memory.arenas || p->head > s->memory.head || p->work > s->memory.work)
        status = firn_fail(s->ctx, FIRN_ERR_MEMORY, "a pass of %lld tokens needs more memory than one of %lld",
                           (long long)n_tokens, (long long)s->params.n_tokens);
    if (status == FIRN_OK)
        status = bind_ends(s, p);
    if (status != FIRN_OK) {
        pass_destroy(s, p);
        return status;
    }
    p->used = ++s->clock;
    *result = s->passes[oldest] = p;
    return FIRN_OK;
}

/* ---- create ---- */

static firn_status find_entries(firn_session *s)
{
    s->entries = firn_alloc_zeroed(s->ctx, (size_t)s->n_layer * FIRN_T_COUNT, sizeof *s->entries);
    if (!s->entries)
        return FIRN_ERR_MEMORY;
    FIRN_TRY(firn_entries_find(s->ctx, s->model, s->adapter, s->entries, &s->output_entry));
    s->lowest = s->n_layer;
    for (int64_t i = s->n_layer * FIRN_T_COUNT - 1; i >= 0; i--)
        if (s->entries[i])
            s->lowest = i / FIRN_T_COUNT;
    return FIRN_OK;
}

/* Where weights will be, beside `others` bytes at least. */
static firn_status plan_weights(firn_session *s, uint64_t others)
{
    firn_weight_layout layout;
    firn_weight_plan plan;

    FIRN_TRY(firn_weight_layout_create(s->ctx, s->model, first_backward(s), &layout));
    const firn_status status = firn_weight_plan_of(s->ctx, s->device, &layout, others, &plan);
    firn_weight_layout_clear(&layout);
    FIRN_TRY(status);
    s->memory.weights = plan.device_bytes;
    s->memory.place = plan.blocks;
    s->memory.ring = plan.n_slots;
    return FIRN_OK;
}

/* All sizes, from the plans for the largest pass. */
static firn_status plan_memory(firn_session *s, pass *p)
{
    firn_session_memory *m = &s->memory;
    const uint64_t asked = s->params.memory_limit, room = firn_device_room(s->device);
    const uint64_t limit = room && (!asked || room < asked) ? room : asked;

    *m = (firn_session_memory){
        .size = sizeof *m,
        .work = p->work,
        .head = p->head,
        .inputs = input_bytes(s) * (uint64_t)(s->params.train ? s->n_layer + 1 : 2) +
                  (s->params.train ? 2 * input_bytes(s) : 0) + 2 * (uint64_t)n_numbers(s) * sizeof(int32_t) +
                  2 * (uint64_t)padded(s) * sizeof(float) + ids_bytes(s) * (uint64_t)s->n_layer + router_bytes(s) +
                  firn_handed_bytes(s->model, s->params.n_tokens, handed_parts(s)),
        .adapter = s->adapter ? (uint64_t)s->adapter->n_values * sizeof(float) : 0,
        .gradients = s->params.train ? (uint64_t)s->adapter->n_values * sizeof(float) : 0,
        .gathered = firn_weights_gathered_bytes(s->model, first_backward(s)) + firn_weights_table_bytes(s->model),
        .mapped = firn_weights_bytes(s->model),
        .blocks = (int)s->n_layer,
    };
    uint64_t fixed =
        m->work + m->head + m->inputs + m->adapter + m->gradients + m->gathered + MAX_PASSES * p->structure;
    FIRN_TRY(plan_weights(s, fixed + p->shared));
    fixed += m->weights;
    if (limit && fixed + p->shared > limit)
        return firn_fail(s->ctx, FIRN_ERR_MEMORY, "passes of %lld tokens need at least %.1f MiB, the limit is %.1f MiB",
                         (long long)s->params.n_tokens, (double)(fixed + p->shared) / (1 << 20),
                         (double)limit / (1 << 20));
    keep_blocks(s, p, limit ? limit - fixed : UINT64_MAX);
    m->arenas = p->arenas;
    for (int64_t i = 0; i < s->n_layer; i++)
        m->blocks_kept += p->kept[i];
    m->total = fixed + m->arenas;
    m->least = fixed + p->shared;
    m->flops_per_token = p->flops / (double)p->n_tokens;
    s->scarce = asked && asked < m->total + m->mapped;
    return FIRN_OK;
}

static firn_status new_buffer(firn_session *s, uint64_t size, firn_buffer **buffer)
{
    FIRN_EXPECT(s->ctx, size <= SIZE_MAX, "%llu bytes are more than this machine can address",
                (unsigned long long)size);
    return firn_buffer_create(s->device, size ? (size_t)size : ALIGN, buffer);
}

/* *memory: a pointer of any type. */
static firn_status new_staging(firn_session *s, size_t size, void *memory)
{
    void *m = NULL;
    const firn_status status = firn_staging_create(s->device, size ? size : ALIGN, &m);

    memcpy(memory, &m, sizeof m);
    return status;
}

static firn_status allocate(firn_session *s)
{
    const firn_session_memory *m = &s->memory;
    const uint64_t inputs = input_bytes(s) * (uint64_t)(s->params.train ? s->n_layer + 1 : 2);

    FIRN_TRY(firn_weights_create(s->ctx, s->device, s->model, first_backward(s), m->least - m->weights, &s->weights));
    FIRN_TRY(new_buffer(s, m->arenas, &s->arenas));
    FIRN_TRY(new_buffer(s, m->work, &s->work));
    FIRN_TRY(new_buffer(s, m->head, &s->head));
    FIRN_TRY(new_buffer(s, inputs, &s->inputs));
    FIRN_TRY(firn_handed_create(s->device, s->model, s->params.n_tokens, handed_parts(s), &s->handed));
    FIRN_TRY(new_buffer(s, (uint64_t)n_numbers(s) * sizeof(int32_t), &s->numbers));
    FIRN_TRY(new_buffer(s, 2 * (uint64_t)padded(s) * sizeof(float), &s->loss));
    if (s->model->hp.n_expert) {
        FIRN_TRY(new_buffer(s, ids_bytes(s) * (uint64_t)s->n_layer, &s->ids));
        s->expert_load = firn_alloc_zeroed(s->ctx, (size_t)(s->n_layer * s->model->hp.n_expert), sizeof(int64_t));
        if (!s->expert_load)
            return FIRN_ERR_MEMORY;
    }
    if (s->params.router_losses)
        FIRN_TRY(new_buffer(s, router_bytes(s), &s->router));
    FIRN_TRY(new_staging(s, (size_t)n_numbers(s) * sizeof(int32_t), &s->host_numbers));
    FIRN_TRY(new_staging(s, ((size_t)padded(s) + 2) * sizeof(float), &s->host_weights));
    FIRN_TRY(new_staging(s, (size_t)padded(s) * sizeof(float) + router_bytes(s), &s->host_loss));
    if (s->model->hp.n_expert)
        FIRN_TRY(new_staging(s, ids_bytes(s) * (size_t)s->n_layer, &s->host_ids));
    if (s->adapter)
        FIRN_TRY(firn_parameters_create(s->ctx, s->device, s->adapter, &s->store));
    if (s->params.train) {
        FIRN_TRY(new_buffer(s, 2 * input_bytes(s), &s->dx));
        FIRN_TRY(firn_parameters_add(s->store, FIRN_PARAMETERS_GRADIENTS));
    }
    return FIRN_OK;
}

static firn_status prepare(firn_context *ctx, firn_device *device, const firn_model *model, firn_adapter *adapter,
                           const firn_session_params *given, firn_session **session, pass **largest)
{
    firn_session_params params;
    FIRN_TRY(FIRN_TAKE(ctx, firn_session_params, memory_limit, given, &params));
    FIRN_EXPECT(ctx, params.n_tokens >= 1 && params.n_tokens <= 1 << 24, "a pass has 1 to %d tokens, not %lld", 1 << 24,
                (long long)params.n_tokens);
    FIRN_EXPECT(ctx, adapter || !params.train, "training needs an adapter");
    FIRN_EXPECT(ctx, !params.train || adapter->n_values > 0, "there is nothing to train: the adapter is empty");

    firn_session *s = *session = firn_alloc_zeroed(ctx, 1, sizeof *s);
    if (!s)
        return FIRN_ERR_MEMORY;
    s->ctx = ctx;
    s->device = device;
    s->model = model;
    s->adapter = adapter;
    s->params = params;
    s->n_layer = model->hp.n_layer;
    s->d = model->hp.n_embd;
    FIRN_TRY(find_entries(s));
    FIRN_TRY(pass_plan(s, params.n_tokens, firn_head_chunk(model, params.n_tokens), largest));
    return plan_memory(s, *largest);
}

firn_status firn_session_create(firn_context *ctx, firn_device *device, const firn_model *model, firn_adapter *adapter,
                                const firn_session_params *params, firn_session **session)
{
    FIRN_GIVEN(ctx, ctx, device, model, params, session);
    firn_session *s = NULL;
    pass *largest = NULL;

    *session = NULL;
    FIRN_TRY(firn_expect_device(ctx, device));
    firn_status status = prepare(ctx, device, model, adapter, params, &s, &largest);
    if (status == FIRN_OK)
        status = learn_sizes(s, largest); /* while there is little else: it makes plans that go again */
    if (status == FIRN_OK)
        status = rehearse(s, largest);
    if (status == FIRN_OK)
        status = allocate(s);
    if (status == FIRN_OK)
        status = bind_ends(s, largest);
    if (status != FIRN_OK) {
        if (s)
            pass_destroy(s, largest);
        firn_session_destroy(s);
        return status;
    }
    s->passes[0] = largest;
    *session = s;
    return FIRN_OK;
}

firn_status firn_session_plan(firn_context *ctx, firn_device *device, const firn_model *model,
                              const firn_adapter *adapter, const firn_session_params *params,
                              firn_session_memory *memory)
{
    FIRN_GIVEN(ctx, ctx, device, model, params, memory);
    FIRN_TRY(firn_expect_device(ctx, device));
    firn_session *s = NULL;
    pass *largest = NULL;

    FIRN_TRY(FIRN_ROOM(ctx, firn_session_memory, flops_per_token, memory));
    const firn_status status = prepare(ctx, device, model, (firn_adapter *)adapter, params, &s, &largest);
    if (status == FIRN_OK)
        firn_sized_give(memory, &s->memory);
    if (s)
        pass_destroy(s, largest);
    firn_session_destroy(s);
    return status;
}

void firn_session_destroy(firn_session *s)
{
    if (!s)
        return;
    /* Before what holds the device; queued transfers read and write it. */
    if (s->host_numbers)
        firn_device_settle(s->device);
    firn_noise_destroy(s->noise);
    firn_staging_destroy(s->device, s->host_numbers);
    firn_staging_destroy(s->device, s->host_weights);
    firn_staging_destroy(s->device, s->host_loss);
    firn_staging_destroy(s->device, s->host_ids);
    for (int i = 0; i < MAX_PASSES; i++)
        pass_destroy(s, s->passes[i]);
    firn_buffer *buffers[] = {s->arenas, s->work, s->head, s->inputs, s->dx, s->numbers, s->loss, s->ids, s->router};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        firn_buffer_destroy(buffers[i]);
    firn_handed_clear(&s->handed);
    firn_weights_destroy(s->weights);
    firn_parameters_drop(s->store);
    firn_free(s->ctx, s->gradients);
    firn_free(s->ctx, s->expert_load);
    firn_free(s->ctx, s->entries);
    firn_free(s->ctx, s);
}

/* ---- running blocks ---- */

static firn_status bind_block(firn_session *s, pass *p, int64_t layer)
{
    const firn_layer *l = &s->model->layers[layer];
    firn_block *k = p->kinds[p->kind_of[layer]];
    firn_exec *exec = p->execs[p->kind_of[layer]];
    const size_t word = sizeof(int32_t);

    FIRN_TRY(firn_exec_memory(exec, s->arenas, p->arena[layer], s->work, 0));
    FIRN_TRY(firn_exec_bind(exec, k->x, s->inputs, input_offset(s, layer)));
    FIRN_TRY(firn_exec_bind(exec, k->y, s->inputs, input_offset(s, layer + 1)));
    FIRN_TRY(firn_exec_bind(exec, k->position, s->numbers, (size_t)at_position(s) * word));
    FIRN_TRY(firn_exec_bind(exec, k->range, s->numbers, (size_t)(l->window ? at_window(s) : at_range(s)) * word));
    if (k->first)
        FIRN_TRY(firn_exec_bind(exec, k->first, s->numbers, (size_t)at_first(s) * word));
    if (k->temperature)
        FIRN_TRY(firn_exec_bind(exec, k->temperature, s->numbers, (size_t)at_temperature(s) * word));
    FIRN_TRY(firn_weights_bind(s->weights, exec, k->factors, firn_model_factors(s->model, s->longest)));
    FIRN_TRY(firn_handed_bind(&s->handed, k, exec, layer, p->n_tokens));
    if (k->ids)
        FIRN_TRY(firn_exec_bind(exec, k->ids, s->ids, ids_bytes(s) * (size_t)layer));
    for (int i = 0; i < 2 && k->router[i]; i++) {
        FIRN_TRY(firn_exec_bind(exec, k->router[i], s->router, (size_t)(2 * layer + i) * sizeof(float)));
        if (k->drouter[i])
            FIRN_TRY(firn_exec_bind(exec, k->drouter[i], s->router, (size_t)(2 * s->n_layer + i) * sizeof(float)));
    }
    FIRN_TRY(firn_block_bind(k, exec, s->weights, layer, &s->entries[layer * FIRN_T_COUNT],
                             stored(s, FIRN_PARAMETERS_VALUES), stored(s, FIRN_PARAMETERS_GRADIENTS)));
    if (k->dy)
        FIRN_TRY(firn_exec_bind(exec, k->dy, s->dx, input_bytes(s) * (size_t)((layer + 1) & 1)));
    if (k->dx)
        FIRN_TRY(firn_exec_bind(exec, k->dx, s->dx, input_bytes(s) * (size_t)(layer & 1)));
    return FIRN_OK;
}

/* A checked run is waited for, so that its failure can be named by block. */
static firn_status run(firn_session *s, firn_exec *exec, int part, int flags, int64_t layer, const char *where)
{
    if (s->ctx->stop && s->ctx->stop(s->ctx->stop_user)) {
        FIRN_TRY(firn_device_wait(s->device));
        return firn_fail(s->ctx, FIRN_ERR_CANCELLED, "stopped on request");
    }
    firn_status status = firn_exec_run(exec, part, flags);

    if (status == FIRN_OK && (flags & FIRN_RUN_CHECK))
        status = firn_device_wait(s->device);
    const firn_status readable = firn_gguf_check(s->ctx, s->model->gguf);
    status = readable == FIRN_OK ? status : readable;
    if (status == FIRN_OK)
        return FIRN_OK;
    return layer < 0 ? firn_fail_in(s->ctx, status, "%s", where)
                     : firn_fail_in(s->ctx, status, "block %lld, %s", (long long)layer, where);
}

static firn_status forward(firn_session *s, pass *p, int flags)
{
    const size_t row = (size_t)s->d * sizeof(float);

    FIRN_TRY(run(s, p->embedding->exec, 0, flags, -1, "embedding"));
    if (s->noisy)
        FIRN_TRY(firn_noise_add(s->noise));
    for (int64_t i = 0; i < s->n_layer; i++) {
        firn_weights_near(s->weights, i + 1);
        FIRN_TRY(firn_weights_acquire(s->weights, i));
        FIRN_TRY(bind_block(s, p, i));
        FIRN_TRY(run(s, p->execs[p->kind_of[i]], 0, flags, i, "forward"));
        /* A pass that turns back begins with the last block, another with the first one again. */
        FIRN_TRY(firn_weights_release(s->weights, i, i + 1 < s->n_layer || s->params.train ? i + 1 : 0));
        if (s->scarce) {
            FIRN_TRY(firn_device_wait(s->device));
            firn_weights_far(s->weights, i);
        }
    }
    return firn_buffer_clear(s->inputs, input_offset(s, s->n_layer) + (size_t)p->n_tokens * row, row);
}

static firn_status backward(firn_session *s, pass *p, int flags)
{
    FIRN_TRY(firn_handed_zero(&s->handed));
    for (int64_t i = s->n_layer - 1; i >= s->lowest; i--) {
        firn_weights_near(s->weights, i - 1);
        FIRN_TRY(firn_weights_acquire(s->weights, i));
        FIRN_TRY(bind_block(s, p, i));
        if (!p->kept[i])
            FIRN_TRY(run(s, p->execs[p->kind_of[i]], 0, flags, i, "forward"));
        FIRN_TRY(run(s, p->execs[p->kind_of[i]], 1, flags, i, "backward"));
        FIRN_TRY(firn_weights_release(s->weights, i, i > s->lowest ? i - 1 : 0));
        if (s->scarce) {
            FIRN_TRY(firn_device_wait(s->device));
            firn_weights_far(s->weights, i);
        }
    }
    return FIRN_OK;
}

/* Loss of chunk after chunk, and with `weight` its gradient. */
static firn_status head(firn_session *s, pass *p, int64_t n_targets, bool gradient, int flags)
{
    firn_head *k = p->loss;
    const size_t word = sizeof(int32_t);

    if (gradient && k->dx)
        FIRN_TRY(firn_buffer_clear(s->dx, input_bytes(s) * (size_t)(s->n_layer & 1),
                                   (size_t)(p->n_tokens + 1) * (size_t)s->d * sizeof(float)));
    for (int64_t at = 0; at < n_targets; at += k->chunk) {
        FIRN_TRY(firn_exec_bind(k->exec, k->pick, s->numbers, (size_t)(at_pick(s) + at) * word));
        FIRN_TRY(firn_exec_bind(k->exec, k->targets, s->numbers, (size_t)(at_targets(s) + at) * word));
        FIRN_TRY(firn_exec_bind(k->exec, k->loss, s->loss, (size_t)(padded(s) + at) * sizeof(float)));
        FIRN_TRY(run(s, k->exec, 0, flags, -1, "head, forward"));
        if (gradient)
            FIRN_TRY(run(s, k->exec, 1, flags, -1, "head, backward"));
    }
    return FIRN_OK;
}

/* ---- passes ---- */

/* Checks the batch and brings its numbers to the device; with targets only tokens that have one are picked, else all.
 */
static firn_status bring(firn_session *s, pass *p, const firn_batch *batch, bool targets, int64_t *n_picked)
{
    firn_context *ctx = s->ctx;
    const int64_t n = batch->n_tokens, v = s->model->hp.n_vocab;
    int32_t *tokens = s->host_numbers + at_tokens(), *position = s->host_numbers + at_position(s),
            *range = s->host_numbers + at_range(s), *window = s->host_numbers + at_window(s),
            *pick = s->host_numbers + at_pick(s), *target = s->host_numbers + at_targets(s);
    int64_t m = 0;

    FIRN_EXPECT(ctx, batch->tokens && batch->position && batch->first && (!targets || batch->targets),
                "a batch needs tokens, positions, documents and, for losses, targets: one is null");
    memset(s->host_numbers, 0, (size_t)n_numbers(s) * sizeof *s->host_numbers);
    s->longest = 0;
    for (int64_t t = 0; t < n; t++) {
        FIRN_EXPECT(ctx, batch->tokens[t] >= 0 && batch->tokens[t] < v,
                    "token %lld is %d; the vocabulary has 0 to %lld", (long long)t, batch->tokens[t], (long long)v - 1);
        FIRN_EXPECT(ctx, batch->position[t] >= 0, "position %lld is %d", (long long)t, batch->position[t]);
        FIRN_EXPECT(ctx, batch->first[t] >= 0 && batch->first[t] <= t,
                    "token %lld says its document begins at token %d", (long long)t, batch->first[t]);
        tokens[t] = batch->tokens[t];
        position[t] = batch->position[t];
        s->host_numbers[at_first(s) + t] = batch->first[t];
        range[2 * t] = batch->first[t];
        range[2 * t + 1] = (int32_t)t + 1;
        window[2 * t] = (int32_t)firn_max_i64(range[2 * t], t + 1 - s->model->hp.window);
        window[2 * t + 1] = range[2 * t + 1];
        s->longest = firn_max_i64(s->longest, (int64_t)position[t] + 1);
        FIRN_TRY(firn_model_allows(ctx, s->model, position[t]));
        if (s->model->hp.temperature.scale != 0) {
            const float factor = firn_model_temperature(s->model, position[t]);
            memcpy(s->host_numbers + at_temperature(s) + t, &factor, sizeof factor);
        }
        if (!targets || batch->targets[t] >= 0) {
            FIRN_EXPECT(ctx, !targets || batch->targets[t] < v, "target %lld is %d; the vocabulary has 0 to %lld",
                        (long long)t, batch->targets[t], (long long)v - 1);
            pick[m] = (int32_t)t;
            target[m++] = targets ? batch->targets[t] : -1;
        }
    }
    for (int64_t i = m; i < m + p->loss->chunk; i++) {
        pick[i] = (int32_t)n;
        target[i] = -1;
    }
    *n_picked = m;
    return firn_queue_upload(FIRN_QUEUE_COMPUTE, s->numbers, 0, s->host_numbers,
                             (size_t)n_numbers(s) * sizeof *s->host_numbers);
}

/* Enqueues what the host wants of the pass: the experts that tokens chose, the router's losses, n_losses tokens'. */
static firn_status fetch(firn_session *s, int64_t n_losses)
{
    if (s->ids)
        FIRN_TRY(firn_queue_download(FIRN_QUEUE_COMPUTE, s->ids, 0, s->host_ids, ids_bytes(s) * (size_t)s->n_layer));
    if (s->router)
        FIRN_TRY(firn_queue_download(FIRN_QUEUE_COMPUTE, s->router, 0, s->host_loss + padded(s),
                                     2 * (size_t)s->n_layer * sizeof(float)));
    return firn_queue_download(FIRN_QUEUE_COMPUTE, s->loss, (size_t)padded(s) * sizeof(float), s->host_loss,
                               (size_t)n_losses * sizeof(float));
}

static void count_experts(firn_session *s, const pass *p)
{
    const firn_hparams *hp = &s->model->hp;

    for (int64_t i = 0; s->expert_load && i < s->n_layer; i++) {
        const int64_t n = p->n_tokens * s->model->layers[i].n_expert_used;
        const int32_t *ids = s->host_ids + ids_bytes(s) / sizeof *ids * (size_t)i;
        if (!s->model->layers[i].experts)
            continue;
        for (int64_t j = 0; j < n; j++)
            if (ids[j] >= 0 && ids[j] < hp->n_expert)
                s->expert_load[i * hp->n_expert + ids[j]]++;
    }
}

static void add_router_losses(firn_session *s)
{
    s->router_losses[0] = s->router_losses[1] = 0;
    s->router_blocks = 0;
    for (int64_t i = 0; s->router && i < s->n_layer; i++) {
        const float *losses = s->host_loss + padded(s) + 2 * i;
        if (!s->model->layers[i].experts)
            continue;
        s->router_losses[0] += (double)losses[0];
        s->router_losses[1] += (double)losses[1];
        s->router_blocks++;
    }
}

/* Runs the pass again node by node; the first value that is not finite is named with its block and tensor. */
static firn_status diagnose(firn_session *s, pass *p, int64_t n_targets, bool gradient)
{
    FIRN_TRY(forward(s, p, FIRN_RUN_CHECK));
    FIRN_TRY(head(s, p, n_targets, gradient, FIRN_RUN_CHECK));
    if (gradient)
        FIRN_TRY(backward(s, p, FIRN_RUN_CHECK));
    return firn_fail(s->ctx, FIRN_ERR_DEVICE, "a sum over the pass is not finite, though each of its values is");
}

/* What the losses of the pass count. */
static firn_status bring_weights(firn_session *s, const pass *p, const firn_batch *batch, float weight)
{
    float *router = s->host_weights + padded(s);

    for (int64_t i = 0; i < p->loss->chunk; i++)
        s->host_weights[i] = weight;
    memcpy(router, batch->router_weight, sizeof batch->router_weight);
    if (s->router)
        FIRN_TRY(firn_queue_upload(FIRN_QUEUE_COMPUTE, s->router, 2 * (size_t)s->n_layer * sizeof(float), router,
                                   sizeof batch->router_weight));
    return firn_queue_upload(FIRN_QUEUE_COMPUTE, s->loss, 0, s->host_weights, (size_t)p->loss->chunk * sizeof(float));
}

static firn_status train_pass(firn_session *s, const firn_batch *given, bool gradient, float weight, double *loss,
                              int64_t *n_targets)
{
    firn_batch batch;
    pass *p;

    FIRN_TRY(FIRN_TAKE(s->ctx, firn_batch, router_weight, given, &batch));
    FIRN_EXPECT(s->ctx, batch.targets, "a pass needs a batch with targets");
    FIRN_TRY(pass_get(s, batch.n_tokens, &p));
    FIRN_TRY(bring(s, p, &batch, true, n_targets));
    if (gradient)
        FIRN_TRY(bring_weights(s, p, &batch, weight));
    FIRN_TRY(forward(s, p, 0));
    FIRN_TRY(head(s, p, *n_targets, gradient, 0));
    if (gradient)
        FIRN_TRY(backward(s, p, 0));
    FIRN_TRY(fetch(s, *n_targets));
    FIRN_TRY(firn_device_wait(s->device));
    count_experts(s, p);
    add_router_losses(s);
    *loss = 0;
    for (int64_t i = 0; i < *n_targets; i++)
        *loss += (double)s->host_loss[i];
    return isfinite(*loss) && isfinite(s->router_losses[0] + s->router_losses[1])
               ? FIRN_OK
               : diagnose(s, p, *n_targets, gradient);
}

firn_status firn_session_examine(firn_session *s, const firn_batch *batch, float weight)
{
    pass *p;
    int64_t n_targets;

    FIRN_TRY(pass_get(s, batch->n_tokens, &p));
    FIRN_TRY(bring(s, p, batch, true, &n_targets));
    FIRN_TRY(bring_weights(s, p, batch, weight));
    FIRN_TRY(forward(s, p, FIRN_RUN_CHECK));
    FIRN_TRY(head(s, p, n_targets, true, FIRN_RUN_CHECK));
    return backward(s, p, FIRN_RUN_CHECK);
}

firn_status firn_session_loss(firn_session *s, const firn_batch *batch, double *loss, int64_t *n_targets)
{
    FIRN_GIVEN(s ? s->ctx : NULL, s, batch, loss, n_targets);
    return train_pass(s, batch, false, 0, loss, n_targets);
}

firn_status firn_session_gradient(firn_session *s, const firn_batch *batch, float weight, double *loss,
                                  int64_t *n_targets)
{
    FIRN_GIVEN(s ? s->ctx : NULL, s, batch, loss, n_targets);
    FIRN_EXPECT(s->ctx, s->params.train, "this session was made without gradients");
    return train_pass(s, batch, true, weight, loss, n_targets);
}

/* As diagnose; where each block's values are finite, the head is where they end to be. */
static firn_status blame_logits(firn_session *s, pass *p, const float *logits, int64_t n)
{
    const int64_t v = s->model->hp.n_vocab;
    int64_t token = 0;

    while (token + 1 < n && firn_all_finite(logits + token * v, v))
        token++;
    FIRN_TRY(forward(s, p, FIRN_RUN_CHECK));
    return firn_fail(
        s->ctx, FIRN_ERR_DEVICE,
        "the logits after token %lld are not finite: the model's or the adapter's numbers lead to some that "
        "F32 does not hold",
        (long long)token);
}

firn_status firn_session_logits(firn_session *s, const firn_batch *batch, float *logits)
{
    FIRN_GIVEN(s ? s->ctx : NULL, s, batch, logits);
    const int64_t v = s->model->hp.n_vocab;
    firn_batch b;
    pass *p;
    int64_t n;

    FIRN_TRY(FIRN_TAKE(s->ctx, firn_batch, router_weight, batch, &b));
    FIRN_TRY(pass_get(s, b.n_tokens, &p));
    FIRN_TRY(bring(s, p, &b, false, &n));
    FIRN_TRY(forward(s, p, 0));
    const size_t behind = (firn_plan_arena_bytes(p->logits->plan) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    for (int64_t at = 0; at < n; at += p->logits->chunk) {
        const int64_t rows = firn_min_i64(p->logits->chunk, n - at);
        FIRN_TRY(
            firn_exec_bind(p->logits->exec, p->logits->pick, s->numbers, (size_t)(at_pick(s) + at) * sizeof(int32_t)));
        FIRN_TRY(run(s, p->logits->exec, 0, 0, -1, "head"));
        FIRN_TRY(firn_buffer_read(s->head, behind, logits + at * v, (size_t)(rows * v) * sizeof(float)));
        if (!firn_all_finite(logits + at * v, rows * v))
            return blame_logits(s, p, logits, n);
    }
    FIRN_TRY(fetch(s, 0));
    FIRN_TRY(firn_device_wait(s->device));
    count_experts(s, p);
    return FIRN_OK;
}

const float *firn_session_gradients(firn_session *s)
{
    if (!s || !stored(s, FIRN_PARAMETERS_GRADIENTS))
        return NULL;
    if (!s->gradients)
        s->gradients = firn_alloc(s->ctx, (size_t)s->store->n * sizeof(float));
    if (!s->gradients ||
        firn_parameters_read(s->store, FIRN_PARAMETERS_GRADIENTS, 0, s->store->n, s->gradients) != FIRN_OK)
        return NULL;
    return s->gradients;
}

void firn_session_zero_gradients(firn_session *s)
{
    if (s && stored(s, FIRN_PARAMETERS_GRADIENTS))
        (void)firn_parameters_zero(s->store, FIRN_PARAMETERS_GRADIENTS); /* what fails comes out of the next wait */
}

firn_status firn_session_push(firn_session *s)
{
    FIRN_GIVEN(NULL, s);
    return s->store ? firn_parameters_push(s->store) : FIRN_OK;
}

firn_status firn_session_pull(firn_session *s)
{
    FIRN_GIVEN(NULL, s);
    return s->store ? firn_parameters_pull(s->store) : FIRN_OK;
}

firn_context *firn_session_context(const firn_session *s)
{
    return s->ctx;
}

firn_parameters *firn_session_parameters(const firn_session *s)
{
    return s->store;
}

void firn_session_router_losses(const firn_session *s, double losses[2], int64_t *n_blocks)
{
    if (!s || !losses || !n_blocks)
        return;
    losses[0] = s->router_losses[0];
    losses[1] = s->router_losses[1];
    *n_blocks = s->router_blocks;
}

int64_t *firn_session_expert_load(firn_session *s)
{
    return s ? s->expert_load : NULL;
}

float *firn_session_noise(firn_session *s, bool on)
{
    s->noisy = on && s->noise;
    return s->noise ? firn_noise_values(s->noise) : NULL;
}

firn_status firn_session_noise_create(firn_session *s)
{
    return firn_noise_create(s->ctx, s->device, s->d, s->params.n_tokens, s->inputs, input_offset(s, 0), &s->noise);
}
