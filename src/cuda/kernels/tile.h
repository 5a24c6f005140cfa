/* gpu/kernels/tile.h for NVIDIA's GPUs: 64 x 128 of a product by 8 warps, each 32 x 32 on mma.sync (compute capability
 * 8.0 and later). cmake/embed_cuda.py puts it in that header's place.
 *
 * F32: an operand is two parts of TF32 (11 bits of significand each), split when it comes from shared memory; three
 * products leave 2^-22 of each term. bf16: the operands as they are. The tensor cores cut sums off instead of rounding
 * them, which would grow with the length of a sum, so a step of TILE_INNER is summed from zero and added to the result
 * by an ordinary addition. Rows are padded so that the lanes of a warp find their values in different banks. */
#ifndef FIRN_CUDA_TILE_H
#define FIRN_CUDA_TILE_H

#include "format/common.h"

#ifdef FIRN_PRECISION_BF16
typedef bfloat operand;
#define FIRN_PAD 8
#else
typedef float operand;
#define FIRN_PAD 4
#endif

enum { TILE_ROWS = 64, TILE_COLUMNS = 128, TILE_INNER = 32, TILE_THREADS = 256 };
enum {
    X_STRIDE = TILE_INNER + FIRN_PAD,
    X_ALONG_STRIDE = TILE_ROWS + 8,
    W_STRIDE = TILE_INNER + FIRN_PAD,
    W_BACK_STRIDE = TILE_COLUMNS + 8
};
enum { TILE_W = TILE_ROWS * X_STRIDE }; /* as many as TILE_INNER * X_ALONG_STRIDE, and a multiple of 16 bytes */
static_assert(TILE_W >= TILE_INNER * X_ALONG_STRIDE, "x fits either way");

/* Aligned to 16 bytes where n is 16: so are rows, and what is decoded at once. */
template <int n> static inline void stage(threadgroup operand *tile, thread const float *values)
{
    if constexpr (n == 1) {
        tile[0] = (operand)values[0];
    } else {
#ifdef FIRN_PRECISION_BF16
        uint word[8];
        for (int i = 0; i < 8; i++)
            word[i] = (uint)bfloat(values[2 * i]).bits | (uint)bfloat(values[2 * i + 1]).bits << 16;
        for (int i = 0; i < 2; i++)
            ((uint4 *)tile)[i] = make_uint4(word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
#else
        for (int i = 0; i < 4; i++)
            ((float4 *)tile)[i] = make_float4(values[4 * i], values[4 * i + 1], values[4 * i + 2], values[4 * i + 3]);
#endif
    }
}

/* A warp's part: [row of 16][column of 8][element]. Lane (g, t) = (lane / 4, lane % 4) has rows g and g + 8 at columns
 * 2 t and 2 t + 1. */
typedef struct {
    float m[2][4][4];
} firn_tile_sums;

static inline void clear_sums(thread firn_tile_sums &sum)
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 4; k++)
                sum.m[i][j][k] = 0;
}

static inline void add_sums(thread firn_tile_sums &sum, thread const firn_tile_sums &part)
{
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 4; k++)
                sum.m[i][j][k] += part.m[i][j][k];
}

static inline int first_row(ushort simd)
{
    return simd / 4 * 32;
}

static inline int first_column(ushort simd)
{
    return simd % 4 * 32;
}

#ifdef FIRN_PRECISION_BF16
static inline void multiply(thread float (&d)[4], thread const uint (&a)[4], thread const uint (&b)[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8x8 matrices of 16-bit values: lane l gives the address of row l % 8 of matrix l / 8. */
template <bool TRANSPOSE> static inline void load_matrices(thread uint (&r)[4], threadgroup const operand *row)
{
    const uint at = (uint)__cvta_generic_to_shared(row);

    if (TRANSPOSE)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

template <bool BACK, bool X_ALONG_ROWS>
static inline void add_products(thread firn_tile_sums &sum, threadgroup const operand *x_tile,
                                threadgroup const operand *w_tile, ushort simd)
{
    const int row = first_row(simd), column = first_column(simd), lane = (int)msl_lane();
    const int in = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8; /* of the lane's row of a matrix */
    firn_tile_sums part;

    clear_sums(part);
    for (int l = 0; l < TILE_INNER; l += 16) {
        uint a[2][4], b[2][4];
        for (int i = 0; i < 2; i++) {
            const int r = row + 16 * i;
            if (X_ALONG_ROWS)
                load_matrices<true>(a[i], x_tile + (l + high + in) * X_ALONG_STRIDE + r + low);
            else
                load_matrices<false>(a[i], x_tile + (r + low + in) * X_STRIDE + l + high);
        }
        for (int j = 0; j < 2; j++) {
            const int c = column + 16 * j;
            if (BACK)
                load_matrices<true>(b[j], w_tile + (l + low + in) * W_BACK_STRIDE + c + high);
            else
                load_matrices<false>(b[j], w_tile + (c + high + in) * W_STRIDE + l + low);
        }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) {
                const uint half[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
                multiply(part.m[i][j], a[i], half);
            }
    }
    add_sums(sum, part);
}
#else
static inline void multiply(thread float (&d)[4], thread const uint (&a)[4], thread const uint (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static inline void split(float value, thread uint &high, thread uint &low)
{
    high = msl_tf32(value);
    low = msl_tf32(value - __uint_as_float(high));
}

template <bool BACK, bool X_ALONG_ROWS>
static inline void add_products(thread firn_tile_sums &sum, threadgroup const operand *x_tile,
                                threadgroup const operand *w_tile, ushort simd)
{
    const int row = first_row(simd) + (int)msl_lane() / 4, column = first_column(simd) + (int)msl_lane() / 4;
    const int t = (int)msl_lane() % 4;
    firn_tile_sums part;

    clear_sums(part);
    for (int l = t; l < TILE_INNER; l += 8) {
        uint a[2][4], a_low[2][4], b[4][2], b_low[4][2];
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 4; k++) { /* rows g, g + 8 at t; the same at t + 4 */
                const int r = row + 16 * i + k % 2 * 8, at = l + k / 2 * 4;
                split(x_tile[X_ALONG_ROWS ? at * X_ALONG_STRIDE + r : r * X_STRIDE + at], a[i][k], a_low[i][k]);
            }
        for (int j = 0; j < 4; j++)
            for (int k = 0; k < 2; k++) {
                const int c = column + 8 * j, at = l + 4 * k;
                split(w_tile[BACK ? at * W_BACK_STRIDE + c : c * W_STRIDE + at], b[j][k], b_low[j][k]);
            }
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 4; j++) {
                multiply(part.m[i][j], a_low[i], b[j]);
                multiply(part.m[i][j], a[i], b_low[j]);
                multiply(part.m[i][j], a[i], b[j]);
            }
    }
    add_sums(sum, part);
}
#endif

/* The tile, as [TILE_ROWS][TILE_COLUMNS] where operands were staged; every thread may read it. */
static inline void share_sums(thread firn_tile_sums &sum, threadgroup float *shared, ushort simd)
{
    const int row = first_row(simd) + (int)msl_lane() / 4, column = first_column(simd) + (int)msl_lane() % 4 * 2;

    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            for (int half = 0; half < 2; half++)
                *(float2 *)(shared + (row + 16 * i + 8 * half) * TILE_COLUMNS + column + 8 * j) =
                    make_float2(sum.m[i][j][2 * half], sum.m[i][j][2 * half + 1]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

#undef FIRN_PAD

#endif
