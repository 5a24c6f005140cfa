/* ATTENTION and ATTENTION_BACK for AVX2 and FMA. */
#if defined(__AVX2__)
#define FIRN_LANES         8
#define FIRN_SET(name)     firn_avx2_##name
#define FIRN_FLOATS        firn_kernel_set_avx2
#define FIRN_STRIP         6
#define FIRN_EACH_STRIP(X) X(1) X(2) X(3) X(4) X(5) X(6)
#include "cpu/attention_x86.h"

#include "cpu/attention_back_x86.h"
#endif
