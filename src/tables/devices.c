/* The backends that are built in (src/devices.def), for core/, which knows none by name. */
#include "core/backend.h"

#define BACKEND(name) extern const firn_backend_row firn_backend_##name;
#include "devices.def"
#undef BACKEND

const firn_backend_row *const firn_built_in_backends[] = {
#define BACKEND(name) &firn_backend_##name,
#include "devices.def"
#undef BACKEND
    NULL,
};
