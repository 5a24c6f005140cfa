#include "format/fallback.h"

#include <string.h>

static firn_type coarser(firn_type wanted)
{
    switch (wanted) {
    case FIRN_Q2_K:
    case FIRN_Q3_K:
        return FIRN_Q4_0;
    case FIRN_Q4_K:
        return FIRN_Q5_0;
    case FIRN_Q5_K:
        return FIRN_Q5_1;
    case FIRN_Q6_K:
        return FIRN_Q8_0;
    default:
        return firn_type_block(wanted) == 256 ? FIRN_IQ4_NL : FIRN_F16;
    }
}

firn_type firn_quantize_fallback(firn_type wanted, int64_t row)
{
    if (row % firn_type_block(wanted) == 0)
        return wanted;
    const firn_type other = coarser(wanted);
    return row % firn_type_block(other) == 0 ? other : FIRN_F16;
}

bool firn_quantize_keeps_f32(const char *name, int n_dims)
{
    const size_t n = strlen(name);
    const bool weight = n >= 7 && strcmp(name + n - 7, ".weight") == 0;

    return n_dims <= 1 || !weight || strstr(name, "_norm") || strstr(name, "ffn_gate_inp") || strstr(name, "conv1d") ||
           strstr(name, "shortconv.conv");
}
