#include "core/buffer.h"

#include "core/plain.h"

#include <stdio.h>
#include <string.h>

void firn_text_init(firn_text *text, firn_context *ctx, size_t limit)
{
    *text = (firn_text){.ctx = ctx, .limit = limit};
}

void firn_text_free(firn_text *text)
{
    firn_free(text->ctx, text->data);
    firn_text_init(text, text->ctx, text->limit);
}

/* Room for n more bytes and the NUL. */
static bool reserve(firn_text *text, size_t n)
{
    size_t wanted;

    if (text->status != FIRN_OK)
        return false;
    if (!firn_add_size(text->size, n, &wanted) || (text->limit && wanted > text->limit)) {
        text->status = firn_fail(text->ctx, FIRN_ERR_MEMORY, "the text grows past %zu bytes", text->limit);
        return false;
    }
    if (wanted < text->capacity)
        return true;
    const size_t capacity = (wanted + 1) * 3 / 2 + 64;
    char *data = firn_realloc(text->ctx, text->data, capacity);
    if (!data) {
        text->status = FIRN_ERR_MEMORY;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void firn_text_append(firn_text *text, const void *bytes, size_t n)
{
    if (!reserve(text, n))
        return;
    if (n)
        memcpy(text->data + text->size, bytes, n);
    text->size += n;
    text->data[text->size] = 0;
}

void firn_text_puts(firn_text *text, const char *s)
{
    firn_text_append(text, s, strlen(s));
}

void firn_text_putc(firn_text *text, char c)
{
    firn_text_append(text, &c, 1);
}

void firn_text_printf(firn_text *text, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    const int n = firn_vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0 || !reserve(text, (size_t)n))
        return;
    va_start(args, format);
    firn_vsnprintf(text->data + text->size, (size_t)n + 1, format, args);
    va_end(args);
    text->size += (size_t)n;
}

void firn_text_codepoint(firn_text *text, uint32_t c)
{
    char b[4];

    if (c > 0x10FFFF || (c >= 0xD800 && c < 0xE000))
        c = 0xFFFD;
    if (c < 0x80) {
        b[0] = (char)c;
        firn_text_append(text, b, 1);
    } else if (c < 0x800) {
        b[0] = (char)(0xC0 | c >> 6);
        b[1] = (char)(0x80 | (c & 0x3F));
        firn_text_append(text, b, 2);
    } else if (c < 0x10000) {
        b[0] = (char)(0xE0 | c >> 12);
        b[1] = (char)(0x80 | (c >> 6 & 0x3F));
        b[2] = (char)(0x80 | (c & 0x3F));
        firn_text_append(text, b, 3);
    } else {
        b[0] = (char)(0xF0 | c >> 18);
        b[1] = (char)(0x80 | (c >> 12 & 0x3F));
        b[2] = (char)(0x80 | (c >> 6 & 0x3F));
        b[3] = (char)(0x80 | (c & 0x3F));
        firn_text_append(text, b, 4);
    }
}

const char *firn_text_cstr(const firn_text *text)
{
    return text->data ? text->data : "";
}
