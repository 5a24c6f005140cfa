#include "core/plain.h"

#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

/* Made once and kept. NULL where memory is short: then the program's locale has to do. */
static locale_t plain(void)
{
    static _Atomic(locale_t) kept;
    locale_t none = NULL, l = atomic_load(&kept);

    if (l)
        return l;
    l = newlocale(LC_ALL_MASK, "C", NULL);
    if (l && !atomic_compare_exchange_strong(&kept, &none, l)) { /* another thread was first */
        freelocale(l);
        l = none;
    }
    return l;
}

/* The calling thread's locale until `leave`; nothing else of the program sees it. */
static locale_t enter(void)
{
    const locale_t l = plain();

    return l ? uselocale(l) : NULL;
}

static void leave(locale_t before)
{
    if (before)
        uselocale(before);
}

int firn_vsnprintf(char *text, size_t size, const char *format, va_list args)
{
    const locale_t before = enter();
    const int n = vsnprintf(text, size, format, args);

    leave(before);
    return n;
}

int firn_snprintf(char *text, size_t size, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int n = firn_vsnprintf(text, size, format, args);
    va_end(args);
    return n;
}

double firn_strtod(const char *text, char **end)
{
    const locale_t before = enter();
    const double value = strtod(text, end);

    leave(before);
    return value;
}
