/* The facts of src/formats.def, by number and by name. */
#include "firn/firn.h"

#include <strings.h>

static const struct {
    const char *name;
    int64_t block;
    size_t size;
    bool weight;
} types[FIRN_TYPE_LIMIT] = {
#define FORMAT(CODE, name, block, size)  [FIRN_##CODE] = {#name, block, size, true},
#define SCALAR(CODE, name, size, weight) [FIRN_##CODE] = {#name, 1, size, weight},
#include "formats.def"
#undef FORMAT
#undef SCALAR
};

static bool known(firn_type type)
{
    return (unsigned)type < FIRN_TYPE_LIMIT && types[type].name;
}

const char *firn_type_name(firn_type type)
{
    return known(type) ? types[type].name : NULL;
}

bool firn_type_from_name(const char *name, firn_type *type)
{
    if (!name || !type)
        return false;
    for (int i = 0; i < FIRN_TYPE_LIMIT; i++) {
        if (types[i].name && strcasecmp(types[i].name, name) == 0) {
            *type = (firn_type)i;
            return true;
        }
    }
    return false;
}

int64_t firn_type_block(firn_type type)
{
    return known(type) ? types[type].block : 0;
}

size_t firn_type_size(firn_type type)
{
    return known(type) ? types[type].size : 0;
}

size_t firn_row_bytes(firn_type type, int64_t n)
{
    return known(type) && n > 0 ? (size_t)(n / types[type].block) * types[type].size : 0;
}

size_t firn_type_align(firn_type type)
{
    const size_t size = firn_type_size(type);

    if (firn_type_block(type) <= 1) /* scalars; 0: no type */
        return size;
    return size % 2 ? 1 : 2;
}

bool firn_type_is_weight(firn_type type)
{
    return known(type) && types[type].weight;
}
