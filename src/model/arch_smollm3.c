/* SmolLM3, dense: Llama's blocks, of which every fourth does not rotate. */
#include "model/arch.h"

const firn_arch firn_arch_smollm3 = {
    .name = "smollm3",
    .rope = FIRN_ROPE_NORM,
    .rope_all = true,
    .rope_skip = 4,
    .qkv_bias = FIRN_OPTIONAL,
    .attn_output_bias = FIRN_OPTIONAL,
    .ffn_bias = FIRN_OPTIONAL,
    .output = FIRN_OPTIONAL,
    .hf = {.permuted = true},
    .verified = "",
};
