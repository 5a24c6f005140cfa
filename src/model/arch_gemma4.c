/* Gemma 4: the mixture (26B-A4B), the dense models (12B, 31B) and the small ones (E2B, E4B). Blocks with a window and
 * blocks without one have heads of different sizes; in the latter only the first quarter of the pairs rotates
 * (rope_freqs holds 1e30 for the rest), and some have no attn_v: v is what attn_k gives, normed otherwise. Norms before
 * and behind both parts, scores as they are, experts beside a dense feed-forward, logits within a bound, which is 30
 * where the file does not say.
 *
 * The small ones feed each block with embeddings of its own, and their last blocks have no keys: they attend to those
 * of the last two blocks that have some, of which the first has a window and the second has none.
 *
 * GELU is its tanh form, computed; llama.cpp on the CPU looks it up in a table of half precision. Facts: llama.cpp's
 * gemma4, October 2026. */
#include "model/arch.h"

const firn_arch firn_arch_gemma4 = {
    .name = "gemma4",
    .rope = FIRN_ROPE_NEOX,
    .rope_factors = true,
    .rope_factors_full = true,
    .attention_scale = 1,
    .qk_norm = FIRN_QK_NORM_PER_HEAD,
    .v_norm = true,
    .v_or_k = true,
    .window_step = 6,
    .window_pattern = true,
    .window_heads = true,
    .sandwich = true,
    .experts = FIRN_OPTIONAL,
    .expert_gate = FIRN_REQUIRED,
    .expert_width = "expert_feed_forward_length",
    .activation = FIRN_GEGLU,
    .dense_beside = true,
    .routed_by_router = true,
    .router = {.gate = FIRN_GATE_SOFTMAX, .renormalize = true},
    .embedding_root = true,
    .per_layer_inputs = true,
    .output_scale = true,
    .softcap = 30,
    .output = FIRN_OPTIONAL,
    .own_factors = true,
    .hf = {.experts = "experts", .router = "router.proj"},
    .verified = "gemma4 gemma4-e gemma4-moe gemma4-moe-q4_0",
};
