/* A histogram of lengths that is fine everywhere: exact up to 64, then 32 steps an octave, so that a length is known
 * within 3 % and never told too short. */
#ifndef FIRN_TRAIN_LENGTHS_H
#define FIRN_TRAIN_LENGTHS_H

#include "core/buffer.h"

enum { FIRN_LENGTH_BUCKETS = 1024 };

/* Which bucket a length of 0 or more belongs to, and the longest length of a bucket. */
int firn_length_bucket(int64_t n);
int64_t firn_length_limit(int bucket);

/* The least limit that at least `share` of the counted lengths do not pass; 0 when nothing was counted. */
int64_t firn_lengths_quantile(const int64_t lengths[FIRN_LENGTH_BUCKETS], double share);
int64_t firn_lengths_count(const int64_t lengths[FIRN_LENGTH_BUCKETS]);
/* Draws a line for each power of two: "   129 to    256  ##########           1204". */
void firn_lengths_draw(const int64_t lengths[FIRN_LENGTH_BUCKETS], firn_text *text);

#endif
