/* The list of architectures. */
#include "model/arch.h"

#include <stddef.h>

const firn_arch *const firn_archs[] = {
#define ARCH(name) &firn_arch_##name,
#include "archs.def"
#undef ARCH
    NULL,
};
