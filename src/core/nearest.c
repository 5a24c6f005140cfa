/* Which name was meant: see nearest.h. Slips are counted as insertions, deletions, other letters and neighbours that
 * changed places (optimal string alignment). */
#include "core/nearest.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

enum { LONGEST = 64, FEWEST = 3 /* letters of a beginning that says something */ };

/* Letters in lower case, '_' as '-'; a leading "--" is no part of a name. False where it is too long to be one. */
static bool plain(const char *word, char *out, size_t *n)
{
    while (*word == '-')
        word++;
    *n = strlen(word);
    if (*n == 0 || *n >= LONGEST)
        return false;
    for (size_t i = 0; i <= *n; i++)
        out[i] = (char)(word[i] == '_' ? '-' : tolower((unsigned char)word[i]));
    return true;
}

static bool initials(const char *word, const char *name)
{
    size_t parts = 0;

    for (const char *p = name; p; p = strchr(p, '-'), parts++) {
        p += *p == '-';
        if (word[parts] != *p)
            return false;
    }
    return parts > 1 && word[parts] == 0;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t slips(const char *a, size_t n, const char *b, size_t m)
{
    size_t rows[3][LONGEST], *before = rows[0], *last = rows[1], *now = rows[2];

    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(least(now[j - 1], last[j]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        size_t *const oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[m];
}

/* How far off the name is: 0 the same, LONGEST too far. */
static size_t distance(const char *word, size_t n, const char *name)
{
    char other[LONGEST];
    size_t m;

    if (!plain(name, other, &m))
        return LONGEST;
    if (strcmp(word, other) == 0)
        return 0;
    if (initials(word, other) || (least(n, m) >= FEWEST && strncmp(word, other, least(n, m)) == 0))
        return 1;
    const size_t off = slips(word, n, other, m), most = least(n / 3, 3);
    return off <= most ? off + 1 : LONGEST;
}

const char *firn_nearest(const char *word, const char *const *names, size_t n_names)
{
    const char *best = NULL;
    size_t least_off = LONGEST, n;
    char mine[LONGEST];

    if (!plain(word, mine, &n))
        return NULL;
    for (size_t i = 0; i < n_names; i++) {
        const size_t off = names[i] ? distance(mine, n, names[i]) : LONGEST;
        if (off < least_off) {
            least_off = off;
            best = names[i];
        }
    }
    return best;
}
