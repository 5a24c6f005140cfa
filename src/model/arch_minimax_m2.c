/* MiniMax-M2 (M2, M2.1): part of each head rotates, q and k normalized over all heads together, every block routed by
 * sigmoids with a bias on the choice. The experts are as wide as feed_forward_length says, whatever
 * expert_feed_forward_length does. Facts: llama.cpp's minimax-m2, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_minimax_m2 = {
    .name = "minimax-m2",
    .rope = FIRN_ROPE_NEOX,
    .qk_norm = FIRN_QK_NORM_WHOLE_ROW,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize = true, .choice_bias = FIRN_REQUIRED},
    .output = FIRN_REQUIRED,
    .verified = "minimax-m2",
};
