/* Llama (Llama, Mistral, Mixtral, SmolLM 1 and 2): dense, or with experts where the file counts some.
 *
 * Rows of q and k are permuted in GGUF so that neighbouring values rotate. A sliding window in the file's metadata is
 * not applied, as llama.cpp does not apply it. */
#include "model/arch.h"

const firn_arch firn_arch_llama = {
    .name = "llama",
    .rope = FIRN_ROPE_NORM,
    .rope_factors = true,
    .rope_all = true,
    .qkv_bias = FIRN_OPTIONAL,
    .attn_output_bias = FIRN_OPTIONAL,
    .ffn_bias = FIRN_OPTIONAL,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_OPTIONAL,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .output = FIRN_OPTIONAL,
    .factors_served = true,
    .hf = {.permuted = true},
    .verified = "llama mixtral mixtral-q4_0",
};
