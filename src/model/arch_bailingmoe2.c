/* Bailing 2 (Ling and Ring 2.0): q, k, v in one product, norms per head, part of each head rotates, the first blocks
 * dense, experts in groups behind a router whose kind, bias and scales the file names, shared experts as one. */
#include "model/arch.h"

const firn_arch firn_arch_bailingmoe2 = {
    .name = "bailingmoe2",
    .rope = FIRN_ROPE_NEOX,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize_key = true, .scale_key = true, .choice_bias = FIRN_OPTIONAL},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_REQUIRED,
    .hf = {.attention = "attention", .qkv = "query_key_value", .o = "dense", .layout = FIRN_HF_MODULES},
    .verified = "bailingmoe2",
};
