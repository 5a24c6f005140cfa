/* The formats whose few rows avx512vnni multiplies in integers. */
#ifndef FIRN_CPU_FEW_DOT_H
#define FIRN_CPU_FEW_DOT_H

#include "cpu/kernel_set.h"

#define FIRN_EACH_DOT(X)                                                                                               \
    X(Q4_0, q4_0)                                                                                                      \
    X(Q4_1, q4_1)                                                                                                      \
    X(Q5_0, q5_0)                                                                                                      \
    X(Q5_1, q5_1)                                                                                                      \
    X(Q8_0, q8_0)                                                                                                      \
    X(Q4_K, q4_k)                                                                                                      \
    X(Q5_K, q5_k)                                                                                                      \
    X(Q6_K, q6_k)                                                                                                      \
    X(IQ4_NL, iq4_nl)                                                                                                  \
    X(IQ4_XS, iq4_xs)                                                                                                  \
    X(MXFP4, mxfp4)                                                                                                    \
    X(Q2_K, q2_k)                                                                                                      \
    X(Q3_K, q3_k)                                                                                                      \
    X(NVFP4, nvfp4)

#define FIRN_DOT_OF(CODE, name)      [FIRN_##CODE] = &firn_avx512vnni_few_##name,
#define FIRN_DOT_DECLARE(CODE, name) extern const firn_few_kernels firn_avx512vnni_few_##name;
FIRN_EACH_DOT(FIRN_DOT_DECLARE)

#endif
