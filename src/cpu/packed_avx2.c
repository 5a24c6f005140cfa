/* AVX2: packed formats into panels. */
#if defined(__AVX2__)
#define FIRN_LANES     8
#define FIRN_SET(name) firn_avx2_##name
#include "cpu/packed_x86.h"
#endif
