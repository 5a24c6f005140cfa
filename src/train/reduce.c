/* Sums of passes in a tree; see reduce.h.
 *
 * Slot q of the N leaves is pass bitreverse(q): then node b of level k has the slots [b 2^k, (b + 1) 2^k), its halves
 * are its two children, and the tree is a plain binary one over slots. Passes past n are slots that are not there. */
#include "train/reduce.h"

#include <string.h>

/* Values that are received at once, by all segments together, and the least of one. */
enum { ROOM = 1 << 20, LEAST = 1 << 14, MOST_LEVELS = 40 };

/* A node of the tree. */
typedef struct {
    int level;
    int64_t number;
} place;

/* What lies above the nodes that one rank has whole: a tree between ranks. Leaves have `rank`, the others two children.
 */
typedef struct {
    place at;
    int left, right; /* indices of spans; -1: a leaf */
    int rank;
    int height; /* 0: a leaf */
} span;

/* A sum that is complete on this rank, of all passes below `at`. */
typedef struct {
    place at;
    float *values; /* [n_values]; NULL: the store's gradients, where the host reads them in place */
} partial;

struct firn_reduction {
    firn_parameters *store;
    firn_group *group;
    bool whole;
    int64_t n;
    int depth;
    int64_t *passes; /* [n] in the order of slots */
    span *spans;     /* the last one is the root */
    int n_spans;

    float *gradients; /* the store's where they are the host's memory, else NULL */
    float **free;     /* [n_buffers] that nobody uses now */
    int n_free, n_buffers;
    float *piece;    /* [n_segments][n_piece] */
    int64_t n_piece; /* values of one */
    partial stack[MOST_LEVELS];
    int n_stack;
    int64_t done; /* passes of this rank */
    bool stays;   /* the next pass is added to the gradients as they are */
};

/* ---- the tree ---- */

static int64_t first_of(const firn_reduction *r, int rank)
{
    return (int64_t)rank * r->n / firn_group_size(r->group);
}

static int rank_of(const firn_reduction *r, int64_t position)
{
    return (int)(((position + 1) * firn_group_size(r->group) - 1) / r->n);
}

/* The low `bits` bits of x, the last one first. */
static int64_t reversed(int64_t x, int bits)
{
    int64_t y = 0;

    for (; bits > 0; bits--, x >>= 1)
        y = y << 1 | (x & 1);
    return y;
}

/* Passes below a node: those < n that are its number, reversed, modulo the number of nodes of its level. */
static int64_t passes_in(const firn_reduction *r, place p)
{
    const int bits = r->depth - p.level;

    return firn_max_i64(0, (r->n - reversed(p.number, bits) + ((int64_t)1 << bits) - 1) >> bits);
}

/* Passes in the slots before it: in the node's left neighbours, one of each level where there is one. */
static int64_t first_in(const firn_reduction *r, place p)
{
    int64_t n = 0;

    for (; p.level < r->depth; p = (place){p.level + 1, p.number / 2})
        if (p.number % 2)
            n += passes_in(r, (place){p.level, p.number - 1});
    return n;
}

static int64_t end_in(const firn_reduction *r, place p)
{
    return first_in(r, p) + passes_in(r, p);
}

static place slot_of(const firn_reduction *r, int64_t position)
{
    place p = {r->depth, 0};

    while (p.level > 0) {
        const place left = {p.level - 1, 2 * p.number};
        const int64_t n = passes_in(r, left);
        p = position < n ? left : (place){left.level, left.number + 1};
        position -= position < n ? 0 : n;
    }
    return p;
}

static int depth_of(int64_t n)
{
    int depth = 0;

    while ((int64_t)1 << depth < n)
        depth++;
    return depth;
}

static bool same(place a, place b)
{
    return a.level == b.level && a.number == b.number;
}

/* Up as long as there is nothing beside it. */
static place promoted(const firn_reduction *r, place p)
{
    while (p.level < r->depth && p.number % 2 == 0) {
        const place beside = {p.level, p.number + 1};
        if (passes_in(r, beside) > 0)
            break;
        p = (place){p.level + 1, p.number / 2};
    }
    return p;
}

/* The part of the tree that lies between ranks; returns the index of the node's span. */
static int grow(firn_reduction *r, place p)
{
    const int64_t first = first_in(r, p), end = end_in(r, p);
    const place left = {p.level - 1, 2 * p.number}, right = {p.level - 1, 2 * p.number + 1};
    span s = {.at = p, .left = -1, .right = -1, .rank = rank_of(r, first)};

    if (s.rank != rank_of(r, end - 1)) {
        if (first_in(r, right) == end)
            return grow(r, left);
        s.left = grow(r, left);
        s.right = grow(r, right);
        s.height = 1 + (int)firn_max_i64(r->spans[s.left].height, r->spans[s.right].height);
    } else {
        s.at = promoted(r, p);
    }
    r->spans[r->n_spans] = s;
    return r->n_spans++;
}

/* Who has segment `segment` of a span's sum, when its halves are added: one of them, so that segments are dealt out
 * evenly. */
static int leaf_of(const firn_reduction *r, int i, int64_t segment)
{
    while (r->spans[i].height > 0)
        i = segment >> (r->spans[i].height - 1) & 1 ? r->spans[i].right : r->spans[i].left;
    return i;
}

static int64_t n_segments(const firn_reduction *r)
{
    return (int64_t)1 << r->spans[r->n_spans - 1].height;
}

static int64_t segment_begin(const firn_reduction *r, int64_t segment)
{
    return r->store->n / n_segments(r) * segment + firn_min_i64(segment, r->store->n % n_segments(r));
}

/* ---- the sums of this rank ---- */

static bool next_is_beside(const firn_reduction *r, place p, int64_t position, int64_t end)
{
    return r->whole && p.level == 0 && p.number % 2 == 0 && position + 1 < end &&
           same(slot_of(r, position + 1), (place){0, p.number + 1});
}

/* The pass at that position, before `end`, was added. False: the gradients stay as they are, and the next pass joins
 * them; else *p is the node whose sum they are. */
static bool complete(const firn_reduction *r, int64_t position, int64_t end, bool *stays, place *p)
{
    const place slot = slot_of(r, position);

    if (!*stays && next_is_beside(r, slot, position, end)) {
        *stays = true;
        return false;
    }
    *p = promoted(r, *stays ? (place){1, slot.number / 2} : slot);
    *stays = false;
    return true;
}

/* Whether a node's left neighbour was kept last: then both make the one above. */
static bool joins(place p, place last)
{
    return p.number % 2 && same(last, (place){p.level, p.number - 1});
}

static place above(const firn_reduction *r, place p)
{
    return promoted(r, (place){p.level + 1, p.number / 2});
}

/* The most sums that are kept beside the gradients, found by doing it without values. */
static int most_kept(const firn_reduction *r, int rank)
{
    const int64_t end = first_of(r, rank + 1);
    place stack[MOST_LEVELS], p;
    int n = 0, most = 0;
    bool stays = false;

    for (int64_t i = first_of(r, rank); i < end; i++) {
        if (!complete(r, i, end, &stays, &p))
            continue;
        for (; n > 0 && joins(p, stack[n - 1]); n--)
            p = above(r, p);
        if (i + 1 < end)
            stack[n++] = p;
        most = n > most ? n : most;
    }
    return most;
}

static float *take(firn_reduction *r)
{
    return r->free[--r->n_free];
}

static void give(firn_reduction *r, float *values)
{
    r->free[r->n_free++] = values;
}

static void add(float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        a[i] += b[i];
}

/* gradients += values */
static firn_status add_to_gradients(firn_reduction *r, const float *values)
{
    if (r->gradients) {
        add(r->gradients, values, r->store->n);
        return FIRN_OK;
    }
    for (int64_t i = 0, n; i < r->store->n; i += n) {
        n = firn_min_i64(r->n_piece, r->store->n - i);
        FIRN_TRY(firn_parameters_read(r->store, FIRN_PARAMETERS_GRADIENTS, i, n, r->piece));
        add(r->piece, values + i, n);
        FIRN_TRY(firn_parameters_write(r->store, FIRN_PARAMETERS_GRADIENTS, i, n, r->piece));
    }
    return FIRN_OK;
}

static firn_status keep(firn_reduction *r, place p, bool in_place)
{
    float *values = NULL;

    if (!in_place) {
        values = take(r);
        const firn_status s = firn_parameters_read(r->store, FIRN_PARAMETERS_GRADIENTS, 0, r->store->n, values);
        if (s != FIRN_OK) {
            give(r, values);
            return s;
        }
    }
    r->stack[r->n_stack++] = (partial){p, values};
    return FIRN_OK;
}

firn_status firn_reduction_begin(firn_reduction *r)
{
    while (r->n_stack > 0)
        if (r->stack[--r->n_stack].values)
            give(r, r->stack[r->n_stack].values);
    r->done = 0;
    r->stays = false;
    return firn_parameters_zero(r->store, FIRN_PARAMETERS_GRADIENTS);
}

firn_status firn_reduction_passed(firn_reduction *r)
{
    const int rank = r->group ? r->group->rank : 0;
    const int64_t at = first_of(r, rank) + r->done++, end = first_of(r, rank + 1);
    place p;

    if (!complete(r, at, end, &r->stays, &p))
        return FIRN_OK;
    if (r->group || r->n > 1)
        FIRN_TRY(firn_device_wait(r->store->device));
    for (; r->n_stack > 0 && joins(p, r->stack[r->n_stack - 1].at); p = above(r, p)) {
        float *values = r->stack[r->n_stack - 1].values;
        FIRN_TRY(add_to_gradients(r, values));
        give(r, values);
        r->n_stack--;
    }
    if (at + 1 < end) {
        FIRN_TRY(keep(r, p, false));
        return firn_parameters_zero(r->store, FIRN_PARAMETERS_GRADIENTS);
    }
    return firn_group_size(r->group) > 1 ? keep(r, p, r->gradients != NULL) : FIRN_OK;
}

/* ---- between ranks ---- */

/* This rank's values of a leaf of the spans. */
static float *values_of(const firn_reduction *r, int leaf)
{
    for (int i = 0; i < r->n_stack; i++)
        if (same(r->stack[i].at, r->spans[leaf].at))
            return r->stack[i].values ? r->stack[i].values : r->gradients;
    return NULL;
}

/* [at, at + n) of a segment, as far as it has so much. */
static int64_t part_of(const firn_reduction *r, int64_t segment, int64_t at, int64_t *first)
{
    *first = segment_begin(r, segment) + at;
    return firn_max_i64(0, firn_min_i64(r->n_piece, segment_begin(r, segment + 1) - *first));
}

/* A piece of a segment of both halves of a span: sent to where the sum is to be, or, when it was received, added there.
 */
static firn_status post_or_add(firn_reduction *r, int i, int64_t segment, int64_t at, bool received)
{
    const span *s = &r->spans[i];
    const bool right = segment >> (s->height - 1) & 1;
    const int kept = leaf_of(r, right ? s->right : s->left, segment);
    const int other = leaf_of(r, right ? s->left : s->right, segment);
    const int to = r->spans[kept].rank, from = r->spans[other].rank, rank = r->group->rank;
    float *piece = r->piece + segment * r->n_piece;
    int64_t first;
    const int64_t n = part_of(r, segment, at, &first);

    if (received && to == rank)
        add(values_of(r, kept) + first, from == rank ? values_of(r, other) + first : piece, n);
    else if (!received && from != to && from == rank)
        return firn_group_send(r->group, to, values_of(r, other) + first, (size_t)n * sizeof(float));
    else if (!received && from != to && to == rank)
        return firn_group_receive(r->group, from, piece, (size_t)n * sizeof(float));
    return FIRN_OK;
}

static firn_status add_span(firn_reduction *r, int i)
{
    const int64_t segments = n_segments(r), longest = segment_begin(r, 1);

    for (int64_t at = 0; at < longest; at += r->n_piece) {
        for (int64_t s = 0; s < segments; s++)
            FIRN_TRY(post_or_add(r, i, s, at, false));
        FIRN_TRY(firn_group_wait(r->group));
        for (int64_t s = 0; s < segments; s++)
            FIRN_TRY(post_or_add(r, i, s, at, true));
    }
    return FIRN_OK;
}

firn_status firn_reduction_finish(firn_reduction *r)
{
    const int root = r->n_spans - 1;
    const int64_t segments = n_segments(r);

    if (firn_group_size(r->group) == 1)
        return FIRN_OK;
    for (int i = 0; i < r->n_spans; i++) /* children come before their parents */
        if (r->spans[i].height > 0)
            FIRN_TRY(add_span(r, i));
    for (int64_t s = 0; s < segments; s++) {
        const int leaf = leaf_of(r, root, s), from = r->spans[leaf].rank;
        int64_t first, n;
        for (int64_t at = 0; (n = part_of(r, s, at, &first)) > 0; at += r->n_piece) {
            if (from == r->group->rank)
                memcpy(r->piece, values_of(r, leaf) + first, (size_t)n * sizeof(float));
            FIRN_TRY(firn_group_broadcast(r->group, from, r->piece, (size_t)n * sizeof(float)));
            FIRN_TRY(firn_parameters_write(r->store, FIRN_PARAMETERS_GRADIENTS, first, n, r->piece));
        }
    }
    return FIRN_OK;
}

/* ---- creation ---- */

static firn_status create(firn_context *ctx, firn_reduction *r)
{
    const int size = firn_group_size(r->group), rank = r->group ? r->group->rank : 0;

    r->passes = firn_alloc_zeroed(ctx, (size_t)r->n, sizeof *r->passes);
    if (!r->passes)
        return FIRN_ERR_MEMORY;
    for (int64_t i = 0; i < r->n; i++)
        r->passes[i] = reversed(slot_of(r, i).number, r->depth);
    /* A rank's passes are at most two nodes a level; above the leaves lie one less. */
    r->spans = firn_alloc_zeroed(ctx, (size_t)size * (4 * (size_t)r->depth + 2), sizeof *r->spans);
    if (!r->spans)
        return FIRN_ERR_MEMORY;
    grow(r, (place){r->depth, 0});
    r->gradients = firn_parameters_host(r->store, FIRN_PARAMETERS_GRADIENTS);
    r->n_buffers = most_kept(r, rank) + (size > 1 && !r->gradients);
    r->free = firn_alloc_zeroed(ctx, (size_t)r->n_buffers + 1, sizeof *r->free);
    if (!r->free)
        return FIRN_ERR_MEMORY;
    for (; r->n_free < r->n_buffers; r->n_free++) {
        r->free[r->n_free] = firn_alloc(ctx, (size_t)r->store->n * sizeof(float));
        if (!r->free[r->n_free])
            return FIRN_ERR_MEMORY;
    }
    r->n_piece = firn_max_i64(LEAST, ROOM / n_segments(r));
    if (size > 1 || (!r->gradients && r->n_buffers)) {
        r->piece = firn_alloc_zeroed(ctx, (size_t)(n_segments(r) * r->n_piece), sizeof(float));
        if (!r->piece)
            return FIRN_ERR_MEMORY;
    }
    return FIRN_OK;
}

firn_status firn_reduction_create(firn_parameters *store, firn_group *group, int64_t n_passes, bool whole,
                                  firn_reduction **result)
{
    firn_reduction *r = *result = NULL;

    FIRN_EXPECT(store->ctx, n_passes >= 1, "a step has passes, not %lld of them", (long long)n_passes);
    r = firn_alloc_zeroed(store->ctx, 1, sizeof *r);
    if (!r)
        return FIRN_ERR_MEMORY;
    *r = (firn_reduction){.store = firn_parameters_keep(store),
                          .group = group,
                          .n = n_passes,
                          .depth = depth_of(n_passes),
                          .whole = whole};
    const firn_status s = create(store->ctx, r);
    if (s != FIRN_OK)
        firn_reduction_destroy(r);
    else
        *result = r;
    return s;
}

void firn_reduction_destroy(firn_reduction *r)
{
    if (!r)
        return;
    firn_parameters *store = r->store;
    firn_context *ctx = store->ctx;
    while (r->n_stack > 0)
        if (r->stack[--r->n_stack].values)
            give(r, r->stack[r->n_stack].values);
    while (r->n_free > 0)
        firn_free(ctx, r->free[--r->n_free]);
    firn_free(ctx, r->free);
    firn_free(ctx, r->piece);
    firn_free(ctx, r->spans);
    firn_free(ctx, r->passes);
    firn_free(ctx, r);
    firn_parameters_drop(store);
}

const int64_t *firn_reduction_passes_of(const firn_reduction *r, int rank, int64_t *n)
{
    *n = first_of(r, rank + 1) - first_of(r, rank);
    return r->passes + first_of(r, rank);
}

const int64_t *firn_reduction_passes(const firn_reduction *r, int64_t *n)
{
    return firn_reduction_passes_of(r, r->group ? r->group->rank : 0, n);
}

uint64_t firn_reduction_bytes(int64_t n_values, const firn_group *group, int64_t n_passes, bool whole, bool host_memory)
{
    const int size = firn_group_size(group);
    const firn_reduction r = {.group = (firn_group *)group, .n = n_passes, .depth = depth_of(n_passes), .whole = whole};
    const int kept = most_kept(&r, group ? group->rank : 0) + (size > 1 && !host_memory);

    return (uint64_t)kept * firn_parameters_bytes(n_values, 1) +
           (size > 1 || (!host_memory && kept) ? ROOM * sizeof(float) : 0);
}
