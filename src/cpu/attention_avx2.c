/* ATTENTION and ATTENTION_BACK with fused multiply-adds: the reference's tiles, compiled for AVX2 and FMA. */
#if defined(__AVX2__)
#include <immintrin.h>

#define FIRN_MADD(s, b, c) ((v8)_mm256_fmadd_ps(_mm256_set1_ps(s), (__m256)(b), (__m256)(c)))

#include "op/attention_tiles.h"

#include "cpu/attention.h"

void firn_attention_avx2(const firn_call *call, int64_t begin, int64_t end)
{
    attention_forward(call, begin, end);
}

void firn_attention_back_avx2(const firn_call *call, int64_t begin, int64_t end)
{
    attention_backward(call, begin, end);
}
#endif
