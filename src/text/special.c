/* Special tokens in text. llama.cpp goes through them, longest text first, and cuts each one's occurrences out of the
 * raw fragments that are left, from left to right; so the longest wins wherever it stands, not the leftmost.
 *
 * The same result in linear-logarithmic time: one pass over the text from its end finds the longest special token that
 * begins at each position (Aho-Corasick over reversed texts); a heap then takes these candidates, longest first, from
 * left to right. A candidate that begins inside what was taken is dead; one that only ends there comes back as the next
 * shorter token that it begins with. */
#include "text/heap.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

/* ---- building ---- */

typedef struct {
    const firn_token *token;
    int32_t id;
} ranked;

static int compare_tokens(const void *a, const void *b)
{
    const ranked *x = a, *y = b;

    if (x->token->n_text != y->token->n_text)
        return x->token->n_text > y->token->n_text ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int32_t child(const firn_specials *s, int32_t node, uint8_t byte)
{
    if (node == 0)
        return s->root[byte];
    for (int32_t c = s->nodes[node].child; c; c = s->nodes[c].sibling)
        if (s->nodes[c].byte == byte)
            return c;
    return 0;
}

/* The state after `byte`: the longest suffix of what was read that is in the trie. */
static int32_t step(const firn_specials *s, int32_t node, uint8_t byte)
{
    for (;; node = s->nodes[node].fail) {
        const int32_t next = child(s, node, byte);
        if (next || node == 0)
            return next;
    }
}

firn_status firn_specials_build(firn_context *ctx, firn_tokenizer *tok)
{
    firn_specials *s = &tok->specials;
    size_t n = 0, n_nodes = 1;

    for (int32_t i = 0; i < tok->n; i++) {
        if (!tok->tokens[i].special || tok->tokens[i].n_text == 0)
            continue;
        n++;
        n_nodes += tok->tokens[i].n_text;
    }
    FIRN_EXPECT(ctx, n_nodes < INT32_MAX, "special tokens of %zu bytes in all, expected less than 2 GiB", n_nodes);
    ranked *list = firn_alloc(ctx, n * sizeof *list);
    int32_t *queue = list ? firn_alloc(ctx, n_nodes * sizeof *queue) : NULL;
    s->nodes = firn_arena_zeroed(&tok->arena, n_nodes, sizeof *s->nodes);
    s->order = firn_arena_alloc(&tok->arena, n * sizeof *s->order);
    s->shorter = firn_arena_alloc(&tok->arena, n * sizeof *s->shorter);
    if (!queue || !s->nodes || !s->order || !s->shorter) {
        firn_free(ctx, list);
        firn_free(ctx, queue);
        return FIRN_ERR_MEMORY;
    }
    n = 0;
    for (int32_t i = 0; i < tok->n; i++)
        if (tok->tokens[i].special && tok->tokens[i].n_text)
            list[n++] = (ranked){&tok->tokens[i], i};
    qsort(list, n, sizeof *list, compare_tokens);
    s->n = (int)n;

    int32_t used = 1;
    s->nodes[0].longest = -1;
    for (size_t i = 0; i < n; i++) {
        int32_t node = 0;
        s->order[i] = list[i].id;
        for (size_t j = list[i].token->n_text; j-- > 0;) {
            const uint8_t byte = (uint8_t)list[i].token->text[j];
            int32_t next = child(s, node, byte);
            if (!next) {
                next = used++;
                s->nodes[next] = (firn_special_node){.sibling = s->nodes[node].child, .longest = -1, .byte = byte};
                s->nodes[node].child = next;
                if (node == 0)
                    s->root[byte] = next;
            }
            node = next;
        }
        s->nodes[node].longest = (int32_t)i;
    }

    /* Breadth first, so that a node's fail, which is shallower, is done before it. */
    size_t head = 0, tail = 0;
    queue[tail++] = 0;
    while (head < tail) {
        const int32_t node = queue[head++];
        for (int32_t c = s->nodes[node].child; c; c = s->nodes[c].sibling) {
            firn_special_node *at = &s->nodes[c];
            at->fail = node == 0 ? 0 : step(s, s->nodes[node].fail, at->byte);
            const int32_t below = s->nodes[at->fail].longest;
            if (at->longest >= 0)
                s->shorter[at->longest] = below;
            else
                at->longest = below;
            queue[tail++] = c;
        }
    }
    firn_free(ctx, list);
    firn_free(ctx, queue);
    return FIRN_OK;
}

/* ---- finding ---- */

/* The longest token of the chain that may be matched and has at most `room` bytes, -1: none. */
static int32_t allowed(const firn_tokenizer *tok, int32_t order, bool control, size_t room)
{
    while (order >= 0) {
        const firn_token *t = &tok->tokens[tok->specials.order[order]];
        if ((control || !t->control) && t->n_text <= room)
            break;
        order = tok->specials.shorter[order];
    }
    return order;
}

static int compare_matches(const void *a, const void *b)
{
    const firn_special_match *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* isspace in the C locale, on bytes, as llama.cpp strips */
static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

firn_status firn_specials_find(firn_context *ctx, const firn_tokenizer *tok, const char *text, size_t n, bool control,
                               firn_special_match **matches, size_t *count)
{
    const firn_specials *s = &tok->specials;
    uint64_t *heap = NULL;
    size_t n_heap = 0, capacity = 0;

    *matches = NULL;
    *count = 0;
    if (s->n == 0)
        return FIRN_OK;
    int32_t node = 0;
    for (size_t i = n; i-- > 0;) {
        node = step(s, node, (uint8_t)text[i]);
        if (s->nodes[node].longest < 0)
            continue;
        const int32_t order = allowed(tok, s->nodes[node].longest, control, n - i);
        if (order < 0)
            continue;
        const firn_status status = firn_grow(ctx, (void **)&heap, n_heap, &capacity, sizeof *heap);
        if (status != FIRN_OK) {
            firn_free(ctx, heap);
            return status;
        }
        firn_heap_push(heap, &n_heap, firn_heap_key((uint32_t)order, (uint32_t)i));
    }
    if (n_heap == 0)
        return FIRN_OK;

    uint8_t *taken = firn_alloc_zeroed(ctx, n, 1);
    firn_status status = taken ? FIRN_OK : FIRN_ERR_MEMORY;
    firn_special_match *found = NULL;
    size_t n_found = 0;
    capacity = 0;
    while (n_heap > 0 && status == FIRN_OK) {
        const uint64_t key = firn_heap_pop(heap, &n_heap);
        const size_t at = (uint32_t)key;
        const int32_t id = s->order[key >> 32];
        const firn_token *t = &tok->tokens[id];
        if (taken[at])
            continue;
        const uint8_t *wall = memchr(taken + at, 1, t->n_text);
        if (wall) {
            const int32_t order = allowed(tok, s->shorter[key >> 32], control, (size_t)(wall - (taken + at)));
            if (order >= 0)
                firn_heap_push(heap, &n_heap, firn_heap_key((uint32_t)order, (uint32_t)at));
            continue;
        }
        size_t end = at + t->n_text;
        while (t->strip && end < n && !taken[end] && is_blank(text[end]))
            end++;
        memset(taken + at, 1, end - at);
        status = firn_grow(ctx, (void **)&found, n_found, &capacity, sizeof *found);
        if (status == FIRN_OK)
            found[n_found++] = (firn_special_match){(uint32_t)at, (uint32_t)end, (uint32_t)(at + t->n_text), id};
    }
    firn_free(ctx, heap);
    firn_free(ctx, taken);
    if (status != FIRN_OK) {
        firn_free(ctx, found);
        return status;
    }
    qsort(found, n_found, sizeof *found, compare_matches);
    *matches = found;
    *count = n_found;
    return FIRN_OK;
}
