/* Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder): grouped-query attention with a norm per head, every block
 * routed.
 *
 * Router weights are renormalized over the chosen experts whatever the original configuration says: that is how
 * llama.cpp runs these models, and the adapter will run there. */
#include "model/arch.h"

const firn_arch firn_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .qkv_bias = FIRN_OPTIONAL,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .output = FIRN_OPTIONAL,
    .factors_served = true,
    .verified = "qwen3moe qwen3moe-q4_k",
};
