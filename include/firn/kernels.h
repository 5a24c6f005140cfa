/* Operations on plain pointers and strides, for authors of other engines: no graph, nothing allocated inside.
 *
 * Every call takes a context, for its threads and for the sentence that says what was wrong (firn_error); contexts
 * share nothing, and one is used by one thread at a time. n_threads is how many of the context's threads work, the
 * caller among them; 0 is all of them. The bits of a result do not depend on it. The first call that uses more than one
 * starts the context's threads, unless firn_context_start has.
 *
 * What the contract does not allow is refused before anything is computed or written: FIRN_ERR_ARGUMENT (null pointers,
 * shapes, strides, alignment, sizes that pass 64 bits, memory that overlaps), FIRN_ERR_UNSUPPORTED (a type without such
 * a kernel). docs/kernels.md says it at length, with a program. */
#ifndef FIRN_KERNELS_H
#define FIRN_KERNELS_H

#include "firn/firn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- matrix products ---- */

/* Where a tensor lies. `ne` counts elements, innermost first; dimensions that are not used are 1. `nb` are the bytes
 * from one element to the next along each dimension, nb[0] those of an element (of a packed type: of a block); none is
 * negative, and 0 repeats. Addresses and strides are multiples of firn_type_align(type). The caller keeps the memory.
 */
typedef struct {
    void *data; /* inputs are only read */
    firn_type type;
    int64_t ne[FIRN_MAX_DIMS];
    int64_t nb[FIRN_MAX_DIMS];
} firn_array;

/* One without gaps. Sizes that cannot be give strides that every call refuses. */
FIRN_API firn_array firn_array_dense(firn_type type, void *data, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);

/* k and m are at least 1; n, n_tokens and the batch may be 0.
 *
 *                       w                 x                   dy                     out
 *     MUL_MAT           [k, m, B', C']    [k, n, B, C]                               [m, n, B, C]
 *     OUT_PROD          [k, r, B', C']    [p, r, B, C]                               [k, p, B, C]
 *     MUL_MAT_ID        [k, m, n_expert]  [k, s', n_tokens]                          [m, n_used, n_tokens]
 *     MUL_MAT_ID_BACK   [k, m, n_expert]                      [m, n_used, n_tokens]  [k, n_used, n_tokens]
 *     OUT_PROD_ID                         [k, s', n_tokens]   [m, n_used, n_tokens]  [k, m, n_expert]
 *
 *     MUL_MAT           out[:,i,b,c] = w[:,:,b mod B',c mod C']' x[:,i,b,c]
 *     OUT_PROD          out[:,:,b,c] = sum over r of w[:,r,b mod B',c mod C'] x[:,r,b,c]'
 *                       MUL_MAT's gradients: dx = OUT_PROD(w, dy'), dw = OUT_PROD(x, dy)
 *     MUL_MAT_ID        out[:,s,t] = w[:,:,ids[s,t]]' x[:, s mod s', t]           s' divides n_used
 *     MUL_MAT_ID_BACK   out[:,s,t] = w[:,:,ids[s,t]] dy[:,s,t]                    its gradient for x, one row per slot
 *     OUT_PROD_ID       out[:,:,e] = sum over ids[s,t] = e of x[:, s mod s', t] dy[:,s,t]'     its gradient for w */
typedef enum {
    FIRN_PRODUCT_MUL_MAT,
    FIRN_PRODUCT_OUT_PROD,
    FIRN_PRODUCT_MUL_MAT_ID,
    FIRN_PRODUCT_MUL_MAT_ID_BACK,
    FIRN_PRODUCT_OUT_PROD_ID,
} firn_product_kind;

/* Set to zero what a kind does not use.
 *
 * w      any type that firn_type_can_decode; along its rows without gaps
 *
 * x, dy  F32, any strides
 *
 * ids    I32 [n_used, n_tokens], any strides: a token may name an expert twice, an expert may have no rows
 *
 * table  I64 [n_expert] without gaps, or zero; MUL_MAT_ID only: where each expert begins, in bytes from w.data, which
 * is then the buffer that they lie in. Entries of experts that no id names are not looked at.
 *
 * out    F32, along its rows without gaps, other strides any that keep its elements apart. From its first byte to its
 *        last it holds no byte of an input or the workspace; between its rows nothing is written. */
typedef struct {
    size_t size; /* sizeof(firn_product) */
    firn_product_kind kind;
    firn_precision precision; /* of the operands, see firn_precision; 0 is F32 */
    int n_threads;
    bool accumulate; /* out += product */
    firn_array w, x, dy, ids, table, out;
} firn_product;

/* Bytes of the workspace that firn_product_run needs: they follow from shapes, strides, types and n_threads. Addresses
 * are not looked at. */
FIRN_API firn_status firn_product_work_bytes(firn_context *ctx, const firn_product *product, size_t *bytes);

/* work: as many bytes or more, aligned to 64; contents do not matter, before or after.
 *
 * Activations are not quantized and sums are F32. For sums of up to 4096 terms the normalized mean squared error
 * against double precision is below 1e-11, and an element is off by less than 2e-6 times the sum of (|w| + max |w|)
 * |x|, while no |x| passes 1e34: packed codes are summed before they are scaled, and must not overflow. With
 * FIRN_PRECISION_BF16 both operands are rounded to bf16 first (error below 1e-4); a processor that has no kernels for
 * it is FIRN_ERR_UNSUPPORTED.
 *
 * An id outside [0, n_expert), or an expert that the table puts outside of w, is never read through. The slot's row
 * becomes zeros (accumulating: stays), OUT_PROD_ID leaves the slot out, all else is computed, and the call returns
 * FIRN_ERR_DEVICE with the first such slot in its sentence. */
FIRN_API firn_status firn_product_run(firn_context *ctx, const firn_product *product, void *work, size_t work_bytes);

/* ---- weight formats ---- */

/* Every weight type decodes. These encode: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K..Q6_K IQ4_NL IQ4_XS MXFP4 NVFP4.
 */
FIRN_API bool firn_type_can_decode(firn_type type);
FIRN_API bool firn_type_can_encode(firn_type type);

/* dst[r][i] = the weights of row r, exact (one rounding in formats with a minimum). src: `rows` rows of n weights, n a
 * multiple of the type's block, src_stride bytes apart and at least firn_row_bytes(type, n). dst: rows of n floats,
 * dst_stride bytes apart. Any bits in src are fine: what they stand for may be infinite or NaN. src and dst do not
 * overlap. */
FIRN_API firn_status firn_decode_rows(firn_context *ctx, firn_type type, const void *src, size_t src_stride, int64_t n,
                                      int64_t rows, float *dst, size_t dst_stride, int n_threads);

/* The inverse, by squared error: sum over i of importance[i] * (src[r][i] - decoded[r][i])^2 is made small. importance:
 * n non-negative factors, one per column, for all rows; NULL: all 1. F16 and BF16 round to nearest, ties to even, and
 * keep infinities and NaN; block formats take a NaN for 0 and an infinity for the largest value they have, and what
 * they hold decodes to finite weights. Bits depend on the input only. */
FIRN_API firn_status firn_encode_rows(firn_context *ctx, firn_type type, const float *src, size_t src_stride, int64_t n,
                                      int64_t rows, const float *importance, void *dst, size_t dst_stride,
                                      int n_threads);

#ifdef __cplusplus
}
#endif
#endif
