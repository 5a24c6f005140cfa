/* The AVX-512 kernel set of FIRN_PRECISION_BF16, for processors with vdpbf16ps: two products a lane and instruction,
 * summed in F32. It takes what is subnormal for zero. */
#if defined(__AVX512BF16__)
#define FIRN_LANES         16
#define FIRN_BF16_CELLS    1
#define FIRN_SET(name)     firn_avx512bf16_##name
#define FIRN_STRIP         14
#define FIRN_EACH_STRIP(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#include "cpu/decode_x86.h"
#include "cpu/floats_x86.h"
#include "cpu/tile_x86.h"

static bool usable(void)
{
    return firn_kernel_set_avx512.usable() && __builtin_cpu_supports("avx512bf16");
}

const firn_kernel_set firn_kernel_set_avx512bf16 = {
    .name = "avx512bf16",
    .usable = usable,
    .precision = FIRN_PRECISION_BF16,
    .strip = FIRN_STRIP,
    .strip_whole = 1,
    .panels = 2,
    .step_whole = 1,
    FIRN_X86_KERNELS,
    .few = {FIRN_EACH_PACKED(FIRN_FEW_OF)},
};
#endif
