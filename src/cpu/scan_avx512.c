/* GATED_DELTA, SSM_SCAN and their gradients for AVX-512. */
#if defined(__AVX512F__)
#define FIRN_LANES        16
#define FIRN_SET(name)    firn_avx512_##name
#define FIRN_SCAN_VECTORS 4
#define FIRN_SCAN_TILE    2
#include "cpu/scan_x86.h"
#endif
