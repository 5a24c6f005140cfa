/* Qwen3, dense: grouped-query attention with a norm per head. */
#include "model/arch.h"

const firn_arch firn_arch_qwen3 = {
    .name = "qwen3",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .qkv_bias = FIRN_OPTIONAL,
    .output = FIRN_OPTIONAL,
    .factors_served = true,
    .verified = "qwen3",
};
