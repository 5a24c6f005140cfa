/* Tokenizers: text to ids and back, as the model's own file says.
 *
 * What a GGUF's tokenizer.ggml.* keys describe is read once into an immutable firn_tokenizer, which any number of
 * threads may use at once, each with its own context. Ids are llama.cpp's for every text that is valid UTF-8;
 * docs/text.md lists what was checked and the few deviations. Where to read on: vocab.c (loading), pretokenize.c (where
 * each vocabulary cuts text into words), merge.c (BPE and SPM merging), special.c (special tokens in text), tokenizer.c
 * (all of it together). */
#ifndef FIRN_TEXT_TOKENIZER_H
#define FIRN_TEXT_TOKENIZER_H

#include "core/buffer.h"
#include "firn/text.h"

/* As firn_tokens_text, appended to a text. */
firn_status firn_detokenize(firn_context *ctx, const firn_tokenizer *tok, const int32_t *ids, size_t n, firn_text *out);

#endif
