/* In the Metal backend's place where there is no Metal: no devices. */
#include "core/backend.h"

static int count(void)
{
    return 0;
}

const firn_backend_row firn_backend_metal = {"Metal", "MTL", count, NULL};
