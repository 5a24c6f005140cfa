/* Which type a tensor really gets when a model is written in a type: the rules of llama.cpp's quantizer, shared by
 * `firn quantize` and `firn init`. */
#ifndef FIRN_FORMAT_FALLBACK_H
#define FIRN_FORMAT_FALLBACK_H

#include "firn/firn.h"

/* `wanted`, or what llama.cpp takes where its block does not divide a row of `row` elements: IQ types (and other
 * types with blocks of 256 that the list does not name) -> IQ4_NL, Q2_K and Q3_K -> Q4_0, Q4_K -> Q5_0, Q5_K -> Q5_1,
 * Q6_K -> Q8_0; F16 where that type's block does not divide it either. */
firn_type firn_quantize_fallback(firn_type wanted, int64_t row);

/* True for tensors that stay F32 in every file: one-dimensional ones, norms, routers (ffn_gate_inp*), and whatever is
 * not called .weight (the biases of experts have two dimensions). */
bool firn_quantize_keeps_f32(const char *name, int n_dims);

#endif
