#include "core/utf8.h"

#include <string.h>

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

static bool steers(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0) || c == 0x61C || c == 0x200E ||
           c == 0x200F || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == UINT32_MAX;
}

size_t firn_tame(char *text, size_t n)
{
    size_t to = 0;
    uint32_t code;

    for (size_t at = 0, width; at < n; at += width) {
        width = firn_utf8_decode(text + at, n - at, &code);
        if (steers(code)) {
            text[to++] = '?';
        } else {
            memmove(text + to, text + at, width);
            to += width;
        }
    }
    return to;
}

void firn_tame_line(char *text)
{
    text[firn_tame(text, strlen(text))] = 0;
    for (; *text; text++)
        if (*text == '\n' || *text == '\t')
            *text = ' ';
}
