/* gpt-oss (20b, 120b): heads with a sink (a logit that takes its share of the softmax and gives nothing), a window on
 * every other block, YaRN, biases everywhere down to each expert, experts chosen by their logits and weighted with the
 * softmax over the chosen, a clamped activation.
 *
 * The bounds of YaRN's ramp are rounded to whole dimensions, as llama.cpp rounds them; the published model does not. */
#include "model/arch.h"

const firn_arch firn_arch_gpt_oss = {
    .name = "gpt-oss",
    .rope = FIRN_ROPE_NEOX,
    .rope_all = true,
    .qkv_bias = FIRN_OPTIONAL,
    .attn_output_bias = FIRN_REQUIRED,
    .sinks = FIRN_REQUIRED,
    .window_step = 2,
    .post_attention_norm = true,
    .experts = FIRN_REQUIRED,
    .expert_gate = FIRN_REQUIRED,
    .expert_bias = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .activation = FIRN_SWIGLU_OAI,
    .router = {.gate = FIRN_GATE_SOFTMAX_CHOSEN, .logit_bias = FIRN_REQUIRED},
    .output = FIRN_REQUIRED,
    .hf = {.layout = FIRN_HF_ALTERNATING, .router = "mlp.router"},
    .verified = "gpt-oss gpt-oss-mxfp4",
};
