/* Qwen3-Next and Qwen3.5, 3.6: three of four blocks are gated delta nets (delta.c), the others attend with a norm per
 * head, part of which rotates, and a gate on each value of the result. Dense (qwen35) or with experts beside a shared
 * one behind a gate of its own. Norms' weights have their + 1 in the file. Facts: llama.cpp's qwen3next, qwen35 and
 * qwen35moe, October 2026. */
#include "model/arch.h"

#define QWEN                                                                                                           \
    .mixer = FIRN_MIX_DELTA, .mixer_by_interval = true, .rope = FIRN_ROPE_NEOX, .qk_norm = FIRN_QK_NORM_PER_HEAD,      \
    .q_gated = true, .post_attention_norm = true, .output = FIRN_OPTIONAL
#define ROUTED                                                                                                         \
    .experts = FIRN_REQUIRED, .expert_gate = FIRN_REQUIRED, .expert_width = "expert_feed_forward_length",              \
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true}, .shared = FIRN_SHARED_GATED, .shared_key = true,       \
    .shared_width = FIRN_WIDTH_DENSE

const firn_arch firn_arch_qwen35moe = {
    .name = "qwen35moe",
    QWEN,
    ROUTED,
    .delta_tiled = true,
    .rope_sections = true,
    .hf = {.mixer = "linear_attn", .shared = "mlp.shared_expert"},
    .verified = "qwen35moe qwen35moe-q4_0",
};

const firn_arch firn_arch_qwen35 = {
    .name = "qwen35",
    QWEN,
    .delta_tiled = true,
    .rope_sections = true,
    .hf = {.mixer = "linear_attn"},
    .verified = "qwen35 qwen35-q8_0 qwen35-long",
};

const firn_arch firn_arch_qwen3next = {
    .name = "qwen3next",
    QWEN,
    ROUTED,
    .delta_joint = true,
    .hf = {.mixer = "linear_attn", .shared = "mlp.shared_expert"},
    .verified = "qwen3next qwen3next-in qwen3next-q4_0",
};
