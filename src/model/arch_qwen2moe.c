/* Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): biases on q, k, v, every block routed, beside the experts a shared one
 * behind a sigmoid gate of its own. Router weights stay as the softmax over all experts leaves them, whatever the
 * original configuration says: that is how llama.cpp runs these models. */
#include "model/arch.h"

const firn_arch firn_arch_qwen2moe = {
    .name = "qwen2moe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qkv_bias = FIRN_OPTIONAL,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .router = {.gate = FIRN_GATE_SOFTMAX},
    .shared = FIRN_SHARED_GATED,
    .shared_key = true,
    .shared_width = FIRN_WIDTH_DENSE,
    .output = FIRN_REQUIRED,
    .hf = {.shared = "mlp.shared_expert"},
    .verified = "qwen2moe qwen2moe-q2_k",
};
