/* How often: every so many steps, or after so much time. One number: steps where it is at least 0, else minus seconds
 * (FIRN_SECONDS). As text "50", "90s", "10m", "2h". */
#ifndef FIRN_TRAIN_CADENCE_H
#define FIRN_TRAIN_CADENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIRN_CADENCE_BYTES = 32 };

/* False where the text is none. */
bool firn_cadence_read(const char *text, int64_t *every);
void firn_cadence_write(int64_t every, char text[FIRN_CADENCE_BYTES]);

#endif
