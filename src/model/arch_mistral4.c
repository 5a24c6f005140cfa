/* Mistral 4 (Mistral Small 4): DeepSeek's latent attention, whose queries may grow with their position, and softmax
 * routing over experts that the files hold with gate and up as one. Facts: llama.cpp's mistral4, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_mistral4 = {
    .name = "mistral4",
    .attention = FIRN_ATTENTION_MLA,
    .rope = FIRN_ROPE_NORM,
    .temperature = true,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate = FIRN_GATE_SOFTMAX,
               .gate_key = FIRN_OPTIONAL,
               .renormalize_key = true,
               .scale_key = true,
               .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_OPTIONAL,
    .unserved = "attn_q attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b output",
    .verified = "mistral4 mistral4-q4_0",
};
