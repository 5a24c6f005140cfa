/* Granite 4.0 H: Granite's blocks, most of which have Mamba 2 (mamba.c) in the place of attention; dense, or experts
 * beside a shared one. Rows of q and k are permuted as in Granite, though nothing rotates. Facts: llama.cpp's
 * granitehybrid, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_granitehybrid = {
    .name = "granitehybrid",
    .mixer = FIRN_MIX_MAMBA,
    .rope = FIRN_ROPE_NORM,
    .rope_factors = true,
    .rope_all = true,
    .rope_finetuned = true,
    .qkv_bias = FIRN_OPTIONAL,
    .attn_output_bias = FIRN_OPTIONAL,
    .ffn_bias = FIRN_OPTIONAL,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_REQUIRED,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .scales = true,
    .logit_scale_optional = true,
    .output = FIRN_OPTIONAL,
    .hf = {.permuted = true,
           .mixer = "mamba",
           .experts = "block_sparse_moe.experts",
           .router = "block_sparse_moe.router",
           .shared = "shared_mlp",
           .shared_joint = true},
    .verified = "granitehybrid granitehybrid-q4_k",
};
