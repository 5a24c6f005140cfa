/* UTF-8 decoding and class lookup; the table is unicode_data.c. */
#include "text/unicode.h"

firn_unicode_class firn_unicode_classify(uint32_t code)
{
    int low = 0, high = firn_unicode_n_ranges; /* the answer's range is in [low, high) */

    if (code > 0x10FFFF)
        return FIRN_UNICODE_OTHER;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (firn_unicode_ranges[middle] >> 8 <= code)
            low = middle;
        else
            high = middle;
    }
    return (firn_unicode_class)(firn_unicode_ranges[low] & 0xFF);
}

size_t firn_utf8_decode(const char *s, size_t n, uint32_t *code)
{
    const uint8_t *u = (const uint8_t *)s;
    const uint8_t lead = u[0];
    const size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;

    *code = UINT32_MAX;
    if (length == 0 || length > n)
        return 1;
    if (length == 1) {
        *code = lead;
        return 1;
    }
    uint32_t c = lead & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((u[i] & 0xC0) != 0x80)
            return 1;
        c = c << 6 | (u[i] & 0x3F);
    }
    if ((length == 3 && (c < 0x800 || (c >= 0xD800 && c <= 0xDFFF))) || (length == 4 && (c < 0x10000 || c > 0x10FFFF)))
        return 1;
    *code = c;
    return length;
}

bool firn_utf8_valid(const char *s, size_t n, size_t *bad)
{
    uint32_t code;

    for (size_t at = 0, width; at < n; at += width) {
        width = firn_utf8_decode(s + at, n - at, &code);
        if (code == UINT32_MAX) {
            *bad = at;
            return false;
        }
    }
    return true;
}
