/* For tests of which one context is enough: it, and the group's setup and teardown. */
#ifndef FIRN_TEST_CONTEXT_H
#define FIRN_TEST_CONTEXT_H

#include "unit/unit.h"

#include "firn/firn.h"

static firn_context *ctx;

static int setup(void **state)
{
    (void)state;
    ctx = firn_context_create(NULL);
    return ctx == NULL;
}

static int teardown(void **state)
{
    (void)state;
    firn_context_destroy(ctx);
    return 0;
}

#endif
