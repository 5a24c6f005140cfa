#include "core/leftover.h"

#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

enum { MOST = 64 };

/* Who takes a path out of here owns it. */
static _Atomic(char *) listed[MOST];

int firn_leftover_list(char *path)
{
    for (int i = 0; i < MOST; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&listed[i], &none, path))
            return i;
    }
    return -1;
}

bool firn_leftover_unlist(int place)
{
    return place < 0 || atomic_exchange(&listed[place], NULL) != NULL;
}

void firn_leftovers_remove(void)
{
    for (int i = 0; i < MOST; i++) {
        char *path = atomic_exchange(&listed[i], NULL), *none = NULL;
        if (path)
            unlink(path);
        atomic_compare_exchange_strong(&listed[i], &none, path);
    }
}
