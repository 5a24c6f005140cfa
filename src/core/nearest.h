/* Which of some names a person may have meant. */
#ifndef FIRN_CORE_NEAREST_H
#define FIRN_CORE_NEAREST_H

#include <stddef.h>

/* The name nearest to `word` among names[n] (NULL ones are passed over): one that differs by letter case, '_' and '-'
 * alone; whose parts have the word as initials ("lr": learning-rate); that begins with the word or is its beginning
 * (three letters or more); or that a few slips of the fingers make of it (a third of its letters, 3 at most). NULL
 * where none is near. */
const char *firn_nearest(const char *word, const char *const *names, size_t n);

#endif
