/* LFM2, dense and with experts (LFM2-8B-A1B, 24B-A2B): most blocks are short convolutions (shortconv.c), the others
 * attend with a norm per head. Facts: llama.cpp's lfm2 and lfm2moe, October 2026. */
#include "model/arch.h"

#define LFM2                                                                                                           \
    .mixer = FIRN_MIX_SHORTCONV, .rope = FIRN_ROPE_NEOX, .rope_all = true, .qk_norm = FIRN_QK_NORM_PER_HEAD,           \
    .output = FIRN_OPTIONAL, .output_norm = "token_embd_norm.weight"

#define LFM2_NAMES .o = "out_proj", .mixer = "conv", .dense = "feed_forward", .gate = "w1", .up = "w3", .down = "w2"

const firn_arch firn_arch_lfm2moe = {
    .name = "lfm2moe",
    LFM2,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize = true, .choice_bias = FIRN_REQUIRED},
    .hf = {LFM2_NAMES, .experts = "feed_forward.experts", .router = "feed_forward.gate"},
    .verified = "lfm2moe lfm2moe-q4_0",
};

const firn_arch firn_arch_lfm2 = {
    .name = "lfm2",
    LFM2,
    .hf = {LFM2_NAMES},
    .verified = "",
};
