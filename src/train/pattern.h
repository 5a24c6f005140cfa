/* "WHAT=VALUE", WHAT a class of targets or a pattern over tensor names: how options say something of some tensors. */
#ifndef FIRN_TRAIN_PATTERN_H
#define FIRN_TRAIN_PATTERN_H

#include "model/model.h"

enum { FIRN_PATTERN_BYTES = 256 };

/* Parts the text at its last '='; false where that makes no two. *value points into it. */
bool firn_pattern_split(const char *text, char pattern[FIRN_PATTERN_BYTES], const char **value);
bool firn_pattern_matches(const char *pattern, const char *tensor, firn_class class_);

#endif
