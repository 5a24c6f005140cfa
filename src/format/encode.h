/* Encoders from inside: rows of floats into a weight format. */
#ifndef FIRN_FORMAT_ENCODE_H
#define FIRN_FORMAT_ENCODE_H

#include "firn/firn.h"

/* x [n], n a multiple of the block; importance [n] or NULL: the factor of each weight's squared error. Any bits in x
 * are fine: F32, F16 and BF16 keep them (rounded), block formats take a NaN for 0 and an infinity for the largest
 * value they have. What is written decodes to finite weights. row: firn_row_bytes, aligned as for decoding. */
typedef void (*firn_encoder)(const float *x, int64_t n, const float *importance, void *row);

/* NULL for a type that has no encoder. */
firn_encoder firn_format_encoder(firn_type type);

/* The type must have an encoder. */
static inline void firn_encode_row(firn_type type, const float *x, int64_t n, const float *importance, void *row)
{
    firn_format_encoder(type)(x, n, importance, row);
}

/* The files that firn_format_encoder chooses from. */
void firn_encode_q2_K(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_q3_K(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_q4_K(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_q5_K(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_q6_K(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_iq4_nl(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_iq4_xs(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_mxfp4(const float *x, int64_t n, const float *importance, void *row);
void firn_encode_nvfp4(const float *x, int64_t n, const float *importance, void *row);

#endif
