/* GATED_DELTA, SSM_SCAN and their gradients for AVX2 and FMA. */
#if defined(__AVX2__)
#define FIRN_LANES        8
#define FIRN_SET(name)    firn_avx2_##name
#define FIRN_SCAN_VECTORS 4
#define FIRN_SCAN_TILE    1
#include "cpu/scan_x86.h"
#endif
