/* EXAONE with experts (K-EXAONE): three of four blocks have a window and rotate, the others see everything and do not
 * rotate; a norm per head, the first blocks dense, a shared expert whose key gives its whole width. Facts: llama.cpp's
 * exaone-moe, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_exaone_moe = {
    .name = "exaone-moe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .rope_windows = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .window_step = 4,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize_key = true, .scale_key = true, .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .shared_width = FIRN_WIDTH_EXPERT,
    .output = FIRN_REQUIRED,
    .verified = "exaone-moe",
};
