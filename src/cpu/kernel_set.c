#include "cpu/kernel_set.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const firn_kernel_set *const firn_kernel_sets[] = {
#if defined(__x86_64__)
    &firn_kernel_set_avx2,
#endif
    &firn_kernel_set_vector,
    &firn_kernel_set_scalar,
    NULL,
};

const firn_kernel_set *firn_kernel_set_named(const char *name)
{
    for (int i = 0; firn_kernel_sets[i]; i++)
        if (strcmp(firn_kernel_sets[i]->name, name) == 0)
            return firn_kernel_sets[i]->usable() ? firn_kernel_sets[i] : NULL;
    return NULL;
}

static const firn_kernel_set *choose(void)
{
    const char *name = getenv("FIRN_CPU");
    const firn_kernel_set *set = name ? firn_kernel_set_named(name) : NULL;

    for (int i = 0; !set; i++) /* the last one is usable everywhere */
        if (firn_kernel_sets[i]->usable())
            set = firn_kernel_sets[i];
    return set;
}

const firn_kernel_set *firn_kernel_set_default(void)
{
    static _Atomic(const firn_kernel_set *) chosen; /* racing threads choose alike */
    const firn_kernel_set *set = atomic_load_explicit(&chosen, memory_order_acquire);

    if (!set) {
        set = choose();
        atomic_store_explicit(&chosen, set, memory_order_release);
    }
    return set;
}
