/* AVX2: a few rows through packed formats. */
#if defined(__AVX2__)
#define FIRN_LANES     8
#define FIRN_SET(name) firn_avx2_##name
#define FIRN_FEW       4
#include "cpu/few_x86.h"
#endif
