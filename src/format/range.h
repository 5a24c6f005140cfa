/* What a format cannot hold: encoders take the largest value that they have for what is larger, which loses numbers. */
#ifndef FIRN_FORMAT_RANGE_H
#define FIRN_FORMAT_RANGE_H

#include "core/context.h"

/* Of n finite weights x and the row that was encoded of them: the magnitude of one that the format cannot hold, 0 where
 * it holds all. Only weights beyond 65504 (nvfp4: 448) are looked at, which every format holds; of those, the ones that
 * no other weight of their block is above, and they count as lost when the format's steps do not explain what they
 * became. n is a multiple of the block. */
float firn_format_lost(firn_type type, const float *x, int64_t n, const void *row);
/* The sentence for what was lost of a tensor: its name, the weight, how far the format reaches where that is one
 * number, and which formats hold it. */
firn_status firn_fail_lost(firn_context *ctx, const char *tensor, firn_type type, float lost);

#endif
