/* A hash index over names that lie in an array of structs: open addressing, at most half full, 32-bit slots.
 * Names are given by a function of the position, so that the reader's keys and tensors and the writer share it. */
#ifndef FIRN_GGUF_INDEX_H
#define FIRN_GGUF_INDEX_H

#include "core/arena.h"

typedef struct {
    const char *(*name)(const void *items, size_t i);
    const void *items;
    uint32_t *slots; /* position + 1, 0 for empty */
    size_t mask;
} firn_index;

/* FIRN_INDEX_NONE when absent. */
#define FIRN_INDEX_NONE SIZE_MAX

/* Room for n names; `items` may be filled later, before each add. n is below 2^31. */
firn_status firn_index_init(firn_index *index, firn_arena *arena, const char *(*name)(const void *, size_t),
                            const void *items, size_t n);
/* Adds position i. Returns FIRN_INDEX_NONE, or the position that has its name already (then nothing is added). */
size_t firn_index_add(firn_index *index, size_t i);
size_t firn_index_find(const firn_index *index, const char *name);

#endif
