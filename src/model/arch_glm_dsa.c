/* GLM-5 (5, 5.1, 5.2): DeepSeek's latent attention, where each token chooses the keys that it attends to, once there
 * are more than attention.indexer.top_k. What chooses them is there and does nothing as long as all are chosen; longer
 * documents are refused. Facts: llama.cpp's glm-dsa, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_glm_dsa = {
    .name = "glm-dsa",
    .attention = FIRN_ATTENTION_MLA,
    .rope = FIRN_ROPE_NORM,
    .most_keys = "attention.indexer.top_k",
    .idle = "indexer.",
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate = FIRN_GATE_SIGMOID,
               .gate_key = FIRN_OPTIONAL,
               .renormalize_key = true,
               .scale_key = true,
               .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_OPTIONAL,
    .unserved = "attn_q attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b output",
    .verified = "glm-dsa",
};
