/* Operations on plain pointers and strides, for authors of other engines: no graph, no allocation inside. Strides are
 * in bytes. Every call takes the context for its threads and for the sentence that says what was wrong; on failure
 * nothing has been written. Inputs and outputs may not overlap. */
#ifndef FIRN_KERNELS_H
#define FIRN_KERNELS_H

#include "firn/firn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- weight formats ---- */

/* Every weight type decodes. These encode: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4.
 */
FIRN_API bool firn_type_can_decode(firn_type type);
FIRN_API bool firn_type_can_encode(firn_type type);

/* dst[r][i] = the weights of row r, exact (one rounding in formats with a minimum). src: `rows` rows of n weights, n a
 * multiple of the type's block, src_stride bytes apart and at least firn_row_bytes(type, n); src and src_stride are
 * multiples of 2 (F32: 4). dst: rows of n floats, dst_stride bytes apart. Any bits in src are fine: what they stand for
 * may be infinite or NaN. Rows are shared out to the context's threads; results do not depend on their number.
 * FIRN_ERR_ARGUMENT when shapes, strides or pointers are not so, FIRN_ERR_UNSUPPORTED for a type that is no weight. */
FIRN_API firn_status firn_decode_rows(firn_context *ctx, firn_type type, const void *src, size_t src_stride, int64_t n,
                                      int64_t rows, float *dst, size_t dst_stride);

/* The inverse, by squared error: sum over i of importance[i] * (src[r][i] - decoded[r][i])^2 is made small. importance:
 * n non-negative factors, one per column, for all rows; NULL: all 1. F16 and BF16 round to nearest, ties to even, and
 * keep infinities and NaN; block formats take a NaN for 0 and an infinity for the largest value they have, and what
 * they hold decodes to finite weights. Bits depend on the input only. */
FIRN_API firn_status firn_encode_rows(firn_context *ctx, firn_type type, const float *src, size_t src_stride, int64_t n,
                                      int64_t rows, const float *importance, void *dst, size_t dst_stride);

#ifdef __cplusplus
}
#endif
#endif
