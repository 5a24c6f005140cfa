#include "format/range.h"

#include "format/encode.h"
#include "format/format.h"

#include <math.h>

/* How far the largest weight of a block may be from what it becomes, in parts of itself: about two steps. */
static float tolerance(firn_type type)
{
    switch (type) {
    case FIRN_F32:
    case FIRN_F16:
    case FIRN_BF16:
        return 0.01f;
    case FIRN_Q8_0:
        return 0.02f;
    case FIRN_Q6_K:
        return 0.1f;
    case FIRN_Q5_0:
    case FIRN_Q5_1:
    case FIRN_Q5_K:
        return 0.15f;
    case FIRN_Q3_K:
        return 0.5f;
    case FIRN_Q2_K:
        return 0.7f;
    default: /* four bits */
        return 0.3f;
    }
}

float firn_format_lost(firn_type type, const float *x, int64_t n, const void *row)
{
    const float held = type == FIRN_NVFP4 ? 448 : 65504;
    const int64_t block = firn_type_block(type);
    float y[256];
    float most = 0;

    for (int64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    if (most <= held)
        return 0;
    for (int64_t at = 0; at < n; at += block) {
        int64_t peak = 0;
        for (int64_t i = 0; i < block; i++)
            peak = fabsf(x[at + i]) > fabsf(x[at + peak]) ? i : peak;
        if (fabsf(x[at + peak]) <= held)
            continue;
        firn_decode_row(type, (const char *)row + firn_row_bytes(type, at), block, y);
        if (!(fabsf(y[peak] - x[at + peak]) <= tolerance(type) * fabsf(x[at + peak])))
            return fabsf(x[at + peak]);
    }
    return 0;
}

firn_status firn_fail_lost(firn_context *ctx, const char *tensor, firn_type type, float lost)
{
    static const float bf16_most = 0x1.FEp127f;
    const char *instead = lost <= bf16_most && type != FIRN_BF16 ? "bf16 or f32" : "f32";
    const double most = type == FIRN_F16 ? 65504 : type == FIRN_BF16 ? (double)bf16_most : 0;

    return most > 0 ? firn_fail(ctx, FIRN_ERR_FORMAT,
                                "tensor '%s' has weights of %.9g, and %s holds none above %.9g: take %s", tensor,
                                (double)lost, firn_type_name(type), most, instead)
                    : firn_fail(ctx, FIRN_ERR_FORMAT, "tensor '%s' has weights of %g, which %s cannot hold: take %s",
                                tensor, (double)lost, firn_type_name(type), instead);
}
