/* ERNIE 4.5 with experts: neighbouring values rotate (and rows of q and k are not permuted: the original rotates so),
 * the first blocks dense, a softmax router with a bias on the choice, a shared expert whose key gives its whole width.
 * attn_output.bias is in some files and not added, as llama.cpp does not add it. */
#include "model/arch.h"

const firn_arch firn_arch_ernie4_5_moe = {
    .name = "ernie4_5-moe",
    .rope = FIRN_ROPE_NORM,
    .rope_all = true,
    .qkv_bias = FIRN_OPTIONAL,
    .attn_output_bias = FIRN_OPTIONAL,
    .attn_output_bias_unused = true,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .interleaved = true,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true, .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .output = FIRN_OPTIONAL,
    .verified = "ernie4-5-moe",
};
