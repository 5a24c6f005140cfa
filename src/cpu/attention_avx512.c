/* ATTENTION and ATTENTION_BACK for AVX-512. */
#if defined(__AVX512F__)
#define FIRN_LANES         16
#define FIRN_SET(name)     firn_avx512_##name
#define FIRN_FLOATS        firn_kernel_set_avx512
#define FIRN_STRIP         14
#define FIRN_EACH_STRIP(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#include "cpu/attention_x86.h"

#include "cpu/attention_back_x86.h"
#endif
