/* The set of hashes: open addressing, at most two thirds full. */
#include "train/seen.h"

static bool place(uint64_t *slots, size_t capacity, uint64_t hash)
{
    size_t i = (size_t)(hash & (capacity - 1));

    while (slots[i] && slots[i] != hash)
        i = (i + 1) & (capacity - 1);
    const bool again = slots[i] == hash;
    slots[i] = hash;
    return again;
}

firn_status firn_seen_add(firn_context *ctx, firn_seen *seen, uint64_t hash, bool *again)
{
    hash += hash == 0;
    if (3 * (seen->n + 1) > 2 * seen->capacity) {
        const size_t wanted = seen->capacity ? 2 * seen->capacity : 1024;
        uint64_t *grown = firn_alloc_zeroed(ctx, wanted, sizeof *grown);
        if (!grown)
            return FIRN_ERR_MEMORY;
        for (size_t i = 0; i < seen->capacity; i++)
            if (seen->slots[i])
                place(grown, wanted, seen->slots[i]);
        firn_free(ctx, seen->slots);
        seen->slots = grown;
        seen->capacity = wanted;
    }
    *again = place(seen->slots, seen->capacity, hash);
    seen->n += !*again;
    return FIRN_OK;
}

void firn_seen_free(firn_context *ctx, firn_seen *seen)
{
    firn_free(ctx, seen->slots);
    *seen = (firn_seen){0};
}
