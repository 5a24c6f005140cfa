/* A growing byte string, for text that is put together. Sticky: after a failure every call does nothing, and `status`
 * keeps the first one, so that a writer checks once at the end. Always ends in a NUL that `size` does not count. */
#ifndef FIRN_CORE_BUFFER_H
#define FIRN_CORE_BUFFER_H

#include "core/context.h"

typedef struct {
    firn_context *ctx;
    char *data; /* NULL while empty */
    size_t size, capacity;
    size_t limit; /* 0: none; passing it is FIRN_ERR_MEMORY */
    firn_status status;
} firn_text;

void firn_text_init(firn_text *text, firn_context *ctx, size_t limit);
void firn_text_free(firn_text *text);
void firn_text_append(firn_text *text, const void *bytes, size_t n);
void firn_text_puts(firn_text *text, const char *s);
void firn_text_putc(firn_text *text, char c);
void firn_text_printf(firn_text *text, const char *format, ...) FIRN_PRINTF(2, 3);
/* The UTF-8 bytes of a code point; U+FFFD for one that does not exist. */
void firn_text_codepoint(firn_text *text, uint32_t code);
/* "" while empty. */
const char *firn_text_cstr(const firn_text *text);

/* "s" where n of a thing are several: "%d step%s". */
static inline const char *firn_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
