/* Rows of every weight format as floats: a loop around each format's decode16, generated from src/formats.def. */
#include "format/format.h"

#include "core/wide.h"
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

FIRN_WIDE static void decode_f32(const void *row, int64_t n, float *out)
{
    memcpy(out, row, (size_t)n * sizeof *out);
}

FIRN_WIDE static void decode_f16(const void *row, int64_t n, float *restrict out)
{
    const firn_half *w = row;

    for (int64_t i = 0; i < n; i++)
        out[i] = firn_half_to_float(w[i]);
}

FIRN_WIDE static void decode_bf16(const void *row, int64_t n, float *restrict out)
{
    const uint16_t *w = row;

    for (int64_t i = 0; i < n; i++)
        out[i] = firn_bf16_to_float(w[i]);
}

/* Sixteen weights go through a local array: bytes of a block could otherwise be what `out` overwrites, and the
 * compiler would have to read them one by one. */
#define SCALAR(CODE, name, size, weight)
#define FORMAT(CODE, name, block, size)                                                                                \
    FIRN_SIZE_IS(firn_##name, size);                                                                                   \
    FIRN_WIDE static void decode_##name(const void *row, int64_t n, float *out)                                        \
    {                                                                                                                  \
        const firn_##name *b = row;                                                                                    \
        for (int64_t i = 0; i < n; i += block, b++) {                                                                  \
            for (int h = 0; h < block / 16; h++) {                                                                     \
                float w[16];                                                                                           \
                firn_##name##_decode16(b, h, w);                                                                       \
                memcpy(out + i + 16 * h, w, sizeof w);                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }
#include "formats.def"
#undef FORMAT

firn_decoder firn_format_decoder(firn_type type)
{
    switch (type) {
    case FIRN_F32:
        return decode_f32;
    case FIRN_F16:
        return decode_f16;
    case FIRN_BF16:
        return decode_bf16;
#define FORMAT(CODE, name, block, size)                                                                                \
    case FIRN_##CODE:                                                                                                  \
        return decode_##name;
#include "formats.def"
#undef FORMAT
#undef SCALAR
    default:
        return NULL;
    }
}
