/* UTF-8: one code point at a time, whole texts, and texts that come from files on their way to people's eyes. */
#ifndef FIRN_CORE_UTF8_H
#define FIRN_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decodes the code point at s (n >= 1 bytes are there) and returns its length in bytes. What is not valid UTF-8
 * (surrogates and overlong forms included) is one byte long, with code UINT32_MAX. */
size_t firn_utf8_decode(const char *s, size_t n, uint32_t *code);
/* False where s is not valid UTF-8; *bad is then the first byte that is not. */
bool firn_utf8_valid(const char *s, size_t n, size_t *bad);

/* Replaces, in place, by '?' what would steer a terminal or turn text around on it: control characters (C0 but for line
 * feed and tab, DEL, C1), marks and overrides of writing direction, line and paragraph separators, and each byte that
 * is not UTF-8 (some terminals take 0x80 to 0x9F for C1). Returns the size, which may have shrunk. Errors, warnings and
 * whatever a command prints of a file pass here. */
size_t firn_tame(char *text, size_t n);
/* The same of a text that ends in NUL, as one line: line feeds and tabs become spaces. */
void firn_tame_line(char *text);

#endif
