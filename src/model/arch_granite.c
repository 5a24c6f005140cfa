/* Granite, dense and with experts (granitemoe, of which GraniteMoeShared has a shared expert too): Llama's blocks with
 * four scales. The logits are divided by theirs, the residual scale is on what a part adds to the stream. Rows of q and
 * k are permuted in GGUF so that neighbouring values rotate. */
#include "model/arch.h"

#define GRANITE                                                                                                        \
    .rope = FIRN_ROPE_NORM, .rope_factors = true, .rope_all = true, .qkv_bias = FIRN_OPTIONAL,                         \
    .attn_output_bias = FIRN_OPTIONAL, .ffn_bias = FIRN_OPTIONAL, .scales = true, .output = FIRN_OPTIONAL

const firn_arch firn_arch_granite = {
    .name = "granite",
    GRANITE,
    .rope_finetuned = true,
    .hf = {.permuted = true},
    .verified = "",
};

const firn_arch firn_arch_granitemoe = {
    .name = "granitemoe",
    GRANITE,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_REQUIRED,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .shared = FIRN_SHARED_ADDED,
    .shared_key = true,
    .hf = {.permuted = true,
           .experts = "block_sparse_moe.experts",
           .router = "block_sparse_moe.router",
           .shared = "shared_mlp",
           .shared_joint = true},
    .verified = "granitemoe granitemoe-q5",
};
