/* AFMoE (Arcee's Trinity): an embedding times sqrt(n_embd), norms before and behind both parts of a block, attention
 * whose result each channel gates, every fourth block without rotation and the others with a window, the first blocks
 * dense, sigmoid routing beside a shared expert. Facts: llama.cpp's afmoe, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_afmoe = {
    .name = "afmoe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .rope_skip = 4,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .window_step = 4,
    .window_optional = true,
    .attn_gate = FIRN_REQUIRED,
    .sandwich = true,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate = FIRN_GATE_SIGMOID,
               .gate_key = FIRN_OPTIONAL,
               .renormalize_key = true,
               .scale_key = true,
               .choice_bias = FIRN_REQUIRED},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .embedding_root = true,
    .output = FIRN_OPTIONAL,
    .hf = {.router = "mlp.router.gate"},
    .verified = "afmoe",
};
