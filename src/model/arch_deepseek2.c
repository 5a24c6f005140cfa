/* DeepSeek-V2, V2-Lite, V3, R1, Kimi-K2, Moonlight, GLM-4.7-Flash: latent attention (mla.c), leading dense blocks, then
 * experts beside a shared one. What differs between them stands in their files' metadata.
 *
 * Groups of experts are scored by their two best, as V3 does and llama.cpp for all; the 236B V2 in transformers scores
 * them by their best one. */
#include "model/arch.h"

const firn_arch firn_arch_deepseek2 = {
    .name = "deepseek2",
    .attention = FIRN_ATTENTION_MLA,
    .rope = FIRN_ROPE_NORM,
    .temperature = true,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate = FIRN_GATE_SOFTMAX,
               .gate_key = FIRN_OPTIONAL,
               .gate_by_size = true,
               .renormalize_key = true,
               .scale_key = true,
               .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_OPTIONAL,
    .unserved = "attn_q attn_q_a attn_q_b attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b output",
    .verified = "deepseek2-lite deepseek2-lite-kvb deepseek2-v3 deepseek2-v3-attn",
};
