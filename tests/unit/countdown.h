/* An allocator whose memory runs out: for tests that fail each allocation in turn and count what is still held. */
#ifndef FIRN_TEST_COUNTDOWN_H
#define FIRN_TEST_COUNTDOWN_H

#include <stdlib.h>

/* Allocations that fail from the n-th on. */
typedef struct {
    long left, live;
} countdown;

static void *count_alloc(void *user, size_t size)
{
    countdown *c = user;
    if (c->left-- <= 0)
        return NULL;
    c->live++;
    return malloc(size);
}

static void *count_realloc(void *user, void *old, size_t size)
{
    countdown *c = user;
    return c->left-- <= 0 ? NULL : realloc(old, size);
}

static void count_free(void *user, void *memory)
{
    ((countdown *)user)->live--;
    free(memory);
}

#endif
