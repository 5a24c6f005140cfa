/* Mellum 2: Qwen3-MoE with a window on three of four blocks; those rotate without the stretching that the file asks for
 * in the others. Facts: llama.cpp's mellum, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_mellum = {
    .name = "mellum",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .rope_unstretched = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .window_step = 4,
    .window_optional = true,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .output = FIRN_REQUIRED,
    .verified = "mellum",
};
