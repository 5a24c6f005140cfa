/* Qwen2 and Qwen2.5, dense: biases on q, k, v, and one on the output where the file has it. */
#include "model/arch.h"

const firn_arch firn_arch_qwen2 = {
    .name = "qwen2",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qkv_bias = FIRN_OPTIONAL,
    .output = FIRN_OPTIONAL,
    .output_bias = FIRN_OPTIONAL,
    .verified = "qwen2",
};
