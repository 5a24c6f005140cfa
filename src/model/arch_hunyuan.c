/* Hunyuan with experts (Hunyuan-A13B) and its successor Hy3. The former norms q and k of each head behind the rotation,
 * and its experts are as wide as feed_forward_length says; the latter norms before it, has dense blocks (those without
 * a router), sigmoid routing, and a bias on the choice whose name has no suffix. Facts: llama.cpp's hunyuan-moe and
 * hy_v3, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_hunyuan_moe = {
    .name = "hunyuan-moe",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_TURNED,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .shared_width = FIRN_WIDTH_DENSE,
    .output = FIRN_OPTIONAL,
    .hf = {.router = "mlp.gate.wg", .shared = "mlp.shared_mlp"},
    .verified = "hunyuan-moe",
};

const firn_arch firn_arch_hy_v3 = {
    .name = "hy_v3",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .routed_by_router = true,
    .router = {.gate = FIRN_GATE_SIGMOID,
               .gate_key = FIRN_OPTIONAL,
               .renormalize_key = true,
               .scale_key = true,
               .choice_bias = FIRN_OPTIONAL,
               .choice_bias_bare = true},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .shared_width = FIRN_WIDTH_EXPERT,
    .output = FIRN_OPTIONAL,
    .verified = "hy-v3",
};
