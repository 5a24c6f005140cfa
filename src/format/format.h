/* Weight formats from inside: decoders by type. The block structs and decoders themselves are one header each
 * (format/q4_0.h is the one to read first), listed in src/formats.def; they depend on nothing but format/common.h. */
#ifndef FIRN_FORMAT_FORMAT_H
#define FIRN_FORMAT_FORMAT_H

#include "firn/firn.h"

/* row: n weights of one type, n a multiple of its block, at an address aligned to 2 bytes (F32: 4). out [n]. */
typedef void (*firn_decoder)(const void *row, int64_t n, float *out);

/* NULL for a type that is no weight format. */
firn_decoder firn_format_decoder(firn_type type);

static inline bool firn_format_can_decode(firn_type type)
{
    return firn_format_decoder(type) != NULL;
}

/* The type must have a decoder. */
static inline void firn_decode_row(firn_type type, const void *row, int64_t n, float *out)
{
    firn_format_decoder(type)(row, n, out);
}

#endif
