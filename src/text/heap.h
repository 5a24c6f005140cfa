/* A binary min-heap of 64-bit keys in an array that the caller owns. Merging and special tokens both pack (priority,
 * position) into a key, so that the smallest key is what comes next and ties go to the left. */
#ifndef FIRN_TEXT_HEAP_H
#define FIRN_TEXT_HEAP_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t firn_heap_key(uint32_t priority, uint32_t position)
{
    return (uint64_t)priority << 32 | position;
}

static inline void firn_heap_push(uint64_t *heap, size_t *n, uint64_t key)
{
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
}

/* *n > 0 */
static inline uint64_t firn_heap_pop(uint64_t *heap, size_t *n)
{
    const uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n)
            break;
        child += child + 1 < *n && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

#endif
