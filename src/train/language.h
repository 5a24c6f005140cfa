/* What a model speaks: its tokenizer and its chat template (firn/text.h), as the library's own parts use it. */
#ifndef FIRN_TRAIN_LANGUAGE_H
#define FIRN_TRAIN_LANGUAGE_H

#include "firn/train.h"
#include "text/tokenizer.h"
#include "train/data.h"

/* As the options of a run want it. */
firn_status firn_train_language_create(firn_context *ctx, const firn_train_options *options, const firn_gguf *gguf,
                                       firn_language **language);
firn_context *firn_language_context(const firn_language *language);
/* Belongs to the language. */
const firn_encoder *firn_language_encoder(firn_language *language);

/* FIRN_OK: there is a template, and it can be compiled. */
firn_status firn_language_has_template(firn_language *language);
/* A line's text up to where the model's answer begins, special tokens written out: of messages (a line, or the list
 * alone) through the template, of a prompt as it is. */
firn_status firn_language_asked(firn_language *language, const json_t *line, firn_text *text);
/* The tokens of such a text: BOS in front where the vocabulary asks for it and the text does not begin with it. */
firn_status firn_language_asked_tokens(firn_language *language, const char *text, size_t size, firn_tokens *tokens);

#endif
