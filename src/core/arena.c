#include "core/arena.h"

#include <string.h>

enum { CHUNK_BYTES = 64 * 1024, ALIGN = 16 };

struct firn_arena_chunk {
    firn_arena_chunk *next;
    size_t size;
    _Alignas(ALIGN) unsigned char data[];
};

void firn_arena_init(firn_arena *arena, firn_context *ctx, size_t limit)
{
    *arena = (firn_arena){.ctx = ctx, .limit = limit};
}

void firn_arena_clear(firn_arena *arena)
{
    for (firn_arena_chunk *c = arena->chunk, *next; c; c = next) {
        next = c->next;
        firn_free(arena->ctx, c);
    }
    firn_arena_init(arena, arena->ctx, arena->limit);
}

void *firn_arena_alloc(firn_arena *arena, size_t size)
{
    size_t wanted;

    if (!firn_add_size(size, ALIGN - 1, &wanted)) {
        firn_fail(arena->ctx, FIRN_ERR_MEMORY, "out of memory: %zu bytes pass the address space", size);
        return NULL;
    }
    wanted &= ~(size_t)(ALIGN - 1);
    if (!arena->chunk || arena->chunk->size - arena->used < wanted) {
        const size_t room = wanted > CHUNK_BYTES ? wanted : CHUNK_BYTES;
        if (arena->limit && (room > arena->limit || arena->total > arena->limit - room)) {
            firn_fail(arena->ctx, FIRN_ERR_MEMORY, "the limit of %zu bytes for one task is used up", arena->limit);
            return NULL;
        }
        firn_arena_chunk *c = firn_alloc(arena->ctx, sizeof *c + room);
        if (!c)
            return NULL;
        c->next = arena->chunk;
        c->size = room;
        arena->chunk = c;
        arena->used = 0;
        arena->total += room;
    }
    void *p = arena->chunk->data + arena->used;
    arena->used += wanted;
    return p;
}

void *firn_arena_zeroed(firn_arena *arena, size_t count, size_t size)
{
    size_t bytes;

    if (!firn_mul_size(count, size, &bytes)) {
        firn_fail(arena->ctx, FIRN_ERR_MEMORY, "out of memory: %zu times %zu bytes pass the address space", count,
                  size);
        return NULL;
    }
    void *p = firn_arena_alloc(arena, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

char *firn_arena_text(firn_arena *arena, const char *text, size_t n)
{
    char *copy = firn_arena_alloc(arena, n + 1);

    if (copy) {
        memcpy(copy, text, n);
        copy[n] = 0;
    }
    return copy;
}
