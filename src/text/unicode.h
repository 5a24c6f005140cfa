/* The Unicode classes that pre-tokenizers cut at; UTF-8 itself is core/utf8.h. */
#ifndef FIRN_TEXT_UNICODE_H
#define FIRN_TEXT_UNICODE_H

#include "core/utf8.h"

typedef enum { /* general category L*, N*, M*, P*, S*; White_Space comes before them; all else is other */
               FIRN_UNICODE_OTHER,
               FIRN_UNICODE_SPACE,
               FIRN_UNICODE_LETTER,
               FIRN_UNICODE_NUMBER,
               FIRN_UNICODE_MARK,
               FIRN_UNICODE_PUNCTUATION,
               FIRN_UNICODE_SYMBOL,
} firn_unicode_class;

extern const uint32_t firn_unicode_ranges[];
extern const int firn_unicode_n_ranges;

/* Code points past U+10FFFF are other. */
firn_unicode_class firn_unicode_classify(uint32_t code);

#endif
