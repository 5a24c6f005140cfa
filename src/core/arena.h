/* A growing arena: many small things that die together (a parse tree, a graph's nodes, a vocabulary). */
#ifndef FIRN_CORE_ARENA_H
#define FIRN_CORE_ARENA_H

#include "core/context.h"

typedef struct firn_arena_chunk firn_arena_chunk;

typedef struct {
    firn_context *ctx;
    firn_arena_chunk *chunk; /* the newest */
    size_t used;             /* of the newest chunk */
    size_t total;            /* bytes taken from the context */
    size_t limit;            /* 0: none; else an allocation that would pass it fails */
} firn_arena;

void firn_arena_init(firn_arena *arena, firn_context *ctx, size_t limit);
/* Frees everything; the arena may be used again. */
void firn_arena_clear(firn_arena *arena);
/* Aligned to 16 bytes, not cleared. NULL with the sentence set when memory or the limit is short. */
void *firn_arena_alloc(firn_arena *arena, size_t size);
void *firn_arena_zeroed(firn_arena *arena, size_t count, size_t size);
/* A copy of n bytes with a NUL behind them. */
char *firn_arena_text(firn_arena *arena, const char *text, size_t n);

#endif
