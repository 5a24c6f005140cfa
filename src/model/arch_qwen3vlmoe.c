/* Qwen3-VL with experts, the part that reads text: Qwen3-MoE whose pairs of a head follow the three axes of an image in
 * turn. A token of text is at the same place on all three, so that this is the usual rotation but for the pairs that no
 * axis takes: they stand still, as in llama.cpp (transformers turns them). Images are not supported. */
#include "model/arch.h"

const firn_arch firn_arch_qwen3vlmoe = {
    .name = "qwen3vlmoe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .rope_sections = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .output = FIRN_OPTIONAL,
    .hf = {.layers = "model.language_model.layers"},
    .verified = "qwen3vlmoe",
};
