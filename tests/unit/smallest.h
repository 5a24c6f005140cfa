/* The smallest model with experts, for tests that make hundreds of everything. */
#ifndef FIRN_TEST_SMALLEST_H
#define FIRN_TEST_SMALLEST_H

#include "model/random_model.h"

static firn_random_shape smallest_shape(int n_layer)
{
    return (firn_random_shape){.name = "smallest",
                               .arch = "qwen3moe",
                               .pre = "qwen2",
                               .n_vocab = 300,
                               .n_embd = 32,
                               .n_layer = n_layer,
                               .n_head = 2,
                               .n_head_kv = 1,
                               .n_head_dim = 16,
                               .n_ff = 32,
                               .n_expert = 4,
                               .n_expert_used = 2,
                               .n_ff_expert = 32,
                               .n_ctx = 128,
                               .rope_base = 1e4f,
                               .eps = 1e-6f};
}

#endif
