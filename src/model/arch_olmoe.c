/* OLMoE (OLMoE-1B-7B): q and k normalized over all heads together, every block routed, router weights as the softmax
 * over all experts leaves them. The clamp of q, k, v that the original configuration may ask for is not applied, as in
 * llama.cpp. */
#include "model/arch.h"

const firn_arch firn_arch_olmoe = {
    .name = "olmoe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_WHOLE_ROW,
    .qkv_bias = FIRN_OPTIONAL,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = false},
    .output = FIRN_REQUIRED,
    .verified = "olmoe olmoe-iq4_nl",
};
