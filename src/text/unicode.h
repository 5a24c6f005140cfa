/* UTF-8 and the Unicode classes that pre-tokenizers cut at. */
#ifndef FIRN_TEXT_UNICODE_H
#define FIRN_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Bytes of the character at s (n >= 1 bytes left), 1 to 4; *code gets its code point. A byte that begins no well-formed
 * character (overlong forms, surrogates and values past U+10FFFF are not) counts as one of length 1, its code
 * UINT32_MAX. */
size_t firn_utf8_decode(const char *s, size_t n, uint32_t *code);

/* Whether all n bytes are well-formed characters; else *bad is where the first that is not begins. */
bool firn_utf8_valid(const char *s, size_t n, size_t *bad);

#endif
