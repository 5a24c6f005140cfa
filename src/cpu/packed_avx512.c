/* AVX-512: packed formats into panels. */
#if defined(__AVX512F__)
#define FIRN_LANES     16
#define FIRN_SET(name) firn_avx512_##name
#include "cpu/packed_x86.h"
#endif
