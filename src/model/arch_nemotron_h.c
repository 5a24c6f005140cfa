/* Nemotron-H (Nemotron 3 Nano, Super): a block is one thing behind one norm: Mamba 2 (mamba.c), attention without
 * rotation, or a feed-forward, whose matrices are two, with a squared ReLU between them; with experts, perhaps in a
 * narrower width of their own. Facts: llama.cpp's nemotron_h and nemotron_h_moe, October 2026. */
#include "model/arch.h"

#define NEMOTRON                                                                                                       \
    .mixer = FIRN_MIX_MAMBA, .one_part = true, .rope = FIRN_ROPE_NORM, .rope_none = true, .qkv_bias = FIRN_OPTIONAL,   \
    .attn_output_bias = FIRN_OPTIONAL, .activation = FIRN_RELU_SQUARED, .eps_other = true, .output = FIRN_OPTIONAL

const firn_arch firn_arch_nemotron_h_moe = {
    .name = "nemotron_h_moe",
    NEMOTRON,
    .experts = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .latent_experts = true,
    .router = {.gate = FIRN_GATE_SIGMOID, .renormalize_key = true, .scale_key = true, .choice_bias = FIRN_REQUIRED},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .unserved = "ffn_latent_down ffn_latent_up",
    .hf = {.permuted = true,
           .attention = "mixer",
           .mixer = "mixer",
           .dense = "mixer",
           .refused = "ssm_out",
           .layout = FIRN_HF_UNGATED,
           .experts = "mixer.experts",
           .router = "mixer.gate",
           .shared = "mixer.shared_experts"},
    .verified = "nemotron-h-moe nemotron-h-moe-latent nemotron-h-moe-q5",
};

const firn_arch firn_arch_nemotron_h = {
    .name = "nemotron_h",
    NEMOTRON,
    .ffn_bias = FIRN_OPTIONAL,
    .hf = {.permuted = true, .attention = "mixer", .mixer = "mixer", .dense = "mixer", .refused = "ssm_out"},
    .verified = "",
};
