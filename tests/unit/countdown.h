/* An allocator whose memory runs out: for tests that fail each allocation in turn and count what is still held. */
#ifndef FIRN_TEST_COUNTDOWN_H
#define FIRN_TEST_COUNTDOWN_H

#include <stdbool.h>
#include <stdlib.h>

/* Allocations that fail from the n-th on; `once`: the n-th alone, as where memory is short for a moment. */
typedef struct {
    long left, live;
    bool once;
} countdown;

static bool count_down(countdown *c)
{
    const long left = c->left--;
    return c->once ? left == 0 : left <= 0;
}

static void *count_alloc(void *user, size_t size)
{
    countdown *c = user;
    if (count_down(c))
        return NULL;
    c->live++;
    return malloc(size);
}

static void *count_realloc(void *user, void *old, size_t size)
{
    countdown *c = user;
    return count_down(c) ? NULL : realloc(old, size);
}

static void count_free(void *user, void *memory)
{
    ((countdown *)user)->live--;
    free(memory);
}

#endif
