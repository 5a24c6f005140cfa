/* dots.llm1: as many key heads as query heads, a norm per head, the first blocks dense, experts beside shared ones
 * behind a router whose kind and scales the file names. Facts: llama.cpp's dots1, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_dots1 = {
    .name = "dots1",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize_key = true, .scale_key = true, .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_REQUIRED,
    .verified = "dots1",
};
