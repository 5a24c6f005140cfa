/* Steps or seconds; see cadence.h. */
#include "train/cadence.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1000000000 /* steps, or seconds */

static const struct {
    char letter;
    int64_t seconds;
} units[] = {{'h', 3600}, {'m', 60}, {'s', 1}};
enum { N_UNITS = sizeof units / sizeof *units };

bool firn_cadence_read(const char *text, int64_t *every)
{
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    const long long n = strtoll(text, &end, 10);
    if (errno || n > MOST)
        return false;
    if (!*end) {
        *every = n;
        return true;
    }
    for (int i = 0; i < N_UNITS; i++)
        if (*end == units[i].letter && !end[1] && n >= 1 && n <= MOST / units[i].seconds) {
            *every = -n * units[i].seconds;
            return true;
        }
    return false;
}

void firn_cadence_write(int64_t every, char text[FIRN_CADENCE_BYTES])
{
    int i = 0;

    if (every >= 0) {
        snprintf(text, FIRN_CADENCE_BYTES, "%lld", (long long)every);
        return;
    }
    while (-every % units[i].seconds)
        i++;
    snprintf(text, FIRN_CADENCE_BYTES, "%lld%c", (long long)(-every / units[i].seconds), units[i].letter);
}
