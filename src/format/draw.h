/* Random valid blocks of a weight format, drawn directly: codes are random bits, scales fit the standard deviation that
 * is asked for. For models made for tests and benchmarks, where encoding real numbers would take longer than writing.
 */
#ifndef FIRN_FORMAT_DRAW_H
#define FIRN_FORMAT_DRAW_H

#include "firn/firn.h"

bool firn_format_can_draw(firn_type type);

/* Blocks [first, first + n) of a tensor's stream: the same whatever the cut. Weights have mean 0 and about the standard
 * deviation `std`. */
void firn_format_draw(firn_type type, float std, uint64_t seed, uint64_t stream, int64_t first, int64_t n, void *out);

#endif
