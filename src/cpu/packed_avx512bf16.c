/* AVX-512 with bf16: packed formats into panels of bf16. */
#if defined(__AVX512BF16__)
#define FIRN_LANES      16
#define FIRN_BF16_CELLS 1
#define FIRN_SET(name)  firn_avx512bf16_##name
#include "cpu/packed_x86.h"
#endif
