/* Sparse upcycling (Komatsuzaki and others 2022, arXiv 2212.05055): a dense model becomes a mixture of experts that
 * computes what the dense model did, ready to be trained apart. */
#ifndef FIRN_MODEL_UPCYCLE_H
#define FIRN_MODEL_UPCYCLE_H

#include "core/context.h"

enum { FIRN_MAX_EXPERTS = 1024 }; /* llama.cpp's limit */

/* Writes `out` (whole or not at all) from the dense model `in`: llama stays llama, qwen3 becomes qwen3moe, granite
 * granitemoe, lfm2 lfm2moe, a dense granitehybrid one with experts. Other architectures are refused by name with the
 * reason. */
firn_status firn_upcycle(firn_context *ctx, const char *in, const char *out, int64_t n_expert, int64_t n_used,
                         uint64_t seed);

#endif
