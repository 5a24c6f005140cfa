/* How kernels read weights: one struct per type, made from the decoders in src/format, which C reads too.
 *
 *     unit                 values that are read at once: 16 of a packed row, 1 of a scalar one
 *     read(row, u, w)      values u * unit ... of a row, as float */
#ifndef FIRN_GPU_FORMATS_H
#define FIRN_GPU_FORMATS_H

#include "format/common.h"
#include "format/iq1_m.h"
#include "format/iq1_s.h"
#include "format/iq2_s.h"
#include "format/iq2_xs.h"
#include "format/iq2_xxs.h"
#include "format/iq3_s.h"
#include "format/iq3_xxs.h"
#include "format/iq4_nl.h"
#include "format/iq4_xs.h"
#include "format/mxfp4.h"
#include "format/nvfp4.h"
#include "format/q1_0.h"
#include "format/q2_0.h"
#include "format/q2_k.h"
#include "format/q3_k.h"
#include "format/q4_0.h"
#include "format/q4_1.h"
#include "format/q4_k.h"
#include "format/q5_0.h"
#include "format/q5_1.h"
#include "format/q5_k.h"
#include "format/q6_k.h"
#include "format/q8_0.h"
#include "format/tq1_0.h"
#include "format/tq2_0.h"

struct weight_f32 {
    enum { unit = 1 };
    static inline void read(device const uchar *row, int u, thread float *w)
    {
        w[0] = ((device const float *)row)[u];
    }
};

struct weight_f16 {
    enum { unit = 1 };
    static inline void read(device const uchar *row, int u, thread float *w)
    {
        w[0] = firn_half_to_float(((device const firn_half *)row)[u]);
    }
};

/* By its bits, so that no device needs bfloat for it. */
struct weight_bf16 {
    enum { unit = 1 };
    static inline void read(device const uchar *row, int u, thread float *w)
    {
        w[0] = firn_bf16_to_float(((device const uint16_t *)row)[u]);
    }
};

#define FIRN_PACKED(name, block)                                                                                       \
    struct weight_##name {                                                                                             \
        enum { unit = 16 };                                                                                            \
        static inline void read(device const uchar *row, int u, thread float *w)                                       \
        {                                                                                                              \
            firn_##name##_decode16((device const firn_##name *)row + u / (block / 16), u % (block / 16), w);           \
        }                                                                                                              \
    };
FIRN_PACKED(q4_0, 32)
FIRN_PACKED(q4_1, 32)
FIRN_PACKED(q5_0, 32)
FIRN_PACKED(q5_1, 32)
FIRN_PACKED(q8_0, 32)
FIRN_PACKED(q2_K, 256)
FIRN_PACKED(q3_K, 256)
FIRN_PACKED(q4_K, 256)
FIRN_PACKED(q5_K, 256)
FIRN_PACKED(q6_K, 256)
FIRN_PACKED(iq4_nl, 32)
FIRN_PACKED(iq4_xs, 256)
FIRN_PACKED(mxfp4, 32)
FIRN_PACKED(nvfp4, 64)
FIRN_PACKED(iq2_xxs, 256)
FIRN_PACKED(iq2_xs, 256)
FIRN_PACKED(iq2_s, 256)
FIRN_PACKED(iq3_xxs, 256)
FIRN_PACKED(iq3_s, 256)
FIRN_PACKED(iq1_s, 256)
FIRN_PACKED(iq1_m, 256)
FIRN_PACKED(tq1_0, 256)
FIRN_PACKED(tq2_0, 256)
FIRN_PACKED(q1_0, 128)
FIRN_PACKED(q2_0, 64)

/* Every type that weights are read in; gpu/plan.h has the same. */
#define FIRN_EACH_WEIGHT(F)                                                                                            \
    F(f32)                                                                                                             \
    F(f16)                                                                                                             \
    F(bf16)                                                                                                            \
    F(q4_0)                                                                                                            \
    F(q4_1)                                                                                                            \
    F(q5_0)                                                                                                            \
    F(q5_1)                                                                                                            \
    F(q8_0)                                                                                                            \
    F(q2_K)                                                                                                            \
    F(q3_K)                                                                                                            \
    F(q4_K)                                                                                                            \
    F(q5_K)                                                                                                            \
    F(q6_K)                                                                                                            \
    F(iq4_nl)                                                                                                          \
    F(iq4_xs)                                                                                                          \
    F(mxfp4)                                                                                                           \
    F(nvfp4)                                                                                                           \
    F(iq2_xxs)                                                                                                         \
    F(iq2_xs)                                                                                                          \
    F(iq2_s)                                                                                                           \
    F(iq3_xxs)                                                                                                         \
    F(iq3_s)                                                                                                           \
    F(iq1_s)                                                                                                           \
    F(iq1_m)                                                                                                           \
    F(tq1_0)                                                                                                           \
    F(tq2_0)                                                                                                           \
    F(q1_0)                                                                                                            \
    F(q2_0)

#endif
