/* The AVX-512 kernel set (F, BW, DQ, VL: every processor since Skylake-X and Zen 4). */
#if defined(__AVX512F__)
#define FIRN_LANES          16
#define FIRN_SET(name)      firn_avx512_##name
#define FIRN_STRIP          14
#define FIRN_EACH_STRIP(X)  X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#define FIRN_DIRECT         8
#define FIRN_EACH_DIRECT(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#include "cpu/decode_x86.h"
#include "cpu/floats_x86.h"
#include "cpu/tile_x86.h"

static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#define FRAME                                                                                                          \
    .strip = FIRN_STRIP, .strip_direct = FIRN_DIRECT, .strip_whole = 1, .panels = 2, .step_whole = 1,                  \
    .tile_rows = tile_rows, FIRN_X86_KERNELS

const firn_kernel_set firn_kernel_set_avx512 = {
    .name = "avx512",
    .usable = usable,
    FRAME,
    .few = {[FIRN_F32] = &FIRN_SET(few_f32), FIRN_EACH_PACKED(FIRN_FEW_OF)},
};

/* With vpdpbusd (Cascade Lake and Zen 4 onwards) a few rows forward multiply in integers: few_avx512vnni.c. */
#define DECLARE_DOT(CODE, name) extern const firn_few_kernels firn_avx512vnni_few_##name;
FIRN_EACH_CODED(DECLARE_DOT)
#define DOT_OF(CODE, name) [FIRN_##CODE] = &firn_avx512vnni_few_##name,

static bool usable_vnni(void)
{
    return usable() && __builtin_cpu_supports("avx512vnni");
}

const firn_kernel_set firn_kernel_set_avx512vnni = {
    .name = "avx512vnni",
    .usable = usable_vnni,
    FRAME,
    .few = {[FIRN_F32] = &FIRN_SET(few_f32),
            [FIRN_F16] = &FIRN_SET(few_f16),
            [FIRN_BF16] = &FIRN_SET(few_bf16),
            FIRN_EACH_CODED(DOT_OF)},
};
#endif
