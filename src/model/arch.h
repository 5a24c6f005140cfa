/* What a model architecture is: a descriptor, read by the loader (which tensors, which metadata) and by the block
 * builder (which graph). A descriptor is data, and nothing tests for an architecture by name. Facts: llama.cpp's model
 * loaders, as of October 2026. */
#ifndef FIRN_MODEL_ARCH_H
#define FIRN_MODEL_ARCH_H

#include <stdbool.h>

typedef enum {
    FIRN_ABSENT, /* a file that has it is refused */
    FIRN_OPTIONAL,
    FIRN_REQUIRED,
} firn_presence;

typedef enum {
    FIRN_ROPE_NORM, /* neighbouring values of a head rotate */
    FIRN_ROPE_NEOX, /* value i with value i + n_rot/2 */
} firn_rope_kind;

typedef enum {
    FIRN_QK_NORM_NONE,
    FIRN_QK_NORM_PER_HEAD,  /* weight [head], on each head before RoPE */
    FIRN_QK_NORM_WHOLE_ROW, /* weight [heads * head], on all heads together */
} firn_qk_norm;

typedef enum {
    FIRN_GATE_SOFTMAX = 1, /* over all experts, before the choice */
} firn_gate;

typedef struct {
    firn_gate gate;
    bool renormalize; /* the chosen weights are divided by max(their sum, 2^-14) */
} firn_router;

typedef struct firn_arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    firn_rope_kind rope;
    bool rope_factors; /* rope_freqs.weight is used where the file has it */
    bool rope_all;     /* the whole head rotates: rope.dimension_count must equal it */
    firn_qk_norm qk_norm;
    firn_presence qkv_bias, attn_output_bias, ffn_bias;
    firn_presence experts;     /* OPTIONAL: where expert_count > 0 */
    firn_presence expert_gate; /* ffn_gate_exps; without it the expert is down(silu(up x)) */
    const char *expert_width;  /* key of the experts' width; NULL: feed_forward_length */
    firn_router router;
    firn_presence output; /* OPTIONAL: the embedding serves where it is absent */
    firn_presence output_bias;
    const char *verified; /* reference cases that it passes, see docs/models.md */
} firn_arch;

#define ARCH(name) extern const firn_arch firn_arch_##name;
#include "archs.def"
#undef ARCH

/* NULL-terminated, in the order of archs.def. */
extern const firn_arch *const firn_archs[];

#endif
