/* Structs that carry their size: see sized.h. */
#include "core/sized.h"

#include <string.h>

enum { LIMIT = 1 << 16 }; /* what stood in memory that nobody set is hardly less */

static size_t size_of(const void *sized)
{
    size_t size;

    memcpy(&size, sized, sizeof size);
    return size;
}

static firn_status check(firn_context *ctx, const char *name, size_t first, size_t size)
{
    if (size >= first && size <= LIMIT)
        return FIRN_OK;
    return ctx ? firn_fail(ctx, FIRN_ERR_ARGUMENT, "%s.size is %zu: expected sizeof(%s), at least %zu", name, size,
                           name, first)
               : FIRN_ERR_ARGUMENT;
}

firn_status firn_sized_take(firn_context *ctx, const char *name, size_t first, const void *from, void *to,
                            size_t to_size)
{
    const size_t given = size_of(from), size = given ? given : first, both = size < to_size ? size : to_size;

    FIRN_TRY(check(ctx, name, first, size));
    for (size_t i = to_size; i < size; i++)
        if (((const unsigned char *)from)[i])
            return ctx ? firn_fail(ctx, FIRN_ERR_UNSUPPORTED,
                                   "%s has something set behind byte %zu, where firn %s knows no field", name, to_size,
                                   firn_version())
                       : FIRN_ERR_UNSUPPORTED;
    memcpy(to, from, both);
    memset((char *)to + both, 0, to_size - both);
    memcpy(to, &to_size, sizeof to_size);
    return FIRN_OK;
}

firn_status firn_sized_room(firn_context *ctx, const char *name, size_t first, const void *result)
{
    return check(ctx, name, first, size_of(result));
}

void firn_sized_give(void *result, const void *ours)
{
    const size_t size = size_of(result), known = size_of(ours), both = size < known ? size : known;

    memcpy(result, ours, both);
    memset((char *)result + both, 0, size - both);
    memcpy(result, &size, sizeof size);
}
