/* A tile of a matrix product on simdgroup matrices: its size, how it is staged, and the multiplication. See products.h,
 * which alone uses it. A GPU whose matrix instructions are others has a header of this name of its own
 * (cuda/kernels/tile.h), with the same names.
 *
 * Operands are staged as float (half would cost 1e-7 of normalized squared error, and gradients are small numbers), or
 * as bfloat where the host defines FIRN_PRECISION_BF16. */
#ifndef FIRN_GPU_TILE_H
#define FIRN_GPU_TILE_H

#include "format/common.h"

#ifndef FIRN_PRECISION_BF16
typedef float operand;
typedef simdgroup_float8x8 operand8x8;
#elif defined(__HAVE_BFLOAT__)
typedef bfloat operand;
typedef simdgroup_bfloat8x8 operand8x8;
#else
#error "the device has no bfloat"
#endif

enum { TILE_ROWS = 32, TILE_COLUMNS = 64, TILE_INNER = 32, TILE_THREADS = 128 };

/* From row to row of what is staged: x as [TILE_ROWS][TILE_INNER] or [TILE_INNER][TILE_ROWS] (X_ALONG_ROWS), weights as
 * [TILE_COLUMNS][TILE_INNER] (forward) or [TILE_INNER][TILE_COLUMNS] (BACK). */
enum { X_STRIDE = TILE_INNER, X_ALONG_STRIDE = TILE_ROWS, W_STRIDE = TILE_INNER, W_BACK_STRIDE = TILE_COLUMNS };
enum { TILE_W = TILE_ROWS * TILE_INNER }; /* where weights begin in threadgroup memory */

/* n values that were decoded at once, and that follow each other. */
template <int n> static inline void stage(threadgroup operand *tile, thread const float *values)
{
    for (int i = 0; i < n; i++)
        tile[i] = (operand)values[i];
}

/* A simdgroup's part of a tile of y: 16 rows x 32 columns. */
typedef struct {
    simdgroup_float8x8 m[2][4];
} firn_tile_sums;

static inline void clear_sums(thread firn_tile_sums &sum)
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            sum.m[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
}

/* sum += a staged step of x times one of W; x is [TILE_ROWS][TILE_INNER], or [TILE_INNER][TILE_ROWS] (X_ALONG_ROWS). */
template <bool BACK, bool X_ALONG_ROWS>
static inline void add_products(thread firn_tile_sums &sum, threadgroup const operand *x_tile,
                                threadgroup const operand *w_tile, ushort simd)
{
    const int row = simd / 2 * 16, column = simd % 2 * 32;

    for (int l = 0; l < TILE_INNER; l += 8) {
        operand8x8 mx[2], mw;
        for (int i = 0; i < 2; i++) {
            if (X_ALONG_ROWS)
                simdgroup_load(mx[i], x_tile + l * X_ALONG_STRIDE + row + 8 * i, X_ALONG_STRIDE, ulong2(0, 0), true);
            else
                simdgroup_load(mx[i], x_tile + (row + 8 * i) * X_STRIDE + l, X_STRIDE);
        }
        for (int j = 0; j < 4; j++) {
            if (BACK)
                simdgroup_load(mw, w_tile + l * W_BACK_STRIDE + column + 8 * j, W_BACK_STRIDE);
            else
                simdgroup_load(mw, w_tile + (column + 8 * j) * W_STRIDE + l, W_STRIDE, ulong2(0, 0), true);
            for (int i = 0; i < 2; i++)
                simdgroup_multiply_accumulate(sum.m[i][j], mx[i], mw, sum.m[i][j]);
        }
    }
}

/* The tile, as [TILE_ROWS][TILE_COLUMNS] where operands were staged; every thread may read it. */
static inline void share_sums(thread firn_tile_sums &sum, threadgroup float *shared, ushort simd)
{
    const int row = simd / 2 * 16, column = simd % 2 * 32;

    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            simdgroup_store(sum.m[i][j], shared + (row + 8 * i) * TILE_COLUMNS + column + 8 * j, TILE_COLUMNS);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

#endif
