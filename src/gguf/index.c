#include "gguf/index.h"

#include "core/random.h"

#include <string.h>

static size_t hash(const char *name)
{
    const uint64_t h = firn_stream(name);

    return (size_t)(h ^ h >> 32);
}

firn_status firn_index_init(firn_index *index, firn_arena *arena, const char *(*name)(const void *, size_t),
                            const void *items, size_t n)
{
    size_t capacity = 16;

    while (capacity < 2 * n)
        capacity *= 2;
    *index = (firn_index){.name = name, .items = items, .mask = capacity - 1};
    index->slots = firn_arena_zeroed(arena, capacity, sizeof *index->slots);
    return index->slots ? FIRN_OK : FIRN_ERR_MEMORY;
}

/* The slot that holds `name`, or the empty one where it belongs. */
static uint32_t *slot_of(const firn_index *index, const char *name)
{
    for (size_t at = hash(name) & index->mask;; at = (at + 1) & index->mask) {
        uint32_t *slot = &index->slots[at];
        if (*slot == 0 || strcmp(index->name(index->items, *slot - 1), name) == 0)
            return slot;
    }
}

size_t firn_index_add(firn_index *index, size_t i)
{
    uint32_t *slot = slot_of(index, index->name(index->items, i));

    if (*slot)
        return *slot - 1;
    *slot = (uint32_t)i + 1;
    return FIRN_INDEX_NONE;
}

size_t firn_index_find(const firn_index *index, const char *name)
{
    const uint32_t slot = *slot_of(index, name);

    return slot ? slot - 1 : FIRN_INDEX_NONE;
}
