#include "said.h"

#include "core/utf8.h"

#include <string.h>
#include <unistd.h>

/* Bytes at the end of s that begin a character whose rest is not there. */
static size_t partial(const char *s, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        return back < (c >= 0xF0 ? 4u : c >= 0xE0 ? 3u : c >= 0xC0 ? 2u : 1u) ? back : 0;
    }
    return 0;
}

void cmd_said_put(cmd_said *said, FILE *out, const char *bytes, size_t n)
{
    char part[256];

    while (n) {
        const size_t room = sizeof part - said->n, take = n < room ? n : room;
        memcpy(part, said->rest, said->n);
        memcpy(part + said->n, bytes, take);
        const size_t size = said->n + take, keep = partial(part, size);
        memcpy(said->rest, part + size - keep, keep);
        said->n = keep;
        fwrite(part, 1, firn_tame(part, size - keep), out);
        bytes += take;
        n -= take;
    }
}

void cmd_said_end(cmd_said *said, FILE *out)
{
    fwrite(said->rest, 1, firn_tame(said->rest, said->n), out);
    said->n = 0;
}

void cmd_said_all(FILE *out, const char *bytes, size_t n)
{
    cmd_said said = {0};

    cmd_said_put(&said, out, bytes, n);
    cmd_said_end(&said, out);
}

void cmd_put(const char *bytes, size_t n)
{
    if (isatty(STDOUT_FILENO))
        cmd_said_all(stdout, bytes, n);
    else
        fwrite(bytes, 1, n, stdout);
}

void cmd_said_vprintf(FILE *out, const char *format, va_list args)
{
    char text[8192];

    vsnprintf(text, sizeof text, format, args);
    cmd_said_all(out, text, strlen(text));
}

void cmd_said_printf(FILE *out, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    cmd_said_vprintf(out, format, args);
    va_end(args);
}
