/* AVX-512: a few rows through packed formats. */
#if defined(__AVX512F__)
#define FIRN_LANES     16
#define FIRN_SET(name) firn_avx512_##name
#define FIRN_FEW       4
#include "cpu/few_x86.h"
#endif
