/* Forced before every file of the engine that test_jinja_cost.c measures: what the C library does for it is counted
 * too, 2 bytes as one basic block, and a printed or read number as 100. */
#ifndef COUNTED_H
#define COUNTED_H

#include "core/plain.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void count_work(size_t blocks);

static inline void *counted_memcpy(void *to, const void *from, size_t n)
{
    count_work(n / 2);
    return memcpy(to, from, n);
}
static inline void *counted_memset(void *to, int c, size_t n)
{
    count_work(n / 2);
    return memset(to, c, n);
}
static inline int counted_memcmp(const void *a, const void *b, size_t n)
{
    count_work(n / 2);
    return memcmp(a, b, n);
}
static inline void *counted_memchr(const void *s, int c, size_t n)
{
    void *at = memchr(s, c, n);
    count_work((at ? (size_t)((const char *)at - (const char *)s) : n) / 2);
    return at;
}
static inline void *counted_memmem(const void *s, size_t n, const void *part, size_t m)
{
    void *at = memmem(s, n, part, m);
    count_work((at ? (size_t)((const char *)at - (const char *)s) : n) + (m <= n ? m : 0)); /* each way about linear */
    return at;
}
static inline size_t counted_strlen(const char *s)
{
    const size_t n = strlen(s);
    count_work(n / 2);
    return n;
}
static inline double counted_strtod(const char *s, char **end)
{
    count_work(100);
    return strtod(s, end);
}
static inline int counted_vsnprintf(char *to, size_t room, const char *format, va_list args)
{
    count_work(100);
    return vsnprintf(to, room, format, args);
}
static inline double counted_plain_strtod(const char *s, char **end)
{
    count_work(100);
    return firn_strtod(s, end);
}
#define memcpy             counted_memcpy
#define memset             counted_memset
#define memcmp             counted_memcmp
#define memchr             counted_memchr
#define memmem             counted_memmem
#define strlen             counted_strlen
#define strtod             counted_strtod
#define vsnprintf          counted_vsnprintf
#define snprintf(...)      (count_work(100), snprintf(__VA_ARGS__))
#define firn_strtod        counted_plain_strtod
#define firn_snprintf(...) (count_work(100), firn_snprintf(__VA_ARGS__))

#endif
