/* What a model speaks: its tokenizer and its chat template, as a data set wants them. */
#ifndef FIRN_TRAIN_LANGUAGE_H
#define FIRN_TRAIN_LANGUAGE_H

#include "text/tokenizer.h"
#include "train/data.h"

typedef struct firn_language firn_language;

/* ctx and the file must outlive it. A model without a chat template is fine until messages are to be read. */
firn_status firn_language_create(firn_context *ctx, const firn_gguf *gguf, firn_language **language);
void firn_language_destroy(firn_language *language); /* NULL is fine */
/* Belongs to the language. */
const firn_encoder *firn_language_encoder(firn_language *language);
const firn_tokenizer *firn_language_tokenizer(const firn_language *language);

#endif
