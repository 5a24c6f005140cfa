/* GLM-4 with experts (GLM-4.5, 4.5-Air, 4.6, 4.7, Solar-Open): part of each head rotates, norms per head in some models
 * only, the first blocks dense, a sigmoid router with a bias on the choice, a shared expert. The three rotary sections
 * of the metadata are for images; text has one position in all of them. Prediction blocks do not run. */
#include "model/arch.h"

const firn_arch firn_arch_glm4moe = {
    .name = "glm4moe",
    .rope = FIRN_ROPE_NEOX,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .qk_norm_optional = true,
    .qkv_bias = FIRN_OPTIONAL,
    .post_attention_norm = true,
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
    .output = FIRN_OPTIONAL,
    .verified = "glm4moe",
};
