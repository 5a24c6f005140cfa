/* Kimi Linear (48B-A3B): delta nets with a decay for each key channel (delta.c), every fourth block latent attention;
 * nothing rotates. llama.cpp applies an adapter to none of that but the output of its attention. Facts: llama.cpp's
 * kimi-linear, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_kimi_linear = {
    .name = "kimi-linear",
    .mixer = FIRN_MIX_KIMI,
    .attention = FIRN_ATTENTION_MLA,
    .q_full = true,
    .rope = FIRN_ROPE_NORM,
    .rope_none = true,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .leading_dense = true,
    .router = {.gate_key = FIRN_REQUIRED, .renormalize = true, .scale_key = true, .choice_bias = FIRN_REQUIRED},
    .shared = FIRN_SHARED_ADDED,
    .shared_width = FIRN_WIDTH_EXPERT,
    .shared_count = true,
    .output = FIRN_REQUIRED,
    .unserved =
        "attn_q attn_k attn_v attn_kv_a_mqa attn_kv_b attn_k_b attn_v_b ssm_beta ssm_f_a ssm_f_b ssm_g_a ssm_g_b "
        "output",
    .unserved_mixer = "attn_output",
    .hf = {.mixer = "self_attn"},
    .verified = "kimi-linear kimi-linear-attn",
};
