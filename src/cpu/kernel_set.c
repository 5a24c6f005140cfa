#include "cpu/kernel_set.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const firn_kernel_set *const firn_kernel_sets[] = {
#if defined(__x86_64__)
    &firn_kernel_set_amx,    &firn_kernel_set_avx512bf16, &firn_kernel_set_avx512vnni,  &firn_kernel_set_avx512,
    &firn_kernel_set_avx2,
#elif defined(__aarch64__)
    &firn_kernel_set_neon,
#endif
    &firn_kernel_set_vector, &firn_kernel_set_scalar,     &firn_kernel_set_scalar_bf16, NULL,
};

const firn_kernel_set *firn_kernel_set_named(const char *name)
{
    for (int i = 0; firn_kernel_sets[i]; i++)
        if (strcmp(firn_kernel_sets[i]->name, name) == 0)
            return firn_kernel_sets[i]->usable() ? firn_kernel_sets[i] : NULL;
    return NULL;
}

const char *firn_kernel_set_asked(void)
{
    return getenv("FIRN_CPU");
}

static const firn_kernel_set *choose(firn_precision precision)
{
    const char *name = firn_kernel_set_asked();
    const firn_kernel_set *set = name ? firn_kernel_set_named(name) : NULL;

    if (set && set->precision == precision)
        return set;
    for (int i = 0; firn_kernel_sets[i]; i++) {
        set = firn_kernel_sets[i];
        if (set->precision == precision && !set->by_name && set->usable())
            return set;
    }
    return NULL;
}

const firn_kernel_set *firn_kernel_set_default(firn_precision precision)
{
    static _Atomic(const firn_kernel_set *) chosen[2]; /* racing threads choose alike */
    const firn_kernel_set *set = atomic_load_explicit(&chosen[precision], memory_order_acquire);

    if (!set) {
        set = choose(precision);
        atomic_store_explicit(&chosen[precision], set, memory_order_release);
    }
    return set;
}
