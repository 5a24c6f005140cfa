#include "model/random_model.h"

#include "core/random.h"
#include "format/draw.h"
#include "format/fallback.h"
#include "gguf/gguf.h"
#include "model/arch.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* From the models' published configurations; the tiny ones are ours: several heads to a key-value head, more experts
 * than are used, rows that the block sizes divide (tiny, tiny-qwen3moe: 256) and do not (tiny-olmoe, tiny-llama),
 * windows and original contexts that a few dozen tokens exceed. */
/* clang-format off */
static const firn_random_shape shapes[] = {
    /* name, arch, pre, vocab, embd, layers, heads, kv, head dim, ff, experts, used, expert ff, ctx, rope, eps, tied */
    {"qwen3-30b-a3b", "qwen3moe", "qwen2", 151936, 2048, 48, 32, 4, 128, 6144, 128, 8, 768, 40960, 1e6f, 1e-6f,
     .tied = false},
    {"olmoe-7b", "olmoe", "olmo", 50304, 2048, 16, 16, 16, 128, 1024, 64, 8, 1024, 4096, 1e4f, 1e-5f,
     .tied = false},
    {"mixtral-8x7b", "llama", "gpt-2", 32000, 4096, 32, 32, 8, 128, 14336, 8, 2, 14336, 32768, 1e6f, 1e-5f,
     .tied = false},
    {"smollm2-135m", "llama", "smollm", 49152, 576, 30, 9, 3, 64, 1536, 0, 0, 0, 8192, 1e5f, 1e-5f, .tied = true},
    {"llama-3.2-1b", "llama", "llama-bpe", 128256, 2048, 16, 32, 8, 64, 8192, 0, 0, 0, 131072, 5e5f, 1e-5f,
     .tied = true, .with = FIRN_WITH_FACTORS},
    {"qwen2-57b-a14b", "qwen2moe", "qwen2", 151936, 3584, 28, 28, 4, 128, 18944, 64, 8, 2560, 32768, 1e6f,
     1e-6f, .with = FIRN_WITH_QKV_BIAS, .n_ff_shared = 20480},
    {"qwen1.5-moe-a2.7b", "qwen2moe", "qwen2", 151936, 2048, 24, 16, 16, 128, 5632, 60, 4, 1408, 8192, 1e6f,
     1e-6f, .with = FIRN_WITH_QKV_BIAS, .n_ff_shared = 5632},
    {"granite-3.1-3b-a800m", "granitemoe", "refact", 49155, 1536, 32, 24, 8, 64, 512, 40, 8, 512, 131072, 5e6f,
     1e-6f, true, .logit_scale = 6, .residual_scale = 0.22f, .embedding_scale = 12, .attention_scale = 0.015625f},
    {"granite-3.1-2b", "granite", "refact", 49155, 2048, 40, 32, 8, 64, 8192, 0, 0, 0, 131072, 5e6f, 1e-5f,
     true, .logit_scale = 8, .residual_scale = 0.22f, .embedding_scale = 12, .attention_scale = 0.015625f},
    {"glm-4.5-air", "glm4moe", "glm4", 151552, 4096, 46, 96, 8, 128, 10944, 128, 8, 1408, 131072, 1e6f, 1e-5f,
     .with = FIRN_WITH_QKV_BIAS, .n_rot = 64, .n_lead = 1, .n_shared = 1, .gating = 2, .weights_scale = 1,
     .weights_norm = true},
    {"ernie-4.5-21b-a3b", "ernie4_5-moe", "gpt-2", 103424, 2560, 28, 20, 4, 128, 12288, 64, 6, 1536, 131072,
     5e5f, 1e-5f, true, .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .n_ff_shared = 3072},
    {"gpt-oss-20b", "gpt-oss", "gpt-4o", 201088, 2880, 24, 64, 8, 64, 2880, 32, 4, 2880, 131072, 1.5e5f, 1e-5f,
     .with = FIRN_WITH_QKV_BIAS, .rope_scaling = "yarn", .rope_factor = 32, .n_ctx_orig = 4096, .n_window = 128},
    {"ling-mini-2.0", "bailingmoe2", "bailingmoe2", 157184, 2048, 20, 16, 4, 128, 5120, 256, 8, 512, 32768,
     6e5f, 1e-6f, .with = FIRN_WITH_CHOICE_BIAS | FIRN_WITH_FUSED_QKV, .n_rot = 64, .n_lead = 1, .n_shared = 1, .gating = 2,
     .n_group = 8, .n_group_used = 4, .weights_scale = 2.5f, .weights_norm = true},
    {"qwen2.5-0.5b", "qwen2", "qwen2", 151936, 896, 24, 14, 2, 64, 4864, 0, 0, 0, 32768, 1e6f, 1e-6f,
     .tied = true, .with = FIRN_WITH_QKV_BIAS},
    {"qwen3-0.6b", "qwen3", "qwen2", 151936, 1024, 28, 16, 8, 128, 3072, 0, 0, 0, 40960, 1e6f, 1e-6f,
     .tied = true},
    {"smollm3-3b", "smollm3", "smaug-bpe", 128256, 2048, 36, 16, 4, 128, 11008, 0, 0, 0, 65536, 5e6f, 1e-6f,
     .tied = true},
    {"deepseek-v2-lite", "deepseek2", "deepseek-llm", 102400, 2048, 27, 16, 16, 192, 10944, 64, 6, 1408, 163840,
     1e4f, 1e-6f, .n_rot = 64, .rope_scaling = "yarn", .rope_factor = 40, .yarn_log_multiplier = 0.0707f,
     .n_ctx_orig = 4096, .n_lead = 1, .n_shared = 2, .gating = 1, .weights_scale = 1, .kv_rank = 512, .n_nope = 128,
     .n_head_v = 128},
    {"moonlight-16b-a3b", "deepseek2", "kimi-k2", 163840, 2048, 27, 16, 16, 192, 11264, 64, 6, 1408, 8192, 5e4f,
     1e-5f, .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 64, .n_lead = 1, .n_shared = 2, .gating = 2, .weights_scale = 2.446f,
     .weights_norm = true, .kv_rank = 512, .n_nope = 128, .n_head_v = 128},
    {"deepseek-v3", "deepseek2", "deepseek-v3", 129280, 7168, 61, 128, 128, 192, 18432, 256, 8, 2048, 163840,
     1e4f, 1e-6f, .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 64, .rope_scaling = "yarn", .rope_factor = 40,
     .yarn_log_multiplier = 0.1f, .n_ctx_orig = 4096, .n_lead = 3, .n_shared = 1, .gating = 2, .n_group = 8,
     .n_group_used = 4, .weights_scale = 2.5f, .weights_norm = true, .q_rank = 1536, .kv_rank = 512, .n_nope = 128,
     .n_head_v = 128},
    {"minimax-m2", "minimax-m2", "minimax-m2", 200064, 3072, 62, 48, 8, 128, 1536, 256, 8, 1536, 196608, 5e6f, 1e-6f,
     .n_rot = 64, .gating = 2},
    {"qwen3-235b-a22b", "qwen3moe", "qwen2", 151936, 4096, 94, 64, 4, 128, 12288, 128, 8, 1536, 40960, 1e6f, 1e-6f,
     .tied = false},
    {"qwen3-vl-30b-a3b", "qwen3vlmoe", "qwen2", 151936, 2048, 48, 32, 4, 128, 6144, 128, 8, 768, 262144, 5e6f, 1e-6f,
     .sections = {24, 20, 20}},
    {"mistral-small-4", "mistral4", "tekken", 131072, 4096, 36, 32, 32, 128, 12288, 128, 4, 2048, 1048576, 1e4f, 1e-6f,
     .with = FIRN_WITH_FUSED_EXPERTS, .n_rot = 64, .rope_scaling = "yarn", .rope_factor = 128,
     .yarn_log_multiplier = 0.1f, .n_ctx_orig = 8192, .n_shared = 1, .gating = 1, .weights_scale = 1,
     .weights_norm = true, .q_rank = 1024, .kv_rank = 256, .n_nope = 64, .n_head_v = 128, .temperature = 0.1f,
     .n_temperature = 8192},
    {"glm-5", "glm-dsa", "glm5", 154880, 6144, 78, 64, 64, 256, 12288, 256, 8, 2048, 202752, 1e6f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 64, .n_lead = 3, .n_shared = 1, .gating = 2, .weights_scale = 2.5f,
     .weights_norm = true, .q_rank = 2048, .kv_rank = 512, .n_nope = 192, .n_head_v = 256, .top_k = 2048},
    {"dots.llm1", "dots1", "qwen2", 152064, 4096, 62, 32, 32, 128, 10944, 128, 6, 1408, 32768, 1e7f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .n_shared = 2, .gating = 2, .weights_scale = 2.5f,
     .weights_norm = true},
    {"k-exaone-236b-a23b", "exaone-moe", "exaone-moe", 153600, 6144, 48, 64, 8, 128, 18432, 128, 8, 2048, 262144, 1e6f,
     1e-5f, .with = FIRN_WITH_CHOICE_BIAS, .n_window = 128, .n_lead = 1, .n_ff_shared = 2048, .gating = 2,
     .weights_scale = 2.5f, .weights_norm = true},
    {"hunyuan-a13b", "hunyuan-moe", "hunyuan", 128167, 4096, 32, 32, 8, 128, 3072, 64, 8, 3072, 32768, 1.1158e7f, 1e-5f,
     .tied = true, .n_ff_shared = 3072},
    {"hy3", "hy_v3", "hunyuan", 120832, 4096, 80, 64, 8, 128, 13312, 192, 8, 1536, 262144, 1.1158e7f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .gating = 2, .weights_scale = 2.826f, .weights_norm = true},
    {"mellum-2", "mellum", "mellum2", 98304, 2304, 28, 32, 4, 128, 7168, 64, 8, 896, 131072, 5e5f, 1e-6f,
     .rope_scaling = "yarn", .rope_factor = 16, .n_ctx_orig = 8192, .n_window = 1024},
    {"trinity-mini", "afmoe", "afmoe", 200192, 2048, 32, 32, 4, 128, 6144, 128, 8, 1024, 131072, 1e4f, 1e-5f,
     .n_window = 2048, .n_lead = 2, .n_shared = 1, .gating = 2, .weights_scale = 2.826f, .weights_norm = true},
    {"tiny-minimax-m2", "minimax-m2", "minimax-m2", 512, 128, 2, 4, 2, 32, 64, 8, 3, 64, 512, 5e6f, 1e-6f, .n_rot = 16,
     .gating = 2},
    {"tiny-qwen3vlmoe", "qwen3vlmoe", "qwen2", 512, 128, 2, 4, 2, 32, 192, 8, 3, 64, 512, 1e4f, 1e-6f,
     .sections = {6, 4, 5}},
    {"tiny-mistral4", "mistral4", "tekken", 512, 128, 3, 8, 8, 48, 160, 8, 3, 64, 512, 1e4f, 1e-6f,
     .with = FIRN_WITH_FUSED_EXPERTS, .n_rot = 16, .rope_scaling = "yarn", .rope_factor = 16,
     .yarn_log_multiplier = 0.1f, .n_ctx_orig = 24, .n_shared = 1, .gating = 1, .weights_scale = 1,
     .weights_norm = true, .q_rank = 96, .kv_rank = 64, .n_nope = 32, .n_head_v = 32, .temperature = 0.1f,
     .n_temperature = 8},
    {"tiny-glm-dsa", "glm-dsa", "glm5", 512, 128, 3, 4, 4, 48, 160, 8, 3, 64, 512, 1e6f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 16, .n_lead = 1, .n_shared = 1, .gating = 2, .weights_scale = 2.5f,
     .weights_norm = true, .q_rank = 96, .kv_rank = 64, .n_nope = 32, .n_head_v = 32, .top_k = 480},
    {"tiny-dots1", "dots1", "qwen2", 512, 128, 3, 4, 4, 32, 192, 8, 3, 64, 512, 1e7f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .n_shared = 2, .gating = 2, .weights_scale = 2.5f,
     .weights_norm = true},
    {"tiny-exaone-moe", "exaone-moe", "exaone-moe", 512, 128, 4, 4, 2, 32, 192, 8, 3, 64, 512, 1e6f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_window = 8, .n_lead = 1, .n_ff_shared = 96, .gating = 2, .weights_scale = 2.5f,
     .weights_norm = true},
    {"tiny-hunyuan-moe", "hunyuan-moe", "hunyuan", 512, 128, 2, 4, 2, 32, 64, 8, 3, 64, 512, 1e4f, 1e-5f,
     .n_ff_shared = 96},
    {"tiny-hy-v3", "hy_v3", "hunyuan", 512, 128, 3, 4, 2, 32, 192, 8, 3, 64, 512, 1e4f, 1e-5f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .gating = 2, .weights_scale = 2.826f, .weights_norm = true},
    {"tiny-mellum", "mellum", "mellum2", 512, 128, 4, 4, 2, 32, 192, 8, 3, 64, 512, 5e5f, 1e-6f,
     .rope_scaling = "yarn", .rope_factor = 16, .n_ctx_orig = 24, .n_window = 8},
    {"tiny-afmoe", "afmoe", "afmoe", 512, 128, 4, 4, 2, 32, 192, 8, 3, 64, 512, 1e4f, 1e-5f, .n_window = 8, .n_lead = 1,
     .n_shared = 1, .gating = 2, .weights_scale = 2.826f, .weights_norm = true},
    {"gemma-4-26b-a4b", "gemma4", "gpt-2", 262144, 2816, 30, 16, 8, 512, 2112, 128, 8, 704, 262144, 1e6f, 1e-6f,
     .tied = true, .with = FIRN_WITH_FUSED_EXPERTS, .n_window = 1024, .n_head_window = 256, .n_kv_full = 2,
     .window_step = 6, .rope_base_window = 1e4f},
    {"gemma-4-31b", "gemma4", "gpt-2", 262144, 5376, 60, 32, 16, 512, 21504, 0, 0, 0, 262144, 1e6f, 1e-6f,
     .tied = true, .n_window = 1024, .n_head_window = 256, .n_kv_full = 4, .window_step = 6, .rope_base_window = 1e4f},
    {"tiny-gemma4", "gemma4", "gpt-2", 512, 128, 4, 4, 2, 64, 192, 0, 0, 0, 512, 1e6f, 1e-6f, .tied = true,
     .n_window = 8, .n_head_window = 32, .n_kv_full = 1, .window_step = 2, .rope_base_window = 1e4f},
    {"gemma-4-e2b", "gemma4", "gpt-2", 262144, 1536, 35, 8, 1, 512, 6144, 0, 0, 0, 131072, 1e6f, 1e-6f, .tied = true,
     .n_window = 512, .n_head_window = 256, .window_step = 5, .rope_base_window = 1e4f, .n_per_layer = 256,
     .n_borrowing = 20, .n_ff_borrowing = 12288},
    {"gemma-4-e4b", "gemma4", "gpt-2", 262144, 2560, 42, 8, 2, 512, 10240, 0, 0, 0, 131072, 1e6f, 1e-6f, .tied = true,
     .n_window = 512, .n_head_window = 256, .window_step = 6, .rope_base_window = 1e4f, .n_per_layer = 256,
     .n_borrowing = 18},
    {"tiny-gemma4-moe", "gemma4", "gpt-2", 512, 128, 4, 4, 2, 64, 96, 8, 3, 64, 512, 1e6f, 1e-6f, .tied = true,
     .with = FIRN_WITH_FUSED_EXPERTS, .n_window = 8, .n_head_window = 32, .n_kv_full = 1, .window_step = 2,
     .rope_base_window = 1e4f},
    {"qwen3.5-35b-a3b", "qwen35moe", "qwen35", 248320, 2048, 40, 16, 2, 256, 512, 256, 8, 512, 262144, 1e7f, 1e-6f,
     .n_rot = 64, .n_ff_shared = 512, .sections = {11, 11, 10}, .pattern = "RRRA", .n_taps = 4, .n_state = 128,
     .n_state_group = 16, .n_state_head = 32, .n_inner = 4096},
    {"qwen3.5-4b", "qwen35", "qwen35", 248320, 2560, 32, 16, 4, 256, 9216, 0, 0, 0, 262144, 1e7f, 1e-6f, .tied = true,
     .n_rot = 64, .sections = {11, 11, 10}, .pattern = "RRRA", .n_taps = 4, .n_state = 128, .n_state_group = 16,
     .n_state_head = 32, .n_inner = 4096},
    {"qwen3-next-80b-a3b", "qwen3next", "qwen2", 151936, 2048, 48, 16, 2, 256, 5120, 512, 10, 512, 262144, 1e7f, 1e-6f,
     .n_rot = 64, .n_ff_shared = 512, .pattern = "RRRA", .n_taps = 4, .n_state = 128, .n_state_group = 16,
     .n_state_head = 32, .n_inner = 4096},
    {"lfm2-8b-a1b", "lfm2moe", "lfm2", 65536, 2048, 24, 32, 8, 64, 7168, 32, 4, 1792, 128000, 1e6f, 1e-5f, .tied = true,
     .n_lead = 2, .gating = 2, .pattern = "RRARRRARRRARRRARRRARRARR", .n_taps = 3},
    {"lfm2-1.2b", "lfm2", "lfm2", 65536, 2048, 16, 32, 8, 64, 8192, 0, 0, 0, 128000, 1e6f, 1e-5f, .tied = true,
     .pattern = "RRARRARRARARARAR", .n_taps = 3},
    {"nemotron-3-nano-30b-a3b", "nemotron_h_moe", "pixtral", 131072, 2688, 52, 32, 2, 128, 1856, 128, 6, 1856, 262144,
     1e4f, 1e-5f, .with = FIRN_WITH_CHOICE_BIAS, .n_ff_shared = 3712, .weights_scale = 2.5f, .weights_norm = true,
     .pattern = "RERERAERERERAERERERAERERERAERERERAERERERERAERERERERE", .n_taps = 4, .n_state = 128,
     .n_state_group = 8, .n_state_head = 64, .n_inner = 4096},
    {"nemotron-nano-9b-v2", "nemotron_h", "pixtral", 131072, 4480, 56, 40, 8, 128, 15680, 0, 0, 0, 131072, 1e4f, 1e-5f,
     .tied = false, .pattern = "RERERERRERERERAERERERAERERERERAERERERERAERERRERERERERERE", .n_taps = 4, .n_state = 128, .n_state_group = 8, .n_state_head = 128,
     .n_inner = 10240},
    {"granite-4.0-h-tiny", "granitehybrid", "dbrx", 100352, 1536, 40, 12, 4, 128, 512, 64, 6, 512, 131072, 1e4f, 1e-5f,
     .tied = true, .n_ff_shared = 1024, .logit_scale = 6, .residual_scale = 0.22f, .embedding_scale = 12,
     .attention_scale = 0.0078125f, .pattern = "RRRRRARRRRRRRRRARRRRRRRRRARRRRRRRRRARRRR", .n_taps = 4, .n_state = 128,
     .n_state_group = 1, .n_state_head = 48, .n_inner = 3072},
    {"kimi-linear-48b-a3b", "kimi-linear", "kimi-k2", 163840, 2304, 27, 32, 32, 192, 9216, 256, 8, 1024, 1048576, 1e4f,
     1e-5f, .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 64, .n_lead = 1, .n_shared = 1, .gating = 2, .weights_scale = 2.446f,
     .kv_rank = 512, .n_nope = 128, .n_head_v = 128, .pattern = "RRRARRRARRRARRRARRRARRRARRA", .n_taps = 4, .n_state = 128},
    {"tiny-qwen35moe", "qwen35moe", "qwen35", 512, 128, 4, 4, 2, 32, 96, 8, 3, 64, 512, 1e7f, 1e-6f, .n_rot = 16,
     .n_ff_shared = 96, .sections = {3, 3, 2}, .pattern = "RRRA", .n_taps = 4, .n_state = 16, .n_state_group = 2,
     .n_state_head = 4, .n_inner = 64},
    {"tiny-qwen35", "qwen35", "qwen35", 512, 128, 4, 4, 2, 32, 192, 0, 0, 0, 512, 1e7f, 1e-6f, .tied = false, .n_rot = 16,
     .sections = {3, 3, 2}, .pattern = "RRRA", .n_taps = 4, .n_state = 32, .n_state_group = 2, .n_state_head = 6,
     .n_inner = 192},
    {"tiny-qwen3next", "qwen3next", "qwen2", 512, 128, 4, 4, 2, 32, 96, 8, 3, 64, 512, 1e7f, 1e-6f, .n_rot = 16,
     .n_ff_shared = 96, .pattern = "RRRA", .n_taps = 4, .n_state = 16, .n_state_group = 2, .n_state_head = 4,
     .n_inner = 64},
    {"tiny-qwen3next-in", "qwen3next", "qwen2", 512, 128, 4, 4, 2, 32, 96, 8, 3, 64, 512, 1e7f, 1e-6f, .n_rot = 16,
     .n_ff_shared = 96, .pattern = "RRRA", .n_taps = 4, .n_state = 16, .n_state_group = 2, .n_state_head = 6,
     .n_inner = 96, .joint = true},
    {"tiny-lfm2moe", "lfm2moe", "lfm2", 512, 128, 4, 4, 2, 32, 192, 8, 3, 64, 512, 1e6f, 1e-5f, .tied = true,
     .n_lead = 1, .gating = 2, .pattern = "RRA", .n_taps = 3},
    {"tiny-lfm2", "lfm2", "lfm2", 512, 128, 4, 4, 2, 32, 192, 0, 0, 0, 512, 1e6f, 1e-5f, .tied = true,
     .pattern = "RRA", .n_taps = 3},
    {"tiny-nemotron-h-moe", "nemotron_h_moe", "pixtral", 512, 128, 4, 4, 2, 32, 64, 8, 3, 64, 512, 1e4f, 1e-5f,
     .n_ff_shared = 96, .weights_scale = 2.5f, .weights_norm = true, .pattern = "REAE", .n_taps = 4, .n_state = 16,
     .n_state_group = 2, .n_state_head = 4, .n_inner = 128},
    {"tiny-nemotron-h-moe-latent", "nemotron_h_moe", "pixtral", 512, 128, 4, 4, 2, 32, 64, 8, 3, 64, 512, 1e4f, 1e-5f,
     .n_ff_shared = 96, .weights_scale = 2.5f, .weights_norm = true, .pattern = "REAE", .n_taps = 4, .n_state = 16,
     .n_state_group = 2, .n_state_head = 4, .n_inner = 128, .n_latent = 64},
    {"tiny-nemotron-h", "nemotron_h", "pixtral", 512, 128, 4, 4, 2, 32, 192, 0, 0, 0, 512, 1e4f, 1e-5f, .tied = false,
     .pattern = "REAE", .n_taps = 4, .n_state = 16, .n_state_group = 1, .n_state_head = 4, .n_inner = 128},
    {"tiny-granitehybrid", "granitehybrid", "dbrx", 512, 128, 4, 4, 2, 32, 64, 8, 3, 64, 512, 1e4f, 1e-5f, .tied = true,
     .n_ff_shared = 96, .logit_scale = 6, .residual_scale = 0.22f, .embedding_scale = 12, .attention_scale = 0.125f,
     .pattern = "RA", .n_taps = 4, .n_state = 16, .n_state_group = 1, .n_state_head = 8, .n_inner = 256},
    {"tiny-granitehybrid-dense", "granitehybrid", "dbrx", 512, 128, 4, 4, 2, 32, 192, 0, 0, 0, 512, 1e4f, 1e-5f,
     .tied = true, .logit_scale = 6, .residual_scale = 0.22f, .embedding_scale = 12, .attention_scale = 0.125f,
     .pattern = "RA", .n_taps = 4, .n_state = 16, .n_state_group = 1, .n_state_head = 8, .n_inner = 256},
    {"tiny-kimi-linear", "kimi-linear", "kimi-k2", 512, 128, 4, 4, 4, 48, 160, 8, 3, 64, 512, 1e4f, 1e-6f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 16, .n_lead = 1, .n_shared = 1, .gating = 2, .weights_scale = 2.446f,
     .kv_rank = 64, .n_nope = 32, .n_head_v = 32, .pattern = "RRRA", .n_taps = 4, .n_state = 16},
    {"tiny", "llama", "gpt-2", 512, 256, 2, 8, 2, 32, 256, 6, 2, 256, 512, 1e4f, 1e-5f, .tied = true},
    {"tiny-qwen3moe", "qwen3moe", "qwen2", 512, 256, 2, 4, 2, 64, 512, 8, 3, 128, 512, 1e6f, 1e-6f,
     .tied = false},
    {"tiny-olmoe", "olmoe", "olmo", 512, 128, 2, 4, 4, 32, 64, 8, 2, 64, 512, 1e4f, 1e-5f, .tied = false},
    {"tiny-llama", "llama", "gpt-2", 512, 128, 2, 4, 2, 32, 320, 0, 0, 0, 512, 1e4f, 1e-5f, .tied = true},
    {"tiny-llama3", "llama", "llama-bpe", 512, 128, 2, 4, 2, 32, 320, 0, 0, 0, 512, 1e4f, 1e-5f, .tied = false,
     .with = FIRN_WITH_QKV_BIAS | FIRN_WITH_OUTPUT_BIAS | FIRN_WITH_FFN_BIAS | FIRN_WITH_FACTORS},
    {"tiny-qwen2", "qwen2", "qwen2", 512, 128, 2, 4, 2, 32, 192, 0, 0, 0, 512, 1e6f, 1e-6f, .tied = false,
     .with = FIRN_WITH_QKV_BIAS | FIRN_WITH_FUSED_QKV},
    {"tiny-qwen3", "qwen3", "qwen2", 512, 96, 2, 4, 2, 64, 192, 0, 0, 0, 512, 1e6f, 1e-6f, .tied = false},
    {"tiny-smollm3", "smollm3", "smaug-bpe", 512, 128, 5, 6, 2, 32, 192, 0, 0, 0, 512, 5e6f, 1e-6f, .tied = false},
    {"tiny-qwen2moe", "qwen2moe", "qwen2", 512, 128, 2, 4, 2, 32, 192, 8, 3, 64, 512, 1e6f, 1e-6f,
     .with = FIRN_WITH_QKV_BIAS, .n_ff_shared = 96},
    {"tiny-granite", "granite", "refact", 512, 128, 2, 4, 2, 32, 192, 0, 0, 0, 512, 5e6f, 1e-5f, false,
     .with = FIRN_WITH_FACTORS, .rope_scaling = "longrope", .n_ctx_orig = 24, .logit_scale = 8, .residual_scale = 0.22f,
     .embedding_scale = 12, .attention_scale = 0.125f},
    {"tiny-granitemoe", "granitemoe", "refact", 512, 128, 2, 6, 2, 32, 64, 8, 3, 64, 512, 1e4f, 1e-6f, false,
     .n_ff_shared = 96, .logit_scale = 6, .residual_scale = 0.22f, .embedding_scale = 12, .attention_scale = 0.125f},
    {"tiny-glm4moe", "glm4moe", "glm4", 512, 128, 3, 6, 2, 32, 192, 8, 3, 64, 512, 1e6f, 1e-5f,
     .with = FIRN_WITH_QKV_BIAS | FIRN_WITH_QK_NORM, .n_rot = 16, .n_lead = 1, .n_shared = 2, .gating = 2,
     .weights_scale = 1.5f, .weights_norm = true},
    {"tiny-ernie", "ernie4_5-moe", "gpt-2", 512, 128, 3, 6, 2, 32, 192, 8, 3, 64, 512, 5e5f, 1e-5f, false,
     .with = FIRN_WITH_CHOICE_BIAS, .n_lead = 1, .n_ff_shared = 128},
    {"tiny-gpt-oss", "gpt-oss", "gpt-4o", 512, 128, 4, 6, 2, 32, 64, 8, 3, 64, 512, 1.5e5f, 1e-5f,
     .with = FIRN_WITH_QKV_BIAS, .rope_scaling = "yarn", .rope_factor = 16, .n_ctx_orig = 32, .n_window = 8},
    {"tiny-bailingmoe2", "bailingmoe2", "bailingmoe2", 512, 128, 3, 4, 2, 32, 192, 12, 3, 64, 512, 6e5f, 1e-6f,
     .with = FIRN_WITH_CHOICE_BIAS | FIRN_WITH_FUSED_QKV, .n_rot = 16, .n_lead = 1, .n_shared = 2, .gating = 2, .n_group = 4,
     .n_group_used = 2, .weights_scale = 2.5f, .weights_norm = true},
    {"tiny-deepseek2", "deepseek2", "deepseek-v3", 512, 128, 3, 16, 16, 64, 160, 12, 3, 64, 512, 1e4f, 1e-6f,
     .with = FIRN_WITH_CHOICE_BIAS, .n_rot = 32, .rope_scaling = "yarn", .rope_factor = 16, .yarn_log_multiplier = 0.1f,
     .n_ctx_orig = 24, .n_lead = 1, .n_shared = 2, .gating = 2, .n_group = 4, .n_group_used = 2, .weights_scale = 2.5f,
     .weights_norm = true, .q_rank = 96, .kv_rank = 64, .n_nope = 32, .n_head_v = 32},
    {"tiny-deepseek2-lite", "deepseek2", "deepseek-llm", 512, 128, 3, 4, 4, 48, 160, 8, 2, 64, 512, 1e4f, 1e-6f,
     .n_rot = 16, .rope_scaling = "yarn", .rope_factor = 16, .yarn_log_multiplier = 0.0707f, .n_ctx_orig = 24, .n_lead = 1,
     .n_shared = 1, .gating = 1, .weights_scale = 1, .kv_rank = 64, .n_nope = 32, .n_head_v = 64},
    {"tiny-deepseek2-old", "deepseek2", "deepseek-llm", 512, 128, 3, 4, 4, 48, 160, 8, 2, 64, 512, 1e4f, 1e-6f,
     .n_rot = 16, .rope_scaling = "yarn", .rope_factor = 16, .yarn_log_multiplier = 0.0707f, .n_ctx_orig = 24, .n_lead = 1,
     .n_shared = 1, .gating = 1, .weights_scale = 1, .kv_rank = 64, .n_nope = 32, .n_head_v = 64, .joint = true},
    {"tiny-gemma4-e", "gemma4", "gpt-2", 512, 128, 6, 4, 2, 64, 192, 0, 0, 0, 512, 1e6f, 1e-6f, .tied = true,
     .n_window = 8, .n_head_window = 32, .window_step = 2, .rope_base_window = 1e4f, .n_per_layer = 32, .n_borrowing = 2,
     .n_ff_borrowing = 384},
};
/* clang-format on */

enum { N_SHAPES = sizeof shapes / sizeof *shapes, CHUNK_BYTES = 1 << 20, INDEXER_HEADS = 32, INDEXER_HEAD = 128 };

const firn_random_shape *firn_random_shape_at(int i)
{
    return i >= 0 && i < N_SHAPES ? &shapes[i] : NULL;
}

const firn_random_shape *firn_random_shape_find(const char *name)
{
    for (int i = 0; i < N_SHAPES; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

/* ---- keys ---- */

typedef struct {
    firn_context *ctx;
    firn_gguf_writer *out;
    const firn_random_shape *shape;
    const firn_arch *arch;
    int64_t n_layer;
    firn_type type;
    uint64_t seed;
    bool writing; /* false: tensors are described, true: their bytes are written */
    firn_random_report report;
    void *chunk; /* [CHUNK_BYTES] */
} maker;

static const char *arch_key(const maker *m, char key[80], const char *rest)
{
    snprintf(key, 80, "%s.%s", m->shape->arch, rest);
    return key;
}

static firn_status put_u32(maker *m, const char *rest, int64_t value)
{
    char key[80];

    return firn_gguf_put_u32(m->out, arch_key(m, key, rest), (uint32_t)value);
}

static firn_status put_f32(maker *m, const char *rest, float value)
{
    char key[80];

    return firn_gguf_put_f32(m->out, arch_key(m, key, rest), value);
}

static bool windowed(const maker *m, int64_t i)
{
    return i % m->shape->window_step < m->shape->window_step - 1;
}

/* The first block that attends to the keys of earlier ones: behind a block without a window, whose keys are lent. Of a
 * model with fewer blocks than the shape has, as great a part borrows. */
static int64_t first_borrowing(const maker *m)
{
    const firn_random_shape *s = m->shape;
    const int64_t own = m->n_layer - s->n_borrowing * m->n_layer / s->n_layer;

    if (!s->n_borrowing)
        return m->n_layer;
    return firn_min_i64(firn_max_i64(own / s->window_step, 1) * s->window_step, m->n_layer);
}

/* Heads that are not the same in blocks with a window and in those without one. */
static firn_status put_window_heads(maker *m)
{
    const firn_random_shape *s = m->shape;
    uint32_t kv[512];
    uint8_t window[512];
    char key[80];

    for (int64_t i = 0; i < m->n_layer; i++) {
        window[i] = windowed(m, i);
        kv[i] = (uint32_t)(window[i] || !s->n_kv_full ? s->n_head_kv : s->n_kv_full);
    }
    FIRN_TRY(firn_gguf_put_array(m->out, arch_key(m, key, "attention.head_count_kv"), FIRN_KV_U32, kv,
                                 (uint64_t)m->n_layer));
    FIRN_TRY(firn_gguf_put_array(m->out, arch_key(m, key, "attention.sliding_window_pattern"), FIRN_KV_BOOL, window,
                                 (uint64_t)m->n_layer));
    FIRN_TRY(put_u32(m, "attention.key_length_swa", s->n_head_window));
    FIRN_TRY(put_u32(m, "attention.value_length_swa", s->n_head_window));
    FIRN_TRY(put_u32(m, "rope.dimension_count_swa", s->n_head_window));
    FIRN_TRY(put_u32(m, "attention.shared_kv_layers", m->n_layer - first_borrowing(m)));
    FIRN_TRY(put_u32(m, "embedding_length_per_layer_input", s->n_per_layer));
    return put_f32(m, "rope.freq_base_swa", s->rope_base_window);
}

/* A, R or E; see random_model.h. */
static char kind_of(const maker *m, int64_t i)
{
    const char *pattern = m->shape->pattern;

    return pattern ? pattern[(size_t)i % strlen(pattern)] : 'A';
}

/* Which blocks attend, which have a state, which are a feed-forward alone. */
static firn_status put_pattern(maker *m)
{
    const firn_random_shape *s = m->shape;
    const struct {
        const char *key;
        int64_t value;
    } keys[] = {
        {"ssm.conv_kernel", s->n_taps},          {"ssm.state_size", s->n_state}, {"ssm.group_count", s->n_state_group},
        {"ssm.time_step_rank", s->n_state_head}, {"ssm.inner_size", s->n_inner}, {"moe_latent_size", s->n_latent},
    };
    uint32_t kv[512], ff[512];
    char key[80];

    for (int64_t i = 0; i < m->n_layer; i++) {
        const char kind = kind_of(m, i);
        kv[i] = kind != 'A' ? 0 : (uint32_t)(s->kv_rank ? 1 : s->n_head_kv);
        ff[i] = kind == 'E' ? (uint32_t)s->n_ff : 0;
    }
    if (m->arch->mixer_by_interval) {
        FIRN_TRY(put_u32(m, "attention.head_count_kv", s->n_head_kv));
        FIRN_TRY(put_u32(m, "full_attention_interval", (int64_t)strlen(s->pattern)));
    } else {
        FIRN_TRY(firn_gguf_put_array(m->out, arch_key(m, key, "attention.head_count_kv"), FIRN_KV_U32, kv,
                                     (uint64_t)m->n_layer));
    }
    if (m->arch->one_part)
        FIRN_TRY(firn_gguf_put_array(m->out, arch_key(m, key, "feed_forward_length"), FIRN_KV_U32, ff,
                                     (uint64_t)m->n_layer));
    if (m->arch->mixer == FIRN_MIX_SHORTCONV)
        return put_u32(m, "shortconv.l_cache", s->n_taps);
    if (m->arch->mixer == FIRN_MIX_KIMI) {
        FIRN_TRY(put_u32(m, "kda.head_dim", s->n_state));
        return put_u32(m, "ssm.conv_kernel", s->n_taps);
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].value)
            FIRN_TRY(put_u32(m, keys[i].key, keys[i].value));
    return m->arch->rope_finetuned || m->arch->rope_none
               ? firn_gguf_put_bool(m->out, arch_key(m, key, "rope.scaling.finetuned"), false)
               : FIRN_OK;
}

/* Latent attention in its new form gives the sizes of the one head that its cache holds, and the real ones apart. */
static firn_status put_heads(maker *m)
{
    const firn_random_shape *s = m->shape;
    const int64_t hv = s->n_head_v ? s->n_head_v : s->n_head_dim;
    const bool latent = s->kv_rank && !s->joint;

    if (s->n_head_window)
        FIRN_TRY(put_window_heads(m));
    else if (s->pattern)
        FIRN_TRY(put_pattern(m));
    else
        FIRN_TRY(put_u32(m, "attention.head_count_kv", latent ? 1 : s->n_head_kv));
    FIRN_TRY(put_u32(m, "attention.key_length", latent ? s->kv_rank + s->n_rot : s->n_head_dim));
    FIRN_TRY(put_u32(m, "attention.value_length", latent ? s->kv_rank : hv));
    if (s->kv_rank) {
        if (!m->arch->q_full)
            FIRN_TRY(put_u32(m, "attention.q_lora_rank", s->q_rank));
        FIRN_TRY(put_u32(m, "attention.kv_lora_rank", s->kv_rank));
    }
    if (latent) {
        FIRN_TRY(put_u32(m, "attention.key_length_mla", s->n_head_dim));
        FIRN_TRY(put_u32(m, "attention.value_length_mla", hv));
    }
    return FIRN_OK;
}

/* What a shape says with 0 is left to its default. */
static firn_status put_optional(maker *m)
{
    const firn_random_shape *s = m->shape;
    const struct {
        const char *key;
        int64_t whole;
        float real;
    } keys[] = {
        {"rope.scaling.factor", 0, s->rope_factor},
        {"rope.scaling.original_context_length", s->n_ctx_orig, 0},
        {"rope.scaling.yarn_log_multiplier", 0, s->yarn_log_multiplier},
        {"attention.sliding_window", s->n_window, 0},
        {"leading_dense_block_count", s->n_lead, 0},
        {"interleave_moe_layer_step", m->arch->interleaved, 0},
        {"expert_shared_feed_forward_length", s->n_ff_shared, 0},
        {"expert_shared_count", s->n_shared, 0},
        {"expert_gating_func", s->gating, 0},
        {"expert_group_count", s->n_group, 0},
        {"expert_group_used_count", s->n_group_used, 0},
        {"expert_weights_scale", 0, s->weights_scale},
        {"attention.temperature_scale", 0, s->temperature},
        {"attention.temperature_length", s->n_temperature, 0},
        {"attention.indexer.head_count", s->top_k ? INDEXER_HEADS : 0, 0},
        {"attention.indexer.key_length", s->top_k ? INDEXER_HEAD : 0, 0},
        {"attention.indexer.top_k", s->top_k, 0},
        {"logit_scale", 0, s->logit_scale},
        {"residual_scale", 0, s->residual_scale},
        {"embedding_scale", 0, s->embedding_scale},
        {"attention.scale", 0, s->attention_scale},
    };
    char key[80];

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (keys[i].whole)
            FIRN_TRY(put_u32(m, keys[i].key, keys[i].whole));
        if (keys[i].real != 0)
            FIRN_TRY(put_f32(m, keys[i].key, keys[i].real));
    }
    if (s->weights_norm)
        FIRN_TRY(firn_gguf_put_bool(m->out, arch_key(m, key, "expert_weights_norm"), true));
    if (m->arch->rope_sections)
        FIRN_TRY(firn_gguf_put_array(m->out, arch_key(m, key, "rope.dimension_sections"), FIRN_KV_I32, s->sections, 4));
    if (s->rope_scaling)
        FIRN_TRY(firn_gguf_put_string(m->out, arch_key(m, key, "rope.scaling.type"), s->rope_scaling,
                                      strlen(s->rope_scaling)));
    return FIRN_OK;
}

static int64_t dense_width(const maker *m, int64_t i)
{
    return m->shape->n_ff_borrowing && i >= first_borrowing(m) ? m->shape->n_ff_borrowing : m->shape->n_ff;
}

static firn_status put_widths(maker *m)
{
    uint32_t ff[512];
    char key[80];

    for (int64_t i = 0; i < m->n_layer; i++)
        ff[i] = (uint32_t)dense_width(m, i);
    return firn_gguf_put_array(m->out, arch_key(m, key, "feed_forward_length"), FIRN_KV_U32, ff, (uint64_t)m->n_layer);
}

static firn_status put_keys(maker *m)
{
    const firn_random_shape *s = m->shape;
    char name[96];

    snprintf(name, sizeof name, "%s (random weights)", s->name);
    FIRN_TRY(firn_gguf_put_string(m->out, "general.architecture", s->arch, strlen(s->arch)));
    FIRN_TRY(firn_gguf_put_string(m->out, "general.name", name, strlen(name)));
    FIRN_TRY(put_u32(m, "vocab_size", s->n_vocab));
    FIRN_TRY(put_u32(m, "context_length", s->n_ctx));
    FIRN_TRY(put_u32(m, "embedding_length", s->n_embd));
    FIRN_TRY(put_u32(m, "block_count", m->n_layer));
    if (s->n_ff_borrowing)
        FIRN_TRY(put_widths(m));
    else if (!m->arch->one_part)
        FIRN_TRY(put_u32(m, "feed_forward_length", s->n_ff));
    FIRN_TRY(put_u32(m, "attention.head_count", s->n_head));
    FIRN_TRY(put_heads(m));
    FIRN_TRY(put_u32(m, "rope.dimension_count", s->n_rot ? s->n_rot : s->n_head_dim));
    FIRN_TRY(put_f32(m, "rope.freq_base", s->rope_base));
    FIRN_TRY(
        put_f32(m, m->arch->eps_other ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", s->eps));
    FIRN_TRY(put_optional(m));
    if (s->n_expert) {
        FIRN_TRY(put_u32(m, "expert_count", s->n_expert));
        FIRN_TRY(put_u32(m, "expert_used_count", s->n_expert_used));
        /* llama.cpp wants the key also of some that are as wide as feed_forward_length says. */
        FIRN_TRY(
            put_u32(m, m->arch->expert_width ? m->arch->expert_width : "expert_feed_forward_length", s->n_ff_expert));
    }
    return firn_random_vocab_put(m->ctx, m->out, s->n_vocab, s->pre);
}

/* ---- tensors ---- */

/* Norms and rotary factors lie around 1, everything else around 0: matrices with deviation 1/sqrt(ne0), so that
 * products keep their inputs' size, biases and sinks with 0.1. */
static firn_status write_tensor(maker *m, const char *name, firn_type type, int n_dims, const int64_t *ne)
{
    const uint64_t stream = firn_stream(name);
    const int64_t per_chunk = (int64_t)(CHUNK_BYTES / firn_type_size(type));
    const bool decay = strstr(name, "ssm_a") && !strstr(name, "alpha");
    const bool one = strstr(name, "ssm_d") || decay || strstr(name, "_norm") || strstr(name, "_scale.") ||
                     strstr(name, ".scale") || strncmp(name, "rope_", 5) == 0;
    const bool router = strstr(name, "ffn_gate_inp.scale"); /* what it multiplies is divided by as much */
    const bool small = one || strstr(name, ".bias") || strstr(name, "exp_probs_b") || strstr(name, "attn_sinks");
    const float std = small ? 0.1f : 1.0f / sqrtf((float)ne[0]);
    int64_t blocks = ne[0] / firn_type_block(type);

    for (int d = 1; d < n_dims; d++)
        blocks *= ne[d];
    for (int64_t first = 0; first < blocks; first += per_chunk) {
        const int64_t n = firn_min_i64(per_chunk, blocks - first);
        firn_format_draw(type, std, m->seed, stream, first, n, m->chunk);
        for (int64_t i = 0; one && i < n; i++)
            ((float *)m->chunk)[i] += 1;
        for (int64_t i = 0; decay && i < n; i++) /* from what lasts to what is gone at once, and negative */
            ((float *)m->chunk)[i] *= -0.02f * (float)(1 << (first + i) % 9);
        for (int64_t i = 0; router && i < n; i++)
            ((float *)m->chunk)[i] *= sqrtf((float)ne[0]);
        FIRN_TRY(firn_gguf_writer_data(m->out, m->chunk, (size_t)n * firn_type_size(type)));
    }
    return FIRN_OK;
}

/* "what" is the whole name outside the blocks (layer -1), and what follows "blk.<i>." within. */
static firn_status tensor(maker *m, int64_t layer, const char *what, int64_t ne0, int64_t ne1, int64_t ne2)
{
    const int64_t ne[FIRN_MAX_DIMS] = {ne0, ne1 ? ne1 : 1, ne2 ? ne2 : 1, 1};
    const int n_dims = ne2 ? 3 : ne1 ? 2 : 1;
    char name[GGUF_LLAMA_NAME];

    if (layer < 0)
        snprintf(name, sizeof name, "%s", what);
    else
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, what);
    const bool plain = firn_quantize_keeps_f32(name, n_dims);
    const firn_type type = plain ? FIRN_F32 : firn_quantize_fallback(m->type, ne0);
    if (m->writing)
        return write_tensor(m, name, type, n_dims, ne);
    m->report.n_tensors++;
    m->report.n_weights += ne[0] * ne[1] * ne[2];
    m->report.bytes += firn_tensor_bytes(type, ne);
    if (!plain && type != m->type) {
        m->report.n_fallbacks++;
        m->report.fallback = type;
    }
    return firn_gguf_add_tensor(m->out, name, type, n_dims, ne);
}

static bool has(const maker *m, firn_presence presence, unsigned with)
{
    return presence == FIRN_REQUIRED || (presence == FIRN_OPTIONAL && (m->shape->with & with));
}

/* A feed-forward without a gate. */
static bool two_matrices(const maker *m)
{
    return m->arch->activation == FIRN_RELU_SQUARED;
}

static firn_status dense(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t f = dense_width(m, i);

    if (!two_matrices(m))
        FIRN_TRY(tensor(m, i, "ffn_gate.weight", s->n_embd, f, 0));
    FIRN_TRY(tensor(m, i, "ffn_up.weight", s->n_embd, f, 0));
    FIRN_TRY(tensor(m, i, "ffn_down.weight", f, s->n_embd, 0));
    if (!has(m, m->arch->ffn_bias, FIRN_WITH_FFN_BIAS))
        return FIRN_OK;
    if (!two_matrices(m))
        FIRN_TRY(tensor(m, i, "ffn_gate.bias", f, 0, 0));
    FIRN_TRY(tensor(m, i, "ffn_up.bias", f, 0, 0));
    return tensor(m, i, "ffn_down.bias", s->n_embd, 0, 0);
}

static firn_status experts(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const firn_arch *a = m->arch;
    const int64_t d = s->n_latent ? s->n_latent : s->n_embd, fe = s->n_ff_expert, e = s->n_expert;

    FIRN_TRY(tensor(m, i, "ffn_gate_inp.weight", s->n_embd, e, 0));
    if (s->n_latent) {
        FIRN_TRY(tensor(m, i, "ffn_latent_down.weight", s->n_embd, d, 0));
        FIRN_TRY(tensor(m, i, "ffn_latent_up.weight", d, s->n_embd, 0));
    }
    if (has(m, a->router.logit_bias, 0))
        FIRN_TRY(tensor(m, i, "ffn_gate_inp.bias", e, 0, 0));
    if (has(m, a->router.choice_bias, FIRN_WITH_CHOICE_BIAS))
        FIRN_TRY(tensor(m, i, a->router.choice_bias_bare ? "exp_probs_b" : "exp_probs_b.bias", e, 0, 0));
    if (s->with & FIRN_WITH_FUSED_EXPERTS) {
        FIRN_TRY(tensor(m, i, "ffn_gate_up_exps.weight", d, 2 * fe, e));
    } else {
        if (!two_matrices(m))
            FIRN_TRY(tensor(m, i, "ffn_gate_exps.weight", d, fe, e));
        FIRN_TRY(tensor(m, i, "ffn_up_exps.weight", d, fe, e));
    }
    FIRN_TRY(tensor(m, i, "ffn_down_exps.weight", fe, d, e));
    if (!has(m, a->expert_bias, 0))
        return FIRN_OK;
    FIRN_TRY(tensor(m, i, "ffn_gate_exps.bias", fe, e, 0));
    FIRN_TRY(tensor(m, i, "ffn_up_exps.bias", fe, e, 0));
    return tensor(m, i, "ffn_down_exps.bias", d, e, 0);
}

static firn_status shared(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t width = s->n_ff_shared ? s->n_ff_shared : m->arch->shared_width ? s->n_ff_expert : 0;
    const int64_t fs = width * (s->n_shared ? s->n_shared : 1);

    if (m->arch->shared == FIRN_SHARED_NONE || fs == 0)
        return FIRN_OK;
    if (m->arch->shared == FIRN_SHARED_GATED)
        FIRN_TRY(tensor(m, i, "ffn_gate_inp_shexp.weight", s->n_embd, 0, 0));
    if (!two_matrices(m))
        FIRN_TRY(tensor(m, i, "ffn_gate_shexp.weight", s->n_embd, fs, 0));
    FIRN_TRY(tensor(m, i, "ffn_up_shexp.weight", s->n_embd, fs, 0));
    return tensor(m, i, "ffn_down_shexp.weight", fs, s->n_embd, 0);
}

/* A dense feed-forward with norms, and the factors of the experts. */
static firn_status beside_experts(maker *m, int64_t i)
{
    FIRN_TRY(dense(m, i));
    FIRN_TRY(tensor(m, i, "post_ffw_norm_1.weight", m->shape->n_embd, 0, 0));
    FIRN_TRY(tensor(m, i, "post_ffw_norm_2.weight", m->shape->n_embd, 0, 0));
    FIRN_TRY(tensor(m, i, "pre_ffw_norm_2.weight", m->shape->n_embd, 0, 0));
    FIRN_TRY(tensor(m, i, "ffn_gate_inp.scale", m->shape->n_embd, 0, 0));
    return tensor(m, i, "ffn_down_exps.scale", m->shape->n_expert, 0, 0);
}

static firn_status feed_forward(maker *m, int64_t i)
{
    if (!m->arch->one_part)
        FIRN_TRY(tensor(m, i, m->arch->post_attention_norm ? "post_attention_norm.weight" : "ffn_norm.weight",
                        m->shape->n_embd, 0, 0));
    if (m->shape->n_expert == 0 || i < m->shape->n_lead)
        return dense(m, i);
    if (m->arch->dense_beside)
        FIRN_TRY(beside_experts(m, i));
    FIRN_TRY(experts(m, i));
    return shared(m, i);
}

static firn_status heads(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const firn_arch *a = m->arch;
    const bool own = s->n_head_window && !windowed(m, i); /* heads of a block without a window, where they differ */
    const bool keys = i < first_borrowing(m);
    const int64_t d = s->n_embd, hd = s->n_head_window && !own ? s->n_head_window : s->n_head_dim, q = s->n_head * hd,
                  kv = (own && s->n_kv_full ? s->n_kv_full : s->n_head_kv) * hd;
    const bool bias = has(m, a->qkv_bias, FIRN_WITH_QKV_BIAS), whole = a->qk_norm == FIRN_QK_NORM_WHOLE_ROW;

    if (s->with & FIRN_WITH_FUSED_QKV) {
        FIRN_TRY(tensor(m, i, "attn_qkv.weight", d, q + 2 * kv, 0));
        if (bias)
            FIRN_TRY(tensor(m, i, "attn_qkv.bias", q + 2 * kv, 0, 0));
    } else {
        FIRN_TRY(tensor(m, i, "attn_q.weight", d, a->q_gated ? 2 * q : q, 0));
        if (keys)
            FIRN_TRY(tensor(m, i, "attn_k.weight", d, kv, 0));
        if (keys && !(own && s->n_kv_full))
            FIRN_TRY(tensor(m, i, "attn_v.weight", d, kv, 0));
        if (bias) {
            FIRN_TRY(tensor(m, i, "attn_q.bias", q, 0, 0));
            FIRN_TRY(tensor(m, i, "attn_k.bias", kv, 0, 0));
            FIRN_TRY(tensor(m, i, "attn_v.bias", kv, 0, 0));
        }
    }
    if (a->qk_norm != FIRN_QK_NORM_NONE && (!a->qk_norm_optional || (s->with & FIRN_WITH_QK_NORM))) {
        FIRN_TRY(tensor(m, i, "attn_q_norm.weight", whole ? q : hd, 0, 0));
        if (keys)
            FIRN_TRY(tensor(m, i, "attn_k_norm.weight", whole ? kv : hd, 0, 0));
    }
    if (has(m, a->attn_gate, 0))
        FIRN_TRY(tensor(m, i, "attn_gate.weight", d, q, 0));
    if (has(m, a->sinks, 0))
        FIRN_TRY(tensor(m, i, "attn_sinks.weight", s->n_head, 0, 0));
    FIRN_TRY(tensor(m, i, "attn_output.weight", q, d, 0));
    return has(m, a->attn_output_bias, FIRN_WITH_OUTPUT_BIAS) ? tensor(m, i, "attn_output.bias", d, 0, 0) : FIRN_OK;
}

/* What chooses among keys in documents that are longer than those that run here. */
static firn_status indexer(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t nh = INDEXER_HEADS, hd = INDEXER_HEAD;

    FIRN_TRY(tensor(m, i, "indexer.attn_q_b.weight", s->q_rank, nh * hd, 0));
    FIRN_TRY(tensor(m, i, "indexer.attn_k.weight", s->n_embd, hd, 0));
    FIRN_TRY(tensor(m, i, "indexer.k_norm.weight", hd, 0, 0));
    FIRN_TRY(tensor(m, i, "indexer.k_norm.bias", hd, 0, 0));
    return tensor(m, i, "indexer.proj.weight", s->n_embd, nh, 0);
}

static firn_status latent_attention(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t H = s->n_head, q = H * s->n_head_dim, r = s->kv_rank;

    if (s->q_rank) {
        FIRN_TRY(tensor(m, i, "attn_q_a.weight", s->n_embd, s->q_rank, 0));
        FIRN_TRY(tensor(m, i, "attn_q_a_norm.weight", s->q_rank, 0, 0));
        FIRN_TRY(tensor(m, i, "attn_q_b.weight", s->q_rank, q, 0));
    } else {
        FIRN_TRY(tensor(m, i, "attn_q.weight", s->n_embd, q, 0));
    }
    FIRN_TRY(tensor(m, i, "attn_kv_a_mqa.weight", s->n_embd, r + s->n_rot, 0));
    FIRN_TRY(tensor(m, i, "attn_kv_a_norm.weight", r, 0, 0));
    if (s->joint) {
        FIRN_TRY(tensor(m, i, "attn_kv_b.weight", r, H * (s->n_nope + s->n_head_v), 0));
    } else {
        FIRN_TRY(tensor(m, i, "attn_k_b.weight", s->n_nope, r, H));
        FIRN_TRY(tensor(m, i, "attn_v_b.weight", r, s->n_head_v, H));
    }
    if (s->top_k)
        FIRN_TRY(indexer(m, i));
    return tensor(m, i, "attn_output.weight", H * s->n_head_v, s->n_embd, 0);
}

static firn_status delta_net(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t d = s->n_embd, nv = s->n_state_head, inner = nv * s->n_state,
                  C = 2 * s->n_state_group * s->n_state + inner;

    if (s->joint) {
        FIRN_TRY(tensor(m, i, "ssm_in.weight", d, C + inner, 0));
    } else {
        FIRN_TRY(tensor(m, i, "attn_qkv.weight", d, C, 0));
        FIRN_TRY(tensor(m, i, "attn_gate.weight", d, inner, 0));
    }
    if (m->arch->delta_joint) {
        FIRN_TRY(tensor(m, i, "ssm_ba.weight", d, 2 * nv, 0));
    } else {
        FIRN_TRY(tensor(m, i, "ssm_beta.weight", d, nv, 0));
        FIRN_TRY(tensor(m, i, "ssm_alpha.weight", d, nv, 0));
    }
    FIRN_TRY(tensor(m, i, "ssm_conv1d.weight", s->n_taps, C, 0));
    FIRN_TRY(tensor(m, i, "ssm_dt.bias", nv, 0, 0));
    FIRN_TRY(tensor(m, i, "ssm_a", nv, 0, 0));
    FIRN_TRY(tensor(m, i, "ssm_norm.weight", s->n_state, 0, 0));
    return tensor(m, i, "ssm_out.weight", inner, d, 0);
}

static firn_status kimi_delta_net(maker *m, int64_t i)
{
    static const char *const parts[] = {"q", "k", "v"};
    const firn_random_shape *s = m->shape;
    const int64_t d = s->n_embd, inner = s->n_head * s->n_state;
    char name[32];

    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name, "attn_%s.weight", parts[k]);
        FIRN_TRY(tensor(m, i, name, d, inner, 0));
        snprintf(name, sizeof name, "ssm_conv1d_%s.weight", parts[k]);
        FIRN_TRY(tensor(m, i, name, s->n_taps, 1, inner));
    }
    FIRN_TRY(tensor(m, i, "ssm_f_a.weight", d, s->n_state, 0));
    FIRN_TRY(tensor(m, i, "ssm_f_b.weight", s->n_state, inner, 0));
    FIRN_TRY(tensor(m, i, "ssm_g_a.weight", d, s->n_state, 0));
    FIRN_TRY(tensor(m, i, "ssm_g_b.weight", s->n_state, inner, 0));
    FIRN_TRY(tensor(m, i, "ssm_beta.weight", d, s->n_head, 0));
    FIRN_TRY(tensor(m, i, "ssm_dt.bias", inner, 0, 0));
    FIRN_TRY(tensor(m, i, "ssm_a", 1, s->n_head, 0));
    FIRN_TRY(tensor(m, i, "ssm_norm.weight", s->n_state, 0, 0));
    return tensor(m, i, "attn_output.weight", inner, d, 0);
}

static firn_status mamba(maker *m, int64_t i)
{
    const firn_random_shape *s = m->shape;
    const int64_t nh = s->n_state_head, C = s->n_inner + 2 * s->n_state_group * s->n_state;

    FIRN_TRY(tensor(m, i, "ssm_in.weight", s->n_embd, s->n_inner + C + nh, 0));
    FIRN_TRY(tensor(m, i, "ssm_conv1d.weight", s->n_taps, C, 0));
    FIRN_TRY(tensor(m, i, "ssm_conv1d.bias", C, 0, 0));
    FIRN_TRY(tensor(m, i, "ssm_dt.bias", nh, 0, 0));
    FIRN_TRY(tensor(m, i, "ssm_a", 1, nh, 0));
    FIRN_TRY(tensor(m, i, "ssm_d", 1, nh, 0));
    FIRN_TRY(tensor(m, i, "ssm_norm.weight", s->n_inner / s->n_state_group, s->n_state_group, 0));
    return tensor(m, i, "ssm_out.weight", s->n_inner, s->n_embd, 0);
}

static firn_status short_convolution(maker *m, int64_t i)
{
    const int64_t d = m->shape->n_embd;

    FIRN_TRY(tensor(m, i, "shortconv.in_proj.weight", d, 3 * d, 0));
    FIRN_TRY(tensor(m, i, "shortconv.conv.weight", m->shape->n_taps, d, 0));
    return tensor(m, i, "shortconv.out_proj.weight", d, d, 0);
}

/* Attention, or what stands in its place. */
static firn_status first_part(maker *m, int64_t i)
{
    if (kind_of(m, i) == 'A')
        return m->shape->kv_rank ? latent_attention(m, i) : heads(m, i);
    if (kind_of(m, i) == 'E')
        return FIRN_OK;
    switch (m->arch->mixer) {
    case FIRN_MIX_ATTENTION:
        break;
    case FIRN_MIX_SHORTCONV:
        return short_convolution(m, i);
    case FIRN_MIX_DELTA:
        return delta_net(m, i);
    case FIRN_MIX_KIMI:
        return kimi_delta_net(m, i);
    case FIRN_MIX_MAMBA:
        return mamba(m, i);
    }
    return FIRN_OK;
}

static firn_status tensors(maker *m)
{
    const firn_random_shape *s = m->shape;
    const int64_t pairs = (s->n_rot ? s->n_rot : s->n_head_dim) / 2;

    FIRN_TRY(tensor(m, -1, "token_embd.weight", s->n_embd, s->n_vocab, 0));
    if (s->n_per_layer) {
        FIRN_TRY(tensor(m, -1, "per_layer_token_embd.weight", s->n_per_layer * m->n_layer, s->n_vocab, 0));
        FIRN_TRY(tensor(m, -1, "per_layer_model_proj.weight", s->n_embd, s->n_per_layer * m->n_layer, 0));
        FIRN_TRY(tensor(m, -1, "per_layer_proj_norm.weight", s->n_per_layer, 0, 0));
    }
    if (m->arch->rope_factors_full || ((s->with & FIRN_WITH_FACTORS) && !s->rope_scaling))
        FIRN_TRY(tensor(m, -1, "rope_freqs.weight", pairs, 0, 0));
    if ((s->with & FIRN_WITH_FACTORS) && s->rope_scaling) {
        FIRN_TRY(tensor(m, -1, "rope_factors_long.weight", pairs, 0, 0));
        FIRN_TRY(tensor(m, -1, "rope_factors_short.weight", pairs, 0, 0));
    }
    for (int64_t i = 0; i < m->n_layer; i++) {
        FIRN_TRY(tensor(m, i, "attn_norm.weight", s->n_embd, 0, 0));
        FIRN_TRY(first_part(m, i));
        if (m->arch->sandwich) {
            FIRN_TRY(tensor(m, i, "post_attention_norm.weight", s->n_embd, 0, 0));
            FIRN_TRY(tensor(m, i, "post_ffw_norm.weight", s->n_embd, 0, 0));
        }
        if (s->n_per_layer) {
            FIRN_TRY(tensor(m, i, "inp_gate.weight", s->n_embd, s->n_per_layer, 0));
            FIRN_TRY(tensor(m, i, "proj.weight", s->n_per_layer, s->n_embd, 0));
            FIRN_TRY(tensor(m, i, "post_norm.weight", s->n_embd, 0, 0));
        }
        if (m->arch->output_scale)
            FIRN_TRY(tensor(m, i, "layer_output_scale.weight", 1, 0, 0));
        if (!m->arch->one_part || kind_of(m, i) == 'E')
            FIRN_TRY(feed_forward(m, i));
    }
    FIRN_TRY(tensor(m, -1, m->arch->output_norm ? m->arch->output_norm : "output_norm.weight", s->n_embd, 0, 0));
    return s->tied ? FIRN_OK : tensor(m, -1, "output.weight", s->n_embd, s->n_vocab, 0);
}

static firn_status make(maker *m, const char *path)
{
    FIRN_TRY(put_keys(m));
    FIRN_TRY(tensors(m));
    FIRN_TRY(firn_gguf_writer_begin(m->out, path));
    m->writing = true;
    FIRN_TRY(tensors(m));
    return firn_gguf_writer_finish(m->out);
}

firn_status firn_random_model_write(firn_context *ctx, const firn_random_shape *shape, int64_t n_layer, firn_type type,
                                    uint64_t seed, const char *path, firn_random_report *report)
{
    maker m = {.ctx = ctx, .shape = shape, .n_layer = n_layer ? n_layer : shape->n_layer, .type = type, .seed = seed};

    FIRN_EXPECT(ctx, m.n_layer > 0 && m.n_layer <= 512, "a model has 1 to 512 blocks, not %" PRId64, m.n_layer);
    for (int i = 0; firn_archs[i]; i++)
        if (strcmp(firn_archs[i]->name, shape->arch) == 0)
            m.arch = firn_archs[i];
    FIRN_EXPECT(ctx, m.arch, "there is no architecture '%s'", shape->arch);
    if (!firn_format_can_draw(type))
        return firn_fail(ctx, FIRN_ERR_UNSUPPORTED, "blocks of type %s cannot be drawn", firn_type_name(type));
    m.chunk = firn_alloc(ctx, CHUNK_BYTES);
    firn_status s = m.chunk ? firn_gguf_writer_create(ctx, &m.out) : FIRN_ERR_MEMORY;
    if (s == FIRN_OK)
        s = make(&m, path);
    firn_gguf_writer_destroy(m.out);
    firn_free(ctx, m.chunk);
    if (report)
        *report = m.report;
    return s;
}
