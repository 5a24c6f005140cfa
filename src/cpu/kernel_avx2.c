/* The AVX2+FMA+F16C kernel set. */
#if defined(__AVX2__)
#define FIRN_LANES          8
#define FIRN_SET(name)      firn_avx2_##name
#define FIRN_STRIP          6
#define FIRN_EACH_STRIP(X)  X(1) X(2) X(3) X(4) X(5) X(6)
#define FIRN_DIRECT         6
#define FIRN_EACH_DIRECT(X) X(1) X(2) X(3) X(4) X(5) X(6)
#include "cpu/decode_x86.h"
#include "cpu/floats_x86.h"
#include "cpu/tile_x86.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); /* all of these have F16C */
}

const firn_kernel_set firn_kernel_set_avx2 = {
    .name = "avx2",
    .usable = usable,
    .strip = FIRN_STRIP,
    .strip_direct = FIRN_DIRECT,
    .strip_whole = 1,
    .panels = 1,
    .step_whole = 1,
    .tile_rows = tile_rows,
    FIRN_X86_KERNELS,
    .few = {[FIRN_F32] = &FIRN_SET(few_f32), FIRN_EACH_PACKED(FIRN_FEW_OF)},
};
#endif
